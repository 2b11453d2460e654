"""The feed over connections that break: what readers at a replica see."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest

from tests.app.core.support import Watcher, content, grant, publish
from tricklecast.app.cluster import feed as feeds
from tricklecast.app.cluster.records import MAX_CHUNK, VERSION, FeedError, Kind, Over, Parser, record
from tricklecast.app.cluster.replica import OutOfMemory, Replica
from tricklecast.app.cluster.transport import follow, send_feed
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Refusal, Why
from tricklecast.app.core.segment import State
from tricklecast.app.core.state import Channel, Serve, Wait
from tricklecast.trickle.errors import TrickleError


class NoSuchChannel(TrickleError):
    """The owner has no such channel."""


class Site:
    """An owner and a holder of its channel ``c``, and the connections between them.

    Attributes:
        reachable: whether the holder finds the owner. feeds: the tasks that send.
    """

    def __init__(self, **limits: Any) -> None:
        self.owner = Registry(Limits(), autocreate=True, instance="first")
        self.holder = Registry(Limits(**limits), autocreate=True)
        self.reachable = True
        self.feeds: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.replica = Replica("c", self.holder, lambda: 7.0, lambda at_us: at_us / 1e6)
        self.following: asyncio.Task[None] | None = None

    def start(self, lost_s: float = 60.0) -> None:
        """Begin to follow."""
        self.following = asyncio.get_running_loop().create_task(follow(self.replica, self._connect, lost_s=lost_s))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self.reachable:
            raise ConnectionRefusedError
        channel = self.owner.channels.get("c")
        if channel is None:
            raise NoSuchChannel
        here, there = socket.socketpair()
        self.feeds.append(asyncio.get_running_loop().create_task(self._send(channel, there)))
        reader, writer = await asyncio.open_connection(sock=here)
        self._writers.append(writer)
        return reader, writer

    async def _send(self, channel: Channel, there: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=there)
        with suppress(OSError):
            try:
                await send_feed(channel, reader, writer, self.owner, lambda at: round(at * 1e6))
            finally:
                writer.close()

    def cut(self) -> None:
        """The connection breaks."""
        self._writers[-1].transport.abort()

    async def until(self, holds: Callable[[], object]) -> None:
        """Let the two go on until something is so."""
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 -- nothing tells of all that is waited for
                await asyncio.sleep(0.001)

    async def same(self) -> Channel:
        """Wait until the holder has all that the owner has."""
        owner = self.owner.channels["c"]
        await self.until(
            lambda: (
                (held := self.replica.channel) is not None
                and (held.epoch, held.facts, held.bytes_in) == (owner.epoch, owner.facts, owner.bytes_in)
            )
        )
        assert self.replica.channel is not None
        return self.replica.channel

    def wait(self, seq: int) -> Watcher:
        """A reader at the holder."""
        found = self.holder.resolve("c", seq)
        assert isinstance(found, Serve | Wait), found
        watcher = Watcher(found.segment)
        self.holder.attach(watcher, found.channel, found.segment)
        return watcher


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in an event loop, and end what it has left."""

    @wraps(test)
    def run() -> None:
        async def main() -> None:
            before = asyncio.all_tasks()
            await test()
            left = asyncio.all_tasks() - before
            for task in left:
                task.cancel()
            await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 30)
            for _ in range(5):  # closed transports call back later
                await asyncio.sleep(0)

        asyncio.run(main())

    return run


@in_loop
async def test_bytes_come_while_they_are_written() -> None:
    """A reader at the holder is woken for each write, and for the end."""
    site = Site()
    writer = grant(site.owner, "c", 0, content_type="video/mp2t")
    site.start()
    held = await site.same()
    watcher = site.wait(0)
    for size in (1, 100_000, 3 * MAX_CHUNK):
        writer.channel.append(writer, [b"x" * size], 1.0)
        await site.same()
    assert watcher.segment.size == 100_001 + 3 * MAX_CHUNK
    writer.channel.finish(writer, [b"end"], 2.0)
    await site.same()
    assert watcher.segment.state is State.COMPLETE
    assert content(watcher.segment) == content(writer.segment)
    assert (held.content_type, held.life.name) == ("video/mp2t", "first.1")


