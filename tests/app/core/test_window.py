"""The window: what is kept for catching up, and what leaves it when."""

from __future__ import annotations

from typing import Any

import pytest

from tricklecast.app.core.budget import Budget
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import Event, Segment, encode_frame
from tricklecast.app.core.window import Eviction, Window


def closed(seq: int, size: int = 1, now: float = 0.0, event: Event = Event.FINISH) -> Segment:
    segment = Segment(seq)
    if size:
        segment.store(encode_frame([b"x" * size]), size)
    segment.close(event, now)
    return segment


def make(*segments: Segment, **limits: Any) -> tuple[Window, Budget]:
    budget = Budget(10**6, lambda size: None)
    window = Window(Limits(**limits), budget)
    for segment in segments:
        assert not segment.size or budget.take(segment.cost)
        window.keep(segment)
    return window, budget


def seqs(segments: list[Segment]) -> list[int]:
    return [segment.seq for segment in segments]


def test_an_empty_window_has_nothing() -> None:
    """Before anything closed there is nothing to read, to evict or to wait for."""
    window, _ = make()
    assert (len(window), window.bytes, window.earliest, window.next_deadline) == (0, 0, None, None)
    assert window.evict(1e9) == []
    assert window.make_room(keep=0) is None
    assert window.clear() == []
    assert not window.completed_after(-1)


def test_segments_are_kept_in_the_order_of_their_seq() -> None:
    """Segments may close in another order than they are numbered; the oldest is the one with the lowest seq."""
    window, _ = make(closed(3), closed(1), closed(2))
    assert window.earliest == 1
    assert seqs(window.clear()) == [1, 2, 3]


@pytest.mark.parametrize(("count", "evicted"), [(2, []), (3, []), (4, [0])])
def test_the_count_is_limited(count: int, evicted: list[int]) -> None:
    """One below and at the limit all stay; one above, the oldest leaves."""
    window, _ = make(*(closed(seq) for seq in range(count)), window_segments=3)
    assert seqs(window.evict(0.0)) == evicted


@pytest.mark.parametrize(("last", "evicted"), [(3, []), (4, []), (5, [0]), (8, [0]), (9, [0, 1])])
def test_the_bytes_are_limited(last: int, evicted: list[int]) -> None:
    """Up to the limit all stay; above it, as many of the oldest leave as it takes."""
    window, budget = make(closed(0, 4), closed(1, 2), closed(2, last), window_bytes=10)
    assert seqs(window.evict(0.0)) == evicted
    assert window.bytes <= 10
    assert window.cost == budget.used


@pytest.mark.parametrize(("now", "evicted"), [(59.9, []), (60.0, [0]), (61.0, [0, 1])])
def test_the_age_is_limited(now: float, evicted: list[int]) -> None:
    """A segment leaves when it has been closed for the whole age, not just before."""
    window, _ = make(closed(0, now=0.0), closed(1, now=1.0), closed(2, now=2.0), window_age_s=60.0)
    assert window.next_deadline == 60.0
    assert seqs(window.evict(now)) == evicted


def test_the_newest_is_kept_whatever_the_limits_say() -> None:
    """However large and old it is, the newest closed segment stays readable."""
    window, _ = make(closed(0, 1), closed(1, 100), window_segments=1, window_bytes=10, window_age_s=1.0)
    assert seqs(window.evict(1e9)) == [0]
    assert (window.earliest, window.next_deadline) == (1, None)


@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, [2]), (2, [1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2])])
def test_room_is_made_by_the_oldest(keep: int, left: list[int]) -> None:
    """The oldest leaves first, and as many of the newest stay as are to be spared."""
    window, _ = make(closed(0), closed(1), closed(2))
    while (segment := window.make_room(keep=keep)) is not None:
        assert segment.seq == 3 - len(window) - 1
    assert seqs(window.clear()) == left


def test_evicted_memory_goes_back_to_the_budget() -> None:
    """Whatever way a segment leaves, its memory is free again."""
    segments = [closed(0, 3), closed(1, 4), closed(2, 5)]
    window, budget = make(*segments)
    assert (window.bytes, window.cost, budget.used) == (12, sum(s.cost for s in segments), window.cost)
    oldest = window.make_room(keep=1)
    assert oldest is not None
    assert (oldest.seq, window.bytes, budget.used) == (0, 9, segments[1].cost + segments[2].cost)
    assert seqs(window.clear()) == [1, 2]
    assert (window.bytes, window.cost, budget.used, len(window)) == (0, 0, 0, 0)


def test_evictions_are_counted_by_their_reason() -> None:
    """Count before bytes before age, as they are checked; the end of a channel is no eviction."""
    window, _ = make(*(closed(seq, 4, now=seq) for seq in range(7)), window_segments=6, window_bytes=20, window_age_s=5)
    assert seqs(window.evict(7.0)) == [0, 1, 2]
    assert window.make_room(keep=1) is not None
    window.clear()
    assert window.evicted == {Eviction.COUNT: 1, Eviction.BYTES: 1, Eviction.AGE: 1, Eviction.BUDGET: 1}


@pytest.mark.parametrize(("seq", "after"), [(0, True), (1, True), (2, False), (3, False)])
def test_it_knows_whether_something_later_is_complete(seq: int, after: bool) -> None:
    """Only a complete segment counts: not an empty, truncated or skipped one, and not the segment itself."""
    window, _ = make(
        closed(0), closed(2), closed(3, 0), closed(4, event=Event.TRUNCATE), closed(5, 0, event=Event.SKIP)
    )
    assert window.completed_after(seq) is after
