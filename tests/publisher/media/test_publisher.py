"""Frames and packets of a program become segments that anybody can read."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any, cast

import anyio
import av
import numpy as np
import pytest
from anyio import to_thread
from av.audio.frame import AudioFrame
from av.video.frame import VideoFrame

from tests.publisher.fakes import Trickle, reply
from tests.publisher.media.clips import decode, make_clip
from tests.support.peers import fake_server
from tests.support.server import RunningServer
from tests.support.waiting import WITHIN_S, until
from tricklecast.publisher.media import encode
from tricklecast.publisher.media.encode import Encoding, VideoEncoder, VideoShape
from tricklecast.publisher.media.muxers import ContainerName
from tricklecast.publisher.media.publisher import (
    ITEMS_AHEAD,
    MAX_REFUSED,
    PICTURES_AHEAD,
    FramesDropped,
    MediaEvent,
    MediaPublisher,
    _Item,
    _Pipeline,
)
from tricklecast.publisher.media.segmenter import Segmenter
from tricklecast.publisher.steps import Chunk, Step
from tricklecast.subscriber import Subscriber
from tricklecast.subscriber.media.frames import frames
from tricklecast.trickle.errors import ClosedHere, InvalidInput, LocalProtocolError
from tricklecast.trickle.media.clock import read_prft, read_temi

pytestmark = pytest.mark.anyio
RATE = 48_000
TICK = Fraction(1, 25)


@pytest.fixture
def anyio_backend() -> str:
    """One of the event loops; a test says where it runs on the other one, too."""
    return "asyncio"


def picture(number: int) -> np.ndarray[Any, Any]:
    """A grey one."""
    return np.full((64, 96, 3), 40 + number % 50 * 4, np.uint8)


def sound(number: int) -> AudioFrame:
    """A picture's time of silence."""
    frame = AudioFrame(format="s16", layout="stereo", samples=RATE // 25)
    for plane in frame.planes:
        plane.update(bytes(plane.buffer_size))
    frame.sample_rate, frame.pts, frame.time_base = RATE, number * RATE // 25, Fraction(1, RATE)
    return frame


async def read_all(url: str) -> list[bytes]:
    """The segments of a channel that has ended."""
    return [await segment.read() async for segment in Subscriber(url, start="earliest")]


def urls(server: RunningServer) -> Callable[[str], str]:
    """Channels of a test."""
    return lambda name: f"{server.base}/{name}-{time.monotonic_ns()}"


@pytest.mark.parametrize(("container", "anyio_backend"), [("mpegts", "asyncio"), ("fmp4", "asyncio"), ("fmp4", "trio")])
async def test_arrays_and_sound_become_segments(server: RunningServer, container: ContainerName) -> None:
    """A segment begins with a keyframe each second, says when that was captured, and all frames keep their times."""
    url = urls(server)(container)
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, audio=True, container=container, when_full="wait", fps=25) as publisher:
            for number in range(75):
                await publisher.write(picture(number), pts=50 + number, time_base=TICK, captured_at=1e9 + number / 25)
                await publisher.write(sound(50 + number))
        segments = await read_all(url)
    read = read_temi if container == "mpegts" else read_prft
    assert [read(segment) for segment in segments] == [
        1_000_000_000_000_000 + number * 1_000_000 for number in range(3)
    ]
    decoded = decode(b"".join(segments), "mpegts" if container == "mpegts" else "mp4")
    assert decoded.times["video"] == [(50 + number) * TICK for number in range(75)]
    assert abs(decoded.times["audio"][0] - 2) < Fraction(3, 100)
    assert abs(decoded.times["audio"][-1] - 5) < Fraction(5, 100)
    for segment in segments:
        assert len(decode(segment, "mpegts" if container == "mpegts" else "mp4").times["video"]) == 25
    statistics = publisher.statistics()
    assert (statistics.frames, statistics.frames_dropped, statistics.segments) == (150, 0, 3)
    assert statistics.bytes == sum(map(len, segments))


