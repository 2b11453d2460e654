"""MPEG-TS and fragmented MP4: packets leave at once, and segments join without a seam."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
import pytest
from av import Packet
from av.stream import Stream
from hypothesis import given
from hypothesis import strategies as st

from tests.publisher.media.clips import decode, make_clip
from tricklecast.publisher.media.muxers import (
    MAX_WAIT,
    FragmentedMp4,
    MpegTs,
    Muxer,
    Sample,
    Times,
    fragment,
    length_prefixed,
)
from tricklecast.trickle.media.containers import (
    PACKET_BYTES,
    Continuity,
    Step,
    boxes,
    find_box,
    init_segment,
    tracks,
    ts_packets,
)
from tricklecast.trickle.media.timeline import CLOCK_HZ


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
    assert [item.kind for item in boxes(data)][:2] == [b"ftyp", b"moov"]
    return init_segment(data)


def tracks_of_fragments(data: bytes) -> list[list[int]]:
    """The numbers of the tracks that each fragment has something of."""
    return [
        [int.from_bytes(find_box(part.body, b"tfhd")[4:8]) for part in boxes(item.body) if part.kind == b"traf"]
        for item in boxes(data)
        if item.kind == b"moof"
    ]


def pictures_of_fragments(data: bytes) -> list[int]:
    """The number of pictures of each fragment that has some."""
    runs = [
        find_box(part.body, b"trun")
        for item in boxes(data)
        if item.kind == b"moof"
        for part in boxes(item.body)
        if part.kind == b"traf" and find_box(part.body, b"tfhd")[4:8] == b"\0\0\0\1"
    ]
    return [int.from_bytes(run[4:8]) for run in runs]


def test_a_picture_leaves_mp4_at_once(tmp_path: Path) -> None:
    """With what it needs, and the sound since the one before it; the first one, once there is sound."""
    streams, packets = read(make_clip(tmp_path / "clip.mp4"))
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    sent = [(packet.stream_index, muxer.add(packet.stream_index, packet, times(packet))) for packet in packets[:40]]
    begun = next(at for at, (_, data) in enumerate(sent) if data)
    assert sent[begun][0] == 1
    assert all(stream == 0 for stream, _ in sent[:begun])
    assert all(bool(data) == (stream == 0) for stream, data in sent[begun + 1 :])
    last_picture = max(at for at, (stream, _) in enumerate(sent) if stream == 0)
    assert bool(muxer.end(last=True)) == (last_picture < len(sent) - 1)
    assert muxer.end(last=True) == b""


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_first_fragment_of_a_segment_has_each_track(tmp_path: Path, every: int) -> None:
    """Sound behind a segment's last picture goes with the next picture, at once; if there is none, it is waited for."""
    streams, packets = read(make_clip(tmp_path / "clip.mp4"))
    sound = [packet for packet in packets if packet.stream_index == 1]
    packets = [packet for packet in packets if packet not in sound or sound.index(packet) % every == 0]
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    segments: list[bytes] = []
    kinds = [packet.stream_index for packet in packets]  # the muxer changes packets
    data, expected = b"", kinds.count(1)
    for at, (track, packet) in enumerate(zip(kinds, packets, strict=True)):
        if track == 0 and packet.is_keyframe and data:
            segments.append(data + muxer.end(last=False))
            data = muxer.add(0, packet, times(packet))
            assert bool(data) == (kinds[at - 1] == 1)
        else:
            data += muxer.add(track, packet, times(packet))
    segments.append(data + muxer.end(last=True))
    assert len(segments) > 2
    assert [tracks_of_fragments(segment)[0] for segment in segments] == [[1, 2]] * len(segments)
    assert [pictures_of_fragments(segment)[0] for segment in segments] == [1] * len(segments)
    whole = decode(b"".join(segments), "mp4")
    assert (len(whole.hashes["video"]), len(whole.hashes["audio"])) == (len(packets) - expected, expected)


def test_sound_that_stopped_is_not_waited_for(tmp_path: Path) -> None:
    """A segment waits 200 ms for it; the segment after one without sound does not wait."""
    streams, packets = read(make_clip(tmp_path / "clip.mp4"))
    pictures = [packet for packet in packets if packet.stream_index == 0]
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    sent = [bool(muxer.add(0, packet, times(packet))) for packet in pictures[:25]]
    assert sent == [False] * 5 + [True] * 20
    assert muxer.end(last=False) == b""
    assert tracks_of_fragments(muxer.add(0, pictures[25], times(pictures[25]))) == [[1]]


def test_a_track_that_only_its_packets_describe_is_waited_for(tmp_path: Path) -> None:
    """AC-3 has no header of its own: the first segment waits for its first packet, and loses nothing."""
    streams, packets = read(make_clip(tmp_path / "clip.mkv", audio="ac3"))
    pictures = [packet for packet in packets if packet.stream_index == 0]
    sound = [packet for packet in packets if packet.stream_index == 1]
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    assert [muxer.add(packet.stream_index, packet, times(packet)) for packet in pictures[:10]] == [b""] * 10
    data = muxer.add(sound[0].stream_index, sound[0], times(sound[0])) + muxer.end(last=True)
    assert len(tracks(init_of(data))) == 2
    assert len(decode(data, "mp4").hashes["video"]) == 10


