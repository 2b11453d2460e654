"""Inputs that are damaged, or rarer than most: what is published and recorded of them, and what people are told."""

from __future__ import annotations

import io
import os
import re
import socket
import struct
import subprocess
import threading
from collections import Counter
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import av
import httpx
import pytest
from av.error import FFmpegError

from tests.publisher.media.test_reader import Run, serving
from tests.support.forked import forked
from tests.support.inputs import AAC, CUE, H264, damaged, made, picture, tone, with_cues, with_klv, with_pes
from tests.support.local import local_server
from tests.support.long import mostly_long
from tests.support.waiting import WITHIN_S
from tricklecast.app.hls.units import duration_of, scanner
from tricklecast.publisher.media import inputs, segmenter
from tricklecast.publisher.media.encode import Encoding
from tricklecast.publisher.media.inputs import IndexFirst, Input, open_media
from tricklecast.publisher.media.muxers import ContainerName
from tricklecast.publisher.media.reader import LOOK_AHEAD, MediaOptions, Remuxer, SourceBroke
from tricklecast.publisher.media.segmenter import Segmenter
from tricklecast.publisher.steps import Chunk
from tricklecast.subscriber.media.joiner import Joiner
from tricklecast.subscriber.media.opening import NotMedia
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.containers import Continuity, Step, crc32, sniff, ts_packets
from tricklecast.trickle.media.timeline import MAX_HELD
from tricklecast.trickle.pyav import demuxed, present_streams

FILE = MediaOptions(realtime=False)


def publish(path: Path, container: ContainerName = "mpegts") -> Run:
    """All segments of a file, and what was said."""
    return Run(str(path), MediaOptions(container=container, realtime=False)).run()


def record(segments: list[bytes], path: Path) -> list[str]:
    """Join segments; returns what was said."""
    said: list[str] = []
    joiner = Joiner(path, said.append)
    for number, data in enumerate(segments):
        joiner.add(io.BytesIO(data), f"segment {number}")
    joiner.close()
    return said


def decodable(path: Path) -> Counter[str]:
    """How many frames of each kind decoders get out of a file, damaged or not."""
    found: Counter[str] = Counter()
    with av.open(str(path)) as container:
        for packet in demuxed(container, list(container.streams)):
            try:
                found[packet.stream.type] += len(packet.decode())
            except FFmpegError:
                continue
    return found


def picture_times(path: Path) -> list[Fraction]:
    """When each picture is shown, from the first one on."""
    with av.open(str(path)) as container:
        times = [Fraction((frame.pts or 0) * (frame.time_base or 0)) for frame in container.decode(video=0)]
    return [time - times[0] for time in times]


