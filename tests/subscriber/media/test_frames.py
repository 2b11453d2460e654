"""Decoded frames of a channel, while its segments are still being written."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import av
import httpx
import numpy as np
import pytest
from anyio import to_thread

from tests.publisher.media.clips import decode, frame_hash, make_clip
from tests.support.fixtures import servers_are_forks
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, until
from tricklecast.publisher import Publisher
from tricklecast.publisher.media.inputs import open_media
from tricklecast.publisher.media.muxers import ContainerName
from tricklecast.publisher.media.publisher import MediaPublisher
from tricklecast.publisher.media.reader import Remuxer
from tricklecast.publisher.media.segmenter import Segmenter
from tricklecast.publisher.steps import SegmentEnd
from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.media.decoding import HELD, Decoding, PicturesDropped, SoftwareDecoding
from tricklecast.subscriber.media.frame import Arrays, Frame
from tricklecast.subscriber.media.frames import (
    FRAMES_AHEAD,
    PICTURES_AHEAD,
    FrameEvent,
    FrameReader,
    frames,
)
from tricklecast.subscriber.media.opening import NotMedia, is_key_picture
from tricklecast.testing import server
from tricklecast.trickle import pyav
from tricklecast.trickle.client.tasks import HomeLoop
from tricklecast.trickle.errors import (
    ChannelNotFound,
    ClosedHere,
    InvalidInput,
    LocalProtocolError,
    NoHardware,
    Position,
    Refused,
)
from tricklecast.trickle.media import demux
from tricklecast.trickle.media.clock import read_time, temi_packet
from tricklecast.trickle.media.containers import PACKET_BYTES
from tricklecast.trickle.media.demux import SampleGuard

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One of the event loops; a test says where it runs on the other one, too."""
    return "asyncio"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """A server, whose ended channels can be read for long."""
    with local_server(channel_drain_s=300) as server:
        yield f"http://127.0.0.1:{server.port}/trickle"


@pytest.fixture
def url(base: str) -> str:
    """A channel."""
    return f"{base}/frames-{time.monotonic_ns()}"


def segments_of(path: Path, container: ContainerName = "mpegts") -> list[bytes]:
    """The segments that a clip becomes."""
    segments = [b""]
    for step in Remuxer(Segmenter(container), warn=print).steps(open_media(str(path), path.name), path.name):
        if isinstance(step, SegmentEnd):
            segments.append(b"")
        else:
            segments[-1] += step.data
    return segments


async def publish(url: str, segments: list[bytes]) -> None:
    """Publish whole segments, and end the channel."""
    async with Publisher(url) as publisher:
        for segment in segments:
            await publisher.publish(segment)


async def read(url: str, **options: Any) -> list[Frame]:
    """All frames of a channel that has ended."""
    with anyio.fail_after(WITHIN_S):
        return [frame async for frame in frames(url, start="earliest", **options)]


@pytest.mark.parametrize(
    ("container", "options"),
    [
        ("mpegts", {}),
        ("mpegts", {"audio": "libopus", "open_gop": True}),
        ("fmp4", {"open_gop": True}),
        ("fmp4", {"video": "libx265", "audio": "libopus"}),
    ],
)
async def test_all_frames_come_with_their_times(
    url: str, tmp_path: Path, container: ContainerName, options: dict[str, Any]
) -> None:
    """Those that a decoder makes of the joined segments, in order; also with B-frames that cross segments."""
    segments = segments_of(make_clip(tmp_path / "clip.mkv", **options), container)
    await publish(url, segments)
    expected = decode(b"".join(segments), "mpegts" if container == "mpegts" else "mp4")
    found = await read(url, audio=True)
    for kind in ("video", "audio"):
        own = [frame for frame in found if frame.kind == kind]
        # A decoder of Opus leaves out what the encoder put in front.
        first = int(kind == "audio")
        assert [frame_hash(frame.data) for frame in own][first:] == expected.hashes[kind][first:]  # type: ignore[arg-type]
        times = [frame.pts * frame.time_base for frame in own]
        assert max(abs(here - there) for here, there in zip(times, expected.times[kind], strict=True)) < Fraction(
            1, 999
        )
    assert [frame.gap for frame in found] == [0] * len(found)


