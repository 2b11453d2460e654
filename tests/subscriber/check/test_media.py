"""What is read out of segments: of real muxers, damaged ones, hostile ones; and any bytes at all."""

from __future__ import annotations

import struct
import tracemalloc
from collections import Counter
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.publisher.media.clips import make_clip
from tests.subscriber.check.segments import cut, judged, numbered, read, received, troubles
from tests.trickle.media.test_containers import TABLES, packet
from tricklecast.subscriber.check import media as media_module
from tricklecast.subscriber.check.media import (
    ENCRYPTED,
    MAX_STEPS,
    NEEDS_PYAV,
    NO_INIT,
    Fault,
    Kind,
    SegmentBytes,
    Track,
)
from tricklecast.subscriber.check.rules import Level
from tricklecast.trickle.media import clock
from tricklecast.trickle.media.containers import PACKET_BYTES, Container, box, boxes, full_box
from tricklecast.trickle.media.demux import MAX_SAMPLES

BEGAN_MS = 1_700_000_100_800
"""A little before the first segment of ``seen_of`` arrives."""


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds of a picture that shows when it was drawn."""
    path = tmp_path_factory.mktemp("clip") / "clock.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "25", "preset": "ultrafast", "bf": "2"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
        for number in range(75):
            frame = VideoFrame(320, 180, "yuv420p")
            luma, width = bytearray(frame.planes[0].buffer_size), frame.planes[0].line_size
            for cell in clock.draw_clock(BEGAN_MS + number * 40, 320, 180):
                for y in range(cell.top, cell.bottom):
                    level = b"\xeb" if cell.white else b"\x10"
                    luma[y * width + cell.left : y * width + cell.right] = level * (cell.right - cell.left)
            frame.planes[0].update(bytes(luma))
            for plane in frame.planes[1:]:
                plane.update(b"\x80" * plane.buffer_size)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_latency_by_the_clock_in_the_picture(clocked: Path, format_: str) -> None:
    """A decoder reads it from the first picture of each segment."""
    segments = cut(clocked, format_=format_)
    segments = numbered(segments) if format_ == "mpegts" else segments
    seen = received(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4", decode=True)
    clocks = [one.media.picture.clock_ms for one in seen if one.media.picture is not None]
    assert clocks == [BEGAN_MS, BEGAN_MS + 1000, BEGAN_MS + 2000]
    finding = judged(seen).finding("picture_latency")
    assert finding.level is Level.OK
    assert finding.values["p50_s"] == pytest.approx(0.2, abs=0.001)


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_latency_by_producer_time(tmp_path: Path, format_: str) -> None:
    """A packet without payload or a box tells when the first frame was made; counters and boxes stay in order."""
    plain = cut(make_clip(tmp_path / "clip.mp4", seconds=4.0), format_=format_)
    segments = []
    for number, data in enumerate(plain):
        made_us = 1_700_000_100_500_000 + number * 1_000_000
        if format_ == "mpegts":
            segments.append(data[: 3 * 188] + clock.temi_packet(0x100, made_us) + data[3 * 188 :])
        else:
            at = data.index(b"moof") - 4
            segments.append(data[:at] + clock.prft_box(1, made_us, 0) + data[at:])
    segments = numbered(segments) if format_ == "mpegts" else segments
    seen = received(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4", decode=True)
    judgement = judged(seen)
    assert troubles(judgement) == {}
    assert judgement.finding("latency").values["p50_s"] == pytest.approx(0.5, abs=0.03)
    assert judgement.finding("decodes").level is Level.OK


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds with a keyframe each second."""
    return make_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", seconds=3.0)


@pytest.fixture(scope="module")
def good(clip: Path) -> list[bytes]:
    """Well-made MPEG-TS."""
    return numbered(cut(clip))


@pytest.fixture(scope="module")
def pieces(clip: Path) -> list[bytes]:
    """Well-made MP4: each with an init segment."""
    return cut(clip, format_="mp4")


def without_init(data: bytes) -> bytes:
    """A segment from its first fragment on."""
    return data[next(item.start for item in boxes(data) if item.kind == b"moof") :]


