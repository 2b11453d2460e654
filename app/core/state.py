"""The state of one epoch of a channel, one function for each fact that changes it, and all that reading needs.

The owner of a channel and every other holder (storage after a restart, a replica) have the same state, because nothing
changes it but the functions under "Facts" below. The owner's rules (:mod:`app.core.rules`) call them when they have
decided; :meth:`Channel.apply` calls them when the owner of another server has. None of them refuses anything, and none
of them wakes a reader: :meth:`Channel.wake_readers` does, at the end of the whole change.

The rules (docs/reference/protocol.md, sections 1, 4 and 5):

- The head moves upwards only: past a segment that opens or closes at or above it, or with a jump.
- A reader of any holder is answered as by the owner, by the same :meth:`Channel.resolve`.
- A segment for which only readers wait is no part of the state: each holder has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias

from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelCreated,
    ContentTypeNamed,
    Fact,
    FactListener,
    HeadJumped,
    NumberingNamed,
    PlaylistMarked,
    SegmentAwaited,
    SegmentClosed,
    SegmentEvicted,
    SegmentForgotten,
    SegmentOpened,
)
from tricklecast.app.core.limits import Capacity, Limits
from tricklecast.app.core.publishers import Publishers
from tricklecast.app.core.results import Ahead, Cause, Ended, Gone, Refusal
from tricklecast.app.core.segment import (
    FINISH,
    MAX_FORMER_KEYS,
    OPEN,
    SKIP,
    TERMINATE,
    TRANSITIONS,
    TRUNCATE,
    WAITING,
    Cursor,
    Event,
    Faults,
    Segment,
    State,
)
from tricklecast.app.core.window import Budget, Eviction, Window
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.wire import LAST_SEQ, SEQ_CURRENT, Life

MAX_AWAITED: Final = 20_000
"""Segments without a byte of a channel that another server owns, which no budget counts: as many as a server admits
publishers (``Limits.publishers``)."""

MAX_LIVES: Final = 64
"""Numberings of a channel that are remembered: 64 starts of a server in which another publisher began."""

EVENTS: Final = {
    State.COMPLETE: FINISH,
    State.EMPTY: FINISH,
    State.TRUNCATED: TRUNCATE,
    State.SKIPPED: SKIP,
    State.TERMINATED: TERMINATE,
}
"""The event that leads to each final state."""


Lives: TypeAlias = tuple[tuple[str, int], ...]
"""Numberings by name and first seq, the newest one last."""


class SegmentSummary(NamedTuple):
    """A segment as a list of segments shows it.

    Attributes:
        opened_us, closed_us: when, microseconds since 1970.
        crc: CRC-32 of its bytes, if storage knows it.
    """

    seq: int
    state: State
    size: int
    opened_us: int
    closed_us: int | None
    crc: int | None = None


def summarize(segment: Segment, to_us: Callable[[float], int]) -> SegmentSummary:
    """Describe a segment in memory, which has begun or closed.

    Args:
        to_us: turns the registry's time into microseconds since 1970.
    """
    closed_us = None if segment.closed_at is None else to_us(segment.closed_at)
    opened_us = to_us(segment.opened_at or segment.closed_at or 0)
    return SegmentSummary(segment.seq, segment.state, segment.size, opened_us, closed_us)


class Retained(Protocol):
    """Segments of one channel that storage has beyond the window."""

    def listed(self, seq: int, since_us: int) -> Iterator[SegmentSummary]:
        """The closed ones from this seq on, ascending, from the first one that closed at this time or later."""

    def find(self, seq: int) -> Segment | None:
        """A segment that has left the window, for one reader if it has a source; ``None`` if it is not stored."""

    def following(self, seq: int) -> int | None:
        """The lowest seq at or above this one that storage has."""

    def has(self, seq: int, opened_at: float) -> bool:
        """Whether all of the segment is here that got its first byte at this time (without one: that closed then)."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel at one moment.

    Attributes:
        ended: in its drain; only reading is possible.
        created_at, active_at: seconds of the registry's clock.
        segments, bytes, earliest: the window: closed segments kept, their body bytes, the oldest readable seq.
        cost: memory that the window takes, in bytes. evicted: segments that have left it, by the reason.
        open_seqs: segments with bytes that are not closed, ascending.
        writing_seqs, preconnected_seqs: seqs whose publisher is connected, after and before its first byte.
        readers: exchanges reading from it, waiting ones included.
        bytes_in, bytes_out: body bytes published to and delivered from it so far.
    """

    name: str
    epoch: int
    content_type: str
    ended: bool
    next_seq: int
    created_at: float
    active_at: float
    segments: int
    bytes: int
    earliest: int
    cost: int
    evicted: Mapping[Eviction, int]
    open_seqs: tuple[int, ...]
    writing_seqs: tuple[int, ...]
    preconnected_seqs: tuple[int, ...]
    readers: int
    bytes_in: int
    bytes_out: int


class Channel:
    """A named, ordered stream of segments, in one of its epochs.

    Args:
        name, epoch, content_type, life: see below.
        now: when it was created, seconds.
        limits, budget, faults: of the server.

    Attributes:
        name, epoch: the name, and which channel of that name this is, counted from 1.
        content_type: set once, ``""`` until then.
        next_seq: the head: one past the newest segment that got its first byte or was closed.
        jumped_to: the head to which it jumped last; 0 if it never has. If nothing has moved the head since, its
            publisher may go on at any seq above.
        floor: segments below it are final: they were evicted, or the head jumped over them.
        segments: by seq: closed, open and waiting ones.
        window: the closed ones among them, for catching up.
        ended: whether the channel is over; drain_until: when its name is then forgotten.
        active_at: when something was last published; bytes_in, bytes_out: for statistics; reading: its readers.
        life: the numbering of what is written from now on, as its readers are told. Its ``first`` is ``None`` until
            something is written in this start of the server; then the name is that of the newest one in ``lives``.
        lives: the newest :data:`MAX_LIVES` numberings of which something was written in this epoch, as pairs of name
            and first seq, the newest one last. Storage and replicas keep them.
        facts: how many there are of it. followers: told of each (:meth:`follow`).
        playlist: the newest mark of its playlist of HLS; ``""`` if it has none.
        retained: the segments that storage has beyond the window; ``None`` without storage.
        publishers: the clients that publish to it here.
        predecessor: the start of another server that has handed it over in this epoch, with all of it; ``""`` if none.
        belongs: whether it is one of this server's channels, which are listed, counted and stored.
        settled: whether all is here that its owner had when it last told how the channel stands; its owner is always.
    """

    belongs: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        epoch: int,
        content_type: str,
        now: float,
        life: Life,
        limits: Limits,
        budget: Budget,
        faults: Faults,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.content_type = content_type
        self.created_at = self.active_at = now
        self.segments: dict[int, Segment] = {}
        self.window = Window(limits, budget, self._evicted, self._cut_largest)
        self.ended = False
        self.drain_until: float | None = None
        self.next_seq = self.jumped_to = self.floor = self.bytes_in = self.bytes_out = self.facts = 0
        self.followers: tuple[FactListener, ...] = ()
        self.life = life
        self.lives: Lives = ()
        # The lowest seq of that numbering that was written, or that its publisher says it began with.
        self._first = LAST_SEQ + 1
        self.playlist = self.predecessor = ""
        self.settled = True
        self.retained: Retained | None = None
        self.publishers = Publishers(limits.publisher_grace_s)
        self.reading = Capacity(limits.readers_per_channel)
        # Added to the cursors in :attr:`audience`: HLS players, less the cursors that serve them. app.hls keeps it.
        self.players_beside = 0
        # What other workers add, which hold the channel, too: their readers, and bytes delivered to these so far.
        self.readers_elsewhere = self.bytes_elsewhere = 0
        self._limits, self._budget, self._faults = limits, budget, faults
        # By seq: segments without a byte, and those with bytes that are not closed.
        self._waiting: dict[int, Segment] = {}
        self._open: dict[int, Segment] = {}
        # Segments that have closed in this change; their readers are woken at its end.
        self._to_wake: list[Segment] = []

    def __repr__(self) -> str:
        return f"<Channel {self.name!r}.{self.epoch} head {self.next_seq}{' ended' if self.ended else ''}>"

    # Facts.

    def apply(self, fact: Fact) -> None:
        """Apply a fact that the owner of the channel has decided, and wake the readers whom it concerns.

        All bytes that a segment had when it closed must have been given to :meth:`bytes_stored` before. A fact without
        a number comes from a snapshot: it says how things stand, and may follow any other. This holder may have let go
        of a segment before the owner did, since its readers left or its memory was short: that is no error.

        Raises:
            LocalProtocolError: it is not the owner's next fact, or does not fit to what is here; nothing has changed.
        """
        if fact.epoch != self.epoch or (fact.number and fact.number != self.facts + 1):
            place = f"fact {fact.number} of epoch {fact.epoch}"
            raise LocalProtocolError(f"{self!r} has {self.facts} facts: {place} is not the next one")
        if self.ended and type(fact) is not SegmentEvicted:
            raise self._unfit(fact)
        match fact:
            case ChannelCreated():
                self.content_type = fact.content_type
                if self.created_at != fact.at:
                    self.created_at = self.active_at = fact.at
                if self.life.name != fact.numbering:
                    self.life = Life(fact.numbering)
            case ContentTypeNamed():
                self.content_type = fact.content_type
            case NumberingNamed():
                self.numbering_named(fact.name, fact.first)
            case HeadJumped():
                self.head_jumped(fact.next_seq)
            case BodyBegun():
                segment = self._find_or_create(fact.seq)
                if segment.closed or len(segment.former_keys) > MAX_FORMER_KEYS:
                    raise self._unfit(fact)
                segment.begin_body(fact.key, fact.body_at)
            case BodyLeft():
                if (left := self.segments.get(fact.seq)) is not None:
                    self.body_left(left)
                elif fact.number:
                    raise self._unfit(fact)
            case SegmentAwaited():
                self._find_or_create(fact.seq)
            case SegmentForgotten():
                if (forgotten := self._waiting.get(fact.seq)) is None:
                    raise self._unfit(fact)
                self.segment_forgotten(forgotten, fact.at)
            case SegmentOpened():
                if (opened := self._waiting.get(fact.seq)) is not None:
                    self.segment_opened(opened, fact.at)
                elif fact.seq not in self._open:
                    raise self._unfit(fact)
            case SegmentClosed():
                segment = self.segments.get(fact.seq) or Segment(fact.seq)
                event = EVENTS.get(fact.state)
                if (
                    event is None
                    or segment.size != fact.size
                    or TRANSITIONS.get((segment.state, event)) is not fact.state
                ):
                    raise self._unfit(fact)
                self.segments[fact.seq] = segment
                segment.key = fact.key
                self.segment_closed(segment, event, fact.at)
                self.window.keep(segment)
            case SegmentEvicted():
                evicted = self.segments.get(fact.seq)
                if evicted is not None and evicted.closed:
                    self.window.drop(evicted, fact.why)
                    self.segment_evicted(evicted)
                elif evicted is not None or fact.seq >= self.floor:
                    raise self._unfit(fact)
            case PlaylistMarked():
                self.playlist = fact.mark
            case _:  # the last kind: ChannelEnded
                if self._open:
                    raise self._unfit(fact)
                self.channel_ended(fact.at)
        self.facts = fact.number or self.facts
        self.wake_readers()

    def go_live(self, facts: int, bytes_in: int, awaited: Container[int], now: float) -> None:
        """From a snapshot on the owner's facts follow.

        Args:
            facts, bytes_in: how many there were when the snapshot was taken.
            awaited: the seqs below the head that the owner awaited then. Readers that wait here for any other one that
                nobody writes would wait for ever.
        """
        self.facts, self.bytes_in = facts, bytes_in
        for segment in list(self._waiting.values()):
            if segment.seq < self.next_seq and not segment.written and segment.seq not in awaited:
                self.segment_forgotten(segment, now)
        self.wake_readers()

    def follow(self, listener: FactListener) -> None:
        """Tell a listener of each fact of the channel, until :meth:`unfollow`.

        A subscriber of the journal that calls this when it hears of a fact is told of that fact here, too.
        """
        self.followers += (listener,)

    def unfollow(self, listener: FactListener) -> None:
        """Tell it no more; it may call this when it is told of a fact."""
        self.followers = tuple(one for one in self.followers if one != listener)

    def next_deadline(self) -> float | None:
        """When something is due for the channel."""
        return self.drain_until

    def numbering_named(self, name: str, first: int) -> None:
        """A segment below all others of the numbering was written, or a publisher has named its own numbering."""
        self._first = first
        if name:
            self.life = Life(name, first)
            earlier = [one for one in self.lives if one[0] != name]
            self.lives = (*earlier[1 - MAX_LIVES :], (name, first))

    def restored(self, created_at: float, next_seq: int, playlist: str, lives: Lives) -> None:
        """The server was started again: all segments below the head are final, and are in storage."""
        self.created_at, self.playlist, self.lives = created_at, playlist, lives
        if lives:
            self.life = Life(lives[-1][0])
        self.head_jumped(next_seq)

    def head_jumped(self, next_seq: int) -> None:
        """Segments below are final: a late POST for one of them gets 409."""
        self.next_seq, self.floor = max(self.next_seq, next_seq), max(self.floor, next_seq)
        self.jumped_to = next_seq

    def take_back_opening(self, segment: Segment) -> None:
        """Its first byte was told and has not come, and will not: the segment waits for one, if it has none."""
        if segment.state is OPEN and not segment.size:
            segment.state, segment.opened_at = WAITING, 0.0
            self._waiting[segment.seq] = self._open.pop(segment.seq)

    def body_left(self, segment: Segment) -> None:
        """Its publisher has left; if it has no byte and nobody waits for it, it is gone."""
        segment.written = False
        self.release(segment)

    def segment_forgotten(self, segment: Segment, now: float) -> None:
        """Nobody will write the segment, which has no byte. Readers that still wait are told that it was skipped."""
        self._discard(segment)
        if segment.cursors:
            segment.close(SKIP, now)
            self._to_wake.append(segment)

    def segment_opened(self, segment: Segment, now: float) -> None:
        """The segment has its first byte; at a replica the bytes follow this fact."""
        segment.state = OPEN
        self._open[segment.seq] = self._waiting.pop(segment.seq)
        segment.opened_at = now
        if segment.seq >= self.next_seq:
            self.next_seq = segment.seq + 1

    def bytes_stored(self, segment: Segment, frame: bytes, size: int, price: int) -> bool:
        """Store a frame of ``size`` body bytes. ``False``, and nothing has changed, if the server has no memory for it.

        Args:
            price: what the segment says that it costs.
        """
        if not self._budget.take(self.window, price):
            return False
        self.window.open += price
        self.bytes_in += size
        segment.store(frame, size)
        return True

    def segment_closed(self, segment: Segment, event: Event, now: float) -> None:
        """The segment is closed. The caller puts it into the window when all segments of the change are closed."""
        seq = segment.seq
        segment.close(event, now)
        self._waiting.pop(seq, None)
        self._open.pop(seq, None)
        self._to_wake.append(segment)
        if seq >= self.next_seq:
            self.next_seq = seq + 1

    def segment_evicted(self, segment: Segment) -> None:
        """The segment has left the window for good: a late POST for it is a POST for a closed segment."""
        del self.segments[segment.seq]
        if segment.seq >= self.floor:
            self.floor = segment.seq + 1

    def channel_ended(self, now: float) -> None:
        """The channel is over, and none of its segments is open. Readers that wait are told that nothing comes."""
        self.ended = True
        self.drain_until = now + self._limits.channel_drain_s
        for segment in list(self._waiting.values()):
            # It never moved the head; neither does its end, and there is nothing to keep.
            self._discard(segment)
            segment.close(TERMINATE, now)
            self._to_wake.append(segment)

    def abandon(self, now: float) -> None:
        """The owner is lost: what is open is cut short, and here the channel is over."""
        for segment in list(self._open.values()):
            self.segment_closed(segment, TERMINATE, now)
            self.window.keep(segment)
        self.channel_ended(now)
        self.wake_readers()

    def move_to(self, heir: Channel) -> None:
        """Give all that is here to a new object for the same epoch, of another kind; here it is over.

        Cursors stay in their segments: the caller tells them of the new object.
        """
        heir.content_type, heir.created_at, heir.active_at = self.content_type, self.created_at, self.active_at
        heir.next_seq, heir.jumped_to, heir.floor = self.next_seq, self.jumped_to, self.floor
        heir.bytes_in, heir.bytes_out, heir.facts = self.bytes_in, self.bytes_out, self.facts
        heir.life, heir.lives, heir._first, heir.playlist = self.life, self.lives, self._first, self.playlist
        heir.reading = self.reading
        # Swapped, since the heir's own are empty and are needed here.
        heir.window, self.window = self.window, heir.window
        heir.window.belong_to(heir._evicted, heir._cut_largest)
        heir.segments, self.segments = self.segments, heir.segments
        heir._waiting, self._waiting = self._waiting, heir._waiting
        heir._open, self._open = self._open, heir._open
        self.ended = True

    def wake_readers(self) -> None:
        """The change is done: wake the readers of the segments that it has closed."""
        woken, self._to_wake = self._to_wake, []
        for segment in woken:
            segment.wake(self._faults)

    def _find_or_create(self, seq: int) -> Segment:
        """The segment of this seq, which is created if it is not there."""
        segment = self.segments.get(seq)
        if segment is None:
            if len(self._waiting) >= MAX_AWAITED:
                raise LocalProtocolError(f"{self!r}: more than {MAX_AWAITED} segments wait for their first byte")
            segment = self._create(seq)
        return segment

    def _unfit(self, fact: Fact) -> LocalProtocolError:
        return LocalProtocolError(f"{self!r}: a fact or bytes are missing, since this cannot follow: {fact}")

    def _create(self, seq: int) -> Segment:
        segment = self.segments[seq] = self._waiting[seq] = Segment(seq)
        return segment

    def _discard(self, segment: Segment) -> None:
        del self.segments[segment.seq]
        del self._waiting[segment.seq]

    def _evicted(self, segment: Segment, why: Eviction) -> None:
        """The window, or the server's budget, has let go of a segment."""
        self.segment_evicted(segment)

    def _cut_largest(self) -> bool:
        """Memory is short: cut the largest segment that is being written. Only the owner may; whether it has."""
        return False

    @property
    def earliest(self) -> int:
        """The oldest seq that can be read now; the head if there is none."""
        in_window = self.window.earliest
        oldest = min([*self._open, self.next_seq if in_window is None else in_window])
        return self._or_retained(oldest, 0)

    @property
    def unclosed(self) -> list[Segment]:
        """The waiting and the open segments."""
        return [*self._waiting.values(), *self._open.values()]

    @property
    def audience(self) -> int:
        """Readers here as people count them: a client that waits for a segment while it reads the one before is one.

        Which cursors belong together is not known: those in one segment are taken for those in the next one.
        """
        cursors = self.reading.used
        if cursors:
            for segment in chain(self._waiting.values(), self._open.values()):
                before = self.segments.get(segment.seq - 1)
                if segment.cursors and before is not None:
                    cursors -= min(len(segment.cursors), len(before.cursors))
        return max(0, cursors + self.players_beside)

    @property
    def readers(self) -> int:
        """Readers, as people count them, wherever they are served."""
        return self.audience + self.readers_elsewhere

    @property
    def delivered(self) -> int:
        """Body bytes delivered so far, wherever."""
        return self.bytes_out + self.bytes_elsewhere

    def resolve(self, seq: int) -> Ready | Upcoming | Ahead | Gone | Ended:
        """Answer a GET of N, -1 (the head), -2 (the newest started one) or -N; the head is created to wait for it."""
        head = self.next_seq
        if seq < 0:
            seq = max(head + seq + 1, self.earliest if seq < SEQ_CURRENT else 0)
        if (segment := self.segments.get(seq)) is not None:
            return Upcoming(self, segment, head) if segment.state is WAITING else Ready(self, segment, head)
        if seq < head:
            if self.retained is not None and (segment := self.retained.find(seq)) is not None:
                return Ready(self, segment, head)
            return Gone(seq, head, self.earliest, self.epoch, self._following(seq), self.life)
        if self.ended:
            return Ended(seq, head, self.epoch, self.content_type, self.life)
        if seq == head or (head == 0 and seq == 1):
            return Upcoming(self, self._create(seq), head)
        return Ahead(seq, head, self.earliest, self.epoch, self.life)

    def life_of(self, seq: int) -> Life:
        """The numbering, as an answer with this segment tells it: that of a segment from before the restart is known,
        though nothing was written since. A reader that goes on with it takes its name."""
        life = self.life
        if life.first is not None or seq >= self.next_seq or not self.lives:
            return life
        return Life(*self.lives[-1])

    def told(self, follows: Life, seq: int, epoch: int | None = None) -> Life:
        """The numbering of which the server tells a reader that wants ``seq`` and follows another one.

        It is the present one, unless others have begun below ``seq`` since then: what the reader has of these numbers
        is something else by now, and it goes back to the lowest of them. So the name is that of the newest numbering,
        and ``first`` the lowest of all that followed the reader's.

        A name that is not known was lost with all that was written of it, so nobody knows how many followed. The newest
        ones are taken that suffice. Above the head its publisher may be about to send again what was lost, until
        somebody writes. A reader that has read nothing of it has lost nothing with it: what it has was kept when that
        numbering began, so only the present one can have written such numbers anew. A name from another epoch is not
        known either, and all numberings of this epoch followed it.

        Args:
            follows: with its first seq, if the reader has read nothing of it.
            epoch: in which the reader has read, if it says so.
        """
        name, lives = follows.name, self.lives
        if seq < 0 or not lives or name == lives[-1][0]:
            return self.life
        is_known = any(one == name for one, _ in lives)
        is_lost = not is_known and epoch in (None, self.epoch)
        is_unread = follows.first is not None and follows.first >= seq
        if is_lost and (is_unread or (self.life.first is None and seq > self.next_seq)):
            return self.life
        lowest = LAST_SEQ + 1
        for one, first in reversed(lives):
            if one == name or (lowest < seq and is_lost):
                break
            lowest = min(lowest, first)
        return Life(lives[-1][0], lowest) if lowest < seq else self.life

    def renumbered(
        self, follows: Life, seq: int, found: Ready | Upcoming | Ahead | Gone | Ended, epoch: int | None = None
    ) -> Ahead | None:
        """Send a reader back that wants ``seq`` of another numbering, if others have written that number anew.

        For example, the reader has read 0 to 9 of ``a`` and wants 10, and ``b`` has begun at 5: it is told ``b:5``.

        Args:
            follows, epoch: as for :meth:`told`.

        Returns:
            The answer that the reader gets in place of ``found``. ``None``: it gets ``found``, since its numbering goes
            on there, or ``found`` says at once that it does not.
        """
        present = self.life
        if follows.name == present.name or seq < 0:
            return None
        told = self.told(follows, seq, epoch)
        if told == present:
            waits = isinstance(found, Upcoming) and present.first is not None and present.first < seq
            if not waits:
                return None
        if isinstance(found, Upcoming):
            self.release(found.segment)
        return Ahead(seq, self.next_seq, self.earliest, self.epoch, told)

    def after(self, seq: int) -> tuple[Ready | Upcoming | Ahead | Ended, int]:
        """Find where a reader goes on after a closed segment.

        Returns:
            The result for its next GET, and how many segments between cannot be had.
        """
        missed = 0
        found = self.resolve(seq + 1)
        while isinstance(found, Gone):
            missed += found.following - found.seq
            found = self.resolve(found.following)
        return found, missed

    def _following(self, seq: int) -> int:
        """The lowest seq above this one that can be read, or for which a reader can wait."""
        in_memory = min((at for at in self.segments if seq < at < self.next_seq), default=self.next_seq)
        return self._or_retained(in_memory, seq + 1)

    def _or_retained(self, in_memory: int, seq: int) -> int:
        """A seq in memory, or the lowest one from ``seq`` on that storage has, if that is lower."""
        stored = None if self.retained is None else self.retained.following(seq)
        return in_memory if stored is None or stored > in_memory else stored

    def listed(self, seq: int, since_us: int, to_us: Callable[[float], int]) -> Iterator[SegmentSummary]:
        """The segments that can be read, from a seq and a time on, ascending; storage's before the window's.

        Args:
            since_us: the first one has not closed before, microseconds since 1970.
            to_us: turns the registry's time into microseconds since 1970.
        """
        live = {one.seq: one for one in self.segments.values() if one.state is not WAITING and one.seq >= seq}
        crcs: dict[int, int | None] = {}  # of those in the window that are stored, too
        if self.retained is not None:
            for one in self.retained.listed(seq, since_us):
                if one.seq in live:
                    crcs[one.seq] = one.crc
                else:
                    yield one
        for _, segment in sorted(live.items()):
            one = summarize(segment, to_us)
            if one.closed_us is None or one.closed_us >= since_us:
                yield one._replace(crc=crcs.get(one.seq))

    def refuse(self, why: Cause, seq: int | None = None) -> Refusal:
        """A refusal that says where the channel stands."""
        return Refusal(why, seq, self.next_seq, self.epoch, life=self.life)

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
        # Below the head it waits for its publisher, too, as long as the rules say.
        if self._waiting.get(segment.seq) is segment and not segment.is_wanted and segment.seq >= self.next_seq:
            self._discard(segment)

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
            writing_seqs=tuple(s.seq for s in unclosed if s.written and s.state is OPEN),
            preconnected_seqs=tuple(s.seq for s in unclosed if s.written and s.state is WAITING),
            readers=self.readers,
            bytes_in=self.bytes_in,
            bytes_out=self.delivered,
        )

    def forget(self) -> None:
        """The drain is over: let go of all segments. Cursors in the middle of one keep what they read from."""
        self.window.clear()
        self.segments.clear()


class Found:
    """A segment to which a reader may attach a cursor.

    (No named tuple, which takes twice as long to make, and twelve times as long in compiled code.)

    Attributes:
        head: ``next_seq`` at this moment, for ``Lp-Trickle-Latest``.
    """

    __slots__ = ("channel", "head", "segment")

    def __init__(self, channel: Channel, segment: Segment, head: int) -> None:
        self.channel = channel
        self.segment = segment
        self.head = head


class Ready(Found):
    """The segment has bytes or is closed: the reader is answered now."""

    __slots__ = ()


class Upcoming(Found):
    """The segment is next: the reader attaches a cursor, and is answered when the segment has a byte or closes.

    A caller that does not attach a cursor must ``release`` the segment.
    """

    __slots__ = ()
