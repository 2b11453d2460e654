"""Whatever a server answers, and wherever its bodies break: the whole client keeps to the bound, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from random import Random
from selectors import DefaultSelector
from typing import Any, TypeVar

import anyio.lowlevel
import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.subscriber.fake import timed
from tests.subscriber.test_core_properties import starts
from tricklecast.subscriber import OnLag, Subscriber
from tricklecast.subscriber.core import AnyStart
from tricklecast.subscriber.segment import Runtime
from tricklecast.trickle import wire
from tricklecast.trickle.client.retry import MIN_DELAY_S
from tricklecast.trickle.errors import TrickleError

T = TypeVar("T")

bodies = st.lists(st.binary(min_size=1, max_size=4), max_size=3)


@dataclass(frozen=True)
class Reply:
    """One answer: relative to what was asked for, or arbitrary."""

    status: int = 200
    chunks: tuple[bytes, ...] = ()
    cut: bool = False
    epoch: int | None = 1
    ahead: int = 0
    kept: int | None = None
    extra: tuple[tuple[str, str], ...] = ()


usual = st.sampled_from([200] * 8 + [470] * 3 + [404, 429, 503, 500, 403, 301])
replies = st.builds(
    Reply,
    # Most answers of a server that is at fault now and then are right: else no client gets beyond the first.
    status=st.one_of(*[usual] * 9, st.integers(200, 999)),
    chunks=bodies.map(tuple),
    cut=st.sampled_from([False, False, True]),
    epoch=st.sampled_from([None, 1, 1, 1, 2]),
    ahead=st.integers(-3, 9),
    kept=st.none() | st.integers(0, 4),
    extra=st.dictionaries(
        st.sampled_from([wire.CLOSED, wire.RETRY_AFTER, wire.TRUNCATED, wire.SIZE, wire.SEQ, wire.LATEST]),
        st.sampled_from(["0", "1", "x", "", "terminated", "400"]),
        max_size=1,
    ).map(lambda found: tuple(found.items())),
)
script = st.lists(
    st.one_of(replies, replies, replies, replies, st.sampled_from(["lost", "silent"])), min_size=1, max_size=40
)


class Clock(DefaultSelector):
    """A clock that jumps to the next timer as soon as every task waits, so that waits cost no real time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Pass the time instead of waiting for sockets: there are none."""
        assert timeout is not None, "every task waits, and no timer will wake one"
        self.now += timeout
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop that goes by a :class:`Clock`."""

    def __init__(self) -> None:
        self._clock = Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._clock.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine by that clock."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)


@dataclass
class Body(httpx.AsyncByteStream):
    """Chunks, and then an end or a cut."""

    chunks: tuple[bytes, ...]
    cut: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            await anyio.lowlevel.checkpoint()
            yield chunk
        if self.cut:
            raise httpx.ReadError("cut")


MOST_REQUESTS = 1000
"""A client that asks more often than this, for at most 40 answers of a script, does not end."""


@dataclass
class World:
    """A server that follows a script and then ends its channel."""

    script: list[Reply | str]
    asked: list[tuple[str, float]] = field(default_factory=list)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """The next answer of the script."""
        tail = request.url.path.rpartition("/")[2]
        assert len(self.asked) < MOST_REQUESTS
        self.asked.append((tail, anyio.current_time()))
        await anyio.lowlevel.checkpoint()
        reply = self.script.pop(0) if self.script else Reply(extra=((wire.CLOSED, wire.TERMINATED),))
        if reply == "lost":
            raise httpx.ReadError("lost", request=request)
        if isinstance(reply, str):
            await anyio.sleep_forever()
            raise AssertionError
        return _response(reply, 3 if tail in ("next", "-2", "-1") else int(tail))


def _response(reply: Reply, seq: int) -> httpx.Response:
    head = max(0, seq + reply.ahead)
    headers = {wire.SEQ: str(seq), wire.LATEST: str(head)}
    if reply.epoch is not None:
        headers[wire.EPOCH] = str(reply.epoch)
    if reply.kept is not None:
        headers[wire.EARLIEST] = str(max(0, head - reply.kept))
    headers |= dict(reply.extra)
    if not reply.chunks and not reply.cut:
        return httpx.Response(reply.status, headers=headers | {"Content-Length": "0"}, stream=Body((), False))
    return httpx.Response(reply.status, headers=headers, stream=Body(reply.chunks, reply.cut))


async def _consume(world: World, start: AnyStart, on_lag: OnLag, seed: int, seeks: list[AnyStart]) -> Subscriber:
    """Read to the end, over errors while there are seeks left."""
    runtime = Runtime(rng=Random(seed))
    transport = httpx.MockTransport(world.answer)
    options: dict[str, Any] = {"start": start, "on_lag": on_lag, "transport": transport}
    async with timed(runtime, Subscriber, "http://host/trickle/cam", **options) as subscriber:
        while True:
            try:
                async for segment in subscriber:
                    async for _ in segment:
                        pass
                    if seeks and segment.seq % 2:
                        await subscriber.seek(seeks.pop(), leave=True)
            except TrickleError as error:
                assert error.resume is None or error.resume.seq >= 0  # noqa: PT017 - it is about every error
            if not seeks:
                return subscriber
            await subscriber.seek(seeks.pop())


@settings(max_examples=100)
@given(script, starts, st.sampled_from(OnLag), st.integers(0, 99), st.lists(starts, max_size=3))
def test_the_client_keeps_to_the_bound(
    answers: list[Reply | str], start: AnyStart, on_lag: OnLag, seed: int, seeks: list[AnyStart]
) -> None:
    """Requests ≤ segments + retries + refreshes + 2 per beginning; none is repeated at once; all of it ends."""
    world = World(answers)
    now = run(_consume(world, start, on_lag, seed, seeks)).statistics()
    assert now.requests >= len(world.asked)
    assert now.requests <= now.segments + now.retries + now.refreshes + 2 * (1 + now.seeks)
    repeated = [
        later - earlier
        for (before, earlier), (after, later) in zip(world.asked, world.asked[1:], strict=False)
        if before == after and later - earlier < MIN_DELAY_S - 1e-9
    ]
    assert len(repeated) <= now.seeks  # where to seek, and when, is the user's decision


def test_a_script_is_followed_to_its_end() -> None:
    """The property above is not vacuous: a channel of two segments, one of them cut, is read to its end."""
    world = World([Reply(chunks=(b"a",)), Reply(chunks=(b"b",), cut=True), Reply(), Reply(chunks=(b"b", b"c"))])
    now = run(_consume(world, 0, OnLag.LIVE, 1, [])).statistics()
    assert world.script == []
    assert now.segments >= 2
    assert now.resumed + now.broken == 1
