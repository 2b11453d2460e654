"""One run of ``tricklecast publish``: a source, a publisher, and the lines that people see."""

from __future__ import annotations

import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal, Unpack
from urllib.parse import quote

import anyio

from tricklecast.publisher.client import Publisher, WriterOptions
from tricklecast.publisher.events import (
    Disconnected,
    Failed,
    Forgotten,
    PublisherEvent,
    PublisherStatistics,
    Reconnected,
    Retrying,
    SegmentPublished,
)
from tricklecast.publisher.feed import Feed, Totals, stepping
from tricklecast.publisher.steps import Source
from tricklecast.trickle.amounts import count, rate, size, transferred
from tricklecast.trickle.client.arguments import channel_urls, server_url
from tricklecast.trickle.client.tasks import BackgroundTask
from tricklecast.trickle.errors import ChannelBusy, ConnectionLost, Refused, Superseded, TrickleError
from tricklecast.trickle.terminal import RateMeter, Screen
from tricklecast.trickle.wire import CLIENT, DEFAULT_CONTENT_TYPE, redacted_urls, split_urls

ENDLESS_S: Final = 86_400.0
"""How long segments may wait in a buffer whose time is not limited: a day."""

CLOSE_S: Final = 5.0
"""How long the end of a run may take, in seconds, also after Ctrl-C."""

STOPPED: Final = "stopped by an error"
"""How a run ends, in its summary, unless it gets to its end."""


async def run(
    url: str,
    source: Source,
    *,
    leave_open: bool = False,
    content_type: str | None = None,
    screen: Screen | None = None,
    start: int | Literal["resume", "reset"] = "resume",
    **options: Unpack[WriterOptions],
) -> Totals:
    """Publish all that a source has.

    At the end of the source, and when it is cancelled (Ctrl-C), the run ends the segment that it was writing, and then
    the channel. After an error, or when it is cancelled once more, the run leaves the channel open for a successor, and
    the server closes the segment as truncated.

    Args:
        source: the input. It is opened first: a source that cannot be read creates no channel.

    Raises:
        TrickleError: the source cannot be read, or the channel cannot be published to.
    """
    screen = screen or Screen()
    status = Status(redacted_urls(url), screen.say)
    running = anyio.CancelScope()
    feed: Feed | None = None
    how = STOPPED
    refused: set[int | None] = set()  # the statuses of refusals since a segment was last taken: each is said once

    def on_event(event: PublisherEvent) -> None:
        match event:
            case Retrying(error, attempt=2) if feed is None:
                status.say(f"warning: {error}; trying again")
            case Retrying(Refused() as error) if error.status not in refused:
                refused.add(error.status)
                status.say(f"warning: {error}; trying again")
            case SegmentPublished():
                refused.clear()
            case Failed():
                running.cancel()  # at once: the source may be silent
            case Disconnected(error):
                status.say(f"warning: {error}; segments are kept, and sent again when the server answers")
            case Reconnected():
                status.say(str(event))
            case Forgotten():
                status.say(f"warning: {event}")

    def made() -> Publisher:
        """A publisher of the source's media type, which is known once it is open."""
        options["headers"] = {CLIENT: _client_name()}
        if not source.drops:  # it waits, and finds room, or the end of the publisher, before this
            options["buffer_s"] = ENDLESS_S
        return Publisher(
            url,
            content_type=content_type or source.content_type,
            when_full="drop" if source.drops else "wait",
            on_event=on_event,
            start=start,
            **options,
        )

    try:
        async with stepping(lambda is_stopped: source.open(status, is_stopped)) as steps, made() as publisher:
            feed = Feed(publisher, steps, drops=source.drops, warn=status.say, shorten=source.shorten)
            totals = feed.totals
            with screen.live(lambda: status.line(totals, publisher.statistics())):
                telling: BackgroundTask | None = None
                if screen.is_terminal and (content_type or source.content_type) != DEFAULT_CONTENT_TYPE:
                    telling = BackgroundTask(partial(_tell_watch_page, url, options.get("verify", True), status.say))
                try:
                    with running:
                        await feed.run()
                    if publisher.error is not None:
                        raise publisher.error
                    how = "interrupted before the end of the channel"  # unless the next line is done
                    how = await _leave(publisher, leave_open)
                except anyio.get_cancelled_exc_class():
                    if how == STOPPED:
                        how = "interrupted twice: the channel stays open"
                        try:
                            how = f"interrupted, {await _leave(publisher, leave_open)}"
                        except TrickleError as error:  # the exit code is that of the interruption
                            how = f"interrupted, and the channel is not ended: {error}"
                    raise
                except TrickleError:
                    how = STOPPED
                    raise
                finally:
                    if telling is not None:
                        await telling.stop()
    except (ChannelBusy, Superseded) as error:
        raise TrickleError(_other_publisher(error)) from error
    finally:
        if feed is not None and not isinstance(publisher.error, ChannelBusy):
            unconfirmed = feed.conclude()
            status.say(status.summary(feed.totals, publisher.statistics(), how, unconfirmed))
    return feed.totals


