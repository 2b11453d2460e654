"""How long a publisher waits, and for how long it goes on waiting."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.dice import TopRandom, ZeroRandom
from tricklecast.publisher.patience import LONG_S, MAX_RETRY_AFTER_S, MIN_DELAY_S, OUTAGE_LIMIT_S, Patience
from tricklecast.publisher.verdicts import Lost
from tricklecast.trickle.backoff import RetryBudget
from tricklecast.trickle.errors import ConnectionLost, Refused

SILENT = Lost(ConnectionLost(), waited_s=10.0)
CUT = Lost(ConnectionLost())
UNREACHABLE = Lost(ConnectionLost(), connected=False)


@pytest.mark.parametrize(("lost", "lived_s"), [(SILENT, 10.0), (SILENT, 3600.0), (UNREACHABLE, 5.0), (CUT, 0.0)])
@pytest.mark.parametrize("rng", [TopRandom(), ZeroRandom()], ids=["long", "short"])
def test_an_outage_is_outlasted_for_a_stated_time(lost: Lost, lived_s: float, rng: Random) -> None:
    """A server that accepts and never answers is no better than one that is not there, whatever the budget holds."""
    patience = Patience(rng, budget=RetryBudget(reserve=10_000))
    in_vain_s = lost.waited_s if lost.connected else lived_s
    passed_s, delay_s = in_vain_s, 0.0
    while (next_s := patience.after_loss(lost, lived_s, known=False)) is not None:
        delay_s = next_s
        passed_s += delay_s + in_vain_s
    assert OUTAGE_LIMIT_S <= passed_s < OUTAGE_LIMIT_S + delay_s + in_vain_s


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_proxy_that_stands_alone_is_the_same_outage(status: int) -> None:
    """It costs as much as nobody at all; with a word on when to come back it is a refusal, which is paid for."""
    delays: list[list[float]] = []
    for proxied in (False, True):
        patience = Patience(TopRandom())
        delays.append([])
        while (delay_s := _fail(patience, status if proxied else None)) is not None:
            delays[-1].append(delay_s)
        assert sum(delays[-1]) >= OUTAGE_LIMIT_S
    assert delays[0] == delays[1]
    patience = Patience(TopRandom(), budget=RetryBudget(reserve=0))
    assert patience.after_answer(Refused(status, retry_after=1.0), 0.0) is None


def _fail(patience: Patience, status: int | None) -> float | None:
    if status is None:
        return patience.after_loss(CUT, 0.0, known=False)
    assert patience.after_answer(Refused(status), 0.0, known=True) is not None
    return patience.after_answer(Refused(status), 0.0)


def test_only_a_quiet_end_is_ordinary() -> None:
    """A connection that stood long and was cut costs nothing; one on which an answer was due does."""
    patience = Patience(ZeroRandom(), budget=RetryBudget(reserve=0))
    for _ in range(1000):
        assert patience.after_loss(CUT, LONG_S, known=False) == MIN_DELAY_S
    for _ in range(2):
        assert patience.after_loss(SILENT, LONG_S, known=False) == MIN_DELAY_S
    assert patience.after_loss(SILENT, LONG_S, known=False) is None


def test_what_was_lost_together_is_one_loss() -> None:
    """The others wait as long as the one that has paid, and cost no patience."""
    patience = Patience(TopRandom(), budget=RetryBudget(reserve=0))
    assert patience.after_loss(SILENT, 10.0, known=False) == 0.25
    assert [patience.after_loss(SILENT, 10.0, known=True) for _ in range(100)] == [0.25] * 100
    assert patience.after_loss(SILENT, 10.0, known=False) == 0.5


def test_what_is_published_restores_it() -> None:
    """An outage that is over is forgotten, and the budget grows."""
    patience = Patience(ZeroRandom(), budget=RetryBudget(ratio=1, reserve=1))
    for _ in range(20):
        assert patience.after_loss(SILENT, 10.0, known=False) is not None
        assert patience.after_answer(Refused(429), 0.0) == MIN_DELAY_S
        assert patience.after_answer(Refused(429), 0.0) is None
        patience.published()


def test_retry_after_is_a_floor_for_all_that_are_told() -> None:
    """One that was told the same as another pays nothing, and waits as long as it was told itself."""
    patience = Patience(TopRandom(), budget=RetryBudget(reserve=1))
    assert patience.after_answer(Refused(503, retry_after=2.0), 0.0) == 2.25
    assert patience.after_answer(Refused(429, retry_after=9.0), 0.0, known=True) == 9.25
    assert patience.after_answer(Refused(503, retry_after=2.0), 0.0) is None
    assert patience.after_answer(Refused(503, retry_after=2.0), LONG_S) == 2.25
    assert patience.after_answer(Refused(503, retry_after=MAX_RETRY_AFTER_S + 1), LONG_S) is None
