"""Publish and subscribe in the server's own process, without HTTP, for programs that embed the server.

::

    async def program(bus: Bus) -> None:
        async with LocalSubscriber(bus, "in", wait_for_channel_s=60) as source, LocalPublisher(bus, "out") as target:
            async for segment in source:
                await target.publish((await segment.read()).upper())

    serve(Settings(), print, program)

Both go through the core like a client's requests: limits, graces, storage and metrics hold for them, and they raise the
same exceptions as the HTTP clients. They belong to the server's event loop: use them in no other thread.

The core and the schedulers see a :class:`LocalSegment` as a publisher's connection: they preempt it, pause it while
readers are behind, and resume it. So a program that publishes faster than its readers read waits in
:meth:`LocalSegment.write`, as a client waits for its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self, cast
from urllib.parse import quote

from tricklecast.app.bus import Bus, SegmentData, Segments
from tricklecast.app.core.publishers import Identity
from tricklecast.app.core.results import AlreadyStored, Ending, Outcome, Refusal
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import COMPLETE, EMPTY, Writer
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.responses import Reply, refusal_reply, storage_reply, writer_reply
from tricklecast.app.data_plane.scheduling import Peer
from tricklecast.trickle import wire
from tricklecast.trickle.errors import (
    ChannelEnded,
    ChannelNotFound,
    LocalProtocolError,
    SegmentTooLarge,
    TrickleError,
    as_bytes,
    error_for,
)
from tricklecast.trickle.paths import parse_channel
from tricklecast.trickle.records import Op

READ_LIMIT: Final = 64 << 20
"""The limit of ``read()`` in bytes, if it is given none: the server's default limit for a segment."""


class LocalPublisher:
    """Publishes the segments of one channel. ``async with`` ends the channel at the end of the block.

    After an exception in the block the channel stays, for a successor, until it has been idle for too long.

    Args:
        bus: of the server.
        channel: the name.
        content_type: the media type of the segments.
        client: the name of this publisher for other publishers.
        takeover: publish even if another client does.

    Attributes:
        epoch: the epoch of the channel's name to which it publishes; ``None`` before the first segment.

    Raises:
        InvalidChannelName: the name cannot be that of a channel.
    """

    def __init__(
        self,
        bus: Bus,
        channel: str,
        *,
        content_type: str = wire.DEFAULT_CONTENT_TYPE,
        client: str = "local",
        takeover: bool = False,
    ) -> None:
        self.channel = parse_channel(quote(channel, safe="", errors="surrogatepass"))
        self.content_type = content_type
        self.identity = Identity(client)
        self.takeover = takeover
        self.epoch: int | None = None
        self.plane = _plane_of(bus)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.end()
        elif (channel := self.plane.registry.live(self.channel)) is not None:
            channel.publishers.dismiss(self.identity)

    def segment(self) -> LocalSegment:
        """The next segment, as an async context manager; its number is known inside the block."""
        return LocalSegment(self)

    async def publish(self, data: bytes) -> int:
        """Publish a whole segment as one chunk; returns its seq.

        Raises:
            TrickleError: as :meth:`LocalSegment.write`.
        """
        async with self.segment() as segment:
            await segment.write(data)
        return segment.seq

    async def end(self) -> None:
        """End the channel, if a segment was published here and no other client publishes to it by now."""
        plane = self.plane
        if self.epoch is not None and not self.is_over():
            beside = None if self.takeover else self.identity
            plane.registry.end(self.channel, plane.clock(), if_idle_beside=beside)
            await _flush(plane)

    def is_over(self) -> bool:
        """Whether the epoch of the channel to which it has published has ended."""
        channel = self.plane.registry.live(self.channel)
        return self.epoch is not None and (channel is None or channel.epoch != self.epoch)