def packets(data: bytes) -> list[bytes]:
    """The packets of a segment."""
    return [data[at : at + PACKET_BYTES] for at in range(0, len(data), PACKET_BYTES)]


def test_the_tracks_of_a_segment(good: list[bytes], pieces: list[bytes]) -> None:
    """Kinds, codecs and times, the same from both containers; of sound also when the next frame is due."""
    for media, hz in ((read(good)[1], 90_000), (read(pieces)[1], 12_800)):
        video, sound = media.tracks
        assert (video.kind, video.codec, video.hz, video.samples) == (Kind.VIDEO, "h264", hz, 25)
        assert (video.steps, video.backwards, video.key, video.parameters) == (Counter({hz // 25: 24}), 0, True, True)
        assert (sound.kind, sound.codec, sound.key) == (Kind.AUDIO, "aac", None)
        assert sound.due == (sound.last_dts or 0) + sound.frame
        assert media.lead is video
        assert media.tables
        assert media.faults == {}
    assert [track.name for track in read(good)[0].tracks] == ["video 0x100", "audio 0x101"]
    assert [track.name for track in read(pieces)[0].tracks] == ["video 1", "audio 2"]


@pytest.mark.parametrize("step", [1, 187, 188, 100_000])
def test_it_does_not_matter_how_bytes_arrive(good: list[bytes], pieces: list[bytes], step: int) -> None:
    """One at a time, or all at once."""
    for segments in (good[:1], pieces[:1]):
        assert read(segments, step=step) == read(segments)


def test_tables_have_to_come_first(good: list[bytes]) -> None:
    """Before the picture; a bit of sound may come earlier, and tables of the segment before do not count."""
    sound = packet(0x101, 0, b"\0\0\1\xc0" + bytes(100), is_start=True)
    picture = packet(0x100, 0, b"\0\0\1\xe0" + bytes(100), is_start=True)
    assert read([sound + good[0]])[0].tables
    assert not read([picture + good[0]])[0].tables
    bare = b"".join(packets(good[1])[3:])
    first, second = read([good[0], bare])
    assert (first.tables, second.tables) == (True, False)
    assert second.tracks[0].samples == 25  # with the tables of the segment before


def test_fragments_without_an_init_segment(pieces: list[bytes]) -> None:
    """The tracks of the segment before serve; alone, nothing is known, and that is no damage."""
    bare = without_init(pieces[1])
    first, second = read([pieces[0], bare], decode=True)
    assert (first.tables, second.tables) == (True, False)
    assert second.tracks[0].first_dts == read(pieces)[1].tracks[0].first_dts
    assert second.picture is not None
    assert (second.picture.decoded, second.picture.error) == (False, "it has no init segment")
    (alone,) = read([bare])
    assert (alone.tracks, alone.faults, alone.unread) == ((), {}, NO_INIT)


def test_counters_go_on_over_segments_unless_something_is_missing(good: list[bytes]) -> None:
    """After a gap they are not expected to."""
    odd = [good[0], good[2]]
    assert Fault.LOST_AT_SEAM in read(odd)[1].faults
    assert read(odd, follows=False)[1].faults == {}
    lost = b"".join(packets(good[1])[:9] + packets(good[1])[10:])
    assert read([good[0], lost])[1].faults == {Fault.LOST_INSIDE: 1}


def test_fragments_are_numbered(pieces: list[bytes]) -> None:
    """Within a segment, and from segment to segment unless it brings an init segment, which may count anew."""
    bare = without_init(pieces[1])
    assert read(pieces)[1].faults == {}
    assert read([pieces[0], bare])[1].faults == {Fault.LOST_AT_SEAM: 1}
    assert read([pieces[0], bare], follows=False)[1].faults == {}
    assert read([pieces[0] + bare])[0].faults == {Fault.LOST_INSIDE: 1}


def test_a_segment_may_begin_in_the_middle_of_a_frame(good: list[bytes]) -> None:
    """Which is no keyframe; and what is left of the frame is not missed from the time line."""
    rest = packet(0x100, 0, b"\0\0\1\x65" + bytes(180))
    video = read([b"".join([*packets(good[0])[:3], rest, *packets(good[0])[3:]])])[0].tracks[0]
    assert (video.cut_in, video.key, video.parameters) == (True, False, None)
    halves = b"".join(good)
    at = len(good[0]) + 20 * PACKET_BYTES
    judgement = judged(received([halves[:at], halves[at:]]))
    assert judgement.finding("times_across").level is Level.OK, judgement.finding("times_across")


def test_encrypted_segments_are_not_looked_into(good: list[bytes]) -> None:
    """They are counted, and the rules about tracks say why they measure nothing."""
    locked = [bytearray(data) for data in packets(good[0])]
    for data in locked[3:]:
        data[3] |= 0x80
    (media,) = read([b"".join(locked)])
    assert media.unread == ENCRYPTED
    assert media.faults == {Fault.SCRAMBLED: len(locked) - 3}
    one = bytearray(good[0])
    one[9 * PACKET_BYTES + 3] |= 0x80
    assert read([bytes(one)])[0].faults == {Fault.DAMAGED_PACKET: 1}
    judgement = judged(received([b"".join(locked)]))
    assert judgement.finding("stands_alone").figure == "encrypted"
    assert troubles(judgement) == {}


def test_garbage_between_packets_is_counted_once_per_place(good: list[bytes]) -> None:
    """Packets behind it are found again."""
    parts = packets(good[0])
    (media,) = read([b"\1" * 100 + b"".join(parts[:10]) + b"\2" * 300 + b"".join(parts[10:]) + b"\3" * 10])
    assert media.faults == {Fault.SYNC_LOST: 3}
    assert media.tracks[0].samples == 25
    assert read([good[0][:-10]], short=[0])[0].faults == {}  # it was cut: it may end anywhere
    assert read([good[0][:-10]])[0].faults == {Fault.PARTIAL_PACKET: 1}


def test_a_segment_that_nobody_can_read_is_damaged(pieces: list[bytes]) -> None:
    """It has tables, and no track comes out of them."""
    broken = box(b"ftyp", b"iso5", bytes(8)) + box(b"moov", box(b"trak", bytes(50))) + box(b"mdat", bytes(50))
    (media,) = read([broken])
    assert Fault.UNREADABLE in media.faults
    assert media.unread


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">I4s", 3, b"free"),
        struct.pack(">I4s", 100, b"moof"),
        struct.pack(">I4sQ", 1, b"mdat", 7),
        box(b"\xff\xfe\xfd\xfc"),
        struct.pack(">I4s", 100, b"mdat"),
        b"\0\0\0",
    ],
)
def test_boxes_that_make_no_sense_are_counted(pieces: list[bytes], bad: bytes) -> None:
    """What was before them counts; a segment that was cut short may end so."""
    (media,) = read([pieces[0] + bad])
    assert media.faults == {Fault.BAD_BOX: 1}
    assert media.tracks[0].samples == 25
    if bad[4:] != b"\xff\xfe\xfd\xfc":
        assert read([pieces[0] + bad], short=[0])[0].faults == {}


