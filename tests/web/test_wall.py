"""The wall in a browser: a picture of each channel, made of the segments' beginnings, and only of those in view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.app.access.signing import SECRET, token
from tests.app.cluster.test_nodes_on_nats import node
from tests.publisher.media.clips import make_clip
from tests.subscriber.check.segments import cut
from tests.support.browser import Watched, barriers, wait_for
from tests.support.local import LocalServer, local_server
from tests.support.nats import nats_server
from tests.support.waiting import eventually
from tricklecast.trickle.records import Op

DRAWN = """name => [...document.querySelectorAll('.tile')].some((tile) => {
    const canvas = tile.querySelector('canvas');
    if (tile.querySelector('b').textContent !== name || !canvas.width) return false;
    const probe = Object.assign(document.createElement('canvas'), { width: 64, height: 36 });
    const context = probe.getContext('2d', { willReadFrequently: true });
    context.drawImage(canvas, 0, 0, 64, 36);
    const { data } = context.getImageData(0, 0, 64, 36);
    return data.some((value, at) => at % 4 < 3 && value > 40);
})"""
"""Whether the tile of a channel has a picture that is not black."""


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server of its own."""
    with local_server(channel_drain_s=0) as running:
        yield running


def post(server: LocalServer, channel: str, seq: int, content: bytes, content_type: str = "") -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    url = f"http://127.0.0.1:{server.port}/trickle/{channel}/{seq}"
    httpx.post(url, content=content, headers=headers).raise_for_status()


def wall(server: LocalServer, tab: Watched, size: tuple[int, int] | None = None) -> Page:
    return tab.open(f"http://127.0.0.1:{server.port}/wall", size)


def test_each_channel_has_a_picture(server: LocalServer, tab: Watched, tmp_path: Path) -> None:
    """Of fragmented MP4, of MPEG-TS and of WebM; what has no picture says what it is; a click leads to the player."""
    tab.expected += ["404", "470"]
    clip, webm = make_clip(tmp_path / "clip.mp4"), make_clip(tmp_path / "clip.webm", video="libvpx", audio=None)
    for name, path, kind in (("mp4", clip, "mp4"), ("ts", clip, "mpegts"), ("webm", webm, "webm")):
        post(server, name, 0, cut(path, length_s=1, format_=kind)[0])
    post(server, "notes", 0, b'{"hello": 1}', "application/json")
    page = wall(server, tab)
    for name in ("mp4", "ts", "webm"):
        wait_for(page, DRAWN, arg=name)
    expect(page.locator(".tile", has_text="notes").locator(".why")).to_have_text("messages")
    assert barriers(page) == []
    assert {record.status for record in server.records if record.op == Op.READ} == {206}
    page.locator(".tile", has_text="mp4").click()
    expect(page.get_by_role("heading", name="mp4")).to_be_visible()


def test_a_new_segment_makes_a_new_picture(server: LocalServer, tab: Watched, tmp_path: Path) -> None:
    """Once for each segment, however often the feed tells of the channel."""
    segments = cut(make_clip(tmp_path / "clip.mp4"), length_s=1, format_="mp4")
    post(server, "cam", 0, segments[0])
    page = wall(server, tab)
    wait_for(page, DRAWN, arg="cam")
    post(server, "cam", 1, segments[1])

    def read() -> list[int]:
        return sorted({record.rseq for record in server.records if record.op == Op.READ and record.rseq is not None})

    eventually(lambda: read() == [0, 1], what="both segments are read")
    assert len([record for record in server.records if record.op == Op.READ]) <= 4  # two pieces of each


def test_only_tiles_in_view_cost_something(server: LocalServer, tab: Watched, tmp_path: Path) -> None:
    """Of 60 channels those in view are read; those further down when the user has scrolled there."""
    [segment, *_] = cut(make_clip(tmp_path / "clip.mp4"), length_s=1, format_="mp4")
    for number in range(60):
        post(server, f"cam-{number:02}", 0, segment)
    page = wall(server, tab)
    wait_for(page, DRAWN, arg="cam-00")
    wait_for(page, DRAWN, arg="cam-17")
    read = {record.channel for record in server.records if record.op == Op.READ}
    assert "cam-59" not in read
    page.keyboard.press("End")
    page.locator(".tile a").last.focus()
    wait_for(page, DRAWN, arg="cam-59")
    assert page.locator(".tile").first.locator("canvas").evaluate("canvas => canvas.width") == 0


