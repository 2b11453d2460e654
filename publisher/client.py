"""The publisher: an async context manager that turns writes into the numbered segments of a channel.

::

    async with Publisher("http://127.0.0.1:2939/trickle/cam", content_type="video/mp2t") as publisher:
        async with publisher.segment() as segment:
            await segment.write(chunk)
        print(segment.receipt)
        receipt = await publisher.publish(b"a whole segment")
        async with publisher.segment(wait=False) as segment:  # the next one may begin before this one is answered
            await segment.write(chunk)
        print(await segment.settled())

What an answer means is decided in :mod:`tricklecast.publisher.core`; this module only obeys.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from enum import Enum
from random import Random
from types import TracebackType
from typing import Final, Literal, assert_never
from uuid import uuid4

import anyio
import httpx
from anyio.abc import TaskGroup

from tricklecast.publisher.core import Plan, parse_start
from tricklecast.publisher.exchanges import TIMEOUT, USER_AGENT, Exchanges
from tricklecast.publisher.flights import WhenFull
from tricklecast.publisher.post import Options
from tricklecast.publisher.posts import Posts
from tricklecast.publisher.segment import Segment
from tricklecast.publisher.statistics import Statistics
from tricklecast.publisher.verdicts import Advance, Receipt, RetryAfter, Stop
from tricklecast.trickle import wire
from tricklecast.trickle.client.arguments import channel_url, check_headers, check_number
from tricklecast.trickle.client.transport import TrickleTransport as DuplexTransport
from tricklecast.trickle.errors import ConnectionLost, InvalidInput, LocalProtocolError, TrickleError

__all__ = ["Publisher", "Segment"]

CLOSE_S: Final = 5.0
"""Leaving the ``async with`` block takes at most this long, even if it is left because of a cancellation."""

CONFIRM_S: Final = 2.0
"""How much of it the answers to segments that were ended are waited for, before the channel is."""

LINGER_S: Final = 0.5
"""How long the preconnect's answer is waited for after the channel was ended."""

RETAIN_BYTES: Final = 8 << 20
"""More than two seconds of 25 Mbit/s: what is sent again after a lost connection should not take long."""

MAX_IN_FLIGHT: Final = 3

MAX_PRECONNECT: Final = 2
"""The server takes a POST for its head and for the one after it; what lies further ahead is 470."""


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    OVER = "over"


