"""The dashboard in a browser: it follows the server, acts after asking, can be used by keyboard, and trusts no name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect

from tests.app.access.signing import SECRET, token
from tests.app.cluster.test_nodes_on_nats import node
from tests.publisher.media.clips import make_clip
from tests.subscriber.check.segments import cut
from tests.support.browser import Scheme, Watched, barriers
from tests.support.local import LocalServer, local_server
from tests.support.nats import nats_server
from tests.support.server import serve
from tests.support.waiting import WITHIN_S, eventually

HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e"
"""A text that would run as markup, with a character that turns what follows."""


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server of its own, whose ended channels are gone at once."""
    with local_server(channel_drain_s=0) as running:
        yield running


def url(server: LocalServer, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def create(server: LocalServer, *names: str) -> None:
    def make() -> None:
        for name in names:
            server.plane.registry.create(name, "video/mp4", server.plane.clock())

    server.inside(make)


def test_it_follows_a_channel_from_its_beginning_to_its_end(server: LocalServer, tab: Watched) -> None:
    """Without channels it says what to do; then a channel is live, stalls, and goes."""
    page = tab.open(url(server))
    expect(page.get_by_role("heading", name="No channels")).to_be_visible()
    assert "tricklecast publish" in page.locator(".empty").inner_text()
    with server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x" * 3000)
        line = page.locator(".row:not([hidden])")
        expect(line.locator(".name")).to_have_text("cam")
        expect(line.locator(".state.live")).to_be_visible()
        expect(page.locator(".status")).to_have_text("Live")
        expect(line.locator(".state.stalled")).to_be_visible()
        upload.end()
        expect(line.get_by_role("img")).to_have_attribute("aria-label", re.compile("segment 0 · complete · 2.9 KiB"))
        client.ask("DELETE", "/trickle/cam")
        expect(page.get_by_role("heading", name="No channels")).to_be_visible()
        expect(page.locator(".events li").first).to_contain_text("cam ended: by request")


def test_actions_ask_first(server: LocalServer, tab: Watched) -> None:
    """A segment is closed and a channel ended when the user has confirmed it, and not before."""
    with server.client() as client:
        channel = client.channel("cam")
        channel.upload(0, b"half")
        page = tab.open(url(server, "/#/channel/cam"))
        panel = page.get_by_role("complementary")
        expect(panel.locator(".picked")).to_contain_text("segment 0 · open · 4 B")
        chart = panel.get_by_role("img", name=re.compile("Timeline"))
        chart.focus()
        chart.press("ArrowRight")
        panel.get_by_role("button", name="Close segment").click()
        page.get_by_role("dialog").get_by_role("button", name="Close segment").click()
        expect(panel.locator(".picked")).to_contain_text("segment 0 · truncated · 4 B")
        expect(page.get_by_role("dialog")).to_have_count(0)

        panel.get_by_role("button", name="End channel").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert client.ask("GET", "/api/v1/channels/cam").status == 200
        panel.get_by_role("button", name="End channel").click()
        assert barriers(page) == []
        page.get_by_role("dialog").get_by_role("button", name="End channel").click()
        expect(panel.locator(".notice")).to_contain_text("not on the server now")


def test_it_shows_who_reads_and_ends_one(server: LocalServer, tab: Watched) -> None:
    """Each client is one line, as in the count of readers; the one that is ended is gone, and the event says so."""
    with server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x" * 3000)
        client.settle()
        for name in ("first", "second"):
            for seq in (0, 1):
                channel.read(seq, {"Trickle-Client": name, "User-Agent": "player/1.0"})
        page = tab.open(url(server, "/#/channel/cam"))
        panel = page.get_by_role("complementary")
        panel.get_by_text("Who reads").click()
        rows = panel.locator(".readers-list li")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("127.0.0.1 · player/1.0 · segment 0 · asked at")
        expect(panel.locator(".lateness li").first).to_have_text("in time2")
        assert barriers(page) == []
        panel.get_by_role("button", name="End first").click()
        page.get_by_role("dialog").get_by_role("button", name="End reader").click()
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("second")
        expect(page.locator(".events")).to_contain_text("cam reader cut off: by request")
        upload.end()


def test_it_shows_how_late_readers_are(server: LocalServer, tab: Watched) -> None:
    """A bar for each span of time, of the readers that are listed; a late one is first in the list."""
    late = [0, 0, 0.2, 1.4, 9.5, 42]
    rows = [
        {"client": f"reader-{at}", "address": "::1", "program": None, "seq": 1, "waits": False, "lag": round(9000 * s),
         "late_s": s, "since": "2026-01-01T00:00:00Z", "connections": [at]}
        for at, s in reversed(list(enumerate(late)))
    ]  # fmt: skip
    create(server, "cam")
    tab.context.route("**/cam/readers", lambda route: route.fulfill(json={"readers": rows, "others": 7}))
    page = tab.open(url(server, "/#/channel/cam"))
    panel = page.get_by_role("complementary")
    panel.get_by_text("Who reads").click()
    bars = [
        "in time2",
        "up to 500 ms late1",
        "up to 1 s late0",
        "up to 2 s late1",
        "up to 5 s late0",
        "up to 10 s late1",
    ]
    expect(panel.locator(".lateness li")).to_have_text([*bars, "more1"])
    expect(panel.locator(".readers-list li").first).to_contain_text("369 KiB, 42 s behind")
    assert barriers(page) == []
    tab.context.unroute_all(behavior="ignoreErrors")  # the page may ask just now


def test_an_action_that_fails_says_why(server: LocalServer, tab: Watched) -> None:
    """The dialog stays, with the server's own words."""
    tab.expected += ["404"]
    create(server, "cam")
    page = tab.open(url(server, "/#/channel/cam"))
    page.get_by_role("button", name="End channel").click()
    tab.context.route(
        "**/api/v1/channels/cam", lambda route: route.fulfill(status=404, json={"detail": "no such channel"})
    )
    page.get_by_role("dialog").get_by_role("button", name="End channel").click()
    expect(page.get_by_role("alert").filter(has_text="no such channel")).to_be_visible()


def test_commands_can_be_copied(server: LocalServer, tab: Watched) -> None:
    """What is copied is the whole line, with the channel's URL quoted for a shell where that is needed."""
    create(server, "it's")
    page = tab.open(url(server, f"/#/channel/{quote(chr(39).join(['it', 's']))}"))
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy: Publish a test picture").click()
    expect(page.get_by_role("status").filter(has_text="Copied")).to_have_count(1)
    base = url(server, "/trickle/")
    assert page.evaluate("navigator.clipboard.readText()") == f"tricklecast publish '{base}it'\\''s' testsrc"
    expect(page.get_by_role("link", name="Watch")).to_have_attribute("href", "/watch/it's")


def test_thousands_of_channels_are_few_elements(server: LocalServer, tab: Watched) -> None:
    """Filter, sort and keyboard work on all of them; only what is visible is in the page."""
    create(server, *(f"cam-{number:04}" for number in range(1500)))
    page = tab.open(url(server))
    expect(page.locator(".chip.all")).to_have_text("all 1,500")
    expect(page.locator(".row:not([hidden]) .name").first).to_be_visible()
    assert len(page.locator(".row").all()) < 60

    page.keyboard.press("/")
    page.keyboard.type("cam-12")
    expect(page.locator(".shown")).to_have_text("100 of 1,500 shown")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    active = page.locator(".row[aria-selected=true]:not([hidden])")
    expect(active.locator(".name")).to_have_text("cam-1201")
    page.keyboard.press("End")
    expect(active.locator(".name")).to_have_text("cam-1299")
    page.keyboard.press("Enter")
    expect(page.locator("#detail-title")).to_have_text("cam-1299")
    assert page.evaluate("location.hash") == "#/channel/cam-1299"
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_be_hidden()

    page.locator("#filter").fill("")
    title = page.get_by_role("columnheader", name="Channel")
    title.get_by_role("button").click()
    expect(title).to_have_attribute("aria-sort", "ascending")
    title.get_by_role("button").click()
    expect(title).to_have_attribute("aria-sort", "descending")
    expect(page.locator(".row:not([hidden])", has_text="cam-1499")).to_be_visible()
    page.locator("#filter").fill("nothing like it")
    expect(page.get_by_role("heading", name="No channel matches the filter.")).to_be_visible()
    expect(page.get_by_text("The server has 1,500 channels, none with “nothing like it”")).to_be_visible()
    assert barriers(page) == []
    page.get_by_role("button", name="Show all channels").click()
    expect(page.locator(".row:not([hidden]) .name").first).to_be_visible()


def test_live_channels_come_first(server: LocalServer, tab: Watched) -> None:
    """Also when they begin later; the third click on a column's title brings this order back."""
    create(server, "a-1", "a-2", "z-1", "z-2")
    page = tab.open(url(server))
    names = page.locator(".row:not([hidden])")

    def stand(*order: str) -> None:
        def stands() -> bool:
            tops = {row.locator(".name").inner_text(): (row.bounding_box() or {"y": 0.0})["y"] for row in names.all()}
            return sorted(tops, key=tops.__getitem__) == list(order)

        eventually(stands, what=f"the order {order}")

    stand("a-1", "a-2", "z-1", "z-2")
    with server.client() as client:
        upload = client.channel("z-2").upload(0, b"x" * 3000)
        stand("z-2", "a-1", "a-2", "z-1")
        button = page.get_by_role("columnheader", name="Channel").get_by_role("button")
        for order in (("a-1", "a-2", "z-1", "z-2"), ("z-2", "z-1", "a-2", "a-1"), ("z-2", "a-1", "a-2", "z-1")):
            button.click()
            stand(*order)
        upload.end()


INSIDE = """title => {
    // How far the shown parts of a name reach beyond its title, to the right and down.
    const outer = title.getBoundingClientRect();
    const boxes = [...title.querySelectorAll('.name span')].map(one => one.getBoundingClientRect());
    const shown = boxes.filter(box => box.width);
    if (!shown.length) throw new Error('nothing is shown');
    const most = side => Math.max(...shown.map(box => box[side] - outer[side]));
    return [most('right'), most('bottom')];
}"""


def test_long_names_can_be_read(server: LocalServer, tab: Watched) -> None:
    """They have two lines. What is left out of a still longer one is not its end, where names of cameras differ."""
    camera = "site-{}-a-building-with-a-name-floor-03-camera-{:03}"
    create(server, *(camera.format(number % 7, number) for number in range(300)), "x" * 20 + "-long" * 40 + "-777")
    page = tab.open(url(server))
    search = page.get_by_label("Filter channels")
    for width in (390, 1280, 1920, 3840):
        page.set_viewport_size({"width": width, "height": 900})
        search.fill("camera-000")
        name = page.locator(".row:not([hidden]) .name")
        expect(name).to_have_count(1)
        expect(name).to_have_text(camera.format(0, 0))
        for part in name.locator("span:visible").all():
            assert width == 390 or part.evaluate(
                "one => one.scrollWidth <= one.clientWidth || getComputedStyle(one).display === 'inline'"
            )
        search.fill("long-777")
        expect(name).to_have_count(1)
        expect(name.locator(".end")).to_have_text("-long-777")
        # All boxes at the same moment: a line above the list may come and go.
        right, bottom = page.locator(".row:not([hidden]) .title").evaluate(INSIDE)
        assert right <= 0
        assert bottom <= 1
        size = name.evaluate("one => parseFloat(getComputedStyle(one).fontSize)")
        assert size >= (21 if width == 3840 else 14)


def test_people_are_counted_and_not_requests(server: LocalServer, tab: Watched) -> None:
    """Three subscribers are three readers, though each of them waits for the next segment while it reads one."""
    with server.client() as client:
        channel = client.channel("cam")
        upload = channel.upload(0, b"x" * 3000)
        client.settle()
        readers = [channel.read(seq) for _ in range(3) for seq in (0, 1)]
        page = tab.open(url(server))
        expect(page.locator(".row:not([hidden]) .readers")).to_have_text("3")
        expect(page.locator(".tile.readers b")).to_have_text("3")
        assert len(readers) == 6
        upload.end()


def test_refusals_are_of_the_last_minute(server: LocalServer, tab: Watched) -> None:
    """What was refused before the page was opened counts from its event on; a minute later nothing is red."""
    with server.client() as client:
        for _ in range(3):
            assert client.ask("GET", "/trickle/..x/0").status == 400
        page = tab.open(url(server))
        refused = page.locator(".tile.refused b")
        expect(refused).to_have_text("3")
        expect(refused).to_have_class("num bad")
        expect(page.locator(".events li.bad")).to_have_count(1)
        clock = server.plane.wall_us
        server.plane.wall_us = lambda: clock() + 61_000_000
        expect(refused).to_have_text("0")
        expect(refused).to_have_class("num")
        expect(refused).to_have_attribute("title", "3 since the server's start")
        expect(page.locator(".events li.bad")).to_have_count(0)
        expect(page.locator(".events li.faint").first).to_contain_text("refused")


def test_it_says_that_the_server_is_lost_and_comes_back(tab: Watched, tmp_path: Path) -> None:
    """Since when, and when it tries again; with the next server it goes on without being loaded anew."""
    tab.expected += ["ERR_"]
    with serve() as first:
        httpx.post(f"{first.base}/before").raise_for_status()
        page = tab.open(f"{first.url}/")
        expect(page.locator(".row .name").first).to_have_text("before")
        first.stop()
        expect(page.get_by_role("alert")).to_contain_text("The server has not answered since")
        expect(page.locator(".status")).to_have_text("No connection")
        expect(page.locator(".row .name").first).to_have_text("before")
        port = str(first.port)
    with serve("--port", port) as second:
        httpx.post(f"{second.base}/after").raise_for_status()
        page.get_by_role("button", name="Try now").click()
        expect(page.locator(".status")).to_have_text("Live")
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator(".row:not([hidden]) .name")).to_have_text(["after"])


