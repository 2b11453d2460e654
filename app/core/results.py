"""The results of the core: plain values, to be matched exhaustively.

None of them refers to a channel or a segment, so a result that somebody keeps holds no memory of theirs. The two with
which a reader goes on do: :class:`~tricklecast.app.core.state.Ready` and ``Upcoming``, beside the channel.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from tricklecast.app.core.limits import Limit
from tricklecast.app.core.publishers import Occupied
from tricklecast.trickle.wire import NO_LIFE, Life

COME_BACK_S: Final = (1, 5)
"""Shortest and longest ``Retry-After``, in seconds, of a refusal that another server at this address may not repeat."""


class Cause(Enum):
    """Why a request was refused."""

    NOT_FOUND = auto()
    """There is no such channel, and this request may not create it."""
    ENDED = auto()
    """The channel has ended, and only a POST of seq 0, or one with a reset, may begin it anew."""
    AHEAD = auto()
    """The seq lies beyond head + 1."""
    CLOSED = auto()
    """The segment is closed, or another body is being written to it."""
    OCCUPIED = auto()
    """Another client publishes to the channel, and this one asked not to disturb it; ``Refusal.occupied`` names it."""
    EPOCH = auto()
    """The request is for another epoch of the channel than the present one, or than the last one."""
    NO_SEGMENT = auto()
    """There is no such segment to close."""
    RESERVED = auto()
    """The name begins with ``_`` and belongs to the server."""
    LIMIT = auto()
    """A limit is reached; ``Refusal.limit`` names it."""
    STORAGE = auto()
    """Storage has failed, and the server was told not to go on without it."""
    REPLICA = auto()
    """Another server owns the channel, and this one only holds it."""
    MIRROR = auto()
    """Another server has the channels of this name: this one mirrors it, or was deposed by it."""
    SHUTDOWN = auto()
    """The server is shutting down."""


class Refusal(NamedTuple):
    """The request is refused, and nothing has changed.

    Attributes:
        why: the reason.
        seq: the seq in question, resolved, if there is one.
        head, epoch: of the channel, or of the tombstone of one that has ended; 0 if there is neither.
        recently_ended: the channel existed a short time ago, so the client may be told that it has ended.
        limit: which limit, for :attr:`Cause.LIMIT`.
        overtaking: for :attr:`Cause.AHEAD`: the seq is so close to the head that the POSTs for the seqs between may
            merely be late.
        come_back_s: shortest and longest time, in seconds, after which the client should ask again.
        life: of the channel, if it is there.
        occupied: who publishes, for :attr:`Cause.OCCUPIED`.
        detail: one line for the client, for :attr:`Cause.MIRROR`.
    """

    why: Cause
    seq: int | None = None
    head: int = 0
    epoch: int = 0
    recently_ended: bool = False
    limit: Limit | None = None
    overtaking: bool = False
    come_back_s: tuple[int, int] = COME_BACK_S
    life: Life = NO_LIFE
    occupied: Occupied | None = None
    detail: str = ""


class Ahead(NamedTuple):
    """The channel exists, but the seq lies too far beyond its head."""

    seq: int
    head: int
    earliest: int
    epoch: int
    life: Life = NO_LIFE


class Gone(NamedTuple):
    """The channel exists, but the seq is below the head and not in the window.

    Attributes:
        following: the lowest seq above it that can be read or waited for.
    """

    seq: int
    head: int
    earliest: int
    epoch: int
    following: int
    life: Life = NO_LIFE


class Ended(NamedTuple):
    """The channel has ended, and the seq lies at or past its head: nothing will ever be published there."""

    seq: int
    head: int
    epoch: int
    content_type: str
    life: Life = NO_LIFE


class AlreadyStored(NamedTuple):
    """A body with the same ``Idempotency-Key`` has completed this segment, so the retry has nothing left to do.

    Attributes:
        size: body bytes that the segment holds.
    """

    seq: int
    size: int
    epoch: int


class Ending(Enum):
    """How a writer's part of a segment ended."""

    COMPLETE = auto()
    """The body ended, with at least one byte."""
    EMPTY = auto()
    """The body ended without a byte; the head has moved past the segment all the same."""
    CLOSED_BY_OTHER = auto()
    """A DELETE, a reset, a time-out or a later segment closed the segment first."""
    TERMINATED = auto()
    """The channel ended."""
    SUPERSEDED = auto()
    """Another writer took the segment over."""
    TOO_LARGE = auto()
    """The segment has reached the limit of its size and was truncated."""
    OVER_BUDGET = auto()
    """The server's memory budget is used up, or a channel that holds less needs memory; the bytes stored so far were
    truncated."""
    OVER_CHANNEL_QUOTA = auto()
    """The channel's unfinished segments take all memory that they may; the bytes stored so far were truncated."""
    OVER_PUBLISHER_QUOTA = auto()
    """The publisher's unfinished segments take all memory that they may; the bytes stored so far were truncated."""
    NOT_THE_SAME = auto()
    """A retry's body ended before the bytes that are stored of it, so it is not the same body."""
    ABORTED = auto()
    """The publisher's connection broke."""


class Outcome:
    """How a writer's part of a segment ended, and how large the segment is.

    Attributes:
        ending: how its part ended.
        size: body bytes that the segment holds now.
    """

    __slots__ = ("ending", "size")

    def __init__(self, ending: Ending, size: int) -> None:
        self.ending = ending
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and other.ending is self.ending and other.size == self.size

    def __repr__(self) -> str:
        return f"<Outcome {self.ending.name} of {self.size} B>"
