"""The window keeps closed segments for catching up and evicts them; the memory budget holds over all windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import SEGMENT_COST, Event, Faults, Segment, encode_frame
from tricklecast.app.core.window import STALE_ENTRIES, Budget, Eviction, Window


def closed(seq: int, size: int = 1, now: float = 0.0, event: Event = Event.FINISH) -> Segment:
    segment = Segment(seq)
    if size:
        segment.store(encode_frame([b"x" * size]), size)
    segment.close(event, now)
    return segment


class Kept:
    """A window, its budget, and what has left it."""

    def __init__(self, *segments: Segment, budget: Budget | None = None, **limits: Any) -> None:
        self.budget = budget or Budget(10**6, Faults())
        self.evicted: list[int] = []
        self.opened: list[Segment] = []
        self.window = Window(
            Limits(**limits), self.budget, lambda segment, why: self.evicted.append(segment.seq), self._give_open
        )
        for segment in segments:
            self.keep(segment)

    def keep(self, segment: Segment) -> None:
        if segment.size:
            assert self.budget.take(self.window, segment.cost)
            self.window.open += segment.cost
        self.window.keep(segment)

    def open(self, size: int) -> bool:
        """Begin a segment that stays open; whether there is room for it."""
        segment = Segment(1000 + len(self.opened))
        frame = encode_frame([b"x" * size])
        if not self.budget.take(self.window, segment.price(frame)):
            return False
        segment.store(frame, size)
        self.window.open += segment.cost
        self.opened.append(segment)
        return True

    def make_room(self) -> int:
        """Evict the oldest segment, as if memory were short."""
        assert self.window.give(Faults(), short=True, cut=False)
        return self.evicted[-1]

    def _give_open(self) -> bool:
        if self.opened:
            segment = self.opened.pop()
            segment.close(Event.TRUNCATE, 0.0)
            self.window.keep(segment)
            return True
        return False

    def evict(self, now: float) -> list[int]:
        """Evict by the limits; return the seqs of the segments that left."""
        self.window.evict(now)
        left, self.evicted[:] = list(self.evicted), []
        return left


def test_an_empty_window_has_nothing() -> None:
    """Before a segment has closed there is nothing to read, to evict or to wait for."""
    kept = Kept()
    assert (len(kept.window), kept.window.bytes, kept.window.earliest, kept.window.next_deadline) == (0, 0, None, None)
    assert kept.evict(1e9) == []
    kept.window.clear()
    assert not kept.window.completed_after(-1)


def test_segments_are_kept_in_the_order_of_their_seq() -> None:
    """Segments may close in another order than they are numbered; the oldest is the one with the lowest seq."""
    kept = Kept(closed(3), closed(1), closed(2))
    assert kept.window.earliest == 1
    assert [kept.make_room() for _ in range(3)] == kept.evicted == [1, 2, 3]


@pytest.mark.parametrize(("count", "evicted"), [(2, []), (3, []), (4, [0])])
def test_the_count_is_limited(count: int, evicted: list[int]) -> None:
    """One below and at the limit all stay; one above, the oldest leaves."""
    assert Kept(*(closed(seq) for seq in range(count)), window_segments=3).evict(0.0) == evicted


@pytest.mark.parametrize(("last", "evicted"), [(3, []), (4, []), (5, [0]), (8, [0]), (9, [0, 1])])
def test_the_bytes_are_limited(last: int, evicted: list[int]) -> None:
    """Up to the limit all stay; above it, as many of the oldest leave as it takes."""
    kept = Kept(closed(0, 4), closed(1, 2), closed(2, last), window_bytes=10)
    assert kept.evict(0.0) == evicted
    assert kept.window.bytes <= 10
    assert kept.window.cost == kept.budget.used


@pytest.mark.parametrize(("now", "evicted"), [(59.9, []), (60.0, [0]), (61.0, [0, 1])])
def test_the_age_is_limited(now: float, evicted: list[int]) -> None:
    """A segment leaves when it has been closed for the whole age, not just before."""
    kept = Kept(closed(0, now=0.0), closed(1, now=1.0), closed(2, now=2.0), window_age_s=60.0)
    assert kept.window.next_deadline == 60.0
    assert kept.evict(now) == evicted


def test_the_newest_is_kept_whatever_the_limits_say() -> None:
    """However large and old it is, the newest closed segment stays readable."""
    kept = Kept(closed(0, 1), closed(1, 100), window_segments=1, window_bytes=10, window_age_s=1.0)
    assert kept.evict(1e9) == [0]
    assert (kept.window.earliest, kept.window.next_deadline) == (1, None)


def test_cleared_segments_are_no_evictions() -> None:
    """The end of a channel frees the memory and tells nobody."""
    kept = Kept(closed(0, 3), closed(1, 4))
    kept.window.clear()
    assert (kept.window.bytes, kept.window.cost, kept.budget.used, len(kept.window)) == (0, 0, 0, 0)
    assert (kept.evicted, sum(kept.window.evicted.values())) == ([], 0)


def test_evictions_are_counted_by_their_reason() -> None:
    """Count before bytes before age, as they are checked."""
    segments = [closed(seq, 4, now=seq) for seq in range(7)]
    kept = Kept(*segments, window_segments=6, window_bytes=20, window_age_s=5)
    assert kept.evict(7.0) == [0, 1, 2]
    kept.make_room()
    assert kept.window.evicted == {Eviction.COUNT: 1, Eviction.BYTES: 1, Eviction.AGE: 1, Eviction.BUDGET: 1}


@pytest.mark.parametrize(("seq", "after"), [(0, True), (1, True), (2, False), (3, False)])
def test_it_knows_whether_something_later_is_complete(seq: int, after: bool) -> None:
    """Only a complete segment counts: not an empty, truncated or skipped one, and not the segment itself."""
    kept = Kept(closed(0), closed(2), closed(3, 0), closed(4, event=Event.TRUNCATE), closed(5, 0, event=Event.SKIP))
    assert kept.window.completed_after(seq) is after


# The budget.


class Leaver:
    """A reader of a closed segment that leaves when it is told to, if it listens."""

    def __init__(self, budget: Budget, segment: Segment, *, listens: bool = True, fails: bool = False) -> None:
        self.budget = budget
        self.segment = segment
        self.listens = listens
        self.fails = fails
        self.told = 0
        segment.cursors[self] = None

    def wake(self) -> None:
        raise AssertionError("nothing of a closed segment is new")

    def evict(self) -> None:
        self.told += 1
        if self.fails:
            raise ValueError("a fault of the reader")
        if self.listens:
            self.leave()

    def leave(self) -> None:
        del self.segment.cursors[self]
        self.budget.settle(self.segment)


def lingering(budget: Budget, seq: int = 0) -> tuple[Segment, list[Leaver]]:
    """A closed segment that has left its window while two readers read it."""
    segment, window = Segment(seq), Window(Limits(), budget)
    assert budget.take(window, segment.cost)
    segment.close(Event.FINISH, 1.0)
    readers = [Leaver(budget, segment), Leaver(budget, segment)]
    budget.release(window, segment)
    return segment, readers


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_the_budget_holds_its_limit_and_no_more(size: int, fits: bool) -> None:
    """One below and at the limit fit, one above does not, and what does not fit is not accounted for."""
    budget = Budget(10, Faults())
    window = Window(Limits(), budget)
    assert budget.take(window, size) is fits
    assert window.held == budget.used
    assert budget.used == (size if fits else 0)


def test_what_is_held_already_cannot_be_refused() -> None:
    """It is counted even where no room can be made."""
    budget = Budget(10, Faults())
    window = Window(Limits(), budget)
    budget.charge(window, 10)
    budget.charge(window, 1)
    assert budget.used == 11


def test_a_segment_that_nobody_reads_is_free_at_once() -> None:
    """A segment that leaves its window without a reader does not linger in the budget."""
    kept = Kept(closed(0))
    kept.make_room()
    assert (kept.budget.used, kept.budget.lingering) == (0, {})


def test_a_segment_lingers_until_its_last_reader_has_left() -> None:
    """Its bytes are in memory for as long as somebody reads them, and are counted."""
    budget = Budget(10**6, Faults())
    segment, (first, second) = lingering(budget)
    first.leave()
    assert (budget.used, list(budget.lingering)) == (SEGMENT_COST, [segment])
    second.leave()
    assert (budget.used, budget.lingering) == (0, {})


def test_a_reader_of_a_kept_segment_frees_nothing() -> None:
    """The segment is still in its window."""
    budget, segment = Budget(10**6, Faults()), closed(0, 0)
    budget.charge(Window(Limits(), budget), segment.cost)
    Leaver(budget, segment).leave()
    assert (budget.used, budget.lingering) == (SEGMENT_COST, {})


def test_lingering_segments_go_first_and_no_more_than_needed() -> None:
    """The oldest one's readers are told, each once; then there is room, and nobody else is told."""
    budget = Budget(3 * SEGMENT_COST, Faults())
    _, first = lingering(budget, 0)
    _, second = lingering(budget, 1)
    kept = Kept(closed(0, 0), budget=budget)
    assert budget.take(Window(Limits(), budget), 1)
    assert [reader.told for reader in (*first, *second)] == [1, 1, 0, 0]
    assert len(kept.window) == 1


