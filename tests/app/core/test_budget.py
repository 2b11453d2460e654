"""The one memory budget: what it counts, what it makes room for, and what lingers."""

from __future__ import annotations

import pytest

from tricklecast.app.core.budget import Budget
from tricklecast.app.core.segment import SEGMENT_COST, Event, Segment


class Leaver:
    """A reader of a closed segment that leaves when it is told to, if it listens."""

    def __init__(self, budget: Budget, segment: Segment, *, listens: bool = True) -> None:
        self.budget = budget
        self.segment = segment
        self.listens = listens
        self.told = 0
        segment.cursors[self] = None

    def wake(self) -> None:
        raise AssertionError("nothing of a closed segment is new")

    def evict(self) -> None:
        self.told += 1
        if self.listens:
            self.leave()

    def leave(self) -> None:
        del self.segment.cursors[self]
        self.budget.settle(self.segment)


def held(budget: Budget, seq: int = 0) -> Segment:
    """A closed segment without a byte that the budget counts."""
    segment = Segment(seq)
    assert budget.take(segment.cost)
    segment.close(Event.FINISH, 1.0)
    return segment


def roomy() -> Budget:
    return Budget(10**6, lambda size: None)


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_the_budget_holds_its_limit_and_no_more(size: int, fits: bool) -> None:
    """One below and at the limit fit, one above does not, and what does not fit is not accounted for."""
    asked: list[int] = []
    budget = Budget(10, asked.append)
    assert budget.take(size) is fits
    assert budget.used == (size if fits else 0)
    assert asked == ([] if fits else [1])


def test_room_is_made_by_reclaiming() -> None:
    """When the limit is reached, others are asked for just what is missing; what they free is enough."""
    asked: list[int] = []

    def reclaim(size: int) -> None:
        asked.append(size)
        budget.used -= size

    budget = Budget(10, reclaim)
    assert budget.take(8)
    assert budget.take(5)
    assert (asked, budget.used) == ([3], 10)


@pytest.mark.parametrize(("size", "asked"), [(9, []), (10, []), (11, [1])])
def test_what_is_held_already_cannot_be_refused(size: int, asked: list[int]) -> None:
    """It is counted even where no room can be made; that is asked for above the limit only."""
    calls: list[int] = []
    budget = Budget(10, calls.append)
    budget.charge(size)
    assert (budget.used, calls) == (size, asked)


def test_a_segment_that_nobody_reads_is_free_at_once() -> None:
    """What leaves its window does not linger without a reader."""
    budget = roomy()
    budget.release(held(budget))
    assert (budget.used, budget.lingering) == (0, {})


def test_a_segment_lingers_until_its_last_reader_has_left() -> None:
    """Its bytes are in memory for as long as somebody reads them, and are counted."""
    budget = roomy()
    segment = held(budget)
    first, second = Leaver(budget, segment), Leaver(budget, segment)
    budget.release(segment)
    first.leave()
    assert (budget.used, list(budget.lingering)) == (SEGMENT_COST, [segment])
    second.leave()
    assert (budget.used, budget.lingering) == (0, {})


def test_a_reader_of_a_kept_segment_frees_nothing() -> None:
    """The segment is still in its window."""
    budget = roomy()
    Leaver(budget, held(budget)).leave()
    assert (budget.used, budget.lingering) == (SEGMENT_COST, {})


def test_readers_are_dropped_for_their_memory() -> None:
    """Each is told once, and when the last one has gone the memory is free."""
    budget = roomy()
    segment = held(budget)
    readers = [Leaver(budget, segment), Leaver(budget, segment)]
    budget.release(segment)
    budget.drop_readers(segment)
    assert ([reader.told for reader in readers], budget.used) == ([1, 1], 0)


def test_a_reader_that_does_not_leave_frees_nothing() -> None:
    """What is still being read is still counted."""
    budget = roomy()
    segment = held(budget)
    Leaver(budget, segment, listens=False)
    budget.release(segment)
    budget.drop_readers(segment)
    assert (budget.used, list(budget.lingering)) == (SEGMENT_COST, [segment])