async def test_a_frame_without_a_time_is_now(server: RunningServer) -> None:
    """The distance of pictures is the time that passed between them."""
    url = urls(server)("now")
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, when_full="wait") as publisher:
            begun = time.monotonic()
            for number in range(3):
                await publisher.write(picture(number))
                await anyio.sleep(0.02)
            took = time.monotonic() - begun
        times = decode(b"".join(await read_all(url)), "mpegts").times["video"]
    assert len(times) == 3
    assert all(there - here >= Fraction(2, 100) - Fraction(1, 1000) for here, there in pairwise(times))
    assert times[-1] - times[0] <= took


async def test_an_encoder_needs_none_of_the_programs_threads(server: RunningServer) -> None:
    """It encodes while all threads of anyio's own limiter are busy."""
    url, done = urls(server)("threads"), Event()
    limiter = to_thread.current_default_thread_limiter()
    limiter.total_tokens, before = 1, limiter.total_tokens
    try:
        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(to_thread.run_sync, done.wait))
                await until(lambda: limiter.available_tokens == 0)
                async with MediaPublisher(url, when_full="wait") as publisher:
                    await publisher.write(picture(0))
                done.set()
    finally:
        done.set()
        limiter.total_tokens = before
    assert publisher.statistics().segments == 1


async def test_frames_of_pyav_keep_their_time_and_are_not_changed(server: RunningServer) -> None:
    """Of any size and pixel format."""
    url = urls(server)("frames")
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, when_full="wait") as publisher:
            kept = []
            for number, (width, format_) in enumerate(((96, "yuv420p"), (96, "gray"), (48, "rgb24"), (97, "yuv444p"))):
                frame = VideoFrame(width, 64, format_)
                frame.pts, frame.time_base = 1000 + 40 * number, Fraction(1, 1000)
                kept.append(frame)
                await publisher.write(frame)
        data = b"".join(await read_all(url))
    assert [frame.time for frame in kept] == [(1000 + 40 * n) / 1000 for n in range(4)]
    assert decode(data, "mpegts").times["video"] == [1 + Fraction(number, 25) for number in range(4)]


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
async def test_pictures_of_another_size_begin_a_new_segment(server: RunningServer, container: ContainerName) -> None:
    """They keep their size; no picture is lost, and sound goes on."""
    url = urls(server)("sizes")
    sizes = [(64, 96)] * 10 + [(96, 64)] * 10 + [(64, 96)] * 10
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, audio=True, container=container, when_full="wait", fps=25) as publisher:
            for number, sides in enumerate(sizes):
                await publisher.write(np.full((*sides, 3), 99, np.uint8), pts=50 + number, time_base=TICK)
                await publisher.write(sound(50 + number))
        found = [frame async for frame in frames(url, start="earliest", format="rgb24")]
        segments = await read_all(url)
    assert [frame.array.shape[:2] for frame in found] == sizes
    assert [frame.pts * frame.time_base for frame in found] == [(50 + number) * TICK for number in range(30)]
    assert [frame.seq for frame in found] == [0] * 10 + [1] * 10 + [2] * 10
    assert all(decode(segment, "mpegts" if container == "mpegts" else "mp4").times["audio"] for segment in segments)


async def test_odd_sizes_are_said_once(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    """H.264 takes even ones: one pixel is left out or doubled, and the log says so."""
    url = urls(server)("odd")
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, when_full="wait") as publisher:
            for number in range(3):
                await publisher.write(np.zeros((65, 97, 3), np.uint8), pts=number, time_base=TICK)
        found = [frame async for frame in frames(url, start="earliest", format="rgb24")]
    assert [frame.array.shape for frame in found] == [(64, 96, 3)] * 3
    messages = [record.getMessage() for record in caplog.records if "97x65" in record.getMessage()]
    assert messages == ["pictures of 97x65 are encoded as 96x64: H.264 has even sides only"]


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
async def test_packets_are_published_as_they_are(
    server: RunningServer, tmp_path: Path, container: ContainerName
) -> None:
    """Their frames decode to the same; the file may be closed before the channel ends."""
    url, clip = urls(server)("packets"), make_clip(tmp_path / "clip.ts")
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, audio=True, container=container, when_full="wait") as publisher:
            with av.open(str(clip)) as file:
                for packet in file.demux():
                    await publisher.write_packet(packet)
        segments = await read_all(url)
    assert len(segments) == 3
    assert decode(b"".join(segments), "mpegts" if container == "mpegts" else "mp4").hashes == decode(clip).hashes