async def test_a_reader_is_used_once(url: str, tmp_path: Path) -> None:
    """Afterwards it raises: an end without a word would look like the channel's, although frames were left."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None)))
    for leave_by_block in (True, False):
        reader = frames(url, start="earliest")
        with anyio.fail_after(WITHIN_S):
            if leave_by_block:
                async with reader:
                    async for _ in reader:
                        break
                    assert [frame.seq async for frame in reader]  # inside the block a loop can be taken up again
            else:
                assert [frame.seq async for frame in reader]
        with pytest.raises(ClosedHere, match="the reader of frames was closed"):
            await reader.next()
        with pytest.raises(LocalProtocolError, match="used once: make another one"):
            await reader.__aenter__()
        with pytest.raises(LocalProtocolError, match="used once: make another one"):
            await anext(aiter(reader))


@pytest.mark.parametrize("options", [{}, {"video": "packets"}, {"batch": 2}, {"reconnect": True}])
async def test_a_reader_outside_its_block_says_so(options: dict[str, Any]) -> None:
    """Nothing is read there, so that a wait would never end."""
    reader = frames("http://127.0.0.1:1/trickle/c", **options)
    with anyio.fail_after(WITHIN_S):
        with pytest.raises(LocalProtocolError, match="is not open: enter its block") as caught:
            await reader.next()
        assert not isinstance(caught.value, ClosedHere)  # nobody has closed it


def test_a_reader_in_another_event_loop_says_so() -> None:
    """The task that reads belongs to the loop in which the block was entered."""
    reader: FrameReader[Frame] = frames("http://127.0.0.1:1/trickle/c")

    async def enter() -> None:
        await reader.__aenter__()

    async def wait() -> None:
        with pytest.raises(LocalProtocolError, match="this reader of frames was opened in another event loop"):
            await reader.next()

    anyio.run(enter)
    anyio.run(wait)


async def test_closing_a_reader_ends_the_wait_of_another_task(url: str) -> None:
    """It is told apart from the end of the channel."""
    ends: list[Exception] = []

    async def wait(reader: FrameReader) -> None:
        try:
            await reader.next()
        except ClosedHere as error:
            ends.append(error)

    with anyio.fail_after(WITHIN_S):
        async with Publisher(url) as publisher, anyio.create_task_group() as tasks:
            await publisher.publish(b"")
            reader = await frames(url).__aenter__()
            tasks.start_soon(wait, reader)
            await anyio.wait_all_tasks_blocked()
            await reader.aclose()
    assert len(ends) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
async def test_a_frame_comes_when_its_last_byte_is_there(url: str, container: ContainerName) -> None:
    """The next frame need not have begun, nor its segment have ended."""
    with anyio.fail_after(WITHIN_S):
        async with (
            MediaPublisher(url, container=container, when_full="wait") as publisher,
            frames(url, start="earliest", wait_for_channel_s=WITHIN_S) as reader,
        ):
            for number in range(40):
                picture = np.full((64, 96, 3), number * 6, np.uint8)
                await publisher.write(picture, pts=90_000 + 3000 * number, time_base=Fraction(1, 90_000))
                frame = await reader.next()
                assert frame is not None
                assert frame.pts == 90_000 + 3000 * number


async def test_frames_carry_the_producers_time_and_arrays(url: str, tmp_path: Path) -> None:
    """The time in front of the segment, plus the frame's distance from its first one."""
    begun = time.time()
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4")))
    found = await read(url, format="rgb24")
    for frame in found:
        assert frame.array.shape == (64, 64, 3)
        assert frame.captured_at is not None
        assert begun - 1 < frame.captured_at < time.time() + 2
    assert [frame.seq for frame in found if frame.kind == "video"].count(1) == 25


class Whole:
    """A segment whose bytes are all here, as what the decoding reads."""

    def __init__(self, data: bytes) -> None:
        self.head, self._data = data, io.BytesIO(data)
        self.failure: Exception | None = None

    def prepend(self, data: bytes) -> None:
        self._data = io.BytesIO(data + self.head)

    def guard(self, guard: SampleGuard) -> None:
        try:
            self._data = io.BytesIO(guard.feed(self.head))
        except demux.UnsafeMedia as error:
            self.failure, self._data = error, io.BytesIO()

    def read(self, size: int) -> bytes:
        return self._data.read(size)


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
async def test_the_producers_time_is_that_of_its_frame_whichever_kinds_are_read(
    tmp_path: Path, container: ContainerName
) -> None:
    """Sound alone has the times that it has beside pictures, though the time in front of a segment is a picture's."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4"), container)

    def sound(kinds: set[str]) -> list[tuple[float, float | None]]:
        decoding, found = Decoding(kinds, set()), list[Frame]()
        for seq, data in enumerate(segments):
            segment = SimpleNamespace(seq=seq, gap=0, restarted=False)
            found += decoding.frames(cast(Any, segment), cast(Any, Whole(data)))
        return [(frame.time, frame.captured_at) for frame in found if frame.kind == "audio"]

    alone, beside = sound({"audio"}), sound({"audio", "video"})
    assert [captured_at for _, captured_at in alone] == pytest.approx([captured_at for _, captured_at in beside])
    first = decode(segments[0])
    told = read_time(segments[0])
    assert told is not None
    assert alone[0][1] == pytest.approx(
        told.unix_us / 1e6 + float(first.times["audio"][0] - first.times["video"][0]), abs=1e-4
    )


async def test_sound_alone_has_the_producers_time_where_timestamps_wrap(tmp_path: Path) -> None:
    """The timestamps of a segment may begin anew behind its first picture."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=1.0)
    ts = tmp_path / "wraps.ts"
    with av.open(str(clip)) as source, av.open(str(ts), "w", options={"avoid_negative_ts": "0"}) as target:
        copies = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.dts is not None and packet.pts is not None:
                late = round(((1 << 33) - 9000) / 90_000 / packet.time_base)
                packet.pts, packet.dts = packet.pts + late, packet.dts + late
                packet.stream = copies[packet.stream_index]
                target.mux(packet)
    data = ts.read_bytes()
    tables = data[: 3 * PACKET_BYTES]
    segment = SimpleNamespace(seq=0, gap=0, restarted=False)
    found = list(
        Decoding({"audio"}, set()).frames(
            cast(Any, segment), cast(Any, Whole(tables + temi_packet(0x100, 10**15) + data[3 * PACKET_BYTES :]))
        )
    )
    assert found[0].captured_at == pytest.approx(1e9, abs=0.2)
    assert found[-1].captured_at == pytest.approx(1e9 + 1, abs=0.2)