class Publisher:
    """Publishes the segments of one channel, under asyncio or trio.

    The request for the next segment is opened ahead, as soon as the current one has its first byte, so that a
    segment begins without a round trip. All requests run inside the ``async with`` block. Segments may overlap and be
    written by several tasks; they are numbered in the order of their first chunks.

    A request that breaks, or is refused for the moment, is made again, with all of the segment's bytes, while the
    writer goes on. After a lost connection the publisher first asks the server where the channel is:

    - The channel is gone or empty (the server was restarted): it goes on with its own numbers.
    - The head lies between what was confirmed and what was sent here: it goes on where it was.
    - The head lies beyond that, or before it, or the channel is in a later epoch: somebody else publishes there by
      now, and :exc:`~tricklecast.trickle.errors.Superseded` is raised, with ``seq`` (the newest one of this
      publisher) and ``latest`` (the head). So it is when a segment that nobody here has begun turns out to be closed,
      or when another publisher takes one over.
    - The channel has ended: :exc:`~tricklecast.trickle.errors.ChannelEnded`.

    Args:
        url: the channel, ``http[s]://host:port/trickle/CHANNEL``.
        content_type: the media type of the segments.
        start: ``"resume"`` goes on where the channel is (the server is asked; a new channel begins at 0),
            ``"reset"`` does the same and closes what an earlier publisher left open; a number begins there.
        preconnect: how many requests are opened ahead: 0, 1 or 2. More than two the server would not take: it accepts
            a segment only up to one beyond its head. The second one is opened when the server has confirmed a segment.
        max_in_flight: how many segments may have been entered without their fate being known.
        when_full: what happens when there is one more. ``"drop"``: the oldest is given up, its writer is told
            (:exc:`~tricklecast.trickle.errors.SegmentDropped`) and so are its readers; ``"wait"``: entering waits.
        retain_bytes: so many bytes of each segment are kept until it is confirmed, so that it can be sent again. One
            that grows beyond that is lost if its connection breaks.
        idle_rotation_s: when nothing was written for so many seconds, the preconnect is ended as an empty segment and
            the next one opened, so that proxies and subscribers see life (25 is usual); ``None``: never.
        headers: sent with every request, as in ``{"Authorization": "Bearer …"}``. Headers of the connection and of the
            body's framing (``Content-Length``, ``Host`` …) are not allowed.
        auth: any authentication that httpx knows.
        verify: whether and how the server's certificate is checked, as in httpx.
        transport: replaces the transport. It must read the answer while it writes the body, as
            :class:`~tricklecast.trickle.client.transport.TrickleTransport` does and httpx's own does not. Proxies from
            the environment are not used.
        rng: where the jitter of retries comes from.

    Raises:
        InvalidInput: an argument is wrong.

    Attributes:
        url: the channel, taken apart.
    """

    def __init__(
        self,
        url: str,
        *,
        content_type: str = wire.DEFAULT_CONTENT_TYPE,
        start: int | Literal["resume", "reset"] = "resume",
        preconnect: int = 1,
        max_in_flight: int = MAX_IN_FLIGHT,
        when_full: Literal["drop", "wait"] = "drop",
        retain_bytes: int = RETAIN_BYTES,
        idle_rotation_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | tuple[str, str] | Callable[[httpx.Request], httpx.Request] | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        rng: Random | None = None,
    ) -> None:
        self._options = _options(preconnect, max_in_flight, when_full, retain_bytes)
        if idle_rotation_s is not None:
            check_number("idle_rotation_s", idle_rotation_s, above=0)
        check_headers(headers or {})
        self.url = channel_url(url)
        client = uuid4().hex
        self._plan = Plan(parse_start(start), rng=rng or Random(), name=client)
        self._idle_rotation_s = idle_rotation_s
        self._http = httpx.AsyncClient(
            transport=transport or DuplexTransport(verify=verify),
            headers={"User-Agent": USER_AGENT, wire.CLIENT: client, **(headers or {})},
            auth=auth,
            timeout=TIMEOUT,
        )
        self._exchanges = Exchanges(self._http, self.url, content_type)
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup
        self._posts: Posts
        self._state = _State.NEW

    @property
    def error(self) -> TrickleError | None:
        """Why nothing more can be published. A segment may fail without this: then the next may still get through."""
        return self._plan.error

    @property
    def trouble(self) -> TrickleError | None:
        """What the server failed with last, as long as nothing was published since: why segments are dropped."""
        return self._plan.trouble

    async def __aenter__(self) -> Publisher:
        if self._state is not _State.NEW:
            raise LocalProtocolError("a publisher is entered once")
        self._state = _State.OPEN
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._http)
            await self._find_position()
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._stack = stack.pop_all()
        self._posts = Posts(self._plan, self._exchanges, self._tasks, self._options)
        self._posts.open_ahead()
        if self._idle_rotation_s is not None:
            self._tasks.start_soon(self._posts.rotate, self._idle_rotation_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSE_S) as limit:
                await self.close()
            if limit.cancelled_caught:
                raise ConnectionLost(detail=f"no answer to the channel's end within {CLOSE_S:.0f} s")
        except TrickleError as failure:
            if error is None:
                raise
            error.add_note(f"and the channel was not ended: {failure}")
        finally:
            self._tasks.cancel_scope.cancel()
            # The block's own exception is left to the caller: a task group would wrap it into an exception group.
            await self._stack.__aexit__(None, None, None)

    def segment(self, *, wait: bool = True) -> Segment:
        """The next segment, as an async context manager.

        Args:
            wait: leaving its block waits for the receipt. Without, it returns once the segment was handed over, and
                :meth:`Segment.settled` waits for the receipt.
        """
        if self._state is _State.NEW:
            raise LocalProtocolError("the publisher has not been entered")
        return Segment(self._posts, wait=wait)

    def statistics(self) -> Statistics:
        """What was done so far: a snapshot that does not change."""
        return Statistics() if self._state is _State.NEW else self._posts.counters.snapshot(self.error)

    async def publish(self, data: bytes) -> Receipt:
        """Publish a whole segment as one chunk.

        Raises:
            TrickleError: as :meth:`Segment.write`.
        """
        async with self.segment() as segment:
            await segment.write(data)
        return segment.receipt

    async def close(self) -> tuple[int, ...]:
        """End the channel, then close the preconnect. Further calls do nothing.

        Segments that are being written are cut off; those that were ended have :data:`CONFIRM_S` seconds left to be
        confirmed. The channel is left alone if it has ended, belongs to another publisher, or was never reached.

        Returns:
            The seqs of the segments that the server has not confirmed.

        Raises:
            TrickleError: the channel could not be ended.
        """
        if self._state is not _State.OPEN:
            return ()
        self._state = _State.OVER
        try:
            unconfirmed = await self._posts.finish(CONFIRM_S, tell=not self._plan.owns_channel)
            self._posts.stop()
            if self._plan.owns_channel:
                await self._delete()
                await self._posts.close_ahead(LINGER_S)
        finally:
            self._posts.stop()
            self._posts.cut_ahead()
        return unconfirmed

    async def detach(self) -> tuple[int, ...]:
        """Stop publishing without ending the channel, so that another publisher can go on with it.

        Segments are treated as by :meth:`close`, and readers of one that is cut off are told.

        Returns:
            The seqs of the segments that the server has not confirmed.
        """
        if self._state is not _State.OPEN:
            return ()
        self._state = _State.OVER
        try:
            return await self._posts.finish(CONFIRM_S, tell=True)
        finally:
            self._posts.stop()
            self._posts.cut_ahead()

    async def _find_position(self) -> None:
        attempt = 0
        while self._plan.next_seq is None:
            attempt += 1
            await _obey(self._plan.on_next(await self._exchanges.next(attempt)))

    async def _delete(self) -> None:
        attempt, verdict = 0, None
        while not isinstance(verdict, Advance):
            attempt += 1
            verdict = self._plan.on_delete(await self._exchanges.delete(attempt))
            await _obey(verdict)


def _options(preconnect: int, max_in_flight: int, when_full: str, retain_bytes: int) -> Options:
    check_number("preconnect", preconnect, at_least=0, at_most=MAX_PRECONNECT, whole=True)
    check_number("max_in_flight", max_in_flight, at_least=1, whole=True)
    check_number("retain_bytes", retain_bytes, at_least=0, whole=True)
    if when_full not in list(WhenFull):
        raise InvalidInput(f"when_full is 'drop' or 'wait', not {when_full!r}")
    return Options(preconnect, max_in_flight, WhenFull(when_full), retain_bytes)


async def _obey(verdict: Advance | RetryAfter | Stop) -> None:
    match verdict:
        case Advance():
            pass
        case RetryAfter(delay_s):
            await anyio.sleep(delay_s)
        case Stop(error):
            raise error
        case _:
            assert_never(verdict)
