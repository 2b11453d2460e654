"""Events: the callback, the log, and when a connection counts as lost and regained."""

from __future__ import annotations

import logging
from typing import get_args

import pytest

from tricklecast import publisher
from tricklecast.publisher.core import Closed, Receipt
from tricklecast.publisher.events import (
    Disconnected,
    Failed,
    Finished,
    Forgotten,
    PublisherEvent,
    PublisherReporter,
    Reconnected,
    Renumbered,
    Retrying,
    SegmentBegun,
    SegmentLost,
    SegmentPublished,
)
from tricklecast.trickle.errors import ConnectionLost, SegmentDropped

LOST = ConnectionLost(detail="gone")
EVENTS: list[tuple[PublisherEvent, int, str]] = [
    (SegmentBegun(7), logging.DEBUG, "segment 7 begins"),
    (SegmentPublished(Receipt(0, 1, 1, Closed.COMPLETE)), logging.DEBUG, "segment 0 is published (1 bytes)"),
    (SegmentLost(7, LOST), logging.WARNING, "segment 7 is lost: connection lost: gone"),
    (SegmentLost(None, SegmentDropped()), logging.WARNING, str(SegmentDropped())),
    (SegmentLost(7, SegmentDropped(7)), logging.WARNING, str(SegmentDropped(7))),
    (Retrying(LOST, 0.254, 2), logging.INFO, "connection lost: gone; attempt 2 in 0.25 s"),
    (Disconnected(LOST), logging.WARNING, "the server does not answer: connection lost: gone"),
    (Reconnected(2.5), logging.INFO, "the server answers again, after 2.5 s"),
    (Forgotten(5, 5), logging.WARNING, "the server does not have segment 5 any more, which it had confirmed"),
    (Forgotten(5, 7), logging.WARNING, "the server does not have segments 5 to 7 any more, which it had confirmed"),
    (Renumbered(50, 7), logging.WARNING, "segment 50 is published as segment 7"),
    (Failed(LOST), logging.ERROR, "nothing more can be published: connection lost: gone"),
    (Finished(True, ()), logging.DEBUG, "the channel is ended"),
    (Finished(False, (3, 4)), logging.DEBUG, "the channel stays open; not confirmed: 3, 4"),
]


@pytest.mark.parametrize(("event", "level", "sentence"), EVENTS)
def test_an_event_goes_to_the_callback_and_the_log(
    event: PublisherEvent, level: int, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the channel's name, as a sentence, at a level that fits."""
    seen: list[PublisherEvent] = []
    with caplog.at_level(logging.DEBUG, "tricklecast.publisher"):
        PublisherReporter(seen.append, "cam", lambda: 0.0)(event)
        PublisherReporter(None, "cam", lambda: 0.0)(event)
    assert seen == [event]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, f"cam: {sentence}")] * 2


def test_what_comes_with_each_segment_is_not_made_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is for a callback, and for a log with details."""
    with caplog.at_level(logging.INFO, "tricklecast.publisher"):
        assert not PublisherReporter(None, "cam", lambda: 0.0).is_detailed
        assert PublisherReporter(print, "cam", lambda: 0.0).is_detailed
    with caplog.at_level(logging.DEBUG, "tricklecast.publisher"):
        assert PublisherReporter(None, "cam", lambda: 0.0).is_detailed


def test_the_package_has_all_events() -> None:
    """As that of the subscriber does."""
    assert {getattr(publisher, kind.__name__) for kind in get_args(PublisherEvent)} == set(get_args(PublisherEvent))


def test_an_outage_is_told_once() -> None:
    """Its first loss and its first answer; an answer without an outage says nothing."""
    seen: list[PublisherEvent] = []
    clock = iter([10.0, 12.5])
    report = PublisherReporter(seen.append, "cam", lambda: next(clock))
    report.answered()
    for _ in range(3):
        report.lost(LOST)
    for _ in range(3):
        report.answered()
    assert seen == [Disconnected(LOST), Reconnected(2.5)]
