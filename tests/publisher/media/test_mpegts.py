"""Continuity counters over the cuts between segments."""

from __future__ import annotations

import pytest

from publisher.media.mpegts import PACKET_BYTES, ContinuityCounters


def packet(pid: int, counter: int, *, payload: bool = True, start: bool = False) -> bytes:
    """A transport packet with nothing in it."""
    flags = (0x10 if payload else 0x20) | counter
    return bytes([0x47, (0x40 if start else 0) | pid >> 8, pid & 0xFF, flags]) + b"\xff" * (PACKET_BYTES - 4)


def counters(data: bytes) -> list[int]:
    """The counters of all packets."""
    return [data[start + 3] & 0x0F for start in range(0, len(data), PACKET_BYTES)]


def test_counters_go_on_from_segment_to_segment() -> None:
    """Each PID counts for itself, and modulo 16; nothing else of a packet changes."""
    numbering = ContinuityCounters()
    first = packet(0x100, 0, start=True) + packet(0x1FF, 0) + packet(0x100, 1)
    assert numbering.renumber(first) == first
    second = numbering.renumber(packet(0x100, 0, start=True) + packet(0x1FF, 0) + packet(0x100, 1))
    assert second == packet(0x100, 2, start=True) + packet(0x1FF, 1) + packet(0x100, 3)
    assert counters(numbering.renumber(b"".join(packet(0x100, 0) for _ in range(14)))) == [*range(4, 16), 0, 1]


def test_a_packet_without_payload_does_not_count() -> None:
    """It repeats the counter of the packet before it."""
    numbering = ContinuityCounters()
    data = packet(1, 9) + packet(1, 9, payload=False) + packet(1, 9) + packet(2, 3, payload=False)
    assert counters(numbering.renumber(data)) == [0, 0, 1, 15]


def test_only_whole_packets_are_numbered() -> None:
    """Anything else is not what a muxer writes."""
    with pytest.raises(AssertionError):
        ContinuityCounters().renumber(b"\x47" * 100)
    with pytest.raises(AssertionError):
        ContinuityCounters().renumber(b"\x00" * PACKET_BYTES)
