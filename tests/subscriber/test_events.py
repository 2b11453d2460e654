"""Events of a subscription: what ``on_event`` is called with, and what the log says."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import pytest

from tests.subscriber.fake import Exchange, Handler, run
from tests.subscriber.test_client import Slept, channel, drain, ended, subscribed
from tricklecast.subscriber import (
    Connected,
    Ended,
    Failed,
    Gap,
    Lagging,
    Restarted,
    Retrying,
    SegmentBroken,
    SegmentResumed,
    SegmentTruncated,
    SkippedAhead,
    Subscriber,
    SubscriberEvent,
    SubscriberStatistics,
)
from tricklecast.subscriber.events import Monitor
from tricklecast.trickle.errors import ChannelNotFound, ConnectionLost, Refused, TrickleError


def events_of(handler: Handler, **options: Any) -> tuple[list[SubscriberEvent], SubscriberStatistics]:
    """Read a channel to its end, or to its error: all events, and the counters."""

    async def main() -> tuple[list[SubscriberEvent], SubscriberStatistics]:
        events: list[SubscriberEvent] = []
        given: dict[str, Any] = {"start": 0, "on_event": events.append, "runtime": Slept().runtime} | options
        async with subscribed(handler, **given) as (subscriber, _):
            with suppress(TrickleError):
                await drain(subscriber)
            return events, subscriber.statistics()

    return run(main)


def test_a_channel_from_its_beginning_to_its_end() -> None:
    """The first answer and the end; segments themselves are what the loop yields."""
    events, _ = events_of(channel(s0=b"a", s1=b"", s2=b"c"))
    assert events == [Connected(), Ended()]


def test_segments_that_have_left_the_window() -> None:
    """First that another one is requested, and why; then, once it has begun, which ones are missing."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "1":
            await exchange.text(470, "gone", latest=8, earliest=7)
        elif exchange.tail == "7":
            await exchange.segment(7, b"x", latest=10)
        else:
            await channel(s0=b"x")(exchange)

    events, now = events_of(handler)
    assert [type(event) for event in events] == [Connected, SkippedAhead, Gap, Lagging, Gap, Ended]
    skipped = events[1]
    assert isinstance(skipped, SkippedAhead)
    assert (skipped.wanted, skipped.seq) == (1, 7)
    assert events[2:] == [Gap(1, 6, "missing"), Lagging(7, 2), Gap(8, 9, "ended"), Ended()]
    assert (now.gaps, now.missed) == (2, 8)


def test_segments_missed_before_the_end() -> None:
    """Counted and reported like any gap."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "1":
            await exchange.empty(404, latest=4, closed="terminated")
        else:
            await channel(s0=b"x")(exchange)

    events, now = events_of(handler)
    assert events == [Connected(), Gap(1, 3, "ended"), Ended()]
    assert now.missed == 3


def test_a_retry_says_why_and_when() -> None:
    """With the number of the attempt. An answer that says no is a connection all the same."""

    async def handler(exchange: Exchange) -> None:
        if exchange.headers["trickle-attempt"] == "1":
            await exchange.text(429, "busy")
        else:
            await channel(s0=b"x")(exchange)

    events, now = events_of(handler)
    assert [type(event) for event in events] == [Connected, Retrying, Retrying, Ended]
    retrying = events[1]
    assert isinstance(retrying, Retrying)
    assert isinstance(retrying.error, Refused)
    assert retrying.delay_s >= 0.05
    assert retrying.attempt == 2
    assert now.retries == 2


def test_an_outage_ends_with_a_connection() -> None:
    """A connection that was lost is told, and so is the first answer after it."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "1" and exchange.headers["trickle-attempt"] == "1":
            exchange.abort()
        else:
            await channel(s0=b"x", s1=b"y")(exchange)

    events, _ = events_of(handler)
    assert [type(event) for event in events] == [Connected, Retrying, Connected, Ended]