def test_a_first_packet_that_does_not_describe_its_track_is_left_out(tmp_path: Path) -> None:
    """As that of a recording that begins in the middle of a frame; the next segment has the sound."""
    streams, packets = read(make_clip(tmp_path / "clip.mkv", audio="ac3"))
    pictures = [packet for packet in packets if packet.stream_index == 0]
    sound = [packet for packet in packets if packet.stream_index == 1]
    cut: Packet[Stream] = Packet(bytes(sound[0])[1:])
    cut.time_base = sound[0].time_base
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    muxer.add(1, cut, times(sound[0]))
    first = muxer.add(0, pictures[0], times(pictures[0])) + muxer.end(last=True)
    assert (len(tracks(init_of(first))), muxer.left_out) == (1, 1)
    muxer.add(1, sound[1], times(sound[1]))
    second = muxer.add(0, pictures[25], times(pictures[25])) + muxer.end(last=True)
    assert (len(tracks(init_of(second))), muxer.left_out) == (2, 1)


def test_hevc_has_the_name_that_every_player_takes(tmp_path: Path) -> None:
    """Whatever it was called, and where no container gave it a name."""
    for name in ("clip.mp4", "clip.ts"):
        streams, packets = read(make_clip(tmp_path / name, video="libx265", audio=None))
        data = FragmentedMp4().muxer(dict(enumerate(streams)), 0).add(0, packets[0], times(packets[0]))
        assert b"hvc1" in init_of(data)
        assert b"hev1" not in init_of(data)


def test_a_track_that_does_not_come_is_not_waited_for_long(tmp_path: Path) -> None:
    """After a second the segment begins without it; the next one has it."""
    streams, packets = read(make_clip(tmp_path / "clip.mkv", audio="ac3"))
    pictures = [packet for packet in packets if packet.stream_index == 0]
    sound = [packet for packet in packets if packet.stream_index == 1]
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    parts = [muxer.add(packet.stream_index, packet, times(packet)) for packet in pictures[:40]]
    held = next(number for number, part in enumerate(parts) if part)
    assert pictures[held].dts is not None
    assert abs(times(pictures[held]).dts - times(pictures[0]).dts - MAX_WAIT) <= 2 * 3600
    first = b"".join(parts) + muxer.end(last=True)
    assert len(tracks(init_of(first))) == 1
    assert len(decode(first, "mp4").hashes["video"]) == 40
    second = (
        muxer.add(sound[0].stream_index, sound[0], times(sound[0]))
        + muxer.add(pictures[50].stream_index, pictures[50], times(pictures[50]))
        + muxer.end(last=True)
    )
    assert len(tracks(init_of(second))) == 2


def test_parameters_that_change_are_in_the_next_init_segment(tmp_path: Path) -> None:
    """A source in MPEG-TS sends them within the stream; a segment that begins with new ones describes them."""
    streams, packets = read(make_clip(tmp_path / "a.ts", audio=None))
    _, others = read(make_clip(tmp_path / "b.ts", audio=None, side=96))
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    segments = [
        b"".join(muxer.add(packet.stream_index, packet, times(packet)) for packet in part[:25]) + muxer.end(last=True)
        for part in (packets, others)
    ]
    assert init_of(segments[0]) != init_of(segments[1])
    for segment, side in zip(segments, (64, 96), strict=True):
        with av.open(io.BytesIO(segment), "r", "mp4") as container:
            assert {frame.width for frame in container.decode(video=0)} == {side}


def test_times_are_exact(tmp_path: Path) -> None:
    """Frames that come irregularly keep their own times: none is the sum of what packets say of their length."""
    streams, packets = read(make_clip(tmp_path / "clip.mp4", audio=None))
    muxer = FragmentedMp4().muxer(dict(enumerate(streams)), 0)
    data, expected = b"", []
    for number, packet in enumerate(packets[:20]):
        dts = CLOCK_HZ + number * 3600 + number % 3 * 700
        packet.duration = 0
        data += muxer.add(0, packet, Times(dts + 7200, dts))
        expected.append(Fraction(dts, CLOCK_HZ))
    data += muxer.end(last=True)
    with av.open(io.BytesIO(data), "r", "mp4") as container:
        found = [packet.dts * packet.time_base for packet in container.demux() if packet.dts is not None]
    assert found == expected


def numbers(body: memoryview, at: int, count: int) -> list[int]:
    """Consecutive 32-bit numbers."""
    return [int.from_bytes(body[at + 4 * number : at + 4 * number + 4]) for number in range(count)]


