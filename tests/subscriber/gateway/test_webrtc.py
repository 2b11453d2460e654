"""The gateway between a real server and viewers that decode what they get."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.publisher.media.clips import make_clip
from tests.subscriber.gateway.watching import Gateway, gateway, offer_of, post, publishing, request, watching
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually, until

aiortc = pytest.importorskip("aiortc", reason="the extra webrtc is not installed")
pytestmark = pytest.mark.anyio

SMALL = "testsrc:size=320x180,rate=20,gop=500ms"


@pytest.fixture
def anyio_backend() -> str:
    """aiortc runs on asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server; each test uses channels of its own."""
    with serve() as running:
        yield running


@pytest.fixture(scope="module")
def open_gateway(server: RunningServer) -> Iterator[Gateway]:
    """A gateway for tests that do not end it."""
    with gateway(server.base) as running:
        yield running


@pytest.fixture
async def offer() -> str:
    """An offer of which nothing becomes."""
    peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration([]))
    try:
        return await offer_of(peer)
    finally:
        await peer.close()


def readers(server: RunningServer, channel: str) -> int:
    """How many clients read a channel, as the server counts them."""
    listed = httpx.get(f"{server.url}/api/v1/channels/{channel}", timeout=WITHIN_S, trust_env=False).json()
    return int(listed["readers"])


def began(server: RunningServer, channel: str) -> None:
    """Wait until a channel has a segment."""
    url = f"{server.base}/{channel}/0"
    eventually(lambda: httpx.head(url, trust_env=False, timeout=WITHIN_S).status_code == 200, what=f"{url} is there")


@pytest.mark.parametrize(
    ("name", "source", "options"),
    [("ts", SMALL, ()), ("mp4", f"{SMALL},audio=opus", ("--container", "fmp4"))],
)
async def test_viewers_get_pictures_and_sound(
    server: RunningServer, open_gateway: Gateway, name: str, source: str, options: tuple[str, ...]
) -> None:
    """Of both containers, with AAC and with Opus; all viewers of a channel cost the server one reader."""
    with publishing(server.base, name, source, *options):
        began(server, name)
        async with watching(f"{open_gateway.url}/{name}") as one, watching(f"{open_gateway.url}/{name}") as two:
            await one.got(video=20, audio=40)
            await two.got(video=20, audio=40)
            assert one.sizes == two.sizes == {(320, 180)}
            assert readers(server, name) == 1
            for viewer in (one, two):
                assert (await request("DELETE", viewer.location)).status_code == 200
                assert (await request("DELETE", viewer.location)).status_code == 200
            open_gateway.shows(f"{name}: viewer", times=4)
            assert sum("it has left" in line and line.startswith(name) for line in open_gateway.lines) == 2
        eventually(lambda: readers(server, name) == 0)


async def test_a_viewer_is_let_go_with_its_channel(server: RunningServer, open_gateway: Gateway) -> None:
    """Its connection is closed, and a line says why."""
    with ExitStack() as publisher:
        publisher.enter_context(publishing(server.base, "short", SMALL))
        began(server, "short")
        async with watching(f"{open_gateway.url}/short") as viewer:
            await viewer.got(video=1)
            publisher.close()
            async with asyncio.timeout(WITHIN_S):
                await until(lambda: viewer.state == "closed")
    open_gateway.shows("the channel has ended")


async def test_what_cannot_be_watched_is_refused(
    server: RunningServer, open_gateway: Gateway, offer: str, tmp_path: Path
) -> None:
    """One line of text says why, and what to do."""
    url = open_gateway.url
    assert (await post(f"{url}/nothing", offer)).status_code == 404
    assert (await post(f"{url}/nothing", offer, {"Content-Type": "text/plain"})).status_code == 415
    assert (await post(f"{url}/nothing", "v" * 70_000)).status_code == 413
    for codec, line in (("libx264", "B-pictures"), ("libx265", "hevc")):
        clip = make_clip(tmp_path / f"{codec}.mp4", seconds=20, video=codec, audio=None)
        with publishing(server.base, codec, clip, "--container", "fmp4", "--loop", "forever"):
            began(server, codec)
            answer = await post(f"{url}/{codec}", offer)
            assert (answer.status_code, answer.text.count("\n")) == (406, 1)
            assert line in answer.text
            assert "--transcode" in answer.text


async def test_transcoded_pictures_can_be_watched(server: RunningServer, open_gateway: Gateway, tmp_path: Path) -> None:
    """What the line says helps."""
    clip = make_clip(tmp_path / "clip.mp4", seconds=20)
    with publishing(server.base, "transcoded", clip, "--transcode", "--gop", "500ms", "--loop", "forever"):
        began(server, "transcoded")
        async with watching(f"{open_gateway.url}/transcoded") as viewer:
            await viewer.got(video=20, audio=20)


async def test_an_offer_without_the_codecs_is_refused(server: RunningServer, open_gateway: Gateway, offer: str) -> None:
    """So is one that is no SDP."""
    with publishing(server.base, "codecs", SMALL):
        began(server, "codecs")
        answer = await post(f"{open_gateway.url}/codecs", offer.replace("H264/90000", "H265/90000"))
        assert (answer.status_code, "no H.264" in answer.text) == (406, True)
        for wrong in ("", "hello", "v=0\r\nm=video", offer[:400], offer.replace("a=ice", "a=ace")):
            answer = await post(f"{open_gateway.url}/codecs", wrong)
            assert answer.status_code in (400, 406), wrong


async def test_browsers_of_other_sites_may_ask(open_gateway: Gateway) -> None:
    """CORS, and what WHEP says of other methods."""
    for path, allowed in (("cam", "POST"), ("cam/key", "DELETE")):
        answer = await request("OPTIONS", f"{open_gateway.url}/{path}")
        assert answer.status_code == 204
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert allowed in answer.headers["Access-Control-Allow-Methods"]
        answer = await request("PATCH", f"{open_gateway.url}/{path}")
        assert (answer.status_code, allowed in answer.headers["Allow"]) == (405, True)
    assert (await request("DELETE", f"{open_gateway.url}/cam/key")).status_code == 200


async def test_there_is_a_most_of_viewers_and_ctrl_c_ends_all(server: RunningServer, offer: str) -> None:
    """One more gets 503. The gateway ends within moments, with those that watch."""
    with publishing(server.base, "full", SMALL), gateway(server.base, "--max-viewers", "1") as full:
        began(server, "full")
        async with watching(f"{full.url}/full") as viewer:
            await viewer.got(video=1)
            answer = await post(f"{full.url}/full", offer)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert full.end() == 128 + signal.SIGINT
            full.shows("the gateway ends")


async def test_a_server_that_is_away_is_a_bad_gateway(offer: str) -> None:
    """The line names the server."""
    with gateway("http://127.0.0.1:1/trickle") as lonely:
        begun = time.monotonic()
        answer = await post(f"{lonely.url}/cam", offer)
        assert answer.status_code == 502
        assert "127.0.0.1:1" in answer.text
        assert time.monotonic() - begun < WITHIN_S