def test_a_reader_that_does_not_leave_frees_nothing() -> None:
    """The budget goes on counting a segment that a reader holds, and makes room in another window."""
    budget = Budget(2 * SEGMENT_COST, Faults())
    segment, _ = lingering(budget)
    segment.cursors.clear()
    stubborn = Leaver(budget, segment, listens=False)
    kept = Kept(closed(0, 0), budget=budget)
    assert budget.take(Window(Limits(), budget), 1)
    assert (stubborn.told, budget.used, list(budget.lingering)) == (1, SEGMENT_COST + 1, [segment])
    assert kept.evicted == [0]


def test_a_reader_that_raises_keeps_no_other_from_leaving() -> None:
    """The fault is noted, and the next reader is told all the same."""
    faults = Faults()
    budget = Budget(SEGMENT_COST, faults)
    segment, readers = lingering(budget)
    readers[0].fails = True
    assert not budget.take(Window(Limits(), budget), 1)
    assert ([reader.told for reader in readers], list(segment.cursors)) == ([1, 1], [readers[0]])
    assert [victim for victim, _ in faults.noted] == [readers[0]]


def windows(budget: Budget, *sizes: list[int]) -> list[Kept]:
    """Windows of one budget, with segments of these sizes."""
    return [Kept(*(closed(seq, size) for seq, size in enumerate(found)), budget=budget) for found in sizes]