def test_what_was_not_heard_is_not_shown_as_going_on(server: LocalServer, tab: Watched) -> None:
    """After a pause a segment that was open is as the snapshot has it, or leaves the chart; closed ones stay."""
    script = """async () => {
        const scripts = document.querySelector("script[src$='dashboard.js']").src;
        const { Model } = await import(scripts.replace(".js", "/model.js"));
        const model = new Model();
        const row = (...segments) => [1, 1, 0, 0, 0, 0, 0, 0, 0, 1, ...segments.flat()];
        const frame = (segments) => ({frame: 1, server: {time: 1, ms: 1, instance: "a"},
            about: [[1, "cam", 1, "", "", 1]], rows: [row(...segments)], gone: [], events: []});
        model.take(frame([[0, 2, 9, 9], [1, 1, 9, 9], [2, 0, 0, 0]]), true);
        model.take(frame([[20, 2, 9, 9], [21, 1, 9, 9]]), true);
        return model.byName.get("cam").segments.map((one) => [one.seq, one.state]);
    }"""
    assert tab.open(url(server)).evaluate(script) == [[0, 2], [20, 2], [21, 1]]


def test_a_server_with_too_many_dashboards_says_so(server: LocalServer, tab: Watched) -> None:
    """It answers, and does not show its channels to one more."""
    tab.expected += ["503"]
    assert server.node.feed is not None
    server.node.feed.followers.limit = 0
    page = tab.open(url(server))
    expect(page.get_by_role("alert")).to_contain_text("The server shows no channels now: Limit reached: dashboards.")


