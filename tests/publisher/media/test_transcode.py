"""Transcoding: other codecs, the same times."""

from __future__ import annotations

import io
import os
import wave
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import av
import pytest
from av import Packet
from av.audio.frame import AudioFrame
from av.stream import Disposition, Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from tests.publisher.media.clips import decode, make_clip
from tests.publisher.media.generated import (
    FakeClock,
    Packets,
    beeps,
    clock_of,
    flashes,
    frames_of,
    luma,
    muxed,
    time_of,
)
from tricklecast.publisher.media.encode import AudioCodec, Encoding, Transcoder
from tricklecast.publisher.media.inputs import ContainerSource, open_media
from tricklecast.publisher.media.source import MediaSource
from tricklecast.publisher.media.testsrc import TestOptions, TestSource
from tricklecast.trickle.errors import InvalidInput


def transcoder(source: MediaSource | Path, warnings: list[str] | None = None, **options: Any) -> Transcoder:
    """One that warns into a list; without one, it must not warn."""

    def warn(text: str) -> None:
        assert warnings is not None, text
        warnings.append(text)

    if isinstance(source, Path):
        source = open_media(str(source), source.name)
    return Transcoder(source, [Encoding(**{"preset": "ultrafast", **options})], warn)


def generated(options: str) -> TestSource:
    """A generated picture and tone that take no time."""
    return TestSource(TestOptions.parse(f"testsrc:speed=max,{options}"), clock=FakeClock())


def parts_of(path: Path, *parts: Callable[[Fraction], Fraction | None]) -> Packets:
    """A clip played several times: each time, packets are moved to other times, or dropped."""
    containers = [av.open(str(path), "r") for _ in parts]

    def packets() -> Iterator[Packet[Stream]]:
        for part, container in zip(parts, containers, strict=True):
            for packet in container.demux():
                if packet.size and (time := part(time_of(packet))) is not None:
                    assert packet.pts is not None
                    moved = round((time - time_of(packet)) / packet.time_base)
                    packet.pts += moved
                    packet.dts = None if packet.dts is None else packet.dts + moved
                    yield packet

    return Packets(list(containers[0].streams), packets())


