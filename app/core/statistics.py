"""Frozen pictures of the registry: the one source for the control plane, metrics and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tricklecast.app.core.segment import State

if TYPE_CHECKING:
    from tricklecast.app.core.channel import Channel
    from tricklecast.app.core.window import Eviction


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
class RegistryStatistics:
    """All channels at one moment.

    Attributes:
        bytes_held: memory that all segments take, as the budget counts it.
        evicted: segments that have left their windows since the server started, by the reason.
    """

    channels: tuple[ChannelStatistics, ...]
    readers: int
    bytes_held: int
    evicted: Mapping[Eviction, int]
    journal_index: int
    shutting_down: bool


def channel_statistics(channel: Channel) -> ChannelStatistics:
    """Take the picture of one channel."""
    unclosed = sorted(channel.unclosed, key=lambda segment: segment.seq)
    return ChannelStatistics(
        name=channel.name,
        epoch=channel.epoch,
        content_type=channel.content_type,
        ended=channel.ended,
        next_seq=channel.next_seq,
        created_at=channel.created_at,
        active_at=channel.active_at,
        segments=len(channel.window),
        bytes=channel.window.bytes,
        earliest=channel.earliest,
        cost=channel.window.cost,
        evicted=dict(channel.window.evicted),
        open_seqs=tuple(s.seq for s in unclosed if s.state is State.OPEN),
        writing_seqs=tuple(s.seq for s in unclosed if s.writer is not None and s.state is State.OPEN),
        preconnected_seqs=tuple(s.seq for s in unclosed if s.writer is not None and s.state is State.WAITING),
        readers=channel.reading.used,
        bytes_in=channel.bytes_in,
        bytes_out=channel.bytes_out,
    )