@pytest.mark.parametrize(
    ("sizes", "evicted"),
    [
        ([[1, 900], [500, 501], [900]], [[], [0], []]),
        ([[500, 500], [500, 500], [900]], [[0], [], []]),
        ([[1, 900], [500, 501], [2000]], [[], [], [0]]),
        ([[1, 1], [500, 500], [400, 1, 1]], [[], [], [0]]),
        ([[1], [500], [20]], [[], [0], []]),
        ([[500], [500], []], [[0], [], []]),
    ],
)
def test_the_oldest_of_the_largest_window_makes_room(sizes: list[list[int]], evicted: list[list[int]]) -> None:
    """Even if that is its newest; of equally large ones that of the older channel."""
    budget = Budget(10**6, Faults())
    kept = windows(budget, *sizes)
    budget.limit = budget.used
    assert budget.take(Window(Limits(), budget), 1)
    assert [one.evicted for one in kept] == evicted


def full(*sizes: list[int], open: int = 0) -> tuple[Budget, list[Kept]]:
    """Windows with segments of these sizes, which fill the budget; the first channel writes one of this size."""
    budget = Budget(10**6, Faults())
    kept = windows(budget, *sizes)
    assert not open or kept[0].open(open)
    budget.limit = budget.used
    return budget, kept


def test_who_asks_for_more_than_all_others_hold_gets_what_it_gives_itself() -> None:
    """The others keep their windows, also where all that it holds is being written."""
    budget, (greedy, small) = full([500, 500], [300, 300], open=5000)
    assert greedy.open(100)
    assert not greedy.open(5000)
    assert (greedy.evicted, small.evicted, len(greedy.opened)) == ([0, 1], [], 2)
    assert greedy.window.held == greedy.window.open == budget.used - small.window.held


