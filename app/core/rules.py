"""The rules of a channel: what a request, a lost connection, or time may do to one epoch of it.

A rule decides facts, applies each with the function of :mod:`app.core.state` that a replica uses, too, and notes it.
The rules (docs/reference/protocol.md, sections 1 to 5):

- :meth:`OwnedChannel._advance` alone decides what happens to the segments that the head passes.
- :meth:`OwnedChannel._close` alone closes segments. Its cursors and preempted writers are told when the change is done.
- A change is whole or has not happened: nothing in the middle of it calls back. If a callback raises at its end, the
  others are called all the same, and the exception is delivered after them.
- A writer acts through its token; a stale token changes nothing.
- No segment below the head waits for long (:meth:`OwnedChannel._spare`).
- A body with a key is stored once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from operator import attrgetter
from typing import ClassVar, Final, Generic, TypeVar

from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelEnded,
    ContentTypeNamed,
    EndReason,
    Fact,
    HeadJumped,
    Journal,
    NumberingNamed,
    PlaylistMarked,
    SegmentAwaited,
    SegmentClosed,
    SegmentEvicted,
    SegmentForgotten,
    SegmentOpened,
)
from tricklecast.app.core.limits import UNLIMITED, Limits
from tricklecast.app.core.payers import Payer
from tricklecast.app.core.publishers import Identity
from tricklecast.app.core.results import AlreadyStored, Cause, Ending, Outcome, Refusal
from tricklecast.app.core.segment import (
    FINISH,
    OPEN,
    SKIP,
    TERMINATE,
    TRUNCATE,
    WAITING,
    Event,
    Segment,
    Writer,
    WriterOwner,
    encode_frame,
    prefix,
)
from tricklecast.app.core.state import Channel
from tricklecast.app.core.window import Budget, Eviction
from tricklecast.trickle.wire import LAST_SEQ, NO_LIFE, SEQ_NEXT, Life

STALE_TIMES: Final = 64
"""How many outdated times, beside twice as many as are set, an agenda may hold before it drops them."""

ANONYMOUS: Final = Identity()
"""The server itself, as the publisher of its own channels."""

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """Keys that are due at a time each: setting, clearing and taking out the earliest one cost O(log n).

    Attributes:
        times: the time of each key; to be read only.
    """

    __slots__ = ("_heap", "times")

    _numbers: ClassVar[Iterator[int]] = count()  # of all agendas: each channel has two

    def __init__(self) -> None:
        self.times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []

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


def earliest(*times: float | None) -> float | None:
    """The earliest of these times; ``None`` if there is none."""
    found = None
    for when in times:
        if when is not None and (found is None or when < found):
            found = when
    return found


class OwnedChannel(Channel):
    """A channel whose owner this is: it decides.

    Args:
        name, epoch, content_type, now, limits, budget: as of :class:`Channel`.
        life: the name of the numbering of a publisher that gives it none.
        journal: of the server.
        schedule: told of each time at which :meth:`expire` should be called.
    """

    belongs: ClassVar[bool] = True

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
        schedule: Callable[[OwnedChannel, float], None],
        life: Life = NO_LIFE,
    ) -> None:
        super().__init__(name, epoch, content_type, now, life, limits, budget, journal.faults)
        self._journal = journal
        self._own_name = life.name
        # Bytes of memory that its unfinished segments may take.
        self._quota = UNLIMITED if limits.channel_bytes is None else limits.channel_bytes
        self._schedule = schedule
        self._deadlines: Agenda[Segment] = Agenda()
        # Free seqs: from the head up to _unreserved only those in _freed, beyond it all without a writer.
        self._unreserved = 0
        self._freed: Agenda[int] = Agenda()
        self._preempted: list[Writer[OwnedChannel]] = []
        # The head at which its last owner was lost, if there was one; and since when a POST has come beyond it.
        self._resumed_at, self._ahead_since = -1, inf

    def note(self, kind: type[Fact], at: float, *about: object) -> None:
        """Count a fact that was applied and concerns this channel only, and tell its followers.

        Args:
            about: the attributes that the kind has beside those of all facts, in their order.
        """
        self.facts += 1
        if self.followers:
            self._tell_followers(kind, at, *about)

    def announce(self, kind: type[Fact], at: float, *about: object) -> None:
        """The same for a fact that concerns the server, too: its journal counts the fact and tells its listeners."""
        journal = self._journal
        self.facts += 1
        journal.index += 1
        listeners = journal.listeners[kind]
        if listeners or self.followers:
            fact = kind(journal.index, self.facts, at, self.name, self.epoch, *about)
            journal.tell(listeners, fact)
            if self.followers:
                journal.tell(self.followers, fact)

    def _tell_followers(self, kind: type[Fact], at: float, *about: object) -> None:
        self._journal.tell(self.followers, kind(0, self.facts, at, self.name, self.epoch, *about))

    def name_content_type(self, content_type: str, now: float) -> None:
        """Its publisher has named the content type; one that is known never changes."""
        if content_type and not self.content_type:
            self.content_type = content_type
            self.note(ContentTypeNamed, now, content_type)

    def jump(self, next_seq: int, now: float) -> None:
        """Move the head up to ``next_seq``, where its publisher goes on."""
        self.head_jumped(next_seq)
        self.note(HeadJumped, now, next_seq)

    def mark_playlist(self, mark: str, now: float) -> None:
        """Its playlist of HLS has gone on; that of a channel that has ended stays as it is."""
        if mark != self.playlist and not self.ended:
            self.playlist = mark
            self.note(PlaylistMarked, now, mark)

    # Writing.

    def first_free(self) -> int:
        """The first seq at or after the head that has no writer. Amortised O(log n), however many have one."""
        if self._freed.times:
            while self._freed.pop(self.next_seq - 1) is not None:
                pass  # the head has passed it
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
    ) -> Writer[OwnedChannel] | AlreadyStored | Refusal:
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
            return self.refuse(Cause.CLOSED, LAST_SEQ)
        segment = self.segments.get(seq)
        if if_idle and (key is None or segment is None or segment.key != key):
            refusal = self.refuse_beside_others(client, seq, now)
            if refusal is not None:
                return refusal
        if segment is None:
            if seq < self.floor:
                return self.refuse(Cause.CLOSED, seq)
            if seq > self.next_seq + 1 and self.next_seq > self.jumped_to and not (reset or self._goes_on(now)):
                near = seq <= self.next_seq + self._limits.overtaking_segments
                return self.refuse(Cause.AHEAD, seq)._replace(overtaking=near)
        elif segment.closed:
            if segment.is_finished_by(key):
                return AlreadyStored(seq, segment.size, self.epoch)
            return self.refuse(Cause.CLOSED, seq)
        elif not segment.admits(key, attempt):
            return self.refuse(Cause.CLOSED, seq)
        if reset:
            for lower in [opened for opened in self._open.values() if opened.seq < seq]:
                self._preempt(lower, Ending.CLOSED_BY_OTHER)
                self._close(lower, TRUNCATE, now)
        if segment is None:
            segment = self._create(seq)
        elif segment.writer is not None:
            self._preempt(segment, Ending.SUPERSEDED)
        else:
            self._deadlines.clear(segment)  # the grace for a writer to come
        repeated = segment.begin_body(key)
        if segment.payer is not payer:
            segment.charge(payer)
        presence = self.publishers.join(client, now, self.active_at)
        writer = Writer(self, segment, serial, owner, presence, attempt=attempt, repeated=repeated, claim=claim)
        segment.writer = writer
        if self._freed.times:
            self._freed.clear(seq)
        self._expect_begin(segment, now)
        self.facts += 1  # as note() does, without a call for each segment
        if self.followers:
            self._tell_followers(BodyBegun, now, seq, key, segment.body_at)
        if self._preempted or self._to_wake:
            self._notify()
        return writer

    def _goes_on(self, now: float) -> bool:
        """Whether a POST beyond the head may be its publisher that goes on, since its last owner was lost with segments
        of which nobody comes back: nothing has been written since, although there was time."""
        if self.next_seq != self._resumed_at:
            return False
        self._ahead_since = min(self._ahead_since, now)
        return now - self._ahead_since >= self._limits.overtaking_grace_s

    def append(self, writer: Writer[OwnedChannel], chunks: Sequence[bytes], now: float) -> Outcome | None:
        """Store chunks and wake the readers.

        Returns:
            ``None`` if the segment takes more; otherwise how the writer's part ended (a stale token: as before).
        """
        if writer.outcome is not None:
            return writer.outcome
        if (refused := self._store(writer, chunks, now)) is not None:
            return self._cut(writer, refused, now)
        writer.segment.wake(self._faults)
        if self._to_wake or self._faults.noted:
            self._notify_and_deliver()
        return None

    def finish(self, writer: Writer[OwnedChannel], chunks: Sequence[bytes], now: float) -> Outcome:
        """The publisher's body ended, after these last chunks. A stale token changes nothing."""
        if writer.outcome is not None:
            return writer.outcome
        segment = writer.segment
        if chunks and (refused := self._store(writer, chunks, now)) is not None:
            return self._cut(writer, refused, now)
        if writer.repeated:
            return self._break_off(writer, Ending.NOT_THE_SAME, now)
        outcome = self._settle(writer, Ending.COMPLETE if segment.size else Ending.EMPTY)
        self.active_at = now
        self.publishers.last = writer.presence
        self._close(segment, FINISH, now)
        self._notify()
        if self._faults.noted:
            self._faults.deliver()
        return outcome

    def abort(self, writer: Writer[OwnedChannel], now: float) -> None:
        """The publisher's connection broke before its body ended. A stale token changes nothing."""
        if writer.outcome is None:
            self._break_off(writer, Ending.ABORTED, now)

    def close_segment(self, seq: int, now: float, *, truncate: bool = False) -> Refusal | None:
        """Close one segment by request, as truncated if ``truncate``; closing a closed one is no error."""
        segment = self.segments.get(seq)
        if segment is None:
            return self.refuse(Cause.NO_SEGMENT, seq)
        if not segment.closed:
            self._preempt(segment, Ending.CLOSED_BY_OTHER)
            segment.key = None  # no body came to its end here
            self._close(segment, TRUNCATE if truncate and segment.size else FINISH, now)
            self._notify()
        return None

    def refuse_beside_others(self, client: Identity, seq: int | None, now: float) -> Refusal | None:
        """The refusal of a client that must not disturb others, if another one publishes."""
        occupied = self.publishers.other_than(client, now, self.active_at)
        return None if occupied is None else self.refuse(Cause.OCCUPIED, seq)._replace(occupied=occupied)

    def resume(self, now: float) -> None:
        """Its last owner is gone, which had its publishers: go on as if all of their connections had just broken.

        They may come back: bytes wait for a retry, and a segment below the head for its publisher, as long as usual. A
        history may end anywhere, also in the middle of one change of the last owner: what that left undone is done.
        """
        for segment in self.unclosed:
            self.take_back_opening(segment)
            if segment.written:
                self.body_left(segment)
                self.note(BodyLeft, now, segment.seq)
            if segment.state is WAITING:
                if segment.seq >= self.next_seq:
                    self.release(segment)
                elif not self._spare(segment, now):
                    self._close(segment, SKIP, now)
            else:
                self._expect_retry(segment, now)
        self._resumed_at = self.next_seq
        self.window.evict(now)
        self._expect_eviction()
        self._notify()

    # The end, and time.

    def end(self, reason: EndReason, now: float) -> None:
        """End the channel: every reader and writer is told; its window stays readable for the drain."""
        for segment in self.unclosed:
            self._preempt(segment, Ending.TERMINATED)
            if segment.state is OPEN:
                self._close(segment, TERMINATE, now)
        self.channel_ended(now)
        self._deadlines = Agenda()
        self.announce(ChannelEnded, now, self.next_seq, reason)
        assert self.drain_until is not None, "the drain has begun"
        self._schedule(self, self.drain_until)
        self._notify()

    def expire(self, now: float) -> None:
        """Do what is due: truncate, skip and evict."""
        # One at a time: closing one segment may close others that are due, or make new ones due.
        while (segment := self._deadlines.pop(now)) is not None:
            if segment.state is WAITING and not segment.is_wanted:
                self.segment_forgotten(segment, now)
                self.note(SegmentForgotten, now, segment.seq)
            else:
                self._preempt(segment, Ending.CLOSED_BY_OTHER)
                self._close(segment, SKIP if segment.state is WAITING else TRUNCATE, now)
        self.window.evict(now)
        self._notify()

    def deadline(self, segment: Segment) -> float | None:
        """When a segment is closed or forgotten, if nothing happens to it before."""
        return self._deadlines.times.get(segment)

    def next_deadline(self) -> float | None:
        """When :meth:`expire` has something to do next, as things stand now."""
        return earliest(self._deadlines.next, self.window.next_deadline, self.drain_until)

    # How segments change.

    def _store(self, writer: Writer[OwnedChannel], chunks: Sequence[bytes], now: float) -> Ending | None:
        """Store chunks without waking anybody.

        Returns:
            ``None``, or the limit that was met. Up to the limit of a segment's size the chunks are stored all the same.
        """
        segment, refused = writer.segment, None
        if writer.repeated:
            chunks = writer.pass_over(chunks)
        size = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
        room = self._limits.segment_bytes - segment.size
        if size > room:
            chunks, size, refused = prefix(chunks, room), room, Ending.TOO_LARGE
        if size:
            frame = encode_frame(chunks)
            first = segment.state is WAITING
            price = segment.price(frame)
            payer = segment.payer
            if self.window.open + price > self._quota:
                return Ending.OVER_CHANNEL_QUOTA
            if payer is not None and payer.open + price > payer.quota and not payer.extends(price):
                return Ending.OVER_PUBLISHER_QUOTA
            if not self.bytes_stored(segment, frame, size, price):
                return Ending.OVER_BUDGET
            if payer is not None:
                payer.open += price
            if first:
                self._begin(segment, now)
        self.active_at = now
        self.publishers.last = writer.presence
        return refused

    def _cut(self, writer: Writer[OwnedChannel], refused: Ending, now: float) -> Outcome:
        """A limit ends the writer's part: stored bytes are truncated; where there are none, nothing changes."""
        segment = writer.segment
        outcome = self._withdraw(writer, refused, now)
        if segment.state is OPEN:
            self._close(segment, TRUNCATE, now)
        self._notify_and_deliver()
        return outcome

    def _break_off(self, writer: Writer[OwnedChannel], ending: Ending, now: float) -> Outcome:
        """The writer's part ends before its body does: bytes stay for ``publisher_grace_s``, for a retry to come."""
        segment = writer.segment
        outcome = self._withdraw(writer, ending, now)
        if segment.state is OPEN:
            self._expect_retry(segment, now)
        self._notify_and_deliver()
        return outcome

    def _expect_retry(self, segment: Segment, now: float) -> None:
        """Keep the bytes for a retry of its body, unless its publisher has gone on without it."""
        if segment.key is None and self.window.completed_after(segment.seq):
            self._close(segment, TRUNCATE, now)
        else:
            self._expect(segment, now + self._limits.publisher_grace_s)

    def _withdraw(self, writer: Writer[OwnedChannel], ending: Ending, now: float) -> Outcome:
        """The writer's part ends: a segment with bytes stays, one without is closed or forgotten."""
        segment = writer.segment
        segment.writer = None
        self._deadlines.clear(segment)
        if segment.state is WAITING and segment.seq < self.next_seq:
            self._close(segment, SKIP, now)
        else:
            if segment.state is WAITING and segment.seq < self._unreserved:
                self._freed.set(segment.seq, segment.seq)
            self.body_left(segment)
            self.note(BodyLeft, now, segment.seq)
        return self._settle(writer, ending)

    def _settle(self, writer: Writer[OwnedChannel], ending: Ending) -> Outcome:
        """The writer's token becomes stale."""
        self.publishers.leave(writer.presence)
        return writer.settle(ending)

    def _begin(self, segment: Segment, now: float) -> None:
        """A segment got its first byte."""
        seq = segment.seq
        if seq < self._first:
            self._name_numbering(seq, segment.writer, now)
        if self._deadlines.times:
            self._deadlines.clear(segment)
        passed = self._advance(seq, now) if seq > self.next_seq else ()
        self.segment_opened(segment, now)
        self.announce(SegmentOpened, now, seq)
        for one in passed:
            self._close(one, SKIP, now)

    def _name_numbering(self, seq: int, writer: Writer[OwnedChannel] | None, now: float) -> None:
        """A segment below all others of the channel's numbering was written.

        The first one that is written in this start of the server decides how the numbering is called. A publisher that
        goes on with its numbers after a restart says so: then its readers are told the name that they know.
        """
        name, first = self.life.name, min(self._first, seq)
        if self.life.first is None:
            name = self._own_name
            claim = None if writer is None else writer.claim
            if claim is not None and claim.first is not None and self._is_believed(claim.name, claim.first):
                name, first = claim.name, min(first, claim.first)
            first = min([first, *(known for one, known in self.lives if one == name)])
        self.numbering_named(name, first)
        self.note(NumberingNamed, now, name, first)

    def _is_believed(self, name: str, first: int) -> bool:
        """Whether a publisher goes on with its numbering, or begins it, as it says.

        Others may have written its numbers anew since: readers that follow it must be told so, and would not be under
        its name. So an earlier numbering does not go on, nor one of which nothing was kept and which has begun below
        the segments that are final.
        """
        lives = self.lives
        if not lives or name == lives[-1][0]:
            return True
        return first >= self.floor and all(one != name for one, _ in lives)

    def _advance(self, seq: int, now: float) -> Sequence[Segment]:
        """The head is about to move past this seq, which lies above it: settle what lies between (section 1).

        Returns:
            The waiting segments that the head passes and that are not spared; the caller skips them.
        """
        head = self.next_seq
        if seq > head + 1:
            # A publisher resumed its numbering: no POST for what lies between is on its way.
            self.jump(seq, now)
            passed = [segment for segment in self._waiting.values() if segment.seq < seq]
        elif head in self.segments or self._limits.overtaking_grace_s:
            passed = [self.segments.get(head) or self._create(head)]
        else:
            return ()
        return [segment for segment in passed if not self._spare(segment, now)]

    def _close(self, segment: Segment, event: Event, now: float) -> None:
        """Close a segment, and with it those that its closing settles: the one place where segments close.

        Those are the waiting segments that the head passes and that are not spared, and below a complete segment the
        open ones to which no publisher will come back. None of them moves the head or completes, so none closes others.
        Readers hear of it in :meth:`_notify`.
        """
        seq = segment.seq
        if seq < self._first and event is FINISH:
            self._name_numbering(seq, segment.writer, now)
        passed = self._advance(seq, now) if seq > self.next_seq else ()
        closed = [segment, *passed]
        if segment.payer is not None:
            segment.charge(None)
        self.segment_closed(segment, event, now)
        for one in passed:
            self.segment_closed(one, SKIP, now)
        if self._open and segment.complete:
            for orphan in list(self._open.values()):
                if orphan.seq < seq and orphan.writer is None and orphan.key is None:
                    orphan.charge(None)
                    self.segment_closed(orphan, TRUNCATE, now)
                    closed.append(orphan)
        for one in closed:
            if self._deadlines.times:
                self._deadlines.clear(one)
            self._journal.closed[one.state] += 1
            self.announce(SegmentClosed, now, one.seq, one.state, one.size, one.key)
            if self.window.keep(one):
                self._expect_eviction()
            self.window.evict(now)

    def _cut_largest(self) -> bool:
        """Memory is short, and this channel holds most of it: cut the largest segment that is being written.

        Its publisher is told. The budget calls this in the middle of a change of another channel.
        """
        if not self._open:
            return False
        segment = max(self._open.values(), key=attrgetter("cost"))
        self._preempt(segment, Ending.OVER_BUDGET)
        self._close(segment, TRUNCATE, self.active_at)
        self._notify()
        return True

    def _evicted(self, segment: Segment, why: Eviction) -> None:
        self.segment_evicted(segment)
        self.facts += 1  # as note() does, without a call for each segment
        if self.followers:
            self._tell_followers(SegmentEvicted, self.active_at, segment.seq, why)
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
            self.note(SegmentAwaited, now, segment.seq)
        self._expect(segment, now + grace_s)
        return True

    # Telling those whom a change concerns.

    def _preempt(self, segment: Segment, ending: Ending) -> None:
        """Take the segment away from its writer, if it has one; the writer hears of it in :meth:`_notify`."""
        if (writer := segment.writer) is not None:
            segment.writer = None
            self._settle(writer, ending)
            self._preempted.append(writer)

    def _notify(self) -> None:
        """The change is done: wake the readers of closed segments, and tell the preempted writers."""
        self.wake_readers()
        while self._preempted:
            writer = self._preempted.pop(0)
            assert writer.outcome is not None, "a preempted writer is settled"
            try:
                writer.owner.preempted(writer.outcome)
            except Exception as error:
                self._faults.note(writer.owner, error)

    def _notify_and_deliver(self) -> None:
        """Notify, and deliver the faults: for changes that come from a writer, with no registry around them."""
        self._notify()
        if self._faults.noted:
            self._faults.deliver()
