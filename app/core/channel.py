"""One epoch of one channel: its head, its window, its writers and its waiting readers.

Rules kept here (docs/reference/protocol.md, sections 1 to 5):

- ``next_seq`` moves in :meth:`Channel._advance` only, and only upwards.
- A segment closes in :meth:`Channel._close` only; its cursors and preempted writers are told when the change is done.
- A change is whole or has not happened: nothing in the middle of it calls back, and what a callback raises at its end
  is kept until every other one has been called.
- A writer acts through its token; a stale token changes nothing.
- No segment below the head waits for long (:meth:`Channel._spare`).
- A body with a key is stored once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, count
from operator import attrgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tricklecast.app.core.events import ChannelStatistics, EndReason, Journal
from tricklecast.app.core.limits import UNLIMITED, Capacity, Limits, Payer
from tricklecast.app.core.publishers import Identity, Publishers
from tricklecast.app.core.results import Ahead, AlreadyStored, Ended, Gone, Outcome, Refusal, Verdict, Why
from tricklecast.app.core.segment import (
    FINISH,
    OPEN,
    SKIP,
    TERMINATE,
    TRUNCATE,
    WAITING,
    Cursor,
    Event,
    Faults,
    Segment,
    State,
    Writer,
    WriterOwner,
    encode_frame,
    prefix,
)
from tricklecast.app.core.window import Budget, Window
from tricklecast.trickle.wire import LAST_SEQ, NO_LIFE, SEQ_CURRENT, SEQ_NEXT, Life

STALE_TIMES: Final = 64
"""How many outdated times, beside twice as many as are set, an agenda may hold before it drops them."""

ANONYMOUS: Final = Identity()
"""The server itself, as the publisher of its own channels."""

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """Keys with a time each, earliest first: setting, clearing and taking one out cost O(log n).

    Attributes:
        times: the time of each key; to be read only.
    """

    __slots__ = ("_heap", "_numbers", "times")

    def __init__(self) -> None:
        self.times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = count()

    @property
    def next(self) -> float | None:
        """The earliest time."""
        heap = self._heap
        while heap and self.times.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def set(self, key: K, when: float) -> None:
        """Give a key its time, in place of the one that it had."""
        self.times[key] = when
        heappush(self._heap, (when, next(self._numbers), key))
        if len(self._heap) > 2 * len(self.times) + STALE_TIMES:
            self._heap = [(when, next(self._numbers), key) for key, when in self.times.items()]
            heapify(self._heap)

    def clear(self, key: K) -> None:
        """Take a key out, if it is there."""
        self.times.pop(key, None)

    def pop(self, now: float) -> K | None:
        """Take the earliest key out whose time has come, if there is one."""
        when = self.next
        if when is None or when > now:
            return None
        key = heappop(self._heap)[2]
        del self.times[key]
        return key


class Serve(NamedTuple):
    """The segment has bytes or is closed: the reader is answered now.

    Attributes:
        head: ``next_seq`` at this moment, for ``Lp-Trickle-Latest``.
    """

    channel: Channel
    segment: Segment
    head: int


class Wait(NamedTuple):
    """The segment is next: the reader attaches a cursor, and is answered when the segment has a byte or closes.

    A caller that does not attach a cursor must ``release`` the segment.
    """

    channel: Channel
    segment: Segment
    head: int


class KeptSegment(NamedTuple):
    """What is known of a segment without reading it.

    Attributes:
        opened_us, closed_us: when, microseconds since 1970.
    """

    seq: int
    state: State
    size: int
    opened_us: int
    closed_us: int | None


def described(segment: Segment, to_us: Callable[[float], int]) -> KeptSegment:
    """Describe a segment in memory, which has begun or closed.

    Args:
        to_us: turns the registry's time into microseconds since 1970.
    """
    closed_us = None if segment.closed_at is None else to_us(segment.closed_at)
    opened_us = to_us(segment.opened_at or segment.closed_at or 0)
    return KeptSegment(segment.seq, segment.state, segment.size, opened_us, closed_us)


class Kept(Protocol):
    """Segments of one channel that storage keeps beyond the window."""

    def listed(self, seq: int, since_us: int) -> Iterator[KeptSegment]:
        """The closed ones from this seq on, ascending, from the first one that closed at this time or later."""

    def find(self, seq: int) -> Segment | None:
        """A segment that has left the window: for one reader, if it has a source; ``None`` if it is not kept."""

    def following(self, seq: int) -> int | None:
        """The lowest seq at or above this one that is kept."""

    def crc(self, seq: int) -> int | None:
        """The CRC-32 of a closed segment's bytes; ``None`` if it is not wholly kept."""


