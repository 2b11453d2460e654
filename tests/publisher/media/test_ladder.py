"""A ladder: one input, several sizes, cut at the same times."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tests.publisher.media.clips import decode, make_clip
from tests.publisher.media.test_reader import LIMIT_S, Report, serving
from tricklecast.publisher.media.encode import Encoding
from tricklecast.publisher.media.inputs import Input
from tricklecast.publisher.media.ladder import RungInput, SharedInput
from tricklecast.publisher.media.reader import MediaOptions
from tricklecast.publisher.steps import Chunk, SegmentEnd
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.ladder import parse_ladder

LADDER = parse_ladder("240p,144p")
QUICK = Encoding(preset="ultrafast", gop_s=1.0)


class Rungs:
    """All rungs of a ladder, each read in a thread."""

    def __init__(self, text: str, ladder: str = "240p,144p", **options: Any) -> None:
        made = MediaOptions(**{"realtime": False, "encoding": QUICK, **options})
        self.sources = SharedInput(Input.parse(text), made, parse_ladder(ladder)).rungs
        self.reports = [Report() for _ in self.sources]
        self.stopped = threading.Event()

    def segments(self) -> list[list[bytes]]:
        """Those of each rung, to the end of the input."""
        with ThreadPoolExecutor(len(self.sources)) as threads:
            reading = [threads.submit(self._read, *pair) for pair in zip(self.sources, self.reports, strict=True)]
            return [one.result(LIMIT_S) for one in reading]

    def _read(self, source: RungInput, report: Report) -> list[bytes]:
        found, current = [], b""
        for step in source.open(report, self.stopped.is_set):
            if isinstance(step, Chunk):
                current += step.data
            elif current:
                found.append(current)
                current = b""
        return found


def pictures(segment: bytes) -> list[tuple[Fraction, bool]]:
    """The time of each picture, and whether it is a key picture."""
    with av.open(io.BytesIO(segment), "r", "mpegts") as container:
        return [
            (packet.pts * packet.time_base, packet.is_keyframe)
            for packet in container.demux(video=0)
            if packet.pts is not None
        ]


def test_rungs_are_cut_at_the_same_pictures(tmp_path: Path) -> None:
    """Each in its size, with the same segments, times, keyframes and sound; played twice, as one stream."""
    rungs = Rungs(str(make_clip(tmp_path / "clip.mp4", side=256)), plays=2)
    high, low = rungs.segments()
    assert len(high) == len(low) == 6
    for above, below in zip(high, low, strict=True):
        times = pictures(above)
        assert times == pictures(below)
        assert [is_key for _, is_key in times] == [True] + [False] * (len(times) - 1)
    for segments, side in ((high, 240), (low, 144)):
        with av.open(io.BytesIO(b"".join(segments)), "r", "mpegts") as container:
            assert (container.streams.video[0].width, container.streams.video[0].height) == (side, side)
    assert decode(b"".join(high), "mpegts").hashes["audio"] == decode(b"".join(low), "mpegts").hashes["audio"]
    assert threading.active_count() < 20


def test_an_input_that_breaks_is_opened_again_for_all(tmp_path: Path) -> None:
    """A generation after the other; the highest rung alone says so."""
    data = make_clip(tmp_path / "clip.ts", side=256).read_bytes()
    with serving(data, data) as address:
        rungs = Rungs(f"tcp://{address}", reconnect_for_s=0.5)
        high, low = rungs.segments()
    assert [pictures(one) for one in high] == [pictures(one) for one in low]
    assert len(high) == 6
    assert any("is back after" in line for line in rungs.reports[0].said)
    assert rungs.reports[1].said == []


@pytest.mark.parametrize(
    ("clip", "ladder", "why"),
    [
        ({"side": 64}, "240p,144p", "has pictures of 64x64, which are not enlarged: leave out the rung above 144p"),
        ({"video": None}, "240p,144p", "has no pictures: a ladder is for video"),
    ],
)
def test_inputs_that_make_no_ladder(tmp_path: Path, clip: dict[str, Any], ladder: str, why: str) -> None:
    """It is said before anything is published, and not tried once for each rung."""
    rungs = Rungs(str(make_clip(tmp_path / "clip.mp4", **clip)), ladder)
    for source, report in zip(rungs.sources, rungs.reports, strict=True):
        with pytest.raises(InvalidInput, match=why):
            source.open(report, rungs.stopped.is_set)


def test_a_ladder_that_is_stopped_ends(tmp_path: Path) -> None:
    """While a rung waits for the others, and the input for it."""
    rungs = Rungs("testsrc:size=426x240,rate=10", realtime=False)
    steps = rungs.sources[0].open(rungs.reports[0], rungs.stopped.is_set)
    while not isinstance(next(steps), SegmentEnd):
        pass
    rungs.stopped.set()
    assert list(steps)[-1:] in ([], [SegmentEnd()])