async def test_a_stream_that_was_not_announced_begins_with_the_next_segment(server: RunningServer) -> None:
    """Tables name only streams that are there; nothing is lost of what was there before."""
    url = urls(server)("late")
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, when_full="wait") as publisher:
            for number in range(60):
                await publisher.write(picture(number), pts=number, time_base=TICK)
                if number >= 10:
                    await publisher.write(sound(number))
        segments = await read_all(url)
    kinds = [sorted(decode(segment, "mpegts").times) for segment in segments]
    assert kinds[0] == ["video"]
    assert kinds[-1] == ["audio", "video"]


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
async def test_sound_that_begins_late_costs_no_picture(server: RunningServer, container: ContainerName) -> None:
    """In the middle of a group of pictures: the encoder makes a keyframe there, and all segments begin with one."""
    url, first = urls(server)("late-sound"), 30
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, audio=True, gop_s=2, container=container, when_full="wait", fps=25) as publisher:
            for number in range(100):
                at = 1e9 + number / 25
                await publisher.write(picture(number), pts=50 + number, time_base=TICK, captured_at=at)
                if number >= first:
                    await publisher.write(sound(50 + number), captured_at=at)
        segments = await read_all(url)
    format_ = "mpegts" if container == "mpegts" else "mp4"
    decoded = decode(b"".join(segments[1:]), format_)
    found = decode(segments[0], format_).times["video"] + decoded.times["video"]
    assert found == [(50 + number) * TICK for number in range(100)]
    assert abs(decoded.times["audio"][0] - (50 + first) * TICK) < Fraction(3, 100)
    assert len(decoded.times["audio"]) >= (100 - first) * RATE // 25 // 1024
    assert publisher.statistics().frames_dropped == 0


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
async def test_another_sound_waits_for_a_keyframe_of_encoded_pictures(
    server: RunningServer, tmp_path: Path, container: ContainerName
) -> None:
    """Nothing is lost when its codec changes in the middle of a group of pictures; each segment begins with one."""
    url, clip = urls(server)("other-sound"), make_clip(tmp_path / "clip.ts")
    other_clip = make_clip(tmp_path / "other.ts", audio="mp2")

    def dts(packet: Any) -> Fraction:
        return Fraction(packet.dts * packet.time_base)

    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, audio=True, container=container, when_full="wait") as publisher:
            with av.open(str(clip)) as file, av.open(str(other_clip)) as other:
                packets, others = ([one for one in source.demux() if one.size] for source in (file, other))
                middle = next(at for at, one in enumerate(packets) if at > 100 and one.stream.type == "audio")
                sounds = [one for one in packets[:middle] if one.stream.type == "audio"]
                pictures = [one for one in packets[middle:] if one.stream.type == "video"]
                mp2 = [one for one in others if one.stream.type == "audio" and dts(one) > dts(sounds[-1])]
                rest = sorted(pictures + mp2, key=dts)
                assert not pictures[0].is_keyframe
                for packet in packets[:middle] + rest:
                    await publisher.write_packet(packet)
        segments = await read_all(url)
    format_, whole = "mpegts" if container == "mpegts" else "mp4", decode(clip)
    found = [decode(segment, format_) for segment in segments]
    assert [picture for one in found for picture in one.hashes["video"]] == whole.hashes["video"]
    assert sum(len(one.hashes["audio"]) for one in found) == len(sounds) + len(mp2)
    assert len(segments) == 3
    assert publisher.statistics().frames_dropped == 0


