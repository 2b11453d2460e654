"""The player and the page that publishes, in a real browser, with media that is really encoded and decoded."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.publisher.media.clips import make_clip
from tests.publisher.media.test_texts import film
from tests.subscriber.check.segments import cut
from tests.support.browser import Watched, barriers, next_seq, wait_for
from tests.support.forked import forked
from tests.support.ports import free_port
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually

SMALL = "testsrc:size=320x180,rate=20,gop=500ms"
OTHER = "testsrc:size=160x90,rate=20,gop=500ms,audio=opus"
PLAYED = """least => {
    const video = document.getElementById('video');
    if (!video) return false;  // a tab that was only just opened
    const frames = video.getVideoPlaybackQuality().totalVideoFrames;
    return video.currentTime >= least.seconds && frames >= least.frames && !video.paused;
}"""
BUFFERED = "least => video.buffered.length && video.buffered.end(video.buffered.length - 1) >= least"
LUMPS = """async ({seconds, lump}) => {
    // A media element, and its clock, whose media arrives in lumps; returns how often and where it stood still.
    const page = document.querySelector('script[type=module]').src;
    const { LiveEdge } = await import(page.replace('watch.js', 'media/live.js'));
    let nowMs = 1000, end = 0, tick = () => {}, waiting = false;
    const stood = [];
    performance.now = () => nowMs;
    window.setInterval = (run) => (tick = run, 0);
    const fake = new (class extends EventTarget {
        currentTime = 0; playbackRate = 1; paused = false; seeking = false; ended = false;
        async play() {}
        get readyState() { return end - this.currentTime > 0.001 ? 4 : 2; }
        get buffered() { return { length: end > 0 ? 1 : 0, start: () => 0, end: () => end }; }
    })();
    const edge = new LiveEdge(fake);
    for (; nowMs < seconds * 1000; nowMs += 100) {
        if (nowMs % (lump * 1000) === 0) end += lump;
        fake.currentTime = Math.min(end, fake.currentTime + 0.1 * fake.playbackRate);
        const dry = end > 0 && fake.readyState < 3;
        if (dry !== waiting) fake.dispatchEvent(new Event(dry ? 'waiting' : 'playing'));
        waiting = dry;
        if (dry) stood.push(nowMs / 1000);
        tick();
    }
    return { stood: stood.filter((at) => at > seconds / 2).length, behind: end - fake.currentTime, jumps: edge.jumps };
}"""
COPIED = """async (total) => {
    // Bytes that are copied while a segment arrives in small pieces, and no fragment of it comes.
    const page = document.querySelector('script[type=module]').src;
    const { MseSink } = await import(page.replace('watch.js', 'media/mse.js'));
    const sink = new MseSink(document.createElement('video'), 'mp4', () => {});
    const set = Uint8Array.prototype.set;
    let copied = 0;
    Uint8Array.prototype.set = function (data, at) { copied += data.length; set.call(this, data, at); };
    sink.begin();
    for (let sent = 0; sent < total; sent += 1000) await sink.push(new Uint8Array(1000));
    return copied;
}"""
HOLE = """async () => {
    // A media element that seeks to where too little is for it, before a hole; returns where it is then.
    const page = document.querySelector('script[type=module]').src;
    const { LiveEdge } = await import(page.replace('watch.js', 'media/live.js'));
    let tick = () => {}, ranges = [[0, 0.07]];
    window.setInterval = (run) => (tick = run, 0);
    const fake = new (class extends EventTarget {
        currentTime = 0; playbackRate = 1; paused = false; seeking = true; ended = false; readyState = 1;
        async play() {}
        get buffered() { return { length: ranges.length, start: (at) => ranges[at][0], end: (at) => ranges[at][1] }; }
    })();
    new LiveEdge(fake);
    tick();
    ranges = [[0, 0.07], [0.5, 1.9]];
    tick();
    return fake.currentTime;
}"""
NO_AUTOPLAY = """
let touched = false;
addEventListener('pointerdown', () => { touched = true; }, true);
const play = HTMLMediaElement.prototype.play;
HTMLMediaElement.prototype.play = function () {
    return touched ? play.call(this) : Promise.reject(new DOMException('not yet', 'NotAllowedError'));
};
"""
NO_MP4 = """
const supports = MediaRecorder.isTypeSupported;
MediaRecorder.isTypeSupported = (type) => !type.includes('mp4') && supports.call(MediaRecorder, type);
"""
NOTED = """
window.words = [];  // all that the page has said about actions, which it shows for some seconds
window.went = [];  // where it has put the player
new MutationObserver(() => {
    const text = document.getElementById('said')?.textContent;
    if (text) window.words.push(text);
}).observe(document, { subtree: true, childList: true, characterData: true });
const { get, set } = Object.getOwnPropertyDescriptor(HTMLMediaElement.prototype, 'currentTime');
Object.defineProperty(HTMLMediaElement.prototype, 'currentTime', {
    get, set(at) { window.went.push(at); set.call(this, at); },
});
"""
SAID = "text => window.words.some((words) => words.includes(text))"
HIDDEN = """
Object.defineProperty(document, 'hidden', { get: () => true });
window.setInterval = () => 0;
"""
HOSTILE = "</pre><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server without access control."""
    with serve() as running:
        yield running


