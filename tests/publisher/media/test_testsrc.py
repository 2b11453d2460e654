"""The generated picture and tone."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import pytest
from av.video.reformatter import VideoReformatter

from tests.publisher.media.generated import FakeClock, beeps, clock_of, flashes, frames_of, muxed, time_of
from tricklecast.publisher.media.testsrc import TestOptions, TestSource
from tricklecast.trickle.errors import InvalidInput


def source(options: str = "", clock: FakeClock | None = None) -> TestSource:
    """A small one that takes no time."""
    text = f"testsrc:size=160x90,duration=2,speed=max,{options}"
    return TestSource(TestOptions.parse(text), clock=clock or FakeClock())


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("testsrc", TestOptions()),
        ("testsrc:", TestOptions()),
        ("testsrc:size=320x180", TestOptions(size=(320, 180))),
        ("testsrc:rate=50,duration=10", TestOptions(rate=Fraction(50), duration=10.0)),
        ("testsrc:rate=29.97", TestOptions(rate=Fraction(30000, 1001))),
        ("testsrc:rate=30000/1001", TestOptions(rate=Fraction(30000, 1001))),
        ("testsrc:rate=12.5", TestOptions(rate=Fraction(25, 2))),
        ("testsrc:speed=8,gop=500ms,duration=2min", TestOptions(speed=8.0, gop=0.5, duration=120.0)),
        ("testsrc:speed=max,bitrate=1.5M", TestOptions(speed=None, bitrate=1_500_000)),
        ("testsrc:audio=opus", TestOptions(audio="opus")),
        ("testsrc:audio=none", TestOptions(audio=None)),
    ],
)
def test_options_are_read(text: str, options: TestOptions) -> None:
    """Those that are not given keep their defaults."""
    assert TestOptions.parse(text) == options


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("testsrc:colour=red", "no option 'colour'; it has size, rate, duration"),
        ("testsrc:size", "size needs one value, as in size=640x360"),
        ("testsrc:rate=25,rate=30", "rate needs one value"),
        ("testsrc:size=640", "size=640 cannot be read; write it as in size=640x360"),
        ("testsrc:size=axb", "cannot be read"),
        ("testsrc:size=641x360", "both sides must be even"),
        ("testsrc:size=158x90", "between 160x90 and 3840x2160"),
        ("testsrc:size=3842x2160", "between 160x90 and 3840x2160"),
        ("testsrc:rate=0", "between 1 and 240"),
        ("testsrc:rate=1/0", "between 1 and 240"),
        ("testsrc:rate=nan", "cannot be read"),
        ("testsrc:duration=0", "not a duration"),
        ("testsrc:speed=0", "between 0.01 and 1000, or be max"),
        ("testsrc:speed=nan", "between 0.01 and 1000"),
        ("testsrc:bitrate=fast", "not a bit rate"),
        ("testsrc:audio=mp3", "audio=mp3: it must be aac, opus or none"),
        ("film.mp4", "not a test source"),
    ],
)
def test_wrong_options_are_named(text: str, why: str) -> None:
    """With what is wrong, and how it is written."""
    with pytest.raises(InvalidInput, match=why):
        TestOptions.parse(text)


@pytest.mark.parametrize(("format_", "rate"), [("mpegts", "25"), ("mp4", "29.97")])
def test_every_picture_shows_when_it_was_captured(format_: str, rate: str) -> None:
    """Readable after coding, and the time that its packet gives; in both containers, and with any frame rate."""
    clock = FakeClock()
    frames = frames_of(muxed(source(f"rate={rate}", clock), format_), "video", format_)
    begun = time_of(frames[0])
    shown = [clock_of(frame) for frame in frames]
    assert len(frames) == {"25": 50, "29.97": 60}[rate]
    assert shown == [(clock.unix_us() + round((time_of(frame) - begun) * 1_000_000)) // 1000 for frame in frames]
    packets = [packet for track, packet in source(f"rate={rate}", clock).packets() if track == 0]
    assert [packet.opaque // 1000 for packet in packets if isinstance(packet.opaque, int)] == shown


def test_the_clock_survives_little_bitrate_and_a_quarter_of_the_size() -> None:
    """100 kbit/s for 320 by 180, then 80 by 45."""
    text = "testsrc:size=320x180,duration=2,speed=max,bitrate=100k,audio=none"
    frames = frames_of(muxed(TestSource(TestOptions.parse(text))), "video")
    scaler = VideoReformatter()
    assert None not in [clock_of(scaler.reformat(frame, 80, 45)) for frame in frames]


@pytest.mark.parametrize("audio", ["aac", "opus"])
def test_the_tone_beeps_when_the_picture_flashes(audio: str) -> None:
    """As each second begins, together within a millisecond, whatever encoders hold back."""
    data = muxed(source(f"audio={audio}"))
    seen, heard = flashes(frames_of(data, "video")), beeps(frames_of(data, "audio"))
    assert seen == [0, 1]
    assert [abs(flash - beep) < Fraction(1, 1000) for flash, beep in zip(seen, heard, strict=True)] == [True, True]


@pytest.mark.parametrize(("rate", "keyframes"), [("25", [0, 25, 50, 75]), ("29.97", [0, 30, 60, 90])])
def test_keyframes_stand_at_fixed_times(rate: str, keyframes: list[int]) -> None:
    """The first picture of each second."""
    options = TestOptions.parse(f"testsrc:size=160x90,rate={rate},duration=4,speed=max,audio=none")
    packets = [packet for _, packet in TestSource(options).packets()]
    assert [
        time_of(packet) * Fraction(rate if rate == "25" else "30000/1001") for packet in packets if packet.is_keyframe
    ] == keyframes
    assert [packet.dts for packet in packets] == [packet.pts for packet in packets]
    assert {packet.duration for packet in packets} == {3600 if rate == "25" else 3003}


def test_streams_without_a_tone() -> None:
    """Only the picture."""
    assert [stream.type for stream in source("audio=none").streams.values()] == ["video"]
    assert [stream.type for stream in source().streams.values()] == ["video", "audio"]


def test_packets_come_when_their_time_has_come() -> None:
    """A picture when it begins, a piece of sound when it has ended; at the speed that is wanted."""
    clock = FakeClock()
    generated = TestSource(TestOptions.parse("testsrc:size=160x90,duration=2,speed=4"), clock=clock)
    begun = clock.now
    for track, packet in generated.packets():
        captured_s = (time_of(packet)) / 4
        late_s = clock.now - begun - captured_s
        assert isinstance(packet.opaque, int)
        assert packet.opaque == pytest.approx(clock.unix_us() - late_s * 1e6, abs=2)
        if track == 0:
            assert late_s == pytest.approx(0, abs=1e-6)
        else:
            assert 0 < late_s < 0.1 / 4  # three frames of 21 ms, which the encoder holds, and a step of 20 ms
    assert clock.now - begun == pytest.approx(0.5, abs=0.01)


def test_a_stopped_source_ends() -> None:
    """Soon, and as one that has ended."""
    clock = FakeClock()
    options = TestOptions.parse("testsrc:size=160x90,rate=1")
    generated = TestSource(options, is_stopped=lambda: clock.now > 102.5, clock=clock)
    assert len([packet for track, packet in generated.packets() if track == 0]) == 3
    assert clock.now < 103
    generated.close()


def test_packets_are_those_of_a_live_encoder() -> None:
    """Nothing is held back, nothing reordered; the parameters are in the stream's header, as MP4 needs them."""
    generated = source()
    context = generated.streams[0].codec_context
    assert context.extradata is not None
    assert context.codec.canonical_name == "h264"
    data = muxed(generated, "mp4")
    with av.open(io.BytesIO(data), "r") as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert (video.width, video.height) == (160, 90)
        assert video.average_rate == 25
        assert not video.codec_context.has_b_frames
        assert (audio.sample_rate, audio.channels) == (48_000, 1)
