"""Frozen pictures of the registry: the one source for the control plane, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.core.segment import State

if TYPE_CHECKING:
    from app.core.channel import Channel


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel at one moment.

    Attributes:
        ended: in its drain; only reading is possible.
        created_at, active_at: seconds of the registry's clock.
        segments, bytes, earliest: the window: closed segments kept, their body bytes, the oldest readable seq.
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
    open_seqs: tuple[int, ...]
    writing_seqs: tuple[int, ...]
    preconnected_seqs: tuple[int, ...]
    readers: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class RegistryStatistics:
    """All channels at one moment; ``bytes_held`` are body bytes over all of them."""

    channels: tuple[ChannelStatistics, ...]
    readers: int
    bytes_held: int
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
        open_seqs=tuple(s.seq for s in unclosed if s.state is State.OPEN),
        writing_seqs=tuple(s.seq for s in unclosed if s.writer is not None and s.state is State.OPEN),
        preconnected_seqs=tuple(s.seq for s in unclosed if s.writer is not None and s.state is State.WAITING),
        readers=channel.readers,
        bytes_in=channel.bytes_in,
        bytes_out=channel.bytes_out,
    )
