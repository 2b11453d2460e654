"""Inputs that are damaged, or rarer than most: what is published and recorded of them, and what people are told."""

from __future__ import annotations

import io
from collections import Counter
from fractions import Fraction
from pathlib import Path

import av
import pytest
from av.error import FFmpegError

from tests.publisher.media.test_reader import Run
from tests.support.inputs import AAC, H264, damaged, made, picture, tone
from tricklecast.publisher.media.muxers import ContainerName
from tricklecast.publisher.media.reader import MediaOptions
from tricklecast.subscriber.media.joiner import Joiner
from tricklecast.trickle.media.containers import Continuity, Step, ts_packets
from tricklecast.trickle.media.demux import demuxed


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
        times = [frame.pts * frame.time_base for frame in container.decode(video=0) if frame.pts is not None]
    return [time - times[0] for time in times]


def shown_frames(path: Path) -> int:
    """How many pictures a player shows, edit lists and all."""
    with av.open(str(path)) as container:
        return sum(bool(packet.size) and not packet.is_discard for packet in container.demux(video=0))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six seconds of MPEG-TS with B-frames and sound."""
    return made(tmp_path_factory.mktemp("clips") / "clip.ts", f"{picture(6)} {tone(6)} {H264} {AAC}")


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv"])
@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
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
    assert wanted["audio"] - 2 <= got["audio"] <= wanted["audio"]
    assert done.report.said[0].startswith(f"{source} is damaged: ")
    assert "damaged packets published" in done.report.said[1]
    assert len(done.report.said) == 2
    if container == "mpegts":
        assert said[0].endswith(" is damaged: what can be read of it is kept")
        assert "packets that may be flawed" in said[1]


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


@pytest.mark.parametrize("seed", range(12))
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
    source = made(tmp_path / "vfr.mp4", f"{picture(6)} {tone(6)} -vf {select} -vsync vfr {H264} {AAC}")
    record(publish(source).segments, tmp_path / name)
    wanted, got = picture_times(source), picture_times(tmp_path / name)
    assert len(got) == len(wanted)
    assert max(abs(mine - theirs) for mine, theirs in zip(got, wanted, strict=True)) <= Fraction(1, 1000)


@pytest.mark.parametrize("frames", range(22, 28))
def test_the_last_picture_is_shown(tmp_path: Path, frames: int) -> None:
    """Also where it was decoded before the others of the last fragment, and where its length is not told."""
    interlaced = "-vf tinterlace=interleave_top -flags +ildct+ilme -top 1 -c:v mpeg2video -g 12 -bf 2"
    source = made(tmp_path / "film.ts", f"{picture(4, '64x64')} {interlaced} -frames:v {frames}")
    record(publish(source).segments, tmp_path / "out.mp4")
    assert shown_frames(tmp_path / "out.mp4") == shown_frames(source)