def fragment(samples: int) -> bytes:
    """A fragment whose samples have no entries, so that any number costs nothing."""
    run = full_box(b"trun", 0, 0, samples.to_bytes(4))
    track = box(b"traf", full_box(b"tfhd", 0, 0, (1).to_bytes(4)), full_box(b"tfdt", 0, 0, bytes(4)), run)
    return box(b"moof", full_box(b"mfhd", 0, 0, (9).to_bytes(4)), track) + box(b"mdat", bytes(50))


def test_an_index_of_millions_of_samples_is_not_read(pieces: list[bytes]) -> None:
    """libavformat would allocate memory for each of them; a few bytes announce them."""
    hidden = struct.pack(">I4s", 999, b"moof") + fragment(1 << 31)[8:]
    for bomb in (pieces[0] + fragment(MAX_SAMPLES + 1), pieces[0] + fragment(1 << 31), pieces[0] + hidden):
        (media,) = read([bomb], decode=True)
        assert media.faults[Fault.TOO_MANY_SAMPLES] == 1
        assert (media.tracks, media.picture, media.unread) == ((), None, "too many samples")
    segments = [pieces[0], pieces[0] + fragment(1 << 31)]
    assert troubles(judged(received(segments, content_type="video/mp4"))) == {"damage": "fail"}


