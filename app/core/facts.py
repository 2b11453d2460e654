"""What happened, past tense: the journal that changefeed, access log, metrics and mirrors feed on.

Every fact carries a gap-free ``index``, so that a follower knows whether it has seen everything. Payload bytes
stay out of the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tricklecast.app.core.segment import State


class EndReason(StrEnum):
    """Why a channel ended."""

    DELETED = "deleted"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Fact:
    """Common to all facts.

    Attributes:
        index: position in the journal, counted from 1 without gaps.
        channel: the channel's name; epoch: which life of that name.
    """

    index: int
    channel: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ChannelCreated(Fact):
    """A channel came into being."""

    content_type: str


@dataclass(frozen=True, slots=True)
class ChannelEnded(Fact):
    """A channel ended; for the length of the drain its kept segments can still be read."""

    next_seq: int
    reason: EndReason


@dataclass(frozen=True, slots=True)
class SegmentOpened(Fact):
    """A segment got its first byte."""

    seq: int


@dataclass(frozen=True, slots=True)
class SegmentClosed(Fact):
    """A segment closed."""

    seq: int
    state: State
    size: int


FactListener = Callable[[Fact], None]
"""Told of each fact as it happens. It must not call back into the registry from there."""


class Journal:
    """Stamps facts with their index and hands them on.

    Args:
        listener: told of channels created and ended.
        segment_listener: told of segments opened and closed. There may be tens of thousands of them a second: where
            nobody listens they only count.
    """

    __slots__ = ("_listener", "_segment_listener", "index")

    def __init__(self, listener: FactListener, segment_listener: FactListener | None = None) -> None:
        self._listener = listener
        self._segment_listener = segment_listener
        self.index = 0

    def channel_created(self, channel: str, epoch: int, content_type: str) -> None:
        self.index += 1
        self._listener(ChannelCreated(self.index, channel, epoch, content_type))

    def channel_ended(self, channel: str, epoch: int, next_seq: int, reason: EndReason) -> None:
        self.index += 1
        self._listener(ChannelEnded(self.index, channel, epoch, next_seq, reason))

    def segment_opened(self, channel: str, epoch: int, seq: int) -> None:
        self.index += 1
        if self._segment_listener is not None:
            self._segment_listener(SegmentOpened(self.index, channel, epoch, seq))

    def segment_closed(self, channel: str, epoch: int, seq: int, state: State, size: int) -> None:
        self.index += 1
        if self._segment_listener is not None:
            self._segment_listener(SegmentClosed(self.index, channel, epoch, seq, state, size))
