"""The feed of a channel: all that another holder needs to serve its readers, from what it has already to what happens.

A feed is a cursor, like every reader's. It begins with a snapshot: facts that say how things stand, and the bytes that
the replica lacks. Then come the facts as they happen, each after the bytes that must be there before it. The bytes are
read from the segments when the replica takes them, and are held nowhere else, so that catching up and live are one way,
and the back-pressure is that of the stream on which the feed is sent.

A feed is bounded like every reader: a replica that is :data:`MAX_BEHIND` facts behind, or whose segment's memory is
needed, is cut off (:attr:`Over.LAG`), and begins again with a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tricklecast.app.cluster.records import VERSION, FeedError, Kind, Over, chunk_records, fact_record, record
from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    HeadJumped,
    NumberingNamed,
    SegmentAwaited,
    SegmentClosed,
    SegmentEvicted,
    SegmentForgotten,
    SegmentOpened,
)
from tricklecast.app.core.segment import WAITING, Segment, State
from tricklecast.app.core.state import Channel
from tricklecast.app.core.window import Budget, Eviction

MAX_BEHIND: Final = 10_000
"""Facts that a replica may be behind: seconds of the busiest channel, and 2 MB."""


class _Source:
    """A segment that is read for the feed: the first frame that is not sent, and the bytes to pass over before."""

    __slots__ = ("done", "passed", "segment")

    def __init__(self, segment: Segment, passed: int = 0) -> None:
        self.segment = segment
        self.done, self.passed = 0, passed

    @property
    def left(self) -> int:
        """Frames that are not sent."""
        return len(self.segment.frames) - self.done


class Feed:
    """One replica's place in a channel.

    Args:
        channel: of which this is the owner.
        hello: what the replica has said (:mod:`~tricklecast.app.cluster.records`).
        budget: of the server.
        instance: the name of this start of the server.
        to_us: turns the registry's time into microseconds since 1970.
        wake: called when there is something to :meth:`pull` again.

    Attributes:
        over: why the feed has ended; the last record says it, too.

    Raises:
        FeedError: the replica speaks another version.
    """

    def __init__(
        self,
        channel: Channel,
        hello: dict[str, Any],
        budget: Budget,
        instance: str,
        to_us: Callable[[float], int],
        wake: Callable[[], None],
    ) -> None:
        if hello.get("version") != VERSION:
            raise FeedError(f"version {hello.get('version')!r} of the feed is not known; this is {VERSION}")
        self.over: Over | None = None
        self._channel, self._budget, self._to_us, self._wake = channel, budget, to_us, wake
        self._records: list[bytes | memoryview] = []
        # Facts that are not sent, those of the snapshot first; ``None`` is the place where the snapshot is over.
        self._facts: deque[Fact | None] = deque()
        # Bytes that are in the channel and are sent after the snapshot.
        self._ahead = 0
        self._sources: dict[int, _Source] = {}
        fresh = (hello.get("instance"), hello.get("epoch")) != (instance, channel.epoch)
        begin = {"version": VERSION, "instance": instance, "epoch": channel.epoch, "fresh": fresh}
        self._records.append(record(Kind.BEGIN, begin))
        self._snapshot({} if fresh else {seq: (size, closed) for seq, size, closed in hello["have"]})
        self._live = record(Kind.LIVE, {"facts": channel.facts, "bytes_in": channel.bytes_in - self._ahead})
        channel.followers.append(self._hear)

    # The cursor.

    def wake(self) -> None:
        """A segment has more, or has closed."""
        self._wake()

    def evict(self) -> None:
        """Memory is short: what the replica has not taken is lost."""
        self.end(Over.LAG)

    def _hear(self, fact: Fact) -> None:
        self._facts.append(fact)
        if type(fact) is SegmentOpened:
            self._read(_Source(self._channel.segments[fact.seq]))
        if len(self._facts) > MAX_BEHIND:
            self.end(Over.LAG)
        self._wake()

    def _read(self, source: _Source) -> None:
        source.segment.tap(self)
        self._sources[source.segment.seq] = source

    def _leave(self, source: _Source) -> None:
        source.segment.untap(self)
        self._budget.settle(source.segment)

    def end(self, why: Over) -> None:
        """Nothing more is sent but the reason."""
        if self.over is not None:
            return
        self.over = why
        self._channel.followers.remove(self._hear)
        for source in self._sources.values():
            self._leave(source)
        self._sources.clear()
        self._facts.clear()
        self._records.append(record(Kind.END, {"why": why}))
        self._wake()

    # What is sent.

    def pull(self, most: int) -> list[bytes | memoryview]:
        """The next records, about ``most`` bytes of them; none if there is nothing to send at present."""
        while self._facts and self._size() < most:
            fact = self._facts[0]
            if fact is None:
                self._records.append(self._live)
            else:
                if isinstance(fact, SegmentClosed) and (source := self._sources.get(fact.seq)) is not None:
                    if not self._take(source, most):
                        break
                    del self._sources[fact.seq]
                    self._leave(source)
                self._records.append(fact_record(fact, self._to_us))
            self._facts.popleft()
        if not self._facts:
            for source in self._sources.values():
                self._take(source, most)
        if self._channel.ended and not (self._facts or self._sources):
            self.end(Over.ENDED)
        records, self._records = self._records, []
        return records

    def _size(self) -> int:
        return sum(map(len, self._records))

    def _take(self, source: _Source, most: int) -> bool:
        """Add bytes of a segment; whether that was all of them."""
        size = self._size()
        while source.left and size < most:
            for chunk in source.segment.payload(source.done, source.done + 1):
                if (passed := min(source.passed, len(chunk))) < len(chunk):
                    self._records += chunk_records(source.segment.seq, chunk[passed:])
                source.passed -= passed
                size += len(chunk)
            source.done += 1
        return not source.left

    # The snapshot.

    def _snapshot(self, have: dict[int, tuple[int, bool]]) -> None:
        """Say how things stand, to a replica that has some segments already: seq, bytes, whether it is closed."""
        channel = self._channel
        self._say(ChannelCreated, channel.created_at, channel.content_type, channel.life.name)
        if channel.life.first is not None:
            self._say(NumberingNamed, channel.created_at, channel.life.name, channel.life.first)
        self._say(HeadJumped, channel.created_at, channel.floor)
        for seq, (size, closed) in have.items():
            if seq not in channel.segments:
                self._say_gone(seq, size, closed)
        for segment in sorted(channel.segments.values(), key=lambda one: one.seq):
            self._say_segment(segment, *have.get(segment.seq, (0, False)), known=segment.seq in have)
        if channel.ended:
            self._say(ChannelEnded, channel.active_at, channel.next_seq, EndReason.DELETED)
        self._facts.append(None)

    def _say(self, kind: type[Fact], at: float, *about: object) -> None:
        self._facts.append(kind(0, 0, at, self._channel.name, self._channel.epoch, *about))

    def _say_gone(self, seq: int, size: int, closed: bool) -> None:
        """The replica has a segment that is not there any more."""
        at = self._channel.active_at
        if not closed and size:
            self._say(SegmentClosed, at, seq, State.TRUNCATED, size, None)
        if closed or size:
            self._say(SegmentEvicted, at, seq, Eviction.COUNT)
        else:
            self._say(SegmentForgotten, at, seq)

    def _say_segment(self, segment: Segment, size: int, closed: bool, *, known: bool) -> None:
        """A segment that is there; the replica has ``size`` bytes of it, and whether it is closed."""
        seq, opened_at = segment.seq, segment.opened_at
        if closed:
            return
        if segment.state is WAITING and not segment.written:
            if seq < self._channel.next_seq:
                self._say(SegmentAwaited, opened_at, seq)
            elif known:
                self._say(BodyLeft, opened_at, seq)
            return
        for body_at, key in enumerate(segment.former_keys):
            self._say(BodyBegun, opened_at, seq, key, body_at)
        self._say(BodyBegun, opened_at, seq, segment.key, segment.body_at)
        if segment.size and not size:
            self._say(SegmentOpened, opened_at, seq)
        if segment.size:
            self._read(_Source(segment, size))
        if segment.closed:
            assert segment.closed_at is not None, "it has closed"
            self._say(SegmentClosed, segment.closed_at, seq, segment.state, segment.size, segment.key)
            return
        self._ahead += segment.size - size
        if not segment.written:
            self._say(BodyLeft, opened_at, seq)