def shown_frames(path: Path) -> int:
    """How many pictures a player shows, edit lists and all."""
    with av.open(str(path)) as container:
        return sum(bool(packet.size) and not packet.is_discard for packet in container.demux(video=0))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six seconds of MPEG-TS with B-frames and sound."""
    return made(tmp_path_factory.mktemp("clips") / "clip.ts", f"{picture(6)} {tone(6)} {H264} {AAC}")


@pytest.mark.parametrize("way", ["a file", "a pipe", "encoded anew"])
def test_bytes_between_packets_are_told(tmp_path: Path, clip: Path, way: str) -> None:
    """At once, and their number at the end: of garbage between two recordings, libavformat says nothing."""
    source, data = tmp_path / "garbage.ts", clip.read_bytes()
    whole = data + Random(3).randbytes(400_000) + data
    encoding = Encoding(preset="ultrafast") if way == "encoded anew" else None
    options = MediaOptions(realtime=False, encoding=encoding)
    if way == "a pipe":
        os.mkfifo(source)
        with subprocess.Popen(["tee", str(source)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as writer:
            assert writer.stdin is not None
            thread = threading.Thread(target=writer.communicate, args=(whole,))
            thread.start()
            done = Run(str(source), options).run()
            thread.join()
    else:
        source.write_bytes(whole)
        done = Run(str(source), options).run()
    said = done.report.said
    assert said[0].startswith(f"{source} is damaged: ")
    if way == "a pipe":  # its bytes are seen before the packets in them
        assert said[0] == f"{source} is damaged: it has bytes that are not MPEG-TS; the rest is published"
    assert said[-1].startswith(f"{source}: ")
    assert said[-1].endswith(" of other bytes left out")
    assert re.search(r" (399\.[89]|400\.\d) kB of ", said[-1])


CLEAN: Final = {
    "as it is": "",
    "null packets": "-muxrate 2M",
    "with times of arrival": "-mpegts_m2ts_mode 1",
}


@pytest.mark.parametrize("cut", [0, 100])
@pytest.mark.parametrize("how", CLEAN)
def test_clean_mpegts_is_not_blamed(tmp_path: Path, how: str, cut: int) -> None:
    """Also if it begins and ends in the middle of a packet."""
    made_ts = made(tmp_path / "made.ts", f"{picture(2)} {tone(2)} {H264} {AAC} {CLEAN[how]}").read_bytes()
    source = tmp_path / "clean.ts"
    source.write_bytes(made_ts[cut : len(made_ts) - cut])
    opened = open_media(str(source), "it")
    for _ in opened.packets():
        pass
    opened.close()
    assert opened.strays == 0


@pytest.mark.parametrize(("container", "name"), [("mpegts", "out.mp4"), ("fmp4", "out.mp4"), ("mpegts", "out.mkv")])
@pytest.mark.parametrize("kind", ["lost", "bytes", "cut"])
def test_of_a_damaged_source_all_that_decodes_is_published_and_recorded(
    tmp_path: Path, clip: Path, kind: str, container: ContainerName, name: str
) -> None:
    """But for a frame of sound whose header is gone. Publisher and recorder say so at once, and at the end."""
    source = tmp_path / "damaged.ts"
    source.write_bytes(damaged(clip.read_bytes(), kind))
    done = publish(source, container)
    said = record(done.segments, tmp_path / name)
    wanted, got = decodable(source), decodable(tmp_path / name)
    assert got["video"] == wanted["video"]
    assert abs(wanted["audio"] - got["audio"]) <= 2  # without a packet that it cannot read, a decoder may read the next
    assert done.report.said[0].startswith(f"{source} is damaged: ")
    assert "damaged packets published" in done.report.said[1]
    assert len(done.report.said) == 2
    if container == "mpegts":
        assert said[0].endswith(" is damaged: its readable part is kept")
        assert "packets that may be flawed" in said[1]


@pytest.mark.parametrize("kind", ["name", "size", "hole", "end", "run"])
def test_damage_to_mp4_is_told_by_the_recorder(tmp_path: Path, clip: Path, kind: str) -> None:
    """MP4 marks nothing: demuxers pass over what they do not understand. What can be read is kept."""
    segments = publish(clip, "fmp4").segments
    data = bytearray(segments[1])
    at = data.index(b"moof", len(data) // 2)
    match kind:
        case "name":
            data[at : at + 4] = b"mOOf"
        case "size":
            data[at - 4 : at] = (1 << 24).to_bytes(4)
        case "hole":
            del data[at + 300 : at + 900]
        case "end":
            del data[-100:]
        case "run":
            run = data.index(b"trun", at)
            data[run + 8 : run + 12] = bytes(4)
    told = record([segments[0], bytes(data), *segments[2:]], tmp_path / "out.mp4")
    assert told[0] == "segment 1 is damaged: its readable part is kept"
    assert told[1].endswith("; 1 fragment missing or cut off")
    assert decodable(tmp_path / "out.mp4")["video"] >= 112


HEVC = "-c:v libx265 -preset ultrafast -x265-params log-level=none -g 25 -pix_fmt yuv420p"


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
@pytest.mark.parametrize(
    ("codec", "unit"),
    [(H264, b"\0\0\1\x67"), (H264, b"\0\0\1\x68"), (HEVC, b"\0\0\1\x42\1")],
    ids=["sps", "pps", "hevc"],
)
def test_a_damaged_first_description_spoils_nothing_behind_it(
    tmp_path: Path, codec: str, unit: bytes, container: ContainerName
) -> None:
    """It is not repeated in MPEG-TS, and MP4 waits for one that can be read, and says how much is left out."""
    film = made(tmp_path / "film.ts", f"{picture(3, '64x64')} {tone(3)} {codec} {AAC}").read_bytes()
    source = tmp_path / "damaged.ts"
    for seed in (0, 1, 2, 5, 7):
        dice, data = Random(seed), bytearray(film)
        for _ in range(dice.choice((1, 3, 8))):
            data[data.index(unit) + 3 + dice.randrange(20)] = dice.randrange(256)
        source.write_bytes(data)
        done = publish(source, container)
        for old in tmp_path.glob("out*.mkv"):
            old.unlink()
        said = record(done.segments, tmp_path / "out.mkv")
        assert not any("is left out" in line for line in said)  # each segment can be read
        got = sum((decodable(path) for path in tmp_path.glob("out*.mkv")), Counter[str]())
        wanted = decodable(source)
        assert got["audio"] == wanted["audio"]
        told = re.search(r"and (\d+) unreadable packets? left out", done.report.said[-1] if done.report.said else "")
        assert container == "fmp4" or not told
        assert got["video"] + (int(told[1]) if told else 0) >= wanted["video"]


def test_a_segment_that_cannot_be_read_is_told_also_if_it_is_the_first(tmp_path: Path, clip: Path) -> None:
    """The next ones are recorded."""
    segments = publish(clip).segments
    said = record([b"no media", *segments], tmp_path / "out.mp4")
    assert said == ["segment 0 is left out: it is neither MPEG-TS nor MP4"]
    assert decodable(tmp_path / "out.mp4")["video"] == 150


def test_continuity_errors_are_not_numbered_away(tmp_path: Path, clip: Path) -> None:
    """The counters of what is published jump where the source's did; without damage they never do."""
    source = tmp_path / "damaged.ts"
    source.write_bytes(damaged(clip.read_bytes(), "lost"))
    lost = {}
    for path in (clip, source):
        continuity = Continuity()
        steps = [continuity.feed(packet) for packet in ts_packets(b"".join(publish(path).segments))]
        lost[path] = steps.count(Step.LOST)
    assert lost[clip] == 0
    assert lost[source] >= 10


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(more, marks=pytest.mark.long) for more in range(6, 12))])
def test_any_damage_to_segments_leaves_a_whole_recording(tmp_path: Path, clip: Path, seed: int) -> None:
    """Of what others published: as many frames are kept as decode of all segments in a row, but for one at a start code
    that is damaged."""
    kind: ContainerName = "mpegts"
    segments = [damaged(data, ("lost", "bytes", "cut")[seed % 3], seed) for data in publish(clip, kind).segments]
    record(segments, tmp_path / "out.mp4")
    (tmp_path / "all.ts").write_bytes(b"".join(segments))
    wanted, got = decodable(tmp_path / "all.ts"), decodable(tmp_path / "out.mp4")
    assert got["video"] >= wanted["video"] - 1
    assert got["audio"] >= wanted["audio"] - len(segments)


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv"])
def test_pictures_of_a_variable_rate_keep_their_times(tmp_path: Path, name: str) -> None:
    """Through MPEG-TS, which does not say how long a picture is, and over the fragments of the file."""
    select = "select='if(between(mod(n,37),5,11),0,gt(random(3),0.3))'"
    source = made(tmp_path / "vfr.mp4", f"{picture(6)} {tone(6)} -vf {select} -fps_mode vfr {H264} {AAC}")
    record(publish(source).segments, tmp_path / name)
    wanted, got = picture_times(source), picture_times(tmp_path / name)
    assert len(got) == len(wanted)
    assert max(abs(mine - theirs) for mine, theirs in zip(got, wanted, strict=True)) <= Fraction(1, 1000)


