"""One segment: its state, its bytes as frames, and the cursors that wait on it.

The states and what leads from one to the next are a table. An event that the table does not know for the present
state raises :class:`~trickle.errors.LocalProtocolError`, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum, auto
from typing import TYPE_CHECKING, Final, Protocol

from tricklecast.trickle.errors import LocalProtocolError

if TYPE_CHECKING:
    from tricklecast.app.core.writer import Writer


class State(StrEnum):
    """Where a segment stands. All but ``WAITING`` and ``OPEN`` are ways of being closed, and final."""

    WAITING = "waiting"
    OPEN = "open"
    COMPLETE = "complete"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    SKIPPED = "skipped"
    TERMINATED = "terminated"


WAITING, OPEN, COMPLETE, EMPTY, TRUNCATED, SKIPPED, TERMINATED = State
"""The same by names of their own: before Python 3.12 looking a member up in its Enum takes as long as a call."""


class Event(IntEnum):
    """What can happen to a segment. (An IntEnum, since it is hashed for every transition.)"""

    BYTES = auto()
    FINISH = auto()
    TRUNCATE = auto()
    SKIP = auto()
    TERMINATE = auto()


BYTES, FINISH = Event.BYTES, Event.FINISH

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


class Cursor(Protocol):
    """A reader's position in one segment. The segment wakes it; it pulls what it has not seen."""

    def wake(self) -> None:
        """There is more to read, or the segment has closed.

        Called in the middle of a change: the cursor may write to its own socket, but must not call back into
        the registry from here, except to detach from a segment that is closed.
        """

    def evict(self) -> None:
        """The memory of the closed segment is needed: stop reading it, and detach at once.

        Called in the middle of a change, like :meth:`wake`.
        """


SEGMENT_COST: Final = 768
"""Bytes of memory that a segment takes beside its frames: itself, its list of frames, its places in window and channel
(400 measured with CPython 3.11), and the longest ``Idempotency-Key`` (256 characters in a string object of 49)."""

FRAME_COST: Final = 64
"""Bytes of memory that a frame takes beside its bytes: the bytes object (33), its place in the list (9 on average), and
what malloc rounds up (at most 16, and its header)."""

MAX_FORMER_KEYS: Final = 8
"""So many bodies with a key may be taken over within one segment: each leaves its key behind, and nothing here may
grow without bound. Real publishers take a segment over once."""


def encode_frame(chunks: Sequence[bytes]) -> bytes:
    """Encode chunks for the wire, once for all readers: one HTTP/1.1 chunk each (RFC 9112, section 7.1).

    Args:
        chunks: the chunks as published; none of them empty (an empty one would end the message).
    """
    if len(chunks) == 1:
        return b"%x\r\n%b\r\n" % (len(chunks[0]), chunks[0])
    return b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks])


def decode_frame(frame: bytes) -> list[bytes]:
    """The chunks that :func:`encode_frame` was given."""
    chunks = []
    at = 0
    while at < len(frame):
        start = frame.index(b"\r\n", at) + 2
        end = start + int(frame[at : start - 2], 16)
        chunks.append(frame[start:end])
        at = end + 2
    return chunks


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
    """Bytes under one seq.

    Attributes:
        seq: its number.
        state: see :class:`State`.
        closed: whether the state is final (kept beside ``state`` because every cursor asks on every wake).
        frames: what was published, encoded; one entry per arrival from the publisher, never changed afterwards.
        size: body bytes stored.
        cost: bytes of memory it takes, so that a segment of many tiny chunks is counted for what it is.
        cursors: who reads it, in order of arrival (a dict for its order and its O(1) removal).
        writer: the token that may write, or ``None``.
        deadline: when the present state ends by itself (``skip_grace``, ``publisher_grace``, first byte), or ``None``.
        opened_at, closed_at: when it got its first byte (0 before), and closed; counted from then for the window's age.
        key: the ``Idempotency-Key`` of the body that is being written, or was written last, if it has one.
        body_at: how many bytes of earlier bodies lie before that body.
        former_keys: the keys of those earlier bodies.
    """

    __slots__ = (
        "body_at",
        "closed",
        "closed_at",
        "cost",
        "cursors",
        "deadline",
        "former_keys",
        "frames",
        "key",
        "opened_at",
        "seq",
        "size",
        "state",
        "writer",
    )

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.state = State.WAITING
        self.closed = False
        self.frames: list[bytes] = []
        self.size = 0
        self.cost = SEGMENT_COST
        self.cursors: dict[Cursor, None] = {}
        self.writer: Writer | None = None
        self.deadline: float | None = None
        self.opened_at = 0.0
        self.closed_at: float | None = None
        self.key: str | None = None
        self.body_at = 0
        self.former_keys: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Segment {self.seq} {self.state} {self.size} B>"

    @property
    def is_wanted(self) -> bool:
        """Whether somebody writes it, or waits for it."""
        return self.writer is not None or bool(self.cursors)

    @property
    def complete(self) -> bool:
        """Whether it closed as its publisher wanted, with bytes."""
        return self.state is COMPLETE

    def is_finished_by(self, key: str | None) -> bool:
        """Whether a body with this key has come to its end here, so that a retry of it has nothing left to do."""
        return key is not None and key == self.key and self.state in (COMPLETE, EMPTY)

    def admits(self, key: str | None, attempt: int) -> bool:
        """Whether a POST with this key may take the segment over, which is not closed.

        It may not if bytes of another body lie behind those of its own: they would be doubled. Nor if a later
        attempt at the same body is being written: this one was overtaken on its way.
        """
        if key is None:
            return True
        if key == self.key:
            return self.writer is None or attempt >= self.writer.attempt
        return key not in self.former_keys and len(self.former_keys) < MAX_FORMER_KEYS

    def begin_body(self, key: str | None) -> int:
        """A POST takes the segment over. The caller has asked :meth:`admits`.

        Returns:
            How many bytes of its body are stored already: all that a body with the same key has left here, since a
            retry begins from its start. They are to be passed over.
        """
        if key is not None and key == self.key:
            return self.size - self.body_at
        if self.key is not None and self.size > self.body_at:
            self.former_keys += (self.key,)
        self.key, self.body_at = key, self.size
        return 0

    def price(self, frame: bytes) -> int:
        """Bytes of memory that storing this frame takes; the first one brings the segment itself with it."""
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
        self.cost += len(frame) + FRAME_COST

    def close(self, event: Event, now: float) -> None:
        """Enter the final state that ``event`` leads to. The caller wakes the cursors.

        Raises:
            LocalProtocolError: the segment is closed, or the event does not close it from this state.
        """
        state = self._after(event)
        if state is OPEN:
            raise LocalProtocolError(f"{event.name} does not close a segment")
        self.state = state
        self.closed = True
        self.closed_at = now
        self.writer = None
        self.former_keys = ()

    def wake(self) -> None:
        """Tell every cursor that there is more, or that this was all; in that case it may detach from within."""
        for cursor in list(self.cursors) if self.closed else self.cursors:
            cursor.wake()

    def _after(self, event: Event) -> State:
        try:
            return TRANSITIONS[self.state, event]
        except KeyError:
            raise LocalProtocolError(f"segment {self.seq} is {self.state}: no {event.name} now") from None