@in_loop
async def test_a_reader_stays_when_the_connection_breaks() -> None:
    """In the middle of a segment: what the holder lacks comes when it is back, and nothing comes twice."""
    site = Site()
    publish(site.owner, "c", 0, b"zero")
    writer = grant(site.owner, "c", 1)
    writer.channel.append(writer, [b"abc"], 1.0)
    site.start()
    held = await site.same()
    watcher = site.wait(1)
    site.reachable = False
    site.cut()
    writer.channel.append(writer, [b"def"], 2.0)
    writer.channel.finish(writer, [b"ghi"], 2.0)
    publish(site.owner, "c", 2, b"two")
    site.reachable = True
    assert await site.same() is held
    assert content(watcher.segment) == b"abcdefghi"
    assert (site.replica.snapshots, watcher.segment.state) == (2, State.COMPLETE)
    assert [held.segments[seq].size for seq in (0, 1, 2)] == [4, 9, 3]


@in_loop
async def test_a_segment_that_the_owner_has_evicted_meanwhile() -> None:
    """It is gone at the holder, too, and a reader in the middle of it is told that it was cut short."""
    site = Site()
    site.owner.limits = Limits(window_segments=1)
    writer = grant(site.owner, "c", 0)
    writer.channel.append(writer, [b"abc"], 1.0)
    site.start()
    held = await site.same()
    watcher = site.wait(0)
    site.reachable = False
    site.cut()
    writer.channel.finish(writer, [], 2.0)
    publish(site.owner, "c", 1, b"one")
    site.reachable = True
    await site.same()
    assert (sorted(held.segments), watcher.segment.state) == ([1], State.TRUNCATED)


@in_loop
async def test_the_end_of_the_channel() -> None:
    """It ends at the holder, too, what it has can be read for the drain there, and nobody follows any more."""
    site = Site(channel_drain_s=10.0)
    publish(site.owner, "c", 0, b"zero")
    site.start()
    await site.same()
    watcher = site.wait(1)
    site.owner.end("c", 5.0)
    assert site.following is not None
    await asyncio.wait_for(site.following, 30)
    assert watcher.segment.state is State.TERMINATED
    assert isinstance(site.holder.resolve("c", 0), Serve)
    assert site.holder.next_deadline() == 15.0
    site.holder.expire(15.0)
    assert site.holder.channels == {}


@in_loop
async def test_a_new_epoch_takes_over() -> None:
    """Readers of the old one are told that it is over; those who come read the new one."""
    site = Site()
    publish(site.owner, "c", 0, b"old")
    site.start()
    held = await site.same()
    watcher = site.wait(1)
    site.reachable = False
    site.cut()
    site.owner.end("c", 5.0)
    publish(site.owner, "c", 0, b"new", 6.0)
    site.reachable = True
    assert await site.same() is not held
    assert (held.ended, watcher.segment.state) == (True, State.TERMINATED)
    found = site.holder.resolve("c", 0)
    assert isinstance(found, Serve)
    assert (found.channel.epoch, content(found.segment)) == (2, b"new")


@in_loop
async def test_an_owner_that_was_started_again() -> None:
    """Nothing says that its bytes are those that are here: the channel begins anew at the holder."""
    site = Site()
    publish(site.owner, "c", 0, b"before")
    site.start()
    held = await site.same()
    site.reachable = False
    site.cut()
    site.owner = Registry(Limits(), autocreate=True, instance="second")
    publish(site.owner, "c", 0, b"after the start")
    site.reachable = True
    assert await site.same() is not held
    assert site.replica.channel is not None
    assert content(site.replica.channel.segments[0]) == b"after the start"


@in_loop
async def test_an_owner_that_does_not_come_back() -> None:
    """After a while the channel ends, so that no reader waits for ever; what is there can be read for the drain."""
    site = Site(channel_drain_s=10.0)
    writer = grant(site.owner, "c", 0)
    writer.channel.append(writer, [b"abc"], 1.0)
    site.start(lost_s=0.2)
    held = await site.same()
    watcher = site.wait(0)
    site.reachable = False
    site.cut()
    assert site.following is not None
    await asyncio.wait_for(site.following, 30)
    assert (held.ended, watcher.segment.state, content(watcher.segment)) == (True, State.TERMINATED, b"abc")


@in_loop
async def test_a_channel_that_the_owner_does_not_have() -> None:
    """Nothing is held, and the holder gives up."""
    site = Site()
    site.start(lost_s=0.1)
    assert site.following is not None
    await asyncio.wait_for(site.following, 30)
    assert (site.replica.channel, site.holder.channels) == (None, {})


