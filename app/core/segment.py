"""One segment: its state, its bytes as frames, the writer that fills it and the cursors that read it.

Bytes are held once, as they go over the wire: a frame is what one write of the publisher has brought, as HTTP/1.1
chunks, encoded once for all readers. A cursor is a number of frames; a reader that wakes writes the frames from there
on, so a fan-out of 10,000 readers copies and encodes nothing. All others read :meth:`Segment.payload`, views of the
chunks within the frames. Neither a frame nor a chunk ever changes.

The states and the events that lead from one to the next are a table. An event that the table does not allow in the
present state raises :class:`~tricklecast.trickle.errors.LocalProtocolError`, and nothing has changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum, StrEnum, auto
from typing import Any, Final, Generic, Protocol, TypeVar

from tricklecast.app.core.limits import Capacity
from tricklecast.app.core.payers import Payer
from tricklecast.app.core.publishers import Presence
from tricklecast.app.core.results import Ending, Outcome
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.wire import Life

C = TypeVar("C")
"""The channel of a writer, which a segment does not know."""


class State(StrEnum):
    """The state of a segment. All but ``WAITING`` and ``OPEN`` are ways of being closed, and final."""

    WAITING = "waiting"
    OPEN = "open"
    COMPLETE = "complete"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    SKIPPED = "skipped"
    TERMINATED = "terminated"


WAITING, OPEN, COMPLETE, EMPTY, TRUNCATED, SKIPPED, TERMINATED = State
"""The same under names of their own: before Python 3.12 the lookup of a member in its Enum takes as long as a call."""


class Event(IntEnum):
    """The events that change the state of a segment. (An IntEnum, since it is hashed for every transition.)"""

    BYTES = auto()
    FINISH = auto()
    TRUNCATE = auto()
    SKIP = auto()
    TERMINATE = auto()


BYTES, FINISH, TRUNCATE, SKIP, TERMINATE = Event

TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.WAITING, Event.BYTES): State.OPEN,
    (State.WAITING, Event.FINISH): State.EMPTY,
    (State.WAITING, Event.SKIP): State.SKIPPED,
    (State.WAITING, Event.TERMINATE): State.TERMINATED,
    (State.OPEN, Event.BYTES): State.OPEN,
    (State.OPEN, Event.FINISH): State.COMPLETE,
    (State.OPEN, Event.TRUNCATE): State.TRUNCATED,
    (State.OPEN, Event.TERMINATE): State.TERMINATED,
}
"""State x event -> state (docs/reference/protocol.md, section 1)."""


# The callbacks of the core: readers, publishers, and the listener of their faults.


class Cursor(Protocol):
    """A reader's position in one segment. The segment wakes the cursor; the cursor pulls what it has not seen."""

    def wake(self) -> None:
        """There is more to read, or the segment has closed.

        The core calls this in the middle of a change: the cursor may write to its own socket, but must not call back
        into the registry, except to detach from a segment that is closed.
        """

    def evict(self) -> None:
        """The memory of the closed segment is needed: stop reading it, and detach at once.

        The core calls this in the middle of a change, like :meth:`wake`.
        """


class Source(Protocol):
    """Reads the bytes of a segment again from storage, for the one reader that the segment was made for.

    Attributes:
        unreadable: whether they cannot be read; if the reader is evicted otherwise, its memory was needed.
    """

    unreadable: bool

    def more(self) -> None:
        """The reader has begun, has sent all that is loaded, or has left: load the next part, or let go."""


class WriterOwner(Protocol):
    """A publisher's exchange, which holds a writer."""

    def preempted(self, outcome: Outcome) -> None:
        """The server or another client ended this writer's part: answer the publisher, and drop its later bytes.

        The core calls this in the middle of a change: the owner may write to its own socket, but must not call back
        into the registry.
        """


OnFault = Callable[[object, Exception], None]
"""Told of a fault: the object that raised it, and the exception. Like every callback of the core it must not call back
into the registry; it may do so in a later turn of the event loop."""