@pytest.mark.parametrize("frames", range(22, 28))
def test_the_last_picture_is_shown(tmp_path: Path, frames: int) -> None:
    """Also where it was decoded before the others of the last fragment, and where its length is not told."""
    interlaced = "-vf tinterlace=interleave_top -flags +ildct+ilme -c:v mpeg2video -g 12 -bf 2"
    source = made(tmp_path / "film.ts", f"{picture(4, '64x64')} {interlaced} -frames:v {frames}")
    record(publish(source).segments, tmp_path / "out.mp4")
    assert shown_frames(tmp_path / "out.mp4") == shown_frames(source)


@pytest.mark.parametrize(
    ("name", "codecs", "gained"),
    [
        ("film.mp4", f"-c:v libsvtav1 -preset 12 -g 25 -pix_fmt yuv420p {AAC}", "av1"),
        ("film.webm", "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 25 -c:a libopus", "vp9, opus"),
        ("film.mkv", f"{H264} -c:a libopus", "opus"),
        ("film.mkv", f"{H264} -c:a flac", "flac"),
    ],
)
def test_codecs_that_only_mp4_carries_choose_it(tmp_path: Path, name: str, codecs: str, gained: str) -> None:
    """With a line that says so; recorded, every frame is there."""
    source = made(tmp_path / name, f"{picture(2)} {tone(2)} {codecs}")
    done = Run(str(source), FILE).run()
    assert done.report.said == [f"published as fragmented MP4, since players take {gained} there, and not in MPEG-TS"]
    for recording in (tmp_path / "out.mp4", tmp_path / "out.mkv"):
        assert record(done.segments, recording) == []
        assert decodable(recording)["video"] == 50
        assert decodable(recording)["audio"] >= decodable(source)["audio"]


def test_a_picture_that_cannot_be_carried_is_no_picture_less(tmp_path: Path) -> None:
    """The sound alone is not what was asked for: an error names what to do."""
    source = made(tmp_path / "film.webm", f"{picture(1)} {tone(1)} -c:v libvpx-vp9 -cpu-used 8 -c:a libopus")
    with pytest.raises(InvalidInput, match=r"no video that MPEG-TS can carry \(vp9\); --container fmp4 can carry it"):
        publish(source)
    source = made(tmp_path / "film.mkv", f"{picture(1)} {tone(1)} -c:v ffv1 {AAC}")
    with pytest.raises(InvalidInput, match=r"no video that MPEG-TS can carry \(ffv1\); --transcode may help"):
        Run(str(source), FILE).run()


def turned(path: Path, degrees: int) -> Path:
    """A film of a phone that was held in another way.

    The matrix of the track says so. No option of ffmpeg sets it in all versions.
    """
    film = bytearray(made(path, f"{picture(1)} {H264}").read_bytes())
    at = film.index(b"tkhd") + 44
    cos, sin = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    struct.pack_into(">5i", film, at, cos << 16, -sin << 16, 0, sin << 16, cos << 16)
    path.write_bytes(film)
    return path


def test_a_turned_picture_stays_turned_in_mp4(tmp_path: Path) -> None:
    """In segments and in recordings; MPEG-TS cannot say it, which people are told."""
    source = turned(tmp_path / "turned.mp4", 90)
    segments = publish(source, "fmp4").segments
    record(segments, tmp_path / "out.mp4")
    (tmp_path / "segment.mp4").write_bytes(segments[0])
    for path in (source, tmp_path / "segment.mp4", tmp_path / "out.mp4"):
        with av.open(str(path)) as container:
            assert next(container.decode(video=0)).rotation == 90
    assert publish(source).report.said == [
        "the picture lies on its side or head, which MPEG-TS cannot say: "
        "--container fmp4 keeps that, --transcode turns it"
    ]


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_encoding_turns_the_picture(tmp_path: Path, degrees: int) -> None:
    """As players turn it."""
    source = turned(tmp_path / "turned.mp4", degrees)
    done = Run(str(source), MediaOptions(realtime=False, encoding=Encoding(video_bitrate=4_000_000))).run()
    assert done.report.said == []
    inputs = {"turned.mp4": source.read_bytes()}
    as_played = made(tmp_path / "played.mkv", "-i turned.mp4 -an -c:v ffv1", inputs=inputs)
    with av.open(io.BytesIO(done.segments[0]), "r") as encoded, av.open(str(as_played), "r") as played:
        mine, theirs = (next(film.decode(video=0)).to_ndarray(format="gray").astype(int) for film in (encoded, played))
    assert mine.shape == theirs.shape
    assert abs(mine - theirs).mean() < 4


def combing(picture: Any) -> float:
    """How much more neighbouring lines differ than lines of one field."""
    between = abs(picture[1:-1] - picture[:-2]).mean() + abs(picture[1:-1] - picture[2:]).mean()
    return float(between / 2 - abs(picture[2:] - picture[:-2]).mean())


def test_encoding_makes_whole_pictures_of_interlaced_ones(tmp_path: Path) -> None:
    """All of them, at their times."""
    interlaced = "-vf tinterlace=interleave_top -flags +ildct+ilme -c:v mpeg2video -q:v 2 -g 12 -bf 2"
    source = made(tmp_path / "film.ts", f"{picture(2, '360x288', 50)} {interlaced}")
    done = Run(str(source), MediaOptions(realtime=False, encoding=Encoding())).run()
    (tmp_path / "out.ts").write_bytes(b"".join(done.segments))
    assert picture_times(tmp_path / "out.ts") == pytest.approx(picture_times(source), abs=0.001)
    pictures = {}
    for path in (source, tmp_path / "out.ts"):
        with av.open(str(path)) as container:
            frame = list(container.decode(video=0))[20]
            pictures[path] = combing(frame.to_ndarray(format="gray").astype(int))
            assert frame.interlaced_frame == (path == source)
    assert pictures[source] > 0 > pictures[tmp_path / "out.ts"]


