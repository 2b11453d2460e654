"""Frozen pictures of channels."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.app.core.support import Bench, cost
from tricklecast.app.core.facts import EndReason
from tricklecast.app.core.statistics import ChannelStatistics, channel_statistics
from tricklecast.app.core.window import Eviction


def test_a_new_channel_is_empty() -> None:
    """A channel to which nothing was published has a head of 0 and counts nothing."""
    assert channel_statistics(Bench("c", "video/mp2t").channel) == ChannelStatistics(
        name="c",
        epoch=1,
        content_type="video/mp2t",
        ended=False,
        next_seq=0,
        created_at=0.0,
        active_at=0.0,
        segments=0,
        bytes=0,
        earliest=0,
        cost=0,
        evicted=dict.fromkeys(Eviction, 0),
        open_seqs=(),
        writing_seqs=(),
        preconnected_seqs=(),
        readers=0,
        bytes_in=0,
        bytes_out=0,
    )


def test_a_busy_channel_is_counted() -> None:
    """Kept, open, orphaned and preconnected segments are told apart, in ascending order."""
    bench = Bench()
    bench.publish(0, b"abc", now=1.0)
    bench.orphan(1, b"de", now=2.0)
    bench.open(2, b"f", now=3.0)
    bench.reserve(4)
    bench.reserve(3)
    bench.wait(-1)
    bench.channel.bytes_out = 9
    statistics = channel_statistics(bench.channel)
    assert (statistics.segments, statistics.bytes, statistics.earliest, statistics.next_seq) == (1, 3, 0, 3)
    assert statistics.cost == cost(b"abc")
    assert (statistics.open_seqs, statistics.writing_seqs, statistics.preconnected_seqs) == ((1, 2), (2,), (3, 4))
    assert (statistics.readers, statistics.bytes_in, statistics.bytes_out) == (1, 6, 9)
    assert (statistics.created_at, statistics.active_at, statistics.ended) == (0.0, 3.0, False)


def test_an_ended_channel_says_so() -> None:
    """During its drain a channel is shown as ended, with what is kept."""
    bench = Bench()
    bench.publish(0, b"abc")
    bench.channel.end(EndReason.DELETED, 1.0)
    assert channel_statistics(bench.channel).ended


def test_evictions_are_shown_by_their_reason() -> None:
    """What left the window is counted, and the picture is not the counter itself."""
    bench = Bench(window_segments=1)
    bench.publish(0)
    bench.publish(1)
    statistics = channel_statistics(bench.channel)
    bench.publish(2)
    assert statistics.evicted == dict.fromkeys(Eviction, 0) | {Eviction.COUNT: 1}


def test_a_picture_does_not_change() -> None:
    """A picture stays what it was, whatever the channel does afterwards."""
    bench = Bench()
    statistics = channel_statistics(bench.channel)
    bench.publish(0)
    assert statistics.next_seq == 0
    with pytest.raises(FrozenInstanceError):
        statistics.next_seq = 1  # type: ignore[misc]