@contextmanager
def publishing(base: str, channel: str, source: str | Path, *options: str, token: str = "") -> Iterator[Any]:
    """Run `tricklecast publish` until the block ends."""
    command = forked("publish", f"{base}/{channel}", source, *options)
    environment = {**os.environ, "TRICKLECAST_TOKEN": token} if token else None
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(WITHIN_S)


def plays(page: Page, seconds: float = 1.0, frames: int = 10) -> None:
    """Wait until the page has played so much media, and has shown so many pictures."""
    wait_for(page, PLAYED, arg={"seconds": seconds, "frames": frames})


def shows(page: Page, name: str, pattern: str) -> None:
    """Wait until one of the player's figures is like this: they are written a moment after what they tell of."""
    if page.locator("#figures").is_hidden():
        page.keyboard.press("i")
    figure = page.locator(f"#figures dt:text-is('{name}') + dd")
    expect(figure).to_have_text(re.compile(pattern), timeout=WITHIN_S * 1000)


@pytest.mark.parametrize("container", ["fmp4", "mpegts"])
def test_a_published_clip_plays_at_the_live_edge(server: RunningServer, tab: Watched, container: str) -> None:
    """Its pictures are decoded in their size, and the page tells codecs and latency, with nothing missing."""
    with publishing(server.base, f"live-{container}", SMALL, "--container", container):
        tab.expected += ["404"]  # until the publisher is there
        page = tab.open(f"{server.url}/watch/live-{container}")
        plays(page, 2, 30)
        assert page.evaluate("[video.videoWidth, video.videoHeight]") == [320, 180]
        shows(page, "Codecs", r"^avc1\.")
        shows(page, "Latency", " s$")
        shows(page, "Segment", "missing 0, cut 0")
        expect(page.locator("#state")).to_be_hidden()
        assert barriers(page) == []


def test_a_film_with_text_plays_with_its_sound(server: RunningServer, tab: Watched, tmp_path: Path) -> None:
    """Browsers take no track of text: the page leaves it out, and nothing else."""
    source = film(tmp_path / "film.mkv", tmp_path, seconds=30)
    with publishing(server.base, "text", source, "--container", "fmp4", "--segment", "1s"):
        tab.expected += ["404"]
        page = tab.open(f"{server.url}/watch/text")
        plays(page, 2, 30)
        shows(page, "Codecs", r"^avc1\.[0-9a-f]{6},mp4a\.40\.2$")
        assert page.evaluate("!video.error && video.webkitAudioDecodedByteCount > 0")


def test_sound_alone_plays(server: RunningServer, tab: Watched, tmp_path: Path) -> None:
    """A channel without pictures says so, and its sound advances."""
    clip = make_clip(tmp_path / "sound.m4a", seconds=20, video=None, audio="aac")
    with publishing(server.base, "sound", clip, "--container", "fmp4", "--segment", "500ms"):
        tab.expected += ["404"]
        page = tab.open(f"{server.url}/watch/sound")
        plays(page, 1, 0)
        expect(page.locator("#sound-only")).to_be_visible()
        shows(page, "Codecs", r"^mp4a\.40\.2$")


