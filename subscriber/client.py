"""The subscriber: an async context manager that yields the segments of a channel as they begin.

What to ask for and what an answer means is :mod:`subscriber.core`'s; here is only what takes time: making the GETs,
waiting, and holding the responses. While one segment is being read, the GET for the next one is already out (one, not
more: its answer waits in its socket, so a slow user is a slow reader, not a growing buffer).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Final, Self, assert_never

import anyio
import httpx
from anyio.abc import TaskGroup

from subscriber.core import REFRESH_S, Cursor, start_seq
from subscriber.getter import Getter, Got
from subscriber.segment import OnBroken, Segment
from subscriber.statistics import Counters, Statistics
from subscriber.transport import TrailerTransport
from subscriber.verdicts import Advance, End, OnLag, Resync, RetryAfter, Stop, Verdict
from trickle.errors import ClosedHere, ConnectionLost, InvalidURL, LocalProtocolError, RemoteProtocolError
from trickle.paths import ChannelURL


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time and chance, so that tests can give their own.

    Attributes:
        rng: where jitter comes from.
        now: seconds on a monotonic clock.
        sleep: waits for so many seconds.
    """

    rng: Random = field(default_factory=Random)
    now: Callable[[], float] = anyio.current_time
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


class _Preconnect:
    """A GET under way: what will come of it, and when that is known."""

    __slots__ = ("_known", "_outcome", "response")

    def __init__(self) -> None:
        self._known = anyio.Event()
        self._outcome: Advance | End | Stop | None = None
        self.response: httpx.Response | None = None

    async def settled(self) -> Advance | End | Stop:
        await self._known.wait()
        assert self._outcome is not None
        return self._outcome

    def settle(self, outcome: Advance | End | Stop, response: httpx.Response | None) -> None:
        self._outcome, self.response = outcome, response
        self._known.set()


