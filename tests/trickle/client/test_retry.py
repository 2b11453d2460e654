"""The delays of a client, and when it gives up."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.support.dice import TopRandom, ZeroRandom
from tricklecast.trickle.backoff import BASE_S, CAP_S, RetryBudget
from tricklecast.trickle.client.retry import (
    LONG_OUTAGE_S,
    MAX_RETRY_AFTER_S,
    MIN_DELAY_S,
    OUTAGE_BACKOFF,
    RECONNECT_S,
    Retries,
)


def outlasted(retries: Retries, rng: Random, *, begun: float = 100.0, takes_s: float = 0.0) -> list[float]:
    """Fail until the client gives up; return its delays.

    Args:
        takes_s: each request waits so long in vain.
    """
    delays: list[float] = []
    now = begun
    while (delay_s := retries.outlast(now, rng)) is not None:
        delays.append(delay_s)
        now += delay_s + takes_s
    return delays


# Refusals.


def test_a_delay_is_never_nothing_and_grows_with_failures() -> None:
    """A delay is at least 50 ms; ``Retry-After`` is a floor under the jitter."""
    retries = Retries()
    assert retries.delay_s(ZeroRandom()) == MIN_DELAY_S
    assert retries.delay_s(TopRandom()) == BASE_S
    assert retries.delay_s(TopRandom(), 5.0) == 5 + BASE_S
    retries.failures = 3
    assert retries.delay_s(TopRandom()) == 4 * BASE_S


def test_a_refusal_is_paid_for() -> None:
    """A success earns; a ``Retry-After`` beyond the limit ends the retries and costs nothing."""
    retries = Retries(budget=RetryBudget(1, 1))
    assert retries.refused(TopRandom(), MAX_RETRY_AFTER_S + 1) is None
    assert retries.refused(TopRandom(), 2.0) == 2 + BASE_S
    assert retries.failures == 1
    assert retries.refused(TopRandom()) is None
    assert retries.failures == 1
    retries.succeeded()
    assert retries.failures == 0
    assert retries.pay()


def test_what_others_were_told_is_not_paid_for_again() -> None:
    """Such a request waits as long as it was told itself, and no longer for the number of them."""
    retries = Retries(budget=RetryBudget(reserve=1))
    assert retries.refused(TopRandom(), 2.0) == 2.25
    for _ in range(100):
        assert retries.refused(TopRandom(), 9.0, known=True) == 9.25
    assert retries.refused(TopRandom(), MAX_RETRY_AFTER_S + 1, known=True) is None
    assert retries.refused(TopRandom(), 2.0) is None


def test_a_client_without_end_is_slowed_down_by_an_empty_budget() -> None:
    """It obeys any ``Retry-After``; a retry that is not paid waits for at least half of the longest delay."""
    retries = Retries(budget=RetryBudget(1, 1), reconnect_s=None)
    assert retries.refused(ZeroRandom(), MAX_RETRY_AFTER_S + 1) == MAX_RETRY_AFTER_S + 1
    for _ in range(3):
        assert retries.refused(ZeroRandom()) == CAP_S / 2
        assert retries.outlast(0.0, ZeroRandom()) == CAP_S / 2
    retries.worked()
    assert retries.outlast(0.0, ZeroRandom()) == MIN_DELAY_S


# Outages.


@pytest.mark.parametrize("takes_s", [0.0, 5.0, 10.0])
@pytest.mark.parametrize("rng", [TopRandom(), ZeroRandom(), Random(1)], ids=["long", "short", "random"])
def test_an_outage_is_outlasted_for_a_minute_however_slowly_it_fails(rng: Random, takes_s: float) -> None:
    """A server that accepts and never answers is not waited for longer than one that refuses connections."""
    delays = outlasted(Retries(), rng, takes_s=takes_s)
    passed_s = sum(delays) + takes_s * len(delays)
    assert RECONNECT_S - 0.001 <= passed_s < RECONNECT_S + OUTAGE_BACKOFF.cap_s + takes_s


@pytest.mark.parametrize("reconnect_s", [0.0, 5.0, 60.0, 3600.0])
def test_how_long_an_outage_may_last_is_a_setting(reconnect_s: float) -> None:
    """It costs one token however long it is, and few requests."""
    budget = RetryBudget(reserve=1)
    delays = outlasted(Retries(budget=budget, reconnect_s=reconnect_s), Random(1))
    assert reconnect_s <= sum(delays) <= reconnect_s + CAP_S
    assert len(delays) <= min(reconnect_s, LONG_OUTAGE_S) / 1.5 + max(0.0, reconnect_s - LONG_OUTAGE_S) / 4 + 5
    assert budget.tokens == 0


def test_delays_in_an_outage_are_short_for_a_minute() -> None:
    """They double up to 4 s, and later up to 10 s; they begin anew after it, and once the server answers again."""
    retries = Retries(reconnect_s=None)
    top = TopRandom()
    first = [retries.outlast(0.0, top) for _ in range(7)]
    assert first == [0.25, 0.5, 1, 2, 4, 4, 4]
    assert retries.outlast(LONG_OUTAGE_S, top) == CAP_S
    retries.back()
    assert [retries.outlast(1.0, top) for _ in range(7)] == first
    retries.worked()
    assert [retries.outlast(LONG_OUTAGE_S, top) for _ in range(7)] == first


def test_a_server_that_answers_again_has_not_yet_served() -> None:
    """Its delays begin anew, refusals' too, but the time of its outage runs on."""
    retries = Retries()
    for _ in range(3):
        retries.refused(TopRandom())
    assert retries.outlast(0.0, ZeroRandom()) == MIN_DELAY_S
    retries.back()
    assert retries.failures == 1
    assert retries.outlast(RECONNECT_S, ZeroRandom()) is None


