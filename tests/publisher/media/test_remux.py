"""Remuxing: joined segments decode to the very frames of the source, and each segment stands alone."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import pytest

from publisher.media.mpegts import PACKET_BYTES
from publisher.media.remux import Remuxer
from publisher.media.source import open_media
from publisher.steps import Chunk, Cut, Step
from tests.publisher.media.clips import decode, make_clip
from trickle.errors import InvalidInput


def remux(path: Path, warnings: list[str] | None = None) -> list[Step]:
    """All steps of a file."""
    said: list[str] = [] if warnings is None else warnings
    return list(Remuxer(open_media(str(path), path.name), path.name, said.append).steps())


def joined(steps: list[Step]) -> list[bytes]:
    """The segments."""
    segments = [b""]
    for step in steps:
        if isinstance(step, Cut):
            segments.append(b"")
        else:
            segments[-1] += step.data
    return segments


def expected_segments(path: Path) -> int:
    """One per keyframe of the video; of sound alone, one per 2 seconds."""
    with av.open(str(path), "r") as container:
        if not container.streams.video:
            return 3
        return sum(packet.is_keyframe for packet in container.demux(container.streams.video[0]) if packet.size)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip.mp4", {}),
        ("clip.mkv", {}),
        ("clip.ts", {}),
        ("open.mkv", {"open_gop": True}),
        ("hevc.mp4", {"video": "libx265"}),
        ("hevc.mkv", {"video": "libx265", "open_gop": True}),
        ("mpeg4.mp4", {"video": "mpeg4"}),
        ("mpeg2.mkv", {"video": "mpeg2video", "audio": "mp2"}),
        ("mute.mp4", {"audio": None}),
        ("sound.mp4", {"video": None, "seconds": 5.0}),
    ],
)
def test_joined_segments_decode_to_the_frames_of_the_source(
    tmp_path: Path, name: str, options: dict[str, object]
) -> None:
    """Every frame of every stream, in order, unchanged, at its time; without a sign of corruption.

    The padding that audio encoders add is part of it: MP4 and Matroska say how much to skip, MPEG-TS cannot.
    """
    path = make_clip(tmp_path / name, **options)  # type: ignore[arg-type]
    segments = joined(remux(path))
    before, after = decode(path), decode(b"".join(segments), "mpegts")
    assert len(segments) == expected_segments(path)
    assert after.hashes == before.hashes
    shifts = {
        stop - start for kind in before.times for start, stop in zip(before.times[kind], after.times[kind], strict=True)
    }
    # One constant for all streams, but for the rounding to 90 kHz (and, in Matroska, to milliseconds).
    assert max(shifts) - min(shifts) <= Fraction(2, 1000)


@pytest.mark.parametrize(
    ("name", "options"), [("clip.mp4", {}), ("open.mkv", {"open_gop": True}), ("hevc.mp4", {"video": "libx265"})]
)
def test_each_segment_stands_alone(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    """It begins with its tables and a keyframe, and decodes by itself with the first frame there."""
    segments = joined(remux(make_clip(tmp_path / name, **options)))  # type: ignore[arg-type]
    for segment in segments:
        pids = [int.from_bytes(segment[at + 1 : at + 3]) & 0x1FFF for at in range(0, 3 * PACKET_BYTES, PACKET_BYTES)]
        assert pids == [0x11, 0x00, 0x1000]  # SDT, PAT, PMT
        with av.open(io.BytesIO(segment), "r", "mpegts") as container:
            video = container.streams.video[0]
            first = next(packet for packet in container.demux(video) if packet.size)
            assert first.is_keyframe
            assert first.pts is not None
        assert decode(segment, "mpegts").times["video"][0] <= first.pts * Fraction(1, 90_000)


def test_chunks_trickle_with_their_times(tmp_path: Path) -> None:
    """A segment is handed out frame by frame, each chunk with the media time at which it is due."""
    steps = remux(make_clip(tmp_path / "clip.mp4"))
    chunks = [step for step in steps if isinstance(step, Chunk)]
    due = [chunk.due_s for chunk in chunks if chunk.due_s is not None]
    assert len(chunks) > 100
    assert due == sorted(due)
    assert abs(due[0]) < 0.1
    assert 2.8 < due[-1] < 3.2
    assert all(len(chunk.data) % PACKET_BYTES == 0 for chunk in chunks)


def test_streams_that_mpegts_cannot_carry_are_named(tmp_path: Path) -> None:
    """They are left out with a warning, the others published."""
    warnings: list[str] = []
    steps = remux(make_clip(tmp_path / "pcm.mkv", audio="pcm_s16le"), warnings)
    assert warnings == ["left out: stream 1 (audio, pcm_s16le)"]
    assert set(decode(b"".join(joined(steps)), "mpegts").hashes) == {"video"}


def test_nothing_to_carry_is_an_error(tmp_path: Path) -> None:
    """A file without a single stream that fits is refused."""
    path = make_clip(tmp_path / "pcm.wav", video=None, audio="pcm_s16le", seconds=0.2)
    with pytest.raises(InvalidInput, match=r"pcm\.wav has no video or audio"):
        remux(path)


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Missing, a directory, not media: one line that names it."""
    text = tmp_path / "notes"
    text.write_text("no media in here\n" * 100)
    for path, reason in ((tmp_path / "none.mp4", "No such file"), (tmp_path, "directory"), (text, "Invalid data")):
        with pytest.raises(InvalidInput, match=rf"cannot read {path.name}: .*{reason}"):
            remux(path)


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
    steps = Remuxer(open_media(source, "it"), "it", print).steps()
    seen: list[Step] = []
    while len(seen) < 150:
        seen.append(next(steps))
    source.broken = True
    with pytest.raises(InvalidInput, match="reading it failed half-way"):
        exhaust(steps, seen)
    decoded = decode(b"".join(joined(seen)), "mpegts")
    assert 50 < len(decoded.hashes["video"]) < 150


def test_languages_are_kept(tmp_path: Path) -> None:
    """A stream's language is in the program table of every segment."""
    source = make_clip(tmp_path / "clip.mp4")
    path = tmp_path / "language.mkv"
    with av.open(str(source), "r") as container, av.open(str(path), mode="w") as copy:
        streams = {stream.index: copy.add_stream_from_template(stream) for stream in container.streams}
        streams[1].metadata["language"] = "deu"
        for packet in container.demux():
            if packet.size:
                packet.stream = streams[packet.stream.index]
                copy.mux(packet)
    for segment in joined(remux(path)):
        with av.open(io.BytesIO(segment), "r", "mpegts") as container:
            assert container.streams.audio[0].metadata["language"] == "deu"