def test_the_player_goes_on_with_another_publisher(server: RunningServer, tab: Watched) -> None:
    """The channel ends and begins again with another size and codec: the same page plays on by itself."""
    tab.expected += ["404", "470"]
    with publishing(server.base, "again", SMALL, "--container", "fmp4"):
        page = tab.open(f"{server.url}/watch/again")
        plays(page)
    expect(page.locator("#state-title")).to_have_text("The channel has ended")
    before = page.evaluate("video.currentTime")
    with publishing(server.base, "again", OTHER, "--container", "fmp4"):
        wait_for(page, "() => video.videoWidth === 160")
        plays(page, before + 1, 30)
        shows(page, "Codecs", ",opus$")


def test_the_player_survives_a_restart_of_the_server(tab: Watched) -> None:
    """It reconnects by itself and plays on at the live edge."""
    tab.expected += ["404", "470", "503", "ERR_"]
    quick = ("--shutdown-restart-s", "0", "--port", str(free_port()))  # nobody else gets it meanwhile
    with serve(*quick) as first, publishing(first.base, "cam", SMALL, "--container", "fmp4") as publisher:
        page = tab.open(f"{first.url}/watch/cam")
        plays(page)
        first.stop()
        before = page.evaluate("[video.currentTime, video.getVideoPlaybackQuality().totalVideoFrames]")
        with serve(*quick):
            plays(page, before[0] + 1, before[1] + 20)
            publisher.kill()


def test_a_browser_without_mp4_publishes_webm(server: RunningServer, tab: Watched) -> None:
    """A segment begins at each keyframe, not at each cluster, so that pictures and sound play."""
    tab.scripts.append(NO_MP4)
    page = tab.open(f"{server.url}/publish")
    page.fill("#channel", "webm")
    page.select_option("#quality", "360")
    page.click("#start")
    eventually(lambda: next_seq(f"{server.base}/webm") >= 3, what="three segments")
    segment = httpx.get(f"{server.base}/webm/1")
    assert segment.headers["content-type"] == "video/webm"
    with av.open(io.BytesIO(segment.content), "r") as container:
        pictures = [packet for packet in container.demux(video=0) if packet.size]
    assert pictures[0].is_keyframe
    assert [packet for packet in pictures[1:] if packet.is_keyframe] == []
    assert len(pictures) > 5
    plays(tab.open(f"{server.url}/watch/webm"), 1.5, 10)


def test_the_page_is_quiet_again_when_the_server_is_back(server: RunningServer, tab: Watched) -> None:
    """A message about a server that does not answer goes away with the next answer."""
    tab.expected += ["ERR_"]
    page = tab.open(f"{server.url}/publish")
    page.fill("#channel", "quiet")
    page.select_option("#quality", "360")
    page.click("#start")
    expect(page.locator("#on-air")).to_be_visible()
    tab.context.set_offline(True)
    expect(page.locator("#status")).to_contain_text("Trying again")
    tab.context.set_offline(False)
    expect(page.locator("#status")).to_have_text("")


def test_a_name_that_cannot_be_in_a_url_is_refused(server: RunningServer, tab: Watched) -> None:
    """The form says so before anything is sent."""
    page = tab.open(f"{server.url}/publish")
    for name in (".", "..", "a/b"):
        page.fill("#channel", name)
        assert page.evaluate("document.getElementById('setup').checkValidity()") is False


@pytest.mark.parametrize("source", ["camera", "picture"])
def test_a_page_publishes_and_another_one_plays(server: RunningServer, tab: Watched, source: str) -> None:
    """Each segment begins with an init segment and a keyframe, the pictures are shown, and Stop ends the channel."""
    name = f"page-{source}"
    page = tab.open(f"{server.url}/publish")
    assert page.locator("#channel").input_value().startswith("browser-")
    page.check(f"input[value={source}]")
    page.fill("#channel", name)
    page.select_option("#quality", "360")
    page.click("#start")
    expect(page.locator("#figures div", has_text="Sent").locator("dd")).not_to_have_text("0 segments")
    assert barriers(page) == []
    viewer = tab.open(f"{server.url}/watch/{name}")
    plays(viewer, 1.5, 10)
    assert viewer.evaluate("[video.videoWidth, video.videoHeight]") == [640, 360]
    shows(viewer, "Segment", "missing 0, cut 0")
    shows(viewer, "Latency", " s$")
    segment = httpx.get(f"{server.base}/{name}/0")
    assert (segment.headers["content-type"], segment.content[4:8]) == ("video/mp4", b"ftyp")
    tab.expected += ["404"]
    page.click("#stop")
    expect(page.locator("#status")).to_contain_text("The channel has ended")
    expect(viewer.locator("#state-title")).to_have_text("The channel has ended")