class Faults:
    """Exceptions of callbacks, which wait until the change in which they arose is done.

    So one reader's exception neither keeps another reader from being woken nor leaves a change half done.

    Attributes:
        noted: the faults that are not delivered yet.
    """

    __slots__ = ("_on_fault", "noted")

    def __init__(self) -> None:
        self._on_fault: OnFault = _raise
        self.noted: list[tuple[object, Exception]] = []

    def deliver_to(self, on_fault: OnFault) -> None:
        """Deliver faults to this function, instead of raising the exception when the change is done."""
        self._on_fault = on_fault

    def note(self, victim: object, error: Exception) -> None:
        """A callback raised; the caller goes on with its change."""
        self.noted.append((victim, error))

    def deliver(self) -> None:
        """The change is done: deliver each fault once."""
        while self.noted:
            self._on_fault(*self.noted.pop(0))


def _raise(victim: object, error: Exception) -> None:
    raise error


# Frames.

SEGMENT_COST: Final = 832
"""Bytes of memory that a segment takes beside its frames: itself, its lists of frames and offsets, its places in window
and channel (500 measured with CPython 3.11), and the longest ``Idempotency-Key`` (256 characters in a string object of
49)."""

FRAME_COST: Final = 72
"""Bytes of memory that a frame takes beside its bytes: the bytes object (33), its places in the lists of frames and
offsets (9 each on average), and what malloc rounds up (at most 16, and its header)."""

MAX_FORMER_KEYS: Final = 8
"""How often a body with a key may be taken over within one segment: each leaves its key behind, and nothing here may
grow without bound. Real publishers take a segment over once."""

_NO_FRAMES: Final = array("Q", (0,))


def encode_frame(chunks: Sequence[bytes]) -> bytes:
    """Encode chunks for the wire, once for all readers: one HTTP/1.1 chunk each (RFC 9112, section 7.1).

    Args:
        chunks: the chunks as published; none of them empty (an empty one would end the message).
    """
    if len(chunks) == 1:
        return b"%x\r\n%b\r\n" % (len(chunks[0]), chunks[0])
    return b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks])


def payload_of(frame: bytes) -> Iterator[memoryview]:
    """The chunks that :func:`encode_frame` was given, as views of the frame: nothing is copied."""
    view, at = memoryview(frame), 0
    while at < len(frame):
        start = frame.index(b"\r\n", at) + 2
        end = start + int(frame[at : start - 2], 16)
        yield view[start:end]
        at = end + 2


def prefix(chunks: Iterable[bytes], size: int) -> list[bytes]:
    """The first ``size`` bytes of chunks, as chunks that are not empty."""
    first = []
    for chunk in chunks:
        if size <= 0:
            break
        first.append(chunk[:size])
        size -= len(chunk)
    return first


