"""``--ack quorum``: the histories of the channels that this node owns, and how it goes on with those of others.

Channels that come into being here are written by themselves (:mod:`~tricklecast.app.cluster.history`). A channel that
the directory has given to this node is recovered: a fence, then its history up to the fence, which is applied as a
replica applies a feed; then this node owns it, in the same epoch.

Messages name the one before, so a part that is missing is noticed, wherever it is: a replica of a stream that lags
behind may answer a reader, too, and is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from itertools import count
from typing import Final, NamedTuple

from tricklecast.app.cluster.history import Shared, Stamp, Start, Superseded, Writer
from tricklecast.app.cluster.jetstream import EXPECTED, Connection, NatsOptions, Unreachable
from tricklecast.app.cluster.streams import Stream, StreamOptions, Streams, rest
from tricklecast.app.core.facts import ChannelCreated, Fact
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import OPEN
from tricklecast.app.core.state import Channel
from tricklecast.app.replication.records import FeedError, HeldSegment
from tricklecast.app.replication.replica import OutOfMemory, Replica
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import is_reserved

logger = logging.getLogger("tricklecast.cluster")

RECOVER_S: Final = 10.0
"""To read the history of a channel; 64 MiB take less than 1 s."""

STOP_S: Final = 2.0
"""To write the rest when the node stops."""

PURGE_S: Final = 1.0
"""How often histories of channels that have ended are looked for, to be removed."""


class Damaged(TrickleError):
    """A part of the history is missing, or it cannot be read."""


class _Running(NamedTuple):
    writer: Writer
    task: asyncio.Task[None]


class Quorum:
    """The histories of one node, and the promise to its publishers (:class:`app.data_plane.context.Durability`).

    Args:
        nats: where it is. name: of this node. options: of the streams.
        registry: of this node. clock: its time, seconds.
        to_us, to_time: turn it into microseconds since 1970, and back.
        confirmed: whether this node owns a channel in an epoch, beyond doubt: the directory's word.
        lost: told of the name and the epoch of a channel that was taken over; nothing of it is acknowledged any more.
        leave: sends the readers away from a channel that could not be recovered.

    Attributes:
        streams: in NATS. counters: what has happened, for metrics.
        recovering: channels that are being read: until that is done, nobody may read or write them here.
    """

    durability: Final = "quorum"
    degraded: Final = ""
    delays: Final = True
    fenced: Final = False

    def __init__(
        self,
        nats: NatsOptions,
        registry: Registry,
        clock: Callable[[], float],
        *,
        name: str,
        to_us: Callable[[float], int],
        to_time: Callable[[int], float],
        confirmed: Callable[[str, int], Awaitable[bool]],
        lost: Callable[[str, int], None],
        leave: Callable[[Channel], None] | None = None,
        options: StreamOptions | None = None,
    ) -> None:
        self.streams = Streams(nats, name, options or StreamOptions(), self._has_last, self._looked_at)
        self.recovering: dict[str, asyncio.Task[OwnedChannel | None]] = {}
        self._shared = Shared(self.streams, registry.budget, to_us, confirmed)
        self._registry, self._clock, self._to_time = registry, clock, to_time
        self._lost, self._leave = lost, leave
        self._running: dict[str, _Running] = {}  # by the channel's name
        self._starts: dict[str, Start] = {}  # of channels that are being adopted at this moment
        self._ended: deque[tuple[float, str, Writer]] = deque()  # when their histories are removed
        registry.journal.subscribe(self._created, ChannelCreated)

    @property
    def counters(self) -> Counter[str]:
        """What has happened, for metrics."""
        return self.streams.counters

    # Life.

    async def start(self) -> bool:
        """Make the streams; whether that has succeeded. If not, each is made when it is needed."""
        self.streams.soon(self.streams.look_at_all(lambda: [one.writer.stream.name for one in self._running.values()]))
        self.streams.soon(self._purge())
        return await self.streams.start()

    async def stop(self) -> None:
        """Write what there is, for :data:`STOP_S` at most; nothing is removed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.flush()
        await self.streams.stop()

    def begin(self, channel: OwnedChannel) -> None:
        """Write the history of a channel that this node owns; those that are created here begin by themselves."""
        self.let_go(channel.name)
        writer = Writer(channel, self._shared, self._starts.pop(channel.name, None))
        self._running[channel.name] = _Running(writer, self.streams.soon(self._write(writer)))

    async def release(self, channel: OwnedChannel) -> bool:
        """Write the rest, and nothing more: another node goes on with the channel. Whether all is stored."""
        stored = await self.flush(channel)
        self.let_go(channel.name)
        return stored

    def let_go(self, name: str) -> None:
        """Write no more of a channel, whatever happens to it here; who waits hears that it is not stored."""
        if (running := self._running.pop(name, None)) is not None:
            running.writer.over = True
            running.task.cancel()

    # Publishers.

    def when_stored(self, callback: Callable[[bool], None], channel: Channel | None = None) -> None:
        """Call back with ``True`` when a successor would have all changes until now; ``False`` if that takes too long.

        Args:
            channel: of which; ``None``: of all.
        """
        if channel is not None:
            running = self._running.get(channel.name)
            if running is None or running.writer.channel is not channel:
                callback(False)
            else:
                running.writer.when_stored(callback)
            return
        writers = [one.writer for one in self._running.values() if one.writer.lacks]
        results: list[bool] = []

        def stored(is_stored: bool) -> None:
            results.append(is_stored)
            if len(results) == len(writers):
                callback(all(results))

        for writer in writers:
            writer.when_stored(stored)
        if not writers:
            callback(True)

    async def flush(self, channel: Channel | None = None) -> bool:
        """Wait for the result of :meth:`when_stored`."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.when_stored(lambda stored: None if done.done() else done.set_result(stored), channel)
        return await done

    # Takeover.

    async def recover(self, name: str, epoch: int) -> OwnedChannel | None:
        """Go on with a channel in its epoch. The directory has just given it to this node, in this epoch.

        Returns:
            The channel, with all that its last owner has acknowledged; ``None`` if that is nothing, or the channel has
            ended, or its history is damaged: then it may begin in a higher epoch. In any case the last owner can
            acknowledge nothing any more.

        Raises:
            Superseded: the channel is another node's by now.
            Unreachable: it cannot be had now; ask again.
        """
        task = self.recovering.get(name)
        if task is None:
            task = self.recovering[name] = self.streams.soon(self._recover(name, epoch))
            task.add_done_callback(lambda _: self.recovering.pop(name))
        return await asyncio.shield(task)

    async def _recover(self, name: str, epoch: int) -> OwnedChannel | None:
        self.let_go(name)
        if (before := self._registry.channels.get(name)) is not None and not before.ended:
            raise Unreachable(f"{before!r} is still here: let go of it first")
        replica = Replica(name, self._registry, self._clock, self._to_time, leave=self._leave)
        adopted = None
        try:
            async with asyncio.timeout(RECOVER_S):
                fence, seq = await self._fence(name, epoch)
                size = await self._read(replica, fence, seq) if fence.live else 0
            channel = replica.channel
            if channel is not None and not channel.ended:
                self._starts[name] = Start(fence.live, fence.first, fence.reign, seq, _held(channel), size)
                adopted = self._registry.adopt(channel, self._clock())
                self.counters["recovered"] += 1
        except (Damaged, FeedError) as error:
            self.counters["damaged"] += 1
            logger.error("the history of %r (epoch %d) is damaged, so it cannot go on: %s", name, epoch, error)
        except OutOfMemory as error:
            raise Unreachable(str(error)) from None
        except TimeoutError:
            raise Unreachable(f"the history of {name!r} was not read in {RECOVER_S:.0f} s") from None
        finally:
            if adopted is None:
                replica.end()
        return adopted

    async def _fence(self, name: str, epoch: int) -> tuple[Stamp, int]:
        """Write a message that ends the reign of the last owner; returns its headers and its number."""
        token, (stream, subject) = secrets.token_hex(6), self.streams.of(name)

        async def attempt(connection: Connection) -> tuple[Stamp, int]:
            last = await connection.last(stream.name, subject)
            stamp = None if last is None else Stamp.of(last.headers)
            if last is not None and stamp is not None and stamp.writer == token:
                return stamp, last.seq  # its answer had got lost
            if (stamp is not None and stamp.epoch > epoch) or not await self._shared.confirmed(name, epoch):
                raise Superseded(f"{name!r} has another owner")
            if last is None or stamp is None or stamp.epoch < epoch:
                stamp = Stamp(epoch, 0, 0, 0, 0, 0, token)
            elif stamp.live and not stamp.first:
                stamp = stamp._replace(first=last.seq)
            fence = stamp._replace(generation=stamp.live, reign=stamp.reign + 1, number=0, writer=token)
            seq = await connection.publish(subject, b"", fence.headers(), 0 if last is None else last.seq)
            return fence, seq

        return await self.streams.persist(stream, attempt)

    async def _read(self, replica: Replica, fence: Stamp, until: int) -> int:
        """Apply the live generation up to the fence, which is message ``until``; returns the bytes of it."""
        stream, subject = self.streams.of(replica.name)
        size = last = 0
        reign = None
        for attempt in count():
            connection = await self.streams.connected()
            messages = connection.read(stream.name, subject, last + 1 if last else fence.first, until)
            async with aclosing(messages):
                async for seq, headers, data in messages:
                    if headers.get(EXPECTED) != str(last) if last else seq != fence.first:
                        raise Damaged(f"messages before {seq} are missing")
                    last = seq
                    if (stamp := Stamp.of(headers)) is None:
                        raise Damaged(f"message {seq} belongs to no history")
                    if data and (stamp.epoch, stamp.generation) == (fence.epoch, fence.live):
                        if stamp.reign != reign:
                            replica.hello()  # another feed, which goes on from here
                            reign = stamp.reign
                        size += len(data)
                        replica.receive(data)
                        await asyncio.sleep(0)
            if last == until:
                return size
            await rest(attempt)  # the replica of the stream that has answered lacks the end
        raise AssertionError("it ends with the fence only")

    # Around the writers.

    def _created(self, fact: Fact) -> None:
        channel = self._registry.channels[fact.channel]
        if isinstance(channel, OwnedChannel) and not is_reserved(channel.name):
            self.begin(channel)

    async def _write(self, writer: Writer) -> None:
        name, epoch, limits = writer.channel.name, writer.channel.epoch, self._registry.limits
        try:
            await writer.run()
            # Its history goes when nobody has to know any more that it has ended.
            self._ended.append((self._clock() + limits.channel_drain_s + limits.tombstone_s, name, writer))
        except Superseded:
            self.counters["lost"] += 1
            logger.warning("%r (epoch %d) was taken over by another node", name, epoch)
            self._lost(name, epoch)
        except Exception:
            self.counters["faults"] += 1
            logger.exception("a fault of the server while the history of %r was written", name)

    async def _purge(self) -> None:
        while True:
            await asyncio.sleep(PURGE_S)
            while self._ended and self._ended[0][0] <= self._clock():
                _, name, writer = self._ended[0]
                if not await self.streams.purge(writer.stream, writer.subject, writer.last + 1):
                    break  # until NATS is there again
                self._ended.popleft()
                if (running := self._running.get(name)) is not None and running.writer is writer:
                    del self._running[name]

    def _writers(self, stream: Stream) -> list[Writer]:
        return [one.writer for one in self._running.values() if one.writer.stream is stream and not one.writer.over]

    async def _has_last(self, stream: Stream, connection: Connection) -> bool:
        writers = self._writers(stream)
        newest = max(writers, key=lambda writer: writer.last, default=None)
        return newest is None or not newest.last or await newest.has_last(connection)

    def _looked_at(self, stream: Stream) -> None:
        oldest = max(stream.lost_at, time.monotonic() - self.streams.options.max_age_s / 2)
        for writer in self._writers(stream):
            writer.look(oldest)


def _held(channel: Channel) -> tuple[HeldSegment, ...] | None:
    """The segments that a history holds; ``None`` if it was cut between the beginning of a segment and its first byte.

    The successor takes such a segment for one that has not begun, which no reader of the history could follow.
    """
    have = tuple(HeldSegment(one.seq, one.size, one.state) for one in channel.segments.values())
    return None if any(one.state is OPEN and not one.size for one in have) else have
