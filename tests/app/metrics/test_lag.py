"""How far readers are behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.app.metrics.scrape import Samples, labelled, scrape
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.metrics.lag import MOST, STEPS, STEPS_S, ReaderLag


class Connection:
    """One that is full."""

    looked = 0

    def __init__(self, behind: int) -> None:
        self._behind = behind

    def lag(self) -> int:
        Connection.looked += 1
        return self._behind

    def lag_s(self) -> float:
        return max(0, self._behind) / 1000


def lag_of(*behind: int, catching_up: tuple[int, ...] = ()) -> Samples:
    """A scrape while connections are so far behind, and readers that catch up."""
    stalled = {Connection(lag): None for lag in behind}
    plane: Any = SimpleNamespace(stalled=stalled, catching_up=[Connection(lag) for lag in catching_up])
    return scrape(ReaderLag(cast(DataPlane, plane)))


def test_nobody_is_behind() -> None:
    """All figures are 0; a reader that was given more than was there when it came has a negative lag."""
    for found in (lag_of(), lag_of(-5)):
        assert found["tricklecast_reader_lag_max_bytes", ()] == 0
        assert set(labelled(found, "tricklecast_readers_behind", "bytes").values()) == {0}


def test_readers_are_counted_by_how_far_they_are_behind() -> None:
    """At a step is not beyond it."""
    found = lag_of(1, STEPS[0], STEPS[0] + 1, STEPS[2] + 1)
    assert found["tricklecast_reader_lag_max_bytes", ()] == STEPS[2] + 1
    assert list(labelled(found, "tricklecast_readers_behind", "bytes").values()) == [2, 1, 1, 0, 0]


def test_readers_that_catch_up_are_behind_too() -> None:
    """Their connection takes more, and they wait for their turn."""
    assert lag_of(1, catching_up=(70_000,))["tricklecast_reader_lag_max_bytes", ()] == 70_000


def test_readers_are_counted_by_how_long_they_lack_something() -> None:
    """A step is not beyond itself, as for bytes."""
    found = lag_of(400, 500, 501, catching_up=(2001, 9000))
    assert found["tricklecast_reader_lag_max_seconds", ()] == 9
    assert STEPS_S == (0.5, 1, 2, 5)
    assert list(labelled(found, "tricklecast_readers_late", "seconds").values()) == [3, 2, 2, 1]
    assert lag_of()["tricklecast_reader_lag_max_seconds", ()] == 0


def test_the_work_is_bounded() -> None:
    """However many have stalled."""
    Connection.looked = 0
    lag_of(*range(MOST + 100))
    assert Connection.looked == MOST
