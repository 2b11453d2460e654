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
from tests.support.waiting import WITHIN_S
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Cause, Refusal
from tricklecast.app.core.segment import State
from tricklecast.app.core.state import Channel, Ready, Upcoming
from tricklecast.app.replication import feed as feeds
from tricklecast.app.replication import records, transport
from tricklecast.app.replication.records import (
    MAX_CHUNK,
    Beat,
    Begin,
    End,
    FeedEnd,
    FeedError,
    Hello,
    Parser,
    SnapshotOver,
    record,
)
from tricklecast.app.replication.replica import Replica
from tricklecast.app.replication.transport import follow, send_feed
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
            raise ConnectionRefusedError("nobody answers")
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
        async with asyncio.timeout(WITHIN_S):
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
        assert isinstance(found, Ready | Upcoming), found
        watcher = Watcher(found.segment)
        self.holder.attach(watcher, found.channel, found.segment)
        return watcher


_ENDS: list[asyncio.StreamWriter] = []


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in an event loop, and end what it has left."""

    @wraps(test)
    def run() -> None:
        async def main() -> None:
            before = asyncio.all_tasks()
            try:
                await test()
            finally:
                for end in _ENDS:
                    end.transport.abort()
                _ENDS.clear()
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
    await asyncio.wait_for(site.following, WITHIN_S)
    assert watcher.segment.state is State.TERMINATED
    assert isinstance(site.holder.resolve("c", 0), Ready)
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
    assert isinstance(found, Ready)
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


def test_an_owner_that_does_not_come_back(caplog: pytest.LogCaptureFixture) -> None:
    """After a while the channel ends, so that no reader waits for ever; what is there can be read for the drain. The
    log has the reason, which names the owner's address."""

    @in_loop
    async def main() -> None:
        site = Site(channel_drain_s=10.0)
        writer = grant(site.owner, "c", 0)
        writer.channel.append(writer, [b"abc"], 1.0)
        site.start(lost_s=0.2)
        held = await site.same()
        watcher = site.wait(0)
        site.reachable = False
        site.cut()
        assert site.following is not None
        await asyncio.wait_for(site.following, WITHIN_S)
        assert (held.ended, watcher.segment.state, content(watcher.segment)) == (True, State.TERMINATED, b"abc")
        told = "the owner of 'c' was out of reach for 0 s (nobody answers): the channel is not held here any more"
        assert told in caplog.text

    main()


@in_loop
async def test_a_channel_that_the_owner_does_not_have() -> None:
    """Nothing is held, and the holder gives up."""
    site = Site()
    site.start(lost_s=0.1)
    assert site.following is not None
    await asyncio.wait_for(site.following, WITHIN_S)
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
    assert [answer.why for answer in answers if isinstance(answer, Refusal)] == [Cause.REPLICA] * 4


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
    assert (writer.channel.followers, writer.segment.taps) == ((), ())


# Peers that are broken or hostile, and the deadline of each step.


async def connected() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamWriter]:
    """The two ends of a connection, which the end of the test closes."""
    here, there = socket.socketpair()
    try:
        reader, writer = await asyncio.open_connection(sock=here)
        own_reader, own_writer = await asyncio.open_connection(sock=there)
    except asyncio.CancelledError:  # the caller's deadline is over
        here.close()
        there.close()
        raise
    _ENDS.extend((writer, own_writer))
    return reader, writer, own_reader, own_writer


HELLO = record(Hello("c", "", 0, ()))

BEGIN = record(Begin("x", 1, True))


@in_loop
async def test_a_replica_that_says_nothing() -> None:
    """The owner waits for its HELLO for a while only, and closes the connection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "STALL_S", 0.05)
        registry = Registry(Limits(), autocreate=True)
        channel = grant(registry, "c", 0).channel
        reader, writer, own_reader, own_writer = await connected()
        with pytest.raises(TimeoutError):
            await send_feed(channel, own_reader, own_writer, registry, round)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a record of .* bytes"),
        (BEGIN, "a replica sends HELLO and nothing else, not Begin"),
        (HELLO + HELLO, "a replica sends HELLO and nothing else"),
        (HELLO[:-1], "the connection ended before HELLO"),
    ],
)
def test_a_replica_that_sends_garbage(data: bytes, problem: str) -> None:
    """The owner says what it is, closes the connection, and keeps nothing of it."""

    @in_loop
    async def main() -> None:
        registry = Registry(Limits(), autocreate=True)
        granted = grant(registry, "c", 0)
        reader, writer, own_reader, own_writer = await connected()
        writer.write(data)
        writer.write_eof()
        with pytest.raises(FeedError, match=problem):
            await send_feed(granted.channel, own_reader, own_writer, registry, round)
        assert (granted.channel.followers, granted.segment.taps) == ((), ())
        assert await reader.read() == b""
        writer.close()

    main()


def test_a_replica_of_another_version(caplog: pytest.LogCaptureFixture) -> None:
    """The owner's last record says why it is refused, and its log names the channel."""

    @in_loop
    async def main() -> None:
        registry = Registry(Limits(), autocreate=True)
        channel = grant(registry, "c", 0).channel
        reader, writer, own_reader, own_writer = await connected()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "VERSION", 2)
            writer.write(record(Hello("c", "", 0, ())))
        assert await send_feed(channel, own_reader, own_writer, registry, round) is FeedEnd.VERSION
        assert await reader.read() == record(End(FeedEnd.VERSION))
        assert "a replica of 'c' is refused: the peer does not speak version 1 of the feed" in caplog.text
        writer.close()

    main()


