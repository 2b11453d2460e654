"""How things stand: frozen pictures of a channel, and sums over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
        bytes_in, bytes_out: body bytes published to and delivered from it so far. facts: how many there are of it.
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
    facts: int


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