def test_a_server_that_answers_one_request_and_fails_at_the_next_is_not_back() -> None:
    """Delays begin anew once in an outage: they grow, however often it answers without serving."""
    retries, top = Retries(reconnect_s=None), TopRandom()
    delays = []
    for _ in range(8):
        delays.append(retries.outlast(0.0, top))
        retries.back()
    assert delays == [0.25, 0.25, 0.5, 1, 2, 4, 4, 4]
    retries.worked()
    assert retries.outlast(0.0, top) == 0.25


def test_an_outage_is_paid_for_once_and_not_after_a_success() -> None:
    """Who was served in between can go on through any number of outages; others come to the end of the budget."""
    budget = RetryBudget(0, 2)
    retries = Retries(budget=budget)
    for left in (1, 0):
        assert [retries.lose() for _ in range(5)] == [True] * 5
        assert budget.tokens == left
        retries.over()
    assert retries.outlast(0.0, Random(1)) is None
    assert not retries.lost
    for _ in range(100):
        retries.worked()
        assert retries.lose()
    retries.over()
    assert not retries.lose()


def test_a_success_ends_the_pauses_that_nothing_paid_for() -> None:
    """Who goes on without end waits for long only until it is served."""
    retries = Retries(budget=RetryBudget(0, 0), reconnect_s=None)
    assert (retries.refused(ZeroRandom()) or 0.0) >= CAP_S / 2
    retries.succeeded()
    assert retries.delay_s(ZeroRandom()) == MIN_DELAY_S


def test_what_was_lost_together_is_one_loss() -> None:
    """The others wait as long as the one that was counted, whatever the time."""
    retries = Retries(budget=RetryBudget(reserve=1))
    assert retries.outlast(0.0, TopRandom(), known=True) == 0.25
    assert retries.outlast(0.0, TopRandom()) == 0.25
    assert [retries.outlast(RECONNECT_S - 1, TopRandom(), known=True) for _ in range(100)] == [0.25] * 100
    assert retries.outlast(RECONNECT_S - 1, TopRandom()) == 0.5


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_proxy_that_stands_alone_is_the_same_outage(status: int) -> None:
    """It costs as much as nobody at all; with a word on when to come back it is a refusal, which is paid for."""
    plain, proxied = Retries(), Retries()
    for now in range(0, 70, 5):
        assert proxied.failed(status, None, now, TopRandom()) == plain.outlast(now, TopRandom())
    told = Retries(budget=RetryBudget(reserve=1))
    assert told.failed(status, 7.0, 0.0, TopRandom()) == 7.25
    assert told.failed(status, 7.0, 0.0, TopRandom()) is None
    assert told.outlast(0.0, TopRandom()) is not None, "a server that says so goes away: that is paid"


@pytest.mark.parametrize("status", [None, 404, 429, 470])
def test_any_other_refusal_is_no_outage(status: int | None) -> None:
    """It is paid for."""
    retries = Retries(budget=RetryBudget(reserve=1))
    assert retries.failed(status, None, 0.0, TopRandom()) == 0.25
    assert not retries.lost
    assert retries.failed(status, None, 0.0, TopRandom()) is None


# Waits for what was never there, and for something else.


@pytest.mark.parametrize(("options", "limit_s"), [({"wait_s": 5.0}, 5.0), ({"wait_s": None}, 1e9)])
def test_what_was_never_there_has_a_limit_of_its_own(options: dict[str, Any], limit_s: float) -> None:
    """A wait for a channel that has not begun is no loss, and a failure in it changes nothing."""
    assert Retries().wait(0.0, Random(1)) is None
    retries = Retries(budget=RetryBudget(0, 0), **options)
    assert not retries.is_first
    assert retries.wait(0.0, Random(1)) is not None
    assert retries.is_first
    assert retries.outlast(limit_s - 0.1, Random(1)) is not None
    assert (retries.outlast(limit_s, Random(1)) is None) == (limit_s < 1e9)


def test_a_wait_may_have_a_limit_of_its_own() -> None:
    """The limit counts from the first failure, and may change in between."""
    retries = Retries()
    assert retries.wait(100.0, Random(1), 10.0) is not None
    assert retries.wait(110.0, Random(1), 10.0) is None
    assert retries.wait(110.0, Random(1), 11.0) is not None


def test_waiting_for_something_else_has_its_own_time() -> None:
    """A restart of the time begins no second outage."""
    retries = Retries(budget=RetryBudget(0, 1))
    assert retries.outlast(0.0, Random(1)) is not None
    retries.restart()
    assert retries.lost
    assert retries.outlast(99.0, Random(1)) is not None
