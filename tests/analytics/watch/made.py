"""Lines of access logs for the tests of the watch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.watch.window import planned

if TYPE_CHECKING:
    from tricklecast.analytics.rules.engine import Planned

NOW_US: Final = 1_760_000_000_000_000


def line(at_s: float = 0.0, **fields: Any) -> str:
    """A request to a channel that is not there, so many seconds after :data:`NOW_US`."""
    record: dict[str, Any] = {"v": 1, "ts_us": NOW_US + round(at_s * 1e6), "node": "edge-1", "kind": "exchange"}
    record |= {"op": "read", "method": "GET", "path": "/film/1", "channel": "film", "status": 404, "client": "player-1"}
    return json.dumps(record | fields)


def loop(n: int, begin_s: float = 0.0, every_s: float = 0.05, **fields: Any) -> list[str]:
    """So many of them, one after the other."""
    return [line(begin_s + turn * every_s, **fields) for turn in range(n)]


def append(path: Path, lines: list[str]) -> None:
    """Adds lines to a log."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{each}\n" for each in lines)


@cache
def rules() -> Planned:
    """The rules, which all watches of a process share: to plan them takes longer than most tests."""
    return planned(embedded.connect(0), Params())


class Clock:
    """A clock that stands still until it is moved; seconds, and microseconds since the epoch."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        """Microseconds since the epoch."""
        return NOW_US + round((self.now_s - 1_000.0) * 1e6)
