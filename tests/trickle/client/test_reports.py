"""The events of a client reach its program and the log."""

from __future__ import annotations

import logging

import pytest

from tricklecast.trickle.client.reports import Reporter

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
