"""Pictures that lie on their side: upright where they are encoded anew, and otherwise said to lie."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import cast

import av
import pytest
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from tests.publisher.media.generated import frames_of, luma, muxed
from tricklecast.publisher.media.boxes import display_matrix
from tricklecast.publisher.media.relay import ContainerKind
from tricklecast.publisher.media.remux import Remuxer
from tricklecast.publisher.media.source import open_media
from tricklecast.publisher.media.transcode import TranscodeOptions, Transcoder
from tricklecast.publisher.media.turning import Turn
from tricklecast.publisher.steps import Chunk

WIDE, HIGH = 64, 32
ONE = 1 << 16

# Where the bright left upper quarter of the picture goes: in the left or right half, in the upper or lower one.
TURNS = [
    ((1, 0, 0, 1), "left upper"),
    ((0, 1, -1, 0), "right upper"),
    ((-1, 0, 0, -1), "right lower"),
    ((0, -1, 1, 0), "left lower"),
    ((-1, 0, 0, 1), "right upper"),
    ((1, 0, 0, -1), "left lower"),
    ((0, 1, 1, 0), "left upper"),
    ((0, -1, -1, 0), "right lower"),
]


def lying(path: Path, matrix: tuple[int, ...], codec: str = "libx264") -> Path:
    """A clip of one picture, whose container says that it is to be turned."""
    with av.open(str(path), "w") as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=25, width=WIDE, height=HIGH))
        stream.pix_fmt = "yuv420p"
        frame = VideoFrame(WIDE, HIGH, "yuv420p")
        picture, *colours = frame.planes
        row = b"\xe0" * (WIDE // 2) + b"\x20" * (picture.line_size - WIDE // 2)
        picture.update(row * (HIGH // 2) + b"\x20" * (picture.line_size * HIGH // 2))
        for plane in colours:
            plane.update(b"\x80" * plane.buffer_size)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    data = bytearray(path.read_bytes())
    a, b, c, d = (part * ONE for part in matrix)
    struct.pack_into(">9i", data, data.index(b"tkhd") + 4 + 40, a, b, 0, c, d, 0, 0, 0, ONE << 14)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("matrix", "where"), TURNS)
def test_what_is_encoded_stands_upright(tmp_path: Path, matrix: tuple[int, ...], where: str) -> None:
    """Turned by any right angle, or mirrored."""
    source = open_media(str(lying(tmp_path / "clip.mp4", matrix)), "it")
    (picture,) = frames_of(muxed(Transcoder(source, TranscodeOptions(), print)), "video")
    swapped = matrix[0] == 0
    assert (picture.width, picture.height) == ((HIGH, WIDE) if swapped else (WIDE, HIGH))
    pixel = luma(picture)
    bright = {
        f"{side} {level}"
        for x, side in ((1, "left"), (3, "right"))
        for y, level in ((1, "upper"), (3, "lower"))
        if pixel(picture.width * x // 4, picture.height * y // 4) > 128
    }
    assert bright == {where}


def test_a_turned_picture_is_scaled_by_its_own_height(tmp_path: Path) -> None:
    """That of the picture as it is seen."""
    source = open_media(str(lying(tmp_path / "clip.mp4", (0, 1, -1, 0))), "it")
    context = Transcoder(source, TranscodeOptions(height=32), print).streams[0].codec_context
    assert isinstance(context, av.VideoCodecContext)
    assert (context.width, context.height) == (16, 32)


def test_what_is_copied_is_said_to_lie(tmp_path: Path) -> None:
    """In MP4 for players; of MPEG-TS, that has no place for it, to whoever publishes."""
    clip = lying(tmp_path / "clip.mp4", (0, 1, -1, 0))
    warnings: list[str] = []
    for kind in ContainerKind:
        steps = list(Remuxer(kind.make(), warn=warnings.append).steps(open_media(str(clip), "it"), "it"))
        assert isinstance(steps[0], Chunk)
        if kind is ContainerKind.FMP4:
            assert display_matrix(steps[0].data) == (0, ONE, -ONE, 0)
    assert warnings == ["the picture is to be turned, and MPEG-TS cannot say so: --transcode turns it"]


def test_streams_that_no_header_can_describe_stand_upright(tmp_path: Path) -> None:
    """So do those of containers that say nothing."""
    for name, codec in (("clip.avi", "ffv1"), ("clip.ts", "libx264"), ("clip.webm", "libvpx")):
        with av.open(str(tmp_path / name), "w") as container:
            stream = cast(VideoStream, container.add_stream(codec, rate=25, width=WIDE, height=HIGH))
            stream.pix_fmt = "yuv420p"
            container.mux(stream.encode(VideoFrame(WIDE, HIGH, "yuv420p")))
            container.mux(stream.encode(None))
        source = open_media(str(tmp_path / name), name)
        assert Turn.of(source.streams[0]) == Turn()
        source.close()
