"""One limit: up to where it lets in whom."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.gate import UNLIMITED, Gate, Gates
from app.core.limits import Limits


def filled(limit: int | None, used: int) -> Gate:
    """A gate through which so many have come."""
    gate = Gate(limit)
    for _ in range(used):
        gate.take()
    return gate


@pytest.mark.parametrize(
    ("used", "joins", "resumes"),
    [(0, True, True), (7, True, True), (8, False, True), (9, False, True), (10, False, False), (11, False, False)],
)
def test_up_to_where_it_lets_in_whom(used: int, joins: bool, resumes: bool) -> None:
    """New ones below 80 % of the limit, those who go on below the limit."""
    gate = filled(10, used)
    assert (gate.admits(join=True), gate.admits(join=False)) == (joins, resumes)


@pytest.mark.parametrize(("used", "joins"), [(7, False), (6, False), (5, True)])
def test_new_ones_come_again_below_three_fifths(used: int, joins: bool) -> None:
    """Not at 60 %, but below."""
    gate = filled(10, 8)
    while gate.used > used:
        gate.give_back()
    assert gate.admits(join=True) is joins
    assert gate.admits(join=False)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_small_limit_has_no_reserve(limit: int) -> None:
    """A fifth of four is less than one: all that fit may be new."""
    gate = filled(limit, limit - 1)
    assert gate.admits(join=True)
    gate.take()
    assert not gate.admits(join=False)


def test_nothing_fits_through_a_closed_gate() -> None:
    """A limit of zero lets nobody in."""
    assert not Gate(0).admits(join=False)
    assert not Gate(0).joinable


def test_without_a_limit_everybody_comes_in() -> None:
    """None is no limit, and no number that anybody reaches."""
    gate = filled(None, 1000)
    assert gate.admits(join=True)
    assert gate.limit == UNLIMITED


def test_there_is_a_gate_for_every_limit_that_all_share() -> None:
    """As wide as the limit of its name."""
    gates = Gates.of(Limits(readers=1, publishers=2, channels=3, connections=None))
    assert [gate.limit for gate in gates] == [1, 2, 3, UNLIMITED]


def test_it_shows_how_full_it_is() -> None:
    """For those who look into a running server."""
    assert repr(filled(10, 3)) == "<Gate 3 of 10>"
    assert repr(filled(10, 8)) == "<Gate 8 of 10, not for new ones>"


@given(st.integers(1, 60), st.lists(st.booleans(), max_size=200))
def test_it_keeps_the_shares_exactly(limit: int, steps: list[bool]) -> None:
    """Counted with fractions: closed to new ones from 4/5 on, until less than 3/5 is in use."""
    gate, count, is_open = Gate(limit), 0, True
    for comes in steps:
        if comes and gate.admits(join=False):
            gate.take()
            count += 1
        elif not comes and count:
            gate.give_back()
            count -= 1
        share = Fraction(count, limit)
        is_open = share < Fraction(3, 5) if not is_open else share < Fraction(4, 5)
        assert (gate.used, gate.admits(join=True), gate.admits(join=False)) == (count, is_open, count < limit)
