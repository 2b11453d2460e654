"""Positions: what a subscription goes on from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.trickle.errors import InvalidSeq
from tricklecast.trickle.position import Position

seqs = st.integers(0, 10**15 - 1)


@given(seqs, st.none() | seqs)
def test_a_position_survives_its_text(seq: int, epoch: int | None) -> None:
    """What was written down is what is read again."""
    assert Position.parse(str(Position(seq, epoch))) == Position(seq, epoch)


def test_the_text_is_short() -> None:
    """Seq, and the epoch behind an at sign where it is known."""
    assert str(Position(128, 3)) == "128@3"
    assert str(Position(128)) == "128"


@pytest.mark.parametrize("text", ["", "@3", "1@", "-1", "1@-1", "x", "1 @3", "1@3@4", "\u0661", "9" * 16])
def test_other_texts_are_refused(text: str) -> None:
    """A position is concrete: no words, no signs, no seq that the protocol could not carry."""
    with pytest.raises(InvalidSeq, match="not a seq"):
        Position.parse(text)


@pytest.mark.parametrize(("seq", "epoch"), [(-1, None), (0, -1), (10**15, None), (0, 10**15)])
def test_impossible_positions_are_refused(seq: int, epoch: int | None) -> None:
    """Also where the numbers did not come from a text."""
    with pytest.raises(InvalidSeq):
        Position(seq, epoch)
