"""Starts: what users may give, and what is asked for first."""

from __future__ import annotations

import pytest

from tricklecast.subscriber.core import AnyStart, Start
from tricklecast.trickle.errors import InvalidSeq, Position


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("next", Start(None)),
        (-1, Start(None)),
        ("current", Start(-2)),
        (-2, Start(-2)),
        ("-3", Start(None, back=2)),
        ("earliest", Start(0)),
        (0, Start(0, named=True)),
        ("12", Start(12, named=True)),
        (Position(7), Start(7, named=True, position=Position(7))),
        ("7@2", Start(7, named=True, position=Position(7, 2))),
    ],
)
def test_a_start_is_a_word_a_number_or_a_position(given: AnyStart, start: Start) -> None:
    """As an object, as a number and as text."""
    assert Start.parse(given) == start


@pytest.mark.parametrize("given", ["", "first", "1.5", "+1", "9" * 16, "--1", "@1", "1@", "-1@2", "1@x"])
def test_a_bad_start_is_refused(given: str) -> None:
    """Anything else is not a seq."""
    with pytest.raises(InvalidSeq):
        Start.parse(given)


@pytest.mark.parametrize(
    ("given", "place"),
    [("next", None), ("current", None), ("earliest", None), (-3, None), (4, Position(4)), ("4@2", Position(4, 2))],
)
def test_a_start_is_a_place_if_it_does_not_depend_on_the_head(given: AnyStart, place: Position | None) -> None:
    """The position of a subscriber that has read nothing yet."""
    assert Start.parse(given).place == place