@pytest.mark.parametrize(("container", "seconds"), [("mpegts", 1.0), ("mpegts", 0.2), ("fmp4", 1.0)])
@pytest.mark.parametrize("threads", [None, 2])
def test_held_pictures_belong_to_the_segment_of_their_packets(
    tmp_path: Path, container: ContainerName, seconds: float, threads: int | None
) -> None:
    """Also where another encoder's segment follows, with another clock and the same timestamps."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=seconds, audio=None)
    decoding, found, told = Decoding({"video"}, set(), threads=threads), list[Frame](), list[float]()
    for seq in range(2):
        (data,) = segments_of(clip, container)[:1]
        was = read_time(data)
        assert was is not None
        told.append(was.unix_us / 1e6)
        segment = SimpleNamespace(seq=seq, gap=0, restarted=False)
        found += decoding.frames(cast(Any, segment), cast(Any, Whole(data)))
    found += decoding.flush()
    pictures = round(seconds * 25)
    assert [frame.seq for frame in found] == [0] * pictures + [1] * pictures
    assert [frame.captured_at for frame in found] == pytest.approx(
        [at + number / 25 for at in told for number in range(pictures)], abs=1e-3
    )


def test_packets_that_give_no_picture_are_forgotten() -> None:
    """A decoder that swallows all of them makes the reader keep no more than a decoder can hold."""
    decoding, swallows = Decoding({"video"}, set()), SimpleNamespace(decode=lambda _: [])
    for pts in range(2 * HELD):
        packet = SimpleNamespace(pts=pts, time_base=Fraction(1, 90_000))
        assert not list(decoding._decoded("video", cast(Any, swallows), cast(Any, packet)))
    assert [pts for pts, _ in decoding._held["video"]] == [*range(HELD, 2 * HELD)]


async def test_a_gap_is_visible_and_decoders_begin_anew(tmp_path: Path) -> None:
    """The first frame behind it says how many segments are missing; no frame is broken."""
    decoding = Decoding({"video"}, set())
    found: list[Frame] = []
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    for seq, gap, restarted in ((0, 0, False), (3, 2, False), (0, 0, True)):
        segment = SimpleNamespace(seq=seq, gap=gap, restarted=restarted)
        found += decoding.frames(cast(Any, segment), cast(Any, Whole(segments[min(seq, 2)])))
    found += decoding.flush()
    assert len(found) == 75
    assert [(frame.seq, frame.gap) for frame in found if frame.gap] == [(3, 2)]
    assert [frame.restarted for frame in found].count(True) == 1
    assert (decoding.counts.resets, decoding.counts.damaged) == (2, 0)


async def test_a_truncated_segment_gives_the_frames_that_came(url: str, tmp_path: Path) -> None:
    """The next segment is decoded as if nothing was before it; the reset is counted."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    async with Publisher(url) as publisher:
        segment = publisher.segment()

        async def cut() -> None:
            async with segment:
                await segment.write(segments[0][: 20 * PACKET_BYTES])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await cut()
        await publisher.publish(segments[1])
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader:
            found = [frame async for frame in reader]
            assert reader.statistics().resets == 1
    own = [frame for frame in found if frame.seq == 1]
    assert len(own) >= 24


async def test_a_segment_that_is_no_media_is_left_out(url: str, tmp_path: Path) -> None:
    """It is counted; only if the channel begins with one, it is an error."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    await publish(url, [segments[0], b"no media" * 100, segments[1]])
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader:
            found = [frame async for frame in reader]
    assert {frame.seq for frame in found} == {0, 2}
    assert reader.statistics().unreadable == 1
    await publish(f"{url}-text", [b"no media" * 100])
    with pytest.raises(NotMedia, match="segment 0 cannot be read: it is neither MPEG-TS nor MP4"):
        await read(f"{url}-text")


@pytest.mark.parametrize(("number", "words"), [(1, "1 packet"), (2, "2 packets")])
async def test_packets_that_cannot_be_decoded_are_told(
    url: str, number: int, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each segment."""

    def damaged(decoding: Decoding, *_: object) -> Iterator[Frame]:
        decoding.counts.damaged += number
        return iter(())

    monkeypatch.setattr(Decoding, "frames", damaged)
    await publish(url, [b"damaged"])
    with anyio.fail_after(WITHIN_S):
        await read(url)
    assert f"segment 0: {words} could not be decoded" in caplog.text


async def test_an_init_segment_is_needed_once(url: str, tmp_path: Path) -> None:
    """Some publishers of fragmented MP4 send it with the first segment only."""
    first, *others = segments_of(make_clip(tmp_path / "clip.mp4", audio=None), "fmp4")
    await publish(url, [first, *(data[data.index(b"moof") - 4 :] for data in others)])
    assert [frame.seq for frame in await read(url)].count(1) == 25


async def test_mp4_that_announces_too_many_samples_is_left_out(url: str, tmp_path: Path) -> None:
    """A decoder would allocate gigabytes for them; it is counted."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None), "fmp4")
    at = segments[1].index(b"trun") + 8
    segments[1] = segments[1][:at] + (1 << 27).to_bytes(4) + segments[1][at + 4 :]
    await publish(url, segments)
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader:
            found = [frame async for frame in reader]
    assert {frame.seq for frame in found} == {0, 2}
    assert reader.statistics().unreadable == 1


async def test_a_stream_of_an_unknown_codec_is_left_out(url: str, tmp_path: Path) -> None:
    """The other one is decoded."""
    (segment, *_) = segments_of(make_clip(tmp_path / "clip.mp4"), "fmp4")
    await publish(url, [segment.replace(b"avc1", b"none")])
    assert {frame.kind for frame in await read(url, audio=True)} == {"audio"}
    with pytest.raises(NotMedia, match="segment 0 cannot be decoded: it has no video of a known codec"):
        await read(url)


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
@pytest.mark.parametrize(
    ("other", "options"),
    [
        ({"video": None}, {}),
        ({"video": None}, {"batch": 4}),
        ({"video": None}, {"video": "packets"}),
        ({"audio": None}, {"video": False, "audio": True}),
        ({"audio": None}, {"video": False, "audio": "packets"}),
    ],
)
async def test_a_kind_that_was_not_asked_for_never_comes(
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    container: ContainerName,
    other: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Also where a segment has nothing else: it gives no frame, and the log says so once. The others are whole."""
    wanted = "video" if options.get("video", True) else "audio"
    both = segments_of(make_clip(tmp_path / "clip.mp4"), container)
    (alone, *_) = segments_of(make_clip(tmp_path / "alone.mp4", **other), container)
    await publish(url, [alone, both[0], alone, *both[1:], alone])
    await publish(f"{url}-both", both)

    async def seen(url: str) -> tuple[list[tuple[str, int]], frozenset[str]]:
        found: list[Frame] = []
        with anyio.fail_after(WITHIN_S):
            async with frames(url, start="earliest", **options) as reader:
                async for item in reader:
                    found += cast(Any, item).frames if "batch" in options else [item]
        assert reader.statistics().unreadable == reader.statistics().resets == 0
        return [(frame.kind, frame.pts) for frame in found], reader.kinds

    assert await seen(url) == await seen(f"{url}-both")
    assert (await seen(url))[1] == {wanted}
    assert caplog.text.count(f"segment 0 has no {wanted}: no frame comes of it") == 2
    assert caplog.text.count(f"has no {wanted}") == 2


