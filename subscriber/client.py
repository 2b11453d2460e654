"""The subscriber: yields the segments of a channel as they begin.

:mod:`tricklecast.subscriber.core` decides what to request and what an answer means. While one segment is read, the GET
for the next one is already out. It is only one, and its answer waits in its socket: a slow user is a slow reader, not a
growing buffer.

A GET for the next segment may wait for ever, so a server that has hung looks like a quiet channel. After a wait in
which a server said nothing since the subscriber began, after one in which it was silent within a segment, and after
:data:`CHECK_WAITS` waits in a row, the subscriber asks where the head is. A server that does not answer that is away.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Self, TypedDict, TypeVar, assert_never, get_args

import anyio
import anyio.lowlevel

from tricklecast.subscriber.core import (
    REFRESH_S,
    AnyOnLag,
    AnyStart,
    Ask,
    Cursor,
    Decision,
    End,
    Jump,
    NextSegment,
    OnLag,
    Resolved,
    Retry,
    Start,
    check_whole,
)
from tricklecast.subscriber.events import (
    Ended,
    Failed,
    Gap,
    Monitor,
    OnEvent,
    Restarted,
    Retrying,
    SegmentTruncated,
    SkippedAhead,
    SubscriberStatistics,
)
from tricklecast.subscriber.segment import CHECK_WAITS, NEXT_S, OnBroken, Requests, Runtime, Segment
from tricklecast.trickle import __version__, wire
from tricklecast.trickle.client.arguments import (
    Auth,
    URLs,
    channel_urls,
    check_async,
    check_headers,
    check_number,
    check_verify,
    httpx_auth,
    merged,
)
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost, TrickleClient
from tricklecast.trickle.client.nodes import Nodes
from tricklecast.trickle.client.retry import RECONNECT_S, Stop
from tricklecast.trickle.client.tasks import BackgroundTask, HomeLoop, Notifier
from tricklecast.trickle.errors import (
    BrokenByPeer,
    ClosedHere,
    InvalidInput,
    LocalProtocolError,
    Position,
    Refused,
    RemoteProtocolError,
    TrickleError,
)

if TYPE_CHECKING:
    import httpx

STALL_TIMEOUT_S: Final = 30.0
"""Default for the longest silence within a segment before the subscriber asks whether the server is still there."""

HELD_S: Final = 1.0
"""A server that closes the connection 1 s after the request or later had let it wait for a segment. A port of another
program closes it at once."""

T = TypeVar("T")

_IN_LOOPS: Final[set[Subscriber]] = set()
"""Subscribers that are open by a loop alone. The garbage collector may find a dropped iterator together with all that
hangs on it; without this reference it would take sockets apart before they can be closed."""


class ReadingOptions(TypedDict, total=False):
    """The arguments that readers of every kind have, with and without ``async``: see :class:`Subscriber`."""

    on_lag: AnyOnLag | None
    wait_for_channel_s: float | None
    reconnect_s: float | None
    refresh_s: float
    stall_timeout_s: float | None
    headers: Mapping[str, str] | None
    verify: ssl.SSLContext | bool


class ReaderOptions(ReadingOptions, total=False):
    """The arguments of :class:`Subscriber` that readers of its segments pass on to it."""

    transport: httpx.AsyncBaseTransport | None
    auth: Auth | None
    client: httpx.AsyncClient | None


class _Use(Enum):
    NEW = "new"
    BLOCK = "inside async with"
    LOOP = "by async for alone"
    OVER = "over"


class Subscriber:
    """Reads a channel, segment by segment, under asyncio or trio.

    ::

        async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
            async for chunk in segment:
                ...

    The loop ends when the channel does. Every other end raises an error of ``trickle.errors``; if going on can help,
    its ``resume`` is the ``start`` with which another subscriber goes on without loss. After an error, every further
    call raises the same error.

    A loop that is left early (``break``, an exception, a cancellation) closes its connections a moment later. With
    ``async with Subscriber(…) as subscriber:`` they are closed where the block ends, and the loop can be left and taken
    up again; the block may be entered in one task and left in another. Under trio, use the block: trio warns of an
    async generator that is dropped.

    No call loses data when it is cancelled, for example by a timeout: the next call goes on. No segment is missed in
    silence: the segments missed before a segment are its ``gap``, those before the end :attr:`missed_at_end`.

    It makes at most *segments + reconnects + waited / 16 s + 2 · (1 + seeks)* requests, and pays for reconnects out of
    a budget. Behind a proxy that drops trailers, each segment costs one more. It waits for a server that takes requests
    and answers none as for one that is away, and raises ``ConnectionLost`` in the end.

    Args:
        url: the channel's URL; or several, one for each node of a cluster (a list, or one text with commas between
            them). It reads at the first node, and at another one when that fails. A query (``?token=…``) is sent with
            each request.
        start: ``"next"`` (the next segment to begin), ``"current"`` (the newest one that has begun), ``"earliest"``
            (the oldest one that is kept), N, -N (-1 is ``next``, -2 ``current``), or a :class:`Position` (or its text,
            ``128@3:9f86d081884c7d65``). A number that the channel has not come to counts as ``next``, or raises
            ``SegmentMissing`` with ``on_lag="fail"``. A position also tells whether the channel still has the same
            life. If not, the first segment is ``restarted``. Messages, lines and recordings begin at ``"next"``, too;
            viewers of media (``frames``, ``relay`` and ``tricklecast subscribe``) begin at ``"current"``, to have a
            picture at once.
        on_lag: where to go on when the wanted segment has left the window, or the numbering begins anew: ``"live"`` (at
            the newest segment; in a new numbering perhaps at the number that was wanted), ``"earliest"`` (at
            the oldest one that is still there, so that least is missed), or ``"fail"`` (nowhere: ``SegmentMissing``).
            ``None``: ``"earliest"`` for a subscriber that began at ``"earliest"`` or at N, which wants everything, and
            ``"live"`` for any other one, also for one that began at a position: pass ``"earliest"`` if it is to miss as
            little as possible. The next segment's ``gap`` counts the segments missed.
        on_broken: whether iterating over a broken segment ends (``"skip"``; its ``broken`` is set) or raises
            ``ConnectionLost`` (``"raise"``). In both cases the next segment can be read.
        on_event: called with each event of :mod:`tricklecast.subscriber.events`, in the event loop: it must not block.
            An exception that it raises is logged, and reading goes on.
        wait_for_channel_s: how long to wait for a channel or a server that is not there yet, in seconds, and up to one
            pause (4 s, after a minute 10 s) longer; ``None``: for ever. A channel that has ended, and that ``start`` is
            at the end of, is not there yet, either: the subscriber waits for its next life. By default it ends at once.
        reconnect_s: how long to wait for a server that was there, and for its channel, in seconds. ``None``: for ever,
            also for a channel that the server has dropped, and however often the server fails; only the channel's end
            and a final refusal end the subscription then.
        refresh_s: how long a GET waits before it is repeated (and up to 20 % more), in seconds. Keep it below the idle
            timeouts of proxies on the way.
        stall_timeout_s: longest silence within a segment, in seconds. After it the segment is requested once more: if
            the server answers, reading goes on, since a quiet segment is no fault; if it does not, the segment is
            broken, and the server is waited for as one that is away (``reconnect_s``). ``None``: no limit. A host that
            has vanished is noticed all the same, by TCP keep-alive.
        transport: an httpx transport instead of
            :class:`~tricklecast.trickle.client.bridge.TrickleTransport`. Most cannot show trailers, so
            a truncation in the middle of a segment stays unseen. Not together with ``client``.
        headers: sent with every request. ``Trickle-Client`` is the name that the server's logs see. Headers of the
            connection and of a body's framing (``Content-Length``, ``Host`` …) are not allowed.
        auth: a token, which is sent as ``Authorization: Bearer``, or any authentication that httpx knows. With
            ``client``, it is used instead of the client's own.
        verify: whether and how the server's certificate is checked, as in httpx.
        client: an ``httpx.AsyncClient`` to use (or a ``TrickleClient``); it is not closed here. Give it a
            :class:`~tricklecast.trickle.client.bridge.TrickleTransport` to see truncations. Its headers must
            not be those of the connection or of a body's framing (``Content-Length``, ``Host`` …).

    Raises:
        InvalidInput: an argument is wrong.
    """

    def __init__(
        self,
        url: URLs,
        *,
        start: AnyStart = "next",
        on_lag: AnyOnLag | None = None,
        on_broken: OnBroken = "skip",
        on_event: OnEvent | None = None,
        wait_for_channel_s: float | None = 0.0,
        reconnect_s: float | None = RECONNECT_S,
        refresh_s: float = REFRESH_S,
        stall_timeout_s: float | None = STALL_TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        verify: ssl.SSLContext | bool = True,
        client: httpx.AsyncClient | TrickleClient | None = None,
    ) -> None:
        urls = channel_urls(url)
        self.url: Final = urls[0]
        check_number("wait_for_channel_s", wait_for_channel_s, at_least=0, or_none=True)
        check_number("reconnect_s", reconnect_s, at_least=0, or_none=True)
        check_number("refresh_s", refresh_s, above=0)
        check_number("stall_timeout_s", stall_timeout_s, above=0, or_none=True)
        if on_lag not in (None, *OnLag):
            raise InvalidInput(f"on_lag is 'live', 'earliest', 'fail' or None, not {on_lag!r}")
        if on_broken not in get_args(OnBroken):
            raise InvalidInput(f"on_broken is 'skip' or 'raise', not {on_broken!r}")
        check_headers(headers or {})
        check_verify(verify)
        check_async("transport", transport, "httpx.AsyncBaseTransport")
        check_async("client", client, "httpx.AsyncClient")
        if client is not None:
            check_headers(client.headers)
            if transport is not None:
                raise InvalidInput("pass either client or transport: a client has a transport of its own")
        begin = Start.parse(start)
        self._runtime: Final = Runtime()
        self._nodes = Nodes(urls, self._runtime.rng)
        self._cursor = Cursor(
            begin,
            on_lag=None if on_lag is None else OnLag(on_lag),
            wait_for_channel_s=wait_for_channel_s,
            reconnect_s=reconnect_s,
            refresh_s=refresh_s,
        )
        self._monitor = Monitor(self.url.channel, on_event)
        self._on_broken: OnBroken = on_broken
        self._stall_s = stall_timeout_s
        self._headers = merged(request_headers(), headers or {})
        self._auth = httpx_auth(auth)
        self._transport = transport
        self._verify = verify
        self._shared_client = client
        self._client: TrickleClient | httpx.AsyncClient | None = None
        self._requests: Requests | None = None
        self._fetcher: Fetcher | None = None
        self._use = _Use.NEW
        self._home: HomeLoop | None = None  # the event loop in which it was opened
        self._is_iterated = False  # a task is in __anext__()
        self._segment: Segment | None = None
        self._next: Preconnect | None = None
        self._hold_s = 0.0
        self._place = begin.place  # where it was told to begin, or found that it does
        self._begun: NextSegment | None = None  # the last segment that was handed out since then
        self._origin: Position | None = None  # from where the first of these was come to; with its gap, if it has one
        self._joins_lines = False  # its reader goes on behind a line
        self._stop: Stop | None = None
        self._ended = False
        self._error: Exception | None = None
        self._missed_at_end = 0

    def statistics(self) -> SubscriberStatistics:
        """The counters at this moment."""
        return self._monitor.statistics()

    @property
    def position(self) -> Position | None:
        """The next segment to be handed out; ``None`` while that depends on the server's head.

        A segment that is being read counts as handed out; its own :attr:`Segment.position` reads it again.
        """
        begun = self._begun
        return self._place if begun is None else Position(begun.seq + 1, begun.epoch, begun.life)

    @property
    def missed_at_end(self) -> int:
        """Segments that were missed between the last one handed out and the end of the channel."""
        return self._missed_at_end

    # Opening and closing.

    async def open(self) -> Self:
        """Begin to use the subscriber, as ``async with`` does; :meth:`close` ends it, in any task.

        Raises:
            LocalProtocolError: it was used before.
        """
        self._begin(_Use.BLOCK)
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Segment]:
        return self._looped(self)

    def _looped(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        """Iterate over the items of this subscriber: inside its block, or in a loop that opens and closes it."""
        # Nothing may hold the generator but the loop: the generator's end is how the loop's end is noticed.
        return items if self._use is _Use.BLOCK else self._alone(items)

    async def _alone(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        self._begin(_Use.LOOP)
        _IN_LOOPS.add(self)
        try:
            while True:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            _IN_LOOPS.discard(self)
            await self.close()

    def _begin(self, use: _Use) -> None:
        if self._use is not _Use.NEW:
            raise LocalProtocolError("a Subscriber is used once: make another one to begin again")
        self._use, self._home = use, HomeLoop("subscriber")
        http = self._shared_client or TrickleClient(self._verify, transport=self._transport)
        self._client = http
        runtime = self._runtime
        self._requests = Requests(
            self._nodes, http, self._auth, self._cursor, self._monitor, runtime, runtime.clock(), self._headers
        )
        self._fetcher = Fetcher(self._requests, self._resolved)

    async def close(self) -> None:
        """Leave the segment that is being read, and close the connections. Further calls do nothing.

        Raises:
            LocalProtocolError: it was opened in another event loop.
        """
        if self._home is not None:
            self._home.check()
        self._use = _Use.OVER
        pending, self._next = self._next, None
        # asyncio's own cancellation reaches into shields: the steps after the one that it meets are done all the same.
        with anyio.CancelScope(shield=True):
            async with AsyncExitStack() as stack:
                if self._client is not None and self._client is not self._shared_client:
                    stack.push_async_callback(self._client.aclose)
                if self._fetcher is not None:
                    stack.push_async_callback(self._fetcher.stop)
                if pending is not None:
                    stack.push_async_callback(pending.abandon)
                if self._segment is not None:
                    stack.push_async_callback(self._segment.aclose)

    def _check_open(self) -> None:
        if self._use is _Use.OVER:
            raise ClosedHere("the subscriber was closed")
        if self._home is None:
            raise LocalProtocolError("the subscriber is not open: enter its block")
        self._home.check()

    # Iterating.

    async def __anext__(self) -> Segment:
        """The next segment. The one before is left, if it was not read to its end.

        Raises:
            ChannelNotFound: there is no such channel.
            SegmentMissing: the wanted segment does not exist, and ``on_lag`` or the retry budget forbids to go on.
            Refused: the server does not allow it.
            ConnectionLost: there is no connection, and no retry is left.
            RemoteProtocolError: the server at that URL does not speak the protocol.
            InvalidInput: its start is between two lines of a segment, and it is not read by ``json_lines``.
            ClosedHere: the subscriber was closed.
            LocalProtocolError: it has not been opened, or in another event loop.
        """
        if self._is_iterated:
            raise anyio.BusyResourceError("iterating over")
        self._is_iterated = True
        try:
            self._check_open()
            if self._segment is not None:
                await self._segment.aclose()
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            if self._stop is not None:
                raise self._failed(self._stop.error)
            if self._begun is None and not self._joins_lines:
                check_whole(self._place)
            pending = await self._settled()
            try:
                outcome = pending.outcome
            except Exception as unexpected:
                # Not an answer of a server, so that repeating the request would be a blind guess.
                self._failed(unexpected)
                raise
        finally:
            self._is_iterated = False
        match outcome:
            case NextSegment() as begun:
                return self._hand_out(begun, pending)
            case End(gap):
                place = self.position
                first = 0 if place is None else place.seq
                self._missed_at_end, self._ended = gap, True
                if gap:
                    self._monitor.emit(Gap(first, first + gap - 1, "ended"))
                self._monitor.emit(Ended())
                raise StopAsyncIteration
            case Stop(error):
                raise self._failed(error)
        assert_never(outcome)

    async def _settled(self) -> Preconnect:
        """Wait for the next segment; a seek in the meantime begins the wait anew."""
        while True:
            pending = self._next
            if pending is None:
                pending = self._preconnect(self._hold_s)
            await pending.over()
            if pending.abandoned:
                await pending.abandon()  # waits until it is: one at a time
            if self._use is _Use.OVER:
                self._check_open()  # raises
            self._next = None
            if not pending.abandoned:
                return pending

    def _failed(self, error: Exception) -> Exception:
        self._error = error
        if isinstance(error, TrickleError) and error.resume is None and may_help(error):
            error.resume = self.position
        self._monitor.emit(Failed(error))
        return error

    def _hand_out(self, begun: NextSegment, pending: Preconnect) -> Segment:
        assert pending.answer is not None
        assert self._requests is not None
        assert self._home is not None
        if self._begun is None:
            here, place = Position(begun.seq, begun.epoch, begun.life), self._place
            if place is not None and not (begun.gap or begun.restarted):
                place = replace(here, offset=place.offset)
            self._origin = place or here
        self._begun = begun
        self._segment = Segment(
            begun,
            pending.answer,
            self._requests,
            self._home,
            self._segment_over,
            stall_timeout_s=self._stall_s,
            on_broken=self._on_broken,
        )
        self._preconnect(begun.delay_s)
        self._report(begun)
        return self._segment

    def _report(self, begun: NextSegment) -> None:
        counts = self._monitor.counts
        counts["segments"] += 1
        counts["empty"] += begun.empty
        if begun.restarted:
            self._monitor.emit(Restarted(begun.seq, begun.epoch, begun.life))
        if begun.gap:
            reason: Literal["restarted", "missing"] = "restarted" if begun.restarted else "missing"
            self._monitor.emit(Gap(begun.seq - begun.gap, begun.seq - 1, reason))
        self._monitor.lag(begun.seq, begun.lag)
        if begun.empty and begun.truncated is not None:
            self._monitor.emit(SegmentTruncated(begun.seq, begun.truncated))

    async def seek(self, start: AnyStart, *, leave: bool = False) -> None:
        """Read on elsewhere: the next segment to be handed out is the one that ``start`` names.

        It may be called at any time, also by another task while one waits for a segment, and also after the end or an
        error: inside ``async with``, the iteration can then be taken up again. A seek makes no gap; segments missed
        behind its target do.

        Args:
            start: where to, like ``start`` of the subscriber.
            leave: whether the segment that is being read ends here; otherwise it can be read to its end.

        Raises:
            InvalidInput: ``start`` cannot be used.
            ClosedHere: the subscriber was closed.
            LocalProtocolError: it has not been opened, or in another event loop.
        """
        target = Start.parse(start)
        self._check_open()
        self._hold_s = self._cursor.seek(target, self._runtime.rng, failed=self._error is not None)
        self._place, self._begun = target.place, None
        self._stop, self._error, self._ended, self._missed_at_end = None, None, False, 0
        self._monitor.counts["seeks"] += 1
        with anyio.CancelScope(shield=True):
            if self._next is not None:
                await self._next.abandon()
            if leave and self._segment is not None:
                await self._segment.stop()

    def _segment_over(self, segment: Segment) -> None:
        if segment.broken is None:
            self._cursor.finished()
        elif self._stop is None:
            self._stop = self._cursor.broken(segment.broken)

    def _preconnect(self, delay_s: float) -> Preconnect:
        assert self._fetcher is not None
        self._hold_s = 0.0
        self._next = self._fetcher.preconnect(delay_s)
        return self._next

    def _resolved(self, seq: int) -> None:
        if self.position is None:
            self._place = Position(seq)


def may_help(error: TrickleError) -> bool:
    """Whether another subscription can go on where this one failed: not if the server will refuse that, too."""
    if isinstance(error, Refused):
        return error.temporary
    return isinstance(error, BrokenByPeer) and not isinstance(error, RemoteProtocolError)


# The GET for the next segment.


def request_headers() -> dict[str, str]:
    """The headers of each request of one subscriber."""
    return {
        "Accept-Encoding": "identity",
        "User-Agent": f"tricklecast-subscriber/{__version__}",
        # The same name over reconnects: logs can tell one client from another. It does not have 16 digits, since
        # servers give names of 16 digits to clients without one.
        wire.CLIENT: f"subscriber-{os.urandom(6).hex()}",
    }


class Preconnect:
    """The GET for the next segment, which a task of the :class:`Fetcher` makes.

    Attributes:
        delay_s: seconds to wait before the GET.
        abandoned: the result is not wanted any more.
        task: makes it.
        result: the result, once it is there, and the answer that it is about.
    """

    __slots__ = ("_changes", "_error", "_is_over", "abandoned", "answer", "delay_s", "result", "task")

    def __init__(self, delay_s: float, changes: Notifier) -> None:
        self.delay_s = delay_s
        self.answer: Answer | None = None
        self.abandoned = False
        self.result: NextSegment | End | Stop | None = None
        self._error: Exception | None = None
        self._is_over = False
        self.task: BackgroundTask | None = None
        self._changes = changes  # is notified when it is over, and when the task is

    @property
    def outcome(self) -> NextSegment | End | Stop:
        """The result, once it is over and was not abandoned.

        Raises:
            ClosedHere: the task was cancelled with all others of the program.
            Exception: its own error, for example that of a transport that the user passed.
        """
        if self._error is not None:
            raise self._error
        if self.result is None and self.task is not None:
            self.task.check()
        assert self.result is not None
        return self.result

    async def over(self) -> None:
        """Wait for the result. A cancelled wait changes nothing."""
        assert self.task is not None
        if self._is_over or self.task.is_over:
            await anyio.lowlevel.checkpoint_if_cancelled()
        while not (self._is_over or self.task.is_over):
            await self._changes.wait()

    def end(self, error: Exception | None = None) -> None:
        """Its task is done with it."""
        self._error, self._is_over = error, True
        self._changes.notify()

    async def abandon(self) -> None:
        """Stop the task if it makes this one, wait for its end, and close the response. It may be called twice."""
        self.abandoned = True
        try:
            if self.task is not None and not self._is_over:
                await self.task.stop()
        finally:
            if self.answer is not None:
                await self.answer.body.aclose()


class Fetcher:
    """Makes the GETs for the next segment, one after the other.

    Args:
        requests: makes each of them.
        on_resolved: called with the seq that ``next`` turned out to be.
    """

    def __init__(self, requests: Requests, on_resolved: Callable[[int], None]) -> None:
        self._requests = requests
        requests.waits = CHECK_WAITS - 1  # the first wait of all is checked
        self._cursor, self._monitor = requests.cursor, requests.monitor
        self._runtime, self._now = requests.runtime, requests.now
        self._on_resolved = on_resolved
        # One task makes one GET after the other: a task for each would cost as much as a small segment.
        self._task: BackgroundTask | None = None
        self._due: Preconnect | None = None  # that it makes next
        self._woken = Notifier()  # wakes it
        self._changes = Notifier()  # wakes the task that waits for the result

    def preconnect(self, delay_s: float) -> Preconnect:
        """Begin the GET for the next segment, after ``delay_s`` seconds."""
        self._due = pending = Preconnect(delay_s, self._changes)
        if self._task is None or self._task.is_over:
            self._task = BackgroundTask(self._work, self._changes)
        else:
            self._woken.notify()
        pending.task = self._task
        return pending

    async def stop(self) -> None:
        """Stop the task, and wait for its end."""
        if self._task is not None:
            await self._task.stop()

    async def _work(self) -> None:
        """Make the requests that are due, one after the other; never returns."""
        while True:
            pending, self._due = self._due, None
            if pending is None:
                await self._woken.wait()
                continue
            error: Exception | None = None
            try:
                delay_s: float | None = pending.delay_s
                while delay_s is not None:
                    if delay_s > 0:
                        await self._runtime.sleep(delay_s)
                    delay_s = await self._try(pending)
            except Exception as unexpected:
                error = unexpected
            pending.end(error)

    async def _try(self, pending: Preconnect) -> float | None:
        """Make one GET. After how many seconds to make another one; ``None`` if the result is there."""
        requested_at = self._now()
        if self._requests.waits >= CHECK_WAITS:
            self._monitor.counts["refreshes"] += 1
            found = await self._requests.get(Ask(None), NEXT_S)
            if isinstance(found, Lost) and not pending.abandoned:
                return await self._settled(pending, self._lost(found, requested_at))
            requested_at = self._now()
        wanted = self._cursor.ask()
        found = await self._requests.get(wanted, self._cursor.refresh_after(self._runtime.rng), may_wait=True)
        outcome: Decision | None = None
        try:
            # No await between the answer and its result: a subscriber that is closed now finds the response.
            outcome = None if pending.abandoned else self._decide(wanted, found, requested_at)
            if isinstance(outcome, NextSegment):
                assert isinstance(found, Answer)
                found.requested_at, found.answered_at = requested_at, self._now()
                pending.result, pending.answer = outcome, found
                if self._requests.pauses:
                    self._requests.back()
                return None
        finally:
            if isinstance(found, Answer) and pending.answer is None:
                await found.body.aclose()
        if outcome is None:
            return None if pending.abandoned else 0.0
        return await self._settled(pending, outcome)

    async def _settled(self, pending: Preconnect, outcome: Decision) -> float | None:
        """After how many seconds to make another GET; ``None`` if there is none to make. A retry has waited here."""
        if isinstance(outcome, End | Stop):
            pending.result = outcome
            return None
        if isinstance(outcome, Retry):
            await self._requests.pause(outcome.delay_s, outcome.error)
            return 0.0
        return outcome.delay_s

    def _lost(self, lost: Lost, requested_at: float) -> Decision:
        """Report a GET without an answer; return the cursor's decision."""
        now = self._now()
        waited_s = now - requested_at if lost.connected and not lost.waited_s else 0.0
        taken = lost.waited_s > 0 or waited_s >= HELD_S
        outcome = self._cursor.lost(lost.error, now, self._runtime.rng, taken=taken, waited_s=waited_s)
        if isinstance(outcome, Retry):
            self._monitor.emit(Retrying(outcome.error, outcome.delay_s, self._cursor.ask().attempt))
        return outcome

    def _decide(self, ask: Ask, found: ExchangeOutcome | None, requested_at: float) -> Decision | None:
        """Report a GET; return the cursor's decision, or ``None`` to make the same GET at once."""
        now, rng = self._now(), self._runtime.rng
        if found is None:
            self._monitor.counts["refreshes"] += 1
            self._requests.waits += 1
            self._cursor.refreshed()
            return None
        if isinstance(found, Lost):
            return self._lost(found, requested_at)
        self._monitor.answered()
        outcome = self._cursor.answered(found, now, rng)
        match outcome:
            case Retry(delay_s, error):
                self._monitor.emit(Retrying(error, delay_s, self._cursor.ask().attempt))
            case Jump(seq, _, error):
                # A negative number is the protocol's word for the newest segment.
                wanted = None if ask.seq is None or ask.seq < 0 else ask.seq
                self._monitor.emit(SkippedAhead(wanted, seq, error))
            case Resolved(seq):
                self._on_resolved(seq)
        return outcome
