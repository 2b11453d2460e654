"""What happened (facts and their journal), and how things stand (frozen statistics).

Every fact has an index, counted without gaps, so a follower can tell whether it has seen all of them. Payload bytes
stay out of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tricklecast.app.core.segment import OPEN, WAITING, Faults, State
from tricklecast.app.core.window import Eviction


class EndReason(StrEnum):
    """Why a channel ended."""

    DELETED = "deleted"
    IDLE = "idle"
    FAULT = "fault"
    """The server found its state unsound (a fault of the server itself)."""


@dataclass(slots=True)
class Fact:
    """Common to all facts. (Not frozen, since that takes three times as long to make; nobody changes one.)

    Attributes:
        index: position in the journal, counted from 1 without gaps.
        channel: the channel's name; epoch: which life of that name.
    """

    index: int
    channel: str
    epoch: int


@dataclass(slots=True)
class ChannelCreated(Fact):
    """A channel came into being."""

    content_type: str


@dataclass(slots=True)
class ChannelEnded(Fact):
    """A channel ended; during its drain its kept segments can still be read."""

    next_seq: int
    reason: EndReason


@dataclass(slots=True)
class SegmentOpened(Fact):
    """A segment got its first byte."""

    seq: int


@dataclass(slots=True)
class SegmentClosed(Fact):
    """A segment closed."""

    seq: int
    state: State
    size: int


FactListener = Callable[[Fact], None]
"""Told of each fact as it happens, in the middle of a change: it must not call back into the registry."""


class Journal:
    """Gives each fact its index and tells the listeners that subscribed to its kind.

    A fact object is made only where somebody listens: there may be tens of thousands of segments a second.

    Attributes:
        faults: told of the listeners that raise; the others are told of the fact all the same. The registry sets it.
        index: of the last fact.
        closed: how many segments have closed, by the state in which they did.
    """

    __slots__ = ("_listeners", "closed", "faults", "index")

    def __init__(self) -> None:
        self.faults = Faults()
        self._listeners: dict[type[Fact], list[FactListener]] = {
            kind: [] for kind in (ChannelCreated, ChannelEnded, SegmentOpened, SegmentClosed)
        }
        self.index = 0
        self.closed = {state: 0 for state in State if state not in (WAITING, OPEN)}

    def subscribe(self, listener: FactListener, *kinds: type[Fact]) -> None:
        """Tell a listener of the facts of these kinds from now on.

        Raises:
            KeyError: there is no such kind.
        """
        for kind in kinds:
            self._listeners[kind].append(listener)

    def channel_created(self, channel: str, epoch: int, content_type: str) -> None:
        """Record that a channel came into being."""
        self.index += 1
        if listeners := self._listeners[ChannelCreated]:
            self._tell(listeners, ChannelCreated(self.index, channel, epoch, content_type))

    def channel_ended(self, channel: str, epoch: int, next_seq: int, reason: EndReason) -> None:
        """Record that a channel ended."""
        self.index += 1
        if listeners := self._listeners[ChannelEnded]:
            self._tell(listeners, ChannelEnded(self.index, channel, epoch, next_seq, reason))

    def segment_opened(self, channel: str, epoch: int, seq: int) -> None:
        """Record that a segment got its first byte."""
        self.index += 1
        if listeners := self._listeners[SegmentOpened]:
            self._tell(listeners, SegmentOpened(self.index, channel, epoch, seq))

    def segment_closed(self, channel: str, epoch: int, seq: int, state: State, size: int) -> None:
        """Record that a segment closed in this state, with so many body bytes."""
        self.index += 1
        self.closed[state] += 1
        if listeners := self._listeners[SegmentClosed]:
            self._tell(listeners, SegmentClosed(self.index, channel, epoch, seq, state, size))

    def _tell(self, listeners: list[FactListener], fact: Fact) -> None:
        for listener in listeners:
            try:
                listener(fact)
            except Exception as error:
                self.faults.note(listener, error)


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


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all channels at one moment: what a scrape of the metrics needs.

    Attributes:
        live, draining: channels that take segments, and channels that have ended and can still be read.
        segments: closed segments that are kept.
        writing, preconnected: segments whose publisher is connected, after and before its first byte.
        orphaned: open segments whose publisher has gone, and may come back.
        waiting: readers of segments that have no byte yet.
        audience: clients that read, as people count them.
    """

    live: int
    draining: int
    segments: int
    writing: int
    preconnected: int
    orphaned: int
    waiting: int
    audience: int
