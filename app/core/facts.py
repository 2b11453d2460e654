"""The facts of a channel, which are all that can happen to it, and the journal that counts them.

**The problem.** A channel has one holder that decides: it takes requests, and refuses, closes, evicts and ends. Others
hold the channel, too: storage after a restart, and replicas. They must answer every reader as the owner does, and they
must not guess.

**The idea.** All that the owner decides is a sequence of facts. A fact says what has happened, never why it was
allowed, and :mod:`app.core.state` has one function for each kind, which applies it. The owner's rules
(:mod:`app.core.rules`) decide a fact, apply it with the same function, and note it here. So a second holder that
applies the facts, and the bytes between them, has the owner's state. ``tests/properties/test_facts.py`` holds the two
against each other after every change of a random history.

**The bytes are no facts.** They come tens of thousands of times a second, and a follower of a channel reads them from
its segments with a cursor, as a reader does. Bytes of a segment come after its ``BodyBegun`` and ``SegmentOpened``, and
before its ``SegmentClosed``.

**Two counts, each without gaps for those who go by it.** A second holder follows one channel, so every fact has its
number within the channel. Those who follow the server (storage, ``/api/v1/changes``, metrics) want to know which
channels and segments there are, so the four kinds that say it have an index within the server, too. The journal gives
the index, and only these four can be subscribed to. A count of all facts of the server would have gaps for everybody,
since nobody follows all channels, and the index is what programs and data directories keep.

**A fact to which nobody listens costs two additions.** The object is made only where somebody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from tricklecast.app.core.segment import OPEN, WAITING, Faults, State
from tricklecast.app.core.window import Eviction

MAX_MARK: Final = 16 << 10
"""Characters of a mark: it is shorter than 300, unless it has an init segment that no later segment repeats."""


class EndReason(StrEnum):
    """Why a channel ended."""

    DELETED = "deleted"
    IDLE = "idle"
    FAULT = "fault"
    """The server found its state unsound (a fault of the server itself)."""
    MOVED = "moved"
    """It goes on at another node of the cluster, or its next epoch has begun there; or a copy is over here."""


@dataclass(slots=True)
class Fact:
    """Common to all facts. (Not frozen, since that takes three times as long to make; nobody changes one.)

    Attributes:
        indexed: whether facts of the kind concern the server, too, and have an index.
        index: position among the indexed facts of the server, from 1 on, without gaps; 0 for the other kinds.
        number: position among all facts of its channel, from 1 on, without gaps.
        at: when, in seconds of the registry's clock.
        channel: the channel's name; epoch: which channel of that name, counted from 1.
    """

    indexed: ClassVar[bool] = False

    index: int
    number: int
    at: float
    channel: str
    epoch: int


@dataclass(slots=True)
class ChannelCreated(Fact):
    """A channel came into being.

    Attributes:
        content_type: ``""`` if it is not known yet.
        numbering: the name of its numbering (docs/reference/protocol.md, section 5), unless a publisher names another.
    """

    indexed = True

    content_type: str
    numbering: str


@dataclass(slots=True)
class ContentTypeNamed(Fact):
    """The content type, which nobody has named before, is known; it never changes."""

    content_type: str


@dataclass(slots=True)
class NumberingNamed(Fact):
    """The channel's numbering has another name, or a lower first seq, than before."""

    name: str
    first: int


@dataclass(slots=True)
class HeadJumped(Fact):
    """The head is ``next_seq`` now. Segments below it that are not there are final: nobody may write them.

    A publisher resumed its numbering, or the channel came back after a restart.
    """

    next_seq: int


@dataclass(slots=True)
class BodyBegun(Fact):
    """A publisher has the right to write a segment; the segment need not have been there.

    Attributes:
        key: the ``Idempotency-Key`` of its body, if it has one. body_at: bytes of earlier bodies in the segment.
    """

    seq: int
    key: str | None
    body_at: int


@dataclass(slots=True)
class BodyLeft(Fact):
    """The publisher of a segment has left it before its end; another one, or a retry, may write on."""

    seq: int


@dataclass(slots=True)
class SegmentAwaited(Fact):
    """The head is about to pass a segment that nobody writes; for a while its publisher may still come."""

    seq: int


@dataclass(slots=True)
class SegmentForgotten(Fact):
    """The publisher of an awaited segment has not come in time, and no reader of the owner waits for the segment."""

    seq: int


@dataclass(slots=True)
class SegmentOpened(Fact):
    """A segment got its first byte."""

    indexed = True

    seq: int


@dataclass(slots=True)
class SegmentClosed(Fact):
    """A segment closed.

    Attributes:
        size: body bytes. key: of the body that came to its end here, or was the last one.
    """

    indexed = True

    seq: int
    state: State
    size: int
    key: str | None


@dataclass(slots=True)
class SegmentEvicted(Fact):
    """A closed segment has left the window."""

    seq: int
    why: Eviction


@dataclass(slots=True)
class PlaylistMarked(Fact):
    """A segment of a channel that is read by HLS is over.

    Attributes:
        mark: how the playlist counts, for :mod:`app.hls`; at most :data:`MAX_MARK` characters. ``""``: nobody can tell.
    """

    mark: str


@dataclass(slots=True)
class ChannelEnded(Fact):
    """A channel ended; during its drain the segments of its window can still be read."""

    indexed = True

    next_seq: int
    reason: EndReason


KINDS: Final[tuple[type[Fact], ...]] = (
    ChannelCreated, ContentTypeNamed, NumberingNamed, HeadJumped, BodyBegun, BodyLeft, SegmentAwaited, SegmentForgotten,
    SegmentOpened, SegmentClosed, SegmentEvicted, PlaylistMarked, ChannelEnded,
)  # fmt: skip
"""All kinds of facts."""

FactListener = Callable[[Fact], None]
"""Told of each fact as it happens, in the middle of a change: it must not call back into the registry."""


class Journal:
    """Counts the facts that concern the server, and tells the listeners that subscribed to their kind.

    Args:
        index: of the last of these facts before the first one that this journal counts.

    Attributes:
        faults: exceptions of the listeners, and of all others that the core calls back.
        index: of the last of these facts. listeners: of each kind that has an index.
        closed: how many segments have closed, by the state in which they did.
    """

    __slots__ = ("closed", "faults", "index", "listeners")

    def __init__(self, *, index: int = 0) -> None:
        self.faults = Faults()
        self.listeners: dict[type[Fact], list[FactListener]] = {kind: [] for kind in KINDS if kind.indexed}
        self.index = index
        self.closed = {state: 0 for state in State if state not in (WAITING, OPEN)}

    def subscribe(self, listener: FactListener, *kinds: type[Fact]) -> None:
        """Tell a listener of the facts of these kinds from now on.

        Raises:
            KeyError: facts of a kind concern their channel only: follow the channel.
        """
        for kind in kinds:
            self.listeners[kind].append(listener)

    def tell(self, listeners: Sequence[FactListener], fact: Fact) -> None:
        """Tell these listeners of a fact."""
        for listener in listeners:
            try:
                listener(fact)
            except Exception as error:
                self.faults.note(listener, error)