def written(
    path: Path,
    codec: str,
    *,
    size: tuple[int, int] = (64, 64),
    pixels: str = "yuv420p",
    value: bytes = b"\xb4",
    color_range: int = 0,
    aspect: Fraction | None = None,
    times: list[int] | None = None,
) -> Path:
    """A clip of flat pictures."""
    with av.open(str(path), "w") as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=25, width=size[0], height=size[1]))
        stream.pix_fmt, stream.codec_context.color_range = pixels, color_range
        stream.codec_context.time_base = Fraction(1, 1000)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        for time in times or range(0, 200, 40):
            frame = VideoFrame(*size, pixels)
            for plane in frame.planes:
                plane.update(value * (plane.buffer_size // len(value)))
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def packets_of(source: Transcoder) -> list[Packet[Stream]]:
    """All packets, without the numbers of their streams."""
    return [packet for _, packet in source.packets()]


def times_of(packets: list[Packet[Stream]], kind: str) -> list[Fraction]:
    """When the packets of one kind begin."""
    return [time_of(packet) for packet in packets if packet.stream.type == kind]


@pytest.mark.parametrize(
    ("name", "options", "codec"),
    [
        ("clip.mp4", {}, "opus"),
        ("clip.mkv", {"audio": "libopus"}, "aac"),
        ("mpeg2.ts", {"video": "mpeg2video", "audio": "mp2"}, "aac"),
        ("mute.mp4", {"audio": None}, "aac"),
        ("sound.m4a", {"video": None}, "aac"),
    ],
)
def test_times_are_kept(tmp_path: Path, name: str, options: dict[str, Any], codec: AudioCodec) -> None:
    """Every picture's, to 90 kHz; sound begins and ends where it did, to a packet."""
    path = make_clip(tmp_path / name, **options)
    before = decode(path)
    after = decode(muxed(transcoder(path, audio_codec=codec), "mp4"), "mp4")
    assert after.times.keys() == before.times.keys()
    shift = Fraction(0)
    if "video" in before.times:
        shift = before.times["video"][0] - after.times["video"][0]
        assert len(after.times["video"]) == len(before.times["video"])
        for then, now in zip(before.times["video"], after.times["video"], strict=True):
            assert abs(then - now - shift) <= Fraction(1, 90_000)
    if "audio" in before.times:
        for edge in (0, -1):
            # A packet has up to 24 ms (MP2); Matroska rounds to milliseconds.
            assert abs(before.times["audio"][edge] - after.times["audio"][edge] - shift) <= Fraction(24, 1000)


@pytest.mark.parametrize("options", [{}, {"audio_codec": "opus", "video_bitrate": 200_000}])
def test_sound_and_picture_stay_together(options: dict[str, Any]) -> None:
    """What beeped as it flashed still does; the clock in the picture is still readable, and right."""
    data = muxed(transcoder(generated("size=320x180,duration=3"), **options))
    pictures = frames_of(data, "video")
    assert {(picture.width, picture.height) for picture in pictures} == {(320, 180)}
    begun = FakeClock().unix_us() // 1000
    assert [clock_of(picture) for picture in pictures] == [begun + 40 * at for at in range(75)]
    seen, heard = flashes(pictures), beeps(frames_of(data, "audio"))
    assert len(seen) == 3
    assert all(abs(flash - beep) < Fraction(2, 1000) for flash, beep in zip(seen, heard, strict=True))


def test_keyframes_stand_at_fixed_times_whatever_the_source_had(tmp_path: Path) -> None:
    """A keyframe per second becomes one in 0.6 seconds."""
    packets = packets_of(transcoder(make_clip(tmp_path / "clip.mp4"), gop_s=0.6))
    video = [packet for packet in packets if packet.stream.type == "video"]
    assert [time_of(packet) for packet in video if packet.is_keyframe] == [Fraction(at * 6, 10) for at in range(5)]


def test_frame_rates_may_vary(tmp_path: Path) -> None:
    """Frames are neither doubled nor dropped to make the rate constant."""
    times = [0, 40, 80, 95, 1200, 1201, 5000, 5040, 9000]  # milliseconds, as Matroska counts
    path = written(tmp_path / "clip.mkv", "ffv1", times=times)
    assert times_of(packets_of(transcoder(path)), "video") == [Fraction(time, 1000) for time in times]


def test_times_of_capture_are_passed_on() -> None:
    """As the source gave them, to the time that each packet has."""
    begun = FakeClock().unix_us()
    for _, packet in transcoder(generated("size=160x90,duration=2")).packets():
        assert isinstance(packet.opaque, int)
        assert abs(packet.opaque - begun - time_of(packet) * 1_000_000) <= 2


def test_without_times_of_capture_there_are_none(tmp_path: Path) -> None:
    """None is made up."""

    class Untold(ContainerSource):
        def packets(self) -> Iterator[tuple[int, Packet[Stream]]]:
            for track, packet in super().packets():
                packet.opaque = None
                yield track, packet

    source = Untold(av.open(str(make_clip(tmp_path / "clip.mp4", seconds=1)), "r"))
    assert {packet.opaque for _, packet in transcoder(source).packets()} == {None}


def test_a_source_that_jumps_back_goes_on(tmp_path: Path) -> None:
    """A clip played twice: all its pictures come, at their times, the second time from a keyframe on."""
    path = make_clip(tmp_path / "clip.mp4", seconds=2)
    source = parts_of(path, lambda time: time + 100, lambda time: time + 50)
    packets = packets_of(transcoder(source))
    assert times_of(packets, "video") == [100 + Fraction(at, 25) for at in range(50)] + [
        50 + Fraction(at, 25) for at in range(50)
    ]
    keyframes = [time_of(packet) for packet in packets if packet.stream.type == "video" and packet.is_keyframe]
    assert keyframes == [100, 50]
    sound = times_of(packets, "audio")
    turn = next(at for at, (before, after) in enumerate(pairwise(sound), 1) if after < before)
    assert abs(sound[0] - 100) < Fraction(3, 100)
    assert abs(sound[turn - 1] - 102) < Fraction(5, 100)
    assert abs(sound[turn] - 50) < Fraction(5, 100)
    assert abs(sound[-1] - 52) < Fraction(5, 100)


def test_a_jump_forth_is_not_filled_up(tmp_path: Path) -> None:
    """An hour that is missing becomes no hour of silence."""
    path = make_clip(tmp_path / "clip.mp4", seconds=2)
    packets = packets_of(transcoder(parts_of(path, lambda time: time, lambda time: time + 3600)))
    assert len(times_of(packets, "video")) == 100
    sound = times_of(packets, "audio")
    assert len(sound) < 200
    assert abs(sound[-1] - 3602) < Fraction(5, 100)


def test_a_small_hole_in_the_sound_is_silence(tmp_path: Path) -> None:
    """Half a second that was lost: what follows is heard at its time."""
    path = make_clip(tmp_path / "clip.m4a", video=None)
    source = parts_of(path, lambda time: None if 1 < time < Fraction(3, 2) else time)
    sound = times_of(packets_of(transcoder(source)), "audio")
    assert {after - before for before, after in pairwise(sound)} == {Fraction(1024, 48_000)}
    assert abs(sound[-1] - 3) < Fraction(5, 100)


def test_a_short_clip_that_is_played_again_comes_again(tmp_path: Path) -> None:
    """As a file made of recordings of less than a second: nothing is left out."""
    path = make_clip(tmp_path / "clip.mp4", video="mpeg4", audio=None, seconds=1)
    source = parts_of(path, lambda time: time, lambda time: time)
    assert times_of(packets_of(transcoder(source)), "video") == [Fraction(at, 25) for at in range(25)] * 2


def test_pictures_out_of_order_are_left_out_and_told(tmp_path: Path) -> None:
    """Those that are not later than the one before: at the first one, and their number at the end."""
    path = written(tmp_path / "clip.mkv", "ffv1", times=[40 * at for at in range(25)])
    source = parts_of(path, lambda time: time, lambda time: None if time < Fraction(22, 25) else time)
    warnings: list[str] = []
    encoded = packets_of(transcoder(source, warnings))
    assert times_of(encoded, "video") == [Fraction(at, 25) for at in range(25)]
    assert warnings == [
        "stream 0 goes back in time: frames that are not later than those before are left out",
        "stream 0: 3 frames out of order left out",
    ]


def test_pictures_without_times_follow_one_another(tmp_path: Path) -> None:
    """At the frame rate, from 0 on."""
    container = av.open(str(make_clip(tmp_path / "clip.mp4", video="mpeg4", audio=None, seconds=1)), "r")

    def packets() -> Iterator[Packet[Stream]]:
        for packet in container.demux():
            if packet.size:
                packet.pts = packet.dts = None
                yield packet

    encoded = packets_of(transcoder(Packets(list(container.streams), packets())))
    assert times_of(encoded, "video") == [Fraction(at, 25) for at in range(25)]


def test_damaged_data_is_left_out(tmp_path: Path) -> None:
    """With one warning; the rest is encoded."""
    path = make_clip(tmp_path / "clip.mp4", video="mpeg4", audio=None)
    damaged = av.open(str(path), "r")

    def packets() -> Iterator[Packet[Stream]]:
        for number, packet in enumerate(packet for packet in damaged.demux() if packet.size):
            if number in (30, 31, 40):
                packet.update(bytes(packet.size))
            yield packet

    warnings: list[str] = []
    encoded = packets_of(transcoder(Packets(list(damaged.streams), packets()), warnings))
    assert 60 <= len(encoded) < 75
    assert warnings == ["stream 0 is damaged: the frames that cannot be decoded are left out"]


def test_a_source_that_breaks_gives_what_came_before(tmp_path: Path) -> None:
    """All of it, also what was held back; then its error."""
    container = av.open(str(make_clip(tmp_path / "clip.mp4")), "r")

    def packets() -> Iterator[Packet[Stream]]:
        for packet in container.demux():
            if packet.stream.type == "video" and (packet.dts or 0) * packet.time_base >= 2:
                raise OSError("the cable is out")
            yield packet

    source = Packets(list(container.streams), packets())
    encoded: list[Packet[Stream]] = []
    broken = transcoder(source)
    with pytest.raises(OSError, match="the cable is out"):
        encoded.extend(packet for _, packet in broken.packets())
    # The pictures from 0 on, of which those at the end depend on some that did not come.
    assert 48 <= len(times_of(encoded, "video")) <= 52
    assert not source.is_closed
    broken.close()
    assert source.is_closed


def test_what_is_not_encoded_is_named(tmp_path: Path) -> None:
    """Further pictures; every sound is encoded, with its language."""
    path = tmp_path / "many.mkv"
    with av.open(str(path), "w") as container:
        streams: list[Any] = [container.add_stream("mpeg4", rate=25, width=64, height=64) for _ in range(2)]
        for language in ("deu", "fra"):
            streams.append(container.add_stream("mp2", rate=48_000))
            streams[-1].metadata["language"] = language
        for number in range(25):
            for stream in streams[:2]:
                picture = VideoFrame(64, 64, "yuv420p")
                picture.pts = number
                container.mux(stream.encode(picture))
            for stream in streams[2:]:
                sound = AudioFrame("s16", "stereo", 1920)
                sound.sample_rate, sound.pts = 48_000, number * 1920
                container.mux(stream.encode(sound))
        for stream in streams:
            container.mux(stream.encode(None))
    warnings: list[str] = []
    encoded = transcoder(path, warnings)
    assert [(stream.type, stream.metadata.get("language")) for stream in encoded.streams.values()] == [
        ("video", None),
        ("audio", "deu"),
        ("audio", "fra"),
    ]
    assert warnings == ["left out: stream 1 (video)"]
    assert {track for track, _ in encoded.packets()} == {0, 2, 3}


def test_nothing_to_encode_is_an_error() -> None:
    """Neither covers of music, nor data, nor streams of which nothing is known; the source is closed then."""
    with av.open(os.devnull, "w", format="null") as container:
        cover = container.add_stream("mjpeg", width=64, height=64)
        cover.disposition = Disposition.attached_pic
        unseen, unheard = container.add_stream("mpeg4", width=0, height=0), container.add_stream("mp2")
        unheard.codec_context.sample_rate = 0
        source = Packets([cover, container.add_data_stream(), unseen, unheard], [])
        warnings: list[str] = []
        with pytest.raises(InvalidInput, match="no video or audio"):
            transcoder(source, warnings)
    late = ", of which nothing was seen or heard when the input was opened"
    kinds = ((0, "video", ""), (3, "data", ""), (1, "video", late), (2, "audio", late))
    assert warnings == [f"left out: stream {index} ({kind}){why}" for index, kind, why in kinds]
    assert source.is_closed


@pytest.mark.parametrize(
    ("channels", "rate", "codec", "expected"),
    [
        (1, 44_100, "aac", ("mono", 44_100)),
        (2, 44_100, "opus", ("stereo", 48_000)),
        (2, 96_000, "aac", ("stereo", 48_000)),
        (6, 48_000, "aac", ("stereo", 48_000)),
        (1, 8_000, "aac", ("mono", 48_000)),
    ],
)
def test_sound_is_brought_to_what_players_know(
    tmp_path: Path, channels: int, rate: int, codec: AudioCodec, expected: tuple[str, int]
) -> None:
    """Rates that every player knows are kept; there are at most two channels."""
    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * channels * rate))
    frames = frames_of(muxed(transcoder(path, audio_codec=codec)), "audio")
    assert {(frame.layout.name, frame.sample_rate) for frame in frames} == {expected}
    assert abs(sum(frame.samples for frame in frames) / expected[1] - 1) < 0.07


