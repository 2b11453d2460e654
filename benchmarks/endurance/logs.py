"""The access log after all of it: does every line parse, and what does it say has happened?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from tricklecast.trickle.records import Event, Kind


@dataclass(frozen=True, slots=True)
class LogAccount:
    """What is in the log.

    Attributes:
        lines: in all. torn: those that are no record. exchanges: records of requests.
        events: of which kind how many.
    """

    lines: int
    torn: int
    exchanges: int
    events: dict[str, int]

    def count(self, event: Event) -> int:
        """How many events of a kind there are."""
        return self.events.get(event, 0)


def read_logs(files: Iterable[Path]) -> LogAccount:
    """Read every line of these files."""
    lines = torn = exchanges = 0
    events: Counter[str] = Counter()
    for path in files:
        with path.open("rb") as file:
            for line in file:
                lines += 1
                try:
                    record = orjson.loads(line)
                    kind = record["kind"]
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    torn += 1
                    continue
                if kind == Kind.EVENT:
                    events[record["event"]] += 1
                else:
                    exchanges += 1
    return LogAccount(lines, torn, exchanges, dict(events))
