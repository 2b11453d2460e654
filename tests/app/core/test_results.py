"""The core's results: plain values, told apart by their types."""

from __future__ import annotations

from typing import get_args

import pytest

from tricklecast.app.core.registry import Resolution
from tricklecast.app.core.results import COME_BACK_S, Ahead, Cause, Ended, Ending, Gone, Outcome, Refusal
from tricklecast.app.core.state import Ready, Upcoming
from tricklecast.trickle.wire import NO_LIFE


def test_a_reader_is_told_one_of_six_things() -> None:
    """The sum type names every answer to a GET, so that a match over it can be exhaustive."""
    assert set(get_args(Resolution)) == {Ready, Upcoming, Ahead, Gone, Ended, Refusal}


def test_a_refusal_says_no_more_than_it_knows() -> None:
    """Where there is no channel, no seq and no limit, a refusal has only its reason."""
    assert Refusal(Cause.NOT_FOUND) == (
        Cause.NOT_FOUND,
        None,
        0,
        0,
        False,
        None,
        False,
        COME_BACK_S,
        NO_LIFE,
        None,
        "",
    )


def test_answers_do_not_change() -> None:
    """An answer is a picture of one moment."""
    answer = Ended(3, 3, 1, "video/mp2t")
    with pytest.raises(AttributeError):
        answer.head = 4  # type: ignore[misc]


def test_outcomes_are_compared_by_what_they_say() -> None:
    """Equal ones have the same ending and size, and are shown with both."""
    outcome = Outcome(Ending.TOO_LARGE, 4)
    assert outcome == Outcome(Ending.TOO_LARGE, 4)
    assert outcome != Outcome(Ending.TOO_LARGE, 5)
    assert outcome != Outcome(Ending.EMPTY, 4)
    assert outcome != (Ending.TOO_LARGE, 4)
    assert repr(outcome) == "<Outcome TOO_LARGE of 4 B>"