def test_a_fragment_says_where_its_samples_are() -> None:
    """Per track the time of the first one, and for each its length, size, kind and offset; data lies behind."""
    video = [Sample(b"key", 1 << 33, 7200, 3600, True), Sample(b"b", (1 << 33) + 3600, 0, 3601, False)]
    sound = [Sample(b"sound", 96_000, 0, 1024, True)]
    data = fragment(7, [(1, video), (2, sound)])
    (moof, header), (mdat, media) = ((item.kind, item.body) for item in boxes(data))
    assert (moof, mdat) == (b"moof", b"mdat")
    assert bytes(media) == b"keybsound"
    (mfhd, number), (_, first), (_, second) = ((item.kind, item.body) for item in boxes(header))
    assert (mfhd, numbers(number, 4, 1)) == (b"mfhd", [7])
    found = [{item.kind: item.body for item in boxes(track)} for track in (first, second)]
    assert [numbers(track[b"tfhd"], 0, 2) for track in found] == [[0x020000, 1], [0x020000, 2]]
    assert [int.from_bytes(track[b"tfdt"][4:12]) for track in found] == [1 << 33, 96_000]
    at = len(header) + 16
    assert numbers(found[0][b"trun"], 0, 11) == [
        *(0x01000F01, 2, at),
        *(3600, 3, 0x02000000, 7200),
        *(3601, 1, 0x01010000, 0),
    ]
    assert numbers(found[1][b"trun"], 0, 7) == [0x01000F01, 1, at + 4, 1024, 5, 0x02000000, 0]
    assert data[at : at + 3] == b"key"


def test_start_codes_become_lengths() -> None:
    """Those of three and of four bytes, with padding between units, and none before or behind them."""
    units = b"\0\0\0\1\x67abc\0\0\0\0\1\x68\0\0\3d\0\0\1\x65e\0\0"
    assert length_prefixed(units) == b"\0\0\0\4\x67abc\0\0\0\5\x68\0\0\3d\0\0\0\2\x65e"
    assert length_prefixed(b"nothing") == b""
    assert length_prefixed(b"\0\0\1\0\0\1\x09") == b"\0\0\0\1\x09"


@given(st.lists(st.binary(min_size=1).filter(lambda unit: b"\0\0" not in unit and not unit.endswith(b"\0"))))
def test_no_unit_is_lost(units: list[bytes]) -> None:
    """Whatever the units hold, they come out one by one."""
    stream = b"".join(b"\0\0\0\1" + unit for unit in units)
    assert length_prefixed(stream) == b"".join(len(unit).to_bytes(4) + unit for unit in units)


def pids(data: bytes) -> list[int]:
    """The PIDs of all packets."""
    return [packet.pid for packet in ts_packets(data)]


def clocks(data: bytes) -> set[int]:
    """The PIDs of packets with a clock reference."""
    return {packet.pid for packet in ts_packets(data) if packet.has_clock}


def remuxed(clip: Path, kinds: tuple[str, ...] = ("video", "audio"), muxer: Muxer | None = None) -> list[bytes]:
    """What the packets of some kinds of streams become, one by one, and the rest."""
    with av.open(str(clip), "r") as container:
        streams = list(container.streams)
        muxer = muxer or MpegTs().muxer(dict(enumerate(streams)), 0)
        parts = []
        for number, packet in enumerate(container.demux()):
            if packet.size and packet.stream.type in kinds:
                assert packet.pts is not None
                assert packet.dts is not None
                shown, decoded = (round(time * packet.time_base * 90_000) + 90_000 for time in (packet.pts, packet.dts))
                parts.append(muxer.add(packet.stream_index, packet, Times(shown, decoded, None if number else 1)))
        return [*parts, muxer.end(last=True)]


def test_a_picture_leaves_mpegts_at_once(tmp_path: Path) -> None:
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


def test_counters_go_on_from_segment_to_segment_and_from_source_to_source(tmp_path: Path) -> None:
    """No reader sees a loss at a seam; a packet without payload does not count."""
    container, continuity, seen = MpegTs(), Continuity(), 0
    for _ in range(2):
        streams, packets = read(make_clip(tmp_path / "clip.mp4"))
        muxer = container.muxer(dict(enumerate(streams)), 0)
        for number, packet in enumerate(packets):
            data = muxer.end(last=True) if number % 30 == 0 else b""
            data += muxer.add(packet.stream_index, packet, times(packet, None if number % 30 else 1))
            assert len(data) % PACKET_BYTES == 0
            for part in ts_packets(data):
                seen += 1
                assert continuity.feed(part) is Step.NEXT
    assert seen > 300


def test_a_picture_says_how_long_it_is(tmp_path: Path) -> None:
    """A reader that knows it need not wait for the next picture; only one of more than 64 KiB cannot say it."""
    for part in remuxed(make_clip(tmp_path / "clip.mp4", audio=None))[:-1]:
        starts = [packet.payload for packet in ts_packets(part) if packet.pid == 0x100 and packet.is_start]
        payload = sum(len(packet.payload) for packet in ts_packets(part) if packet.pid == 0x100)
        assert [int.from_bytes(start[4:6]) for start in starts] == [payload - 6]
