"""Feeds over connections: the owner sends one, the replica follows it, and comes back when the connection breaks.

No step waits for ever. The owner waits for ``HELLO``, and for a replica that takes nothing, :data:`STALL_S`; a replica
waits for bytes :data:`SILENCE_S`, since the owner sends a beat each :data:`BEAT_S` in which it has no news. An owner
that sends no feed, or a wrong one, is as good as out of reach: the replica comes back more and more seldom, and gives
the channel up after :data:`LOST_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from tricklecast.app.core.registry import Registry
from tricklecast.app.core.state import Channel
from tricklecast.app.replication.feed import Feed
from tricklecast.app.replication.records import Beat, End, FeedEnd, FeedError, Hello, OtherVersion, Parser, record
from tricklecast.app.replication.replica import OutOfMemory, Replica
from tricklecast.trickle.errors import TrickleError

logger = logging.getLogger("tricklecast.cluster")

TURN_BYTES: Final = 64 << 10
"""Read, and sent, in one turn of the event loop: other connections wait about 1 ms for chunks of a usual size, and
20 ms if each has one byte."""

STALL_S: Final = 10.0
"""A replica that has not said ``HELLO``, or takes less than :data:`TURN_BYTES`, for so long is cut off."""

BEAT_S: Final = 5.0
"""Without news the owner sends a beat this often."""

SILENCE_S: Final = 15.0
"""An owner that sends nothing for so long is out of reach."""

BACKOFF_S: Final = (0.05, 2.0)
"""First and longest pause between two attempts to reach the owner."""

LOST_S: Final = 30.0
"""How long a replica waits for an owner that cannot be reached: readers wait no longer for what may never come."""

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Reaches the owner.

Raises:
    OSError: it cannot be reached.
    TrickleError: it has no such channel.
"""


async def send_feed(
    channel: Channel,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    registry: Registry,
    to_us: Callable[[float], int],
    begun: Callable[[Feed], None] | None = None,
    count: Callable[[int], None] | None = None,
) -> FeedEnd:
    """Send the feed of a channel of which this is the owner until it ends or the replica leaves; close the connection.

    Args:
        reader, writer: the connection; its only record is the replica's ``HELLO``.
        to_us: turns the registry's time into microseconds since 1970.
        begun: gets the feed, which may be ended from outside. count: told of the bytes of each write.

    Raises:
        FeedError: the replica sent something else.
        OSError: the connection broke. TimeoutError: the replica says or takes nothing.
    """
    try:
        try:
            async with asyncio.timeout(STALL_S):
                hello = await _hello(reader)
        except OtherVersion as error:
            logger.warning("a replica of %r is refused: %s", channel.name, error)
            over = FeedEnd.VERSION
            put(writer, [record(End(over))])
        else:
            over = await _send(channel, hello, reader, writer, registry, to_us, begun, count)
        writer.close()
        with suppress(OSError):  # the replica has all that it needs, and may have closed the connection, too
            async with asyncio.timeout(STALL_S):
                await writer.wait_closed()
        return over
    finally:
        writer.transport.abort()


async def _hello(reader: asyncio.StreamReader) -> Hello:
    parser = Parser("", float)
    while data := await reader.read(TURN_BYTES):
        for message in (messages := list(parser.feed(data))):
            if not isinstance(message, Hello) or len(messages) > 1:
                raise FeedError(f"a replica sends HELLO and nothing else, not {type(message).__name__}")
            return message
    raise FeedError("the connection ended before HELLO")


async def _send(
    channel: Channel,
    hello: Hello,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    registry: Registry,
    to_us: Callable[[float], int],
    begun: Callable[[Feed], None] | None,
    count: Callable[[int], None] | None,
) -> FeedEnd:
    news = asyncio.Event()
    feed = Feed(channel, hello, registry.budget, registry.instance, to_us, news.set)
    if begun is not None:
        begun(feed)
    left = asyncio.ensure_future(reader.read(1))
    left.add_done_callback(lambda _: news.set())
    try:
        while True:
            news.clear()
            while records := feed.pull(TURN_BYTES):
                await _write(writer, records)
                if count is not None:
                    count(sum(map(len, records)))
            if feed.over is not None:
                return feed.over
            if left.done():
                if left.result():
                    raise FeedError("a replica sends nothing after HELLO")
                raise ConnectionResetError("the replica has left")
            try:
                async with asyncio.timeout(BEAT_S):
                    await news.wait()
            except TimeoutError:
                await _write(writer, [record(Beat())])
    finally:
        feed.end(FeedEnd.SHUTDOWN)
        if not left.cancel() and not left.cancelled():
            left.exception()  # or the event loop would complain that nobody asked


def put(writer: asyncio.StreamWriter, parts: Sequence[bytes | memoryview]) -> None:
    """Give these bytes to a connection.

    Raises:
        ConnectionResetError: it is closed, where uvloop would raise a RuntimeError.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection is closed")
    writer.writelines(parts)


async def _write(writer: asyncio.StreamWriter, records: Sequence[bytes | memoryview]) -> None:
    put(writer, records)
    async with asyncio.timeout(STALL_S):
        await writer.drain()
    await asyncio.sleep(0)  # a drain gives others no turn as long as the socket takes all


async def follow(replica: Replica, connect: Connect, *, lost_s: float = LOST_S) -> None:
    """Follow the owner until the channel has ended, or the owner is lost; cancel it to let go.

    Args:
        lost_s: how long the owner may be out of reach.
    """
    loop = asyncio.get_running_loop()
    pause, lost_at = BACKOFF_S[0], loop.time() + lost_s
    try:
        while True:
            began, over, live, faulty = loop.time(), None, False, False
            why = "its feeds end"
            try:
                async with asyncio.timeout_at(lost_at):
                    reader, writer = await connect()
                try:
                    over = await _receive(replica, reader, writer)
                finally:
                    live = replica.live
                    writer.transport.abort()
            except (OutOfMemory, FeedError) as error:
                logger.warning("%r is not held any more: %s", replica.name, error)
                faulty = True
                replica.end()
            except (OSError, TrickleError) as error:
                why = str(error) or type(error).__name__
                logger.info("the owner of %r is out of reach: %s", replica.name, why)
            if over is FeedEnd.ENDED:
                return
            if over is FeedEnd.LAG:
                logger.warning("%r was too far behind its owner, and begins again with all that is there", replica.name)
            now = loop.time()
            if live and not faulty:
                pause = BACKOFF_S[0]
            if over is not None or (live and (not faulty or now - began >= lost_s)):
                lost_at = now + lost_s
            if now + pause >= lost_at:  # there is no time for another attempt
                logger.warning(
                    "the owner of %r was out of reach for %.0f s (%s): the channel is not held here any more",
                    replica.name, lost_s, why,
                )  # fmt: skip
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_S[1])
    finally:
        replica.end()


async def _receive(replica: Replica, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> FeedEnd:
    """Apply one feed; returns why the owner has ended it."""
    put(writer, [replica.hello()])
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                data = await reader.read(TURN_BYTES)
        except TimeoutError:
            raise ConnectionAbortedError(f"it has sent nothing for {SILENCE_S:.0f} s") from None
        if not data:
            raise ConnectionResetError("it has closed the connection")
        if (why := replica.receive(data)) is not None:
            return why
