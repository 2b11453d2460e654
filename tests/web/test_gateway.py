"""The page of the how-to watches a channel through the gateway, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from benchmarks.glass import READ
from tests.subscriber.gateway.watching import gateway, publishing
from tests.support.browser import Watched, wait_for
from tests.support.server import serve
from tests.support.waiting import WITHIN_S, eventually

pytest.importorskip("aiortc", reason="the extra webrtc is not installed")

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "watch-with-webrtc.md"
PLAYED = "() => video.getVideoPlaybackQuality().totalVideoFrames >= 20 && video.videoWidth === 320"
SOUND = "() => video.srcObject.getAudioTracks()[0].muted === false"


@pytest.mark.parametrize("options", [(), ("--container", "fmp4")])
def test_a_page_watches_by_webrtc(tab: Watched, tmp_path: Path, options: tuple[str, ...]) -> None:
    """Pictures are decoded, whose clocks can be read, and sound comes; the gateway is told when the page closes."""
    page_file = tmp_path / "page.html"
    found = re.search(r"```html\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.S)
    assert found is not None
    page_file.write_text(found[1], encoding="utf-8")
    with (
        serve() as server,
        publishing(server.base, "cam", "testsrc:size=320x180,rate=20,gop=500ms", *options),
        gateway(server.base) as running,
    ):
        url = f"{server.base}/cam/0"
        eventually(lambda: httpx.head(url, trust_env=False, timeout=WITHIN_S).status_code == 200)
        page = tab.open(f"file://{page_file}?whep={running.url}/cam")
        wait_for(page, PLAYED)
        wait_for(page, SOUND)
        seen = page.evaluate(READ, 2)
        assert len(seen["samples"]) > seen["damaged"]
        page.goto("about:blank")
        running.shows("is gone")