@pytest.mark.parametrize("piece", [1, 7, 65536])
def test_an_index_at_the_end_of_a_pipe_is_an_error_at_once(tmp_path: Path, piece: int) -> None:
    """It says what to do; a file that begins with its index can be piped."""
    late = made(tmp_path / "late.mp4", f"{picture(1)} {H264}").read_bytes()
    soon = made(tmp_path / "soon.mp4", f"{picture(1)} {H264} -movflags +faststart").read_bytes()

    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or piece, piece) if self.tell() < 4096 else size)

    with pytest.raises(InvalidInput, match=r"^it is MP4 with its index at the end, .*: give the file's name, or send"):
        open_media(IndexFirst(Pipe(late), "it"), "it")
    assert len(list(open_media(IndexFirst(Pipe(soon), "it"), "it").packets())) == 25


def test_a_named_pipe_is_a_pipe(tmp_path: Path) -> None:
    """No demuxer seeks in it."""
    os.mkfifo(tmp_path / "pipe")
    film = made(tmp_path / "late.mp4", f"{picture(1)} {H264}")
    copying = ["cp", str(film), str(tmp_path / "pipe")]
    refused = pytest.raises(InvalidInput, match=r"pipe is MP4 with its index at the end")
    with subprocess.Popen(copying, stderr=subprocess.DEVNULL), refused:
        Run(str(tmp_path / "pipe"), FILE).run()


def seconds(segment: bytes, format_: str) -> float:
    """How long a segment's sound is."""
    with av.open(io.BytesIO(segment), "r", format_) as container:
        sound = container.streams.audio[0]
        times = [packet.dts for packet in container.demux(sound) if packet.dts is not None]
        return float((times[-1] - times[0]) * (sound.time_base or 0))


def told_length(segment: bytes) -> float:
    """How long HLS says that a segment is."""
    found = scanner(sniff(segment), b"")
    assert found is not None
    found.feed(segment)
    found.finish(len(segment))
    return sum(duration_of(found.units, place) for place in range(len(found.units))) + found.still_s


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_a_picture_that_stands_for_longer_than_its_segment_is_told_as_long_as_that(
    tmp_path: Path, container: ContainerName
) -> None:
    """One of five seconds, whose sound is cut after three."""
    slides = f"{picture(10, '64x64', '1/5')} {tone(10)} {H264} -g 1 {AAC}"
    segments = publish(made(tmp_path / "slides.mkv", slides), container).segments
    assert [told_length(data) for data in segments] == pytest.approx([3, 2, 3, 2], abs=0.05)


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_sound_cuts_segments_where_no_picture_comes(tmp_path: Path, container: ContainerName) -> None:
    """A picture that comes back begins a segment; nothing is lost."""
    film = made(tmp_path / "film.ts", f"{picture(2)} {H264} -muxdelay 0").read_bytes()
    stops = "-f concat -i list.txt -i tone.wav -map 0:v -map 1:a -c:v copy -muxdelay 0 " + AAC
    inputs = {
        "film.ts": film,
        "list.txt": b"file film.ts\nduration 17\nfile film.ts\n",
        "tone.wav": made(tmp_path / "tone.wav", tone(20)).read_bytes(),
    }
    source = made(tmp_path / "stops.ts", stops, inputs=inputs)
    segments = publish(source, container).segments
    lengths = [seconds(data, "mpegts" if container == "mpegts" else "mp4") for data in segments]
    assert max(lengths) <= 4.2
    assert sum(length > 1.9 for length in lengths) >= 7
    assert [told_length(data) for data in segments] == pytest.approx(lengths, abs=0.2)
    if container == "mpegts":
        (tmp_path / "all.ts").write_bytes(b"".join(segments))  # the sound keeps its PID, for readers of all in a row
        assert decodable(tmp_path / "all.ts") == decodable(source)
    record(segments, tmp_path / "out.mp4")
    assert decodable(tmp_path / "out.mp4") == decodable(source)
    with av.open(io.BytesIO(segments[-2]), "r") as back:  # two groups of pictures, after the pause
        assert next(packet for packet in back.demux() if packet.stream.type == "video").is_keyframe


def test_a_stream_without_keyframes_is_published_all_the_same(tmp_path: Path) -> None:
    """One segment shows what the server takes; the next ones are smaller, and say that nobody can begin there."""
    endless = "-x264-params intra-refresh=1:keyint=infinite -b:v 400k"
    source = made(tmp_path / "film.ts", f"{picture(12, '320x180')} {tone(12)} {H264} {endless} {AAC}")
    with local_server(max_segment_bytes=100_000) as server:
        url = f"http://127.0.0.1:{server.port}/trickle/endless"
        command = forked("publish", url, source, "--no-realtime", "--leave-open")
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        assert done.returncode == 1
        said = done.stderr.splitlines()
        lost = sum("is lost: segment too large" in line for line in said)
        assert lost in (1, 2)  # the second may have begun before the server has answered the first
        assert sum("has too few keyframes" in line for line in said) == 1
        segments = [httpx.get(f"{url}/{seq}").content for seq in range(lost, int(said[-1].split()[1]))]
    pictures = sum(packets_of(data)[0] for data in segments)
    assert pictures >= 100
    assert [packets_of(data)[1] for data in segments] == [0] * len(segments)
    assert f"{pictures} pictures left out: nothing can be decoded before the next keyframe" in record(
        segments, tmp_path / "film.mkv"
    )


def packets_of(segment: bytes) -> tuple[int, int]:
    """How many pictures a segment has, and how many keyframes."""
    with av.open(io.BytesIO(segment), "r", "mpegts") as container:
        marks = [packet.is_keyframe for packet in container.demux(video=0) if packet.size]
        return len(marks), sum(marks)


