"""The load: reproducible sizes, bytes and times, and the comparison with what came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tricklecast.app.tools.stress.load import MARKER_BYTES, Comparison, Load, PlannedSegment, StressPlan

LOAD = Load(seed=7, channels=4, segments=10, every_s=0.5, smallest=100, largest=3_000_000, chunk_bytes=65_536)


def whole(load: Load, channel: int, ordinal: int) -> bytes:
    """The bytes of a segment, from its chunks."""
    segment = PlannedSegment(load, channel, ordinal)
    return b"".join(map(segment.chunk, range(segment.chunks)))


def compare(load: Load, *chunks: bytes) -> Comparison:
    """The comparison of chunks that came on channel 1."""
    compared = Comparison(load, 1)
    for chunk in chunks:
        compared.add(chunk)
    return compared


def test_payload_follows_from_the_seed() -> None:
    """The same seed gives the same bytes; another seed, channel or ordinal gives others."""
    load = replace(LOAD, smallest=1000, largest=1000)
    same = whole(load, 1, 2)
    assert whole(load, 1, 2) == same
    assert len({same, whole(load, 2, 2), whole(load, 1, 3), whole(replace(load, seed=8), 1, 2)}) == 4


def test_segments_have_the_size_that_was_drawn() -> None:
    """Chunks have the given size but for the last one, and add up; sizes stay in their range and vary."""
    segments = [PlannedSegment(LOAD, 0, ordinal) for ordinal in range(20)]
    assert all(100 <= segment.size <= 3_000_000 for segment in segments)
    assert len({segment.size for segment in segments}) > 10
    for segment in segments:
        sizes = [len(segment.chunk(number)) for number in range(segment.chunks)]
        assert sum(sizes) == segment.size
        assert set(sizes[:-1]) <= {65_536}
        assert sizes[-1] > 0


def test_equal_bytes_are_the_same() -> None:
    """A segment is found by its marker and compared to its last byte, however it is cut into chunks."""
    data = whole(LOAD, 1, 2)
    for size in (7, 65_536, len(data)):
        compared = compare(LOAD, *(data[at : at + size] for at in range(0, len(data), size)))
        assert compared.same
        assert compared.segment is not None
        assert (compared.segment.ordinal, compared.size) == (2, len(data))


def test_other_bytes_are_not_the_same() -> None:
    """A flipped bit, a missing byte and an additional one are found; the marker still names the segment."""
    data = whole(LOAD, 1, 2)
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    for other in (flipped, data[:-1], data + b"x", data[:30] + data[31:]):
        for chunks in ([other], [other[:50], other[50:]], [other[:5], other[5:40], other[40:]]):
            compared = compare(LOAD, *chunks)
            assert not compared.same
            assert compared.segment is not None


@pytest.mark.parametrize("spoil", [0, 5, 12, MARKER_BYTES - 1])
def test_a_spoiled_marker_names_no_segment(spoil: int) -> None:
    """A marker with a flipped bit or a missing byte is read as no marker, and not as a wrong one."""
    data = whole(LOAD, 1, 2)
    for other in (data[:spoil] + bytes([data[spoil] ^ 1]) + data[spoil + 1 :], data[:spoil]):
        compared = compare(LOAD, other)
        assert compared.segment is None
        assert not compared.same


def test_a_segment_of_another_channel_is_none() -> None:
    """A segment that comes on the wrong channel is not taken for one of this channel."""
    assert compare(LOAD, whole(LOAD, 2, 2)).segment is None


def test_channels_are_spread_over_the_interval() -> None:
    """Segments of all channels begin evenly spaced, and the run ends with the last one."""
    begins = sorted(LOAD.begins_ns(channel, ordinal) for channel in range(4) for ordinal in range(10))
    assert begins == [number * 125_000_000 for number in range(40)]
    assert LOAD.ends_ns == 5_500_000_000


def test_chunks_are_spread_over_the_interval() -> None:
    """The chunks of a segment are due evenly spaced; the first one when the segment begins."""
    segment = PlannedSegment(replace(LOAD, smallest=1000, largest=1000, chunk_bytes=250), 1, 2)
    assert [segment.due_ns(number) // 1_000_000 for number in (0, 1, 2, 3, -1)] == [1125, 1250, 1375, 1500, 1500]


def test_each_client_is_in_one_process() -> None:
    """Each channel has one publisher and all of its subscribers, spread evenly over the processes."""
    plan = StressPlan("http://host/trickle", "x", replace(LOAD, channels=3), subscribers=5, processes=2)
    assert plan.clients("publish") == [[(0, 0), (2, 0)], [(1, 0)]]
    reading = plan.clients("subscribe")
    assert sorted(client for share in reading for client in share) == [
        (channel, number) for channel in range(3) for number in range(5)
    ]
    assert [len(share) for share in reading] == [8, 7]
    assert plan.url(2) == "http://host/trickle/stress-x-2"


def test_no_process_is_idle() -> None:
    """A plan with more processes than clients has one process for each client."""
    assert len(StressPlan("http://host", "x", LOAD, subscribers=1, processes=9).clients("publish")) == LOAD.channels