def test_the_list_of_limits_gets_out_of_the_way(server: LocalServer, tab: Watched) -> None:
    """Escape closes it, and so does a click beside it."""
    page = tab.open(url(server))
    title, limits = page.get_by_text("Fullest limit"), page.locator(".limits")
    title.click()
    expect(limits).to_be_visible()
    page.keyboard.press("Escape")
    expect(limits).to_be_hidden()
    title.click()
    expect(limits).to_be_visible()
    page.locator(".tile.cpu").click()
    expect(limits).to_be_hidden()


def test_hostile_texts_do_nothing(server: LocalServer, tab: Watched, tmp_path: Path) -> None:
    """Names of channels, publishers and clients, content types and programs are shown as the text that they are."""
    name = HOSTILE.replace("/", "")
    head = {"Trickle-Client": "<script>alert(2)</script>", "User-Agent": "<b onclick=alert(3)>"}
    content_type = "text/html;<script>alert(4)</script>"
    with server.client() as client:
        path = f"/trickle/{quote(name)}"
        client.ask("POST", f"{path}/0", {**head, "Content-Type": content_type}, b"x")
        for _ in range(12):
            client.ask("GET", f"{path}/400", head)  # until the storm guard holds it
        page = tab.open(url(server))
        expect(page.locator(".row:not([hidden]) .name")).to_have_text(name.replace("\u202e", "\ufffd"))
        expect(page.locator(".row:not([hidden]) .publisher")).to_have_text(head["Trickle-Client"])
        expect(page.locator(".events")).to_contain_text("held back by the storm guard")
        page.locator(".row:not([hidden])").click()
        panel = page.get_by_role("complementary")
        expect(panel.get_by_role("heading", level=2)).to_contain_text("<img src=x")
        expect(panel).to_contain_text(content_type)
        assert page.locator("img, script:not([src]), b[onclick]").count() == 0
        page.get_by_role("button", name="End channel").click()
        expect(page.get_by_role("dialog")).to_contain_text("<img src=x")