def test_sound_that_is_described_alike_goes_on(tmp_path: Path) -> None:
    """In the segment under way: whoever reads a channel has other objects behind each loss. Pictures begin anew."""
    pipeline = _Pipeline(Segmenter(), {"video", "audio"}, Encoding(preset="ultrafast"), Fraction(25))
    clip, mp2 = make_clip(tmp_path / "clip.ts"), make_clip(tmp_path / "mp2.ts", audio="mp2")
    with av.open(str(clip), "r") as first, av.open(str(clip), "r") as again, av.open(str(mp2), "r") as other:
        sound_, picture_ = (pipeline.kept(stream) for stream in (first.streams.audio[0], first.streams.video[0]))
        assert pipeline.kept(again.streams.audio[0]) is sound_
        assert pipeline.kept(again.streams.video[0]) is not picture_
        assert pipeline.kept(other.streams.audio[0]) is not sound_


def test_another_sound_does_not_wait_for_ever() -> None:
    """Where no keyframe comes, the next segment begins without one, and no picture is lost."""
    pipeline = _Pipeline(Segmenter(), {"video", "audio"}, Encoding(preset="ultrafast"), Fraction(25))
    source = VideoEncoder(VideoShape(64, 64, Fraction(25)), Encoding(preset="ultrafast", gop_s=60))
    steps = list[Step]()
    for number in range(2 * ITEMS_AHEAD):
        frame = VideoFrame(64, 64, "yuv420p")
        frame.pts, frame.time_base = 50 + number, TICK
        for packet in source.encode(frame):
            steps += pipeline.feed(_Item("video", packet, number * 40_000, stream=source.stream))
        if number >= 50:
            steps += pipeline.feed(_Item("audio", sound(50 + number), number * 40_000))
    steps += pipeline.finish()
    source.close()
    data = b"".join(step.data for step in steps if isinstance(step, Chunk))
    with av.open(io.BytesIO(data), "r") as file:
        found = Counter(packet.stream.type for packet in file.demux() if packet.size)
    assert found["video"] == 2 * ITEMS_AHEAD
    assert found["audio"] >= (2 * ITEMS_AHEAD - 50) * RATE // 25 // 1024


