"""Stretches go on, or end, by pauses and by kinds of answer, as in the report."""

from __future__ import annotations

from itertools import count

from tricklecast.analytics.answers import Answer
from tricklecast.analytics.watch_old.islands import Islands
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.signals import Signal

SECOND = 1_000_000
NOT_FOUND, MISSING, OVERLOAD = Answer.NOT_FOUND, Answer.SEQ_MISSING, Answer.OVERLOAD


def row(second: int, answer: Answer, place: int = 0, release: str = "probe/1") -> Signal:
    """One request in a second, a tenth of it after the one before."""
    at = second * SECOND + place * SECOND // 10
    return Signal(answer, "n1", "film", release, "viewer", None, None, second * SECOND, 0, 1, 0, at, at)


def stretches(*rows: Signal, gap_s: float = 5.0) -> list[int]:
    """The number of the stretch that each row was added to."""
    islands, clock = Islands(gap_s, 5.0, WatchLimits()), count()
    return [islands.put(each, float(next(clock)))[0].number for each in rows]


def test_answers_in_turn_are_one_stretch() -> None:
    """Kinds of refusal that take turns are one stretch, also where several releases make several rows of a second."""
    first = [
        row(0, MISSING, 0),
        *(row(0, answer, 1 + place, f"probe/{place}") for answer in (NOT_FOUND, OVERLOAD) for place in range(2)),
    ]
    assert stretches(*first, row(1, MISSING), row(1, NOT_FOUND, 1)) == [1] * 7


def test_another_answer_is_another_stretch() -> None:
    """What has not been answered for four seconds begins a new stretch; so does what comes after a pause."""
    assert stretches(*(row(second, NOT_FOUND) for second in range(4)), row(4, OVERLOAD)) == [1, 1, 1, 1, 2]
    assert stretches(row(0, NOT_FOUND), row(5, NOT_FOUND), row(11, NOT_FOUND)) == [1, 1, 2]


def test_another_answer_after_a_long_pause_is_another_stretch() -> None:
    """One segment that was gone, and half a minute later a restart that sends ten away, are no ten refusals."""
    rows = (row(0, MISSING), row(30, OVERLOAD), row(31, MISSING, 1), row(61, OVERLOAD))
    assert stretches(*rows, gap_s=60.0) == [1, 2, 2, 2]
    assert stretches(row(0, OVERLOAD), row(30, OVERLOAD), gap_s=60.0) == [1, 1]