def test_one_sees_the_source_before_the_start(server: RunningServer, tab: Watched) -> None:
    """The test picture at once, the camera when it is chosen; the figures are in view after the start."""
    looked = "() => preview.videoWidth > 0 && !preview.paused && preview.readyState >= 2"
    for width, height in ((1280, 800), (390, 844)):
        page = tab.open(f"{server.url}/publish", (width, height))
        wait_for(page, looked)
        expect(page.locator("#nothing")).to_be_hidden()
        page.select_option("#quality", "360")
        wait_for(page, looked)
        picture = page.evaluate("preview.srcObject.id")
        page.check("input[value=camera]")
        wait_for(page, "before => preview.srcObject && preview.srcObject.id !== before", arg=picture)
        wait_for(page, looked)
        camera = page.evaluate("preview.srcObject.id")
        assert barriers(page) == []
        page.fill("#channel", f"looked-{width}")
        page.click("#start")
        expect(page.locator("#figures div", has_text="Sent").locator("dd")).not_to_have_text("0 segments")
        assert page.evaluate("preview.srcObject.id") == camera  # the user is not asked twice
        expect(page.locator("#sent")).to_be_in_viewport(ratio=0.9)
        page.click("#stop")
        expect(page.locator("#status")).to_contain_text("The channel has ended")
        expect(page.locator("#nothing")).to_be_visible()  # the camera is off
        assert page.evaluate("preview.srcObject") is None
        page.check("input[value=picture]")
        wait_for(page, looked)
        page.close()


def test_a_page_does_not_take_over_a_channel(server: RunningServer, tab: Watched) -> None:
    """While another client publishes to the channel, the page says so, and nothing changes."""
    headers = {"Trickle-Client": "other", "Content-Type": "video/mp4"}
    httpx.post(f"{server.base}/taken/0", content=b"theirs", headers=headers).raise_for_status()
    tab.expected += ["409"]
    page = tab.open(f"{server.url}/publish")
    page.fill("#channel", "taken")
    page.select_option("#quality", "360")
    page.click("#start")
    expect(page.locator("#status")).to_contain_text("Somebody else publishes to this channel")
    expect(page.locator("#start")).to_be_enabled()
    assert httpx.get(f"{server.base}/taken/next").text == "1"


def test_messages_are_text_and_never_markup(server: RunningServer, tab: Watched) -> None:
    """JSON stands in the page with line breaks, hostile text as it is; the list is bounded, gaps are said."""
    url = f"{server.base}/messages"
    httpx.post(url, headers={"Expect-Content": "application/json"}).raise_for_status()
    httpx.post(f"{url}/0", json={"hostile": HOSTILE}).raise_for_status()
    tab.expected += ["470"]
    page = tab.open(f"{server.url}/watch/messages")
    expect(page.locator("#messages-list pre")).to_have_text('{\n  "hostile": ' + f'"{HOSTILE}"' + "\n}")
    httpx.post(f"{url}/1", content=HOSTILE).raise_for_status()
    expect(page.locator("#messages-list pre").first).to_have_text(HOSTILE)
    httpx.post(f"{url}/5", content=b'{"after": "a gap"}', headers={"Lp-Trickle-Reset": "1"}).raise_for_status()
    expect(page.locator("#messages-list pre").first).to_contain_text("a gap")
    assert page.locator("#messages-list .note").count() >= 1
    assert page.evaluate("window.broken") is None
    assert barriers(page) == []


def test_what_cannot_be_shown_is_named(server: RunningServer, tab: Watched) -> None:
    """The page names the type, and how to get the bytes."""
    url = f"{server.base}/bytes"
    httpx.post(f"{url}/0", content=bytes(500), headers={"Content-Type": "image/x-unknown"}).raise_for_status()
    page = tab.open(f"{server.url}/watch/bytes")
    expect(page.locator("#state-text")).to_contain_text("image/x-unknown")
    expect(page.locator("#state-text")).to_contain_text(f"curl {url}/-1")


def test_media_that_arrives_in_lumps_plays_without_a_break(server: RunningServer, tab: Watched) -> None:
    """Segments that are published when they are complete play on, about one segment behind."""
    tab.expected += ["404"]
    page = tab.open(f"{server.url}/watch/lumps")
    for lump_s in (0.5, 1, 4, 10):
        found = page.evaluate(LUMPS, {"seconds": 120, "lump": lump_s})
        assert found["stood"] == 0, lump_s
        assert found["behind"] < 1.5 * lump_s + 1, lump_s


