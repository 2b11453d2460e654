"""Encoders for live media."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from av import Packet, VideoCodecContext
from av.audio.frame import AudioFrame
from av.stream import Stream
from av.video.frame import VideoFrame

import tricklecast.publisher.media.encode
from tests.publisher.media.generated import Packets, frames_of, luma, muxed, time_of
from tricklecast.publisher.media.encode import AudioCodec, AudioEncoder, Encoding, VideoEncoder, VideoShape
from tricklecast.trickle.errors import InvalidInput

SHAPE = VideoShape(64, 64, Fraction(25))
CODING = Encoding(None, 1.0, "ultrafast")
RATE = 48_000


def picture(time: Fraction | float, level: int = 128) -> VideoFrame:
    """A flat one."""
    frame = VideoFrame(64, 64, "yuv420p")
    for plane in frame.planes:
        plane.update(bytes([level]) * plane.buffer_size)
    frame.pts = round(time * 90_000)
    frame.time_base = Fraction(1, 90_000)
    return frame


def sound(begin_s: float, seconds: float, *, layout: str = "mono", rate: int = RATE, level: float = 0.5) -> AudioFrame:
    """A tone whose phase is that of its time."""
    samples = round(seconds * rate)
    frame = AudioFrame(format="flt", layout=layout, samples=samples)
    first = round(begin_s * rate)
    wave = level * np.sin((first + np.arange(samples)) * 2 * np.pi * 441 / rate)
    if layout == "stereo":
        wave = wave.repeat(2)
    frame.planes[0].update(wave.astype("f4").tobytes().ljust(frame.planes[0].buffer_size, b"\0"))
    frame.sample_rate, frame.pts, frame.time_base = rate, first, Fraction(1, rate)
    return frame


def opened(shape: VideoShape = SHAPE, coding: Encoding = CODING) -> VideoEncoder:
    """A video encoder."""
    return VideoEncoder(shape, coding)


def opened_audio(codec: AudioCodec = "aac", layout: str = "mono") -> AudioEncoder:
    """An audio encoder."""
    return AudioEncoder(RATE, layout, Encoding(audio_codec=codec, audio_bitrate=64_000))


def all_encoded(encoder: AudioEncoder, frames: Iterable[AudioFrame]) -> list[Packet[Stream]]:
    """The packets of all frames."""

    def packets() -> Iterator[Packet[Stream]]:
        for frame in frames:
            yield from encoder.encode(frame)
        yield from encoder.restart()

    return list(packets())


def loud(frame: AudioFrame) -> bool:
    """Whether the middle of it is no silence."""
    samples = array("f", bytes(frame.planes[0])[: frame.samples * 4])
    return max(abs(sample) for sample in samples[len(samples) // 4 : 3 * len(samples) // 4]) > 0.1


def test_keyframes_stand_at_fixed_times_with_any_frame_rate() -> None:
    """The first frame at or after each multiple of the distance, counted from the first frame."""
    encoder = opened()
    times = [Fraction(at, 100) for at in (50, 90, 149, 151, 200, 249, 251, 252, 600, 649, 650, 651)]
    packets = [packet for time in times for packet in encoder.encode(picture(time))]
    assert [time_of(packet) for packet in packets] == times
    assert [time_of(packet) for packet in packets if packet.is_keyframe] == [
        Fraction(at, 100) for at in (50, 151, 251, 600, 650)
    ]


def test_a_picture_comes_out_at_once() -> None:
    """Nothing is held back: each frame is one packet, shown when it is decoded."""
    encoder = opened()
    for number in range(60):
        (packet,) = encoder.encode(picture(Fraction(number, 25), number))
        assert packet.dts == packet.pts == number * 3600
    assert list(encoder.restart()) == []


def test_keyframes_can_be_decoded_by_themselves() -> None:
    """Groups of pictures are closed: without those before it, each decodes to the same."""
    encoder = opened()
    packets = [packet for at in range(75) for packet in encoder.encode(picture(Fraction(at, 25), 3 * at))]
    last = [packet for packet in packets if (packet.pts or 0) >= 50 * 3600]
    frames = frames_of(muxed(Packets([encoder.stream], last)), "video")
    assert len(frames) == 25
    assert [abs(luma(frame)(32, 32) - 3 * at) <= 3 for at, frame in enumerate(frames, 50)] == [True] * 25


def test_an_encoder_that_begins_anew_keeps_its_stream() -> None:
    """Time may go back then; the next frame is a keyframe, and the parameters are those of before."""
    encoder = opened()
    header = encoder.stream.codec_context.extradata
    first = [packet for at in range(10) for packet in encoder.encode(picture(5 + at / 25))]
    first += encoder.restart()
    again = [packet for at in range(10) for packet in encoder.encode(picture(1 + at / 25))]
    assert [packet.pts for packet in again] == [90_000 + 3600 * at for at in range(10)]
    assert [packet.is_keyframe for packet in again] == [True, *[False] * 9]
    assert {packet.stream for packet in [*first, *again]} == {encoder.stream}
    assert encoder.stream.codec_context.extradata == header
    assert len(frames_of(muxed(Packets([encoder.stream], again)), "video")) == 10


@pytest.mark.parametrize(
    ("second_at", "out_of_order"), [([0, 1, 2, 3], 0), ([3, 4, 5], 3), ([7, 7], 2), ([6, 8, 7], 2)]
)
def test_pictures_that_go_back_begin_anew_or_are_counted(second_at: list[int], out_of_order: int) -> None:
    """More than 0.2 s behind, a clip is played again, and all comes; nearer ones are out of order, and left out."""
    encoder = opened()
    packets = [packet for at in range(8) for packet in encoder.encode(picture(Fraction(at, 25)))]
    packets += [packet for at in second_at for packet in encoder.encode(picture(Fraction(at, 25)))]
    packets += [packet for packet in encoder.encode(picture(Fraction(9, 25)))]
    assert len(packets) == 8 + len(second_at) + 1 - out_of_order
    assert encoder.out_of_order == out_of_order
    assert [at for at, packet in enumerate(packets) if packet.is_keyframe] == ([0] if out_of_order else [0, 8])


@pytest.mark.parametrize("ahead", [0, 3])
def test_times_of_capture_are_those_of_the_place_in_time(ahead: int) -> None:
    """Where media times come again, also if a decoder knows some of them before its frames come out."""
    encoder = opened()
    noted = [(Fraction(at % 10, 25), 1_000_000_000 * (1 + at // 10) + at % 10 * 40_000) for at in range(20)]
    for known in noted[:ahead]:
        encoder.note(*known)
    found = []
    for number, (time, _) in enumerate(noted):
        for known in noted[number + ahead : number + ahead + 1]:
            encoder.note(*known)
        found += [packet.opaque for packet in encoder.encode(picture(time))]
    assert all(abs(cast(int, opaque) - captured) < 20 for opaque, (_, captured) in zip(found, noted, strict=True))


def test_a_bitrate_is_kept() -> None:
    """Over every second, also by pictures that change entirely."""
    encoder = opened(coding=Encoding(200_000, 1.0, "superfast"))
    sizes = [0] * 4
    for number in range(100):
        frame = picture(Fraction(number, 25))
        noise = bytes((number * 7919 + at * at * 31) % 251 for at in range(frame.planes[0].buffer_size))
        frame.planes[0].update(noise)
        for packet in encoder.encode(frame):
            sizes[number // 25] += packet.size * 8
    assert max(sizes[1:]) < 240_000
    assert min(sizes[1:]) > 100_000


@pytest.mark.parametrize(("format", "space"), [("rgb24", 6), ("gbrp", 6), ("argb", 6), ("bgra", 6), ("yuv444p", 2)])
def test_rgb_is_encoded_in_known_colors(format: str, space: int) -> None:
    """Those of BT.601, in whatever order its channels are. Decoders guess where the stream does not say."""
    assert VideoShape.of(VideoFrame(64, 48, format), Fraction(25), None).colors[0] == space


def test_aspect_and_colors_are_in_the_stream() -> None:
    """For decoders to see, with the range of the values, whatever range the pictures had."""
    shape = VideoShape(64, 48, Fraction(25), pixel_aspect=Fraction(4, 3), colors=(1, 1, 1))
    encoder = opened(shape)
    frame = VideoFrame(64, 48, "yuvj420p")
    for plane in frame.planes:
        plane.update(b"\xff" * plane.buffer_size)
    frame.pts, frame.time_base = 0, Fraction(1, 90_000)
    decoded = frames_of(muxed(Packets([encoder.stream], list(encoder.encode(frame)))), "video")[0]
    assert decoded.format.name == "yuv420p"
    assert (decoded.color_range, decoded.colorspace, decoded.color_primaries, decoded.color_trc) == (1, 1, 1, 1)
    assert abs(luma(decoded)(32, 24) - 235) <= 2
    context = cast(VideoCodecContext, encoder.stream.codec_context)
    assert context.sample_aspect_ratio == Fraction(4, 3)


@pytest.mark.parametrize("codec", ["aac", "opus"])
def test_sound_keeps_its_time(codec: AudioCodec) -> None:
    """In pieces of any length: the packets follow one another, and say what the encoder put in front."""
    encoder = opened_audio(codec)
    packets = all_encoded(encoder, [sound(2 + at * 0.03, 0.03) for at in range(100)])
    times = [packet.pts or 0 for packet in packets]
    steps = {after - before for before, after in pairwise(times)}
    assert steps == {{"aac": 1024, "opus": 960}[codec]}
    assert 2 * RATE - 1024 <= times[0] < 2 * RATE
    assert abs(times[-1] + max(steps) - 5 * RATE) <= 2 * 1024


def test_lost_sound_is_filled_with_silence() -> None:
    """What follows is heard at its time."""
    pieces = [sound(at * 0.02, 0.02) for at in range(100) if not 40 <= at < 70]
    frames = frames_of(muxed(Packets([(encoder := opened_audio()).stream], all_encoded(encoder, pieces))), "audio")
    heard = {round(float(time_of(frame)), 3) for frame in frames if loud(frame)}
    assert not {time for time in heard if 0.85 < time < 1.35}
    assert len([time for time in heard if 0.05 < time < 0.75]) >= 30
    assert len([time for time in heard if 1.45 < time < 1.95]) >= 20


def test_sound_that_is_too_much_is_cut() -> None:
    """Sound of a time that was heard already is left out and counted; the rest keeps its time."""
    pieces = [sound(at * 0.02, 0.02) for at in (*range(50), *range(40, 100))]
    packets = all_encoded(encoder := opened_audio(), pieces)
    end = max((packet.pts or 0) + 1024 for packet in packets)
    assert abs(end - 2 * RATE) <= 2 * 1024
    assert encoder.out_of_order == 10


def test_sound_that_is_played_again_comes_again() -> None:
    """All of it: more than 0.2 s behind, it is at another place in time."""
    pieces = [sound(at * 0.02, 0.02) for at in range(20)] * 3
    packets = all_encoded(encoder := opened_audio(), pieces)
    assert len([packet for packet in packets if packet.pts == -1024]) == 3
    assert abs(len(packets) * 1024 - 3 * 20 * 960) <= 3 * 2 * 1024
    assert encoder.out_of_order == 0


def test_the_format_of_sound_may_change() -> None:
    """Its sample rate and channels; the stream stays what it is."""
    pieces = [sound(at * 0.02, 0.02) for at in range(50)]
    pieces += [sound(at * 0.02, 0.02, layout="stereo", rate=44_100) for at in range(50, 100)]
    encoder = opened_audio(layout="stereo")
    frames = frames_of(muxed(Packets([encoder.stream], all_encoded(encoder, pieces))), "audio")
    assert {(frame.sample_rate, frame.layout.name) for frame in frames} == {(RATE, "stereo")}
    assert sum(loud(frame) for frame in frames) >= 90
    assert abs(len(frames) * 1024 - 2 * RATE) <= 4 * 1024


def test_sound_begins_anew_at_any_time() -> None:
    """What was held back comes out first; the stream stays what it is."""
    encoder = opened_audio()
    first = all_encoded(encoder, [sound(7 + at * 0.02, 0.02) for at in range(20)])
    again = all_encoded(encoder, [sound(3 + at * 0.02, 0.02) for at in range(20)])
    assert first[0].pts == 7 * RATE - 1024
    assert again[0].pts == 3 * RATE - 1024
    assert {packet.stream for packet in [*first, *again]} == {encoder.stream}


def test_a_missing_encoder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV can be built without them."""
    monkeypatch.setattr(tricklecast.publisher.media.encode, "VIDEO_ENCODER", "libnothing")
    with pytest.raises(InvalidInput, match="no encoder libnothing"):
        VideoEncoder(SHAPE, CODING)


@pytest.mark.parametrize(
    "settings",
    [{"audio_codec": "mp3"}, {"video_bitrate": 1 << 31}, {"video_bitrate": "2M"}, {"audio_bitrate": 0}, {"gop_s": 0.0}],
)
def test_settings_that_no_encoder_takes_are_refused(settings: dict[str, Any]) -> None:
    """Before anything is encoded."""
    with pytest.raises(InvalidInput):
        Encoding(**settings)