def test_what_is_written_to_the_largest_channel_is_cut_for_one_that_holds_less() -> None:
    """Its window goes first; then its largest open segment is truncated, and evicted."""
    budget, (greedy, small) = full([900], [300, 300], open=20_000)
    assert small.open(500)
    assert (greedy.evicted, len(greedy.opened), small.evicted) == ([0], 1, [])
    assert small.open(1500)
    assert (greedy.evicted, len(greedy.opened), small.evicted) == ([0, 1000], 0, [])
    assert (greedy.window.held, greedy.window.open, budget.used) == (0, 0, small.window.held)


def test_nothing_is_cut_for_one_that_would_hold_as_much() -> None:
    """Two that hold the same would otherwise cut each other by turns."""
    budget, (first, second) = full([], [], open=1000)
    budget.limit += first.window.held - 1
    assert not second.open(1000)
    assert (len(first.opened), second.window.held) == (1, 0)


def test_one_that_has_nothing_to_give_stops_no_other() -> None:
    """As one that was dropped in the middle of a segment: the next one gives, if it holds as much."""
    budget, (kept, small) = full([500, 500], [300])
    nothing = Window(Limits(), budget)
    budget.limit += 10_000
    assert budget.take(nothing, 10_000)
    assert small.open(1)
    assert (kept.evicted, small.evicted, nothing.held) == ([0], [], 10_000)


def test_a_part_that_is_replayed_takes_from_those_that_hold_as_much() -> None:
    """Their windows, and nothing that is being written; where there is nothing it is refused."""
    budget, (kept, small) = full([500, 500], [300], open=50)
    budget.limit += 10
    assert budget.lend(10)
    budget.used -= 10
    budget.limit -= 10
    assert budget.lend(1300)
    assert (kept.evicted, small.evicted, len(kept.opened)) == ([0], [], 1)
    assert budget.lend(1300)
    assert (kept.evicted, small.evicted, len(kept.opened)) == ([0, 1], [], 1)
    assert not budget.lend(1300)
    assert budget.used == kept.window.held + small.window.held + 2 * 1300


def test_a_full_server_frees_a_sixteenth_more() -> None:
    """The newest segments aside, so that it does not evict on every chunk."""
    budget = Budget(10**6, Faults())
    (kept,) = windows(budget, [100] * 64)
    budget.limit = budget.used
    assert budget.take(Window(Limits(), budget), 1)
    assert len(kept.evicted) == 5


def test_a_window_that_has_shrunk_is_not_the_largest_any_more() -> None:
    """The budget takes from the window that is the largest now, after a larger one has shrunk by its own limits."""
    budget = Budget(10**6, Faults())
    first = Kept(*(closed(seq, 900) for seq in range(4)), budget=budget, window_segments=2)
    (second,) = windows(budget, [1000, 1000, 10])
    first.window.evict(0.0)
    budget.limit = budget.used
    assert budget.take(Window(Limits(), budget), 1)
    assert (first.evicted, second.evicted) == ([0, 1], [0])


@pytest.mark.parametrize("end", [lambda kept: kept.window.clear(), lambda kept: kept.window.evict(100.0)])
def test_outdated_entries_do_not_pile_up(end: Callable[[Kept], None]) -> None:
    """However many windows come and go, grow and shrink, the budget remembers those that there are."""
    budget = Budget(10**9, Faults())
    for _ in range(500):
        end(Kept(*(closed(seq, 10 ** (seq % 4)) for seq in range(8)), budget=budget, window_age_s=1.0))
    living = 0 if budget.used == 0 else 500
    assert len(budget._heap) <= 2 * (living + STALE_ENTRIES)


def test_a_window_that_has_grown_is_found_once() -> None:
    """Entries from when it was smaller are passed over, and everything can be evicted."""
    budget = Budget(10**9, Faults())
    kept = windows(budget, [1, 10**4, 10**6], [10, 10**5])
    budget.limit = 0
    assert not budget.take(Window(Limits(), budget), 1)
    assert [one.evicted for one in kept] == [[0, 1, 2], [0, 1]]
    assert (budget.used, [window for _, _, window in budget._heap if window.bound]) == (0, [])