async def test_a_cancelled_wait_loses_no_frame(url: str, tmp_path: Path) -> None:
    """The next call goes on."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None)))
    found = []
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader:
            while True:
                with anyio.move_on_after(0.001):
                    if (frame := await reader.next()) is None:
                        break
                    found.append(frame.pts)
    assert len(found) == len(set(found)) == 75


async def test_only_a_few_frames_wait(url: str, tmp_path: Path) -> None:
    """A slow program holds up the reader, not the memory; a loop that is left early stops it."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None)))
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader, aclosing(aiter(reader)) as loop:  # type: ignore[type-var]
            await anext(loop)
            while len(reader._ready) < FRAMES_AHEAD:
                await reader._changed.wait()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert len(reader._ready) == FRAMES_AHEAD


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_program_that_keeps_the_event_loop_is_warned_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, anyio_backend: str
) -> None:
    """Only if the loop had no turn between two frames: a program that waits meanwhile may take its time."""
    now = [100.0]
    monkeypatch.setattr("tricklecast.subscriber.media.frames.perf_counter", lambda: now[0])
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None)))

    async def read_on(reader: FrameReader) -> None:
        for _ in range(3):
            assert await reader.next() is not None
            now[0] += 0.11

    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader:
            for _ in range(3):
                assert await reader.next() is not None
                await anyio.wait_all_tasks_blocked()
                now[0] += 0.11
            assert "kept the event loop" not in caplog.text
            await read_on(reader)
            await read_on(reader)
    assert caplog.text.count("kept the event loop for 0.11 s") == 1
    assert "to_thread.run_sync(model, frame.array)" in caplog.text


async def test_the_oldest_pictures_are_dropped(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With ``when_full="drop"``: the program gets the newest, and all of the sound. It is told."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4"))
    await publish(url, [*segments, b""])
    told: list[object] = []
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest", audio="packets", when_full="drop", on_event=told.append) as reader:
            first = await reader.next()
            assert first is not None
            assert reader.kinds == {"video", "audio"}
            while not reader._over:
                await reader._changed.wait()
            found = [first, *[frame async for frame in reader]]
    pictures = [frame.pts for frame in found if frame.kind == "video"]
    newest = decode(b"".join(segments), "mpegts").times["video"][-PICTURES_AHEAD:]
    assert [pts * first.time_base for pts in pictures][-PICTURES_AHEAD:] == newest
    assert len(pictures) + reader.statistics().dropped == 75
    counts = [event.count for event in told if isinstance(event, PicturesDropped)]
    assert counts == [*range(1, reader.statistics().dropped + 1)]
    assert caplog.text.count("the program is too slow: 1 picture dropped so far") == 1
    assert PICTURES_AHEAD <= len(pictures) <= PICTURES_AHEAD + 1
    assert len(found) - len(pictures) == len(decode(b"".join(segments), "mpegts").times["audio"])


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
async def test_pictures_come_as_packets(url: str, tmp_path: Path, container: ContainerName) -> None:
    """Without decoding, in the order of decoding; each is at the time at which it is shown."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4"), container)
    await publish(url, [*segments, b""])
    decoded = [frame async for frame in frames(url, start="earliest")]
    packets = [frame async for frame in frames(url, start="earliest", video="packets", audio="packets")]
    pictures = [frame for frame in packets if frame.kind == "video"]
    assert {type(frame.data) for frame in packets} == {av.Packet}
    assert sorted(frame.time for frame in pictures) == pytest.approx([frame.time for frame in decoded])
    assert [frame.pts for frame in pictures] != sorted(frame.pts for frame in pictures)
    assert {pyav.codec_name(cast(Any, frame.data).stream) for frame in packets} == {"h264", "aac"}


@pytest.mark.parametrize(
    ("video", "open_gop"),
    [
        *((video, open_gop) for video in ("libx264", "libx265") for open_gop in (False, True)),
        *((video, False) for video in ("mpeg2video", "mpeg4", None)),
    ],
)
async def test_packets_of_mpegts_tell_where_decoding_can_begin(
    url: str, tmp_path: Path, video: str | None, open_gop: bool
) -> None:
    """As libavformat's parsers do, so that what is published again has the same segments. All of the sound tells it."""
    segments = segments_of(make_clip(tmp_path / "clip.mkv", video=video, open_gop=open_gop))
    await publish(url, segments)
    packets = await read(url, video="packets", audio="packets")
    pictures = [cast(Any, frame.data).is_keyframe for frame in packets if frame.kind == "video"]
    with av.open(io.BytesIO(b"".join(segments)), "r") as container:
        expected = [packet for packet in pyav.demuxed(container, container.streams.video) if packet.size]
    assert pictures == [packet.is_keyframe for packet in expected]
    assert all(cast(Any, frame.data).is_keyframe for frame in packets if frame.kind == "audio")
    async with MediaPublisher(f"{url}-again", video=video is not None, audio=True, when_full="wait") as publisher:
        for frame in packets:
            await publisher.write_packet(cast(Any, frame.data), captured_at=frame.captured_at)
    again = [
        frame.seq for frame in await read(f"{url}-again", video="packets", audio="packets") if frame.kind == "video"
    ]
    assert publisher.statistics().frames_dropped == 0
    assert publisher.statistics().segments >= 3
    assert again == [frame.seq for frame in packets if frame.kind == "video"]