def test_an_owner_of_another_version(caplog: pytest.LogCaptureFixture) -> None:
    """The replica's log says what to do; it tries again, since the owner may be about to be updated, and gives up."""

    @in_loop
    async def main() -> None:
        owner = Owner(record(End(FeedEnd.VERSION)))
        held = Replica("c", Registry(Limits(), autocreate=True), lambda: 7.0, float)
        await asyncio.wait_for(follow(held, owner.connect, lost_s=0.3), 30)
        assert "'c' is not held any more: " in caplog.text
        assert "run the same release of tricklecast on both" in caplog.text
        assert len(owner.connections) > 1

    main()


@in_loop
async def test_a_replica_that_sends_more_later() -> None:
    """It has nothing to say after its HELLO."""
    registry = Registry(Limits(), autocreate=True)
    channel = grant(registry, "c", 0).channel
    reader, writer, own_reader, own_writer = await connected()
    sending = asyncio.ensure_future(send_feed(channel, own_reader, own_writer, registry, round))
    writer.write(HELLO)
    await reader.readexactly(5)
    writer.write(b"x")
    with pytest.raises(FeedError, match="nothing after HELLO"):
        await sending
    assert channel.followers == ()
    writer.close()


@in_loop
async def test_a_replica_that_never_reads() -> None:
    """It is cut off, and neither its connection nor the memory of what it has not taken stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "STALL_S", 0.05)
        registry = Registry(Limits(), autocreate=True)
        publish(registry, "c", 0, b"x" * 8_000_000)
        channel = registry.channels["c"]
        _, writer, own_reader, own_writer = await connected()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HELLO)
        with pytest.raises(TimeoutError):
            await send_feed(channel, own_reader, own_writer, registry, round)
        assert (channel.followers, channel.segments[0].taps) == ((), ())
        assert own_writer.transport.is_closing()
        assert own_writer.transport.get_write_buffer_size() == 0
        writer.close()


@in_loop
async def test_replicas_that_come_and_go() -> None:
    """A thousand leave nothing behind: no follower, no cursor, no task."""
    registry = Registry(Limits(), autocreate=True)
    granted = grant(registry, "c", 0)
    granted.channel.append(granted, [b"x"], 1.0)
    before = asyncio.all_tasks()
    for _ in range(1000):
        reader, writer, own_reader, own_writer = await connected()
        writer.write(HELLO)
        sending = asyncio.ensure_future(send_feed(granted.channel, own_reader, own_writer, registry, round))
        await reader.readexactly(5)
        writer.transport.abort()
        await asyncio.wait([sending])
        assert isinstance(sending.exception(), OSError)
    assert (granted.channel.followers, granted.segment.taps) == ((), ())
    assert asyncio.all_tasks() == before


@in_loop
async def test_an_owner_that_stops() -> None:
    """Cancelling leaves no task behind."""
    registry = Registry(Limits(), autocreate=True)
    channel = grant(registry, "c", 0).channel
    before = asyncio.all_tasks()
    reader, writer, own_reader, own_writer = await connected()
    sending = asyncio.ensure_future(send_feed(channel, own_reader, own_writer, registry, round))
    writer.write(HELLO)
    await reader.readexactly(5)
    sending.cancel()
    await asyncio.wait([sending])
    await asyncio.sleep(0)
    assert (asyncio.all_tasks() - before, channel.followers) == (set(), ())
    writer.close()


@in_loop
async def test_a_snapshot_of_more_facts_than_a_replica_may_be_behind() -> None:
    """They do not count: a large window would cut each replica off at the first news, again and again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeds, "MAX_BEHIND", 20)
        registry = Registry(Limits(), autocreate=True)
        for seq in range(50):
            publish(registry, "c", seq, b"x")
        feed = feeds.Feed(registry.channels["c"], Hello("c", "", 0, ()), registry.budget, "", round, lambda: None)
        publish(registry, "c", 50, b"x")
        assert feed.over is None
        for seq in range(51, 60):
            publish(registry, "c", seq, b"x")
        assert feed.over is FeedEnd.LAG
        assert registry.channels["c"].followers == ()


