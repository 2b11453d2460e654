"""What is to be watched and who is to be told, checked before Spark starts."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.params import StormParams
from tricklecast.trickle.wire import redacted

KAFKA: Final = "kafka://"
KAFKA_PORT: Final = 9092


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """One run.

    Attributes:
        source: what Spark's reader is told: ``logs``, or ``servers``, ``topic`` and ``config``.
        earliest: begin with what is there already, if the state knows no better.
        params: what a storm is.
        state: folder of the state; ``None`` for one that ends with the command.
        json: alerts as JSON lines rather than for people; webhooks, alertmanagers: URLs.
        fail_on: severity from which on to exit with 1, or ``never``.
        master: where Spark runs; conf: settings for it.
        for_s: end after so long, seconds; ``None`` for when interrupted.
        verbose, quiet: more, or less, than usual on the terminal.
    """

    source: dict[str, Any]
    earliest: bool
    params: StormParams
    state: Path | None
    json: bool
    webhooks: tuple[str, ...]
    alertmanagers: tuple[str, ...]
    fail_on: str
    master: str | None
    conf: dict[str, str]
    for_s: float | None
    verbose: bool
    quiet: bool


def source_of(logs: Sequence[str], kafka_config: str | None) -> dict[str, Any]:
    """What Spark's reader is told.

    Raises:
        ValueError: it is neither files nor one topic. BadInput: there is no such log, or it cannot be read.
    """
    if any(log.startswith(KAFKA) for log in logs):
        if len(logs) > 1:
            raise ValueError("one Kafka topic, or files and folders")
        return _kafka(logs[0], kafka_config)
    if kafka_config is not None:
        raise ValueError("--kafka-config is for kafka://HOST/TOPIC")
    return {"logs": [os.path.abspath(name) for log in logs for name in _existing(log)]}


def _existing(log: str) -> list[str]:
    if "://" in log:
        raise ValueError(f"cannot watch {log!r}: files, folders, or kafka://HOST/TOPIC")
    path = Path(log)
    # A file that is not there yet is waited for; a folder cannot be told from a typing error.
    if not path.exists():
        matches = sorted(glob.glob(log, recursive=True))
        if matches:
            return matches
        if not path.suffix or not path.absolute().parent.is_dir():
            raise BadInput(f"no such log: {log!r}")
    if path.exists() and not os.access(path, os.R_OK):
        raise BadInput(f"cannot read {log!r}: permission denied")
    return [log]


def _kafka(url: str, config: str | None) -> dict[str, Any]:
    servers, _, topic = url.removeprefix(KAFKA).partition("/")
    if not servers or not topic or "/" in topic:
        raise ValueError(f"{url!r}: expected kafka://HOST[:PORT][,HOST...]/TOPIC")
    named = [server if ":" in server else f"{server}:{KAFKA_PORT}" for server in servers.split(",")]
    return {"servers": ",".join(named), "topic": topic, "config": {} if config is None else read_config(Path(config))}


def read_config(path: Path) -> dict[str, str]:
    """Settings for librdkafka, ``NAME=VALUE`` each, ``#`` before a comment: passwords do not belong on a command line.

    Raises:
        ValueError: the file cannot be read, or has something else in it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    settings: dict[str, str] = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"{str(path)!r}: expected NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def checked_url(url: str) -> str:
    """A URL to which alerts can be sent.

    Raises:
        ValueError: it is none.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{redacted(url)!r} is no http:// or https:// URL")
    return url
