"""Where readers stand that cannot be told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.core.crowd import CROWD, STRIDE, Crowd


@pytest.mark.parametrize(("after", "step"), [(-1, False), (0, False), (1, True), (STRIDE, True), (STRIDE + 1, False)])
def test_a_step_leads_forward_and_is_short(after: int, step: bool) -> None:
    """The same seq again is none, nor is one before; one and a few further on are."""
    crowd = Crowd()
    assert not crowd.step(100)
    assert crowd.step(100 + after) is step
    assert len(crowd) == (1 if step else 2)


def test_of_several_the_nearest_takes_the_step() -> None:
    """The others still stand where they stood."""
    crowd = Crowd()
    for seq in (5, 3, 3):
        crowd.step(seq)
    assert [crowd.step(seq) for seq in (6, 4, 4, 5, 4)] == [True, True, True, True, False]


@pytest.mark.parametrize(("readers", "known"), [(CROWD - 1, True), (CROWD, True), (CROWD + 1, False)])
def test_of_too_many_the_one_that_stood_longest_is_forgotten(readers: int, known: bool) -> None:
    """One below and at the limit all are known; one above, the first is one more when it goes on."""
    crowd = Crowd()
    for reader in range(readers):
        crowd.step(1000 * reader)
    assert len(crowd) == min(readers, CROWD)
    assert crowd.step(1) is known


@given(st.lists(st.integers(0, 10**15 - 1), max_size=3 * CROWD))
def test_it_never_grows_beyond_its_limit(seqs: list[int]) -> None:
    """Whatever is asked for: any seq that the protocol allows."""
    crowd = Crowd()
    assert sum(not crowd.step(seq) for seq in seqs) >= len(crowd)
    assert len(crowd) <= CROWD
