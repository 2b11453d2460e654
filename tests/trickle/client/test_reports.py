"""The events of a client reach its program and the log."""

from __future__ import annotations

import logging

import pytest

from tricklecast.trickle.client.reports import Event, Reporter, Retrying
from tricklecast.trickle.errors import ConnectionLost, InvalidInput

LOGGER = logging.getLogger("tricklecast.test")


def test_an_event_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """With the channel's name; the program need not listen."""
    seen: list[str] = []
    with caplog.at_level(logging.INFO, LOGGER.name):
        Reporter[str](LOGGER, "cam", seen.append).report("it begins", logging.INFO)
        Reporter[str](LOGGER, "cam", None).report("it begins", logging.INFO)
    assert seen == ["it begins"]
    assert caplog.messages == ["cam: it begins"] * 2


def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It must not stop media, and it is not hidden."""

    def fail(event: str) -> None:
        raise LookupError("mine")

    Reporter(LOGGER, "cam", fail).report("it begins", logging.INFO)
    assert "cam: on_event failed at it begins" in caplog.text
    assert "LookupError: mine" in caplog.text


def test_a_callback_is_a_function() -> None:
    """Anything else is refused at once, and not at each event."""
    with pytest.raises(InvalidInput, match="on_event must be a function, not 5"):
        Reporter(LOGGER, "cam", 5)  # type: ignore[arg-type]


class Moved(Event):
    """It has a field with a default."""

    old: int
    new: int = 0


class Over(Event):
    """It has no field."""


def test_events_are_values() -> None:
    """They are equal if they have the same kind and the same fields; they can be matched, and kept in sets."""
    moved = Moved(1, new=2)
    assert (moved, Moved(1), Over()) == (Moved(1, 2), Moved(old=1, new=0), Over())
    assert moved != Moved(1)
    assert moved != Over()
    assert len({moved, Moved(1, 2), Over()}) == 2
    assert (repr(moved), repr(Over())) == ("Moved(old=1, new=2)", "Over()")
    match moved:
        case Moved(old, new=new):
            assert (old, new) == (1, 2)


def test_an_event_does_not_change() -> None:
    """Neither by an assignment nor by a deletion."""
    moved = Moved(1)
    with pytest.raises(AttributeError, match="does not change"):
        moved.old = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="does not change"):
        del moved.old
    assert moved == Moved(1)


def test_a_retry_says_why_and_when() -> None:
    """The sentence has the error, the number of the coming attempt, and the pause."""
    event = Retrying(ConnectionLost(detail="reset by peer"), 0.256, 2)
    assert event.seq is None
    assert str(event) == f"{event.error}; attempt 2 in 0.26 s"
    assert "reset by peer" in str(event)
