"""The publisher: turns writes into the numbered segments of a channel.

::

    async with Publisher("http://127.0.0.1:2939/trickle/cam", content_type="video/mp2t") as publisher:
        async with publisher.segment() as segment:
            await segment.write(chunk)
        print(segment.receipt)
        receipt = await publisher.publish(b"a whole segment")
        async with publisher.segment(wait=False) as segment:  # the next one may begin before this one is answered
            await segment.write(chunk)
        print(await segment.settled())
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from itertools import count
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, TypedDict

import anyio
from anyio.abc import TaskGroup

from tricklecast.publisher.core import Advance, Plan, Receipt, RetryAfter, parse_start
from tricklecast.publisher.events import (
    Failed,
    Finished,
    PublisherEvent,
    PublisherReporter,
    PublisherStatistics,
    Retrying,
)
from tricklecast.publisher.lines import JsonLines
from tricklecast.publisher.requests import Requests
from tricklecast.publisher.segments import Segments
from tricklecast.publisher.writer import SegmentWriter
from tricklecast.trickle import wire
from tricklecast.trickle.client.arguments import (
    USER_AGENT,
    Auth,
    URLs,
    channel_urls,
    check_async,
    check_content_type,
    check_headers,
    check_number,
    check_verify,
    httpx_auth,
)
from tricklecast.trickle.client.connection import RequestTimeouts
from tricklecast.trickle.client.exchange import ExchangeOutcome, TrickleClient
from tricklecast.trickle.client.nodes import Nodes
from tricklecast.trickle.client.retry import RECONNECT_S, Stop
from tricklecast.trickle.client.tasks import BackgroundTask
from tricklecast.trickle.errors import (
    ClosedHere,
    ConnectionLost,
    InvalidInput,
    LocalProtocolError,
    SegmentsUnconfirmed,
    TrickleError,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["JsonLines", "Publisher", "SegmentWriter"]

CONNECT_S: Final = 5.0
"""Long enough for two lost SYNs."""

SILENCE_S: Final = 10.0
"""A server that takes nothing of a body for so long, or does not answer one that it has, is given up. A server answers
a whole body at once; a live stream that was held up for longer has lost its audience."""

TIMEOUT: Final = RequestTimeouts(CONNECT_S, read=SILENCE_S, write=SILENCE_S)

CLOSE_S: Final = 5.0
"""Ending the channel takes at most this long, once the segments are confirmed."""

CONFIRM_S: Final = 2.0
"""How long a publisher that closes waits for the next confirmation of a segment, before it ends the channel."""

LEAVE_S: Final = 1.0
"""How long the server is given to hear that this publisher leaves the channel to another one."""

LINGER_S: Final = 0.5
"""How long it waits for the preconnect's answer after the channel was ended."""

BUFFER_BYTES: Final = 64 << 20
"""Twenty seconds of 25 Mbit/s: longer than a server takes to restart."""

BUFFER_S: Final = 30.0
"""Longer than a server takes to restart; a live stream that is further behind has lost its audience."""

MAX_PRECONNECT: Final = 2
"""The server takes a POST for its head and for the one after it; it refuses any beyond (470)."""


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    OVER = "over"


class PublishingOptions(TypedDict, total=False):
    """The arguments that publishers of every kind have, with and without ``async``: see :class:`Publisher`."""

    takeover: bool
    preconnect: int
    buffer_bytes: int
    buffer_s: float
    outage_s: float | None
    wait_for_server_s: float | None
    idle_rotation_s: float | None
    headers: Mapping[str, str] | None
    verify: ssl.SSLContext | bool


class WriterOptions(PublishingOptions, total=False):
    """The arguments of :class:`Publisher` that writers of its segments pass on to it."""

    transport: httpx.AsyncBaseTransport | None
    auth: Auth | None