class LocalSegment:
    """One segment of a :class:`LocalPublisher`.

    Leaving its block ends it. After an exception in the block it is truncated, and its readers are told.

    Attributes:
        seq: its number; -1 before the block.
        size: bytes written.
    """

    write_paused = False

    def __init__(self, publisher: LocalPublisher) -> None:
        self.seq = wire.SEQ_NEXT
        self.size = 0
        self._publisher = publisher
        self._plane = publisher.plane
        self._writer: Writer[OwnedChannel] | None = None  # inside the block
        self._outcome: Outcome | None = None  # once the segment has closed
        self._reasons = 0  # bits of the schedulers that have paused it
        self._resumed = asyncio.Event()  # one of them has resumed it, or the segment has closed

    async def __aenter__(self) -> Self:
        """Reserve the next seq.

        Raises:
            Refused, ChannelNotFound, ChannelEnded, Superseded: as for a refused POST.
        """
        publisher, plane = self._publisher, self._plane
        if publisher.is_over():
            raise ChannelEnded
        writer = plane.registry.reserve(
            publisher.channel,
            wire.SEQ_NEXT if plane.registry.live(publisher.channel) else 0,  # 0 begins anew while an ended one drains
            self,
            plane.clock(),
            content_type=publisher.content_type,
            client=publisher.identity,
            if_idle=not publisher.takeover,
        )
        if isinstance(writer, Refusal):
            raise _error(refusal_reply(writer, Op.PUBLISH, plane.jitter), writer.seq)
        assert not isinstance(writer, AlreadyStored), "it has no key"
        self._writer, self.seq, publisher.epoch = writer, writer.segment.seq, writer.channel.epoch
        return self

    async def write(self, data: bytes) -> None:
        """Publish a chunk; readers get it at once. Waits while all readers of the channel are behind.

        Raises:
            ChannelEnded: the channel was ended.
            Superseded: another publisher has taken the segment over, or it was closed.
            SegmentTooLarge, Refused: a limit of the server is reached.
            LocalProtocolError: the segment is not entered.
            TypeError: the chunk is not bytes.
        """
        writer = self._writer
        if writer is None:
            raise LocalProtocolError("a segment is written inside its block")
        chunk = as_bytes(data)
        if self._outcome is None and chunk:
            self._outcome = writer.channel.append(writer, (chunk,), self._plane.clock())
            self._account(writer)
        self._check()
        self._let_readers_first(writer.channel)
        while self._reasons and self._outcome is None:
            self._resumed.clear()
            await self._resumed.wait()
        await asyncio.sleep(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writer, self._writer = self._writer, None
        if writer is None or self._outcome is not None:
            if error is None:
                self._check()
            return
        channel, now = writer.channel, self._plane.clock()
        if error is None:
            self._outcome = channel.finish(writer, (), now)
            self._check()
            await _flush(self._plane)
        elif self.size:
            channel.close_segment(self.seq, now, truncate=True)
            self._plane.registry.faults.deliver()
        else:
            channel.abort(writer, now)

    # For the core and the schedulers this object is a publisher's connection.

    def preempted(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._resumed.set()

    def pause(self, reason: int) -> None:
        self._reasons |= reason

    def resume(self, reason: int) -> None:
        self._reasons &= ~reason
        self._resumed.set()

    def read_less(self, size: int) -> None:
        """A write has the size that the program gives it."""

    def _let_readers_first(self, channel: OwnedChannel) -> None:
        peer = cast(Peer, self)
        if (flow := self._plane.turns.flows.get(channel)) is not None:
            flow.hold(peer)
        pace = self._plane.pacing.of(channel)
        if pace is not None and pace.published >= pace.look_at:
            self._plane.pacing.published(pace, peer)

    def _account(self, writer: Writer[OwnedChannel]) -> None:
        written = (self._outcome.size if self._outcome else writer.segment.size) - self.size
        self.size += written
        self._plane.bytes_in += written

    def _check(self) -> None:
        outcome = self._outcome
        if outcome is not None and outcome.ending not in (Ending.COMPLETE, Ending.EMPTY):
            reply = writer_reply(outcome, self.seq, self._plane.jitter)
            assert reply is not None, "nobody aborts it but itself"
            raise _error(reply, self.seq)


class LocalSubscriber:
    """Reads the segments of one channel as they are written: iterate over it, and over each segment.

    Going on to the next segment leaves the one before. The end of the channel ends the iteration.

    Args:
        bus: of the server.
        channel: the name.
        start: the first segment, as in a GET: N, -1 for the next one to begin, -2 for the newest one that has.
        wait_for_channel_s: the time to wait for a channel that does not exist yet, in seconds.
    """

    def __init__(
        self,
        bus: Bus,
        channel: str,
        *,
        start: int = wire.SEQ_NEXT,
        wait_for_channel_s: float = 0.0,
    ) -> None:
        self.channel = channel
        self._bus = bus
        self._start = start
        self._wait_s = wait_for_channel_s
        self._segments: Segments | None = None  # inside the block
        self._segment: ReceivedSegment | None = None  # the last one that was begun

    async def __aenter__(self) -> Self:
        """Begin to read.

        Raises:
            ChannelNotFound: there is no such channel, and none was created in time.
            CannotSubscribe: the channel is over, the start lies beyond its head, or a limit is reached.
        """
        registry, start = _plane_of(self._bus).registry, self._start
        if registry.live(self.channel) is None and self._wait_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._created(), self._wait_s)
            start = 0 if start == wire.SEQ_NEXT else start  # it began meanwhile
        if self.channel not in registry.channels:
            raise ChannelNotFound(wire.Status.NOT_FOUND)
        self._segments = self._bus.read(self.channel, start)
        return self

    async def _created(self) -> None:
        async with self._bus.subscribe("kind = 'added'") as facts:
            while (await anext(facts)).channel != self.channel:
                pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._segments is not None:
            self._segments.unsubscribe()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedSegment:
        """The next segment, as soon as it has begun.

        Raises:
            OutOfCapacity: the program was too far behind; ``start=error.index`` goes on.
            ServerClosed: the server is stopping.
            LocalProtocolError: it is used outside its block.
        """
        segments = self._segments
        if segments is None:
            raise LocalProtocolError("a subscriber is used inside its block")
        if self._segment is not None and self._segment.seq == segments.seq:
            segments.skip()
        try:
            first = await anext(segments)
        except ChannelEnded:
            raise StopAsyncIteration from None
        self._segment = ReceivedSegment(segments, first)
        return self._segment


class ReceivedSegment:
    """One segment as a :class:`LocalSubscriber` reads it: iterate over its chunks, or call :meth:`read`.

    Attributes:
        seq, epoch: its number, and the epoch of the channel's name.
        gap: the number of missing segments before it.
        truncated: the reason if it is not whole: ``"truncated"``, ``"skipped"`` or ``"terminated"``; known at its end.
        is_over: whether its end has been read.
    """

    def __init__(self, segments: Segments, first: SegmentData) -> None:
        self.seq, self.epoch, self.gap = first.seq, first.epoch, first.gap
        self.truncated: str | None = None
        self.is_over = False
        self._segments = segments
        self._first: SegmentData | None = first

    @property
    def complete(self) -> bool:
        """Whether the segment was read to its end, and is whole."""
        return self.is_over and self.truncated is None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next bytes, as they arrived from the publisher.

        Raises:
            OutOfCapacity, ServerClosed: as :meth:`LocalSubscriber.__anext__`.
        """
        if self.is_over:
            raise StopAsyncIteration
        if self._first is None and self._segments.seq != self.seq:
            raise LocalProtocolError(f"segment {self.seq} was left")
        found = await anext(self._segments) if self._first is None else self._first
        self._first = None
        if found.state is None:
            return found.data
        self.is_over = True
        self.truncated = None if found.state in (COMPLETE, EMPTY) else str(found.state)
        raise StopAsyncIteration

    async def read(self, limit: int = READ_LIMIT) -> bytes:
        """The rest of the segment.

        Args:
            limit: the largest number of bytes to hold.

        Raises:
            SegmentTooLarge: it is longer than the limit.
            OutOfCapacity, ServerClosed: as :meth:`LocalSubscriber.__anext__`.
        """
        chunks, size = [], 0
        async for chunk in self:
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise SegmentTooLarge(None, seq=self.seq, detail=f"longer than the limit of {limit} bytes")
        return b"".join(chunks)


def _plane_of(bus: Bus) -> DataPlane:
    assert bus.plane is not None, "it is a server's bus"
    return bus.plane


async def _flush(plane: DataPlane) -> None:
    """Wait until storage has the published bytes, if publishers wait for storage (``--ack``)."""
    durability = plane.durability
    if durability is not None and durability.delays and not await durability.flush():
        raise _error(storage_reply(plane.jitter), None)


def _error(reply: Reply, seq: int | None) -> TrickleError:
    """The exception that an HTTP client would raise after this response."""
    headers = {name: str(value) for name, value in reply.headers}
    if reply.eos:
        headers[wire.CLOSED] = wire.TERMINATED
    if reply.retry_after_s is not None:
        headers[wire.RETRY_AFTER] = str(reply.retry_after_s)
    # 200 before the body's end: another client has closed the segment.
    status = wire.Status.CONFLICT if reply.status == wire.Status.OK else reply.status
    return error_for(status, headers, seq=seq, detail=reply.body.decode())