class Channel:
    """A named, ordered stream of segments, in one of its lives.

    Args:
        name, epoch, content_type: see below.
        now: the time in seconds.
        limits, budget, journal, faults: of the server.
        schedule: told of each time at which :meth:`expire` should be called.
        life: see below; unless the first publisher that writes names another one.

    Attributes:
        name, epoch: the name, and which life of it this is (1, 2, ...).
        content_type: set once, ``""`` until then.
        next_seq: the head: one past the newest segment that got its first byte or was closed.
        restored_at: the head with which it came back when the server started; 0 for one that did not.
        floor: seqs below it are settled: evicted, or jumped over when a publisher resumed its numbering.
        segments: by seq: kept, open and waiting ones.
        window: the closed ones among them, kept for catching up.
        ended: whether the channel is over; drain_until: when its name is then forgotten.
        publishers: the clients that publish to it.
        active_at: when something was last published; bytes_in, bytes_out: for statistics; reading: its readers.
        life: the numbering of what is written from now on, as its readers are told. Its ``first`` is ``None`` until
            something is written in this start of the server.
        kept: what storage keeps of it; ``None`` without storage.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        content_type: str,
        now: float,
        *,
        limits: Limits,
        budget: Budget,
        journal: Journal,
        faults: Faults,
        schedule: Callable[[Channel, float], None],
        life: Life = NO_LIFE,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.content_type = content_type
        self.created_at = self.active_at = now
        self.segments: dict[int, Segment] = {}
        self.window = Window(limits, budget, self._evicted, self._give_open)
        self.ended = False
        self.drain_until: float | None = None
        self.next_seq = self.restored_at = self.floor = self.bytes_in = self.bytes_out = 0
        self.life = life
        # The lowest seq of that numbering that was written, or that its publisher says it began with.
        self._first = LAST_SEQ + 1
        self.kept: Kept | None = None
        self.reading = Capacity(limits.readers_per_channel)
        # Players that fetch playlists and media, less the cursors that serve them. HLS keeps this number.
        self.players_beside = 0
        self.publishers = Publishers(limits.publisher_grace_s)
        self._limits, self._budget, self._journal, self._faults = limits, budget, journal, faults
        # Bytes of memory that its unfinished segments may take.
        self._quota = UNLIMITED if limits.channel_bytes is None else limits.channel_bytes
        self._schedule = schedule
        self._waiting: dict[int, Segment] = {}
        self._open: dict[int, Segment] = {}
        self._deadlines: Agenda[Segment] = Agenda()
        # Free seqs: from the head up to _unreserved only those in _freed, beyond it all without a writer.
        self._unreserved = 0
        self._freed: Agenda[int] = Agenda()
        self._woken: list[Segment] = []
        self._preempted: list[Writer[Channel]] = []

    def __repr__(self) -> str:
        return f"<Channel {self.name!r}.{self.epoch} head {self.next_seq}{' ended' if self.ended else ''}>"

    # Reading.

    @property
    def earliest(self) -> int:
        """The oldest seq that can be read now; the head if there is none."""
        in_window = self.window.earliest
        oldest = min([*self._open, self.next_seq if in_window is None else in_window])
        return self._or_kept(oldest, 0)

    @property
    def unclosed(self) -> list[Segment]:
        """The waiting and the open segments."""
        return [*self._waiting.values(), *self._open.values()]

    @property
    def audience(self) -> int:
        """Readers as people count them: a client that waits for the next segment while it reads one is one reader.

        Which cursors belong together is not known: those in one segment are taken for those in the next one.
        """
        cursors = self.reading.used
        if cursors:
            for segment in chain(self._waiting.values(), self._open.values()):
                before = self.segments.get(segment.seq - 1)
                if segment.cursors and before is not None:
                    cursors -= min(len(segment.cursors), len(before.cursors))
        return max(0, cursors + self.players_beside)

    def resolve(self, seq: int) -> Serve | Wait | Ahead | Gone | Ended:
        """Find what a GET of N, -1 (the head), -2 (the newest started one) or -N means now; it may create the head."""
        head = self.next_seq
        if seq < 0:
            seq = max(head + seq + 1, self.earliest if seq < SEQ_CURRENT else 0)
        if (segment := self.segments.get(seq)) is not None:
            return (Wait if segment.state is WAITING else Serve)(self, segment, head)
        if seq < head:
            if self.kept is not None and (segment := self.kept.find(seq)) is not None:
                return Serve(self, segment, head)
            return Gone(seq, head, self.earliest, self._following(seq), self.life)
        if self.ended:
            return Ended(seq, head, self.epoch, self.content_type, self.life)
        if seq == head or (head == 0 and seq == 1):
            return Wait(self, self._create(seq), head)
        return Ahead(seq, head, self.earliest, self.life)

    def after(self, seq: int) -> tuple[Serve | Wait | Ahead | Ended, int]:
        """What a reader of a segment that has closed reads next, and how many segments between cannot be had."""
        missed = 0
        found = self.resolve(seq + 1)
        while isinstance(found, Gone):
            missed += found.following - found.seq
            found = self.resolve(found.following)
        return found, missed

    def _following(self, seq: int) -> int:
        """The lowest seq above this one that can be read or waited for."""
        return self._or_kept(self.following_in_memory(seq), seq + 1)

    def following_in_memory(self, seq: int) -> int:
        """The same without those that only storage keeps."""
        return min((at for at in self.segments if at > seq), default=self.next_seq)

    def _or_kept(self, live: int, seq: int) -> int:
        """A seq in memory, or the lowest one from ``seq`` on that storage keeps, if that is lower."""
        stored = None if self.kept is None else self.kept.following(seq)
        return live if stored is None or stored > live else stored

    def listed(self, seq: int, since_us: int, to_us: Callable[[float], int]) -> Iterator[KeptSegment]:
        """The segments that can be read, from a seq and a time on, ascending; storage's before the window's.

        Args:
            since_us: the first one has not closed before, microseconds since 1970.
            to_us: turns the registry's time into microseconds since 1970.
        """
        live = {one.seq: one for one in self.segments.values() if one.state is not WAITING and one.seq >= seq}
        if self.kept is not None:
            yield from (one for one in self.kept.listed(seq, since_us) if one.seq not in live)
        for _, segment in sorted(live.items()):
            one = described(segment, to_us)
            if one.closed_us is None or one.closed_us >= since_us:
                yield one

    def attach(self, cursor: Cursor, segment: Segment) -> None:
        """Count a reader in; it is woken whenever there is more, until the segment has closed."""
        self.reading.take()
        segment.cursors[cursor] = None

    def detach(self, cursor: Cursor, segment: Segment) -> None:
        """Count a reader out; from within the cursor's wake only if the segment is closed."""
        self.reading.give_back()
        del segment.cursors[cursor]
        (self._budget.settle if segment.closed else self.release)(segment)

    def release(self, segment: Segment) -> None:
        """Forget a waiting segment that no reader waits for any more."""
        waits = self._waiting.get(segment.seq) is segment
        if waits and not segment.is_wanted and segment not in self._deadlines.times:
            self._discard(segment)

    # Writing.

    def first_free(self) -> int:
        """The first seq at or after the head that has no writer. Amortised O(log n), however many have one."""
        if self._freed.times:
            while self._freed.pop(self.next_seq - 1) is not None:
                pass  # settled since
            if (freed := self._freed.next) is not None:
                return int(freed)
        seq = self._unreserved if self._unreserved > self.next_seq else self.next_seq
        while (segment := self.segments.get(seq)) is not None and segment.writer is not None:
            seq += 1
        self._unreserved = seq
        return seq

    def reserve(
        self,
        seq: int,
        owner: WriterOwner,
        serial: int,
        now: float,
        *,
        reset: bool = False,
        key: str | None = None,
        attempt: int = 1,
        claim: Life | None = None,
        client: Identity = ANONYMOUS,
        if_idle: bool = False,
        payer: Payer | None = None,
    ) -> Writer[Channel] | AlreadyStored | Refusal:
        """Give out the right to write a segment (section 3).

        Args:
            seq: N, or -1 for the first free one.
            owner: told if the server or another client ends this writer's part.
            serial: a number greater than that of every earlier writer.
            now: the time in seconds.
            reset: close all lower open segments first, and allow any seq at or after the head.
            key, attempt: of the body; a POST with the key of the stored body sends the same body, from its start.
            claim: the numbering with which its publisher goes on. The first publisher that writes decides.
            client: the publisher. if_idle: refuse if another client publishes; a retry of the stored body may go on.
            payer: whose memory the segment is while it is being written; ``None`` for the server's own.
        """
        if seq == SEQ_NEXT and (seq := self.first_free()) > LAST_SEQ:
            return self.refuse(Why.CLOSED, LAST_SEQ)
        segment = self.segments.get(seq)
        if if_idle and (key is None or segment is None or segment.key != key):
            refusal = self.refuse_beside_others(client, seq, now)
            if refusal is not None:
                return refusal
        if segment is None:
            if seq < self.floor:
                return self.refuse(Why.CLOSED, seq)
            if seq > self.next_seq + 1 and self.next_seq > self.restored_at and not reset:
                near = seq <= self.next_seq + self._limits.overtaking_segments
                return self.refuse(Why.AHEAD, seq)._replace(overtaking=near)
        elif segment.closed:
            if segment.is_finished_by(key):
                return AlreadyStored(seq, segment.size, self.epoch)
            return self.refuse(Why.CLOSED, seq)
        elif not segment.admits(key, attempt):
            return self.refuse(Why.CLOSED, seq)
        if reset:
            for lower in [opened for opened in self._open.values() if opened.seq < seq]:
                self._preempt(lower, Verdict.CLOSED_BY_OTHER)
                self._close(lower, TRUNCATE, now)
        if segment is None:
            segment = self._create(seq)
        elif segment.writer is not None:
            self._preempt(segment, Verdict.SUPERSEDED)
        else:
            self._deadlines.clear(segment)  # the grace for a writer to come
        repeated = segment.begin_body(key)
        segment.charge(payer)
        presence = self.publishers.join(client, now, self.active_at)
        writer = Writer(self, segment, serial, owner, presence, attempt=attempt, repeated=repeated, claim=claim)
        segment.writer = writer
        if self._freed.times:
            self._freed.clear(seq)
        self._expect_begin(segment, now)
        self._notify()
        return writer

    def append(self, writer: Writer[Channel], chunks: Sequence[bytes], now: float) -> Outcome | None:
        """Store chunks and wake the readers.

        Returns:
            ``None`` if the segment takes more; otherwise how the writer's part ended (a stale token: as before).
        """
        if writer.outcome is not None:
            return writer.outcome
        if (refused := self._store(writer, chunks, now)) is not None:
            return self._cut(writer, refused, now)
        writer.segment.wake(self._faults)
        if self._woken or self._faults.noted:
            self._tell()
        return None

    def finish(self, writer: Writer[Channel], chunks: Sequence[bytes], now: float) -> Outcome:
        """The publisher's body ended, after these last chunks. A stale token changes nothing."""
        if writer.outcome is not None:
            return writer.outcome
        segment = writer.segment
        if chunks and (refused := self._store(writer, chunks, now)) is not None:
            return self._cut(writer, refused, now)
        if writer.repeated:
            return self._break_off(writer, Verdict.NOT_THE_SAME, now)
        outcome = self._settle(writer, Verdict.COMPLETE if segment.size else Verdict.EMPTY)
        self.active_at = now
        self.publishers.last = writer.presence
        self._close(segment, FINISH, now)
        self._notify()
        if self._faults.noted:
            self._faults.deliver()
        return outcome

    def abort(self, writer: Writer[Channel], now: float) -> None:
        """The publisher's connection broke before its body ended. A stale token changes nothing."""
        if writer.outcome is None:
            self._break_off(writer, Verdict.ABORTED, now)

    def close_segment(self, seq: int, now: float, *, truncate: bool = False) -> Refusal | None:
        """Close one segment by request, as truncated if ``truncate``; closing a closed one is no error."""
        segment = self.segments.get(seq)
        if segment is None:
            return self.refuse(Why.NO_SEGMENT, seq)
        if not segment.closed:
            self._preempt(segment, Verdict.CLOSED_BY_OTHER)
            segment.key = None  # no body came to its end here
            self._close(segment, TRUNCATE if truncate and segment.size else FINISH, now)
            self._notify()
        return None

    def refuse(self, why: Why, seq: int | None = None) -> Refusal:
        """A refusal that says where the channel stands."""
        return Refusal(why, seq, self.next_seq, self.epoch, life=self.life)

    def refuse_beside_others(self, client: Identity, seq: int | None, now: float) -> Refusal | None:
        """The refusal of a client that must not disturb others, if another one publishes."""
        occupied = self.publishers.other_than(client, now, self.active_at)
        return None if occupied is None else self.refuse(Why.OCCUPIED, seq)._replace(occupied=occupied)

    # The end, and time.

    def end(self, reason: EndReason, now: float) -> None:
        """End the channel: every reader and writer is told; what is kept stays readable for the drain."""
        self.ended = True
        self.drain_until = now + self._limits.channel_drain_s
        for segment in self.unclosed:
            self._preempt(segment, Verdict.TERMINATED)
            if segment.state is OPEN:
                self._close(segment, TERMINATE, now)
            else:
                # It never moved the head; neither does its end, and there is nothing to keep.
                self._discard(segment)
                segment.close(TERMINATE, now)
                self._woken.append(segment)
        self._journal.channel_ended(self.name, self.epoch, self.next_seq, reason)
        self._schedule(self, self.drain_until)
        self._notify()

    def forget(self) -> None:
        """The drain is over: let go of all segments. Cursors in the middle of one keep what they read from."""
        self.window.clear()
        self.segments.clear()

    def expire(self, now: float) -> None:
        """Do what is due: truncate, skip and evict."""
        # One at a time: closing one segment may close others that are due, or make new ones due.
        while (segment := self._deadlines.pop(now)) is not None:
            if segment.state is WAITING and not segment.is_wanted:
                self._discard(segment)
            else:
                self._preempt(segment, Verdict.CLOSED_BY_OTHER)
                self._close(segment, SKIP if segment.state is WAITING else TRUNCATE, now)
        self.window.evict(now)
        self._notify()

    def deadline(self, segment: Segment) -> float | None:
        """When the present state of a segment ends by itself."""
        return self._deadlines.times.get(segment)

    def next_deadline(self) -> float | None:
        """When :meth:`expire` has something to do next, as things stand now."""
        times = (self._deadlines.next, self.window.next_deadline, self.drain_until)
        return min((when for when in times if when is not None), default=None)

    def statistics(self) -> ChannelStatistics:
        """A frozen picture of the channel."""
        unclosed = sorted(self.unclosed, key=lambda segment: segment.seq)
        return ChannelStatistics(
            name=self.name,
            epoch=self.epoch,
            content_type=self.content_type,
            ended=self.ended,
            next_seq=self.next_seq,
            created_at=self.created_at,
            active_at=self.active_at,
            segments=len(self.window),
            bytes=self.window.bytes,
            earliest=self.earliest,
            cost=self.window.cost,
            evicted=dict(self.window.evicted),
            open_seqs=tuple(s.seq for s in unclosed if s.state is OPEN),
            writing_seqs=tuple(s.seq for s in unclosed if s.writer is not None and s.state is OPEN),
            preconnected_seqs=tuple(s.seq for s in unclosed if s.writer is not None and s.state is WAITING),
            readers=self.audience,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
        )

    # How segments change.

    def _create(self, seq: int) -> Segment:
        segment = self.segments[seq] = self._waiting[seq] = Segment(seq)
        return segment

    def _discard(self, segment: Segment) -> None:
        del self.segments[segment.seq]
        del self._waiting[segment.seq]
        self._deadlines.clear(segment)

    def _store(self, writer: Writer[Channel], chunks: Sequence[bytes], now: float) -> Verdict | None:
        """Store chunks without waking anybody.

        Returns:
            ``None``, or the limit that was met. Up to the limit of a segment's size the chunks are stored all the same.
        """
        segment, refused = writer.segment, None
        if writer.repeated:
            chunks = writer.pass_over(chunks)
        size = sum(map(len, chunks))
        room = self._limits.segment_bytes - segment.size
        if size > room:
            chunks, size, refused = prefix(chunks, room), room, Verdict.TOO_LARGE
        if size:
            frame = encode_frame(chunks)
            first = segment.state is WAITING
            price = segment.price(frame)
            payer = segment.payer
            if self.window.open + price > self._quota:
                return Verdict.OVER_CHANNEL_QUOTA
            if payer is not None and payer.open + price > payer.quota:
                return Verdict.OVER_PUBLISHER_QUOTA
            if not self._budget.take(self.window, price):
                return Verdict.OVER_BUDGET
            self.window.open += price
            if payer is not None:
                payer.open += price
            self.bytes_in += size
            segment.store(frame, size)
            if first:
                self._begin(segment, now)
        self.active_at = now
        self.publishers.last = writer.presence
        return refused

    def _cut(self, writer: Writer[Channel], refused: Verdict, now: float) -> Outcome:
        """A limit ends the writer's part: stored bytes are truncated; where there are none, nothing changes."""
        segment = writer.segment
        outcome = self._withdraw(writer, refused, now)
        if segment.state is OPEN:
            self._close(segment, TRUNCATE, now)
        self._tell()
        return outcome

    def _break_off(self, writer: Writer[Channel], verdict: Verdict, now: float) -> Outcome:
        """The writer's part ends before its body does: bytes stay for ``publisher_grace_s``, for a retry to come."""
        segment = writer.segment
        outcome = self._withdraw(writer, verdict, now)
        if segment.state is OPEN:
            if segment.key is None and self.window.completed_after(segment.seq):
                self._close(segment, TRUNCATE, now)
            else:
                self._expect(segment, now + self._limits.publisher_grace_s)
        self._tell()
        return outcome

    def _withdraw(self, writer: Writer[Channel], verdict: Verdict, now: float) -> Outcome:
        """The writer's part ends: a segment with bytes stays, one without is closed or forgotten."""
        segment = writer.segment
        segment.writer = None
        self._deadlines.clear(segment)
        if segment.state is WAITING:
            if segment.seq < self.next_seq:
                self._close(segment, SKIP, now)
            elif segment.seq < self._unreserved:
                self._freed.set(segment.seq, segment.seq)
        self.release(segment)
        return self._settle(writer, verdict)

    def _settle(self, writer: Writer[Channel], verdict: Verdict) -> Outcome:
        """The writer's token becomes stale."""
        self.publishers.leave(writer.presence)
        return writer.settle(verdict)

    def _begin(self, segment: Segment, now: float) -> None:
        """A segment got its first byte."""
        self._open[segment.seq] = self._waiting.pop(segment.seq)
        segment.opened_at = now
        if segment.seq < self._first:
            self._name(segment.seq, segment.writer)
        if self._deadlines.times:
            self._deadlines.clear(segment)
        self._journal.segment_opened(self.name, self.epoch, segment.seq)
        if segment.seq >= self.next_seq:
            for passed in self._advance(segment.seq, now):
                self._close(passed, SKIP, now)

    def _name(self, seq: int, writer: Writer[Channel] | None) -> None:
        """A segment below all others of the channel's numbering was written.

        The first one that is written in this start of the server decides how the numbering is called. A publisher that
        goes on with its numbers after a restart says so: then its readers are told the name that they know.
        """
        name = self.life.name
        claim = None if writer is None or self.life.first is not None else writer.claim
        if claim is not None and claim.first is not None:
            name, self._first = claim.name, claim.first
        self._first = min(self._first, seq)
        if name:
            self.life = Life(name, self._first)

    def _advance(self, seq: int, now: float) -> list[Segment]:
        """Move the head past a seq at or after it: the one place where it moves (section 1), so never down.

        Returns:
            The waiting segments that the head has passed and that are not spared; the caller skips them.
        """
        head = self.next_seq
        self.next_seq = seq + 1
        if seq == head:
            return []
        if seq > head + 1:
            # A publisher resumed its numbering: no POST for what lies between is on its way.
            self.floor = max(self.floor, seq)
            passed = [segment for segment in self._waiting.values() if segment.seq < seq]
        elif head in self.segments or self._limits.overtaking_grace_s:
            passed = [self.segments.get(head) or self._create(head)]
        else:
            return []
        return [segment for segment in passed if not self._spare(segment, now)]

    def _close(self, segment: Segment, event: Event, now: float) -> None:
        """Close a segment, and with it those that its closing settles: the one place where segments close.

        Those are the waiting segments that the head passes and that are not spared, and below a complete segment the
        open ones to which no publisher will come back. None of them moves the head or completes, so none closes others.
        Readers hear of it in :meth:`_notify`.
        """
        writer = segment.writer
        segment.charge(None)
        segment.close(event, now)
        if segment.seq < self._first and event is FINISH:
            self._name(segment.seq, writer)
        closed = [segment]
        if segment.seq >= self.next_seq:
            for passed in self._advance(segment.seq, now):
                passed.close(SKIP, now)
                closed.append(passed)
        if segment.complete:
            for orphan in self._open.values():
                if orphan.seq < segment.seq and orphan.writer is None and orphan.key is None:
                    orphan.charge(None)
                    orphan.close(TRUNCATE, now)
                    closed.append(orphan)
        for one in closed:
            self._waiting.pop(one.seq, None)
            self._open.pop(one.seq, None)
            if self._deadlines.times:
                self._deadlines.clear(one)
            self._woken.append(one)
            self._journal.segment_closed(self.name, self.epoch, one.seq, one.state, one.size)
            if self.window.keep(one):
                self._expect_eviction()
            self.window.evict(now)

    def _give_open(self) -> bool:
        """Memory is short, and this channel holds most of it: cut the largest segment that is being written.

        Its publisher is told. The budget calls this in the middle of a change of another channel.
        """
        if not self._open:
            return False
        segment = max(self._open.values(), key=attrgetter("cost"))
        self._preempt(segment, Verdict.OVER_BUDGET)
        self._close(segment, TRUNCATE, self.active_at)
        self._notify()
        return True

    def _evicted(self, segment: Segment) -> None:
        """A segment has left the window for good: a late POST for it is a POST for a closed segment."""
        del self.segments[segment.seq]
        self.floor = max(self.floor, segment.seq + 1)
        self._expect_eviction()

    # When segments change by themselves.

    def _expect_eviction(self) -> None:
        """Another segment has become the oldest of the window: set the time when it leaves."""
        if (when := self.window.next_deadline) is not None:
            self._schedule(self, when)

    def _expect(self, segment: Segment, when: float) -> None:
        """Something is due for this segment at ``when``, or at its present deadline if that is earlier."""
        present = self._deadlines.times.get(segment)
        if present is None or when < present:
            self._deadlines.set(segment, when)
            self._schedule(self, when)

    def _expect_begin(self, segment: Segment, now: float) -> None:
        """A writer has just reserved this segment: set the time by which it must have begun."""
        if segment.state is not WAITING:
            self._deadlines.clear(segment)
        elif segment.seq < self.next_seq:
            self._expect(segment, now + self._limits.skip_grace_s)
        elif (timeout_s := self._limits.first_byte_timeout_s) is not None:
            self._deadlines.clear(segment)
            self._expect(segment, now + timeout_s)

    def _spare(self, segment: Segment, now: float) -> bool:
        """A later seq has begun: set the time when this segment is skipped; ``False`` if that is at once."""
        grace_s = self._limits.skip_grace_s
        if segment.writer is None:
            # At or above the floor a publisher's request may still be on its way.
            grace_s = self._limits.overtaking_grace_s if segment.seq >= self.floor else 0.0
            if not grace_s:
                return False
        self._expect(segment, now + grace_s)
        return True

    # Telling those whom a change concerns.

    def _preempt(self, segment: Segment, verdict: Verdict) -> None:
        """Take the segment away from its writer, if it has one; the writer hears of it in :meth:`_notify`."""
        if (writer := segment.writer) is not None:
            segment.writer = None
            self._settle(writer, verdict)
            self._preempted.append(writer)

    def _notify(self) -> None:
        """The change is done: wake the readers of closed segments, and tell the preempted writers."""
        woken, self._woken = self._woken, []
        preempted, self._preempted = self._preempted, []
        for segment in woken:
            segment.wake(self._faults)
        for writer in preempted:
            assert writer.outcome is not None, "a preempted writer is settled"
            try:
                writer.owner.preempted(writer.outcome)
            except Exception as error:
                self._faults.note(writer.owner, error)

    def _tell(self) -> None:
        """The same, and hand the faults over: for changes that no registry is in the middle of."""
        self._notify()
        if self._faults.noted:
            self._faults.deliver()
