"""Each rule of the mirror is needed: without it, the world finds what goes wrong.

Two of these faults another product has had: a copy that finishes after its object is gone brings it back, and the job
of the first of two updates overwrites the state of the second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.app.mirror.world import Noted, Violation, run
from tricklecast.app.mirror.engine import Mirror
from tricklecast.app.mirror.registry import ChannelRow, MirrorRegistry, SegmentRow
from tricklecast.app.mirror.sides import Listing, SourceChannel


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each world has a thousand warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class AnyVersion(MirrorRegistry):
    """The first job of two overwrites the state of the second."""

    def _now(self, row: Any) -> Any:
        table, key = ("channel", row[:1]) if isinstance(row, ChannelRow) else ("segment", row[:3])
        where = "name = ?" if isinstance(row, ChannelRow) else "name = ? AND epoch = ? AND seq = ?"
        found = self._ask(f"SELECT version FROM {table} WHERE {where} AND state = 'started'", *key)
        return row._replace(version=found[0][0]) if found else row

    def is_current(self, row: Any) -> bool:
        return super().is_current(self._now(row))

    def learn(self, row: ChannelRow, truth: SourceChannel, instance: str) -> bool:
        return super().learn(self._now(row), truth, instance)

    def _settle(self, row: Any, *about: Any, **more: Any) -> bool:
        return super()._settle(self._now(row), *about, **more)


class CopiesAlwaysFinish(MirrorRegistry):
    """A copy that finishes after the delete brings the channel back."""

    def finish_segment(self, row: SegmentRow, crc: int, now: float) -> bool:
        self.arrived(SourceChannel(row.name, row.epoch, row.created_us), [], now)
        return super().finish_segment(row, crc, now) or True


class NoFence(Mirror):
    """Nor is it asked whether its channel is still followed: that would keep it back, too."""

    def _stands(self, name: str, follower: object) -> bool:
        return True


class NoSweep(MirrorRegistry):
    """Works of a process that was killed stay started for ever."""

    def sweep(self, now: float, started_before: float) -> int:
        return 0


class NewsAct(Mirror):
    """News are believed, instead of making a row dirty."""

    def _mark(self, names: Sequence[str]) -> None:
        super()._mark(names)
        for name in names:
            if not isinstance(name, Noted) or not self.selected(name):
                continue
            now = self._wall()
            taken = {row.name: row for row in self.registry.take_channels(now, 1000)}
            super()._mark([other for other in taken if other != name])
            truth = None if name.life is None else SourceChannel(*name.life)
            if (row := taken.get(name)) is not None and self._apply(row, truth, self._instance):
                self.registry.finish_channel(row, now)


class DeletesAtOnce(Mirror):
    """What was not there when it was asked for ends, whatever has happened since."""

    def _apply(self, row: ChannelRow, truth: SourceChannel | None, instance: str) -> bool:
        if truth is None:
            self._unfollow(row.name)
            self.destination.end(row.name)
        return super()._apply(row, truth, instance)


class DifferenceDeletes(Mirror):
    """What is not in the list of all channels ends at once."""

    async def _compare(self, listing: Listing) -> None:
        there = {one.name for one in listing.channels}
        for name in self.registry.channels():
            if name not in there:
                self._unfollow(name)
                self.destination.end(name)
        await super()._compare(listing)


MUTANTS = {
    AnyVersion: 8,
    CopiesAlwaysFinish: 14,
    NoSweep: 9,
    NewsAct: 11,
    DeletesAtOnce: 8,
    DifferenceDeletes: 7,
}
"""With a seed whose world finds the fault within a second; if the world has changed, one of the next ones does."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: type[Mirror] | type[MirrorRegistry]) -> None:
    """Something comes back, or is stale, or ends too early."""
    with pytest.raises(Violation):
        _search(mutant)


def _search(mutant: type[Mirror] | type[MirrorRegistry]) -> None:
    for seed in range(MUTANTS[mutant], MUTANTS[mutant] + 50):
        if issubclass(mutant, Mirror):
            run(seed, 60, mirror=mutant)
        else:
            run(seed, 60, mirror=NoFence if mutant is CopiesAlwaysFinish else Mirror, registry=mutant)
