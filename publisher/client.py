"""The publisher: an async context manager that turns writes into the numbered segments of a channel.

::

    async with Publisher("http://127.0.0.1:2939/trickle/cam", content_type="video/mp2t") as publisher:
        async with publisher.segment() as segment:
            await segment.write(chunk)
        print(segment.receipt)
        receipt = await publisher.publish(b"a whole segment")

What an answer means is decided in :mod:`publisher.core`; this module only obeys.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from enum import Enum
from random import Random
from types import TracebackType
from typing import Final, Literal, assert_never
from uuid import uuid4

import anyio
import httpx
from anyio.abc import TaskGroup

from publisher.core import Advance, Plan, Receipt, RetryAfter, Stop, parse_start
from publisher.exchanges import TIMEOUT, USER_AGENT, Exchanges
from publisher.posts import Post, Posts
from publisher.transport import DuplexTransport
from trickle import wire
from trickle.errors import ConnectionLost, InvalidInput, LocalProtocolError, TrickleError
from trickle.paths import ChannelURL

CLOSE_S: Final = 5.0
"""Leaving the ``async with`` block takes at most this long, even if it is left because of a cancellation."""


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    OVER = "over"


class Publisher:
    """Publishes the segments of one channel, one after the other.

    The request for the next segment is opened ahead, as soon as the current one has its first byte, so that a
    segment begins without a round trip. All requests run inside the ``async with`` block.

    Args:
        url: the channel, ``http[s]://host:port/trickle/CHANNEL``.
        content_type: the media type of the segments.
        start: ``"resume"`` goes on where the channel is (the server is asked; a new channel begins at 0),
            ``"reset"`` does the same and closes what an earlier publisher left open; a number begins there.
        preconnect: how many requests are opened ahead, 0 or 1.
        headers: sent with every request, for an access token, say.
        auth: any authentication that httpx knows.
        verify: whether and how the server's certificate is checked, as in httpx.
        transport: replaces the transport. It must read the answer while it writes the body, as
            :class:`~publisher.transport.DuplexTransport` does and httpx's own does not. Proxies from the environment
            are not used.
        rng: where the jitter of retries comes from.

    Raises:
        InvalidInput: the URL, ``start`` or ``preconnect`` is wrong.

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
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | tuple[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        rng: Random | None = None,
    ) -> None:
        if preconnect not in (0, 1):
            raise InvalidInput(f"preconnect is 0 or 1, not {preconnect!r}")
        self.url = ChannelURL.parse(url)
        self._plan = Plan(parse_start(start), rng=rng or Random())
        self._preconnect = preconnect
        self._http = httpx.AsyncClient(
            transport=transport or DuplexTransport(verify=verify),
            headers={"User-Agent": USER_AGENT, wire.CLIENT: uuid4().hex, **(headers or {})},
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
        """Why nothing more can be published; ``None`` while that is not so.

        A segment may fail without this being set: then the next one may still get through.
        """
        return self._plan.error

    async def __aenter__(self) -> Publisher:
        if self._state is not _State.NEW:
            raise LocalProtocolError("a publisher is entered once")
        self._state = _State.OPEN
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._http)
            await self._find_position()
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._stack = stack.pop_all()
        self._posts = Posts(self._plan, self._exchanges, self._tasks, self._preconnect)
        self._posts.open_ahead()
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

    def segment(self) -> Segment:
        """The next segment, as an async context manager."""
        if self._state is _State.NEW:
            raise LocalProtocolError("the publisher has not been entered")
        return Segment(self._posts)

    async def publish(self, data: bytes) -> Receipt:
        """Publish a whole segment as one chunk.

        Raises:
            TrickleError: as :meth:`Segment.write`.
        """
        async with self.segment() as segment:
            await segment.write(data)
        return segment.receipt

    async def close(self) -> None:
        """End the channel, then close the preconnect. Further calls do nothing.

        The channel is left alone if it has ended, belongs to another publisher, or was never reached.

        Raises:
            TrickleError: the channel could not be ended.
        """
        if self._state is not _State.OPEN:
            return
        self._state = _State.OVER
        self._posts.stop()
        try:
            if self._plan.owns_channel:
                await self._delete()
                await self._posts.close_ahead()
        finally:
            self._posts.cut_ahead()

    async def detach(self) -> None:
        """Stop publishing without ending the channel, so that another publisher can go on with it."""
        if self._state is _State.OPEN:
            self._state = _State.OVER
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


class Segment:
    """One segment while it is being written; made by :meth:`Publisher.segment`.

    Leaving the block normally ends the segment and waits for its receipt. Leaving it with an exception cuts the
    segment off, so that nobody takes the part for the whole: the server closes it as truncated.
    """

    def __init__(self, posts: Posts) -> None:
        self._posts = posts
        self._post: Post | None = None

    @property
    def seq(self) -> int:
        """Its number in the channel; final once the first chunk was written."""
        return self._entered().ticket.seq

    @property
    def receipt(self) -> Receipt:
        """What became of it.

        Raises:
            TrickleError: it failed.
            LocalProtocolError: it is not over yet (``ClosedHere``: it was cut off here).
        """
        return self._entered().receipt()

    async def __aenter__(self) -> Segment:
        if self._post is not None:
            raise LocalProtocolError("a segment is entered once")
        self._post = self._posts.claim()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        post = self._entered()
        try:
            if error is None:
                await self._posts.end(post)
        finally:
            self._posts.leave(post)

    async def write(self, chunk: bytes) -> None:
        """Write one chunk; returns once it was handed to the connection. Readers get it as it is, in one piece.

        Raises:
            ChannelEnded: the channel has ended.
            ChannelNotFound: there is no such channel, and it may not be created.
            Superseded: another publisher wrote this segment, or closed it.
            SegmentTooLarge: the server keeps only the first part of it.
            Refused: the server said no.
            ConnectionLost: the connection broke while the segment was being written.
            LocalProtocolError: the segment is not open.
        """
        await self._posts.write(self._entered(), bytes(chunk))

    def _entered(self) -> Post:
        if self._post is None:
            raise LocalProtocolError("the segment has not been entered")
        return self._post


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