def test_with_tokens_it_shows_what_the_token_allows(tabs: Callable[..., Watched], tmp_path: Path) -> None:
    """Before the user signs in there is no channel in the page; then those of the token, and nothing of the server."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    with local_server(jwt_secret_file=secret) as server:
        create(server, "cam-1", "hidden")
        assert "cam-1" not in httpx.get(url(server), headers={"Accept": "text/html"}).text
        tab = tabs()
        tab.expected += ["401", "403"]
        page = tab.open(url(server))
        page.get_by_label("Access token").fill(token(trickle={"manage": ["cam-*"]}))
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.locator(".row:not([hidden]) .name")).to_have_text(["cam-1"])
        expect(page.locator(".strip")).to_be_hidden()
        # A token that ends is noticed, and a new one is asked for.
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Access token").fill(token(trickle={"subscribe": ["*"]}))
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        told = page.get_by_role("alert")
        expect(told).to_contain_text("Your token lacks the right `manage`. Use another token")
        told.get_by_role("button").click()
        page.get_by_label("Access token").fill(token(trickle={"manage": ["hidden"]}))
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.locator(".row:not([hidden]) .name")).to_have_text(["hidden"])


def test_one_may_take_time_to_sign_in_and_may_refuse_to(tabs: Callable[..., Watched], tmp_path: Path) -> None:
    """The page waits for the token as long as that takes, and asks again only when it is told to."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    with local_server(jwt_secret_file=secret) as server:
        tab = tabs()
        tab.expected += ["401"]
        page = tab.context.new_page()
        page.clock.install()
        page.goto(url(server))
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Cancel").click()
        told = page.get_by_role("alert")
        expect(told).to_have_text("The server does not show its channels: Not signed in. Sign in")
        page.clock.fast_forward(60_000)
        expect(told).to_have_text("The server does not show its channels: Not signed in. Sign in")
        expect(dialog).to_have_count(0)

        told.get_by_role("button", name="Sign in").click()
        page.get_by_label("Access token").fill("a token — of no kind")
        dialog.get_by_role("button", name="Sign in").click()
        expect(page.get_by_label("Access token")).to_be_focused()
        page.clock.fast_forward(60_000)
        page.get_by_label("Access token").fill("a-wrong-token")
        dialog.get_by_role("button", name="Sign in").click()
        expect(dialog.get_by_role("alert")).to_have_text("The server does not accept this token.")
        page.clock.fast_forward(60_000)
        page.get_by_label("Access token").fill(token(trickle={"manage": ["*"]}))
        page.evaluate(
            """() => {
                const status = document.querySelector(".status");
                globalThis.seen = [];
                new MutationObserver(() => seen.push(status.textContent)).observe(status, {childList: true});
            }"""
        )
        dialog.get_by_role("button", name="Sign in").click()
        expect(page.locator(".status")).to_have_text("Live")
        assert "No connection" not in page.evaluate("seen")


