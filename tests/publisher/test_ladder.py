"""A ladder that is published to a real server: channels of the same numbers, and one playlist."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.publisher.media.clips import make_clip
from tests.support.forked import forked
from tests.support.hls import read_multivariant
from tests.support.local import LocalServer, local_server
from tests.support.peers import run as run_in_loop
from tests.support.waiting import WITHIN_S
from tricklecast.publisher.ladder import run_ladder
from tricklecast.publisher.media.encode import Encoding
from tricklecast.publisher.media.inputs import Input
from tricklecast.publisher.media.ladder import SharedInput
from tricklecast.publisher.media.reader import MediaOptions
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.media.ladder import parse_ladder
from tricklecast.trickle.terminal import Screen

LADDER = parse_ladder("240p,144p")
OPTIONS = MediaOptions(realtime=False, encoding=Encoding(preset="ultrafast", gop_s=1.0))


def published(server: LocalServer, clip: Path, **options: object) -> str:
    """Publish a clip as a ladder; what was said."""
    said = io.StringIO()
    url = f"http://127.0.0.1:{server.port}/trickle/cam"
    sources = SharedInput(Input.parse(str(clip)), OPTIONS, LADDER).rungs
    given = {"start": "resume", **options}
    run_in_loop(lambda: run_ladder(url, sources, LADDER, screen=Screen(said), **given))  # type: ignore[arg-type]
    return said.getvalue()


def heads(server: LocalServer) -> list[str]:
    """Of the channels of both rungs."""
    url = f"http://127.0.0.1:{server.port}/trickle"
    return [httpx.get(f"{url}/{name}/next").text for name in ("cam", "cam_144p")]


def test_a_ladder_has_a_playlist_and_equal_numbers(tmp_path: Path) -> None:
    """It goes on where the rung is that is furthest, also when the others were behind."""
    clip = make_clip(tmp_path / "clip.mp4", side=256)
    with local_server(channel_drain_s=60) as server:
        url = f"http://127.0.0.1:{server.port}/trickle/cam"
        said = published(server, clip, leave_open=True)
        assert f"players of HLS choose among its sizes at {url}/index.m3u8?ladder=240p,144p\n" in said
        assert "144p: published 3 segments" in said
        assert heads(server) == ["3", "3"]
        answer = httpx.get(f"{url}/index.m3u8?ladder=240p,144p&token=a%20b")
        streams = read_multivariant(answer.text).variants
        assert [one.uri for one in streams] == ["media.m3u8?token=a%20b", "../cam_144p/media.m3u8?token=a%20b"]
        assert [one.size for one in streams] == [(240, 240), (144, 144)]
        rates = [one.bandwidth for one in streams]
        assert rates[0] > rates[1]
        low = httpx.get(f"http://127.0.0.1:{server.port}/trickle/cam_144p/media.m3u8")
        assert low.status_code == 200
        httpx.post(f"{url}/3", content=b"x")
        published(server, clip)
        assert heads(server) == ["7", "7"]
        skipped = httpx.get(f"http://127.0.0.1:{server.port}/trickle/cam_144p/3")
        assert (skipped.headers["Lp-Trickle-Truncated"], skipped.content) == ("skipped", b"")
        published(server, clip)  # both have ended: the next epoch
        assert heads(server) == ["3", "3"]


def test_an_error_of_the_input_is_one_line(tmp_path: Path) -> None:
    """Although all rungs have it."""
    with local_server() as server:
        with pytest.raises(InvalidInput, match="No such file or directory"):
            published(server, tmp_path / "none.mp4")
        assert server.plane.registry.channels.keys() == {"_changes"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--ladder", "721p,360p"], "--ladder: not a rung: '721p'"),
        (
            ["--ladder", "720p,360p", "--video-bitrate", "1M"],
            "--video-bitrate: each rung of a --ladder has its bit rate",
        ),
        (["--ladder", "720p,360p", "--start", "reset"], "--start: the rungs of a --ladder resume"),
        (["--ladder", "720p,360p", "--raw"], "--ladder: it is for media, and --raw publishes plain bytes"),
    ],
)
def test_wrong_options(options: list[str], line: str) -> None:
    """They are refused before anything is opened."""
    command = forked("publish", "http://127.0.0.1:1/trickle/c", "none.mp4", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 2
    assert f"Invalid value for {line}" in done.stderr.replace("'--", "--").replace("':", ":").replace("':", ":")
