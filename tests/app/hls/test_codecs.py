"""What streams are, as their init segments, tables and first bytes tell it."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import av
import numpy as np
import pytest
from av.audio.stream import AudioStream
from av.video.stream import VideoStream
from hypothesis import given
from hypothesis import strategies as st

from tests.support.media import PMT_PID, section, ts_packet
from tricklecast.app.hls import codecs
from tricklecast.app.hls.codecs import (
    MAX_OPENING,
    SOUND,
    VIDEO,
    Stream,
    captions_of,
    mp4_streams,
    ts_streams,
)
from tricklecast.app.hls.units import Scanner, TsScanner, scanner
from tricklecast.trickle.media.containers import box, full_box, nal_units, sniff

MP4_OPTIONS = {"movflags": "frag_keyframe+empty_moov+default_base_moof+delay_moov"}


def encoded(
    form: str, video: str | None = "libx264", audio: str | None = "aac", *, pixels: str = "yuv420p",
    size: tuple[int, int] = (322, 180), language: str = "", options: dict[str, str] | None = None,
) -> Scanner:  # fmt: skip
    """A scanner that has seen a second of a picture and silence, as libavformat writes them."""
    file = io.BytesIO()
    with av.open(file, "w", form, options=MP4_OPTIONS if form == "mp4" else {}) as container:
        streams: list[tuple[VideoStream | AudioStream, Sequence[av.VideoFrame | av.AudioFrame]]] = []
        if video:
            quiet = {"x265-params": "log-level=none"} if video == "libx265" else {}
            picture = container.add_stream(video, rate=25, options={**quiet, **(options or {})})
            assert isinstance(picture, VideoStream)
            picture.width, picture.height, picture.pix_fmt = *size, pixels
            frames = [av.VideoFrame.from_ndarray(np.zeros((size[1], size[0], 3), np.uint8)) for _ in range(25)]
            streams.append((picture, frames))
        if audio:
            sound = container.add_stream(audio, rate=48_000)
            assert isinstance(sound, AudioStream)
            sound.metadata["language"] = language
            formats = [one.name for one in sound.codec.audio_formats or ()]
            samples = av.AudioFrame(format=formats[0], layout="stereo", samples=48_000)
            for plane in samples.planes:
                plane.update(bytes(plane.buffer_size))
            samples.sample_rate = 48_000
            fifo = av.AudioFifo()
            fifo.write(samples)
            streams.append((sound, fifo.read_many(sound.codec_context.frame_size or 1024, partial=True)))
        for stream, given_to in streams:
            for frame in given_to:
                container.mux(stream.encode(frame))  # type: ignore[arg-type]
            container.mux(stream.encode(None))
    data = file.getvalue()
    found = scanner(sniff(data), b"")
    assert found is not None
    found.feed(data)
    found.finish(len(data))
    return found


def told(found: Scanner) -> list[str]:
    """The codecs."""
    return [one.codec for one in found.streams]


@pytest.mark.parametrize(
    ("form", "video", "audio", "pixels", "wanted"),
    [
        ("mpegts", "libx264", "aac", "yuv420p", ["avc1.64000d", "mp4a.40.2"]),
        ("mpegts", "libx264", "libmp3lame", "yuv444p", ["avc1.f4000d", "mp4a.40.34"]),
        ("mpegts", "libx264", "mp2", "yuv422p", ["avc1.7a000d", ""]),
        ("mpegts", "libx265", "ac3", "yuv420p", ["hvc1.1.6.L60.90", "ac-3"]),
        ("mpegts", "libx265", "eac3", "yuv422p10le", ["hvc1.4.10.L60.9D.8", "ec-3"]),
        ("mpegts", None, "aac", "", ["mp4a.40.2"]),
        ("mp4", "libx264", "aac", "yuv420p", ["avc1.64000d", "mp4a.40.2"]),
        ("mp4", "libx265", "ac3", "yuv420p10le", ["hev1.2.4.L60.90", "ac-3"]),
        ("mp4", "libsvtav1", "libopus", "yuv420p", ["av01.0.00M.08", "Opus"]),
        ("mp4", "libvpx-vp9", "libopus", "yuv420p", ["vp09.00.11.08", "Opus"]),
        ("mp4", "libx264", "libmp3lame", "yuv420p", ["avc1.64000d", "mp4a.6B"]),
        ("mp4", "libx264", "eac3", "yuv420p", ["avc1.64000d", "ec-3"]),
        ("mp4", None, "alac", "", ["alac"]),
        ("mp4", "mpeg4", "aac", "yuv420p", ["", "mp4a.40.2"]),
    ],
)  # fmt: skip
def test_codecs_that_encoders_write(form: str, video: str | None, audio: str, pixels: str, wanted: list[str]) -> None:
    """Each is told with its profile, and pictures with their size and rate."""
    found = encoded(form, video, audio, pixels=pixels)
    assert told(found) == wanted
    if video:
        picture = found.streams[0]
        assert (picture.kind, picture.width, picture.height) == (VIDEO, 322, 180)
        assert found.frame_rate == pytest.approx(25, rel=0.001)
    else:
        assert found.frame_rate == 0
    assert found.streams[-1].kind == SOUND


@pytest.mark.parametrize("form", ["mpegts", "mp4"])
def test_languages_are_told(form: str) -> None:
    """Three letters; none if the media do not say."""
    assert encoded(form, None, language="fin").streams[0].language == "fin"
    assert encoded(form, None).streams[0].language == ""


def test_interlaced_pictures_have_their_whole_height() -> None:
    """A sequence of fields counts their lines in halves."""
    found = encoded("mpegts", audio=None, size=(320, 184), options={"flags": "+ildct+ilme", "x264-params": "tff=1"})
    assert found.streams[0][3:5] == (320, 184)


def test_a_picture_that_is_turned_is_told_as_it_is_shown() -> None:
    """Width and height change places."""

    def entry(matrix: tuple[int, ...], size: tuple[int, int]) -> bytes:
        head = struct.pack(">III", 0, 0, 1) + bytes(24) + struct.pack(">9i", *matrix)
        head += struct.pack(">II", size[0] << 16, size[1] << 16)
        sample = box(b"vp09", bytes(24) + struct.pack(">HH", 640, 360) + bytes(50))
        table = box(b"minf", box(b"stbl", full_box(b"stsd", 0, 0, struct.pack(">I", 1), sample)))
        handler = full_box(b"hdlr", 0, 0, struct.pack(">I4s", 0, b"vide"), bytes(13))
        return box(b"moov", box(b"trak", full_box(b"tkhd", 0, 3, head), box(b"mdia", handler, table)))

    plain, turned = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30), (0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    assert mp4_streams(entry(plain, (640, 360))) == [Stream(1, VIDEO, "", 640, 360)]
    assert mp4_streams(entry(turned, (640, 360)))[0][3:5] == (360, 640)
    assert mp4_streams(entry(turned, (0, 0)))[0][3:5] == (360, 640)


def test_parameter_sets_over_many_packets_are_read() -> None:
    """The first key picture is read until it is known, however its bytes arrive; no more than there is room for."""
    opening = bytes.fromhex("00000109f0 00000106") + bytes([255]) * 900
    opening += bytes.fromhex("00000167 64000dac d9414196 ffc00000")
    pieces = [b"\0\0\1\xe0\0\0\x80\x80\5\x21\0\1\0\1" + opening[:100]]
    pieces += [opening[at : at + 180] for at in range(100, len(opening), 180)]
    pmt = section(2, struct.pack(">HBBBHH", 1, 0xC1, 0, 0, 0xE100, 0xF000) + struct.pack(">BHH", 0x1B, 0xE100, 0xF000))
    pat = section(0, struct.pack(">HBBBHH", 1, 0xC1, 0, 0, 1, 0xE000 | PMT_PID))
    data = ts_packet(0, b"\0" + pat) + ts_packet(PMT_PID, b"\0" + pmt)
    data += b"".join(ts_packet(0x100, piece, start=not at, key=not at) for at, piece in enumerate(pieces))
    data += ts_packet(0x100, bytes(100), start=False) * 40
    for step in (len(data), 188, 100):
        found = TsScanner()
        for at in range(0, len(data), step):
            found.feed(data[at : at + step])
        assert told(found) == ["avc1.64000d"]
        assert max(map(len, found._openings.values())) <= MAX_OPENING + 184


def test_private_data_of_another_kind_are_no_sound() -> None:
    """A stream that nobody knows is not told."""
    assert ts_streams({1: 0x06, 2: 0x15}, {1: b"\x05\4KLVA"}, {}, frozenset()) == []
    assert ts_streams({1: 0x06}, {1: b"\x6a\1\0"}, {}, frozenset()) == [Stream(1, SOUND, "ac-3")]
    assert ts_streams({1: 0x06}, {1: b"\x0a\4deu\0\x7a\1\0"}, {}, frozenset())[0][2:6] == ("ec-3", 0, 0, "deu")
    assert ts_streams({1: 0x0F, 2: 0x03, 3: 0x11}, {}, {}, frozenset()) == [Stream(pid, SOUND) for pid in (1, 2, 3)]


@given(data=st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([b"\0\0\1\x67", b"\0\0\1\x42\1", b"\xff\xf1"]))))
def test_no_bytes_make_it_fail(data: list[bytes]) -> None:
    """It tells what it can."""
    opening = b"".join(data)
    for number in (0x1B, 0x24, 0x0F, 0x03, 0x06):
        ts_streams({1: number}, {1: opening}, {1: opening}, frozenset({0x1B, 0x24}))
    for unit in nal_units(opening):
        codecs._avc_picture(b"\x67\x64\0\x0d" + unit)
        codecs._hevc_picture(bytes(15) + unit)
    for kind in (b"avc1", b"hvc1", b"av01", b"vp09", b"mp4a", b"Opus", b"mp4v"):
        for handler in (b"vide", b"soun"):
            children = [box(name, opening) for name in (b"avcC", b"hvcC", b"av1C", b"vpcC", b"esds")]
            sample = box(kind, bytes(78 if handler == b"vide" else 28), *children)
            table = box(b"minf", box(b"stbl", full_box(b"stsd", 0, 0, struct.pack(">I", 1), sample)))
            media = box(b"mdia", full_box(b"hdlr", 0, 0, struct.pack(">I4s", 0, handler)), table)
            mp4_streams(box(b"moov", box(b"trak", media), box(b"trak", opening)))
            mp4_streams(box(b"moov", opening))


@pytest.mark.parametrize(
    ("audio", "why"), [("libopus", "hls.js and Apple's players take Opus in MP4 alone"), ("aac", "")]
)
def test_a_codec_that_players_lack_in_mpeg_ts_is_refused(audio: str, why: str) -> None:
    """With the option of `publish` that helps."""
    obstacle = encoded("mpegts", audio=audio).obstacle
    assert obstacle.startswith(why)
    assert obstacle.endswith("publish with --container fmp4" if why else "")


def message(kind: int, *pairs: bytes) -> bytes:
    """A key picture with a message of captions in front of it."""
    data = b"\xb5\0\x31GA94\x03" + bytes([0x40 | len(pairs), 0xFF]) + b"".join(pairs) + b"\xff"
    head = b"\x06" if kind == 0x1B else b"\x4e\1"
    escaped = data.replace(b"\0\0\0", b"\0\0\3\0")
    return b"\0\0\1" + head + b"\4" + bytes([len(data)]) + escaped + b"\x80\0\0\1\x65" + bytes(9)


@pytest.mark.parametrize("kind", [0x1B, 0x24])
@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [
        ([b"\xfc\x94\x2c"], ("CC1",)),
        ([b"\xfc\x80\x80", b"\xfd\x94\x2c"], ("CC3",)),
        ([b"\xfc\x94\x2c", b"\xff\2\x21", b"\xfe\4\4"], ("CC1", "SERVICE1")),
        ([b"\xfc\x80\x80", b"\xfd\x80\x80", b"\xfa\0\0"], ()),
        ([b"\xf8\x94\x2c"], ()),
        ([], ()),
    ],
)
def test_captions_in_a_key_picture_are_found(kind: int, pairs: list[bytes], wanted: tuple[str, ...]) -> None:
    """By field and by service; padding and what is not valid are none."""
    assert captions_of(kind, message(kind, *pairs)) == wanted
    assert captions_of(0x02, message(kind, *pairs)) == ()
