"""What init segments say, and when they can."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
from av import Packet
from av.stream import Stream

from tests.publisher.media.clips import decode, make_clip
from tricklecast.publisher.media.boxes import boxes, track_headers
from tricklecast.publisher.media.fmp4 import MAX_HELD, FragmentedMp4
from tricklecast.publisher.media.muxer import Times
from tricklecast.publisher.media.timestamps import CLOCK_HZ


def read(path: Path) -> tuple[list[Stream], list[Packet[Stream]]]:
    """The streams and packets of a file; the container stays open as long as they live."""
    container = av.open(str(path), "r")
    return list(container.streams), [packet for packet in container.demux() if packet.size]


def times(packet: Packet[Stream], captured_us: int | None = None) -> Times:
    """Its own, a second later."""
    pts, dts = (round(time * packet.time_base * CLOCK_HZ) + CLOCK_HZ for time in (packet.pts or 0, packet.dts or 0))
    return Times(pts, dts, captured_us)


def init_of(data: bytes) -> bytes:
    """The init segment at the beginning."""
    kinds = [kind for kind, _ in boxes(memoryview(data))]
    assert kinds[:2] == [b"ftyp", b"moov"]
    return data[: sum(8 + len(body) for _, body in list(boxes(memoryview(data)))[:2])]


def test_a_picture_leaves_at_once(tmp_path: Path) -> None:
    """With what it needs, and the sound since the one before it."""
    streams, packets = read(make_clip(tmp_path / "clip.mp4"))
    muxer = FragmentedMp4().muxer(streams, streams[0])
    sent = [(packet.stream_index, muxer.add(packet, times(packet))) for packet in packets[:40]]
    assert all(bool(data) == (stream == 0) for stream, data in sent)
    last_picture = max(number for number, (stream, _) in enumerate(sent) if stream == 0)
    assert bool(muxer.end()) == (last_picture < len(sent) - 1)
    assert muxer.end() == b""


def test_a_track_that_only_its_packets_describe_is_waited_for(tmp_path: Path) -> None:
    """AC-3 has no header of its own: the first segment waits for its first packet, and loses nothing."""
    streams, packets = read(make_clip(tmp_path / "clip.mkv", audio="ac3"))
    pictures = [packet for packet in packets if packet.stream_index == 0]
    sound = [packet for packet in packets if packet.stream_index == 1]
    muxer = FragmentedMp4().muxer(streams, streams[0])
    assert [muxer.add(packet, times(packet)) for packet in pictures[:10]] == [b""] * 10
    data = muxer.add(sound[0], times(sound[0])) + muxer.end()
    assert len(track_headers(init_of(data))) == 2
    assert len(decode(data, "mp4").hashes["video"]) == 10


def test_hevc_has_the_name_that_every_player_takes(tmp_path: Path) -> None:
    """Whatever it was called, and where no container gave it a name."""
    for name in ("clip.mp4", "clip.ts"):
        streams, packets = read(make_clip(tmp_path / name, video="libx265", audio=None))
        data = FragmentedMp4().muxer(streams, streams[0]).add(packets[0], times(packets[0]))
        assert b"hvc1" in init_of(data)
        assert b"hev1" not in init_of(data)


def test_a_track_that_does_not_come_is_not_waited_for_long(tmp_path: Path) -> None:
    """After a second the segment begins without it; the next one has it."""
    streams, packets = read(make_clip(tmp_path / "clip.mkv", audio="ac3"))
    pictures = [packet for packet in packets if packet.stream_index == 0]
    sound = [packet for packet in packets if packet.stream_index == 1]
    muxer = FragmentedMp4().muxer(streams, streams[0])
    parts = [muxer.add(packet, times(packet)) for packet in pictures[:40]]
    held = next(number for number, part in enumerate(parts) if part)
    assert pictures[held].dts is not None
    assert abs(times(pictures[held]).dts - times(pictures[0]).dts - MAX_HELD) <= 2 * 3600
    first = b"".join(parts) + muxer.end()
    assert len(track_headers(init_of(first))) == 1
    assert len(decode(first, "mp4").hashes["video"]) == 40
    second = muxer.add(sound[0], times(sound[0])) + muxer.add(pictures[50], times(pictures[50])) + muxer.end()
    assert len(track_headers(init_of(second))) == 2


def test_parameters_that_change_are_in_the_next_init_segment(tmp_path: Path) -> None:
    """A source in MPEG-TS sends them within the stream; a segment that begins with new ones describes them."""
    streams, packets = read(make_clip(tmp_path / "a.ts", audio=None))
    _, others = read(make_clip(tmp_path / "b.ts", audio=None, side=96))
    muxer = FragmentedMp4().muxer(streams, streams[0])
    segments = [
        b"".join(muxer.add(packet, times(packet)) for packet in part[:25]) + muxer.end() for part in (packets, others)
    ]
    assert init_of(segments[0]) != init_of(segments[1])
    for segment, side in zip(segments, (64, 96), strict=True):
        with av.open(io.BytesIO(segment), "r", "mp4") as container:
            assert {frame.width for frame in container.decode(video=0)} == {side}


def test_times_are_exact(tmp_path: Path) -> None:
    """Frames that come irregularly keep their own times: none is the sum of what packets say of their length."""
    streams, packets = read(make_clip(tmp_path / "clip.mp4", audio=None))
    muxer = FragmentedMp4().muxer(streams, streams[0])
    data, expected = b"", []
    for number, packet in enumerate(packets[:20]):
        dts = CLOCK_HZ + number * 3600 + number % 3 * 700
        packet.duration = 0
        data += muxer.add(packet, Times(dts + 7200, dts))
        expected.append(Fraction(dts, CLOCK_HZ))
    data += muxer.end()
    with av.open(io.BytesIO(data), "r", "mp4") as container:
        found = [packet.dts * packet.time_base for packet in container.demux() if packet.dts is not None]
    assert found == expected
