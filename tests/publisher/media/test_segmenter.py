"""Remuxing: joined segments decode to the very frames of the source, and each segment stands alone."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tests.publisher.media.clips import FRAME_RATE, decode, make_clip
from tests.publisher.media.generated import FakeClock
from tricklecast.publisher.media.inputs import open_media
from tricklecast.publisher.media.muxers import ContainerName
from tricklecast.publisher.media.pace import Pace
from tricklecast.publisher.media.reader import MAX_REFUSED, Remuxer, SourceBroke
from tricklecast.publisher.media.segmenter import MAX_BYTES, MIN_BYTES, Segmenter
from tricklecast.publisher.media.source import MediaSource
from tricklecast.publisher.steps import Chunk, SegmentEnd, Step
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.clock import read_prft, read_temi
from tricklecast.trickle.media.containers import PACKET_BYTES, boxes, tracks

BOTH = pytest.mark.parametrize("kind", ["mpegts", "fmp4"])
FORMATS: dict[ContainerName, str] = {"mpegts": "mpegts", "fmp4": "mp4"}

CLIPS: list[tuple[str, dict[str, object]]] = [
    ("clip.mp4", {}),
    ("open.mkv", {"open_gop": True}),
    ("hevc.ts", {"video": "libx265", "audio": "ac3"}),
    ("mpeg4.mp4", {"video": "mpeg4", "audio": "libmp3lame"}),
    ("opus.ts", {"audio": "libopus"}),
    ("sound.mp4", {"video": None, "seconds": 5.0}),
]
"""What both containers carry."""

TS_ONLY: list[tuple[str, dict[str, object]]] = [
    ("clip.ts", {}),
    ("hevc.mp4", {"video": "libx265", "audio": "libopus"}),
    ("hevc.mkv", {"video": "libx265", "open_gop": True, "audio": "eac3"}),
]
"""Further ways into MPEG-TS, which has other rules for parameters."""

MP4_ONLY: list[tuple[str, dict[str, object]]] = [
    ("av1.mkv", {"video": "libsvtav1", "audio": "flac"}),
    ("vp9.webm", {"video": "libvpx-vp9", "audio": "libopus"}),
    ("alac.mp4", {"audio": "alac"}),
]


def remux(path: Path, container: ContainerName, **cutting: float) -> list[Step]:
    """All steps of a file."""
    remuxer = Remuxer(Segmenter(container, **cutting), warn=print)  # type: ignore[arg-type]
    return list(remuxer.steps(open_media(str(path), path.name), path.name))


def joined(steps: list[Step]) -> list[bytes]:
    """The segments."""
    segments = [b""]
    for step in steps:
        if isinstance(step, SegmentEnd):
            segments.append(b"")
        else:
            segments[-1] += step.data
    return segments


def keyframes(path: Path) -> int:
    """How many the video has; of sound alone, how many segments of 2 seconds."""
    with av.open(str(path), "r") as container:
        if not container.streams.video:
            return 3
        return sum(packet.is_keyframe for packet in container.demux(container.streams.video[0]) if packet.size)


def assert_identical(path: Path, data: bytes, format_: str) -> None:
    """Every frame of every stream is there, in order, unchanged, at its time; without a sign of corruption.

    The padding that audio encoders add is part of it: a reader that joins later must not skip what it gets first.
    """
    before, after = decode(path), decode(data, format_)
    assert after.hashes == before.hashes
    shifts = {
        stop - start for kind in before.times for start, stop in zip(before.times[kind], after.times[kind], strict=True)
    }
    # One constant for all streams, but for the rounding to 90 kHz (and, in Matroska, to milliseconds).
    assert max(shifts) - min(shifts) <= Fraction(2, 1000)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        *[pytest.param(*clip, kind, id=f"{clip[0]}-{kind}") for clip in CLIPS for kind in FORMATS],
        *[pytest.param(*clip, "mpegts", id=clip[0]) for clip in TS_ONLY],
    ],
)
def test_joined_segments_decode_to_the_frames_of_the_source(
    tmp_path: Path, name: str, options: dict[str, object], kind: ContainerName
) -> None:
    """With B-frames, open groups of pictures, and any codec: the frames of all segments are those of the clip."""
    path = make_clip(tmp_path / name, **options)  # type: ignore[arg-type]
    segments = joined(remux(path, kind))
    assert len(segments) == keyframes(path)
    assert_identical(path, b"".join(segments), FORMATS[kind])


@pytest.mark.parametrize(("name", "options"), MP4_ONLY, ids=[name for name, _ in MP4_ONLY])
def test_mp4_carries_what_mpegts_cannot(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    """AV1, VP9, FLAC and ALAC."""
    path = make_clip(tmp_path / name, **options)  # type: ignore[arg-type]
    assert_identical(path, b"".join(joined(remux(path, "fmp4"))), "mp4")


@BOTH
def test_mpeg2_is_carried(tmp_path: Path, kind: ContainerName) -> None:
    """The coding of broadcasts."""
    path = make_clip(tmp_path / "mpeg2.ts", video="mpeg2video", audio="mp2")
    segments = joined(remux(path, kind))
    before, after = decode(path), decode(b"".join(segments), FORMATS[kind])
    assert after.hashes["video"] == before.hashes["video"]
    # MP4 has one description for MP2 and MP3: the decoder is another one, and rounds differently.
    assert len(after.hashes["audio"]) == len(before.hashes["audio"])


@BOTH
@pytest.mark.parametrize(
    ("name", "options"), [("clip.mp4", {}), ("open.ts", {"open_gop": True}), ("hevc.mp4", {"video": "libx265"})]
)
def test_each_segment_stands_alone(tmp_path: Path, name: str, options: dict[str, object], kind: ContainerName) -> None:
    """It decodes by itself, from a keyframe at its beginning on, and loses no picture that depends on no other."""
    path = make_clip(tmp_path / name, **options)  # type: ignore[arg-type]
    leading = 2 if "open_gop" in options else 0  # pictures before the keyframe that need the group before it
    for number, segment in enumerate(joined(remux(path, kind))):
        with av.open(io.BytesIO(segment), "r", FORMATS[kind]) as container:
            video = container.streams.video[0]
            first = next(packet for packet in container.demux(video) if packet.size)
            assert first.is_keyframe
            assert first.pts is not None
            begin = first.pts * first.time_base
        times = decode(segment, FORMATS[kind]).times["video"]
        assert times[0] <= begin
        assert len(times) >= FRAME_RATE - (leading if number else 0)


def test_a_segment_of_mpegts_begins_with_its_tables(tmp_path: Path) -> None:
    """What it holds comes first, then the time of its first picture, then the picture."""
    for segment in joined(remux(make_clip(tmp_path / "clip.mp4"), "mpegts")):
        pids = [int.from_bytes(segment[at + 1 : at + 3]) & 0x1FFF for at in range(0, 5 * PACKET_BYTES, PACKET_BYTES)]
        assert pids == [0x11, 0x00, 0x1000, 0x100, 0x100]  # SDT, PAT, PMT, and the leading stream
        assert read_temi(segment[3 * PACKET_BYTES : 4 * PACKET_BYTES]) is not None


def test_a_segment_of_mp4_begins_with_an_init_segment(tmp_path: Path) -> None:
    """All the same, so that players take joined segments for one file; its fragments are counted throughout."""
    inits, numbers = set(), []
    for segment in joined(remux(make_clip(tmp_path / "clip.mp4"), "fmp4")):
        found = list(boxes(segment))
        assert [item.kind for item in found[:5]] == [b"ftyp", b"moov", b"prft", b"moof", b"mdat"]
        inits.add(bytes(found[1].body))
        numbers += [int.from_bytes(item.body[12:16]) for item in found if item.kind == b"moof"]
    assert len(inits) == 1
    assert numbers == [*range(1, len(numbers) + 1)]


@BOTH
def test_a_segment_says_when_its_first_frame_left_the_source(tmp_path: Path, kind: ContainerName) -> None:
    """In the wall-clock time that the source gives, or of now."""
    path = make_clip(tmp_path / "clip.ts")
    read = read_temi if kind == "mpegts" else read_prft
    begun_us = time.time_ns() // 1000
    times = [read(segment) for segment in joined(remux(path, kind))]
    assert all(at is not None and begun_us - 1 <= at <= time.time_ns() // 1000 + 1 for at in times)


@BOTH
def test_a_paced_source_gives_the_times_at_which_frames_are_due(tmp_path: Path, kind: ContainerName) -> None:
    """They lie as far apart as the frames do, however long the clip took to read."""
    path = make_clip(tmp_path / "clip.mp4")
    clock = FakeClock()
    remuxer = Remuxer(Segmenter(kind, pace=lambda: Pace(1.0, clock=clock)), warn=print)
    segments = joined(list(remuxer.steps(open_media(str(path), "it"), "it")))
    read = read_temi if kind == "mpegts" else read_prft
    first, second, third = [read(segment) for segment in segments]
    assert first is not None
    assert second is not None
    assert third is not None
    assert abs(second - first - 1_000_000) <= 20
    assert abs(third - second - 1_000_000) <= 20
    assert clock.now > 102.9


@BOTH
def test_what_follows_a_live_source_keeps_the_time_in_between(tmp_path: Path, kind: ContainerName) -> None:
    """Five seconds without a packet are five seconds in the media, too; not so where nobody waited."""
    path = make_clip(tmp_path / "clip.ts")
    for live, gap_s in ((True, 5.0), (False, 0.0)):
        clock = FakeClock()
        remuxer = Remuxer(Segmenter(kind), warn=print, clock=clock.monotonic)
        steps = list(remuxer.steps(open_media(str(path), "it"), "it", live=live))
        clock.sleep(5.0)
        steps += [SegmentEnd(), *remuxer.steps(open_media(str(path), "it"), "it", live=live)]
        times = decode(b"".join(joined(steps)), FORMATS[kind]).times
        for stream in times.values():
            half = len(stream) // 2
            assert abs(stream[half] - stream[half - 1] - gap_s) < 0.1
        assert abs(times["video"][-1] - times["audio"][-1]) < 0.1


@BOTH
def test_segments_trickle(tmp_path: Path, kind: ContainerName) -> None:
    """A segment is handed out frame by frame, not at its end."""
    steps = remux(make_clip(tmp_path / "clip.mp4"), kind)
    chunks = [step for step in steps if isinstance(step, Chunk)]
    assert len(chunks) >= 3 * FRAME_RATE
    assert max(len(chunk.data) for chunk in chunks) < 20_000


@BOTH
def test_segments_have_a_least_length(tmp_path: Path, kind: ContainerName) -> None:
    """They end at the first keyframe after it; sound alone is cut by time."""
    path = make_clip(tmp_path / "clip.mp4", seconds=5.0)
    assert len(joined(remux(path, kind, min_segment_s=2.0))) == 3
    sound = make_clip(tmp_path / "sound.mp4", video=None, seconds=3.0)
    segments = joined(remux(sound, kind, segment_s=0.5))
    assert len(segments) == 6
    assert_identical(sound, b"".join(segments), FORMATS[kind])


@BOTH
def test_a_source_joined_in_the_middle_begins_with_a_keyframe(tmp_path: Path, kind: ContainerName) -> None:
    """Packets before it, of pictures or sound, cannot be shown, and are left out; a line counts them."""
    data = make_clip(tmp_path / "clip.ts").read_bytes()
    middle = len(data) // 2 // PACKET_BYTES * PACKET_BYTES
    segmenter, said = Segmenter(kind), list[str]()
    remuxer = Remuxer(segmenter, warn=said.append)
    steps = list(remuxer.steps(open_media(io.BytesIO(data[middle:]), "it"), "it"))
    assert said == [f"it did not begin with a keyframe: {segmenter.blind} packets before one left out so far"]
    list(remuxer.steps(open_media(io.BytesIO(data[middle:]), "it"), "it"))
    assert said[1:] == [f"it did not begin with a keyframe: {segmenter.blind} packets before one left out so far"]
    assert segmenter.blind > 10
    decoded = decode(b"".join(joined(steps)), FORMATS[kind])
    assert len(decoded.hashes["video"]) == FRAME_RATE
    assert decoded.hashes["video"] == decode(tmp_path / "clip.ts").hashes["video"][-FRAME_RATE:]


@BOTH
def test_bare_pictures_come_at_their_frame_rate(tmp_path: Path, kind: ContainerName) -> None:
    """A camera without a muxer sends nothing but frames; those say how many a second."""
    streams = av.open(str(make_clip(tmp_path / "clip.ts")), "r")
    bare = b"".join(bytes(packet) for packet in streams.demux(video=0) if packet.size)
    source = open_media(io.BytesIO(bare), "it", format="h264")
    segments = joined(list(Remuxer(Segmenter(kind), warn=print).steps(source, "it")))
    assert len(segments) == 3
    decoded = decode(b"".join(segments), FORMATS[kind])
    assert decoded.hashes["video"] == decode(tmp_path / "clip.ts").hashes["video"]
    assert decoded.times["video"][-1] - decoded.times["video"][0] == pytest.approx(74 / 25, abs=0.1)


def test_streams_that_cannot_be_carried_are_named(tmp_path: Path) -> None:
    """They are left out with a warning, the others published."""
    warnings: list[str] = []
    path = make_clip(tmp_path / "pcm.mkv", audio="pcm_s16le")
    remuxer = Remuxer(Segmenter("mpegts"), warn=warnings.append, advice="; --transcode may help")
    steps = list(remuxer.steps(open_media(str(path), "it"), "it"))
    assert warnings == ["left out: stream 1 (audio, pcm_s16le); --transcode may help"]
    assert set(decode(b"".join(joined(steps)), "mpegts").hashes) == {"video"}


class Spoilt:
    """A source some of whose packets hold nothing that is sound."""

    def __init__(self, source: MediaSource, which: range) -> None:
        self.streams, self.late, self.close = source.streams, source.late, source.close
        self._source, self._which, self.strays = source, which, 0

    def packets(self) -> Iterator[tuple[int, Any]]:
        for number, (track, packet) in enumerate(self._source.packets()):
            if number in self._which:
                spoilt: av.Packet[Any] = av.Packet(bytes(packet.size))
                spoilt.pts, spoilt.dts, spoilt.time_base = packet.pts, packet.dts, packet.time_base
                spoilt.stream, packet = packet.stream, spoilt
            yield track, packet


@pytest.mark.parametrize("beyond", [0, 1])
def test_packets_that_the_container_refuses_are_damage_until_there_are_too_many(tmp_path: Path, beyond: int) -> None:
    """64 in a row are left out, counted and told; one more shows that the stream is of the wrong kind."""
    path = make_clip(tmp_path / "sound.ts", video=None, seconds=3.0)
    source, said = open_media(str(path), "it"), list[str]()
    spoilt = Spoilt(source, range(5, 5 + MAX_REFUSED + beyond))
    steps = Remuxer(Segmenter("fmp4"), warn=said.append).steps(spoilt, "it")
    with pytest.raises(SourceBroke) if beyond else nullcontext():
        list(steps)
    assert said[-1] == f"it: 0 damaged packets published, and {MAX_REFUSED + beyond} unreadable packets left out"


@pytest.mark.parametrize(
    ("kind", "refused", "most", "keyframes"),
    [("fmp4", 0, MAX_BYTES, False), ("mpegts", 1, MIN_BYTES, False), ("fmp4", 1, MIN_BYTES, True)],
)
def test_a_segment_ends_at_a_size_wherever_keyframes_are(
    tmp_path: Path, kind: ContainerName, refused: int, most: int, keyframes: bool
) -> None:
    """At 32 MiB; and at 16 KiB at least, however little a server takes. The picture that reaches it is the last one."""
    segmenter, sizes, size = Segmenter(kind), list[int](), 0
    with closing(open_media(str(make_clip(tmp_path / "clip.mp4", audio=None)), "it")) as source:
        segmenter.start(source.streams)
        if refused:
            segmenter.shorten(refused)
        for number in range(5):
            packet = av.Packet((most // 4).to_bytes(4) + bytes([0x41]) + b"\xff" * (most // 4 - 1))
            packet.dts = packet.pts = number
            packet.time_base, packet.is_keyframe = Fraction(1, 25), keyframes or number == 0
            for step in segmenter.add(0, packet):
                match step:
                    case Chunk(data):
                        size += len(data)
                    case SegmentEnd():
                        sizes, size = [*sizes, size], 0
    assert len(sizes) == 1
    assert segmenter.forced == (0 if keyframes else 1)
    assert most <= sizes[0] < most * 1.5


@pytest.mark.parametrize(("pictures", "most"), [(True, 16), (False, 24)], ids=["pictures", "sound-alone"])
def test_sound_that_waits_for_the_next_segment_of_mp4_ends_this_one_at_a_size(
    tmp_path: Path, pictures: bool, most: int
) -> None:
    """At 32 MiB, or here 1 MiB, with the next picture; half as much again where none comes. The next one has it all."""
    segmenter, steps, waited, large = Segmenter("fmp4"), list[Step](), list[int](), 1 << 16
    segmenter.shorten(32 * large)
    with closing(open_media(str(make_clip(tmp_path / "clip.mkv", audio="ac3")), "it")) as source:
        segmenter.start(source.streams)
        packets = [packet for _, packet in source.packets()]
        film = [packet for packet in packets if packet.stream_index == 0][:40]  # it begins without sound
        sound = next(packet for packet in packets if packet.stream_index == 1)
        for packet in film:
            steps += segmenter.add(0, packet)
        now = (film[-1].dts or 0) + 1
        for number in range(30):
            data = bytes(sound).ljust(large if number else 0, b"\0")
            for track, part in [(1, data), (0, bytes(film[1]))][: 1 + pictures]:
                packet = av.Packet(part)
                packet.pts, packet.dts, packet.time_base = now + number, now + number, film[0].time_base
                packet.is_keyframe = track == 1
                before = len(steps)
                steps += segmenter.add(track, packet)
                waited += [number] * any(isinstance(step, SegmentEnd) for step in steps[before:])
        steps += segmenter.finish()
    assert waited[0] == most + (not pictures)
    segments = joined(steps)
    assert len(tracks(bytes(segments[0]))) == 1
    assert sum(map(len, segments[1:])) > 29 * large


def test_nothing_to_carry_is_an_error(tmp_path: Path) -> None:
    """A file without a single stream that fits is refused."""
    path = make_clip(tmp_path / "pcm.wav", video=None, audio="pcm_s16le", seconds=0.2)
    for kind in ("mpegts", "fmp4"):
        with pytest.raises(InvalidInput, match=r"pcm\.wav has no video or audio that M.* can carry \(pcm_s16le\)"):
            remux(path, kind)


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Missing, a directory, not media: one line that names it."""
    text = tmp_path / "notes"
    text.write_text("no media in here\n" * 100)
    log = tmp_path / "log"  # libavformat takes its lines for one of its formats of text, which then has nothing
    log.write_text("2026-11-29T12:42:36.504Z WARNING all users of this machine can read tls/key.pem\n" * 3)
    none = tmp_path / "none.mp4"
    for path, reason in ((none, "No such file"), (tmp_path, "directory"), (text, "no media"), (log, "no media")):
        with pytest.raises(InvalidInput, match=rf"cannot read {path.name}: .*{reason}"):
            open_media(str(path), path.name)


