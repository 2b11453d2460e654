"""Delays with full jitter, and the budget that keeps retries to a share of the wanted requests."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.trickle.backoff import BASE_S, BUDGET_RATIO, BUDGET_RESERVE, CAP_S, Backoff, RetryBudget


def test_ceiling_doubles_up_to_the_cap() -> None:
    """The longest delay doubles with each failure in a row and then stays at the cap."""
    backoff = Backoff(base_s=1.0, cap_s=6.0)
    assert [backoff.ceiling(failures) for failures in (1, 2, 3, 4, 5)] == [1.0, 2.0, 4.0, 6.0, 6.0]


def test_defaults_are_the_documented_constants() -> None:
    """A backoff without arguments uses the module's constants."""
    assert Backoff() == Backoff(base_s=BASE_S, cap_s=CAP_S)


@pytest.mark.parametrize("failures", [0, -1])
def test_no_delay_without_a_failure(failures: int) -> None:
    """The caller may ask for a delay only after a failure."""
    with pytest.raises(ValueError, match="at least one failure"):
        Backoff().ceiling(failures)


@pytest.mark.parametrize(("base_s", "cap_s"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_a_backoff_needs_a_positive_base_below_its_cap(base_s: float, cap_s: float) -> None:
    """The constructor refuses bounds that contradict each other."""
    with pytest.raises(ValueError, match="base_s"):
        Backoff(base_s=base_s, cap_s=cap_s)


@given(failures=st.integers(1, 10**9), seed=st.integers())
def test_delay_lies_between_zero_and_the_ceiling(failures: int, seed: int) -> None:
    """For any number of failures, 0 <= delay <= ceiling <= cap."""
    backoff = Backoff()
    assert 0.0 <= backoff.delay(failures, Random(seed)) <= backoff.ceiling(failures) <= backoff.cap_s


@given(failures=st.integers(1, 100), floor_s=st.floats(0, 3600), seed=st.integers())
def test_retry_after_is_a_floor_and_jitter_comes_on_top(failures: int, floor_s: float, seed: int) -> None:
    """The jitter is added to Retry-After, so that clients refused together do not return together."""
    backoff = Backoff()
    plain = backoff.delay(failures, Random(seed))
    assert backoff.delay(failures, Random(seed), floor_s=floor_s) == floor_s + plain


def test_jitter_spreads_over_the_whole_range() -> None:
    """Delays fall into every tenth of the range."""
    rng = Random(1)
    backoff = Backoff(base_s=1.0, cap_s=1.0)
    assert {int(backoff.delay(1, rng) * 10) for _ in range(1000)} == set(range(10))


def test_a_fresh_budget_holds_its_reserve() -> None:
    """A new client may retry a short burst before any request succeeded."""
    assert RetryBudget().tokens == BUDGET_RESERVE


def test_an_empty_budget_refuses_and_takes_nothing() -> None:
    """Once the reserve is spent, the budget refuses a retry and keeps its tokens."""
    budget = RetryBudget(ratio=0.5, reserve=1.5)
    assert budget.spend()
    assert not budget.spend()
    assert budget.tokens == 0.5


def test_success_earns_tokens_up_to_the_reserve() -> None:
    """Wanted requests earn their ratio, and the budget never grows beyond its reserve."""
    budget = RetryBudget(ratio=0.5, reserve=1.0)
    assert budget.spend()
    budget.earn()
    assert budget.tokens == 0.5
    budget.earn()
    budget.earn()
    assert budget.tokens == 1.0


@pytest.mark.parametrize(("ratio", "reserve"), [(-0.1, 1.0), (0.1, -1.0)])
def test_a_budget_needs_bounds_that_are_not_negative(ratio: float, reserve: float) -> None:
    """The constructor refuses a negative ratio or reserve."""
    with pytest.raises(ValueError, match="retry budget"):
        RetryBudget(ratio=ratio, reserve=reserve)


@given(wanted=st.lists(st.booleans(), max_size=300))
def test_retries_never_exceed_the_reserve_plus_the_share(wanted: list[bool]) -> None:
    """Over any history, granted retries are at most the reserve plus the ratio of the wanted requests."""
    budget = RetryBudget()
    earned = granted = 0
    for success in wanted:
        if success:
            earned += 1
            budget.earn()
        else:
            granted += budget.spend()
        assert 0.0 <= budget.tokens <= BUDGET_RESERVE
    assert granted <= BUDGET_RESERVE + BUDGET_RATIO * earned + 1e-9
