"""Channels that have ended and drained, for players of HLS: what storage has of the last epoch of a name.

The server has forgotten such a channel, and storage keeps its segments for as long as any others. Here it becomes a
:class:`~tricklecast.app.core.state.Channel` again that nobody can publish to, and that the registry does not know. So a
packager follows it as any other one. It begins with the mark of the channel's playlist, and makes the playlist with
which the channel has ended, under the same names and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.state import Channel, Retained
from tricklecast.trickle.wire import NO_LIFE

PastChannels: TypeAlias = Callable[[str], tuple[Restored, Retained] | None]
"""Finds the last channel of a name in storage, and its segments, if it has ended."""


def past_channel(registry: Registry, about: Restored, segments: Retained, now: float) -> Channel:
    """A channel that has ended, to be read from storage.

    Args:
        about: the channel. segments: those that storage has of it. now: the registry's time, seconds.
    """
    limits, budget, faults = registry.limits, registry.budget, registry.faults
    channel = Channel(about.name, about.epoch, about.content_type, now, NO_LIFE, limits, budget, faults)
    channel.restored(about.created_at, about.next_seq, about.playlist)
    channel.retained = segments
    channel.ended = True
    return channel
