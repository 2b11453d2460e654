"""What the core answers: frozen values, told apart by their types."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.app.core.support import Bench
from tricklecast.app.core.resolution import Ahead, AlreadyStored, Ended, Gone, Refusal, Resolution, Serve, Wait, Why


def test_a_reader_is_told_one_of_six_things() -> None:
    """The sum type names every answer to a GET, so that a match over it can be exhaustive."""
    assert set(get_args(Resolution)) == {Serve, Wait, Ahead, Gone, Ended, Refusal}


def test_a_refusal_says_no_more_than_it_knows() -> None:
    """Where there is no channel, no seq and no limit, a refusal has only its reason."""
    refusal = Refusal(Why.NOT_FOUND)
    assert (refusal.channel, refusal.seq, refusal.recently_ended, refusal.limit) == (None, None, False, None)


def test_answers_do_not_change() -> None:
    """An answer is a picture of one moment."""
    channel = Bench().channel
    answer = Ended(channel, 3, 3)
    with pytest.raises(AttributeError):
        answer.head = 4  # type: ignore[misc]
    assert AlreadyStored(channel, Bench().publish(0)).segment.complete