@in_loop
async def test_a_replica_that_is_too_far_behind() -> None:
    """It is cut off, and is whole again with a snapshot."""
    site = Site()
    publish(site.owner, "c", 0, b"zero")
    site.start()
    await site.same()
    for seq in range(1, feeds.MAX_BEHIND // 2):
        publish(site.owner, "c", seq, b"x")
    held = await site.same()
    assert site.replica.snapshots == 2
    assert held.next_seq == feeds.MAX_BEHIND // 2


@in_loop
async def test_a_segment_whose_memory_is_needed() -> None:
    """The owner lets go of it, whether or not the replica has it: the replica begins again, with what is there."""
    site = Site()
    site.owner = Registry(Limits(total_bytes=20_000), autocreate=True, instance="first")
    publish(site.owner, "c", 0, b"x" * 9000)
    site.start()
    await site.same()
    publish(site.owner, "c", 1, b"y" * 9000)
    publish(site.owner, "c", 2, b"z" * 9000)
    held = await site.same()
    assert set(held.segments) == set(site.owner.channels["c"].segments)
    assert site.owner.budget.lingering == {}


@in_loop
async def test_a_holder_without_memory() -> None:
    """The channel ends there, visibly, and the replica tries again."""
    site = Site(total_bytes=5000)
    writer = grant(site.owner, "c", 0)
    writer.channel.append(writer, [b"x"], 1.0)
    site.start()
    held = await site.same()
    watcher = site.wait(0)
    writer.channel.append(writer, [b"x" * 6000], 1.0)
    await site.until(lambda: site.replica.snapshots > 1)
    assert (held.ended, watcher.segment.state) == (True, State.TERMINATED)


@in_loop
async def test_nobody_publishes_to_a_replica() -> None:
    """Creating, publishing, closing and ending are refused: another server owns the channel."""
    site = Site()
    publish(site.owner, "c", 0, b"zero")
    site.start()
    await site.same()
    answers = [
        site.holder.create("c", "", 0.0),
        site.holder.reserve("c", 1, Watcher(site.owner.channels["c"].segments[0]), 0.0),  # type: ignore[arg-type]
        site.holder.close_segment("c", 0, 0.0),
        site.holder.end("c", 0.0),
    ]
    assert [answer.why for answer in answers if isinstance(answer, Refusal)] == [Why.REPLICA] * 4


@in_loop
async def test_a_replica_that_leaves() -> None:
    """The owner keeps nothing of it: no listener, no cursor."""
    site = Site()
    writer = grant(site.owner, "c", 0)
    writer.channel.append(writer, [b"x"], 1.0)
    site.start()
    await site.same()
    assert site.following is not None
    site.following.cancel()
    await asyncio.wait([site.following, *site.feeds])
    assert (writer.channel.followers, writer.segment.taps) == ([], ())


# Records.


def replica() -> Replica:
    """One that has sent its hello."""
    found = Replica("c", Registry(Limits(), autocreate=False), lambda: 0.0, float)
    found.hello()
    return found


BEGIN = record(Kind.BEGIN, {"version": VERSION, "instance": "x", "epoch": 1, "fresh": True})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "a record of .* bytes; 1048576 are allowed"),
        (b"\x09\x00\x00\x00\x00", "a record that cannot be read: 9 is not a valid Kind"),
        (b"\x02\x00\x00\x00\x01{", "a record that cannot be read"),
        (b"\x03\x00\x00\x00\x01x", "a record that cannot be read"),
        (record(Kind.FACT, {"kind": "Fact"}), "a record that cannot be read"),
        (record(Kind.BEGIN, {"version": 99}), "version 99 of the feed is not known; this is 1"),
        (record(Kind.LIVE, {}), "LIVE before BEGIN"),
        (BEGIN + record(Kind.HELLO, {}), "HELLO in the middle of a feed"),
        (BEGIN + b"\x03\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x07x", "bytes of segment 7, which is not open"),
    ],
)
def test_what_is_no_feed(data: bytes, problem: str) -> None:
    """A replica says why it cannot go on."""
    with pytest.raises(FeedError, match=problem):
        replica().receive(data)


def test_a_record_may_come_in_pieces() -> None:
    """Byte by byte it is the same."""
    parser = Parser("c", float)
    data = BEGIN + record(Kind.END, {"why": Over.LAG})
    found = [one for at in range(len(data)) for one in parser.feed(data[at : at + 1])]
    assert [one.kind for one in found] == [Kind.BEGIN, Kind.END]


def test_a_hello_of_another_version() -> None:
    """The owner says which one it speaks."""
    registry = Registry(Limits(), autocreate=True)
    channel = grant(registry, "c", 0).channel
    with pytest.raises(FeedError, match="version 99 of the feed is not known; this is 1"):
        feeds.Feed(channel, {"version": 99}, registry.budget, "x", round, lambda: None)
    assert channel.followers == []


def test_no_memory_is_told_as_such() -> None:
    """Not as a fault of the feed."""
    assert not issubclass(OutOfMemory, FeedError)
