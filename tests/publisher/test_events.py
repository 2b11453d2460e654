"""Events: the callback, the log, and when a connection counts as lost and regained."""

from __future__ import annotations

import logging

import pytest

from tricklecast.publisher.core import Closed, Receipt
from tricklecast.publisher.events import (
    Disconnected,
    Failed,
    Finished,
    PublisherEvent,
    Reconnected,
    Reporter,
    SegmentPublished,
)
from tricklecast.trickle.errors import ConnectionLost

LOST = ConnectionLost(detail="gone")
EVENTS: list[tuple[PublisherEvent, int]] = [
    (SegmentPublished(Receipt(0, 1, 1, Closed.COMPLETE)), logging.DEBUG),
    (Disconnected(LOST), logging.WARNING),
    (Failed(LOST), logging.ERROR),
    (Finished(True, ()), logging.DEBUG),
]


@pytest.mark.parametrize(("event", "level"), EVENTS)
def test_an_event_goes_to_the_callback_and_the_log(
    event: PublisherEvent, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With the channel's name, at a level that fits."""
    seen: list[PublisherEvent] = []
    with caplog.at_level(logging.DEBUG, "tricklecast.publisher"):
        Reporter(seen.append, "cam", lambda: 0.0)(event)
        Reporter(None, "cam", lambda: 0.0)(event)
    assert seen == [event]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, f"cam: {event}")] * 2


def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It must not stop the publisher, and it is not hidden."""

    def fail(event: PublisherEvent) -> None:
        raise LookupError("mine")

    Reporter(fail, "cam", lambda: 0.0)(Failed(LOST))
    assert "on_event failed" in caplog.text
    assert "LookupError: mine" in caplog.text


def test_an_outage_is_told_once() -> None:
    """Its first loss and its first answer; an answer without an outage says nothing."""
    seen: list[PublisherEvent] = []
    clock = iter([10.0, 12.5])
    report = Reporter(seen.append, "cam", lambda: next(clock))
    report.answered()
    for _ in range(3):
        report.lost(LOST)
    for _ in range(3):
        report.answered()
    assert seen == [Disconnected(LOST), Reconnected(2.5)]
