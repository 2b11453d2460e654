"""A channel that another server owns, held here: it serves its readers as the owner does.

A replica reads the owner's feed and applies it to a channel of this registry. Everything else is the same: the same
class, the same readers, the same limits of memory. These things can go wrong:

- **The connection breaks.** Readers stay, and wait. The replica comes back and says what it has; the owner sends the
  rest. When the owner has been away for too long the channel ends here, visibly, as if the owner had ended it.
- **Another epoch.** If the owner's channel is of another epoch, or the owner was started again, nothing of what is here
  is sure to be a part of it: the channel ends here, and a new one begins.
- **The feed is wrong.** Each record is checked before anything changes: a fact that is not the next one, a segment that
  closes with another size than it has here. Then nothing here is sure to be the owner's: the channel ends here, too.
- **No memory.** Bytes that find no room end the channel here, too. If only segments of the window have to go, they are
  missing here until the replica comes back the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from zlib import crc32

from tricklecast.app.core.facts import Fact, SegmentAwaited, SegmentClosed
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import OPEN, Segment, encode_frame
from tricklecast.app.core.state import Channel
from tricklecast.app.replication.records import (
    MAX_PAYLOAD,
    Beat,
    Begin,
    End,
    FeedEnd,
    FeedError,
    HeldSegment,
    Hello,
    OtherVersion,
    Parser,
    Record,
    SegmentBytes,
    SnapshotOver,
    record,
)
from tricklecast.trickle.errors import LocalProtocolError, TrickleError

MAX_HELLO: Final = MAX_PAYLOAD
"""Bytes of what a replica says that it has: about 30,000 segments. One that has more begins anew."""


class OutOfMemory(TrickleError):
    """There is no memory here for the bytes of the channel."""


class Replica:
    """Holds one channel of another server. It does no input or output (:mod:`~tricklecast.app.replication.transport`).

    Args:
        name: of the channel.
        registry: in which it is held; nobody else may write to the channel there.
        clock: the registry's time, seconds. to_time: turns microseconds since 1970 into it.
        arrived: called when everything is here that the owner had when a feed began; it must not call back.
        fresh: makes the channel where a feed begins anew, of this epoch; it ends the present one, or goes on with it.
            Without it that one ends, and another one is held.
        leave: called before the channel is let go here without an end at its owner, whom its readers may ask again: it
            sends them away. Without it they are told that the channel has ended.
        closed: told of each segment that closes here, with its seq, its size and the CRC-32 of its bytes. With it the
            owner is asked for checksums, and bytes that do not fit theirs are a wrong feed. It must not call back.

    Attributes:
        channel: what is held; ``None`` before the first feed has begun.
        live: whether everything is here that the owner had when the present feed began.
        snapshots: how many feeds have begun.
        instance: the start of the owner to which the channel belongs.
    """

    def __init__(
        self,
        name: str,
        registry: Registry,
        clock: Callable[[], float],
        to_time: Callable[[int], float],
        *,
        arrived: Callable[[], None] | None = None,
        leave: Callable[[Channel], None] | None = None,
        closed: Callable[[int, int, int], None] | None = None,
        fresh: Callable[[int], Channel] | None = None,
    ) -> None:
        self.name = name
        self.channel: Channel | None = None
        self.live = False
        self.snapshots = 0
        self._registry, self._clock, self._to_time = registry, clock, to_time
        self._arrived, self._leave, self._closed, self._fresh = arrived, leave, closed, fresh
        self.instance = ""
        self._parser = Parser(name, to_time)
        # Chunks that have come, of one segment: they become one frame.
        self._chunks: list[bytes] = []
        self._seq = 0
        # The seqs below the head that the owner awaits, as the snapshot says that is on its way.
        self._awaited: set[int] = set()
        # By seq: CRC-32 of what has come of segments that are open, if somebody wants to know.
        self._crcs: dict[int, int] = {}
        # Segments with new bytes, of which no reader knows yet.
        self._grown: dict[Segment, None] = {}

    def hello(self) -> bytes:
        """Begin with a new connection: what is sent to the owner, once."""
        self._parser, self.live, self._awaited = Parser(self.name, self._to_time), False, set()
        if self.channel is not None and not self.channel.ended:
            have = tuple(HeldSegment(one.seq, one.size, one.state) for one in self.channel.segments.values())
            hello = record(Hello(self.name, self.instance, self.channel.epoch, have, self._closed is not None))
            if len(hello) <= MAX_HELLO:
                return hello
        return record(Hello(self.name, "", 0, (), self._closed is not None))

    def take(self, channel: Channel, instance: str) -> None:
        """Hold a channel that is here already: this server has owned it, and has handed it over.

        Args:
            instance: of this start of the server.
        """
        self.channel, self.instance = channel, instance

    def receive(self, data: bytes) -> FeedEnd | None:
        """Apply what has come; why the owner ends the feed, if it does.

        Readers are woken once for all bytes of their segment that came in this data.

        Raises:
            FeedError: this is no feed, or one of another version, or it does not go on from what is here.
            OutOfMemory: there is no memory for its bytes.
        """
        self._chunks = []
        try:
            for message in self._parser.feed(data):
                if type(message) is SegmentBytes and message.seq == self._seq and self._chunks:
                    self._chunks.append(message.chunk)
                    continue
                self._store()
                if type(message) is End:
                    if message.why is FeedEnd.VERSION:
                        raise OtherVersion
                    return message.why
                if type(message) is Begin:
                    self._begin(message)
                elif self.channel is None or not self._parser.epoch:
                    raise FeedError(f"{type(message).__name__} before BEGIN")
                else:
                    self._apply(self.channel, message)
            self._store()
        except LocalProtocolError as error:
            raise FeedError(str(error)) from error
        finally:
            grown, self._grown = self._grown, {}
            for segment in grown:
                if not segment.closed:  # otherwise they were woken when it closed
                    segment.wake(self._registry.faults)
            self._registry.faults.deliver()
        return None

    def _begin(self, begin: Begin) -> None:
        if begin.fresh and self._fresh is not None:
            self._crcs.clear()
            self.channel = self._fresh(begin.epoch)
        elif begin.fresh:
            self.end()
            self.channel = self._registry.replicate(self.name, begin.epoch, self._clock())
        elif self.channel is None or self.channel.ended or self.channel.epoch != begin.epoch:
            raise FeedError("the feed goes on with a channel that is not here")
        if begin.lives is not None:  # at once: readers of a part of them would be told wrong things
            self.channel.lives = begin.lives
        self.instance = begin.instance
        self.snapshots += 1

    def _apply(self, channel: Channel, message: Record) -> None:
        match message:
            case SegmentBytes():
                segment = channel.segments.get(message.seq)
                if segment is None or segment.state is not OPEN:
                    raise FeedError(f"bytes of segment {message.seq}, which is not open")
                self._seq, self._chunks = message.seq, [message.chunk]
            case SnapshotOver():
                if self.live:
                    raise FeedError("the snapshot is over twice")
                channel.go_live(message.facts, message.bytes_in, self._awaited, self._clock())
                self.live = True
                if self._arrived is not None:
                    self._arrived()
            case SegmentClosed() if self._closed is not None:
                crc = self._checksum(channel, message.seq)
                if self._parser.crc not in (None, crc):
                    raise FeedError(f"segment {message.seq} has other bytes here than at its owner: wrong checksum")
                channel.apply(message)
                self._crcs.pop(message.seq, None)
                self._closed(message.seq, message.size, crc)
            case Fact():
                channel.apply(message)
                if type(message) is SegmentAwaited and not self.live:
                    self._awaited.add(message.seq)
                if channel.ended:
                    self._registry.let_drain(channel)
            case Beat():
                pass
            case _:
                raise FeedError(f"{type(message).__name__} in the middle of a feed")

    def _store(self) -> None:
        """Put the chunks that have come into their segment, as one frame."""
        if not self._chunks:
            return
        chunks, self._chunks = self._chunks, []
        channel = self.channel
        assert channel is not None, "a channel has begun"
        segment, frame = channel.segments[self._seq], encode_frame(chunks)
        if not channel.bytes_stored(segment, frame, sum(map(len, chunks)), segment.price(frame)):
            raise OutOfMemory("there is no memory for its bytes")
        if self._closed is not None:
            # Of all bytes: if none was counted yet, some may have been here before this replica held the channel.
            crc = self._crcs.get(self._seq)
            self._crcs[self._seq] = _crc(segment.payload()) if crc is None else _crc(chunks, crc)
        channel.active_at = self._clock()
        self._grown[segment] = None

    def _checksum(self, channel: Channel, seq: int) -> int:
        """CRC-32 of what is here of a segment."""
        if (crc := self._crcs.get(seq)) is not None:
            return crc
        segment = channel.segments.get(seq)
        return 0 if segment is None else _crc(segment.payload())

    def end(self) -> None:
        """Let go of the channel, unless it has ended: here it is over, and its readers are told."""
        self.live = False
        self._crcs.clear()
        channel = self.channel
        if channel is None or channel.ended:
            return
        if self._leave is not None:
            self._leave(channel)
        channel.abandon(self._clock())
        if self._leave is None:
            self._registry.let_drain(channel)
        else:
            self._registry.let_go(channel)
        self._registry.faults.deliver()


def _crc(chunks: Iterable[bytes | memoryview], crc: int = 0) -> int:
    for chunk in chunks:
        crc = crc32(chunk, crc)
    return crc
