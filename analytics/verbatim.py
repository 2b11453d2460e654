"""Lines as they stand in the log, for records that Spark has read from it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tricklecast.analytics.content import open_log

if TYPE_CHECKING:
    from tricklecast.analytics.explain import Line

MAX_LINE: Final = 1 << 20
"""Bytes of a line that are read; a longer one is shown as it was understood."""

_COMPARED: Final = ("ts_us", "node", "client", "conn", "seq", "status", "event", "attempt")


def verbatim(lines: Iterable[Line]) -> dict[Line, str]:
    """The text of those lines that stand in a JSON Lines file of this machine. Others have none: Parquet, proxies'
    logs (whose times are of another moment) and remote files.
    """
    by_file: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.file.startswith("file:") and not line.file.endswith(".parquet"):
            by_file[unquote(re.sub("^file:/*", "/", line.file))].append(line)
    found: dict[Line, str] = {}
    for name, wanted in by_file.items():
        found |= _in_file(name, wanted)
    return found


def _in_file(name: str, wanted: list[Line]) -> dict[Line, str]:
    times = re.compile(b"|".join(str(line.ts_us).encode() for line in wanted))
    left = {_key(json.loads(line.record)): line for line in wanted}
    found: dict[Line, str] = {}
    try:
        with open_log(name) as file:
            while left and (raw := file.readline(MAX_LINE)):
                key = _parsed(raw) if times.search(raw) else None
                line = left.pop(key, None) if key is not None else None
                if line is not None:
                    found[line] = raw.rstrip(b"\r\n").decode(errors="replace")
    except (OSError, EOFError):
        pass  # it went away, or is cut: what was read of it is known all the same
    return found


def _parsed(raw: bytes) -> tuple[Any, ...] | None:
    try:
        record = json.loads(raw)
    except ValueError:
        return None
    return _key(record) if isinstance(record, dict) else None


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(str(record.get(name)) for name in _COMPARED)