@pytest.mark.interpreted
def test_an_eviction_does_not_look_at_every_channel() -> None:
    """With a thousand windows of one segment each, an eviction looks at a few of them, not at all."""

    class Counting(Budget):
        looked = 0

        def _push(self, window: Window) -> None:
            self.looked += 1
            super()._push(window)

    budget = Counting(10**9, Faults())
    kept = windows(budget, *([100] for _ in range(1000)))
    budget.limit, budget.looked = budget.used, 0
    for number in range(1, 11):
        for one in kept:
            one.keep(closed(number, 100))
    assert budget.looked < 10 * 1000 * 6


def test_another_holder_drops_what_the_owner_has_let_go() -> None:
    """Just that segment, wherever it is, counted as the owner counts it; and it is told of nothing."""
    kept = Kept(*(closed(seq) for seq in range(3)))
    middle = kept.window._segments[1]
    kept.window.drop(middle, Eviction.BUDGET)
    assert [segment.seq for segment in kept.window._segments] == [0, 2]
    assert (kept.window.evicted[Eviction.BUDGET], kept.evicted) == (1, [])


def test_a_window_tells_the_object_to_which_it_belongs() -> None:
    """Not the one that had it before."""
    kept = Kept(closed(0), closed(1))
    told: list[tuple[int, Eviction]] = []
    kept.window.belong_to(lambda segment, why: told.append((segment.seq, why)), lambda: False)
    kept.window.give(Faults(), short=False, cut=False)
    assert (told, kept.evicted) == ([(0, Eviction.BUDGET)], [])


# Memory that several budgets share.


class Pool:
    """Lends what is left of it."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked: list[tuple[int, int]] = []

    def lend(self, missing: int, asks: int) -> int:
        self.asked.append((missing, asks))
        lent = min(missing, self.left)
        self.left -= lent
        return lent


def test_a_budget_borrows_before_anything_is_evicted() -> None:
    """It asks for what is missing, and says what the channel holds; when nothing is left, its windows give."""
    pool = Pool(10**6)
    budget = Budget(0, Faults(), pool)
    (kept,) = windows(budget, [100, 100])
    size = kept.window.held
    assert (budget.limit, pool.asked[-1], kept.evicted) == (size, (size // 2, size), [])
    pool.left = 10
    assert budget.lend(size // 2)
    assert pool.asked[-1] == (size // 2, size // 2)
    assert (budget.limit, kept.evicted) == (size + 10, [0])


def test_a_budget_gives_what_others_lack() -> None:
    """From the channel that holds most, but neither its newest segment nor one that is being written."""
    budget, (greedy, small) = full([500, 500, 500], [300, 300], open=2000)
    budget.give(10**6, asks=0, short=False)
    assert (greedy.evicted, small.evicted, len(greedy.opened)) == ([0, 1], [], 1)
    assert budget.limit > budget.used


def test_a_budget_gives_no_more_than_is_asked_for() -> None:
    """The oldest segment is enough; of a channel that holds less than the one that asks, not even that."""
    budget, (kept,) = full([500, 500, 500])
    budget.give(1, asks=kept.window.held + 1, short=True)
    assert kept.evicted == []
    budget.give(1, asks=kept.window.held, short=False)
    assert kept.evicted == [0]


def test_a_budget_gives_more_to_a_channel_that_was_refused() -> None:
    """The newest segments, and those that are being written, of channels that hold more than that one."""
    budget, (greedy, small) = full([500, 500], [300, 300], open=5000)
    budget.give(greedy.window.held, asks=small.window.held + 1, short=True)
    assert (greedy.evicted, greedy.opened, small.evicted) == ([0, 1, 1000], [], [])


def test_what_the_largest_channel_holds() -> None:
    """Nothing, if there is none; the next one, when it has shrunk."""
    budget = Budget(10**6, Faults())
    assert budget.most == 0
    first, second = windows(budget, [900, 900], [1000])
    assert budget.most == first.window.held
    first.window.clear()
    assert budget.most == second.window.held