def test_faults_of_segments() -> None:
    """A segment that is truncated, one that goes on after a cut, and one that does not."""

    async def handler(exchange: Exchange) -> None:
        attempt = exchange.headers["trickle-attempt"]
        if exchange.tail == "0":
            await exchange.begin(0)
            await exchange.end(truncated="publisher_lost")
        elif exchange.tail == "1" and attempt == "2":
            await exchange.segment(1, b"half", b"whole")
        elif exchange.tail in ("1", "2") and attempt == "1":
            await exchange.begin(int(exchange.tail))
            await exchange.chunk(b"half")
            exchange.writer.close()
        elif exchange.tail == "3":
            await exchange.empty(seq=3, truncated="skipped")
        else:
            await ended(exchange) if exchange.tail == "4" else await exchange.text(404, "gone")

    events, now = events_of(handler)
    assert [event for event in events if not isinstance(event, Connected | Retrying | SegmentBroken)] == [
        SegmentTruncated(0, "publisher_lost"),
        SegmentResumed(1, 4),
        SegmentTruncated(3, "skipped"),
        Ended(),
    ]
    (broken,) = (event for event in events if isinstance(event, SegmentBroken))
    assert (broken.seq, broken.bytes_read) == (2, 4)
    assert isinstance(broken.error, ConnectionLost)
    assert (now.truncated, now.resumed, now.broken) == (2, 1, 1)


def test_a_new_numbering() -> None:
    """Its first segment is named."""

    async def handler(exchange: Exchange) -> None:
        await (exchange.segment(5, b"x", epoch=2) if exchange.tail == "5" else ended(exchange))

    events, now = events_of(handler, start="5@1")
    assert events == [Connected(), Restarted(5, 2, None), Ended()]
    assert now.restarts == 1


def test_an_error_that_ends_the_subscription() -> None:
    """Is told, too, once."""

    async def missing(exchange: Exchange) -> None:
        await exchange.text(404, "no such channel")

    events, _ = events_of(missing)
    assert [type(event) for event in events] == [Connected, Failed]
    assert isinstance(events[1], Failed)
    assert isinstance(events[1].error, ChannelNotFound)


def test_the_newest_segment_has_no_number_until_it_is_known() -> None:
    """The protocol's word for it, -2, is in no event."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "-2":
            await exchange.text(470, "no segment yet", latest=0)
        else:
            await exchange.empty(closed="terminated")

    events, _ = events_of(handler, start="current")
    assert [event.wanted for event in events if isinstance(event, SkippedAhead)] == [None]


def test_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the channel's name; data that was lost is a warning, the repetition of a failure is not."""
    caplog.set_level(logging.INFO, "tricklecast.subscriber")
    monitor = Monitor("cam", None)
    lost = ConnectionLost(detail="http://host: Connection refused")
    monitor.answered()
    monitor.emit(Retrying(lost, 0.25, 2))
    monitor.emit(Retrying(lost, 0.5, 3))
    monitor.emit(SkippedAhead(3, 7, ChannelNotFound(404)))
    monitor.emit(Gap(3, 6, "missing"))
    monitor.emit(Gap(9, 9, "restarted"))
    monitor.lag(7, 2)
    monitor.lag(8, 3)
    for event in (
        Restarted(0, 2, None),
        SegmentTruncated(7, "publisher_lost"),
        SegmentTruncated(8, "truncated"),
        SegmentTruncated(9, "skipped"),
        SegmentResumed(7, 10),
        SegmentBroken(8, 10, lost),
        Ended(),
        Failed(lost),
    ):
        monitor.emit(event)
    cause = "connection lost: http://host: Connection refused"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "cam: connected"),
        ("WARNING", f"cam: {cause}; attempt 2 in 0.25 s"),
        ("INFO", f"cam: {cause}; attempt 3 in 0.50 s"),
        ("INFO", "cam: channel not found (HTTP 404); going on at segment 7"),
        ("WARNING", "cam: missed segments 3 to 6"),
        ("WARNING", "cam: missed segment 9 of the new numbering"),
        ("INFO", "cam: segment 7 is 2 behind the newest one"),
        ("INFO", "cam: the channel's numbering has changed; going on with its segment 0"),
        ("WARNING", "cam: segment 7 is truncated: publisher_lost"),
        ("WARNING", "cam: segment 8 is truncated: its publisher did not finish it"),
        ("WARNING", "cam: segment 9 has no bytes: its publisher skipped it, or the server has lost it in a crash"),
        ("INFO", "cam: segment 7 goes on after 10 bytes"),
        ("WARNING", f"cam: segment 8 broke after 10 bytes: {cause}"),
        ("INFO", "cam: the channel has ended"),
        ("INFO", f"cam: the subscription failed: {cause}"),
    ]


def test_nothing_is_printed_where_logging_is_not_configured(capfd: pytest.CaptureFixture[str]) -> None:
    """A library must not write to standard error by itself."""
    logger = logging.getLogger("tricklecast.subscriber")
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    assert Subscriber("http://host/trickle/cam").statistics() == SubscriberStatistics()
    assert capfd.readouterr().err == ""