async def _tell_watch_page(url: str, tls: ssl.SSLContext | bool, say: Callable[[str], None]) -> None:
    """Say where people watch the channel, if its server has pages: it may have none, or at another port only."""
    from tricklecast.trickle.client.control import ask  # httpx takes a while to load

    page = f"/watch/{quote(channel_urls(url)[0].channel, safe='')}"
    root = server_url(split_urls(url)[0])
    with suppress(TrickleError):  # the publisher tells of a server that is away
        answer = await ask(root, page, tls, None, method="HEAD")
        if answer.status_code == 200 and answer.headers.get("Content-Type", "").startswith("text/html"):
            say(f"watch it at {redacted_urls(root)}{page}")


def _client_name() -> str:
    """The name in the server's log and in its refusals of other publishers: of the host, and of this run."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
    return f"{host[:40]}-{secrets.token_hex(2)}"


def _other_publisher(error: ChannelBusy | Superseded) -> str:
    """A line that names the other publisher, and the option that takes its place, if that helps."""
    if isinstance(error, Superseded):
        return str(error) if error.epoch is not None else f"another publisher has taken over this channel{error.where}"
    name = error.publisher or "another client"
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - error.publishing_s))
    return f"{name} has published to this channel since {since}; --takeover publishes in its place"


async def _leave(publisher: Publisher, leave_open: bool) -> str:
    """End the channel, or leave it open; return a text that says which.

    Raises:
        TrickleError: the channel could not be ended.
    """
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSE_S) as limit:
        await (publisher.detach() if leave_open else publisher.close())
    if limit.cancelled_caught and not leave_open:
        raise ConnectionLost(detail=f"no answer to the channel's end within {CLOSE_S:.0f} s")
    return "the channel is still open" if leave_open else "the channel is ended"


class Status:
    """Tells a person how a run goes: lines, its state in one line, and a summary at the end.

    It is the source's :class:`~tricklecast.publisher.steps.Report`.
    """

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        self.say = say
        self._url = url
        self._begun_at = time.monotonic()
        self._rate = RateMeter()
        self._source = ""

    def source(self, state: str) -> None:
        self._source = state

    def line(self, totals: Totals, statistics: PublisherStatistics) -> str:
        """The state in one line. The most important words come first; the terminal cuts the rest."""
        words = ["waiting for the input" if totals.seq is None else f"segment {totals.seq}"]
        counts = {"retries": statistics.retries, "dropped": totals.dropped, "lost": totals.lost}
        words += [f"{name} {number}" for name, number in counts.items() if number]
        words += [self._source] if self._source else []
        words += [rate(self._rate.bits_per_s(totals.bytes)), f"{statistics.in_flight} in flight", size(totals.bytes)]
        words += [f"{time.monotonic() - self._begun_at:.0f} s", self._url]
        return " · ".join(words)

    def summary(self, totals: Totals, statistics: PublisherStatistics, how: str, unconfirmed: int = 0) -> str:
        """Return the summary: the amounts published, and how the run ended."""
        parts = [transferred("published", totals.segments, totals.bytes, time.monotonic() - self._begun_at)]
        if totals.seq is not None:
            parts.append(f"the last one {totals.seq}")
        if statistics.retries:
            parts.append(count(statistics.retries, "retry", "retries"))
        counts = {"dropped": totals.dropped, "lost": totals.lost, "not confirmed": unconfirmed}
        parts += [f"{number} {name}" for name, number in counts.items() if number]
        return f"{', '.join(parts)}; {how}"
