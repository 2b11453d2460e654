"""What is due for which segment."""

from __future__ import annotations

from typing import cast

from tricklecast.app.core.deadlines import Deadlines
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.writer import Writer


def make() -> tuple[Deadlines, list[float]]:
    appointments: list[float] = []
    return Deadlines(appointments.append), appointments


def test_nothing_is_due_at_first() -> None:
    """Without a deadline there is none to wait for."""
    deadlines, appointments = make()
    assert (len(deadlines), deadlines.next, deadlines.due(1e9), appointments) == (0, None, [], [])


def test_a_deadline_is_announced_and_becomes_due() -> None:
    """A segment is due at its deadline, not just before it."""
    deadlines, appointments = make()
    segment = Segment(0)
    deadlines.set(segment, 5.0)
    assert (segment.deadline, deadlines.next, len(deadlines), appointments) == (5.0, 5.0, 1, [5.0])
    assert deadlines.due(4.999) == []
    assert deadlines.due(5.0) == [segment]


def test_nobody_is_told_of_what_was_forgotten() -> None:
    """Nothing is due any more, and later deadlines are announced to nobody."""
    deadlines, appointments = make()
    deadlines.set(Segment(0), 5.0)
    deadlines.forget()
    assert (len(deadlines), deadlines.next) == (0, None)
    deadlines.set(Segment(1), 6.0)
    assert appointments == [5.0]


def test_the_earlier_deadline_stands() -> None:
    """A later deadline does not put off an earlier one; an earlier one replaces it."""
    deadlines, appointments = make()
    segment = Segment(0)
    for when in (5.0, 7.0, 3.0):
        deadlines.set(segment, when)
    assert (segment.deadline, appointments) == (3.0, [5.0, 5.0, 3.0])


def test_a_cleared_deadline_never_comes() -> None:
    """Clearing forgets the deadline; clearing twice does no harm."""
    deadlines, _ = make()
    segment = Segment(0)
    deadlines.set(segment, 5.0)
    deadlines.clear(segment)
    deadlines.clear(segment)
    assert (segment.deadline, deadlines.next, len(deadlines), deadlines.due(9.0)) == (None, None, 0, [])


def test_the_next_one_is_the_earliest_of_all() -> None:
    """Of several segments the earliest deadline counts, and each becomes due by itself."""
    deadlines, _ = make()
    segments = [Segment(seq) for seq in range(3)]
    for segment, when in zip(segments, (5.0, 3.0, 4.0), strict=True):
        deadlines.set(segment, when)
    assert deadlines.next == 3.0
    assert deadlines.due(4.0) == [segments[1], segments[2]]


def test_a_reserved_segment_is_expected_to_begin() -> None:
    """Overtaken: within the grace; else within the first byte's time, if there is one; begun: whenever it likes."""
    limits, timed = Limits(skip_grace_s=2.0), Limits(skip_grace_s=2.0, first_byte_timeout_s=30.0)
    deadlines, _ = make()
    segment = Segment(4)
    deadlines.expect_begin(segment, 4, limits, 10.0)
    assert segment.deadline is None
    deadlines.expect_begin(segment, 4, timed, 10.0)
    assert segment.deadline == 40.0
    deadlines.expect_begin(segment, 4, timed, 20.0)
    assert segment.deadline == 50.0
    deadlines.expect_begin(segment, 5, timed, 20.0)
    assert segment.deadline == 22.0
    segment.store(b"1\r\nx\r\n", 1)
    deadlines.expect_begin(segment, 5, timed, 21.0)
    assert segment.deadline is None


def test_what_is_overtaken_is_spared() -> None:
    """A preconnected writer has its grace, a request that may be late a short one, and all else none."""
    limits, strict = Limits(skip_grace_s=2.0, overtaking_grace_s=0.5), Limits(overtaking_grace_s=0.0)
    deadlines, _ = make()
    segment = Segment(4)
    assert not deadlines.spare(segment, 5, limits, 10.0)
    assert not deadlines.spare(segment, 4, strict, 10.0)
    assert segment.deadline is None
    assert deadlines.spare(segment, 4, limits, 10.0)
    assert segment.deadline == 10.5
    preconnected = Segment(5)
    preconnected.writer = cast(Writer, object())
    assert deadlines.spare(preconnected, 9, limits, 10.0)
    assert preconnected.deadline == 12.0
