"""Sums over all channels, in one walk: what a scrape of the metrics needs, cheaper than a picture of each channel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tricklecast.app.core.segment import State

if TYPE_CHECKING:
    from tricklecast.app.core.channel import Channel


@dataclass(slots=True)
class Totals:
    """Over all channels of a registry, at one moment.

    Attributes:
        live, draining: channels that take segments, and those that have ended and can still be read.
        segments: closed segments that are kept.
        writing, preconnected: segments whose publisher is connected, after and before its first byte.
        orphaned: open segments whose publisher has gone, and may come back.
        waiting: readers of segments that have no byte yet.
    """

    live: int = 0
    draining: int = 0
    segments: int = 0
    writing: int = 0
    preconnected: int = 0
    orphaned: int = 0
    waiting: int = 0


def totals_of(channels: Iterable[Channel]) -> Totals:
    """Add it all up."""
    totals = Totals()
    for channel in channels:
        if channel.ended:
            totals.draining += 1
        else:
            totals.live += 1
        totals.segments += len(channel.window)
        for segment in channel.unclosed:
            if segment.state is State.WAITING:
                totals.waiting += len(segment.cursors)
                totals.preconnected += segment.writer is not None
            elif segment.writer is not None:
                totals.writing += 1
            else:
                totals.orphaned += 1
    return totals