async def test_packets_before_the_first_keyframe_are_counted_and_told(
    server: RunningServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can decode them: they are left out, and the event says how many, once."""
    url, clip, events = urls(server)("joined"), make_clip(tmp_path / "clip.ts", audio=None), list[Any]()
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, when_full="wait", on_event=events.append) as publisher:
            with av.open(str(clip)) as file:
                for packet in list(file.demux(video=0))[10:]:
                    await publisher.write_packet(cast(Any, packet))
        segments = await read_all(url)
    assert len(decode(b"".join(segments), "mpegts").times["video"]) == 50
    assert publisher.statistics().frames_dropped == 15
    dropped = [(event.count, event.undecodable) for event in events if isinstance(event, FramesDropped)]
    assert dropped == [(15, 15)]
    assert "a stream did not begin with a keyframe: 15 packets before one left out so far" in caplog.text


async def test_frames_out_of_order_are_counted_and_told(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As events, in the log at the first, and in all, also those of a size before."""
    url, events = urls(server)("back"), list[Any]()
    with anyio.fail_after(WITHIN_S), caplog.at_level("DEBUG", "tricklecast.publisher"):
        async with MediaPublisher(url, audio=True, when_full="wait", on_event=events.append) as publisher:
            for number in (0, 1, 2, 1, 2, 3):
                await publisher.write(picture(number), pts=50 + number, time_base=TICK)
                await publisher.write(sound(50 + number))
            for number in (4, 4, 5):
                await publisher.write(np.zeros((32, 32, 3), np.uint8), pts=50 + number, time_base=TICK)
    assert publisher.statistics().frames_dropped == 5
    dropped = [event for event in events if isinstance(event, FramesDropped)]
    assert [(event.count, event.undecodable, event.out_of_order) for event in dropped] == [
        (number, 0, number) for number in range(1, 6)
    ]
    told = [record.levelname for record in caplog.records if "times go back" in record.message]
    assert told == ["WARNING", *["DEBUG"] * 4]


async def test_a_clip_that_is_played_again_goes_on(server: RunningServer) -> None:
    """Each time behind its end, pictures and sound, however short it is."""
    url = urls(server)("again")
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, audio=True, when_full="wait", fps=25) as publisher:
            for number in range(60):
                await publisher.write(picture(number), pts=number % 20, time_base=TICK)
                await publisher.write(sound(number % 20))
        found = [frame async for frame in frames(url, start="earliest", audio=True)]
    pictures = [frame.time for frame in found if frame.kind == "video"]
    heard_s = sum(cast(AudioFrame, frame.data).samples for frame in found if frame.kind == "audio") / RATE
    assert len(pictures) == 60
    assert all(0.03 < there - here < 0.1 for here, there in pairwise(pictures))
    assert abs(heard_s - 60 / 25) < 0.15
    assert publisher.statistics().frames_dropped == 0


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
@pytest.mark.parametrize(("jump_s", "captured_later_s"), [(0, 5), (5, 0), (5, 5), (20, 20), (-1, 100), (-1, 0.04)])
async def test_times_of_capture_that_jump_begin_a_segment(
    server: RunningServer, container: ContainerName, jump_s: int, captured_later_s: float
) -> None:
    """Every frame has the one that the program gave, on either side of the jump."""
    url, told = urls(server)("jump"), list[float]()
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, container=container, when_full="wait", fps=25) as publisher:
            for number in range(70):
                behind = number >= 40
                told.append(1e9 + number / 25 + behind * captured_later_s)
                at = 50 + number + behind * jump_s * 25
                await publisher.write(picture(number), pts=at, time_base=TICK, captured_at=told[-1])
        found = [frame.captured_at async for frame in frames(url, start="earliest")]
    assert found == pytest.approx(told, rel=0, abs=0.005)


async def test_times_of_capture_of_sound_that_jump_begin_a_segment(server: RunningServer) -> None:
    """Where there are no pictures; to a packet."""
    url = urls(server)("sound-jump")
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, video=False, audio=True, when_full="wait") as publisher:
            for number in range(50):
                captured_at = 1e9 + number / 25 + (number >= 40) * 5
                await publisher.write(sound(number), captured_at=captured_at)
        found = [frame async for frame in frames(url, start="earliest", audio=True)]
    begun = found[0].time
    for frame in found:
        passed_s = frame.time - begun
        captured_at = cast(float, frame.captured_at) - 1e9 - passed_s
        assert min(abs(captured_at), abs(captured_at - 5)) < 0.05
        assert abs(captured_at) < 0.05 or passed_s > 39 / 25
        assert abs(captured_at) > 0.05 or passed_s < 41 / 25


def test_what_was_dropped_for_several_reasons_names_all() -> None:
    """In one line."""
    assert str(FramesDropped(10, 2, 1, 4, "cannot encode this video")) == (
        "the encoder is too slow: 3 pictures dropped so far; "
        "a stream did not begin with a keyframe: 2 packets before one left out so far; "
        "times go back: 1 frame not later than those before left out so far; "
        "cannot encode this video: 4 frames left out so far"
    )


def test_what_waits_for_another_stream_has_a_limit() -> None:
    """Whatever times of capture a program gives: a sound that does not come cannot fill the memory."""
    pipeline = _Pipeline(Segmenter(), {"video", "audio"}, Encoding(preset="ultrafast"), Fraction(25))
    items = (_Item("video", picture(number), 0, number, TICK) for number in range(ITEMS_AHEAD))
    *before, last = [pipeline.feed(item) for item in items]
    assert not any(before)
    assert last


