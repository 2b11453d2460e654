"""What the core answers when somebody wants to read or to write: sum types, to be matched exhaustively."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from tricklecast.app.core.drain import COME_BACK_S
from tricklecast.app.core.limits import Limit

if TYPE_CHECKING:
    from tricklecast.app.core.channel import Channel
    from tricklecast.app.core.segment import Segment


class Serve(NamedTuple):
    """The segment has bytes or is closed: answer now.

    Attributes:
        head: ``next_seq`` at this moment, for ``Lp-Trickle-Latest``.
    """

    channel: Channel
    segment: Segment
    head: int


class Wait(NamedTuple):
    """The segment is next: attach a cursor and answer when it gets its first byte or closes.

    A caller that does not attach a cursor must ``release`` the segment.
    """

    channel: Channel
    segment: Segment
    head: int


class Ahead(NamedTuple):
    """The channel exists, but this seq lies too far beyond its head."""

    channel: Channel
    seq: int
    head: int
    earliest: int


class Gone(NamedTuple):
    """The channel exists, but this seq is no longer (or never was) in its window.

    Attributes:
        following: the oldest seq beyond it that can be read or waited for.
    """

    channel: Channel
    seq: int
    head: int
    earliest: int
    following: int


class Ended(NamedTuple):
    """The channel is over, and this seq lies at or past its head: there will be nothing more."""

    channel: Channel
    seq: int
    head: int


class Why(Enum):
    """Why a request was refused."""

    NOT_FOUND = auto()
    """There is no such channel, and this request may not create it."""
    ENDED = auto()
    """A latecomer of a channel's ended life; it resurrects nothing."""
    AHEAD = auto()
    """The seq lies beyond head + 1."""
    CLOSED = auto()
    """The segment is closed already."""
    NO_SEGMENT = auto()
    """There is no such segment to close."""
    RESERVED = auto()
    """The name belongs to the server."""
    LIMIT = auto()
    """A limit is reached; ``limit`` names it."""
    SHUTDOWN = auto()
    """The server is going away."""


class Refusal(NamedTuple):
    """No, and nothing has changed.

    Attributes:
        why: the reason.
        channel: the channel as far as there is one.
        seq: the seq in question, resolved, if there is one.
        recently_ended: the channel existed not long ago, so that the client may be told that it is over.
        epoch, head: of a channel that has ended and is forgotten: its last life, and how far that came.
        limit: which limit, for :attr:`Why.LIMIT`.
        overtaking: of :attr:`Why.AHEAD`: so close to the head that the requests between may only be late.
        come_back_s: where asking again may help: shortest and longest time, in seconds, until then.
    """

    why: Why
    channel: Channel | None = None
    seq: int | None = None
    recently_ended: bool = False
    epoch: int = 0
    head: int = 0
    limit: Limit | None = None
    overtaking: bool = False
    come_back_s: tuple[int, int] = COME_BACK_S


class AlreadyStored(NamedTuple):
    """The same ``Idempotency-Key`` wrote this segment complete: the retry has nothing left to do."""

    channel: Channel
    segment: Segment


Resolution = Serve | Wait | Ahead | Gone | Ended | Refusal
"""What a reader is told."""