class Publisher:
    """Publishes the segments of one channel, under asyncio or trio.

    Use it as an async context manager, or call :meth:`open` and :meth:`close`, which may run in different tasks
    (a fixture, a web framework's lifespan, an object with start and stop).

    Leaving the block normally ends the channel. Leaving it by an exception or a cancellation does not: the open
    segment is closed as truncated, so that readers see the break, and the channel stays for a successor until it
    expires. To end the channel in that case, too (a Ctrl-C that means "the end"), call :meth:`close` before.

    The request for the next segment is opened ahead, as soon as the current one has its first byte, so that a
    segment begins without a round trip. Segments may overlap and be written by several tasks; they are numbered in
    the order of their first chunks. One segment has one writer at a time.

    A request that breaks, or is refused for the moment, is made again, with all of the segment's bytes, while the
    writer goes on. After a lost connection the publisher first asks the server where the channel is:

    - The channel is gone or empty (the server was restarted): it goes on with its own numbers.
    - The head lies between the last confirmed segment and the last one sent here: it goes on where it was.
    - A copy of the channel was promoted, in a later epoch: it goes on there.
    - The head lies beyond that, or before it, or a later epoch has another numbering: another publisher is there by
      now, and :exc:`~tricklecast.trickle.errors.Superseded` is raised, with ``seq`` (the newest one of this
      publisher) and ``latest`` (the head). The same error is raised when a segment that was not begun here turns out
      to be closed, or when another publisher takes a segment over.
    - The channel has ended: :exc:`~tricklecast.trickle.errors.ChannelEnded`.

    Args:
        url: the channel, ``http[s]://host:port/trickle/CHANNEL``; or several such URLs, one for each node of a cluster
            (a list, or one text with commas between them). It publishes at the first node, at the one that owns the
            channel once a node has named it and it is among them, and at another one when that fails. A query
            (``?token=…``) is sent with each request.
        content_type: the media type of the segments.
        start: ``"resume"`` goes on where the channel is (the server is asked; a new channel begins at 0),
            ``"reset"`` does the same and closes the segments that an earlier publisher left open. A number begins
            there; the server skips those between. If the channel is beyond it already, the first use raises
            ``Superseded``.
        takeover: publish even if another client publishes to the channel at the moment. Otherwise the first use
            raises :exc:`~tricklecast.trickle.errors.ChannelBusy`, if the server can tell.
        preconnect: how many requests are opened ahead: 0, 1 or 2. More than two the server would not take: it accepts
            a segment only up to one beyond its head. The second one is opened when the server has confirmed a segment.
        buffer_bytes: memory for segments that the server has not confirmed: they wait there for a server that is away,
            and are sent again after a lost connection. A segment that finds no room there goes on, but is lost if its
            connection breaks.
        buffer_s: how long a segment may wait.
        outage_s: how long a server that was there is waited for while it is away, in seconds; ``None``: for ever, and
            however often it says that it cannot take segments now.
        wait_for_server_s: how long :meth:`open` waits for a server that cannot be reached at the beginning, in seconds,
            and up to one pause (4 s, after a minute 10 s) longer; ``None``: for ever. Without, it raises
            ``ConnectionLost`` at once: most likely the URL is wrong. If ``start`` is a number, nothing is asked there,
            and the first segment waits, or raises.
        when_full: the remedy when the buffer is full, or 1,000 segments wait. ``"wait"``: entering a segment waits
            for room, at most ``buffer_s`` (:exc:`~tricklecast.trickle.errors.PublisherFull`). ``"drop"``, for live
            media: the oldest segments are given up, and those that ended more than ``buffer_s`` ago; the ones that a
            connection carries come last. Their writers are told
            (:exc:`~tricklecast.trickle.errors.SegmentDropped`), and so are readers of one of which a part was sent.
        idle_rotation_s: when nothing was written for this many seconds, the preconnect is ended as an empty segment and
            the next one opened, so that proxies and subscribers see life (25 is usual); ``None``: never.
        headers: sent with every request. ``Trickle-Client`` is the name that the server's logs and other publishers
            see; it must stay the same for the publisher's life. Headers of the connection and of the body's framing
            (``Content-Length``, ``Host`` …) are not allowed.
        auth: a token, which is sent as ``Authorization: Bearer``, or any authentication that httpx knows.
        verify: whether and how the server's certificate is checked, as in httpx.
        on_event: called with each :data:`~tricklecast.publisher.events.PublisherEvent`; it must not block.
            An exception that it raises is logged, and publishing goes on.
        transport: replaces the transport. It must read the answer while it writes the body, as
            :class:`~tricklecast.trickle.client.bridge.TrickleTransport` does and httpx's own does not.

    Raises:
        InvalidInput: an argument is wrong.

    Attributes:
        url: the channel, or the first one of its URLs, taken apart.
    """

    def __init__(
        self,
        url: URLs,
        *,
        content_type: str = wire.DEFAULT_CONTENT_TYPE,
        start: int | Literal["resume", "reset"] = "resume",
        takeover: bool = False,
        preconnect: int = 1,
        buffer_bytes: int = BUFFER_BYTES,
        buffer_s: float = BUFFER_S,
        outage_s: float | None = RECONNECT_S,
        wait_for_server_s: float | None = 0.0,
        when_full: Literal["wait", "drop"] = "wait",
        idle_rotation_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        verify: ssl.SSLContext | bool = True,
        on_event: Callable[[PublisherEvent], None] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not isinstance(takeover, bool):
            raise InvalidInput(f"takeover is True or False, not {takeover!r}")
        check_number("preconnect", preconnect, at_least=0, at_most=MAX_PRECONNECT, whole=True)
        check_number("buffer_bytes", buffer_bytes, at_least=0, whole=True)
        check_number("buffer_s", buffer_s, above=0)
        check_number("outage_s", outage_s, at_least=0, or_none=True)
        check_number("wait_for_server_s", wait_for_server_s, at_least=0, or_none=True)
        if when_full not in ("drop", "wait"):
            raise InvalidInput(f"when_full is 'wait' or 'drop', not {when_full!r}")
        check_number("idle_rotation_s", idle_rotation_s, above=0, or_none=True)
        check_content_type(content_type)
        check_headers(headers or {})
        check_verify(verify)
        check_async("transport", transport, "httpx.AsyncBaseTransport")
        urls = channel_urls(url)
        self.url = urls[0]
        nodes = Nodes(urls, Random(), follows=True)
        self._plan = Plan(
            parse_start(start),
            rng=Random(),
            name=os.urandom(16).hex(),
            outage_s=outage_s,
            wait_s=wait_for_server_s,
        )
        self._idle_rotation_s = idle_rotation_s
        self._buffer_s = buffer_s
        self._http = TrickleClient(
            verify,
            transport=transport,
            headers={
                "User-Agent": USER_AGENT,
                wire.CLIENT: f"publisher-{os.urandom(6).hex()}",
                **(headers or {}),
            },
            auth=httpx_auth(auth),
            timeout=TIMEOUT._replace(connect=nodes.connect_s(CONNECT_S)),
        )
        self._report = PublisherReporter(on_event, self.url.channel, anyio.current_time)
        self._requests = Requests(self._http, nodes, content_type, self._report, takeover=takeover)
        self._segments = Segments(
            self._plan,
            self._requests,
            self._report,
            drops=when_full == "drop",
            preconnect=preconnect,
            buffer_bytes=buffer_bytes,
            buffer_s=buffer_s,
        )
        self._background: BackgroundTask | None = None
        self._started = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._state = _State.NEW

    @property
    def error(self) -> TrickleError | None:
        """Why nothing more can be published. A segment may fail without this: then the next may still get through."""
        return self._plan.error

    @property
    def trouble(self) -> TrickleError | None:
        """The server's last failure, as long as nothing was published since: why segments are dropped."""
        return self._plan.trouble

    async def open(self) -> Publisher:
        """Ask the server where the channel is, and open the preconnects.

        Raises:
            LocalProtocolError: the publisher was opened before.
            ConnectionLost: the server cannot be reached.
            Refused: the server said no.
            RemoteProtocolError: there is no trickle server at that URL.
        """
        if self._state is not _State.NEW:
            raise LocalProtocolError("a publisher is opened once")
        self._state = _State.OVER
        try:
            if self._plan.numbering.next is None:
                await self._ask(self._requests.next, self._plan.on_next)
            self._background = BackgroundTask(self._run)
            await self._started.wait()
        except BaseException:
            await self._release()
            raise
        self._state = _State.OPEN
        if self._tasks is not None:
            self._segments.start(self._tasks.start_soon)
            if self._idle_rotation_s is not None:
                self._tasks.start_soon(self._segments.rotate, self._idle_rotation_s)
        return self

    async def __aenter__(self) -> Publisher:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        was_open = self._state is _State.OPEN
        with anyio.CancelScope(shield=True):
            if error is not None:
                try:
                    await self.detach()
                except TrickleError as failure:
                    error.add_note(f"and while the publisher was detached: {failure}")
                return
            await self.close()
        if was_open and any(unseen := self._segments.unseen):
            raise SegmentsUnconfirmed(*unseen)

    def segment(self, *, wait: bool = True) -> SegmentWriter:
        """The next segment, as an async context manager.

        Args:
            wait: leaving its block waits for the receipt. Without, it returns once the segment was handed over, and
                :meth:`SegmentWriter.settled` waits for the receipt. If nobody asks for it and the segment is lost,
                leaving the publisher's block raises ``SegmentsUnconfirmed``.
        """
        self._check_opened()
        return SegmentWriter(self._segments, wait=wait)

    async def begin(self) -> SegmentWriter:
        """Begin the next segment without a block, for an object with callbacks.

        :meth:`SegmentWriter.end` ends it, :meth:`SegmentWriter.abort` cuts it off; so does the publisher's end::

            segment = await publisher.begin()
            await segment.write(chunk)
            segment.abort()  # without await: it only tells; await segment.end() instead publishes it

        A call that is cancelled while it waits for room has begun nothing. With room it does not wait, and begins a
        segment also in a scope that is cancelled already.

        Raises:
            PublisherFull: the buffer had no room for ``buffer_s`` seconds.
            LocalProtocolError: the publisher is not open.
        """
        return await self.segment().__aenter__()

    def statistics(self) -> PublisherStatistics:
        """Return the counters so far, as a snapshot that does not change."""
        return self._segments.statistics()

    async def publish(self, data: bytes) -> Receipt:
        """Publish a whole segment as one chunk.

        A call that is cancelled, for example by a timeout, cuts the segment off. The server may have nothing of it, a
        part, or, if all had been sent, the whole, so that publishing it again may double it. ``on_event`` is told:
        ``SegmentBegun`` once something was sent, and ``SegmentLost`` with the seq. To cancel the wait for the answer,
        and not the sending, use :meth:`begin`, and cancel :meth:`SegmentWriter.settled`.

        Raises:
            TrickleError: as :meth:`SegmentWriter.write`.
        """
        self._check_opened()
        async with SegmentWriter(self._segments, wait=True, is_one_chunk=True) as segment:
            await segment.write(data)
        return segment.receipt

    async def publish_json(self, obj: object, *, limit: int = wire.MESSAGE_LIMIT) -> Receipt:
        """Publish an object as a segment of JSON, one line in UTF-8.

        Args:
            obj: a value for :func:`json.dumps`, apart from ``nan`` and infinite numbers, which JSON does not have.
            limit: the longest document, in bytes. Readers refuse longer ones unless they pass a higher ``limit``, too.

        Raises:
            TypeError: ``obj`` cannot be written as JSON.
            InvalidInput: it has a value that JSON does not have, or is longer than ``limit``, or ``limit`` is wrong;
                nothing was sent.
            TrickleError: as :meth:`SegmentWriter.write`.
        """
        check_number("limit", limit, at_least=1, whole=True)
        return await self.publish(_json_line(obj, limit=limit))

    def json_lines(
        self,
        *,
        segment_s: float = 2.0,
        segment_lines: int = 10_000,
        segment_bytes: int = 1 << 20,
        limit: int = wire.MESSAGE_LIMIT,
    ) -> JsonLines:
        """Return a writer of JSON lines::

            async with publisher.json_lines() as out:
                await out.write({"text": "hello"})

        Each object is one line, and one chunk, which readers get at once; many lines share a segment.

        Args:
            segment_s: the time from the first line of a segment to its end, in seconds.
            segment_lines: the most lines of a segment. segment_bytes: its most bytes, unless one line has more.
            limit: the longest line, in bytes. Readers refuse longer ones unless they pass a higher ``limit``, too.

        Raises:
            InvalidInput: an argument is wrong.
        """
        check_number("limit", limit, at_least=1, whole=True)
        return JsonLines(
            self.begin,
            partial(_json_line, limit=limit),
            segment_s=segment_s,
            segment_lines=segment_lines,
            segment_bytes=segment_bytes,
        )

    async def close(self) -> tuple[int, ...]:
        """End the channel, then close the preconnect. Further calls do nothing.

        Segments that are being written are cut off; those that were ended may still be confirmed, as long as the server
        confirms one every :data:`CONFIRM_S` seconds, and for ``buffer_s`` at most. The channel is left alone if it has
        ended, belongs to another publisher, or was never reached.

        Returns:
            The seqs of the segments that the server has not confirmed. Those of which nothing was sent may have none.

        Raises:
            LocalProtocolError: the publisher was opened in another event loop.
            TrickleError: the channel could not be ended. Its ``__notes__`` name the first ten unconfirmed segments.
        """
        return await self._close(end=True)

    async def detach(self) -> tuple[int, ...]:
        """Stop publishing without ending the channel, so that another publisher can go on with it, at once.

        Segments are treated as by :meth:`close`, but have :data:`CONFIRM_S` seconds in all. Readers of one that is cut
        off are told.

        Returns:
            The seqs of the segments that the server has not confirmed.
        """
        return await self._close(end=False)

    async def _close(self, *, end: bool) -> tuple[int, ...]:
        if self._state is not _State.OPEN:
            return ()
        self._segments.check_loop()
        self._state = _State.OVER
        unconfirmed: tuple[int, ...] = ()
        ended = False
        try:
            limit_s = max(self._buffer_s, CONFIRM_S) if end else CONFIRM_S
            unconfirmed = await self._segments.finish(limit_s, CONFIRM_S, tell=not (end and self._owns_channel))
            self._segments.stop()
            with anyio.move_on_after(CLOSE_S) as limit:
                if end and self._owns_channel:
                    epoch = self._plan.numbering.epoch
                    await self._end_channel(epoch)
                    ended = True
                    # A server that tells no epoch cannot know that a preconnect was meant for the channel's former one.
                    if await self._segments.close_ahead(LINGER_S) and epoch is None:
                        await self._end_channel(None)
                elif self._owns_channel:
                    self._segments.cut_ahead()
                    await self._segments.leave(LEAVE_S)
            if end and limit.cancelled_caught and not ended:
                raise ConnectionLost(detail=f"no answer to the channel's end within {CLOSE_S:.0f} s")
        except TrickleError as error:
            if unconfirmed:
                error.add_note(str(SegmentsUnconfirmed(unconfirmed)))
            raise
        finally:
            await self._release(Finished(ended, unconfirmed))
        if end and self._segments.failure is not None:
            raise self._segments.failure
        return unconfirmed

    async def _end_channel(self, epoch: int | None) -> None:
        await self._ask(lambda attempt: self._requests.delete(attempt, epoch), self._plan.on_delete)

    def _check_opened(self) -> None:
        if self._state is _State.NEW:
            raise LocalProtocolError("the publisher is not open: enter its block, or call open()")

    @property
    def _owns_channel(self) -> bool:
        return self._plan.owns_channel and self._segments.failure is None

    async def _run(self) -> None:
        """Hold the requests' tasks; runs in a background task, so that any task may close the publisher."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._started.set()
                await anyio.sleep_forever()
        finally:
            self._tasks = None
            self._started.set()
            if self._state is _State.OPEN:
                self._segments.fail(ClosedHere("the publisher's background task was cancelled"))

    async def _release(self, finished: Finished | None = None) -> None:
        """Give everything back. Nothing is published from now on."""
        with anyio.CancelScope(shield=True):
            self._segments.stop()
            self._segments.cut_ahead()
            if self._background is not None:
                await self._background.stop()
            await self._http.aclose()
        if finished is not None:
            self._report(finished)

    async def _ask(
        self,
        request: Callable[[int], Awaitable[ExchangeOutcome]],
        decide: Callable[[ExchangeOutcome, float], Advance | RetryAfter | Stop],
    ) -> None:
        """Make a request until the plan has the answer that it needs; the request is given the number of attempts.

        Raises:
            TrickleError: the plan has given up.
        """
        for attempt in count(1):
            match decide(await request(attempt), anyio.current_time()):
                case Advance():
                    return
                case RetryAfter(delay_s, error=error):
                    if error is not None:
                        self._report(Retrying(error, delay_s, attempt + 1))
                    await anyio.sleep(delay_s)
                case Stop(error):
                    self._report(Failed(error))
                    raise error


def _json_line(obj: object, *, limit: int) -> bytes:
    """Return an object as JSON, one line in UTF-8. Every integer is exact.

    Raises:
        TypeError: it cannot be written as JSON.
        InvalidInput: it has a value that JSON does not have, is nested too deeply, or is longer than ``limit`` bytes.
    """
    try:
        import json  # few publishers need it

        data = json.dumps(obj, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except ValueError as error:  # UnicodeEncodeError, a lone surrogate, included
        raise InvalidInput(f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("not JSON that readers take: it is nested too deeply") from None
    if len(data) > limit:
        raise InvalidInput(f"a document of {len(data)} bytes; the limit is {limit}, for readers, too")
    return data
