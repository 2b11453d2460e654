"""The invariants of a channel, stated in code.

Tests call this after every step, and the server after a fault: if it raises, the channel's state cannot be trusted.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import FRAME_COST, SEGMENT_COST, State, payload_of


def check_channel(channel: OwnedChannel) -> None:
    """Check a channel and its segments.

    Raises:
        AssertionError: an invariant does not hold.
    """
    limits = channel._limits
    segments = channel.segments
    closed = [segment for segment in segments.values() if segment.closed]
    assert len(channel.window) == len(closed), "the window holds all closed segments and no others"
    assert channel.window.bytes == sum(segment.size for segment in closed), "the window counts its bytes"
    assert channel.window.cost == sum(segment.cost for segment in closed), "the window counts its memory"
    assert len(closed) <= limits.window_segments, "the window's count holds"
    assert len(closed) <= 1 or channel.window.bytes <= limits.window_bytes, "the window's bytes hold"
    being_written = sum(segment.cost for segment in channel._open.values())
    assert channel.window.open == being_written, "the memory of what is being written is counted"
    lingering = sum(segment.cost for segment in channel.window.lingering)
    assert channel.window.held == channel.window.cost + being_written + lingering, "all of its memory is counted"
    assert set(channel._waiting) | set(channel._open) == set(segments) - {segment.seq for segment in closed}
    assert not channel._to_wake, "every reader of a closed segment was woken"
    assert not channel._preempted, "every preempted writer was told"
    assert set(channel._deadlines.times) <= set(channel.unclosed), "only an unclosed segment has a deadline"
    unreserved = range(channel.next_seq, channel._unreserved)
    free = {seq for seq in unreserved if (segment := segments.get(seq)) is None or segment.writer is None}
    freed = {seq for seq in channel._freed.times if seq >= channel.next_seq}
    assert channel.ended or freed == free, "the first free seq is known"
    for seq, segment in segments.items():
        assert segment.seq == seq, "a segment is filed under its own seq"
        _check_segment(channel, seq)
    assert 0 <= channel.floor <= channel.next_seq, "only segments below the head are final"
    held = Counter(segment.writer.presence.client for segment in channel.unclosed if segment.writer is not None)
    assert {one.client: one.writers for one in channel.publishers} == held, "the clients that publish are known"
    if channel.ended:
        assert len(closed) == len(segments), "nothing waits or is written in an ended channel"


def _check_segment(channel: OwnedChannel, seq: int) -> None:
    segment = channel.segments[seq]
    deadline = channel.deadline(segment)
    offsets = [0, *accumulate(sum(map(len, payload_of(frame))) for frame in segment.frames)]
    size = offsets[-1]
    assert segment.size == size <= channel._limits.segment_bytes, "size counts what the frames hold"
    assert segment.offsets.tolist() == offsets, "the offsets count the bytes of the frames"
    cost = SEGMENT_COST + sum(len(frame) + FRAME_COST for frame in segment.frames)
    assert segment.cost == cost, "the cost counts the frames as they are held"
    assert 0 <= segment.body_at <= size, "a body begins within its segment"
    assert segment.key not in segment.former_keys, "a key is of the present body, or of an earlier one"
    if segment.writer is not None:
        assert not segment.closed, "nobody writes to a closed segment"
        assert segment.writer.outcome is None, "the writer of a segment is valid"
        assert segment.writer.segment is segment, "a writer writes to its own segment"
        assert 0 <= segment.writer.repeated <= size - segment.body_at, "only what is there is passed over"
    assert segment.written == (segment.writer is not None), "a writer is known to write"
    match segment.state:
        case State.WAITING:
            assert size == 0, "a waiting segment has no byte"
            assert segment.is_wanted or deadline is not None, "a waiting segment is waited for, or has a deadline"
            assert deadline is not None or seq >= channel.next_seq, "no reader waits on a dead segment for long"
        case State.OPEN:
            assert size > 0, "an open segment has its first byte"
            assert seq < channel.next_seq, "the head is past every started segment"
            assert segment.writer or deadline is not None, "an orphan has a deadline"
            outlived = channel.window.completed_after(seq)
            stays = segment.writer or segment.key
            assert stays or not outlived, "no orphan without a key outlives a later complete segment"
        case _:
            assert seq < channel.next_seq, "the head is past every closed segment"
            assert segment.closed_at is not None, "closing leaves its time"
            assert segment.state is not State.EMPTY or size == 0, "an empty segment has no byte"
            assert segment.state is not State.COMPLETE or size, "a complete segment has bytes"