@pytest.mark.parametrize(("encoder", "suffix"), [("libx264", "h264"), ("libx265", "hevc"), ("mpeg2video", "m2v")])
def test_a_bare_stream_is_shown_in_the_right_order(tmp_path: Path, encoder: str, suffix: str) -> None:
    """Its B-frames have no times of their own."""
    codec = f"-c:v {encoder} -preset ultrafast -x265-params log-level=none -bf 3 -g 25 -pix_fmt yuv420p"
    source = made(tmp_path / f"bare.{suffix}", f"{picture(3, '64x64')} {codec}")
    record(publish(source).segments, tmp_path / "out.mp4")
    times = picture_times(tmp_path / "out.mp4")
    assert times == [Fraction(number, 25) for number in range(75)]


@pytest.mark.parametrize("pictures", [1, 10, 40, 70, 200])
def test_all_pictures_of_a_bare_stream_are_published_however_few_they_are(tmp_path: Path, pictures: int) -> None:
    """The last ones wait for others that tell their places: the first ones, of which at most 65 are kept."""
    film = made(tmp_path / "film.h264", f"{picture(8, '64x64')} -c:v libx264 -preset ultrafast -bf 3 -pix_fmt yuv420p")
    with av.open(str(film)) as container:
        parts = [bytes(packet) for packet in container.demux(video=0)]
    bare = tmp_path / "bare.h264"
    bare.write_bytes(b"".join(parts[:pictures]))
    source, most = open_media(str(bare), "it"), 0
    packets = source._timed(demuxed(source._container, list(source._container.streams)))
    times = []
    for packet in packets:
        times.append(packet.pts)
        most = max(most, len(packets.gi_frame.f_locals["first"]))  # type: ignore[attr-defined]
    assert most == min(pictures, MAX_HELD + 1)
    assert len(set(times)) == len(times) == pictures


