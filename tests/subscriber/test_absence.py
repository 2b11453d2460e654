"""Waiting for what is not there: by time, and for one token."""

from __future__ import annotations

from random import Random

from tricklecast.subscriber.absence import Absence
from tricklecast.subscriber.patience import MIN_PAUSE_S
from tricklecast.subscriber.verdicts import RetryAfter, Stop
from tricklecast.trickle.backoff import Backoff, RetryBudget
from tricklecast.trickle.errors import ConnectionLost

GONE = ConnectionLost(detail="gone")


def wait(absence: Absence, now: float, limit_s: float = 10.0) -> RetryAfter | Stop:
    """Ask for the next pause."""
    return absence.wait(GONE, limit_s, now, Random(1), Backoff(1, 4))


def test_it_is_paid_for_once() -> None:
    """Until it is over; then the next one costs again, as long as there is a budget."""
    absence, budget = Absence(), RetryBudget(0, 2)
    for left in (1, 0):
        assert [absence.lose(budget) for _ in range(5)] == [True] * 5
        assert budget.tokens == left
        absence.over()
    assert not absence.lose(budget)
    assert not absence.lost


def test_it_is_waited_for_from_its_beginning() -> None:
    """With pauses that grow and never vanish, whatever the limit is by then."""
    absence = Absence()
    for now in range(100, 110):
        verdict = wait(absence, now)
        assert isinstance(verdict, RetryAfter)
        assert MIN_PAUSE_S <= verdict.delay_s <= MIN_PAUSE_S + 4
    assert wait(absence, 110) == Stop(GONE)
    assert isinstance(wait(absence, 110, 11), RetryAfter)


def test_what_is_waited_for_anew_has_its_own_time() -> None:
    """The failure stays the same one; a second outage begins only after the first is over."""
    absence = Absence()
    absence.lose(RetryBudget())
    wait(absence, 0)
    absence.anew()
    assert absence.lost
    assert isinstance(wait(absence, 99), RetryAfter)
    absence.over()
    assert isinstance(wait(absence, 999), RetryAfter)


def test_what_was_never_there_is_told_from_what_went_away() -> None:
    """A channel that is waited for before it begins is no loss."""
    absence = Absence()
    assert not absence.is_first
    wait(absence, 0)
    assert absence.is_first
    absence.lose(RetryBudget())
    assert not absence.is_first