def test_the_beginning_of_a_segment_is_copied_a_few_times_only(server: RunningServer, tab: Watched) -> None:
    """However small the pieces are in which it arrives."""
    tab.expected += ["404"]
    assert tab.open(f"{server.url}/watch/copied").evaluate(COPIED, 1_000_000) < 10_000_000


def test_a_hole_after_the_first_pictures_does_not_hold_the_player(server: RunningServer, tab: Watched) -> None:
    """It goes on behind the hole, also if the browser has not got enough to begin with."""
    tab.expected += ["404"]
    assert tab.open(f"{server.url}/watch/hole").evaluate(HOLE) == 0.5


@pytest.mark.parametrize("container", ["mp4", "mpegts"])
def test_a_segment_that_was_cut_short_stops_nothing(
    server: RunningServer, tab: Watched, tmp_path: Path, container: str
) -> None:
    """What is there of it plays, and the next segments do, in the same player."""
    segments = cut(make_clip(tmp_path / "clip.mp4", seconds=8), length_s=1, format_=container)
    for seq, segment in enumerate(segments[:6]):
        # In the middle of a box, and of a packet.
        content = segment[: len(segment) * 2 // 3 // 188 * 188 + 100] if seq == 1 else segment
        httpx.post(f"{server.base}/cut-{container}/{seq}", content=content).raise_for_status()
        if seq == 0:
            page = tab.open(f"{server.url}/watch/cut-{container}")
            wait_for(page, BUFFERED, arg=0.9)
            source = page.evaluate("video.src")
    wait_for(page, BUFFERED, arg=4)
    shows(page, "Segment", "^5, missing 0, cut 1$")
    assert page.evaluate("video.src") == source


def test_segments_without_an_init_segment_are_named(server: RunningServer, tab: Watched, tmp_path: Path) -> None:
    """A page that has missed the only one says what is wrong."""
    [first, *_] = cut(make_clip(tmp_path / "clip.mp4"), length_s=1, format_="mp4")
    rest = first[first.index(b"moof") - 4 :]
    headers = {"Content-Type": "video/mp4"}
    httpx.post(f"{server.base}/no-init/0", content=rest, headers=headers).raise_for_status()
    page = tab.open(f"{server.url}/watch/no-init")
    expect(page.locator("#state-text")).to_contain_text("do not begin with an init segment")


@pytest.mark.parametrize("container", ["mp4", "mpegts"])
def test_a_codec_that_the_browser_lacks_is_named(
    server: RunningServer, tab: Watched, tmp_path: Path, container: str
) -> None:
    """A person reads which codec it is."""
    [segment, *_] = cut(make_clip(tmp_path / "clip.mp4", video="libx265"), length_s=1, format_=container)
    httpx.post(f"{server.base}/hevc-{container}/0", content=segment).raise_for_status()
    page = tab.open(f"{server.url}/watch/hevc-{container}")
    if page.evaluate("MediaSource.isTypeSupported('video/mp4; codecs=\"hvc1.1.6.L60.90\"')"):
        pytest.skip("this Chromium decodes H.265")
    expect(page.locator("#state-text")).to_contain_text("This browser cannot play H.265")


@pytest.mark.parametrize(("container", "codec", "name"), [("mp4", "alac", "ALAC"), ("mpegts", "ac3", "AC-3")])
def test_pictures_are_shown_whose_sound_cannot_be_decoded(
    server: RunningServer, tab: Watched, tmp_path: Path, container: str, codec: str, name: str
) -> None:
    """The page plays them without the sound, and names its codec; a segment that comes in pieces, too."""
    segments = cut(make_clip(tmp_path / "clip.mp4", seconds=6, audio=codec), length_s=1, format_=container)
    channel = f"deaf-{container}"
    for seq, segment in enumerate(segments[:4]):
        httpx.post(f"{server.base}/{channel}/{seq}", content=segment).raise_for_status()
    # All of them come at once. The browser says later that it cannot decode the sound, and no picture may be lost.
    page = tab.open(f"{server.url}/watch/{channel}?segment=0")
    mime = f'audio/mp4; codecs="{name.lower()}"'
    if page.evaluate("mime => MediaSource.isTypeSupported(mime)", mime):
        pytest.skip(f"this Chromium decodes {name}")
    wait_for(page, BUFFERED, arg=3.5)
    with server.client() as client:
        pieces = [segments[4][at : at + 1500] for at in range(0, len(segments[4]), 1500)]
        client.channel(channel).upload(4, *pieces).end()
    wait_for(page, BUFFERED, arg=4.5)
    plays(page, 1, frames=1)  # it may jump to the live edge, where few are left
    expect(page.locator("#summary")).to_contain_text(f"without sound: this browser cannot play {name}")
    expect(page.locator("#unmute")).to_be_hidden()


def test_the_button_for_the_sound_leaves_the_picture_free(server: RunningServer, tab: Watched) -> None:
    """It is one of the controls, which go when the user does nothing, also on a telephone."""
    tab.expected += ["404"]
    with publishing(server.base, "free", SMALL, "--container", "fmp4"):
        for width, height in ((1280, 800), (390, 844)):
            page = tab.open(f"{server.url}/watch/free", (width, height))
            plays(page)
            unmute = page.locator("#controls #unmute")
            expect(unmute).to_be_visible()
            wait_for(page, "() => document.getElementById('controls').scrollWidth <= innerWidth")
            assert barriers(page) == []
            page.mouse.move(5, height - 5)
            wait_for(page, "() => getComputedStyle(document.getElementById('controls')).opacity === '0'")
            page.mouse.move(width / 2, 150)
            unmute.click()
            expect(unmute).to_be_hidden()
            expect(page.locator("#mute")).to_have_attribute("aria-label", "Turn the sound off")
            page.close()


def test_one_may_step_from_picture_to_picture(server: RunningServer, tab: Watched) -> None:
    """A step stops the player, and is as long as a picture is shown; then it goes on at the live edge."""
    tab.expected += ["404"]
    with publishing(server.base, "steps", SMALL, "--container", "fmp4"):
        page = tab.open(f"{server.url}/watch/steps")
        plays(page, 2.0, 40)
        page.keyboard.press("k")
        at = page.evaluate("video.currentTime")
        for key, sign in ((",", -1), (",", -1), (".", 1)):
            page.keyboard.press(key)
            wait_for(page, "() => !video.seeking")
            now = page.evaluate("video.currentTime")
            assert 0.02 < sign * (now - at) < 0.1  # 20 pictures a second; what the page measures is near that
            at = now
        page.keyboard.press("k")
        wait_for(page, "from => video.currentTime > from && !video.paused", arg=at)


def test_a_moment_can_be_shared(server: RunningServer, tab: Watched, tmp_path: Path) -> None:
    """The address begins at that segment and plays on from there; one that is gone is said to be."""
    tab.expected += ["404", "470"]
    tab.scripts.append(NOTED)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    segments = cut(make_clip(tmp_path / "clip.mp4", seconds=24), length_s=1, format_="mp4")
    for seq, segment in enumerate(segments[:20]):
        httpx.post(f"{server.base}/shared/{seq}", content=segment).raise_for_status()
    page = tab.open(f"{server.url}/watch/shared?segment=3&s=0.5")
    wait_for(page, "() => video.currentTime > 0.9")
    assert page.evaluate("window.went[0]") < 0.6  # it began there, whatever it has played since
    expect(page.locator("#live-text")).to_have_text("Go to live")
    page.keyboard.press("k")
    page.keyboard.press("s")
    wait_for(page, SAID, arg="The address of this moment is copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    found = re.fullmatch(rf"{server.url}/watch/shared\?segment=(\d+)&s=(\d\.\d\d)", copied)
    assert found, copied
    shown = 3 + page.evaluate("video.currentTime")
    assert abs(int(found[1]) + float(found[2]) - shown) < 0.2
    page.keyboard.press("l")
    wait_for(page, "() => video.buffered.length && video.buffered.end(0) < 3")  # a time line of the newest segment
    page.goto(f"{server.url}/watch/shared?segment=400")
    wait_for(page, SAID, arg="not kept")


def test_one_may_go_back_and_watch_the_recording(tab: Watched, tmp_path: Path) -> None:
    """By key and by the bar, over window and data directory; when the channel has ended, its recording is offered."""
    tab.expected += ["404", "470"]
    behind = "() => document.getElementById('live-text').textContent === 'Go to live' && !video.paused"
    with serve("--data-dir", str(tmp_path), "--channel-drain-s", "0.2", "--window-segments", "4") as server:
        with publishing(server.base, "back", SMALL, "--container", "fmp4", "--segment", "500ms"):
            page = tab.open(f"{server.url}/watch/back")
            plays(page, 5, 50)
            page.keyboard.press("m")  # any key shows the controls
            wait_for(page, "() => !past.hidden")
            assert barriers(page) == []
            page.focus("#seek")
            page.keyboard.press("Home")
            expect(page.locator("#seek-text")).to_have_text(re.compile(r"^.0:(0[4-9]|[1-9])"))
            wait_for(page, behind)
            shows(page, "Segment", "^[0-9],")  # older ones than the window has
            page.keyboard.press("l")
            expect(page.locator("#seek-text")).to_have_text("Live")
        page.click("#recording")
        wait_for(page, behind)
        plays(page, 1, 5)
        expect(page.locator("#seek-text")).to_have_text(re.compile(r"^0:0\d / 0:\d\d$"))
        page.keyboard.press("l")
        expect(page.locator("#state-title")).to_have_text("The channel has ended")


def test_the_picture_may_leave_the_page(server: RunningServer, tab: Watched) -> None:
    """The key asks the browser for picture in picture; one that has no picture yet is told so."""
    tab.expected += ["404"]
    tab.scripts.append(NOTED)
    page = tab.open(f"{server.url}/watch/nothing-yet")
    page.keyboard.press("p")
    wait_for(page, SAID, arg="no picture")
    page.evaluate("""() => {
        window.asked = 0;
        video.requestPictureInPicture = async () => { window.asked += 1; };
    }""")
    page.keyboard.press("p")
    wait_for(page, "() => window.asked === 1")


def test_a_browser_that_plays_nothing_by_itself_is_asked_to(server: RunningServer, tab: Watched) -> None:
    """The page says that the user must press play, and a click on the picture does."""
    tab.expected += ["404"]
    tab.scripts.append(NO_AUTOPLAY)
    with publishing(server.base, "blocked", SMALL, "--container", "fmp4"):
        page = tab.open(f"{server.url}/watch/blocked")
        expect(page.locator("#state-title")).to_have_text("Press play")
        expect(page.locator("#play")).to_have_attribute("aria-label", "Play")
        page.click("#video")
        plays(page)
        expect(page.locator("#state")).to_be_hidden()


def test_a_paused_player_stops_reading(server: RunningServer, tab: Watched, tmp_path: Path) -> None:
    """It keeps some seconds of media, asks for no more, and goes on at the live edge."""
    tab.expected += ["470"]
    segments = cut(make_clip(tmp_path / "clip.mp4", seconds=44), length_s=4, format_="mp4")

    def post(seq: int) -> None:
        httpx.post(f"{server.base}/paused/{seq}", content=segments[seq]).raise_for_status()

    post(0)
    page = tab.open(f"{server.url}/watch/paused")
    wait_for(page, BUFFERED, arg=3)
    wait_for(page, "() => !document.getElementById('video').paused")
    page.keyboard.press("k")
    wait_for(page, "() => video.paused")
    page.evaluate("video.currentTime = 2")  # where it was stopped decides with which segment it has enough
    wait_for(page, "() => !video.seeking && Math.abs(video.currentTime - 2) < 0.1")
    asked: list[tuple[str, str]] = []  # with HEAD the seek bar asks when segments began, which moves no media
    page.on("request", lambda request: asked.append((request.method, request.url.rsplit("/", 1)[1])))
    for seq in range(1, 6):
        post(seq)
        wait_for(page, BUFFERED, arg=4 * seq + 3)
    post(6)  # the page sees that it begins, and has enough
    wait_for(page, "() => performance.getEntriesByName(location.origin + '/trickle/paused/7').length > 0")
    for seq in range(7, 10):
        post(seq)
    page.keyboard.press("k")
    wait_for(page, BUFFERED, arg=26)
    assert ("GET", "8") not in asked, str(asked)
    assert ("GET", "-2") in asked


def test_the_test_picture_goes_on_in_a_hidden_tab(server: RunningServer, tab: Watched) -> None:
    """Without sound, and without timers: Chromium's timers come once a second in a hidden tab."""
    tab.scripts.append(HIDDEN)
    page = tab.open(f"{server.url}/publish")
    page.fill("#channel", "hidden")
    page.uncheck("#sound")
    page.click("#start")
    url = f"{server.base}/hidden"
    eventually(lambda: next_seq(url) >= 3, what="three segments")
    page.click("#stop")
    expect(page.locator("#status")).to_contain_text("The channel has ended")


def test_numbers_in_a_message_are_exact(server: RunningServer, tab: Watched) -> None:
    """JavaScript would round integers above 2^53; brackets in strings and empty objects are laid out as any other."""
    content = b'{"n":[9007199254740993,-18446744073709551617,1.0],"e":{},"f":[],"s":"\\u00e9 [{,\\""}'
    url = f"{server.base}/numbers"
    httpx.post(f"{url}/0", content=content, headers={"Content-Type": "application/json"}).raise_for_status()
    page = tab.open(f"{server.url}/watch/numbers")
    shown = '{\n  "n": [\n    9007199254740993,\n    -18446744073709551617,\n    1.0\n  ],\n  "e": {},\n  "f": [],\n'
    expect(page.locator("#messages-list pre")).to_have_text(shown + '  "s": "é [{,\\""\n}')


def test_a_long_line_is_cut(server: RunningServer, tab: Watched) -> None:
    """A message of many megabytes does not fill the tab's memory, also where each line is one."""
    headers = {"Content-Type": "application/x-ndjson"}
    content = b'"' + b"y" * 200_000 + b'"\n{"n":1}\n'
    httpx.post(f"{server.base}/long/0", content=content, headers=headers).raise_for_status()
    page = tab.open(f"{server.url}/watch/long")
    expect(page.locator("#messages-list .bad")).to_have_text("134466 more characters are not shown")
    expect(page.locator("#messages-list pre")).to_have_count(2)


def test_an_embedded_player_is_only_the_player(server: RunningServer, tab: Watched) -> None:
    """In a frame, and with `?embed`, there is no bar and nothing below the picture."""
    tab.expected += ["404"]
    page = tab.open(f"{server.url}/watch/cam?embed")
    expect(page.locator("#stage")).to_be_visible()
    for part in (".bar", "#about"):
        expect(page.locator(part)).to_be_hidden()


def test_a_channel_with_access_control_asks_for_the_token(tab: Watched, tmp_path: Path) -> None:
    """The user signs in, once per tab and those opened from it; the token goes into a header, and no URL has it."""
    key = tmp_path / "key"
    created = subprocess.run(
        forked("token", "create", "--key", key, "--make-key", "--publish", "*", "--subscribe", "*"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    token = created.stdout.strip()
    log = tmp_path / "access.jsonl"
    with serve("--jwt-secret-file", str(key), access_log=log) as guarded:
        answer = httpx.post(f"{guarded.base}/secret/0", json={"a": 1}, headers={"Authorization": f"Bearer {token}"})
        answer.raise_for_status()
        tab.expected += ["401", "503"]
        page = tab.open(f"{guarded.url}/watch/secret")
        page.fill("#token-field", token)
        page.click("dialog button.primary")
        expect(page.locator("#messages-list pre")).to_contain_text('"a": 1')
        page.goto(f"{guarded.url}/publish")
        page.select_option("#quality", "360")
        page.click("#start")
        with page.expect_popup() as opened:
            page.click("#watch")
        plays(opened.value, 1.0, 5)
        assert token not in page.url + opened.value.url
        opened.value.close()  # before the server, whose absence it would report
        page.close()
    assert token not in log.read_text()


def test_a_source_on_demand_begins_with_its_viewer(tab: Watched, tmp_path: Path) -> None:
    """The page waits for the server to pull it, and plays; when it is closed, the source stops."""
    config = tmp_path / "tricklecast.toml"
    config.write_text(f'[source.cam]\nurl = "{SMALL}"\nwhen = "demand"\nstop_after_s = 1\ncontainer = "fmp4"\n')

    def state(server: RunningServer) -> object:
        return httpx.get(f"{server.url}/api/v1/sources").json()["sources"][0]["state"]

    with serve("--config", str(config)) as server:
        assert state(server) == "waiting"
        page = tab.open(f"{server.url}/watch/cam")
        plays(page, 2, 20)
        assert state(server) == "running"
        page.goto("about:blank")
        eventually(lambda: state(server) == "waiting")
