"""The subscriber: yields the segments of a channel as they begin.

What to ask for and what an answer means is :mod:`tricklecast.subscriber.core`'s; here is only what takes time: making
the GETs, waiting, and holding the responses. While one segment is being read, the GET for the next one is already out
(one, not
more: its answer waits in its socket, so a slow user is a slow reader, not a growing buffer).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, assert_never, get_args

import anyio
import httpx

from tricklecast.subscriber.again import Again
from tricklecast.subscriber.core import Cursor
from tricklecast.subscriber.getter import Getter
from tricklecast.subscriber.patience import REFRESH_S
from tricklecast.subscriber.preconnect import Fetcher, Outcome, Preconnect
from tricklecast.subscriber.runtime import Runtime
from tricklecast.subscriber.segment import OnBroken, Segment
from tricklecast.subscriber.single_use import SingleUse
from tricklecast.subscriber.start import AnyStart, Start
from tricklecast.subscriber.statistics import Counters, Statistics
from tricklecast.subscriber.transport import TrailerTransport
from tricklecast.subscriber.verdicts import Advance, End, OnLag, Stop
from tricklecast.trickle.client.arguments import channel_url, check_headers, check_number
from tricklecast.trickle.errors import InvalidInput, Position, TrickleError


class Subscriber(SingleUse[Segment]):
    """Reads a channel, segment by segment, under asyncio or trio.

    ::

        async for segment in Subscriber("http://host:2939/trickle/camera", start="current"):
            async for chunk in segment:
                ...

    The loop ends when the channel does. Everything else that ends it raises a type of ``trickle.errors``, whose
    ``resume`` is the ``start`` with which another subscriber goes on without loss. A loop that is left early, by
    ``break``, an exception or a cancellation, closes its connections a moment later; with ``async with Subscriber(…)
    as subscriber:`` around it they are closed where the block ends, and the loop can be left and taken up again. Under
    trio, use the block: trio warns of an async generator that is dropped.

    No segment is missed in silence: those before a segment are its ``gap``, those before the end :attr:`missed_at_end`.
    It makes at most *segments + reconnects + waited / 20 s + 2 · (1 + seeks)* requests, and pays for reconnects out of
    a budget.

    Args:
        url: the channel's URL.
        start: ``"next"`` (the next segment to begin), ``"current"`` (the newest one that has), ``"earliest"`` (the
            oldest one that is kept), N, -N for the N-th from the head, or a :class:`Position` (or its text,
            ``128@3:9f86d081884c7d65``), which also tells whether the channel still has the life that it was taken in:
            if not, the first segment is ``restarted``, and ``on_lag`` says which one that is.
        on_lag: where to go on when the wanted segment has left the window: ``"live"``, ``"earliest"`` or ``"fail"``.
        on_broken: whether iterating over a segment whose connection is cut ends (``"skip"``; the segment's ``broken``
            is set) or raises ``ConnectionLost`` (``"raise"``). Either way the next segment can be read.
        wait_for_channel_s: how long to wait for a channel or a server that is not there yet, in seconds.
        refresh_s: how long a GET waits before it is asked again (and up to 20 % more), in seconds; keep it below the
            idle timeout of what stands between here and the server.
        stall_timeout_s: longest silence within a segment, in seconds, before it counts as cut; ``None``: none. A
            peer that vanished is noticed without it, by TCP keep-alive.
        transport: an httpx transport instead of the own one; most cannot show trailers, so that a truncation in the
            middle of a segment stays unseen.
        auth: any authentication that httpx knows; not together with ``client``.
        client: an ``httpx.AsyncClient`` to use (for auth, proxies, headers); it is not closed here. Give it a
            :class:`TrailerTransport` to see truncations. Its headers may not be those of the connection or of a body's
            framing (``Content-Length``, ``Host`` …).
        runtime: clock, sleep and randomness.

    Raises:
        InvalidInput: an argument is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        start: AnyStart = "next",
        on_lag: OnLag | str = OnLag.LIVE,
        on_broken: OnBroken = "skip",
        wait_for_channel_s: float = 0.0,
        refresh_s: float = REFRESH_S,
        stall_timeout_s: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        auth: httpx.Auth | tuple[str, str] | Callable[[httpx.Request], httpx.Request] | None = None,
        client: httpx.AsyncClient | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.url: Final = channel_url(url)
        check_number("wait_for_channel_s", wait_for_channel_s, at_least=0)
        check_number("refresh_s", refresh_s, above=0)
        if stall_timeout_s is not None:
            check_number("stall_timeout_s", stall_timeout_s, above=0)
        if on_lag not in list(OnLag):
            raise InvalidInput(f"on_lag is 'live', 'earliest' or 'fail', not {on_lag!r}")
        if on_broken not in get_args(OnBroken):
            raise InvalidInput(f"on_broken is 'skip' or 'raise', not {on_broken!r}")
        if client is not None:
            check_headers(client.headers)
        super().__init__()
        self._runtime = runtime or Runtime()
        begin = Start.parse(start)
        self._cursor = Cursor(begin, on_lag=OnLag(on_lag), wait_for_channel_s=wait_for_channel_s, refresh_s=refresh_s)
        self._on_broken: OnBroken = on_broken
        self._stall_s = stall_timeout_s
        self._transport = transport
        self._auth = auth
        self._shared_client = client
        self._client: httpx.AsyncClient | None = None
        self._fetcher: Fetcher | None = None
        self._again: Again | None = None
        self._guard = anyio.ResourceGuard("iterating over")
        self._segment: Segment | None = None
        self._next: Preconnect | None = None
        self._hold_s = 0.0
        self._position = begin.place
        self._stop: Stop | None = None
        self._over = False
        self._failed = False
        self._missed_at_end = 0
        self._counters = Counters()

    def statistics(self) -> Statistics:
        """What has happened so far."""
        return self._counters.snapshot()

    @property
    def position(self) -> Position | None:
        """The next segment to be handed out; ``None`` as long as that depends on the server's head.

        A segment that is being read counts as handed out; its own :attr:`Segment.position` reads it again.
        """
        return self._position

    @property
    def missed_at_end(self) -> int:
        """Segments that were missed between the last one handed out and the end of the channel."""
        return self._missed_at_end

    async def _open(self) -> None:
        self._client = self._shared_client or httpx.AsyncClient(
            transport=self._transport or TrailerTransport(), auth=self._auth
        )
        getter = Getter(self.url, self._client)
        self._fetcher = Fetcher(self._cursor, getter, self._counters, self._runtime, self._resolved)
        self._again = Again(self._cursor, getter, self._counters, self._runtime)

    async def _close(self) -> None:
        self._over = True
        with anyio.CancelScope(shield=True):
            await self._release()

    async def __anext__(self) -> Segment:
        """The next segment; the one before is left if it was not read to its end.

        Raises:
            ChannelNotFound: there is no such channel.
            SegmentMissing: the wanted segment is not to be had, and ``on_lag`` or the retry budget forbids to go on.
            Refused: the server says no.
            ConnectionLost: no connection, and no retry left.
            RemoteProtocolError: what is at that URL does not speak the protocol.
            ClosedHere: the subscriber is not in use, or was closed in the meantime.
        """
        with self._guard:
            return await self._advance()

    async def _advance(self) -> Segment:
        self._demand_open()
        if self._segment is not None:
            await self._segment.aclose()
        if self._over:
            raise StopAsyncIteration
        if self._stop is not None:
            raise self._fail(self._stop.error)
        pending = await self._settled()
        match outcome := self._outcome_of(pending):
            case Advance() as begun:
                return self._begun(begun, pending)
            case End(gap):
                self._counters.missed(gap)
                self._missed_at_end, self._over = gap, True
                raise StopAsyncIteration
            case Stop(error):
                raise self._fail(error)
        assert_never(outcome)

    async def _settled(self) -> Preconnect:
        """Wait for what comes next; a seek in the meantime begins the wait anew."""
        while True:
            pending = self._next
            if pending is None:
                pending = self._preconnect(self._hold_s)
            await pending.settled()
            if pending.abandoned:
                await pending.abandon()  # until it is: one at a time
            self._demand_open()
            self._next = None
            if not pending.abandoned:
                return pending

    def _outcome_of(self, pending: Preconnect) -> Outcome:
        try:
            return pending.outcome
        except TrickleError as error:
            raise self._fail(error) from None
        except Exception:
            # Nothing that this package knows of, so that asking again would be a blind guess.
            self._over = self._failed = True
            raise

    def _fail(self, error: TrickleError) -> TrickleError:
        self._over = self._failed = True
        error.resume = error.resume or self._position
        return error

    def _begun(self, begun: Advance, pending: Preconnect) -> Segment:
        assert pending.opened is not None
        assert self._again is not None
        self._counters.begun(begun)
        self._position = Position(begun.seq + 1, begun.epoch, begun.life)
        self._segment = Segment(
            begun,
            pending.opened,
            self._again,
            self._counters.received,
            self._ended,
            stall_timeout_s=self._stall_s,
            on_broken=self._on_broken,
        )
        self._preconnect(begun.delay_s)
        return self._segment

    async def seek(self, start: AnyStart, *, leave: bool = False) -> None:
        """Read on elsewhere: the next segment to be handed out is the one that ``start`` names.

        May be called at any time, also by another task while one waits for a segment, and also after the end or an
        error: inside ``async with``, the iteration can then be taken up again. A seek makes no gap; segments missed
        behind its target do.

        Args:
            start: where to, like ``start`` of the subscriber.
            leave: whether the segment that is being read ends here; otherwise it can be read to its end.

        Raises:
            InvalidSeq: ``start`` cannot be used.
            ClosedHere: the subscriber is not in use.
        """
        target = Start.parse(start)
        self._demand_open()
        self._hold_s = self._cursor.seek(target, self._runtime.rng, failed=self._failed)
        self._position = target.place
        self._stop, self._over, self._failed, self._missed_at_end = None, False, False, 0
        self._counters.sought()
        with anyio.CancelScope(shield=True):
            if self._next is not None:
                await self._next.abandon()
            if leave and self._segment is not None:
                await self._segment.stop()

    def _ended(self, segment: Segment) -> None:
        self._counters.ended(truncated=segment.truncated is not None, broken=segment.broken is not None)
        if segment.broken is None:
            self._cursor.finished()
        elif self._stop is None:
            self._stop = self._cursor.broken(segment.broken)

    def _preconnect(self, delay_s: float) -> Preconnect:
        fetcher = self._fetcher
        assert fetcher is not None
        self._hold_s = 0.0
        self._next = Preconnect(lambda pending: fetcher.run(pending, delay_s))
        return self._next

    def _resolved(self, seq: int) -> None:
        self._position = self._position or Position(seq)

    async def _release(self) -> None:
        pending, self._next = self._next, None
        # asyncio's own cancel reaches into shields: what comes after the step that it meets is done all the same.
        async with AsyncExitStack() as stack:
            if self._client is not None and self._client is not self._shared_client:
                stack.push_async_callback(self._client.aclose)
            if pending is not None:
                stack.push_async_callback(pending.abandon)
            if self._segment is not None:
                stack.push_async_callback(self._segment.aclose)