class Segment:
    """The bytes under one seq.

    Attributes:
        seq: its number.
        state: see :class:`State`.
        closed: whether the state is final (beside ``state``, because every cursor asks on every wake).
        frames: the encoded chunks; one entry per arrival from the publisher, never changed afterwards.
        offsets: body bytes before each frame, and at the end those of all frames: one entry more than ``frames``.
        size: body bytes stored; of a segment with a source all of them, also those that are not loaded.
        cost: bytes of memory that it takes, so that a segment of many tiny chunks is counted for what it is.
        cursors: its readers in order of arrival (a dict for its order and its O(1) removal).
        writer: the token that may write, or ``None``. written: whether a publisher writes it, here or at the owner of
            the channel.
        opened_at, closed_at: when it got its first byte (0 before), and when it closed.
        key: the ``Idempotency-Key`` of the body that is being written, or was written last, if it has one.
        body_at: how many bytes of earlier bodies lie before that body.
        former_keys: the keys of those earlier bodies.
        taps: cursors that are no readers: storage's, while not all of the segment is stored, and those of feeds.
        payer: whose memory it is while it is being written; ``None`` for the server's own, and once it has closed.
        source: loads its bytes, part by part, if it is read again from storage. Such a segment is closed from its
            beginning, and has the size, the state and the times that it had.
    """

    __slots__ = (
        "body_at",
        "closed",
        "closed_at",
        "cost",
        "cursors",
        "former_keys",
        "frames",
        "key",
        "offsets",
        "opened_at",
        "payer",
        "seq",
        "size",
        "source",
        "state",
        "taps",
        "writer",
        "written",
    )

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.state = WAITING
        self.closed = False
        self.frames: list[bytes] = []
        self.offsets = _NO_FRAMES[:]
        self.size = 0
        self.cost = SEGMENT_COST
        self.cursors: dict[Cursor, None] = {}
        self.writer: Writer[Any] | None = None
        self.written = False
        self.opened_at = 0.0
        self.closed_at: float | None = None
        self.key: str | None = None
        self.body_at = 0
        self.former_keys: tuple[str, ...] = ()
        self.payer: Payer | None = None
        self.taps: tuple[Cursor, ...] = ()
        self.source: Source | None = None

    def __repr__(self) -> str:
        return f"<Segment {self.seq} {self.state} {self.size} B>"

    @property
    def is_wanted(self) -> bool:
        """Whether a publisher writes it, or a reader waits for it."""
        return self.written or bool(self.cursors)

    @property
    def is_read(self) -> bool:
        """Whether anybody still needs its bytes: a reader, storage, or a feed."""
        return bool(self.cursors) or bool(self.taps)

    @property
    def complete(self) -> bool:
        """Whether its publisher ended it, with at least one byte."""
        return self.state is COMPLETE

    @property
    def is_loaded(self) -> bool:
        """Whether all of its bytes have come into its frames; always, unless it has a source."""
        return self.offsets[-1] == self.size

    def payload(self, first: int = 0, last: int | None = None) -> Iterator[memoryview]:
        """The chunks of the frames from ``first`` on and before ``last``, as views of them: nothing is copied.

        Only a writer of HTTP/1.1 takes the frames as they are; all others read the payload.
        """
        for frame in self.frames[first:last]:
            yield from payload_of(frame)

    def is_finished_by(self, key: str | None) -> bool:
        """Whether a body with this key has come to its end here, so that a retry of it has nothing left to do."""
        return key is not None and key == self.key and self.state in (COMPLETE, EMPTY)

    def admits(self, key: str | None, attempt: int) -> bool:
        """Whether a POST with this key may take the segment over, which is not closed.

        It may not if bytes of another body lie behind those of its own: they would be doubled. Nor if a later
        attempt at the same body is being written: that one has overtaken this POST.
        """
        if key is None:
            return True
        if key == self.key:
            return self.writer is None or attempt >= self.writer.attempt
        return key not in self.former_keys and len(self.former_keys) < MAX_FORMER_KEYS

    def begin_body(self, key: str | None, body_at: int | None = None) -> int:
        """A POST takes the segment over. The caller has asked :meth:`admits`.

        Args:
            body_at: where its body begins, if the owner of the channel has decided that.

        Returns:
            How many bytes of its body are stored already. A retry sends its body from the start, so the caller must
            pass over that many bytes.
        """
        if body_at is None:
            body_at = self.body_at if key is not None and key == self.key else self.size
        if not body_at:
            self.former_keys = ()
        elif self.key is not None and key != self.key and body_at > self.body_at:
            self.former_keys += (self.key,)
        self.key, self.body_at, self.written = key, body_at, True
        return self.size - body_at

    def charge(self, payer: Payer | None) -> None:
        """From now on it counts as the memory of this publisher, in place of the one that has paid so far."""
        if self.size:
            if self.payer is not None:
                self.payer.open -= self.cost
            if payer is not None:
                payer.open += self.cost
        self.payer = payer

    def price(self, frame: bytes) -> int:
        """Bytes of memory that storing this frame takes; the first frame is charged for the segment itself, too."""
        return len(frame) + FRAME_COST + (0 if self.frames else SEGMENT_COST)

    def store(self, frame: bytes, size: int) -> None:
        """Add a frame of ``size`` body bytes. The caller wakes the cursors when all of its change is done.

        Raises:
            LocalProtocolError: the segment is closed.
        """
        if self.state is not OPEN:
            self.state = self._after(BYTES)
        self.frames.append(frame)
        self.size += size
        self.offsets.append(self.size)
        self.cost += len(frame) + FRAME_COST

    def restore(self, state: State, size: int, opened_at: float, closed_at: float) -> None:
        """Become a segment that was closed before, whose bytes its source will :meth:`load`."""
        self.state, self.closed = state, True
        self.size, self.opened_at, self.closed_at = size, opened_at, closed_at

    def load(self, frame: bytes, size: int) -> None:
        """Add a frame of ``size`` body bytes that were stored before. The caller wakes the cursors."""
        self.frames.append(frame)
        self.offsets.append(self.offsets[-1] + size)

    def close(self, event: Event, now: float) -> None:
        """Enter the final state that ``event`` leads to. The caller wakes the cursors.

        Raises:
            LocalProtocolError: the segment is closed, or the event does not close it from this state.
        """
        state = self._after(event)
        if state is OPEN:
            raise LocalProtocolError(f"the event {event.name} does not close a segment")
        self.state = state
        self.closed = True
        self.closed_at = now
        self.writer = None
        self.written = False
        self.former_keys = ()

    def tap(self, cursor: Cursor) -> None:
        """Wake a cursor that is no reader, until :meth:`untap`; it keeps the bytes in memory."""
        self.taps += (cursor,)

    def untap(self, cursor: Cursor) -> None:
        """Wake it no more. The caller settles the segment with the budget."""
        self.taps = tuple(tap for tap in self.taps if tap is not cursor)

    def wake(self, faults: Faults) -> None:
        """Tell every cursor that there is more, or that this was all; in the latter case it may detach from within.

        Args:
            faults: told of the cursors that raise; the others are woken all the same.
        """
        for tap in self.taps:
            try:
                tap.wake()
            except Exception as error:
                faults.note(tap, error)
        for cursor in list(self.cursors) if self.closed else self.cursors:
            try:
                cursor.wake()
            except Exception as error:
                faults.note(cursor, error)

    def evict_readers(self, faults: Faults) -> None:
        """Tell every cursor to detach, since the memory is needed.

        Args:
            faults: told of the cursors that raise; the others are told all the same.
        """
        for cursor in [*self.taps, *self.cursors]:
            try:
                cursor.evict()
            except Exception as error:
                faults.note(cursor, error)

    def _after(self, event: Event) -> State:
        try:
            return TRANSITIONS[self.state, event]
        except KeyError:
            raise LocalProtocolError(f"segment {self.seq} is {self.state}: no {event.name} now") from None


