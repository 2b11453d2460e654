"""One limit: up to where it lets in whom."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.core.capacity import UNLIMITED, Capacities, Capacity
from tricklecast.app.core.limits import Limits


def filled(limit: int | None, used: int) -> Capacity:
    """A capacity of which so much is used."""
    capacity = Capacity(limit)
    for _ in range(used):
        capacity.take()
    return capacity


@pytest.mark.parametrize(
    ("used", "joins", "resumes"),
    [(0, True, True), (7, True, True), (8, False, True), (9, False, True), (10, False, False), (11, False, False)],
)
def test_up_to_where_it_lets_in_whom(used: int, joins: bool, resumes: bool) -> None:
    """New ones below 80 % of the limit, those who go on below the limit."""
    capacity = filled(10, used)
    assert (capacity.admits(join=True), capacity.admits(join=False)) == (joins, resumes)


@pytest.mark.parametrize(("used", "joins"), [(7, False), (6, False), (5, True)])
def test_new_ones_come_again_below_three_fifths(used: int, joins: bool) -> None:
    """Not at 60 %, but below."""
    capacity = filled(10, 8)
    while capacity.used > used:
        capacity.give_back()
    assert capacity.admits(join=True) is joins
    assert capacity.admits(join=False)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_small_limit_has_no_reserve(limit: int) -> None:
    """A fifth of four is less than one: all that fit may be new."""
    capacity = filled(limit, limit - 1)
    assert capacity.admits(join=True)
    capacity.take()
    assert not capacity.admits(join=False)


def test_nothing_fits_through_a_closed_gate() -> None:
    """A limit of zero lets nobody in."""
    assert not Capacity(0).admits(join=False)
    assert not Capacity(0).joinable


def test_without_a_limit_everybody_comes_in() -> None:
    """None is no limit, and no number that anybody reaches."""
    capacity = filled(None, 1000)
    assert capacity.admits(join=True)
    assert capacity.limit == UNLIMITED


def test_there_is_a_gate_for_every_limit_that_all_share() -> None:
    """As wide as the limit of its name."""
    capacities = Capacities.of(Limits(readers=1, publishers=2, channels=3, connections=None))
    assert [capacity.limit for capacity in capacities] == [1, 2, 3, UNLIMITED]


def test_it_shows_how_full_it_is() -> None:
    """For those who look into a running server."""
    assert repr(filled(10, 3)) == "<Capacity 3 of 10>"
    assert repr(filled(10, 8)) == "<Capacity 8 of 10, not for new ones>"


@given(st.integers(1, 60), st.lists(st.booleans(), max_size=200))
def test_it_keeps_the_shares_exactly(limit: int, steps: list[bool]) -> None:
    """Counted with fractions: closed to new ones from 4/5 on, until less than 3/5 is in use."""
    capacity, count, is_open = Capacity(limit), 0, True
    for comes in steps:
        if comes and capacity.admits(join=False):
            capacity.take()
            count += 1
        elif not comes and count:
            capacity.give_back()
            count -= 1
        share = Fraction(count, limit)
        is_open = share < Fraction(3, 5) if not is_open else share < Fraction(4, 5)
        admits = capacity.admits(join=True), capacity.admits(join=False)
        assert (capacity.used, *admits) == (count, is_open, count < limit)
