"""What every part of the simulator makes: lines of a log that know when they are written."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from tricklecast.trickle.records import AccessRecord

Line = dict[str, Any]
"""One line of a log as its JSON object."""

_ENUMERATED: Final = ("kind", "event", "op", "reason")

Entry = tuple[int, Line]
"""When a line is written (its request's end, microseconds) and the line."""


def line_of(record: AccessRecord) -> Line:
    """A record as a line: the server's own conversion, with plain texts in place of enumerations."""
    line = record.as_dict()
    for name in _ENUMERATED:
        value = line.get(name)
        if isinstance(value, Enum):
            line[name] = value.value
    return line


def entry_of(record: AccessRecord) -> Entry:
    """A record with the time at which a server writes it: when the exchange has ended."""
    return record.ts_us + (record.dur_us or 0), line_of(record)


def when(entry: Entry) -> int:
    """When an entry is written: the key to sort by (lines themselves have no order)."""
    return entry[0]
