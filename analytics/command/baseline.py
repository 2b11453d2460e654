"""What ``--baseline`` means: a release, a moment, or other logs."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tricklecast.analytics.cli.times import parse_time

_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Kind(StrEnum):
    """What is compared; also the prefix that says so where a name could mean several things."""

    RELEASE = "release"
    DATE = "date"
    LOGS = "logs"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The other side of a comparison.

    Attributes:
        kind: what it is.
        text: the release, the moment or the logs, as they were typed.
        at_us: the moment, microseconds since the epoch; ``None`` for the other kinds.
    """

    kind: Kind
    text: str
    at_us: int | None = None


def parse_baseline(text: str, now_us: int) -> Baseline:
    """The baseline that a text means: a time where it is one, logs where there are such files, else a release.

    Args:
        text: as typed; ``release:``, ``date:`` or ``logs:`` before it leaves no doubt.
        now_us: what ``now`` is.

    Raises:
        ValueError: it is empty, or no time after ``date:``.
    """
    prefix, colon, rest = text.partition(":")
    kind = Kind(prefix) if colon and prefix in list(Kind) else None
    name = rest if kind is not None else text
    if not name.strip():
        raise ValueError("a baseline is a release, a date or other logs")
    if kind in (None, Kind.DATE):
        try:
            return Baseline(Kind.DATE, name, parse_time(name, now_us))
        except ValueError:
            if kind is Kind.DATE:
                raise
    if kind is Kind.LOGS or (kind is None and _names_logs(name)):
        return Baseline(Kind.LOGS, name)
    return Baseline(Kind.RELEASE, name)


def _names_logs(text: str) -> bool:
    try:
        return bool(_REMOTE.match(text)) or os.path.exists(text) or bool(glob.glob(text))
    except (OSError, ValueError):
        return False