class Failing(io.BytesIO):
    """A source that can be broken."""

    broken = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, or fail."""
        if self.broken:
            raise OSError("the disk is gone")
        return super().read(size)


def exhaust(steps: Iterator[Step], into: list[Step]) -> None:
    """Collect what comes, even if an error ends it."""
    into += iter(steps)


def test_a_source_that_breaks_loses_nothing_that_was_read(tmp_path: Path) -> None:
    """What was read is handed out and ends properly; then the error comes."""
    source = Failing(make_clip(tmp_path / "clip.ts", seconds=6.0).read_bytes())
    steps = Remuxer(Segmenter("mpegts"), warn=print).steps(open_media(source, "it"), "it")
    seen: list[Step] = []
    while len(seen) < 150:
        seen.append(next(steps))
    source.broken = True
    with pytest.raises(SourceBroke, match="reading it failed half-way"):
        exhaust(steps, seen)
    decoded = decode(b"".join(joined(seen)), "mpegts")
    assert 50 < len(decoded.hashes["video"]) < 150


def test_a_stream_that_says_nonsense_about_itself_is_refused(tmp_path: Path) -> None:
    """By an error that names the source."""
    data = bytearray(make_clip(tmp_path / "clip.mp4", seconds=0.2, audio=None).read_bytes())
    parameters = data.index(b"avcC") + 4
    data[parameters + 6 : parameters + 8] = b"\xff\xff"  # the length of the first ones
    source = open_media(io.BytesIO(data), "it")
    with pytest.raises(InvalidInput, match="it cannot be written: Invalid data"):
        list(Remuxer(Segmenter(), warn=print).steps(source, "it"))


def test_the_end_of_a_segment_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any packet of it may: by the same error."""
    segmenter = Segmenter()

    def full(*, last: bool) -> Iterator[Step]:
        assert last
        yield Chunk(b"the rest")
        raise OSError("the disk is full")

    monkeypatch.setattr(segmenter, "end", full)
    source = open_media(str(make_clip(tmp_path / "clip.ts", seconds=0.2)), "it")
    seen: list[Step] = []
    with pytest.raises(SourceBroke, match="reading it failed half-way: the disk is full"):
        exhaust(Remuxer(segmenter, warn=print).steps(source, "it"), seen)
    assert seen[-1] == Chunk(b"the rest")


@BOTH
def test_languages_are_kept(tmp_path: Path, kind: ContainerName) -> None:
    """A stream's language is in every segment."""
    source = make_clip(tmp_path / "clip.mp4")
    path = tmp_path / "language.mkv"
    with av.open(str(source), "r") as container, av.open(str(path), mode="w") as copy:
        streams = {stream.index: copy.add_stream_from_template(stream) for stream in container.streams}
        streams[1].metadata["language"] = "deu"
        for packet in container.demux():
            if packet.size:
                packet.stream = streams[packet.stream.index]
                copy.mux(packet)
    for segment in joined(remux(path, kind)):
        with av.open(io.BytesIO(segment), "r", FORMATS[kind]) as container:
            assert container.streams.audio[0].metadata["language"] == "deu"
