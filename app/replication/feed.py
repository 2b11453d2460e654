"""The feed of a channel, from which a replica serves readers as the owner does.

A feed is a cursor, like every reader's. It begins with a snapshot: facts that say how things stand, and the bytes that
the replica lacks. Then come the facts as they happen, each after the bytes that must be there before it. The bytes are
read from the segments when the replica takes them, and are held nowhere else. So a replica that catches up is served
like one that is up to date, and the stream on which the feed is sent gives the back-pressure.

No turn of the event loop takes long for a snapshot. Closed segments never change, so the facts about them are made when
the replica takes them; those about the others are made at once. With 20,000 of these, as many as a server admits
publishers, that takes 13 ms; with 20,000 closed ones 8 ms, and 0.1 ms with the usual window of 256.

A feed is bounded like every reader: a replica that is :data:`MAX_BEHIND` facts behind, or whose segment's memory is
needed, is cut off (:attr:`FeedEnd.LAG`), and begins again with a snapshot. That one lacks only what the replica has not
got before, so a slow replica gets further each time.

A channel of which this server has a copy (:class:`~tricklecast.app.core.copies.Copy`) is followed like one that it
owns, as long as the copy is settled. When the feed of the copy itself begins anew, those that follow it do so, too.

The replica goes on with its readers while the snapshot is on its way. So the snapshot never says that a segment for
which only readers wait is not there, since such readers come and go. It ends with the segments below the head that the
owner awaits; then readers of any other one that has no byte are told that it was skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    HeadJumped,
    NumberingNamed,
    PlaylistMarked,
    SegmentAwaited,
    SegmentClosed,
    SegmentEvicted,
    SegmentOpened,
)
from tricklecast.app.core.segment import OPEN, WAITING, Segment, State
from tricklecast.app.core.state import Channel
from tricklecast.app.core.window import Budget, Eviction
from tricklecast.app.replication.records import (
    Begin,
    End,
    FeedEnd,
    HeldSegment,
    Hello,
    SnapshotOver,
    chunk_records,
    fact_record,
    record,
)

MAX_BEHIND: Final = 10_000
"""Facts since the snapshot that a replica may be behind: the busiest channel makes them in seconds; they take 2 MB."""


class _Outgoing:
    """A segment that is being sent.

    Attributes:
        sent: how many of its frames are sent. skip: bytes of those that follow which the replica has already.
        crc: of the frames that are sent, if the replica wants to know.
    """

    __slots__ = ("crc", "segment", "sent", "skip")

    def __init__(self, segment: Segment, skip: int = 0) -> None:
        self.segment = segment
        self.sent, self.skip, self.crc = 0, skip, 0


class Feed:
    """One replica's place in a channel. The caller sends what it pulls, and ends it.

    Args:
        channel: of which this is the owner, or has a copy.
        hello: what the replica has said.
        budget: of the server.
        instance: the name of this start of the server.
        to_us: turns the registry's time into microseconds since 1970.
        news: called when there is something to :meth:`pull` again.

    Attributes:
        over: why the feed has ended; the last record says it, too.
        told: the number of the last fact that was pulled; ``None`` until the snapshot is over.
    """

    def __init__(
        self,
        channel: Channel,
        hello: Hello,
        budget: Budget,
        instance: str,
        to_us: Callable[[float], int],
        news: Callable[[], None],
    ) -> None:
        self.over: FeedEnd | None = None
        self.told: int | None = None
        self._channel, self._budget, self._to_us, self._news = channel, budget, to_us, news
        self._checksums = hello.checksums
        # Records that the next pull returns, and their bytes.
        self._records: list[bytes | memoryview] = []
        self._size = 0
        # Facts that are not sent, those of the snapshot first. A closed segment stands for the facts about it. ``None``
        # is the place where the snapshot is over.
        self._facts: deque[Fact | Segment | None] = deque()
        # The segments of which bytes are not sent, or may still come.
        self._outgoing: dict[int, _Outgoing] = {}
        have = {one.seq: one for one in hello.have}
        starts = {instance, channel.predecessor or instance}
        known = hello.epoch == channel.epoch and hello.instance in starts
        fresh = not known or _contradicts(channel, have)
        self._add(record(Begin(instance, channel.epoch, fresh, channel.lives)))
        self._snapshot_facts = channel.facts
        self._snapshot_over = record(self._snapshot({} if fresh else have))
        # The most facts that may wait: those of the snapshot, and as many as may happen until it is sent.
        self._most = len(self._facts) + MAX_BEHIND
        channel.follow(self._hear)
        if not channel.settled:
            self.end(FeedEnd.LAG)

    # The cursor.

    def wake(self) -> None:
        """A segment has more, or has closed."""
        self._news()

    def evict(self) -> None:
        """Memory is short: the bytes that the replica has not taken are lost."""
        self.end(FeedEnd.LAG)

    def _hear(self, fact: Fact) -> None:
        if self.over is not None:
            return  # it has ended while others were told of this fact
        if not fact.number:
            self.end(FeedEnd.LAG)  # this is a copy, and its owner begins anew
            return
        self._facts.append(fact)
        if type(fact) is SegmentOpened:
            self._read(self._channel.segments[fact.seq])
        if len(self._facts) > self._most:
            self.end(FeedEnd.LAG)
        self._news()

    def _read(self, segment: Segment, skip: int = 0) -> None:
        segment.tap(self)
        self._outgoing[segment.seq] = _Outgoing(segment, skip)

    def _leave(self, segment: Segment) -> None:
        segment.untap(self)
        self._budget.settle(segment)

    def end(self, why: FeedEnd) -> None:
        """Nothing more is sent but the reason."""
        if self.over is not None:
            return
        self.over = why
        self._channel.unfollow(self._hear)
        for outgoing in self._outgoing.values():
            self._leave(outgoing.segment)
        self._outgoing.clear()
        self._facts.clear()
        self._add(record(End(why)))
        self._news()

    # What is sent.

    def pull(self, most: int) -> list[bytes | memoryview]:
        """The next records, about ``most`` bytes of them; none if there is nothing to send at present."""
        while self._facts and self._size < most:
            fact = self._facts[0]
            if isinstance(fact, Segment):
                self._facts.popleft()
                self._facts.extendleft(reversed(list(self._facts_about(fact))))
                continue
            if fact is None:
                self._add(self._snapshot_over)
                self.told = self._snapshot_facts
            else:
                crc: int | None = None
                if type(fact) is SegmentClosed and (outgoing := self._outgoing.get(fact.seq)) is not None:
                    if not self._take(outgoing, most):
                        break
                    del self._outgoing[fact.seq]
                    self._leave(outgoing.segment)
                    crc = outgoing.crc if self._checksums else None
                elif type(fact) is SegmentClosed and self._checksums and not fact.size:
                    crc = 0  # of no byte; a segment that is not here any more has none
                self._add(fact_record(fact, self._to_us, crc))
                self.told = fact.number or self.told
            self._facts.popleft()
        if not self._facts:
            for outgoing in self._outgoing.values():
                self._take(outgoing, most)
        if self._channel.ended and not (self._facts or self._outgoing):
            self.end(FeedEnd.ENDED)
        records, self._records, self._size = self._records, [], 0
        return records

    def _add(self, one: bytes | memoryview) -> None:
        self._records.append(one)
        self._size += len(one)

    def _take(self, outgoing: _Outgoing, most: int) -> bool:
        """Add bytes of a segment; whether that was all of them."""
        segment = outgoing.segment
        while outgoing.sent < len(segment.frames):
            if self._size >= most:
                return False
            for chunk in segment.payload(outgoing.sent, outgoing.sent + 1):
                if self._checksums:
                    outgoing.crc = crc32(chunk, outgoing.crc)
                skipped = min(outgoing.skip, len(chunk))
                outgoing.skip -= skipped
                for one in chunk_records(segment.seq, chunk[skipped:]):
                    self._add(one)
            outgoing.sent += 1
        return True

    # The snapshot.

    def _snapshot(self, have: Mapping[int, HeldSegment]) -> SnapshotOver:
        """Say how things stand, to a replica that has some segments already."""
        channel = self._channel
        say = self._facts.append
        say(self._fact(ChannelCreated, channel.created_at, channel.content_type, channel.life.name))
        if channel.life.first is not None:
            say(self._fact(NumberingNamed, channel.created_at, channel.life.name, channel.life.first))
        say(self._fact(PlaylistMarked, channel.active_at, channel.playlist))
        say(self._fact(HeadJumped, channel.created_at, channel.floor))
        say(self._fact(HeadJumped, channel.created_at, channel.jumped_to))
        for lost in have.values():
            if lost.seq not in channel.segments:
                self._facts += self._facts_about_lost(lost)
        awaited = []
        for segment in sorted(channel.segments.values(), key=lambda one: one.seq):
            held = have.get(segment.seq)
            if held is not None and held.closed:
                continue
            if segment.size:
                self._read(segment, 0 if held is None else held.size)
            if segment.closed:
                say(segment)
            elif segment.written or segment.size:
                self._facts += self._facts_about(segment)
            else:
                if held is not None:
                    say(self._fact(BodyLeft, segment.opened_at, segment.seq))
                if segment.seq < channel.next_seq:
                    awaited.append(segment.seq)
        self._facts += (self._fact(SegmentAwaited, channel.active_at, seq) for seq in awaited)
        if channel.ended:
            say(self._fact(ChannelEnded, channel.active_at, channel.next_seq, EndReason.DELETED))
        say(None)
        # Bytes that are sent after the snapshot are no part of it.
        ahead = sum(one.segment.size - one.skip for one in self._outgoing.values() if not one.segment.closed)
        return SnapshotOver(channel.facts, channel.bytes_in - ahead)

    def _fact(self, kind: type[Fact], at: float, *about: object) -> Fact:
        """A fact of a snapshot, which has no number."""
        return kind(0, 0, at, self._channel.name, self._channel.epoch, *about)

    def _facts_about_lost(self, lost: HeldSegment) -> Iterator[Fact]:
        """The replica has a segment that is not there any more."""
        seq, at = lost.seq, self._channel.active_at
        if lost.state is WAITING:
            yield self._fact(BodyLeft, at, seq)
            return
        if lost.state is OPEN:
            yield self._fact(SegmentClosed, at, seq, State.TRUNCATED, lost.size, None)
        yield self._fact(SegmentEvicted, at, seq, Eviction.COUNT)

    def _facts_about(self, segment: Segment) -> Iterator[Fact]:
        """How a segment that has begun stands."""
        seq, opened_at = segment.seq, segment.opened_at
        # Also without a key of an earlier body: a key that the replica has may be of one that left no byte.
        former: Sequence[str | None] = segment.former_keys or ((None,) if segment.body_at else ())
        for body_at, key in enumerate(former):
            yield self._fact(BodyBegun, opened_at, seq, key, body_at)
        yield self._fact(BodyBegun, opened_at, seq, segment.key, segment.body_at)
        if segment.size:
            yield self._fact(SegmentOpened, opened_at, seq)
        if segment.closed_at is not None:
            yield self._fact(SegmentClosed, segment.closed_at, seq, segment.state, segment.size, segment.key)
        elif not segment.written:
            yield self._fact(BodyLeft, opened_at, seq)


def _contradicts(channel: Channel, have: Mapping[int, HeldSegment]) -> bool:
    """Whether a replica has bytes that were never here, or has a segment closed that is not."""
    for segment in map(channel.segments.get, have):
        if segment is not None:
            held = have[segment.seq]
            if held.size > segment.size or (held.closed and (held.state, held.size) != (segment.state, segment.size)):
                return True
    return False