@pytest.mark.parametrize(("width", "height", "columns"), [(390, 844, 2), (3840, 2160, 5)])
def test_all_tiles_fit_if_they_can(server: LocalServer, tab: Watched, width: int, height: int, columns: int) -> None:
    """On a very wide window 16 of them are as large as all of them can be; on a telephone two stand side by side."""
    for number in range(16):
        post(server, f"cam-{number:02}", 0, b'{"number": 1}', "application/json")
    page = wall(server, tab, (width, height))
    expect(page.locator(".tile")).to_have_count(16)
    wait_for(page, "n => getComputedStyle(tiles).gridTemplateColumns.split(' ').length === n", arg=columns)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    if width > 1000:
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_long_names_have_two_lines(server: LocalServer, tab: Watched) -> None:
    """And the end of each is shown on a telephone, too."""
    for number in range(12):
        post(server, f"berlin-main-building-floor-03-camera-{number:03}", 0, b'{"number": 1}', "application/json")
    page = wall(server, tab, (390, 844))
    expect(page.locator(".tile .end")).to_have_text([f"amera-{number:03}" for number in range(12)])
    for one in page.locator(".tile").all():
        box, tile = one.locator(".end").bounding_box(), one.bounding_box()
        assert box is not None
        assert tile is not None
        assert box["x"] + box["width"] <= tile["x"] + tile["width"]
        assert box["y"] + box["height"] <= tile["y"] + tile["height"]
    assert page.locator(".tile .name").first.bounding_box()["height"] > 25  # type: ignore[index]


def test_it_can_be_used_by_keyboard(server: LocalServer, tab: Watched) -> None:
    """Arrows go from tile to tile, F is full screen, the filter narrows, and Enter opens the player."""
    tab.expected += ["404", "470"]
    for number in range(8):
        post(server, f"cam-{number}", 0, b'{"number": 1}', "application/json")
    page = wall(server, tab)
    expect(page.locator(".tile")).to_have_count(8)
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.title") == "cam-1"
    page.keyboard.press("f")
    expect(page.locator(".bar")).to_be_hidden()
    page.keyboard.press("f")
    expect(page.locator(".bar")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("cam-5")
    expect(page.locator(".tile")).to_have_count(1)
    page.keyboard.type("xyz")
    expect(page.locator("#told")).to_have_text("No channel matches the filter.")
    page.keyboard.press("Escape")
    expect(page.locator(".tile")).to_have_count(8)
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="cam-0")).to_be_visible()


def test_without_channels_it_says_so(server: LocalServer, tab: Watched) -> None:
    """And a channel appears when it gets its first segment."""
    page = wall(server, tab)
    expect(page.locator("#told")).to_contain_text("No channels.")
    assert barriers(page) == []
    post(server, "cam", 0, b'{"number": 1}', "application/json")
    expect(page.locator(".tile b")).to_have_text("cam")
    expect(page.locator("#told")).to_be_hidden()


def test_a_server_that_is_away_is_not_asked_for_pictures(tab: Watched) -> None:
    """A picture that cannot be had is tried again while the server is there. Then the feed alone looks for it."""
    tab.expected += ["ERR_"]
    tab.context.route("**/trickle/**", lambda route: route.abort())
    asked: list[str] = []
    tab.context.on("request", lambda request: asked.append(request.url))

    def count(part: str) -> int:
        return sum(part in one for one in asked)

    with local_server() as server:
        post(server, "cam", 0, b"x", "video/mp4")
        page = wall(server, tab)
        while count("/trickle/") < 2:
            page.wait_for_event("request")
    expect(page.locator("#notice")).to_contain_text("The server does not answer.")
    pictures, looks = count("/trickle/"), count("/dashboard")
    while count("/dashboard") < looks + 3:  # after pauses of 1, 2 and 4 s
        page.wait_for_event("request")
    assert count("/trickle/") == pictures


def test_with_tokens_the_list_needs_manage_and_a_picture_subscribe(
    tabs: Callable[..., Watched], tmp_path: Path
) -> None:
    """A token with `manage` alone shows tiles without pictures, and no URL has the token."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    [segment, *_] = cut(make_clip(tmp_path / "clip.mp4"), length_s=1, format_="mp4")
    with local_server(jwt_secret_file=secret) as server:
        rights = {"Authorization": f"Bearer {token(trickle={'publish': ['*']})}"}
        for name in ("seen", "listed", "hidden"):
            url = f"http://127.0.0.1:{server.port}/trickle/{name}/0"
            httpx.post(url, content=segment, headers=rights).raise_for_status()
        tab = tabs(viewport={"width": 1280, "height": 800})
        tab.expected += ["401", "403"]
        page = wall(server, tab)
        page.get_by_label("Access token").fill(token(trickle={"manage": ["seen", "listed"], "subscribe": ["seen"]}))
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        wait_for(page, DRAWN, arg="seen")
        expect(page.locator(".tile b")).to_have_text(["listed", "seen"])
        listed = page.locator(".tile", has_text="listed")
        expect(listed.locator(".why")).to_have_text("your token does not allow to watch it")


def test_a_node_of_a_cluster_links_to_the_walls_of_the_others(tab: Watched) -> None:
    """Those that have channels. It has tiles of its own ones."""
    with nats_server() as nats, node("a", nats) as a, node("b", nats) as b:
        post(a.server, "here", 0, b"text", "text/plain")
        page = wall(a.server, tab)
        page.locator(".tile").get_by_text("here").wait_for()
        assert page.locator("#elsewhere").is_hidden()
        post(b.server, "there", 0, b"text", "text/plain")
        page.locator("#elsewhere").get_by_role("link", name="b").wait_for()
        assert page.locator("#elsewhere a").get_attribute("href") == f"http://127.0.0.1:{b.server.port}/wall"
        assert barriers(page) == []
        assert page.locator("#elsewhere").inner_text() == "Other nodes have channels, too: b (1)"
