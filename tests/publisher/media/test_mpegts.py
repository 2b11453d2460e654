"""MPEG-TS: packets leave at once, tables name all streams, counters go on over the cuts between segments."""

from __future__ import annotations

import io
from pathlib import Path

import av
import pytest

from tests.publisher.media.clips import decode, make_clip
from tricklecast.publisher.media.mpegts import PACKET_BYTES, ContinuityCounters, MpegTs
from tricklecast.publisher.media.muxer import Times


def pids(data: bytes) -> list[int]:
    """The PIDs of all packets."""
    return [(data[at + 1] & 0x1F) << 8 | data[at + 2] for at in range(0, len(data), PACKET_BYTES)]


def clocks(data: bytes) -> set[int]:
    """The PIDs of packets with a clock reference."""
    starts = range(0, len(data), PACKET_BYTES)
    return {pid for pid, at in zip(pids(data), starts, strict=True) if data[at + 3] & 0x20 and data[at + 5] & 0x10}


def remuxed(clip: Path, kinds: tuple[str, ...] = ("video", "audio")) -> list[bytes]:
    """What the packets of some kinds of streams become, one by one, and the rest."""
    with av.open(str(clip), "r") as container:
        streams = list(container.streams)
        muxer = MpegTs().muxer(streams, streams[0])
        parts = []
        for number, packet in enumerate(container.demux()):
            if packet.size and packet.stream.type in kinds:
                assert packet.pts is not None
                assert packet.dts is not None
                shown, decoded = (round(time * packet.time_base * 90_000) + 90_000 for time in (packet.pts, packet.dts))
                parts.append(muxer.add(packet, Times(shown, decoded, None if number else 1)))
        return [*parts, muxer.end()]


def test_a_picture_leaves_at_once(tmp_path: Path) -> None:
    """Whole, without waiting for the sound that follows it."""
    clip = make_clip(tmp_path / "clip.mp4")
    parts = remuxed(clip)
    with av.open(str(clip), "r") as container:
        sizes = [(packet.stream.type, packet.size) for packet in container.demux() if packet.size]
    for (kind, size), part in zip(sizes, parts, strict=False):
        if kind == "video":
            assert len(part) > size
            assert set(pids(part)) - {0, 0x11, 0x1000} == {0x100}
    assert decode(b"".join(parts), "mpegts").hashes == decode(clip).hashes


def test_tables_name_all_streams_also_those_that_have_not_begun(tmp_path: Path) -> None:
    """Only the leading stream brings the clock, as the tables say; they are repeated."""
    clip = make_clip(tmp_path / "clip.mp4")
    for kinds in (("video",), ("audio",), ("video", "audio")):
        data = b"".join(remuxed(clip, kinds))
        assert pids(data)[:3] == [0x11, 0, 0x1000]
        assert pids(data).count(0) == pids(data).count(0x1000) == pids(data).count(0x11)
        assert (pids(data).count(0) > 5) is ("video" in kinds)
        assert clocks(data) == ({0x100} if "video" in kinds else set())
        with av.open(io.BytesIO(data), "r", "mpegts") as container:
            assert [stream.type for stream in container.streams] == ["video", "audio"]


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