async def test_pictures_are_dropped_where_the_encoder_is_too_slow(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest ones that wait, before they are encoded; they are counted, and told as an event. Sound is kept.

    A callback that fails is logged, and publishing goes on.
    """
    url, events = urls(server)("slow"), list[Any]()

    def on_event(event: MediaEvent) -> None:
        events.append(event)
        raise ZeroDivisionError

    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, audio=True, on_event=on_event) as publisher:
            may_encode = anyio.Event()
            feed = publisher._encode

            async def held(send: Any) -> None:
                await may_encode.wait()
                await feed(send)

            monkeypatch.setattr(publisher, "_encode", held)
            for number in range(10):
                await publisher.write(picture(number), pts=50 + number, time_base=TICK)
                await publisher.write(sound(50 + number))
            may_encode.set()
        data = b"".join(await read_all(url))
    assert publisher.statistics().frames_dropped == 10 - PICTURES_AHEAD
    assert [event.count for event in events if isinstance(event, FramesDropped)] == list(range(1, 11 - PICTURES_AHEAD))
    assert "on_event failed at the encoder is too slow: 6 pictures dropped so far" in caplog.text
    decoded = decode(data, "mpegts")
    assert decoded.times["video"] == [(50 + number) * TICK for number in range(10 - PICTURES_AHEAD, 10)]


async def test_no_picture_is_dropped_before_the_encoder_had_time_for_one(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a program that never waits between its pictures."""
    monkeypatch.setattr("tricklecast.publisher.media.publisher.ROOM_S", WITHIN_S)
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(urls(server)("burst")) as publisher:
            for number in range(50):
                await publisher.write(picture(number))
    assert (publisher.statistics().frames, publisher.statistics().frames_dropped) == (50, 0)


async def test_the_first_dropped_picture_is_a_warning(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The further ones are not: a stream drops many."""
    monkeypatch.setattr("tricklecast.publisher.media.publisher.ROOM_S", 0)
    with anyio.fail_after(WITHIN_S), caplog.at_level("DEBUG", "tricklecast.publisher"):
        async with MediaPublisher(urls(server)("slow-log")) as publisher:
            for number in range(3 * PICTURES_AHEAD):
                await publisher.write(picture(number))
    told = [record.levelname for record in caplog.records if "the encoder is too slow" in record.message]
    assert told == ["WARNING", *["DEBUG"] * (publisher.statistics().frames_dropped - 1)]
    assert "the encoder is too slow: 1 picture dropped so far" in caplog.text


async def test_a_lost_segment_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """By its publisher; the next one is published."""
    trickle = Trickle()
    trickle.instead = {"POST 0": [reply(413, after=1)], "POST 1": [reply(413, after=1)]}
    with anyio.fail_after(WITHIN_S):
        async with (
            fake_server(trickle) as server,
            MediaPublisher(f"{server.base}/c", when_full="wait") as media,
        ):
            for number in range(100):
                await media.write(picture(number), pts=number, time_base=TICK)
    assert media.statistics().segments_lost > 0 < media.statistics().segments
    lost = [message for message in caplog.messages if "is lost" in message]
    assert len(lost) == media.statistics().segments_lost


async def test_an_exception_leaves_the_channel_open(server: RunningServer) -> None:
    """A successor can go on; only a clean end ends it. The segment that was being made is truncated."""
    url = urls(server)("crash")
    with anyio.fail_after(WITHIN_S):
        publisher = MediaPublisher(url)

        async def crash() -> None:
            async with publisher:
                for number in range(10):
                    await publisher.write(picture(number))
                await until(lambda: publisher.statistics().bytes > 0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await crash()
        async with Subscriber(url, start="earliest") as subscriber:
            last = await anext(subscriber)
            async for _ in last:
                pass
        assert last.truncated is not None
        async with MediaPublisher(url, when_full="wait", start="reset") as successor:
            await successor.write(picture(0))
        assert await read_all(url)


async def test_wrong_frames_are_refused(server: RunningServer, tmp_path: Path) -> None:
    """By an error that names the frame; nothing is written after the end."""
    url = urls(server)("wrong")
    async with MediaPublisher(url) as publisher:
        with pytest.raises(InvalidInput, match="not str"):
            await publisher.write("picture")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="not a frame of 0x0"):
            await publisher.write(VideoFrame())
        with pytest.raises(InvalidInput, match="belong together"):
            await publisher.write(picture(0), pts=3)
        with av.open(str(make_clip(tmp_path / "clip.mkv", audio="pcm_s16le"))) as file:
            packet = next(packet for packet in file.demux(audio=0) if packet.size)
            with pytest.raises(InvalidInput, match=r"MPEG-TS cannot carry such a packet \(pcm_s16le\)"):
                await publisher.write_packet(cast(Any, packet))
    with pytest.raises(ClosedHere, match="the media publisher was closed"):
        await publisher.write(picture(0))
    with pytest.raises(LocalProtocolError, match="not open: enter its block"):
        await MediaPublisher(url).write(picture(0))


@pytest.mark.parametrize(("height", "width"), [(20_000, 20_000), (16_400, 17_000), (16_384, 16_384), (2, 70_000)])
async def test_a_picture_that_is_too_large_is_named(server: RunningServer, height: int, width: int) -> None:
    """At once; the next one is published."""
    large = np.broadcast_to(np.uint8(0), (height, width, 3))
    url = urls(server)("large")
    async with MediaPublisher(url) as publisher:
        with pytest.raises(InvalidInput, match=f"a picture of {width}x{height} is too large"):
            await publisher.write(large)
        await publisher.write(picture(0))
    assert len([frame async for frame in frames(url, start="earliest")]) == 1


@pytest.mark.parametrize(
    "times",
    [
        {"pts": 2**62, "time_base": TICK},
        {"pts": 5.5, "time_base": TICK},
        {"pts": 5, "time_base": 0.04},
        {"pts": 5, "time_base": -TICK},
        {"pts": 5, "time_base": Fraction(0)},
        {"pts": 5, "time_base": Fraction(1, 10**12)},
        {"captured_at": float("nan")},
        {"captured_at": 1e30},
        {"captured_at": -1e12},
        {"captured_at": "now"},
    ],
)
async def test_wrong_times_are_refused(server: RunningServer, times: dict[str, Any]) -> None:
    """Those that cannot be counted, or told on the wire; the next picture is published."""
    url = urls(server)("times")
    async with MediaPublisher(url) as publisher:
        with pytest.raises(InvalidInput, match=list(times)[-1] if len(times) == 1 else "pts|time_base"):
            await publisher.write(picture(0), **times)
        await publisher.write(picture(1), pts=np.int64(5), time_base=TICK)  # type: ignore[arg-type]
    assert publisher.statistics().segments == 1


async def test_sound_without_a_rate_is_refused(server: RunningServer) -> None:
    """A frame of PyAV has none, unless the program gives one."""
    async with MediaPublisher(urls(server)("rate"), video=False, audio=True) as publisher:
        with pytest.raises(InvalidInput, match="not a piece of sound: 1920 samples at 0 Hz"):
            await publisher.write(AudioFrame(format="s16", layout="stereo", samples=1920))
        await publisher.write(sound(0))
    assert publisher.statistics().segments == 1


async def test_what_the_encoder_refuses_is_left_out_and_told(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """All else is published, also the end of the segment under way; the first one is a warning."""
    url, events = urls(server)("refused"), list[Any]()
    with anyio.fail_after(WITHIN_S), caplog.at_level("DEBUG", "tricklecast.publisher"):
        async with MediaPublisher(url, when_full="wait", fps=25, on_event=events.append) as publisher:
            for number in range(30):
                await publisher.write(picture(number), pts=50 + number, time_base=TICK)
                if number in (10, 20):
                    for width, later in ((96, 1000), (32, 1)):
                        await publisher.write(VideoFrame(width, 64, "y210be"), pts=50 + number + later, time_base=TICK)
        found = [frame.pts * frame.time_base async for frame in frames(url, start="earliest")]
    assert found == [(50 + number) * TICK for number in range(30)]
    assert publisher.statistics().frames_dropped == 4
    dropped = [event for event in events if isinstance(event, FramesDropped)]
    assert [(event.count, event.refused) for event in dropped] == [(number, number) for number in range(1, 5)]
    told = [record.levelname for record in caplog.records if "cannot encode this video: " in record.message]
    assert told == ["WARNING", *["DEBUG"] * 3]


async def test_a_packet_that_does_not_fit_costs_no_other(server: RunningServer, tmp_path: Path) -> None:
    """Of those that wait with it for the start, too."""
    pipeline = _Pipeline(Segmenter(), {"video", "audio"}, Encoding(preset="ultrafast"), Fraction(25))
    add, data = pipeline.segmenter.add, b""

    def refusing(track: int, packet: Any) -> Any:
        if packet.pts == 52 * 3600:
            raise ValueError("broken")
        return add(track, packet)

    pipeline.segmenter.add = refusing  # type: ignore[method-assign]
    items = [_Item("video", picture(number), number, 50 + number, TICK) for number in range(5)]
    items += [_Item("audio", sound(50 + number), number) for number in range(5)]
    for item in items:
        data += b"".join(step.data for step in pipeline.feed(item) if isinstance(step, Chunk))
    data += b"".join(step.data for step in pipeline.finish() if isinstance(step, Chunk))
    assert len(decode(data, "mpegts").times["video"]) == 4
    assert (pipeline.refused, str(pipeline.refusal)) == (1, "cannot encode this audio: broken")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((48, 64), "uint8"),
        ((48, 64, 4), "uint8"),
        ((3, 48, 64), "uint8"),
        ((48, 64, 3), "float32"),
        ((0, 0, 3), "uint8"),
    ],
)
async def test_the_error_of_a_wrong_array_names_its_shape(
    server: RunningServer, shape: tuple[int, ...], dtype: str
) -> None:
    """Grey, with alpha, channels first, floating point, empty: :meth:`write` raises at once, and can go on."""
    sides = "x".join(map(str, shape))
    async with MediaPublisher(urls(server)("shapes")) as publisher:
        with pytest.raises(InvalidInput, match=rf"HxWx3 in uint8 .*, not {sides} {dtype}$"):
            await publisher.write(np.zeros(shape, dtype))
        await publisher.write(picture(0))


@pytest.mark.parametrize("pictures", [1, 4 * MAX_REFUSED])
async def test_an_encoder_that_takes_nothing_is_an_error(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, pictures: int
) -> None:
    """Of a write behind several, or of the block, if nothing is written any more."""
    monkeypatch.setattr(encode, "VIDEO_ENCODER", "libnothing")
    written = list[int]()

    async def write() -> None:
        async with MediaPublisher(urls(server)("fails"), when_full="wait") as publisher:
            for number in range(pictures):
                await publisher.write(picture(number))
                written.append(number)

    with anyio.fail_after(WITHIN_S), pytest.raises(InvalidInput, match="no encoder libnothing"):
        await write()
    assert len(written) == pictures if pictures == 1 else len(written) < pictures


@pytest.mark.parametrize(
    "options", [{"fps": 0}, {"gop_s": -1.0}, {"container": "avi"}, {"audio_codec": "mp3"}, {"bitrate": 0}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """Before anything is published."""
    with pytest.raises(InvalidInput):
        MediaPublisher("http://127.0.0.1:1/trickle/x", **options)


def test_the_error_of_a_wrong_preset_names_all_presets() -> None:
    """It does not blame the size of the pictures."""
    with pytest.raises(InvalidInput, match=r"not a preset of x264: 'quick' \(ultrafast, superfast, .* veryslow\)"):
        MediaPublisher("http://127.0.0.1:1/trickle/x", preset="quick")  # type: ignore[arg-type]