class Writer(Generic[C]):
    """The right to write one segment: a token that a publisher's exchange holds.

    The exchange does everything to its segment through the token. Once the segment has closed, or another exchange
    has taken it over, the token is stale and changes nothing any more.

    Attributes:
        channel, segment: where it writes; the channel object is one epoch of a name.
        serial: counts the writers of the server; of two tokens for one segment the higher one is valid.
        presence: of the client that it was given to.
        owner: told when the server or another client makes the token stale.
        attempt: which attempt at its body this is: 1 for the first, 2 for its first retry, ...
        repeated: bytes still to come that the segment has already, from an earlier attempt at the same body.
        claim: the numbering with which its publisher goes on; ``None`` if it does not say.
        outcome: how its part ended; ``None`` while the token is valid.
    """

    __slots__ = (
        "_counted", "attempt", "channel", "claim", "outcome", "owner", "presence", "repeated", "segment", "serial",
    )  # fmt: skip

    def __init__(
        self,
        channel: C,
        segment: Segment,
        serial: int,
        owner: WriterOwner,
        presence: Presence,
        *,
        attempt: int = 1,
        repeated: int = 0,
        claim: Life | None = None,
    ) -> None:
        self.channel = channel
        self.segment = segment
        self.serial = serial
        self.owner = owner
        self.presence = presence
        self.attempt = attempt
        self.repeated = repeated
        self.claim = claim
        self.outcome: Outcome | None = None
        self._counted: Capacity | None = None

    def __repr__(self) -> str:
        state = "valid" if self.outcome is None else self.outcome.ending.name.lower()
        return f"<Writer #{self.serial} {state} of {self.segment!r} in {self.channel!r}>"

    def pass_over(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Leave out the bytes that the segment has already; the rest of a chunk that holds some of them is a chunk."""
        new = []
        for chunk in chunks:
            if self.repeated < len(chunk):
                new.append(chunk[self.repeated :])
            self.repeated = max(0, self.repeated - len(chunk))
        return new

    def count(self, publishers: Capacity) -> None:
        """Count it as a publisher until its part has ended; the server's own writers are not counted."""
        publishers.take()
        self._counted = publishers

    def settle(self, ending: Ending) -> Outcome:
        """Make the token stale and record how its part ended. Only the channel calls this."""
        if self._counted is not None:
            self._counted.give_back()
        self.outcome = Outcome(ending, self.segment.size)
        return self.outcome