@pytest.mark.parametrize(("unit", "is_key"), [(0, False), (7, True), (9, True), (11, False)])
def test_a_picture_of_vvc_tells_where_decoding_can_begin(unit: int, is_key: bool) -> None:
    """By the type of its first unit, behind those of parameters; no encoder of it is here."""
    parameters = bytes([0, 0, 1, 0, 15 << 3 | 1, 7 << 3])
    assert is_key_picture("vvc", parameters + bytes([0, 0, 1, 0, unit << 3 | 1, 0])) is is_key


@pytest.mark.parametrize("wrong", [{"format": "gray"}, {"size": (8, 8)}, {"batch": 2}, {"when_full": "drop"}])
async def test_packets_of_pictures_are_neither_arrays_nor_dropped(wrong: dict[str, Any]) -> None:
    """Others refer to each of them."""
    with pytest.raises(InvalidInput, match="packets of pictures"):
        frames("http://127.0.0.1:1/trickle/cam", video="packets", **wrong)


async def test_a_dropped_picture_leaves_its_gap_to_the_next_one() -> None:
    """The program learns of missed segments, and of a restart, whatever it is too slow for."""
    reader = frames("http://127.0.0.1:1/trickle/cam", when_full="drop")
    for number in range(PICTURES_AHEAD + 1):
        data: Any = SimpleNamespace(pts=number)
        await reader._put(Frame("video", data, None, None, 5, gap=0 if number else 2, restarted=not number))
    assert [(frame.pts, frame.gap, frame.restarted) for frame in reader._ready] == [(1, 2, True), (2, 0, False)]


