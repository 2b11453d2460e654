"""Readers that are too far behind, and readers that stand still."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.core.segment import Segment
from tricklecast.app.core.slow_readers import PACE_BYTES, Stall, Timelines


def grown(segment: Segment, size: int) -> Segment:
    segment.size = size
    return segment


@pytest.mark.parametrize(("now", "still"), [(9.9, False), (10.0, True), (11.0, True)])
def test_who_takes_nothing_stands_still(now: float, still: bool) -> None:
    """For the whole time, not just before."""
    assert Stall(0.0, 1000).stands_still(1000, now, 10.0) is still


@pytest.mark.parametrize(
    ("taken", "still"), [(1, True), (PACE_BYTES - 1, True), (PACE_BYTES, False), (PACE_BYTES + 1, False)]
)
def test_a_byte_now_and_then_is_standing_still(taken: int, still: bool) -> None:
    """Only who keeps a pace begins anew."""
    stall = Stall(0.0, 100_000)
    assert not stall.stands_still(100_000 - taken, 9.0, 10.0)
    assert stall.stands_still(100_000 - taken, 10.0, 10.0) is still


def test_small_steps_add_up() -> None:
    """The pace is that of the whole time, however it is spread."""
    stall = Stall(0.0, 100_000)
    for second in range(1, 100):
        assert not stall.stands_still(100_000 - second * PACE_BYTES // 9, float(second), 10.0)


def test_what_is_added_is_no_step_back() -> None:
    """An answer behind what is unsent makes it more, and neither excuses nor condemns."""
    stall = Stall(0.0, 1000)
    assert not stall.stands_still(1200, 5.0, 10.0)
    assert stall.stands_still(1200, 10.0, 10.0)


def test_bytes_become_overdue_at_their_age() -> None:
    """Bytes are overdue once the first look that found them is as long ago as the limit, here 10 s."""
    timelines, segment = Timelines(10.0), Segment(0)
    overdue = []
    for now in range(0, 16):
        timelines.look([grown(segment, 100 * (now + 1))], float(now))
        overdue.append(timelines.overdue(segment, float(now)))
    assert overdue == [0] * 10 + [100, 200, 300, 400, 500, 600]


def test_a_segment_that_does_not_grow_becomes_overdue_once() -> None:
    """All of it, for good: a closed segment gets no younger."""
    timelines, segment = Timelines(10.0), grown(Segment(0), 100)
    for now in (0.0, 5.0, 9.9, 10.0, 100.0):
        timelines.look([segment], now)
        assert timelines.overdue(segment, now) == (100 if now >= 10.0 else 0)


def test_a_segment_without_a_reader_behind_is_forgotten() -> None:
    """Its time begins anew with the next reader that falls behind."""
    timelines, segment, other = Timelines(10.0), grown(Segment(0), 100), grown(Segment(1), 7)
    timelines.look([segment, other], 0.0)
    timelines.look([other], 5.0)
    timelines.look([segment, other], 11.0)
    assert (timelines.overdue(segment, 11.0), timelines.overdue(other, 11.0)) == (0, 7)


@given(
    steps=st.lists(st.tuples(st.floats(0.1, 4.0), st.integers(0, 50)), min_size=1, max_size=60),
    limit_s=st.sampled_from([1.0, 3.0, 10.0]),
)
def test_overdue_is_what_was_there_so_long_ago(steps: list[tuple[float, int]], limit_s: float) -> None:
    """Against all that was seen: the size at the latest look that is at least as long ago as the limit."""
    timelines, segment, now, seen = Timelines(limit_s), Segment(0), 0.0, []
    for pause, size in steps:
        now += pause
        segment.size += size
        seen.append((now, segment.size))
        timelines.look([segment], now)
        assert timelines.overdue(segment, now) == max((s for when, s in seen if now - when >= limit_s), default=0)
    assert len(timelines._marks[segment]) <= limit_s / 0.1 + 2


def test_the_age_of_what_a_reader_lacks() -> None:
    """Since the look at which the first byte was there that it has not; nothing for who has all, or is not followed."""
    timelines, segment = Timelines(10.0), Segment(0)
    for now in range(4):
        timelines.look([grown(segment, 100 * (now + 1))], float(now))
    assert [timelines.age_s(segment, have, 5.0) for have in (0, 99, 100, 199, 200, 399, 400)] == [5, 5, 4, 4, 3, 2, 0]
    assert timelines.age_s(Segment(1), 0, 5.0) == 0


def test_a_closed_segment_is_as_old_as_its_end() -> None:
    """A stream comes to it late: what it holds is overdue that long after it closed, not after the first look."""
    timelines, segment = Timelines(10.0), grown(Segment(0), 100)
    segment.closed_at = 5.0
    timelines.look([segment], 14.0)
    assert timelines.overdue(segment, 14.0) == 0
    assert timelines.age_s(segment, 0, 14.0) == 9.0
    timelines.look([segment], 15.0)
    assert timelines.overdue(segment, 15.0) == 100
