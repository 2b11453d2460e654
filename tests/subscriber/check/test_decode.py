"""First pictures, their clocks, and producer times: as the publisher writes them, and as the check reads them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from tests.publisher.media.clips import make_clip
from tests.subscriber.check.segments import cut, judged, numbered, seen_of, troubles
from tricklecast.subscriber.check.content import Channel
from tricklecast.subscriber.check.decode import first_picture
from tricklecast.subscriber.check.findings import Verdict
from tricklecast.subscriber.check.media import Container
from tricklecast.trickle.media import clock

BEGAN_MS = 1_700_000_100_800
"""A little before the first segment of ``seen_of`` arrives."""


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds of a picture that shows when it was drawn."""
    path = tmp_path_factory.mktemp("clip") / "clock.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "25", "preset": "ultrafast", "bf": "2"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
        for number in range(75):
            frame = VideoFrame(320, 180, "yuv420p")
            luma, width = bytearray(frame.planes[0].buffer_size), frame.planes[0].line_size
            for cell in clock.draw_clock(BEGAN_MS + number * 40, 320, 180):
                for y in range(cell.top, cell.bottom):
                    level = b"\xeb" if cell.white else b"\x10"
                    luma[y * width + cell.left : y * width + cell.right] = level * (cell.right - cell.left)
            frame.planes[0].update(bytes(luma))
            for plane in frame.planes[1:]:
                plane.update(b"\x80" * plane.buffer_size)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_latency_by_the_clock_in_the_picture(clocked: Path, format_: str) -> None:
    """A decoder reads it from the first picture of each segment."""
    segments = cut(clocked, format_=format_)
    segments = numbered(segments) if format_ == "mpegts" else segments
    seen = seen_of(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4", decode=True)
    clocks = [one.picture.clock_ms for one in seen if one.picture is not None]
    assert clocks == [BEGAN_MS, BEGAN_MS + 1000, BEGAN_MS + 2000]
    finding = judged(seen).finding("picture_latency")
    assert finding.verdict is Verdict.OK
    assert finding.values["p50_s"] == pytest.approx(0.2, abs=0.001)


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_latency_by_producer_time(tmp_path: Path, format_: str) -> None:
    """A packet without payload or a box tells when the first frame was made; counters and boxes stay in order."""
    plain = cut(make_clip(tmp_path / "clip.mp4", seconds=4.0), format_=format_)
    segments = []
    for number, data in enumerate(plain):
        made_us = 1_700_000_100_500_000 + number * 1_000_000
        if format_ == "mpegts":
            segments.append(data[: 3 * 188] + clock.temi_packet(0x100, made_us) + data[3 * 188 :])
        else:
            at = data.index(b"moof") - 4
            segments.append(data[:at] + clock.prft_box(1, made_us, 0) + data[at:])
    segments = numbered(segments) if format_ == "mpegts" else segments
    seen = seen_of(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4", decode=True)
    judgement = judged(seen)
    assert troubles(judgement) == {}
    assert judgement.finding("latency").values["p50_s"] == pytest.approx(0.5, abs=0.03)
    assert judgement.finding("decodes").verdict is Verdict.OK


def test_what_does_not_decode_is_told_with_the_reason(tmp_path: Path) -> None:
    """Garbage, nothing at all, and a segment that begins in the middle of a group of pictures."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=3.0)
    whole = cut(clip)[1]
    picture = first_picture(whole, "mpegts")
    assert picture is not None
    assert (picture.decoded, picture.key, picture.width, picture.late_s) == (True, True, 64, 0.0)
    for data in (b"", bytes(5000), b"\x47" * 2000):
        broken = first_picture(data, "mpegts")
        assert broken is None or (not broken.decoded and broken.error)
    late = first_picture(cut(clip, length_s=1.4, at_keyframes=False)[1], "mpegts")
    assert late is not None
    assert late.late_s > 0.4 or not late.decoded
    sound = cut(make_clip(tmp_path / "sound.mp4", video=None))[0]
    assert first_picture(sound, "mpegts") is None


@pytest.mark.parametrize("format_", ["mpegts", "mp4"])
def test_a_picture_that_is_refreshed_bit_by_bit_is_no_damage(tmp_path: Path, format_: str) -> None:
    """Where that takes as long as a segment, none of them shows a picture alone: a warning, with the reason."""
    path = tmp_path / ("refreshed.ts" if format_ == "mpegts" else "refreshed.mp4")  # with parameters in it, or before
    with av.open(str(path), "w") as container:
        options = {"x264-params": "intra-refresh=1:keyint=12:bframes=3:b-adapt=0", "preset": "ultrafast"}
        stream = container.add_stream("libx264", rate=25, options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 320, 64, "yuv420p"
        for number in range(48):
            frame = VideoFrame(320, 64, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes((number * at) & 0xFF for at in range(plane.buffer_size)))
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    segments = cut(path, format_=format_)[1:]
    seen = seen_of(segments, content_type="video/mp2t" if format_ == "mpegts" else "video/mp4", decode=True)
    assert [one.picture is not None and one.picture.refreshes for one in seen] == [True] * len(seen)
    finding = judged(seen).finding("decodes")
    assert finding.verdict is Verdict.WARN
    assert finding.figure.endswith("show their first picture late, after their end")
    assert "bit by bit" in finding.means


def test_pictures_of_more_than_eight_bits_are_read(tmp_path: Path) -> None:
    """They are converted, and a picture without a clock shows no time."""
    path = tmp_path / "deep.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx265", rate=25, options={"x265-params": "log-level=none"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p10le"
        for _ in range(3):
            frame = VideoFrame(64, 64, "yuv420p10le")
            for plane in frame.planes:
                plane.update(b"\0\2" * (plane.buffer_size // 2))
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    picture = first_picture(cut(path)[0], "mpegts")
    assert picture is not None
    assert (picture.decoded, picture.clock_ms) == (True, None)


def test_a_segment_keeps_its_beginning_for_the_decoder() -> None:
    """However its bytes arrive."""
    content = Channel().segment(follows=False)
    content.feed(b"x" * 10)
    content.feed(b"y" * 1000)
    assert bytes(content.head) == b"x" * 10 + b"y" * 1000
    assert content.finish().container is Container.OTHER
    assert content.producer_us() is None