def test_a_track_number_that_costs_seconds_is_not_read(pieces: list[bytes]) -> None:
    """A few bytes would keep the check busy."""
    at = pieces[0].index(b"tkhd") + 16
    huge = pieces[0][:at] + b"\xff" + pieces[0][at + 1 :]
    (media,) = read([huge], decode=True)
    assert media.faults[Fault.BAD_BOX] == 1
    assert media.tracks == ()


def test_a_fragment_needs_a_time(pieces: list[bytes]) -> None:
    """Without one, a demuxer counts from 0 in each segment."""
    untimed = pieces[0].replace(b"tfdt", b"free")
    assert read([untimed])[0].faults == {Fault.NO_TIME: 1}


def test_without_pyav_packets_and_boxes_are_looked_at(good: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage and counters are found; everything else says what it needs."""
    monkeypatch.setattr(media_module, "has_pyav", lambda: False)
    lost = b"".join(packets(good[1])[:9] + packets(good[1])[10:])
    judgement = judged(received([good[0], lost]))
    assert troubles(judgement) == {"counters_inside": "fail"}
    for rule in ("stands_alone", "keyframes", "decodes", "streams", "times_across", "lengths", "trickles"):
        assert judgement.finding(rule).figure == NEEDS_PYAV


def units(data: bytes, kind: int) -> bytes:
    """MPEG-TS without the H.264 units of that kind; their bytes become filler units."""
    for start in range(kind, 256, 32):
        data = data.replace(b"\0\0\1" + bytes([start]), b"\0\0\1\x0c")
    return data


@pytest.mark.parametrize("kind", [7, 8])
def test_parameters_have_to_stand_before_the_picture(good: list[bytes], kind: int) -> None:
    """Both sequence and picture parameters."""
    assert read([good[0], units(good[1], kind)])[1].tracks[0].parameters is False


def test_what_does_not_decode_is_told_with_the_reason(clip: Path, tmp_path: Path) -> None:
    """A segment that begins in the middle of a group of pictures; of sound there is no picture."""
    late = read([cut(clip, length_s=1.4, at_keyframes=False)[1]], decode=True)[0].picture
    assert late is not None
    assert not late.decoded or late.late_s > 0.4
    sound = read(cut(make_clip(tmp_path / "sound.mp4", video=None)), decode=True)
    assert [media.picture for media in sound] == [None] * len(sound)


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_a_picture_that_is_refreshed_bit_by_bit_is_no_damage(tmp_path: Path, format_: str) -> None:
    """Where that takes as long as a segment, none of them shows a picture alone: a warning, with the reason."""
    path = tmp_path / ("refreshed.ts" if format_ == "mpegts" else "refreshed.mp4")  # with parameters in it, or before
    with av.open(str(path), "w") as container:
        options = {"x264-params": "intra-refresh=1:keyint=12:bframes=3:b-adapt=0", "preset": "ultrafast"}
        stream = container.add_stream("libx264", rate=25, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 320, 64, "yuv420p"
        for number in range(48):
            frame = VideoFrame(320, 64, "yuv420p")
            for plane in frame.planes:
                plane.update((number * np.arange(plane.buffer_size)).astype("u1").tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    segments = cut(path, format_=format_)[1:]
    seen = received(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4", decode=True)
    assert [one.media.picture is not None and one.media.picture.refreshes for one in seen] == [True] * len(seen)
    finding = judged(seen).finding("decodes")
    assert finding.level is Level.WARN
    assert finding.figure.endswith("show their first picture late, after their end")
    assert "bit by bit" in finding.text


def test_pictures_of_more_than_eight_bits_are_read(tmp_path: Path) -> None:
    """They are converted, and a picture without a clock shows no time."""
    path = tmp_path / "deep.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx265", rate=25, options={"x265-params": "log-level=none"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p10le"
        for _ in range(3):
            frame = VideoFrame(64, 64, "yuv420p10le")
            for plane in frame.planes:
                plane.update(b"\0\2" * (plane.buffer_size // 2))
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    picture = read(cut(path)[:1], decode=True)[0].picture
    assert picture is not None
    assert (picture.decoded, picture.clock_ms) == (True, None)


def test_notes_have_a_limit() -> None:
    """So many distances are told apart, and no more; the rest still counts."""
    track = Track("video 1", Kind.VIDEO, "h264", 90_000, 1 << 33)
    dts = 0
    for step in range(MAX_STEPS + 100):
        dts += step + 1
        track.add(dts, dts, 0)
    assert len(track.steps) == MAX_STEPS
    assert track.last_dts == dts


def test_memory_is_bounded(good: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long segment only the beginning is kept, and of anything but media nothing."""
    monkeypatch.setattr(media_module, "MAX_BYTES", 1 << 20)
    for chunk, kept in ((good[0] * 10, 1 << 20), (b"text " * 20_000, 0)):
        content = SegmentBytes()
        tracemalloc.start()
        for _ in range(50):
            content.add(chunk)
        container, data = content.take()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert content.size == 50 * len(chunk)
        assert len(data) == kept
        assert peak < 4 << 20
        if kept:
            (media,) = read([chunk * 50])
            assert (container, media.is_part) == (Container.MPEGTS, True)
            assert not media.ends_whole


PIECES = st.sampled_from(
    [
        TABLES,
        packet(0x101, 0, b"\0\0\1\xe0" + bytes(100), is_start=True),
        fragment(3),
        box(b"moov", box(b"trak")),
        b"\0\0\0\1mdat",
        b"\0\0\1\xe0",
        b"\x47",
    ]
)
GARBAGE = st.lists(st.one_of(PIECES, st.binary(max_size=400)), max_size=8).map(b"".join)


@settings(max_examples=60, deadline=None)
@given(segments=st.lists(GARBAGE, min_size=1, max_size=3), step=st.integers(1, 1000))
def test_any_bytes_are_taken(segments: list[bytes], step: int) -> None:
    """Whatever they are: no exception, the same result however they arrive, and a report."""
    assert read(segments, step=step, decode=True) == read(segments, decode=True)
    assert judged(received(segments)).findings


@settings(max_examples=60, deadline=None)
@given(places=st.lists(st.integers(0, 1 << 24), min_size=1, max_size=30), number=st.integers(0, 3))
def test_damaged_media_is_taken(good: list[bytes], pieces: list[bytes], places: list[int], number: int) -> None:
    """Bits that are turned over anywhere in what a muxer wrote."""
    segments = [bytearray(data) for data in (good if number % 2 else pieces)]
    for place in places:
        data = segments[number % len(segments)]
        data[place // 8 % len(data)] ^= 1 << place % 8
    judged(received([bytes(data) for data in segments], decode=True))


def test_a_picture_of_an_unknown_codec_is_not_decoded(pieces: list[bytes]) -> None:
    """The track is there, and nothing is known of it."""
    (media,) = read([pieces[0].replace(b"avc1", b"none")], decode=True)
    assert (media.picture, media.tracks[0].codec) == (None, "unknown")


def test_an_ordinary_mp4_file_is_not_read(clip: Path, pieces: list[bytes]) -> None:
    """Nobody can decode it while it is being written; nor is a compressed index unfolded."""
    compressed = box(b"ftyp", b"iso5") + box(b"moov", box(b"cmov", bytes(100))) + pieces[0]
    for data in (clip.read_bytes(), compressed):
        (media,) = read([data], decode=True)
        assert media.faults == {Fault.NOT_FRAGMENTED: 1}
        assert (media.tracks, media.unread) == ((), "an ordinary MP4 file")
    judgement = judged(received([clip.read_bytes()], content_type="video/mp4"))
    assert troubles(judgement) == {"damage": "fail"}
    assert "ordinary MP4 files" in judgement.finding("damage").text