def test_storm_reports_run_nothing(tab: Watched, tmp_path: Path) -> None:
    """The storms that go on, and the report in a frame of its own origin, in which a script would not run."""
    script = "<script>parent.document.title = top.document.title = 'run'; alert(1)</script>"
    (tmp_path / "report.html").write_text(f"<h1>3 incidents</h1>{script}<img src=x onerror=alert(2)>")
    incident = {"id": "29f1", "storm": "ended_loop", "severity": "critical", "clients": [HOSTILE], "channels": ["film"]}
    alert = {"alert": "tricklecast storms watch", "status": "firing", "told_us": 1, "incident": {**incident, "n": 12}}
    (tmp_path / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    tab.expected += ["sandboxed", "Refused to execute", "Content Security Policy", "Content-Security-Policy"]
    with local_server(reports=tmp_path) as server:
        create(server, "cam")
        page = tab.open(url(server))
        page.get_by_text("Retry storms").click()
        expect(page.locator(".storms .chip")).to_have_text("1 going on")
        expect(page.locator(".incidents li")).to_contain_text("ended loop · critical · <img src=x")
        page.get_by_role("button", name="Show the report").click()
        expect(page.frame_locator("iframe").get_by_role("heading")).to_have_text("3 incidents")
        expect(page.frame_locator("iframe").get_by_role("heading")).to_be_in_viewport()
        expect(page.locator(".alert-list .bad")).to_contain_text("A retry storm goes on: ended loop of <img src=x")
        frame = page.frames[1]
        assert frame.evaluate("origin") == "null"
        assert page.title() == "Channels · tricklecast"


@pytest.mark.parametrize(("scheme", "width", "height"), [("light", 1280, 800), ("dark", 390, 844)])
def test_details_can_be_used_by_all(
    server: LocalServer, tab: Watched, tmp_path: Path, scheme: Scheme, width: int, height: int
) -> None:
    """axe-core finds no barrier in list, details and events, which name the codecs; no scrolling on a telephone."""
    by = "\N{MULTIPLICATION SIGN}"
    picture = f"· 90 {by} 90 · 25 fps"
    looks = {"light": ("mp4", f"MP4 · H.264, AAC {picture}"), "dark": ("mpegts", f"MPEG-TS · H.264 · AAC {picture}")}
    container, told = looks[scheme]
    segments = cut(make_clip(tmp_path / "clip.mp4", audio="aac", side=90), length_s=1, format_=container)
    with server.client() as client:
        for seq, segment in enumerate(segments[:3]):
            client.channel("cam").publish(seq, segment)
        create(server, "other")
        page = tab.open(url(server), (width, height), scheme)
        expect(page.locator(".row:not([hidden]) .name").first).to_be_visible()
        assert barriers(page) == []
        page.locator(".row:not([hidden])", has_text="cam").click()
        expect(page.locator("#detail-title")).to_be_visible()
        expect(page.locator(".facts")).to_contain_text(told, timeout=WITHIN_S * 1000)
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_frames_per_second_are_told_of_each_container(server: LocalServer, tab: Watched, tmp_path: Path) -> None:
    """Of WebM, whose times are milliseconds, and of MPEG-TS whose codec says no size that the page reads."""
    clips = {"webm": ("clip.webm", "libvpx", "libopus"), "mpeg2": ("clip.ts", "mpeg2video", "mp2")}
    told = {"webm": "WebM · VP8, Opus · 25 fps", "mpeg2": "MPEG-TS · MPEG-2 video · MPEG audio · 25 fps"}
    with server.client() as client:
        for name, (file, video, audio) in clips.items():
            content = make_clip(tmp_path / file, video=video, audio=audio, seconds=1).read_bytes()
            client.channel(name).publish(0, content)
            expect(tab.open(url(server, f"/#/channel/{name}")).locator(".facts")).to_contain_text(told[name])


def test_the_load_of_each_worker_is_shown(tab: Watched) -> None:
    """A server of two has a table of them, and one list of the channels of both."""
    with serve("--workers", "2") as running, running.client() as client:
        for name in ("cam-0", "cam-1", "cam-4", "cam-5"):
            client.channel(name).publish(0, b"x")
        page = tab.open(f"{running.url}/")
        table = page.get_by_role("region", name="Workers")
        expect(table.get_by_role("rowheader")).to_have_text(["0", "1"])
        expect(page.locator(".row:not([hidden]) .name")).to_have_text(["cam-0", "cam-1", "cam-4", "cam-5"])
        channels = table.locator("tbody tr td:last-child").all_inner_texts()
        assert sorted(channels) == ["2", "2"]
        assert barriers(page) == []


def test_the_nodes_of_a_cluster_and_the_channels_of_the_others_are_shown(tab: Watched) -> None:
    """And a move, while the list is open. A node's name leads to its own dashboard."""
    with nats_server() as nats, node("a", nats) as a, node("b", nats) as b:
        for one, name in ((a, "here"), (b, "there")):
            one.target.channel(name).publish(0, b"x")
        page = tab.open(url(a.server))
        table = page.get_by_role("region", name="Nodes")
        expect(table.get_by_role("rowheader")).to_have_text(["a (this one)", "b"])
        assert table.get_by_role("link").get_attribute("href") == f"http://127.0.0.1:{b.server.port}/"
        table.get_by_text("Channels at other nodes").click()
        expect(table.get_by_role("cell", name="there")).to_be_visible()
        assert barriers(page) == []
        httpx.post(url(b.server, "/api/v1/channels/here/move?to=b"), timeout=WITHIN_S).raise_for_status()
        expect(table.get_by_role("cell", name="here", exact=True)).to_be_visible()
        expect(table.get_by_role("listitem")).to_have_text(re.compile("here: a → b$"))
        nodes = httpx.get(url(a.server, "/api/v1/nodes")).json()
        nodes["nodes"][1]["reachable"] = False
        tab.context.route("**/api/v1/nodes", lambda route: route.fulfill(json=nodes))
        expect(page.locator(".alert-list .bad")).to_have_text("A node of the cluster does not answer: b")
        tab.context.unroute_all(behavior="ignoreErrors")
        expect(page.locator(".alert-list .bad")).to_have_count(0)


def test_a_former_source_shows_who_has_its_place(tab: Watched, server: LocalServer, tmp_path: Path) -> None:
    """It is back, and is told: from then on its dashboard names the server that takes the publishers."""
    with local_server(data_dir=tmp_path) as old, old.client() as client:
        client.channel("film").publish(0, b"x")
        port = old.port
        httpx.put(url(server, "/api/v1/mirror"), json={"source": url(old, "/trickle")}, timeout=WITHIN_S)
        copy = url(server, "/trickle/film/0")
        eventually(lambda: httpx.get(copy, timeout=WITHIN_S).status_code == 200, what="the copy")
    httpx.post(url(server, "/api/v1/mirror/promote"), timeout=WITHIN_S).raise_for_status()
    with local_server(data_dir=tmp_path, port=port) as old:
        page = tab.open(url(old))
        panel = page.get_by_role("region", name="Mirror")
        expect(panel.locator(".chip")).to_have_text("deposed")
        expect(panel).to_contain_text("Another server has this one's place: publishers are refused.")
        expect(panel).to_contain_text(url(server, "/trickle"))
        expect(panel.get_by_role("progressbar")).to_be_hidden()
        assert httpx.post(url(old, "/trickle/film/1"), content=b"x").status_code == 503
        assert barriers(page) == []


def test_a_mirror_has_a_panel(tabs: Callable[..., Watched], server: LocalServer) -> None:
    """What is copied and how far that is, that the source is missed, and what a promotion makes of it."""
    dark = tabs(viewport={"width": 390, "height": 800}, color_scheme="dark", reduced_motion="reduce")
    page = dark.open(url(server))
    expect(page.locator(".status")).to_have_text("Live")
    panel = page.get_by_role("region", name="Mirror")
    expect(panel).to_be_hidden()
    with local_server() as source, source.client() as client:
        client.channel("film").publish(0, b"x")
        setting = {"source": url(source, "/trickle"), "channels": ["film", HOSTILE]}
        httpx.put(url(server, "/api/v1/mirror"), json=setting, timeout=WITHIN_S).raise_for_status()
        expect(panel.locator(".chip")).to_have_text("following, complete")
        expect(panel).to_contain_text(f"{setting['source']}, film <img src=x")
        expect(panel).to_contain_text("1 of 1 channels, 0 of 0 segments")
        assert panel.get_by_role("progressbar").evaluate("bar => bar.value / bar.max") == 1
        assert barriers(page) == []
        httpx.delete(url(server, "/api/v1/mirror"), timeout=WITHIN_S).raise_for_status()
        expect(panel.locator(".chip")).to_have_text("stopped")
        expect(panel).to_contain_text(re.compile(r"behind [1-9][0-9]* s, 0 segments"))
        httpx.put(url(server, "/api/v1/mirror"), json=setting, timeout=WITHIN_S).raise_for_status()
        expect(panel.locator(".chip")).to_have_text("following, complete")
    expect(panel.locator(".chip")).to_contain_text("unreachable")
    expect(panel.get_by_role("listitem").first).to_contain_text(re.compile("[0-9:]+ .+"))
    panel.get_by_text("Commands").click()
    expect(panel).to_contain_text(f"tricklecast mirror promote {url(server, '')}")
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")
    assert barriers(page) == []
    httpx.post(url(server, "/api/v1/mirror/promote"), timeout=WITHIN_S).raise_for_status()
    expect(panel).to_contain_text("The copies are channels of this server now")
    expect(panel.get_by_role("progressbar")).to_be_hidden()
