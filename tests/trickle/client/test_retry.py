"""The delays of a client, and when it gives up."""

from __future__ import annotations

import math
from random import Random

from tests.support.dice import TopRandom, ZeroRandom
from tricklecast.trickle.backoff import Backoff, RetryBudget
from tricklecast.trickle.client.retry import MAX_RETRY_AFTER_S, MIN_DELAY_S, Outage, Retries, limit_of


def wait(outage: Outage, now: float, limit_s: float = 10.0) -> float | None:
    """Ask for the next delay."""
    return outage.wait(limit_s, now, Random(1), Backoff(1, 4))


def test_a_delay_is_never_nothing_and_grows_with_failures() -> None:
    """A delay is at least 50 ms; ``Retry-After`` is a floor under the jitter."""
    retries = Retries(Backoff(1, 8))
    assert retries.delay_s(ZeroRandom()) == MIN_DELAY_S
    assert retries.delay_s(TopRandom()) == 1
    assert retries.delay_s(TopRandom(), 5.0) == 6
    retries.failures = 3
    assert retries.delay_s(TopRandom()) == 4
    assert retries.delay_s(TopRandom(), backoff=Backoff(0.25, 0.5)) == 0.5


def test_a_refusal_is_paid_for() -> None:
    """A success earns; a ``Retry-After`` beyond the limit ends the retries and costs nothing."""
    retries = Retries(Backoff(1, 8), RetryBudget(1, 1))
    assert retries.refused(TopRandom(), MAX_RETRY_AFTER_S + 1) is None
    assert retries.refused(TopRandom(), 2.0) == 3.0
    assert retries.failures == 1
    assert retries.refused(TopRandom()) is None
    assert retries.failures == 1
    retries.succeeded()
    assert retries.failures == 0
    assert retries.refused(TopRandom(), 11.0, limit_s=10.0) is None
    assert retries.pay()


def test_a_client_without_end_is_slowed_down_by_an_empty_budget() -> None:
    """It obeys any ``Retry-After``; a retry that is not paid waits for at least half of the longest delay."""
    retries = Retries(Backoff(1, 8), RetryBudget(1, 1), endless=True)
    assert retries.refused(ZeroRandom(), MAX_RETRY_AFTER_S + 1) == MAX_RETRY_AFTER_S + 1
    for _ in range(3):
        assert retries.refused(ZeroRandom()) == 4.0
        assert retries.slowed(1.0, ZeroRandom()) == 4.0
        assert retries.slowed(5.0, ZeroRandom()) == 5.0
    retries.succeeded()
    assert retries.pay()
    assert retries.slowed(1.0, ZeroRandom()) == 1.0


def test_no_limit_is_for_ever() -> None:
    """A limit is one; ``None`` is none."""
    assert (limit_of(5.0), limit_of(None)) == (5.0, math.inf)


def test_an_outage_is_paid_for_once() -> None:
    """All failures until its end cost one token; the next outage costs another one."""
    outage, budget = Outage(), RetryBudget(0, 2)
    retries = Retries(budget=budget)
    for left in (1, 0):
        assert [outage.lose(retries) for _ in range(5)] == [True] * 5
        assert budget.tokens == left
        outage.over()
    assert not outage.lose(retries)
    assert not outage.lost


def test_an_outage_is_waited_for_from_its_beginning() -> None:
    """The limit counts from the first failure, and may change in between."""
    outage = Outage()
    for now in range(100, 110):
        delay_s = wait(outage, now)
        assert delay_s is not None
        assert MIN_DELAY_S <= delay_s <= MIN_DELAY_S + 4
    assert wait(outage, 110) is None
    assert wait(outage, 110, 11) is not None


def test_waiting_for_something_else_has_its_own_time() -> None:
    """A restart of the time begins no second outage."""
    outage = Outage()
    outage.lose(Retries())
    wait(outage, 0)
    outage.restart()
    assert outage.lost
    assert wait(outage, 99) is not None
    outage.over()
    assert wait(outage, 999) is not None


def test_what_was_never_there_is_told_from_what_went_away() -> None:
    """A wait for a channel that has not begun is no loss."""
    outage = Outage()
    assert not outage.is_first
    wait(outage, 0)
    assert outage.is_first
    outage.lose(Retries())
    assert not outage.is_first