async def test_a_slow_program_learns_what_it_missed(tmp_path: Path) -> None:
    """Segments that leave the server's window, or go with the channel, are counted: no frame is missed in silence."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    with local_server(window_segments=2, channel_drain_s=300) as server, anyio.fail_after(WITHIN_S):
        url = f"http://127.0.0.1:{server.port}/trickle/cam"
        async with Publisher(url) as publisher:
            await publisher.publish(segments[0])
            reader = frames(url, start="earliest")
            async with reader, aclosing(aiter(reader)) as loop:  # type: ignore[type-var]
                await anext(loop)
                # The connection holds the rest of segment 0, and the answer with segment 1.
                await publish_more(publisher, [segments[number % 3] for number in range(8)])
                rest = [frame async for frame in loop]
    counts = reader.statistics()
    gaps = sum(frame.gap for frame in rest) + reader.missed_at_end
    assert counts.missed == gaps >= 5
    assert counts.segments + counts.missed == 9
    assert counts.frames == 1 + len(rest) == 25 * counts.segments


async def test_segments_missed_at_the_end_are_told(tmp_path: Path) -> None:
    """No frame comes behind them that could say it."""
    (data, *_) = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    with local_server(channel_drain_s=0.05) as server, anyio.fail_after(WITHIN_S):
        url = f"http://127.0.0.1:{server.port}/trickle/cam"
        async with Publisher(url) as publisher:
            await publisher.publish(data)
            async with frames(url, start="earliest") as reader, httpx.AsyncClient() as http:
                assert await reader.next() is not None
                await publish_more(publisher, [data] * 4)
                while "lp-trickle-closed" not in (await http.get(f"{url}/4")).headers:  # it is kept for a moment
                    pass
                while await reader.next() is not None:
                    pass
    counts = reader.statistics()
    assert counts.missed == reader.missed_at_end >= 3
    assert counts.segments + counts.missed == 5


async def publish_more(publisher: Publisher, segments: list[bytes]) -> None:
    """Publish segments, and end the channel."""
    for segment in segments:
        await publisher.publish(segment)
    await publisher.close()


async def test_frames_that_a_decoder_holds_back_are_not_lost_with_a_cut(url: str, tmp_path: Path) -> None:
    """A segment of B-frames that breaks off gives all frames that came; so does the one before an error."""
    segments = segments_of(make_clip(tmp_path / "clip.mkv", open_gop=True, audio=None))
    async with Publisher(url) as publisher:
        await publisher.publish(segments[0])

        async def cut() -> None:
            async with publisher.segment() as segment:
                await segment.write(segments[1][: -20 * PACKET_BYTES])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await cut()
        await publisher.publish(b"no media" * 100)
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader:
            found = [frame async for frame in reader]
    whole = decode(segments[0] + segments[1][: -20 * PACKET_BYTES], "mpegts")
    assert len(found) >= len(whole.hashes["video"]) - 1
    counts = reader.statistics()
    assert (counts.incomplete, counts.unreadable, counts.missed) == (1, 1, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_readers_of_open_segments_leave_the_program_its_threads(url: str, tmp_path: Path) -> None:
    """More of them than anyio has threads by default: other work goes on, and so does each reader."""
    (data, *_) = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    count = int(to_thread.current_default_thread_limiter().total_tokens) + 1
    readers = [frames(url, start=0) for _ in range(count)]
    with anyio.fail_after(WITHIN_S):
        async with Publisher(url) as publisher, AsyncExitStack() as stack:
            async with publisher.segment() as segment:
                await segment.write(data[: len(data) // 2])
                for reader in readers:
                    await stack.enter_async_context(reader)
                    assert await reader.next() is not None
                assert await to_thread.run_sync(lambda: 7) == 7
                await segment.write(data[len(data) // 2 :])
            for reader in readers:
                assert len([await reader.next() for _ in range(20)]) == 20


async def test_no_thread_waits_for_a_segment_to_begin(url: str) -> None:
    """Before its first bytes there is nothing that a thread could do."""
    with anyio.fail_after(WITHIN_S):
        async with Publisher(url) as publisher, publisher.segment() as segment:
            await segment.write(b"\x47")
            async with frames(url, start=0) as reader:
                await until(lambda: reader.statistics().segments == 1)
                assert reader._threads.borrowed_tokens == 0


async def test_a_box_may_come_byte_by_byte(url: str, tmp_path: Path) -> None:
    """However many chunks it has: nothing nests, and nothing is copied for each of them."""
    (segment, *_) = segments_of(make_clip(tmp_path / "clip.mp4", audio=None), "fmp4")
    size = 3000
    large = (size + 8).to_bytes(4) + b"free" + bytes(size)
    at = segment.index(b"moof") - 4
    async with Publisher(url) as publisher, publisher.segment() as open_segment:
        await open_segment.write(segment[:at])
        for byte in large:
            await open_segment.write(bytes([byte]))
        await open_segment.write(segment[at:])
    assert len(await read(url)) == 25


async def test_a_second_task_that_reads_is_refused(url: str) -> None:
    """Else each would get some of the frames, and none would know."""
    with anyio.fail_after(WITHIN_S):
        async with frames(url, wait_for_channel_s=WITHIN_S) as reader, anyio.create_task_group() as tasks:
            tasks.start_soon(reader.next)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError):
                await reader.next()
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_damaged_media_raise_one_error(tmp_path: Path, container: ContainerName) -> None:
    """Whatever stands in the bytes: frames, or NotMedia."""
    rng = Random(container)
    whole = segments_of(make_clip(tmp_path / "clip.mp4"), container)[0]
    outcomes = {"frames": 0, "errors": 0}
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 4, 30])):
            at = rng.randrange(rng.choice([600, 3000, len(data)]))
            data[at] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        decoding = Decoding({"video", "audio"}, set() if rng.random() < 0.5 else {"audio"}, Arrays("rgb24", None, None))
        segment = SimpleNamespace(seq=0, gap=0, restarted=False)
        try:
            found = [*decoding.frames(cast(Any, segment), cast(Any, Whole(bytes(data)))), *decoding.flush()]
        except NotMedia:
            outcomes["errors"] += 1
        else:
            outcomes["frames"] += len(found) > 0
    assert outcomes["frames"] > 10


async def test_errors_of_the_subscription_are_raised(url: str) -> None:
    """Again at each call; a wrong argument at once."""
    async with frames(url) as reader:
        for _ in range(2):
            with pytest.raises(ChannelNotFound):
                await reader.next()
    with pytest.raises(InvalidInput, match="video, audio or both"):
        frames(url, video=False)
    for kind in ("video", "audio"):
        with pytest.raises(InvalidInput, match=f"^{kind} is True, False or 'packets', not 'packet'$"):
            frames(url, **{kind: "packet"})  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="between two lines"):
        frames(url, start=Position(1, offset=9))
    with pytest.raises(InvalidInput, match="'wait' or 'drop'"):
        frames(url, when_full="block")  # type: ignore[call-overload]


@pytest.mark.parametrize("format", ["rgb", "yuv410p", "vaapi", 3])
def test_a_format_that_gives_no_array_is_refused(format: Any) -> None:
    """Unknown, without arrays, of hardware, no text: where :func:`frames` is called, and not at the first picture."""
    with pytest.raises(InvalidInput, match=f"^no arrays of the pixel format {format!r} .*rgb24"):
        frames("http://127.0.0.1:1/trickle/cam", format=format)


async def test_a_picture_without_a_format_has_no_array(url: str, tmp_path: Path) -> None:
    """The error says how to get one; sound has none, whatever the format."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4"))[:1])
    for frame in await read(url, audio=True):
        with pytest.raises(LocalProtocolError, match='format="rgb24"' if frame.kind == "video" else "sound"):
            assert frame.array


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_reader_that_reconnects_reads_the_next_life(url: str, tmp_path: Path) -> None:
    """It waits for a channel that is not there yet. ``next`` says where a life ends; no frame of it comes again."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))

    async def life(reader: FrameReader, first: int, count: int) -> list[bool]:
        """After its first segments a life goes on when the reader is there, which else might miss all but the end."""
        is_there = anyio.Event()

        async def publish_life() -> None:
            async with Publisher(url) as publisher:
                for segment in segments[:first]:
                    await publisher.publish(segment)
                await is_there.wait()
                for segment in segments[first:count]:
                    await publisher.publish(segment)

        found = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish_life)
            while (frame := await reader.next()) is not None:
                is_there.set()
                found.append(frame.restarted)
        return found

    with anyio.fail_after(WITHIN_S):
        async with frames(url, reconnect=True, on_lag="earliest") as reader:
            assert await life(reader, 1, 3) == [False] * 75
            # After a life of one segment the reader asks for segment 1, by which it learns of the next life.
            for first, count in ((1, 1), (2, 3)):
                assert await life(reader, first, count) == [True] + [False] * (25 * count - 1)
            counts = reader.statistics()
            assert (counts.segments, counts.damaged, counts.resets) == (7, 0, 3)


async def test_a_reader_that_reconnects_may_miss_a_life(url: str, tmp_path: Path) -> None:
    """Of one that began and ended meanwhile, it reads the newest segment, as it does of any channel."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    lives: list[list[bool]] = [[], []]
    with anyio.fail_after(WITHIN_S):
        async with frames(url, reconnect=True, on_lag="live") as reader:
            for life in lives:
                await publish(url, segments)
                while (frame := await reader.next()) is not None:
                    life.append(frame.restarted)
    # How much it has of each depends on when it came: the newest segment at least.
    assert all(25 <= len(life) <= 75 for life in lives)
    assert not any(lives[0])
    assert lives[1] == [True] + [False] * (len(lives[1]) - 1)


