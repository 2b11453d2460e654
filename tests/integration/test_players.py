"""ffmpeg plays what our publisher publishes: the stream and the playlist, every picture once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.forked import forked
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S

pytestmark = pytest.mark.skipif(shutil.which("ffprobe") is None, reason="no ffprobe here")

PICTURES = 125


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server whose ended channels can be read for long."""
    with serve("--channel-drain-s", "600") as running:
        yield running


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_ffmpeg_plays_every_picture(server: RunningServer, container: str) -> None:
    """Of five seconds of the test source, from the first segment on, by either way."""
    url = f"{server.base}/{container}"
    source = "testsrc:size=320x180,rate=25,duration=5s"
    options = ["--container", container, "--no-realtime", "--min-segment", "1s"]
    publish = forked("publish", url, source, *options)
    subprocess.run(publish, check=True, timeout=WITHIN_S, capture_output=True)
    for path in ("stream?start=earliest", "media.m3u8"):
        count = ["-count_frames", "-select_streams", "v", "-show_entries", "stream=nb_read_frames", "-of", "csv=p=0"]
        probe = ["ffprobe", "-v", "error", *count, f"{url}/{path}"]
        done = subprocess.run(probe, check=True, timeout=WITHIN_S, capture_output=True, text=True)
        assert set(done.stdout.replace(",", " ").split()) == {str(PICTURES)}, (path, done.stderr)