@in_loop
async def test_every_segment_is_evicted_while_the_snapshot_is_sent() -> None:
    """The replica gets what was there, and then hears that it has left; the memory is free."""
    site = Site()
    for seq in range(20):
        publish(site.owner, "c", seq, b"x" * 100_000)
    site.start()
    await site.until(lambda: site.replica.channel is not None and site.replica.channel.segments)
    site.owner.channels["c"].window._limits = Limits(window_segments=1)
    publish(site.owner, "c", 20, b"y")
    held = await site.same()
    assert (list(held.segments), site.owner.budget.lingering, site.replica.snapshots) == ([20], {}, 1)


@in_loop
async def test_a_channel_that_ends_while_the_snapshot_is_sent() -> None:
    """All of it comes, and then the end."""
    site = Site()
    for seq in range(20):
        publish(site.owner, "c", seq, b"x" * 100_000)
    site.start()
    await site.until(lambda: site.replica.channel is not None and site.replica.channel.segments)
    site.owner.end("c", 5.0)
    held = await site.same()
    assert site.following is not None
    await asyncio.wait_for(site.following, WITHIN_S)
    assert (held.ended, sum(len(content(one)) for one in held.segments.values())) == (True, 2_000_000)


@in_loop
async def test_a_reset_while_a_replica_follows() -> None:
    """The lower segments are cut short there, too."""
    site = Site()
    writer = grant(site.owner, "c", 0)
    writer.channel.append(writer, [b"abc"], 1.0)
    site.start()
    await site.same()
    later = grant(site.owner, "c", 9, reset=True)
    later.channel.finish(later, [b"later"], 2.0)
    held = await site.same()
    assert {seq: one.state for seq, one in held.segments.items()} == {0: State.TRUNCATED, 9: State.COMPLETE}


class Owner:
    """Answers each connection with the same bytes, and stays silent then."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.connections: list[float] = []
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Reach it."""
        self.connections.append(asyncio.get_running_loop().time())
        reader, writer, _, own = await connected()
        self._open.append(own)
        own.write(self.data)
        return reader, writer


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="silent"),
        pytest.param(BEGIN, id="silent after BEGIN"),
        pytest.param(b"HTTP/1.1 404 Not Found\r\n\r\n", id="no feed"),
        pytest.param(BEGIN + record(SnapshotOver(0, 0)) + b"garbage garbage", id="garbage after the snapshot"),
        pytest.param(BEGIN + BEGIN, id="begins twice"),
    ],
)
def test_an_owner_that_sends_no_feed(data: bytes) -> None:
    """It is as good as out of reach: the replica comes back more and more seldom, and gives up."""

    @in_loop
    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "SILENCE_S", 0.05)
            owner = Owner(data)
            held = Replica("c", Registry(Limits(), autocreate=True), lambda: 7.0, float)
            await asyncio.wait_for(follow(held, owner.connect, lost_s=1.0), 30)
            assert 2 <= len(owner.connections) <= 8
            assert held.channel is None or held.channel.ended

    main()


@in_loop
async def test_a_holder_that_stays_without_memory_gives_up() -> None:
    """It does not take the whole window from the owner twenty times a second."""
    site = Site(total_bytes=2000)
    publish(site.owner, "c", 0, b"x" * 5000)
    site.start(lost_s=1.0)
    assert site.following is not None
    await asyncio.wait_for(site.following, WITHIN_S)
    assert 2 <= site.replica.snapshots <= 8


@in_loop
async def test_an_owner_without_news_is_there() -> None:
    """It sends beats, so that silence means that it is out of reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "BEAT_S", 0.01)
        registry = Registry(Limits(), autocreate=True)
        channel = registry.create("c", "", 0.0)
        assert isinstance(channel, Channel)
        reader, writer, own_reader, own_writer = await connected()
        sending = asyncio.ensure_future(send_feed(channel, own_reader, own_writer, registry, round))
        writer.write(HELLO)
        parser, beats = Parser("c", float), 0
        while beats < 3:
            beats += sum(isinstance(message, Beat) for message in parser.feed(await reader.read(1000)))
        writer.close()
        with pytest.raises(ConnectionError):  # it reads that the replica has left, or cannot write the next beat
            await sending