async def test_a_loop_that_reconnects_goes_on_over_lives(url: str, tmp_path: Path) -> None:
    """Until it is left."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    found = 0
    with anyio.fail_after(WITHIN_S):
        async with anyio.create_task_group() as tasks, frames(url, reconnect=True, start="earliest") as reader:
            tasks.start_soon(publish, url, segments[:1])
            async for _ in reader:
                found += 1
                if found == 25:
                    tasks.start_soon(publish, url, segments[:2])
                if found == 75:
                    break


async def test_a_reader_that_reconnects_ends_at_a_refusal_for_good(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decoded until then is read first."""
    settled = Subscriber._settled

    async def failing(subscriber: Subscriber) -> Any:
        if subscriber.position is not None and subscriber.position.seq == 2:
            raise subscriber._failed(Refused(403))
        return await settled(subscriber)

    monkeypatch.setattr(Subscriber, "_settled", failing)
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None)))
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest", reconnect=True) as reader:
            found = [await reader.next() for _ in range(50)]
            with pytest.raises(Refused):
                await reader.next()
    assert all(frame is not None for frame in found)


async def test_a_life_ends_where_the_channel_begins_anew(tmp_path: Path) -> None:
    """On a server that was restarted, another publisher begins: ``next`` says where the former life ended."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4", audio=None))
    with servers_are_forks(), server() as running, anyio.fail_after(WITHIN_S):
        url = running.url("cam")
        async with frames(url, start="earliest", reconnect=True) as reader:
            publisher = await Publisher(url).open()
            await publisher.publish(segments[0])
            first = await reader.next()
            await publisher.detach()
            await anyio.to_thread.run_sync(running.kill)
            await anyio.to_thread.run_sync(running.restart)
            async with Publisher(url) as publisher:
                await publisher.publish(segments[0])
                while (frame := await reader.next()) is not None:
                    first = frame
                again = await reader.next()
    assert first is not None
    assert again is not None
    assert (first.restarted, again.restarted) == (False, True)
    assert again.time - first.time == pytest.approx(0.04)


@pytest.mark.parametrize("options", [{"wait_for_channel_s": 5}, {"reconnect_s": 5}, {"transport": None}])
def test_a_reader_that_reconnects_makes_its_own_subscribers(options: dict[str, Any]) -> None:
    """It waits without a limit, and a transport ends with its subscriber."""
    (name,) = options
    with pytest.raises(InvalidInput, match=f"reconnect=True.*{name}"):
        frames("http://127.0.0.1:1/trickle/cam", reconnect=True, **options)


async def test_size_and_format_change_together(url: str, tmp_path: Path) -> None:
    """A size alone makes arrays of RGB."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None))[:1])
    for frame in await read(url, size=(48, 16)):
        expected = cast(Any, frame.data).to_ndarray(width=48, height=16, format="rgb24")
        assert np.array_equal(frame.array, expected)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_pictures_come_in_batches(url: str, tmp_path: Path) -> None:
    """The last one of the channel is short; each is one array, which is not copied."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None)))
    alone = await read(url, format="rgb24")
    with anyio.fail_after(WITHIN_S):
        batches = [batch async for batch in frames(url, start="earliest", batch=8, batch_s=None)]
    assert [len(batch) for batch in batches] == [8] * 9 + [3]
    assert [time for batch in batches for time in batch.times] == [frame.time for frame in alone]
    assert np.array_equal(np.concatenate([batch.array for batch in batches]), [frame.array for frame in alone])
    assert all(np.shares_memory(batch.array, batch.frames[-1].array) for batch in batches)


async def test_a_batch_ends_before_a_gap() -> None:
    """Within a batch nothing is missing, and all pictures have one size."""
    reader = frames("http://127.0.0.1:1/trickle/cam", batch=4)
    reader._home = HomeLoop("reader of frames")
    data: Any = SimpleNamespace(pts=0)
    small, large = np.zeros((2, 2, 3), np.uint8), np.zeros((4, 4, 3), np.uint8)
    found: list[tuple[int, int, bool]] = []
    for array, gap, restarted in ((small, 0, False), (small, 2, False), (large, 0, False), (large, 0, True)):
        await reader._put(Frame("video", data, array, None, 0, gap=gap, restarted=restarted))
    reader._over = True
    while batch := await reader.next():
        found.append((len(batch), batch.gap, batch.restarted))
    assert found == [(1, 0, False), (1, 2, False), (1, 0, False), (1, 0, True)]


async def test_a_picture_waits_for_its_batch_no_longer_than_allowed(url: str) -> None:
    """The pictures that have come are given as a short batch; the next picture begins another batch."""
    with anyio.fail_after(WITHIN_S):
        async with MediaPublisher(url, when_full="wait") as publisher, anyio.create_task_group() as tasks:

            async def write(count: int) -> None:
                for _ in range(count):
                    await publisher.write(np.zeros((64, 96, 3), np.uint8))

            tasks.start_soon(write, 3)
            async with frames(url, start="earliest", batch=6, batch_s=0.05, wait_for_channel_s=WITHIN_S) as reader:
                first = 0
                while first < 3:
                    batch = await reader.next()
                    assert batch is not None
                    first += len(batch)
                assert first == 3
                reader._batch_s = math.inf
                await write(6)
                batch = await reader.next()
                assert batch is not None
                assert np.shares_memory(batch.array, batch.frames[0].array)
                assert len(batch) == 6


async def test_a_cancelled_wait_for_a_batch_loses_no_picture() -> None:
    """Also while pictures are put together that do not stand in one block."""
    reader = frames("http://127.0.0.1:1/trickle/cam", batch=2)
    reader._home = HomeLoop("reader of frames")
    data: Any = SimpleNamespace(pts=0)
    for number in range(2):
        await reader._put(Frame("video", data, np.full((2, 2, 3), number, np.uint8), None, 0))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await reader.next()
    batch = await reader.next()
    assert batch is not None
    assert batch.array[:, 0, 0, 0].tolist() == [0, 1]


async def test_the_newest_pictures_make_the_batch_of_a_slow_program(url: str, tmp_path: Path) -> None:
    """Dropped pictures are counted; a batch whose pictures do not stand in one block is copied."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None)))
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest", batch=8, when_full="drop") as reader:
            await until(lambda: reader._over)
            found = [batch async for batch in reader]
    assert [len(batch) for batch in found] == [8]
    assert reader.statistics().dropped == 75 - 8
    assert np.array_equal(found[0].array, [frame.array for frame in found[0].frames])


