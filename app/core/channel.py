"""One epoch of one channel: its head, its window, who writes and who waits.

Rules kept here (docs/reference/protocol.md, sections 1 to 5):

- ``next_seq`` moves in :meth:`Channel._advance` only, and only upwards.
- A segment closes in :meth:`Channel._close` only. Cursors and preempted writers hear of it when all is done.
- A writer acts through its token; a stale token changes nothing.
- No segment below the head waits for long (:meth:`Deadlines.spare`).
- A body with a key is stored once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tricklecast.app.core.budget import Budget
from tricklecast.app.core.capacity import Capacity
from tricklecast.app.core.deadlines import Deadlines
from tricklecast.app.core.facts import EndReason, Journal
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.resolution import Ahead, AlreadyStored, Ended, Gone, Refusal, Serve, Wait, Why
from tricklecast.app.core.segment import FINISH, OPEN, WAITING, Cursor, Event, Segment, encode_frame, prefix
from tricklecast.app.core.window import Window
from tricklecast.app.core.writer import Outcome, Verdict, Writer, WriterOwner
from tricklecast.trickle.wire import LAST_SEQ, SEQ_CURRENT, SEQ_NEXT


class Channel:
    """A named, ordered stream of segments, in one of its lives.

    Attributes:
        name, epoch: the name, and which life of it this is (1, 2, ...).
        content_type: set once, ``""`` until then.
        next_seq: the head: one past the newest segment that got its first byte or was closed.
        floor: seqs below it are settled: evicted, or jumped over when a publisher resumed its numbering.
        segments: by seq: kept, open and waiting ones.
        window: the closed ones among them, kept for catching up.
        ended: whether the channel is over; drain_until: when its name is then forgotten.
        active_at: when something was last published; bytes_in, bytes_out: for statistics; reading: its readers.
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
        schedule: Callable[[Channel, float], None],
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.content_type = content_type
        self.created_at = self.active_at = now
        self.segments: dict[int, Segment] = {}
        self.window = Window(limits, budget)
        self.ended = False
        self.drain_until: float | None = None
        self.next_seq = self.floor = self.bytes_in = self.bytes_out = 0
        self.reading = Capacity(limits.readers_per_channel)
        self.scheduled_at: float | None = None
        self._limits, self._budget, self._journal, self._schedule = limits, budget, journal, schedule
        self._waiting: dict[int, Segment] = {}
        self._open: dict[int, Segment] = {}
        self._deadlines = Deadlines(lambda when: schedule(self, when))
        self._woken: list[Segment] = []
        self._preempted: list[Writer] = []

    def __repr__(self) -> str:
        return f"<Channel {self.name!r}.{self.epoch} head {self.next_seq}{' ended' if self.ended else ''}>"

    # Reading.

    @property
    def earliest(self) -> int:
        """The oldest seq that can be read now; the head if there is none."""
        kept = self.window.earliest
        return min([*self._open, self.next_seq if kept is None else kept])

    @property
    def unclosed(self) -> list[Segment]:
        """The waiting and the open segments."""
        return [*self._waiting.values(), *self._open.values()]

    def resolve(self, seq: int) -> Serve | Wait | Ahead | Gone | Ended:
        """Find what a GET of N, -1 (the head), -2 (the newest started one) or -N means now; it may create the head."""
        head = self.next_seq
        if seq < 0:
            seq = max(head + seq + 1, self.earliest if seq < SEQ_CURRENT else 0)
        if (segment := self.segments.get(seq)) is not None:
            return (Wait if segment.state is WAITING else Serve)(self, segment, head)
        if seq < head:
            return Gone(self, seq, head, self.earliest, min((at for at in self.segments if at > seq), default=head))
        if not self.ended and (seq == head or (head == 0 and seq == 1)):
            return Wait(self, self._create(seq), head)
        return Ended(self, seq, head) if self.ended else Ahead(self, seq, head, self.earliest)

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
        """Forget a waiting segment for which nobody waits any more."""
        if self._waiting.get(segment.seq) is segment and not segment.is_wanted and segment.deadline is None:
            self._discard(segment)

    # Writing.

    def first_free(self) -> int:
        """The first seq at or after the head that nobody has reserved."""
        seq = self.next_seq
        while (segment := self.segments.get(seq)) is not None and segment.writer is not None:
            seq += 1
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
    ) -> Writer | AlreadyStored | Refusal:
        """Give out the right to write a segment (section 3).

        Args:
            seq: N, or -1 for the first free one.
            owner: told if somebody else ends this writer's part.
            serial: a number greater than that of every earlier writer.
            reset: close all lower open segments first, and allow any seq at or after the head.
            key, attempt: of the body; one with the key of what is there is the same body, from its start.
        """
        if seq == SEQ_NEXT and (seq := self.first_free()) > LAST_SEQ:
            return Refusal(Why.CLOSED, self, LAST_SEQ)
        segment = self.segments.get(seq)
        if segment is None:
            if seq < self.floor:
                return Refusal(Why.CLOSED, self, seq)
            if seq > self.next_seq + 1 and self.next_seq > 0 and not reset:
                return Refusal(Why.AHEAD, self, seq, overtaking=seq <= self.next_seq + self._limits.overtaking_segments)
        elif segment.closed:
            return AlreadyStored(self, segment) if segment.is_finished_by(key) else Refusal(Why.CLOSED, self, seq)
        elif not segment.admits(key, attempt):
            return Refusal(Why.CLOSED, self, seq)
        if reset:
            self._truncate_open(seq, now, orphans_only=False)
        if segment is None:
            segment = self._create(seq)
        elif segment.writer is not None:
            self._preempt(segment, Verdict.SUPERSEDED)
        else:
            self._deadlines.clear(segment)  # what was due while it had no writer
        repeated = segment.begin_body(key)
        writer = segment.writer = Writer(self, segment, serial, owner, attempt=attempt, repeated=repeated)
        self._deadlines.expect_begin(segment, self.next_seq, self._limits, now)
        self._notify()
        return writer

    def append(self, writer: Writer, chunks: Sequence[bytes], now: float) -> Outcome | None:
        """Store chunks and wake the readers.

        Returns:
            ``None`` if the segment takes more; otherwise how the writer's part ended (a stale token: as before).
        """
        if writer.outcome is not None:
            return writer.outcome
        if (refused := self._store(writer, chunks, now)) is not None:
            return self._cut(writer, refused, now)
        writer.segment.wake()
        if self._woken:
            self._notify()
        return None

    def finish(self, writer: Writer, chunks: Sequence[bytes], now: float) -> Outcome:
        """The publisher's body ended, after these last chunks. A stale token changes nothing."""
        if writer.outcome is not None:
            return writer.outcome
        segment = writer.segment
        if chunks and (refused := self._store(writer, chunks, now)) is not None:
            return self._cut(writer, refused, now)
        if writer.repeated:
            return self._break_off(writer, Verdict.NOT_THE_SAME, now)
        outcome = writer.settle(Verdict.COMPLETE if segment.size else Verdict.EMPTY)
        self.active_at = now
        self._close(segment, FINISH, now)
        self._notify()
        return outcome

    def abort(self, writer: Writer, now: float) -> None:
        """The publisher's connection broke before its body ended. A stale token changes nothing."""
        if writer.outcome is None:
            self._break_off(writer, Verdict.ABORTED, now)

    def close_segment(self, seq: int, now: float, *, truncate: bool = False) -> Refusal | None:
        """Close one segment by request, as a part if ``truncate``; closing a closed one is no error."""
        segment = self.segments.get(seq)
        if segment is None:
            return Refusal(Why.NO_SEGMENT, self, seq)
        if not segment.closed:
            self.active_at = now
            self._preempt(segment, Verdict.CLOSED_BY_OTHER)
            segment.key = None  # no body came to its end here
            self._close(segment, Event.TRUNCATE if truncate and segment.size else Event.FINISH, now)
            self._notify()
        return None

    # The end, and time.

    def end(self, reason: EndReason, now: float) -> None:
        """End the channel: everybody who waits or writes is told; what is kept stays readable for the drain."""
        self.ended = True
        self.drain_until = now + self._limits.channel_drain_s
        for segment in self.unclosed:
            self._preempt(segment, Verdict.TERMINATED)
            if segment.state is OPEN:
                self._close(segment, Event.TERMINATE, now)
            else:
                # It never moved the head; neither does its end, and there is nothing to keep.
                self._discard(segment)
                segment.close(Event.TERMINATE, now)
                self._woken.append(segment)
        self._journal.channel_ended(self.name, self.epoch, self.next_seq, reason)
        self._schedule(self, self.drain_until)
        self._notify()

    def forget(self) -> None:
        """Let go of all that is kept. Cursors in the middle of a segment keep what they read from."""
        for segment in self.window.clear():
            del self.segments[segment.seq]
        self._deadlines.forget()  # they know the channel: only a full collection, which is rare, would find that

    def expire(self, now: float) -> None:
        """Do what is due: truncate, skip and evict."""
        for segment in self._deadlines.due(now):
            if segment.state is WAITING and not segment.is_wanted:
                self._discard(segment)
                continue
            self._preempt(segment, Verdict.CLOSED_BY_OTHER)
            self._close(segment, Event.SKIP if segment.state is WAITING else Event.TRUNCATE, now)
        self._settle(self.window.evict(now))
        self._notify()

    def next_deadline(self) -> float | None:
        """When :meth:`expire` has something to do next, as far as it can be told now."""
        times = (self._deadlines.next, self.window.next_deadline, self.drain_until)
        return min((when for when in times if when is not None), default=None)

    def make_room(self, *, keep: int) -> bool:
        """Evict the oldest kept segment and cut off its readers, unless only ``keep`` are left: memory is needed."""
        if (segment := self.window.make_room(keep=keep)) is None:
            return False
        self._settle([segment])
        self._budget.drop_readers(segment)
        return True

    # Mechanics.

    def _create(self, seq: int) -> Segment:
        segment = self.segments[seq] = self._waiting[seq] = Segment(seq)
        return segment

    def _discard(self, segment: Segment) -> None:
        del self.segments[segment.seq]
        del self._waiting[segment.seq]
        self._deadlines.clear(segment)

    def _store(self, writer: Writer, chunks: Sequence[bytes], now: float) -> Verdict | None:
        """Store chunks, waking nobody; if a limit stopped them, returns which. Up to the segment's they are stored."""
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
            if not self._budget.take(segment.price(frame)):
                return Verdict.OVER_BUDGET
            self.bytes_in += size
            segment.store(frame, size)
            if first:
                self._begin(segment, now)
        self.active_at = now
        return refused

    def _cut(self, writer: Writer, refused: Verdict, now: float) -> Outcome:
        """A limit ends the writer's part: what is there is truncated; where nothing is, nothing changes."""
        segment = writer.segment
        outcome = self._withdraw(writer, refused, now)
        if segment.state is OPEN:
            self._close(segment, Event.TRUNCATE, now)
        self._notify()
        return outcome

    def _break_off(self, writer: Writer, verdict: Verdict, now: float) -> Outcome:
        """The writer's part ends before its body does: bytes stay for ``publisher_grace``, for it to be sent again."""
        segment = writer.segment
        outcome = self._withdraw(writer, verdict, now)
        if segment.state is OPEN:
            if segment.key is None and self.window.completed_after(segment.seq):
                self._close(segment, Event.TRUNCATE, now)
            else:
                self._deadlines.set(segment, now + self._limits.publisher_grace_s)
        self._notify()
        return outcome

    def _withdraw(self, writer: Writer, verdict: Verdict, now: float) -> Outcome:
        """The writer's part ends; a segment with bytes stays, one without is of no use any more."""
        segment = writer.segment
        segment.writer = None
        self._deadlines.clear(segment)
        if segment.state is WAITING and segment.seq < self.next_seq:
            self._close(segment, Event.SKIP, now)
        self.release(segment)
        return writer.settle(verdict)

    def _begin(self, segment: Segment, now: float) -> None:
        """A segment got its first byte."""
        self._open[segment.seq] = self._waiting.pop(segment.seq)
        segment.opened_at = now
        self._deadlines.clear(segment)
        self._journal.segment_opened(self.name, self.epoch, segment.seq)
        self._advance(segment.seq, now)

    def _advance(self, seq: int, now: float) -> None:
        """The one place that moves the head (section 1): never down. What it passes by is skipped."""
        if seq > self.next_seq + 1:
            self.floor = max(self.floor, seq)
        elif seq > self.next_seq and self.next_seq not in self.segments and self._limits.overtaking_grace_s:
            self._create(self.next_seq)
        if seq >= self.next_seq:
            self.next_seq = seq + 1
        passed = [segment for segment in self._waiting.values() if segment.seq < self.next_seq] if self._waiting else ()
        for segment in passed:
            if not (self._deadlines.spare(segment, self.floor, self._limits, now) or segment.closed):
                self._close(segment, Event.SKIP, now)

    def _close(self, segment: Segment, event: Event, now: float) -> None:
        """The one place that closes a segment and keeps it; its readers hear of it in :meth:`_notify`."""
        segment.close(event, now)
        self._waiting.pop(segment.seq, None)
        self._open.pop(segment.seq, None)
        self._deadlines.clear(segment)
        self._woken.append(segment)
        self._journal.segment_closed(self.name, self.epoch, segment.seq, segment.state, segment.size)
        self._advance(segment.seq, now)
        self.window.keep(segment)
        self._settle(self.window.evict(now))
        if self._open and segment.complete:
            self._truncate_open(segment.seq, now, orphans_only=True)

    def _settle(self, evicted: list[Segment]) -> None:
        """Evicted segments are gone for good: a late POST for one of them is a POST for a closed segment."""
        for segment in evicted:
            del self.segments[segment.seq]
            self.floor = max(self.floor, segment.seq + 1)
        if (when := self.window.next_deadline) is not None:
            self._schedule(self, when)

    def _truncate_open(self, below: int, now: float, *, orphans_only: bool) -> None:
        """Close the open segments below a seq as truncated: all of them, or those to which nobody will come back."""
        for segment in list(self._open.values()):
            if segment.seq < below and not (orphans_only and (segment.writer or segment.key)):
                self._preempt(segment, Verdict.CLOSED_BY_OTHER)
                self._close(segment, Event.TRUNCATE, now)

    def _preempt(self, segment: Segment, verdict: Verdict) -> None:
        """Take the segment away from its writer, if it has one; the writer hears of it in :meth:`_notify`."""
        if (writer := segment.writer) is not None:
            segment.writer = None
            writer.settle(verdict)
            self._preempted.append(writer)

    def _notify(self) -> None:
        """The change is done: tell those whom it concerns."""
        woken, self._woken = self._woken, []
        preempted, self._preempted = self._preempted, []
        for segment in woken:
            segment.wake()
        for writer in preempted:
            assert writer.outcome is not None, "a preempted writer is settled"
            writer.owner.preempted(writer.outcome)