@pytest.mark.parametrize(
    ("codec", "pixels", "value", "expected"),
    [
        ("libx264", "yuv420p", b"\xb4", ("yuv420p", 1, 180)),
        ("libx264", "yuv422p10le", (720).to_bytes(2, "little"), ("yuv420p", 1, 180)),
        ("libx264", "yuvj420p", b"\xb4", ("yuv420p", 1, 171)),
        ("mjpeg", "yuvj444p", b"\xb4", ("yuv420p", 1, 171)),
        ("png", "rgb24", b"\xb4", ("yuv420p", 1, 171)),  # 180 of 255, in a range of 219 from 16 on
        ("libx264rgb", "rgb24", b"\xb4", ("yuv420p", 1, 171)),
        ("ffv1", "gray", b"\xb4", ("yuv420p", 1, 171)),
    ],
)
def test_every_pixel_format_is_encoded(
    tmp_path: Path, codec: str, pixels: str, value: bytes, expected: tuple[str, int, int]
) -> None:
    """As 4:2:0 with 8 bits; in the limited range of values that every player expects."""
    full = 2 if pixels.startswith("yuvj") else 0
    path = written(tmp_path / "clip.nut", codec, pixels=pixels, value=value, color_range=full)
    picture = frames_of(muxed(transcoder(path)), "video")[-1]
    assert (picture.format.name, picture.color_range or 1) == expected[:2]  # where nothing is said, it is limited
    assert abs(luma(picture)(32, 32) - expected[2]) <= 2


@pytest.mark.parametrize(
    ("size", "aspect", "expected"),
    [((320, 180), None, (320, 180)), ((180, 144), Fraction(16, 11), (180, 144)), ((65, 33), None, (64, 32))],
)
def test_pictures_have_even_sides(
    tmp_path: Path, size: tuple[int, int], aspect: Fraction | None, expected: tuple[int, int]
) -> None:
    """They keep their size and aspect otherwise."""
    path = written(tmp_path / "clip.mp4", "mpeg4", size=size, aspect=aspect)
    with av.open(io.BytesIO(muxed(transcoder(path), "mp4")), "r") as container:
        picture = next(container.decode(video=0))
        assert (picture.width, picture.height) == expected
        assert (container.streams.video[0].codec_context.sample_aspect_ratio or 1) == (aspect or 1)