@pytest.mark.parametrize("suffix", ["mkv", "flv", "mp4"])
def test_a_file_that_was_cut_off_is_an_error(tmp_path: Path, suffix: str) -> None:
    """What there is of it is published; demuxers take the end of the bytes for the end of the film."""
    index = "-movflags +faststart" if suffix == "mp4" else ""
    film = made(tmp_path / f"film.{suffix}", f"{picture(3, '64x64')} {tone(3)} {H264} {AAC} {index}").read_bytes()
    source = tmp_path / f"cut.{suffix}"
    source.write_bytes(film[: len(film) // 2])
    run = Run(str(source), FILE)
    with pytest.raises(SourceBroke, match=r"it ends after 1\.\d s of 3\.\d s; it was cut off"):
        run.run()
    (tmp_path / "out.ts").write_bytes(b"".join(run.segments))
    assert 30 <= decodable(tmp_path / "out.ts")["video"] <= 45
    source.write_bytes(film[: len(film) * 19 // 20])
    publish(source)


def test_a_source_of_which_nothing_can_be_published_is_an_error(tmp_path: Path) -> None:
    """As a recording that begins and ends between two keyframes."""
    film = made(tmp_path / "film.ts", f"{picture(4)} {H264} -g 500").read_bytes()
    source = tmp_path / "middle.ts"
    source.write_bytes(film[: 188 * 3] + film[len(film) // 2 // 188 * 188 :])
    with pytest.raises(SourceBroke, match=r"nothing of .*middle\.ts could be published: it has no keyframe"):
        publish(source)


@pytest.mark.parametrize("container", ["mpegts", "fmp4", None])
def test_an_encrypted_source_is_an_error(tmp_path: Path, container: ContainerName | None) -> None:
    """Its pictures can be seen by nobody; with its key it is an ordinary source."""
    key = "76a6c65c5ea762046bd749a2e632ccbb"
    scheme = f"-encryption_scheme cenc-aes-ctr -encryption_key {key} -encryption_kid {key[::-1]}"
    source = made(tmp_path / "film.mp4", f"{picture(1)} {tone(1)} {H264} {AAC} {scheme}")
    encoding = None if container else Encoding(preset="ultrafast")
    options = MediaOptions(container=container, realtime=False, encoding=encoding)
    with pytest.raises(SourceBroke, match=r"it is encrypted, .*; --input-option decryption_key=HEX may decrypt it"):
        Run(str(source), options).run()
    done = Run(str(source), options, {"decryption_key": key}).run()
    record(done.segments, tmp_path / "out.mp4")
    assert decodable(tmp_path / "out.mp4")["video"] == 25


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.ts", b""),
        ("text.mp4", b"Hello\n" * 9),
        ("page.ts", b"<!doctype html><title>Camera</title>"),
        ("one", b"x"),
    ],
)
def test_what_is_no_media_is_said_to_be_none(tmp_path: Path, name: str, data: bytes) -> None:
    """In a line, as are films without their index."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidInput, match=rf"cannot read .*{name}: it is no media, or incomplete$"):
        Run(str(tmp_path / name), FILE).run()


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv"])
@pytest.mark.parametrize("codec", ["truehd", "dca"])
def test_rare_sound_is_recorded_or_left_out_with_a_line(tmp_path: Path, codec: str, name: str) -> None:
    """Also where libavformat calls it experimental."""
    source = made(tmp_path / "film.mkv", f"{picture(1)} {tone(1)} {H264} -c:a {codec} -strict -2")
    said = record(publish(source).segments, tmp_path / name)
    kept = decodable(tmp_path / name)
    assert kept["video"] == 25
    assert kept["audio"] == decodable(source)["audio"] or said


def test_codecs_that_look_alike_stay_in_one_file(tmp_path: Path) -> None:
    """MPEG-1 and its sound: libavformat takes the sound of some segments for layer 2, of others for layer 3."""
    source = made(tmp_path / "film.mpg", f"{picture(6)} {tone(6)} -c:v mpeg1video -g 15 -bf 2 -c:a mp2")
    assert record(publish(source).segments, tmp_path / "out.mkv") == []
    assert decodable(tmp_path / "out.mkv") == decodable(source)


def test_a_codec_that_changes_ends_the_source_with_an_error(tmp_path: Path) -> None:
    """What came before it is published whole; a network source is opened again, and goes on in the new codec."""
    first = made(tmp_path / "first.ts", f"{picture(2, '64x64')} {H264}").read_bytes()
    second = made(tmp_path / "second.ts", f"{picture(2, '64x64')} {HEVC}").read_bytes()
    source = tmp_path / "both.ts"
    source.write_bytes(first + second)
    done = Run(str(source), FILE)
    with pytest.raises(SourceBroke, match="its video changes from h264 to hevc"):
        done.run()
    before = len(done.decoded().hashes["video"])
    assert before >= 48  # libavformat's parser keeps a picture back
    for sound, other in (("aac", "mp2"), ("mp2", "aac"), ("ac3", "mp2")):
        parts = [
            made(tmp_path / f"{codec}.ts", f"{tone(1)} -c:a {codec} -output_ts_offset {at}").read_bytes()
            for codec, at in ((sound, 0), (other, 1))
        ]
        source.write_bytes(b"".join(parts))
        with pytest.raises(SourceBroke, match=f"its audio changes from {sound} to {other}"):
            publish(source)
    with serving(first + second, second) as address:
        live = Run(f"tcp://{address}", MediaOptions(realtime=False, reconnect_for_s=0.2)).run()
    record(live.segments, tmp_path / "out.mp4")
    assert decodable(tmp_path / "out.mp4")["video"] == before
    assert decodable(tmp_path / "out-2.mp4")["video"] == 50


LATE = f"-f lavfi -i testsrc2=size=64x64:rate=25:duration=4 -itsoffset {{}} -f lavfi -i sine=r=48000:d=1.5 {H264} {AAC}"


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_sound_that_is_announced_long_before_it_begins_is_there(tmp_path: Path, container: ContainerName) -> None:
    """Its tables say little: only its packets tell its shape. MP4 names it in the next segment, which has all of it."""
    silent = made(tmp_path / "silent.ts", f"{picture(3)} {H264}").read_bytes()
    source = tmp_path / "late.ts"
    source.write_bytes(silent + made(tmp_path / "late.ts", LATE.format(1.5)).read_bytes())
    segments = publish(source, container).segments
    record(segments, tmp_path / "out.mkv")
    recorded = sum((decodable(path) for path in tmp_path.glob("out*.mkv")), Counter[str]())
    assert recorded == decodable(source) == {"video": 175, "audio": recorded["audio"]}
    assert recorded["audio"] >= 70
    (tmp_path / "all").write_bytes(b"".join(segments) if container == "mpegts" else segments[-1])
    with av.open(str(tmp_path / "all"), "r") as film:
        times = [
            (packet.pts or 0) * packet.time_base
            for packet in film.demux()
            if packet.size and packet.stream.type == "audio"
        ]
    assert {round(after - before, 3) for before, after in pairwise(times)} <= {Fraction(21, 1000), Fraction(22, 1000)}


@pytest.mark.parametrize("begins_s", [0, 2.5])
def test_sound_that_begins_late_on_a_pipe_has_its_times(tmp_path: Path, begins_s: float) -> None:
    """libavformat, which cannot look ahead there, gives its first packets none."""
    segments, _, _ = piped(made(tmp_path / "late.ts", LATE.format(begins_s)).read_bytes())
    with av.open(io.BytesIO(b"".join(segments)), "r", "mpegts") as film:
        times = [packet.pts or 0 for packet in film.demux() if packet.size and packet.stream.type == "audio"]
    assert len(times) >= 70
    assert {after - before for before, after in pairwise(times)} == {1920}


@pytest.mark.parametrize("begins_s", [1.5, 3.5])
def test_mp4_has_all_of_sound_that_begins_in_the_middle_of_a_segment(tmp_path: Path, begins_s: float) -> None:
    """Also of the last segment: then it is one of its own."""
    source = made(tmp_path / "late.ts", LATE.format(begins_s))
    segments = publish(source, "fmp4").segments
    frames = [packet for data in segments for packet in sounds_of(data)]
    with av.open(str(source)) as container:
        assert frames == [len(bytes(packet)) - 7 for packet in container.demux(audio=0) if packet.size]


def piped(
    data: bytes, container: ContainerName = "mpegts", options: dict[str, str] | None = None
) -> tuple[list[bytes], list[str], str]:
    """What becomes of bytes on a pipe: the segments, what was said, and why it broke."""
    source, said, broke = open_media(IndexFirst(io.BytesIO(data), "it"), "it", options=options), list[str](), ""
    segments = [bytearray()]
    remuxer = Remuxer(Segmenter(container), warn=said.append, advice="; --transcode may help")
    try:
        for step in remuxer.steps(source, "it"):
            if isinstance(step, Chunk):
                segments[-1] += step.data
            else:
                segments.append(bytearray())
    except SourceBroke as error:
        broke = str(error)
    return [bytes(data) for data in segments], said, broke


FILM: Final = f"{picture(2, '64x64')} {tone(2)} {H264} {AAC}"


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_other_pids_in_the_middle_go_on_in_the_same_streams(tmp_path: Path, container: ContainerName) -> None:
    """Tables of another version name them, as where a broadcaster changes its encoder."""
    film = made(tmp_path / "film.ts", FILM).read_bytes()
    moved = made(tmp_path / "moved.ts", f"{FILM} -output_ts_offset 2 -mpegts_start_pid 0x200").read_bytes()
    (tmp_path / "both.ts").write_bytes(film + moved)
    for segments in (publish(tmp_path / "both.ts", container).segments, piped(film + moved, container)[0]):
        record(segments, tmp_path / "out.mkv")
        assert decodable(tmp_path / "out.mkv")["video"] == 100


def test_streams_that_are_announced_too_late_are_named(tmp_path: Path) -> None:
    """With what to type. Where all goes on in them, it is an error: the rest can be published on its own."""
    silent = made(tmp_path / "silent.ts", f"{picture(2, '64x64')} {H264}").read_bytes()
    film = made(tmp_path / "film.ts", f"{FILM} -output_ts_offset 2").read_bytes()
    told = (
        "left out: stream 1 (audio: aac), which was announced after the input was opened; --input-option probesize=50M "
        "--input-option analyzeduration=60M --input-option scan_all_pmts=1 looks further ahead"
    )
    segments, said, broke = piped(silent + film)
    assert (told in said, broke) == (True, "")
    assert sum(packets_of(data)[0] for data in segments) == 100
    options = dict(option.split("=") for option in LOOK_AHEAD.split() if "=" in option)
    assert told not in piped(silent + film, options=options)[1]  # the sound is published
    other = f"{FILM} -output_ts_offset 2 -mpegts_start_pid 0x300 -mpegts_pmt_start_pid 0x1100 -mpegts_service_id 7"
    _, said, broke = piped(film + made(tmp_path / "other.ts", other).read_bytes())
    assert [line.split(" which")[0] for line in said] == [
        "left out: stream 2 (video: h264),",
        "left out: stream 3 (audio: aac),",
    ]
    assert broke == "it goes on in other streams (video: h264, audio: aac); publish the rest on its own"


def test_a_live_source_that_goes_on_in_other_streams_breaks(tmp_path: Path) -> None:
    """After 16 MiB, here 64 KiB, without a packet: PyAV passes over the others, and nobody would hear of it."""
    film = made(tmp_path / "film.ts", FILM).read_bytes()
    other = f"{FILM} -output_ts_offset 2 -mpegts_start_pid 0x300 -mpegts_pmt_start_pid 0x1100 -mpegts_service_id 7"
    rest = made(tmp_path / "other.ts", other).read_bytes()
    taken = 0

    class Endless:
        def read(self, size: int) -> bytes:
            nonlocal taken
            data = film[taken : taken + 4096] or (rest * 2)[(taken - len(film)) % len(rest) :][:4096]
            taken += len(data)
            return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "MAX_BYTES_WITHOUT_PACKET", 64 * 1024)
        source = open_media(Endless(), "it")
        with pytest.raises(SourceBroke, match=r"it goes on in other streams \(video: h264, audio: aac\)"):
            list(Remuxer(Segmenter(), warn=print).steps(source, "it"))
    assert taken < len(film) + 128 * 1024


@pytest.mark.parametrize("limit", ["MAX_BYTES_WITHOUT_PACKET", "READ_S"])
def test_a_network_source_that_goes_on_in_other_streams_breaks(tmp_path: Path, limit: str) -> None:
    """After 16 MiB, here 64 KiB, or after 10 s, here one, without a packet, although bytes come."""
    film = made(tmp_path / "film.ts", FILM).read_bytes()
    other = f"{FILM} -output_ts_offset 2 -mpegts_start_pid 0x300 -mpegts_pmt_start_pid 0x1100 -mpegts_service_id 7"
    rest = made(tmp_path / "other.ts", other).read_bytes()

    def send(listener: socket.socket) -> None:
        with listener.accept()[0] as connection, suppress(OSError):
            connection.sendall(film)
            while True:
                connection.sendall(rest)

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        threading.Thread(target=send, args=[listener], daemon=True).start()
        given = Input.parse(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        opened = given.open(lambda: False)
        patch.setattr(inputs, limit, 64 * 1024 if limit == "MAX_BYTES_WITHOUT_PACKET" else 1.0)
        with pytest.raises(SourceBroke, match=r"it goes on in other streams \(video: h264, audio: aac\)"):
            list(Remuxer(Segmenter(), warn=print).steps(opened.source, "it"))


def sounds_of(segment: bytes) -> list[int]:
    """The sizes of a segment's packets of sound."""
    with av.open(io.BytesIO(segment), "r", "mp4") as container:
        return [packet.size for packet in container.demux() if packet.size and packet.stream.type == "audio"]


def test_sound_that_waits_for_the_next_segment_counts_towards_the_size_of_this_one(tmp_path: Path) -> None:
    """So a stream without keyframes makes nothing wait for ever."""
    endless = "-x264-params keyint=infinite:scenecut=0 -b:v 20k"
    film = f"{picture(12, '64x64')} -itsoffset 3 {tone(9)} {H264} {endless} -c:a aac -b:a 256k"
    run = Run(str(made(tmp_path / "late.ts", film)), MediaOptions(container="fmp4", realtime=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segmenter, "MAX_BYTES", 40_000)
        segments = run.run().segments
    assert len(segments) >= 3
    assert max(map(len, segments)) < 100_000


def data_of(film: Path) -> list[tuple[int, bytes]]:
    """The packets of its data, with their distance to the first picture."""
    with av.open(str(film)) as container:
        packets = [packet for packet in container.demux() if packet.size]
        first = next(packet.dts for packet in packets if packet.stream.type == "video")
        found = [packet for packet in packets if packet.stream.type == "data"]
        return [((packet.dts or 0) - (first or 0), bytes(packet)) for packet in found]


@pytest.mark.parametrize("delay", ["", "-muxdelay 0 -muxpreload 0"])
def test_cues_pass_through(tmp_path: Path, delay: str) -> None:
    """As sections that MPEG-TS announces as such; where times are moved, the cues are moved with them."""
    source = tmp_path / "cues.ts"
    film = made(tmp_path / "film.ts", f"{picture(4)} {tone(4)} {H264} {AAC} {delay}")
    source.write_bytes(with_cues(film.read_bytes()))
    done = publish(source)
    assert done.report.said == []
    (tmp_path / "out.ts").write_bytes(b"".join(done.segments))
    wanted, got = data_of(source), data_of(tmp_path / "out.ts")
    assert len(wanted) == len(got) > 5
    moved = first_picture(tmp_path / "out.ts") - first_picture(source)
    assert bool(moved) == bool(delay)
    for _, cue in got:
        assert int.from_bytes(cue[4:9]) & (1 << 33) - 1 == moved
        assert crc32(cue) == 0
        assert cue[9:-4] == CUE[9:-4]
    counters = Continuity()
    assert not any(counters.feed(packet) is Step.LOST for packet in ts_packets((tmp_path / "out.ts").read_bytes()))


def first_picture(film: Path) -> int:
    """When it is decoded."""
    with av.open(str(film)) as container:
        return next(packet.dts for packet in container.demux(video=0) if packet.dts is not None)


def test_metadata_passes_through(tmp_path: Path, clip: Path) -> None:
    """KLV, beside the same pictures; MP4 does not carry it, which is said."""
    source = with_klv(clip, tmp_path / "klv.ts")
    done = publish(source)
    assert done.report.said == []
    (tmp_path / "out.ts").write_bytes(b"".join(done.segments))
    assert data_of(tmp_path / "out.ts") == data_of(source) != []
    assert publish(source, "fmp4").report.said == ["left out: stream 2 (data, klv)"]


ID3: Final = bytes.fromhex("494433 04 00 00 00000014 54495432 0000000a 0000 03") + b"A title.."
TIMED: Final = bytes.fromhex("260d ffff 49443320 ff 49443320 00 0f".replace(" ", ""))


def test_timed_id3_passes_through(tmp_path: Path, clip: Path) -> None:
    """Players of HLS give it to web pages."""
    source = tmp_path / "id3.ts"
    source.write_bytes(with_pes(clip.read_bytes(), 0x15, TIMED, ID3))
    done = publish(source)
    assert done.report.said == []
    (tmp_path / "out.ts").write_bytes(b"".join(done.segments))
    assert [data for _, data in data_of(tmp_path / "out.ts")] == [data for _, data in data_of(source)] != []


def test_teletext_passes_through(tmp_path: Path, clip: Path) -> None:
    """With its language, beside the same pictures; MP4 does not carry it, which is said."""
    source = tmp_path / "teletext.ts"
    text = b"\x10\x03\x2c" + bytes(44)
    source.write_bytes(with_pes(clip.read_bytes(), 0x06, b"\x56\x05eng\x09\0", text))
    done = publish(source)
    assert done.report.said == []
    (tmp_path / "out.ts").write_bytes(b"".join(done.segments))
    wanted, got = texts_of(source), texts_of(tmp_path / "out.ts")
    assert [(language, data) for language, _, data in got] == [("eng", data) for _, _, data in wanted] != []
    times = [time for _, time, _ in got]  # the source's are all alike, and times of a stream increase
    assert times == sorted(set(times))
    assert abs(times[0]) < 90_000
    counters = Continuity()
    assert not any(counters.feed(packet) is Step.LOST for packet in ts_packets((tmp_path / "out.ts").read_bytes()))
    assert publish(source, "fmp4").report.said == ["left out: stream 2 (subtitle, dvb_teletext)"]


def texts_of(film: Path) -> list[tuple[str | None, int, bytes]]:
    """The packets of its teletext: language, distance to the first picture, bytes."""
    with av.open(str(film)) as container:
        assert [kind for kind, _ in present_streams(container).values()] == ["video", "audio", "subtitle"]
        packets = [packet for packet in container.demux() if packet.size]
        first = next(packet.dts for packet in packets if packet.stream.type == "video")
        found = [packet for packet in packets if packet.stream.type == "subtitle"]
        return [(p.stream.metadata.get("language"), (p.pts or 0) - (first or 0), bytes(p)) for p in found]


SOURCES = {
    "film.ts": f"{H264} {AAC}",
    "film.mp4": f"{H264} {AAC}",
    "film.mkv": f"{H264} {AAC}",
    "film.flv": f"{H264} {AAC}",
    "film.h264": f"{H264} -an",
    "film.mpg": "-c:v mpeg2video -bf 2 -c:a mp2",
    "film.webm": "-c:v libvpx-vp9 -cpu-used 8 -c:a libopus",
}


@pytest.mark.parametrize("name", mostly_long(SOURCES, 2))
def test_no_bytes_end_a_publisher_or_a_recorder_with_a_trace(tmp_path: Path, name: str) -> None:
    """Damaged before it is published, and again on its way: what is left comes through, or one line says why not."""
    film = made(tmp_path / name, f"{picture(2, '64x64')} {tone(2)} {SOURCES[name]}").read_bytes()
    for seed in range(8):
        dice = Random(seed)
        source = tmp_path / f"damaged-{name}"
        source.write_bytes(struck(film, dice, (1, 5, 50, 500)))
        container: ContainerName | None = dice.choice(["mpegts", "fmp4", None])
        encoding = Encoding(preset="ultrafast") if seed % 4 == 3 else None
        done = Run(str(source), MediaOptions(container=container, realtime=False, encoding=encoding))
        with suppress(InvalidInput):
            done.run()
        segments = [struck(data, dice, (0, 1, 20, 200)) for data in done.segments]
        recording = tmp_path / dice.choice(["out.mp4", "out.mkv", "out.mov"])
        if segments:
            with suppress(NotMedia):
                record(segments, recording)
                decodable(recording)  # it is a whole file


def struck(data: bytes, dice: Random, counts: tuple[int, ...]) -> bytes:
    """With so many wrong bytes, as the dice fall."""
    changed = bytearray(data)
    for _ in range(dice.choice(counts)):
        changed[dice.randrange(64, len(changed))] = dice.randrange(256)
    return bytes(changed)