class Subscriber:
    """Reads a channel, segment by segment.

    ::

        async with Subscriber("http://host:2939/trickle/camera", start="current") as subscriber:
            async for segment in subscriber:
                async for chunk in segment:
                    ...

    The loop ends when the channel does. Everything else that ends it raises a type of ``trickle.errors``.

    Args:
        url: the channel's URL.
        start: ``"next"`` (the next segment to begin), ``"current"`` (the newest one that has), N, or -N for the N-th
            from the head.
        on_lag: where to go on when the wanted segment has left the window: ``"live"``, ``"earliest"`` or ``"fail"``.
        on_broken: whether iterating over a segment whose connection is cut ends (``"skip"``; the segment's ``broken``
            is set) or raises ``ConnectionLost`` (``"raise"``). Either way the next segment can be read.
        wait_for_channel_s: how long to wait for a channel or a server that is not there yet, in seconds.
        refresh_s: how long a GET waits before it is asked again (and up to 20 % more), in seconds; keep it below the
            idle timeout of what stands between here and the server.
        stall_timeout_s: longest silence within a segment, in seconds, before it counts as broken; ``None``: none. A
            peer that vanished is noticed without it, by TCP keep-alive.
        transport: an httpx transport instead of the own one; most cannot show trailers, so that a truncation in the
            middle of a segment stays unseen.
        client: an ``httpx.AsyncClient`` to use (for auth, proxies, headers); it is not closed here. Give it a
            :class:`TrailerTransport` to see truncations.
        runtime: clock, sleep and randomness.

    Raises:
        InvalidURL, InvalidChannelName, InvalidSeq, ValueError: an argument cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        start: int | str = "next",
        on_lag: OnLag | str = OnLag.LIVE,
        on_broken: OnBroken = "skip",
        wait_for_channel_s: float = 0.0,
        refresh_s: float = REFRESH_S,
        stall_timeout_s: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        client: httpx.AsyncClient | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.url: Final = ChannelURL.parse(url)
        try:
            httpx.URL(str(self.url))
        except httpx.InvalidURL as error:
            raise InvalidURL(url, str(error)) from None
        self._runtime = runtime or Runtime()
        self._cursor = Cursor(
            start_seq(start), on_lag=OnLag(on_lag), wait_for_channel_s=wait_for_channel_s, refresh_s=refresh_s
        )
        self._on_broken: OnBroken = on_broken
        self._stall_s = stall_timeout_s
        self._transport = transport
        self._shared_client = client
        self._client: httpx.AsyncClient | None = None
        self._getter: Getter | None = None
        self._tasks: TaskGroup | None = None
        self._guard = anyio.ResourceGuard("iterating over")
        self._segment: Segment | None = None
        self._next: _Preconnect | None = None
        self._stop: Stop | None = None
        self._over = False
        self._counters = Counters()

    def statistics(self) -> Statistics:
        """What has happened so far."""
        return self._counters.snapshot()

    async def __aenter__(self) -> Self:
        if self._tasks is not None or self._over:
            raise LocalProtocolError("a subscriber is entered once")
        self._client = self._shared_client or httpx.AsyncClient(transport=self._transport or TrailerTransport())
        self._getter = Getter(self.url, self._client)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        self._over = True
        tasks.cancel_scope.cancel()
        try:
            # The error of the with-block is not given to the group: it would come back wrapped in an ExceptionGroup.
            await tasks.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self._release()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Segment:
        """The next segment; the one before is left if it was not read to its end.

        Raises:
            ChannelNotFound: there is no such channel.
            SegmentMissing: the wanted segment is not to be had, and ``on_lag`` or the retry budget forbids to go on.
            Refused: the server says no.
            ConnectionLost: no connection, and no retry left.
            RemoteProtocolError: what is at that URL does not speak the protocol.
            ClosedHere: the subscriber has not been entered, or was left.
        """
        with self._guard:
            return await self._advance()

    async def _advance(self) -> Segment:
        if self._tasks is None:
            raise ClosedHere("use 'async with' around a subscriber")
        if self._segment is not None:
            await self._segment.aclose()
        if self._over:
            raise StopAsyncIteration
        if self._stop is not None:
            self._over = True
            raise self._stop.error
        if self._next is None:
            self._preconnect(0.0)
        pending = self._next
        assert pending is not None
        outcome = await pending.settled()
        self._next = None
        match outcome:
            case Advance() as begun:
                return self._begin(begun, pending.response)
            case End(gap):
                self._counters.missed(gap)
                self._over = True
                raise StopAsyncIteration
            case Stop(error):
                self._over = True
                raise error
        assert_never(outcome)

    def _begin(self, begun: Advance, response: httpx.Response | None) -> Segment:
        assert response is not None
        self._counters.begun(begun)
        self._segment = Segment(
            begun,
            response,
            self._counters.received,
            self._ended,
            stall_timeout_s=self._stall_s,
            on_broken=self._on_broken,
        )
        self._preconnect(begun.delay_s)
        return self._segment

    def _ended(self, segment: Segment) -> None:
        self._counters.ended(truncated=segment.truncated is not None, broken=segment.broken is not None)
        if segment.broken is None:
            self._cursor.finished()
        elif self._stop is None:
            self._stop = self._cursor.broken(segment.broken)

    def _preconnect(self, delay_s: float) -> None:
        assert self._tasks is not None
        self._next = _Preconnect()
        self._tasks.start_soon(self._fetch, self._next, delay_s)

    async def _fetch(self, pending: _Preconnect, delay_s: float) -> None:
        """Ask until there is a segment, an end or an error."""
        assert self._getter is not None
        while True:
            if delay_s > 0:
                await self._runtime.sleep(delay_s)
            self._counters.requested()
            got = await self._getter.get(self._cursor.ask(), self._cursor.refresh_after(self._runtime.rng))
            response = got.response if isinstance(got, Got) else None
            verdict = self._judge(got)
            if isinstance(verdict, End | Stop):
                if response is not None:
                    await response.aclose()
                pending.settle(verdict, None)
                return
            if isinstance(verdict, Advance):
                # No await between the verdict and this: whoever closes the subscriber finds the response.
                pending.settle(verdict, response)
                return
            delay_s = 0.0 if verdict is None else verdict.delay_s

    def _judge(self, got: Got | ConnectionLost | RemoteProtocolError | None) -> Verdict | None:
        """What the cursor says to what came of its GET, counted; ``None`` for the same GET at once."""
        now, rng = self._runtime.now(), self._runtime.rng
        match got:
            case None:
                self._counters.refreshed()
                self._cursor.refreshed()
                return None
            case Got(answer):
                verdict = self._cursor.answered(answer, now, rng)
            case error:
                verdict = self._cursor.lost(error, now, rng)
        if isinstance(verdict, RetryAfter | Resync):
            self._counters.retried(verdict.error)
        return verdict

    async def _release(self) -> None:
        pending, self._next = self._next, None
        if self._segment is not None:
            await self._segment.aclose()
        if pending is not None and pending.response is not None:
            await pending.response.aclose()
        if self._client is not None and self._client is not self._shared_client:
            await self._client.aclose()
