"""Feeds over connections: the owner sends one, the replica follows it, and comes back when the connection breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tricklecast.app.cluster.feed import Feed
from tricklecast.app.cluster.records import FeedError, Kind, Over, Parser
from tricklecast.app.cluster.replica import OutOfMemory, Replica
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.state import Channel
from tricklecast.trickle.errors import TrickleError

logger = logging.getLogger("tricklecast.cluster")

READ_BYTES: Final = 256 << 10
"""Read at a time, and sent at a time."""

STALL_S: Final = 10.0
"""A replica that takes nothing for so long is cut off."""

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
) -> Over:
    """Send the feed of a channel of which this is the owner, until it ends or the replica leaves.

    Args:
        reader, writer: the connection; its first record is the replica's ``HELLO``.
        to_us: turns the registry's time into microseconds since 1970.

    Raises:
        FeedError: what came is no ``HELLO``.
        OSError: the connection broke. TimeoutError: the replica takes nothing.
    """
    hello = await _hello(reader)
    news = asyncio.Event()
    feed = Feed(channel, hello, registry.budget, registry.instance, to_us, news.set)
    gone = asyncio.ensure_future(reader.read(1))
    try:
        while True:
            news.clear()
            while records := feed.pull(READ_BYTES):
                writer.writelines(records)
                async with asyncio.timeout(STALL_S):
                    await writer.drain()
            if feed.over is not None:
                return feed.over
            waiting = asyncio.ensure_future(news.wait())
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if gone.done():
                gone.result()  # raises if the connection broke
                raise ConnectionResetError("the replica has left")
    finally:
        gone.cancel()
        feed.end(Over.SHUTDOWN)


async def _hello(reader: asyncio.StreamReader) -> dict[str, Any]:
    parser = Parser("", float)
    while data := await reader.read(READ_BYTES):
        for found in parser.feed(data):
            if found.kind is not Kind.HELLO:
                raise FeedError(f"a replica begins with HELLO, not with {found.kind.name}")
            return dict(found.about)
    raise FeedError("the connection ended before HELLO")


async def follow(replica: Replica, connect: Connect, *, lost_s: float = LOST_S) -> None:
    """Follow the owner until the channel has ended, or the owner is lost; cancel it to let go.

    Args:
        lost_s: how long the owner may be out of reach.
    """
    loop = asyncio.get_running_loop()
    pause, lost_at = BACKOFF_S[0], loop.time() + lost_s
    try:
        while True:
            snapshots = replica.snapshots
            try:
                async with asyncio.timeout_at(lost_at):
                    reader, writer = await connect()
                try:
                    if await _receive(replica, reader, writer) is Over.ENDED:
                        return
                finally:
                    writer.close()
            except OutOfMemory as error:
                logger.warning("%r is not held any more: %s", replica.name, error)
                replica.end()
            except (OSError, TrickleError, TimeoutError) as error:
                logger.info("the owner of %r is out of reach: %s", replica.name, error)
            if replica.snapshots > snapshots:
                pause, lost_at = BACKOFF_S[0], loop.time() + lost_s
            if loop.time() >= lost_at:
                logger.warning("the owner of %r was out of reach for %.0f s: the channel ends", replica.name, lost_s)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_S[1])
    finally:
        replica.end()


async def _receive(replica: Replica, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Over:
    """Apply one feed; returns why the owner has ended it."""
    writer.write(replica.hello())
    while data := await reader.read(READ_BYTES):
        if (why := replica.receive(data)) is not None:
            return why
    raise ConnectionResetError("the owner has closed the connection")