async def test_threads_change_nothing_but_the_delay(url: str, tmp_path: Path) -> None:
    """All pictures come, those that wait in the decoder at the end as well."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", audio=None))[:2])
    one, three = [
        [(frame.time, frame_hash(cast(Any, frame.data))) for frame in await read(url, threads=threads)]
        for threads in (None, 3)
    ]
    assert one == three
    assert len(one) == 50


async def test_a_large_picture_is_whole(url: str) -> None:
    """One of several hundred kilobytes comes in pieces from libavformat."""
    noise = np.random.default_rng(1).integers(0, 255, (480, 640, 3), np.uint8)
    async with MediaPublisher(url, when_full="wait", gop_s=10) as publisher:
        for number in range(3):
            await publisher.write(np.roll(noise, number), pts=number, time_base=Fraction(1, 30))
    segment = b"".join([await segment.read() async for segment in Subscriber(url, start="earliest")])
    assert len(segment) > 500_000
    with anyio.fail_after(WITHIN_S):
        async with frames(url, start="earliest") as reader:
            found = [frame_hash(cast(Any, frame.data)) async for frame in reader]
    assert found == decode(segment, "mpegts").hashes["video"]
    assert reader.statistics().damaged == 0


async def test_av1_is_decoded(url: str, tmp_path: Path) -> None:
    """By a decoder that needs no device; libavcodec's own one does."""
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4", video="libsvtav1", audio=None, seconds=1), "fmp4"))
    assert len(await read(url)) == 25


async def test_times_go_on_where_an_encoder_begins_anew(url: str, tmp_path: Path) -> None:
    """Sound and pictures stay in step; a reader that begins before it has the same times until there."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4"))
    await publish(url, segments + segments)
    found = {kind: [one.time for one in await read(url, audio=True) if one.kind == kind] for kind in ("video", "audio")}
    video, audio = found["video"], found["audio"]
    assert len(video) == 150
    assert all(0.03 < there - here < 0.1 for here, there in pairwise(video))
    assert all(0 < there - here < 0.1 for here, there in pairwise(audio))
    assert abs((video[75] - video[0]) - (audio[len(audio) // 2] - audio[0])) < 0.05
    with anyio.fail_after(WITHIN_S):
        later = [frame.time async for frame in frames(url, start=1)]
    assert later[:50] == video[25:75]


@pytest.fixture
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of PyAV that knows two kinds of device, on a machine that has neither."""
    monkeypatch.setattr("av.codec.hwaccel.hwdevices_available", lambda: ["cuda", "vaapi"])
    monkeypatch.setattr(pyav, "_opened", lambda *args, **options: (None, "it cannot be opened (no such device)"))


@pytest.mark.usefixtures("no_devices")
async def test_a_device_that_is_missing_is_an_error(url: str, tmp_path: Path) -> None:
    """One that PyAV was built without at once; one that the machine lacks at the first picture."""
    with pytest.raises(NoHardware, match=r"^no hwaccel 'qsv': PyAV was built with cuda, vaapi$"):
        frames(url, hwaccel="qsv")
    await publish(url, segments_of(make_clip(tmp_path / "clip.mp4"))[:1])
    why = r"it cannot be opened \(no such device\); devices of this machine that decode h264: none"
    async with frames(url, start="earliest", hwaccel="cuda:1") as reader:
        for _ in range(2):
            with pytest.raises(NoHardware, match=f"^no hwaccel 'cuda:1': {why}$"):
                await reader.next()


@pytest.mark.usefixtures("no_devices")
async def test_auto_decodes_without_a_device_and_says_so_once(url: str, tmp_path: Path) -> None:
    """Each later decoder is made without a search."""
    segments = segments_of(make_clip(tmp_path / "clip.mp4"))
    await publish(url, [segments[0], b"", segments[1][:4000], segments[2]])
    told: list[FrameEvent] = []
    found = await read(url, audio=True, hwaccel="auto", on_event=told.append)
    assert len([frame for frame in found if frame.kind == "video"]) >= 50
    assert [str(event) for event in told if isinstance(event, SoftwareDecoding)] == [
        "pictures are decoded without a device: no device of this machine decodes h264"
    ]
    assert "connected" in map(str, told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": 2, "audio": True}, "another reader"),
        ({"batch": 2, "batch_s": -1}, "batch_s"),
        ({"threads": 0}, "threads"),
        ({"size": (0, 5)}, "width in size"),
        ({"size": (16_384, 16_384)}, "width in size must be .* at most 16000"),
        ({"batch_s": 0.5}, "pass batch, too"),
        ({"batch_s": None}, "pass batch, too"),
        ({"size": (64, 64), "video": False, "audio": True}, "format and size are those of pictures"),
        ({"format": "gray", "video": False, "audio": True}, "format and size are those of pictures"),
        ({"size": 5}, r"as in \(640, 360\), not 5"),
    ],
)
def test_wrong_options_of_pictures_are_refused(options: dict[str, Any], message: str) -> None:
    """Where :func:`frames` is called, with the option's name."""
    with pytest.raises(InvalidInput, match=message):
        frames("http://127.0.0.1:1/trickle/cam", **options)
