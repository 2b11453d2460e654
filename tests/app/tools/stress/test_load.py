"""The load: reproducible sizes, bytes and times."""

from __future__ import annotations

import struct
import zlib

import pytest

from tricklecast.app.tools.stress.load import MARKER_BYTES, Load, Marker

LOAD = Load(seed=7, channels=4, segments=10, every_s=0.5, smallest=100, largest=3_000_000, chunk_bytes=65_536)


def test_payload_follows_from_the_seed() -> None:
    """The same seed gives the same bytes; another seed, channel or ordinal gives others."""
    block = LOAD.block()
    whole = b"".join(LOAD.chunks(block, 1, 2))
    assert b"".join(LOAD.chunks(LOAD.block(), 1, 2)) == whole
    others = [b"".join(LOAD.chunks(block, 2, 2)), b"".join(LOAD.chunks(block, 1, 3))]
    assert len({whole, *others}) == 3
    assert Load(8, 4, 10, 0.5, 100, 3_000_000, 65_536).block() != block


def test_segments_have_the_size_that_was_drawn() -> None:
    """Chunks have the given size but for the last one, and add up; sizes stay in their range and vary."""
    block = LOAD.block()
    sizes = [LOAD.size(0, ordinal) for ordinal in range(20)]
    assert all(100 <= size <= 3_000_000 for size in sizes)
    assert len(set(sizes)) > 10
    for ordinal, size in enumerate(sizes):
        chunks = list(LOAD.chunks(block, 0, ordinal))
        assert sum(map(len, chunks)) == size
        assert {len(chunk) for chunk in chunks[:-1]} <= {65_536}
        assert Marker.read(chunks[0]) == Marker(0, ordinal)


def test_a_marker_may_span_chunks() -> None:
    """Chunks smaller than a marker hold it in pieces."""
    tiny = Load(seed=1, channels=1, segments=1, every_s=1.0, smallest=50, largest=50, chunk_bytes=7)
    whole = b"".join(tiny.chunks(tiny.block(), 0, 3))
    assert len(whole) == 50
    assert Marker.read(whole) == Marker(0, 3)


@pytest.mark.parametrize("spoil", [0, 5, 12, MARKER_BYTES - 1])
def test_a_spoiled_marker_is_none(spoil: int) -> None:
    """A marker with a flipped bit or a missing byte is read as no marker, and not as a wrong one."""
    packed = Marker(3, 70_000).pack()
    assert Marker.read(packed + b"payload") == Marker(3, 70_000)
    assert Marker.read(packed[:spoil] + bytes([packed[spoil] ^ 1]) + packed[spoil + 1 :]) is None
    assert Marker.read(packed[:spoil]) is None


def test_other_bytes_with_a_check_sum_are_no_marker() -> None:
    """Sixteen bytes with a fitting check sum still have to begin like a marker."""
    packed = b"other bytes here"
    assert Marker.read(packed + struct.pack(">I", zlib.crc32(packed))) is None


def test_channels_are_spread_over_the_interval() -> None:
    """Segments of all channels begin evenly spaced, and the run ends with the last one."""
    begins = sorted(LOAD.begins_ns(channel, ordinal) for channel in range(4) for ordinal in range(10))
    assert begins == [number * 125_000_000 for number in range(40)]
    assert LOAD.ends_ns == 5_500_000_000
