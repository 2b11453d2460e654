"""hls.js and Shaka in Chromium play a live channel from its playlist."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page

from tests.app.hls.test_texts import subtitled
from tests.integration.test_proxies import over_tls, running
from tests.publisher.media.clips import make_clip
from tests.support.browser import Watched, next_seq, wait_for
from tests.support.certificates import make_certificate
from tests.support.forked import forked
from tests.support.hls import read
from tests.support.long import mostly_long
from tests.support.ports import free_port
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually

NPM = Path(__file__).parents[2] / ".venv" / "npm"
HLS_JS = NPM / "hls.js" / "hls.min.js"
SHAKA = NPM / "shaka-player" / "shaka-player.compiled.js"
PAGE = "/a-player"
DETAILS = "{live, canBlockReload, partTarget}"
HARNESS = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>a player</title>
<video muted autoplay></video><script src="/hls.js"></script>
<script>
const video = document.querySelector("video")
const hls = new Hls({lowLatencyMode: true})
const fatal = []
hls.on(Hls.Events.ERROR, (_, data) => { if (data.fatal) { fatal.push(data.details) } })
hls.attachMedia(video)
</script>"""

SHAKA_HARNESS = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>a player</title>
<video muted autoplay></video><script src="/shaka.js"></script>
<script>
const video = document.querySelector("video")
const player = new shaka.Player()
// It would look for captions in the segment that is being written, too, which has no URL yet.
player.configure("manifest.hls.disableClosedCaptionsDetection", true)
// Up to 5.2.12 it resets its decoder before each part of MP4 else: shaka-project/shaka-player#10589.
player.configure("manifest.hls.sequenceMode", true)
const fatal = []
player.addEventListener("error", ({ detail }) => {
  if (detail.severity === shaka.util.Error.Severity.CRITICAL) { fatal.push([detail.code, String(detail.data)]) }
})
</script>"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server that soon gives a lost publisher's segment up."""
    with serve("--publisher-grace-s", "0.3", "--channel-drain-s", "0") as running:
        yield running


@contextmanager
def published(
    url: str, container: str, source: str = "testsrc:size=320x180,rate=25", *options: str
) -> Iterator[Callable[[], None]]:
    """A publisher of the test source, or of a file; it is killed at the end of the block, or by the function."""
    command = forked("publish", url, source, "--container", container, "--takeover", *options)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(WITHIN_S)

    try:
        eventually(lambda: next_seq(url) > 0 or process.poll() is not None, what="something is published")
        yield kill
    finally:
        kill()


@pytest.fixture
def player(tab: Watched, server: RunningServer) -> Page:
    """A page with hls.js."""
    return with_hls_js(tab, server)


def with_hls_js(tab: Watched, server: RunningServer) -> Page:
    """A page of this server. (Chromium lets no page that a test makes up for another origin reach this machine.)"""
    tab.context.route(server.url + PAGE, lambda route: route.fulfill(body=HARNESS, content_type="text/html"))
    tab.context.route(f"{server.url}/hls.js", lambda route: route.fulfill(path=HLS_JS, content_type="text/javascript"))
    # Requests that are cut short when a publisher goes away.
    tab.expected += ["Failed to load resource"]
    return tab.open(server.url + PAGE)


def plays(page: Page, pictures: int = 25) -> None:
    """Wait until so many more pictures were shown, at rising times."""
    frames = "video.getVideoPlaybackQuality().totalVideoFrames"
    shown = page.evaluate(frames)
    wait_for(page, f"{frames} >= {shown + pictures} && !video.paused && video.readyState >= 2")


@pytest.mark.parametrize("container", ["mpegts", "fmp4"])
def test_hls_js_plays_on(server: RunningServer, player: Page, container: str) -> None:
    """With parts, close to the live edge; over a publisher that was killed, and over a new life of the channel."""
    url = f"{server.base}/{container}"
    with published(url, container) as kill:
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        plays(player)
        assert player.evaluate("[video.videoWidth, video.videoHeight]") == [320, 180]
        details = player.evaluate(f"(({DETAILS}) => ({DETAILS}))(hls.latestLevelDetails)")
        assert (details["live"], details["canBlockReload"]) == (True, True)
        assert 0 < details["partTarget"] <= 0.4
        wait_for(player, "hls.latency > 0 && hls.latency < 4")
        kill()
    with published(url, container):
        plays(player)
        player.evaluate("hls.stopLoad()")
    assert httpx.delete(url).status_code == 200
    with published(url, container):
        player.evaluate("hls.startLoad()")
        plays(player)
    assert player.evaluate("fatal") == []
    player.evaluate("hls.destroy()")


def test_hls_js_plays_what_comes_behind_another_container(server: RunningServer, player: Page) -> None:
    """MPEG-TS behind MP4 has an init segment of its own. (hls.js cannot go on over such a change: it begins anew.)"""
    url = f"{server.base}/containers"
    with published(url, "fmp4"):
        eventually(lambda: "#EXT-X-MAP" in httpx.get(f"{url}/media.m3u8").text)
    with published(url, "mpegts"):
        eventually(lambda: httpx.get(f"{url}/media.m3u8").text.count(".ts\n") > 2)
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        plays(player)
        assert len(read(httpx.get(f"{url}/media.m3u8").text).segments) > 3
    assert player.evaluate("fatal") == []
    player.evaluate("hls.destroy()")


@pytest.mark.parametrize("container", mostly_long(["mpegts", "fmp4"], 2))
def test_hls_js_switches_between_the_rungs_of_a_ladder(server: RunningServer, player: Page, container: str) -> None:
    """From the small picture to the large one and back, on one time line, without a gap in what it holds."""
    url = f"{server.base}/ladder-{container}"
    with published(url, container, "testsrc:size=426x240,rate=10", "--ladder", "240p,144p", "--gop", "1s"):
        player.evaluate("hls.startLevel = 0, hls.loadLevel = 0")
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8?ladder=240p,144p")
        wait_for(player, "hls.levels.length === 2")
        assert player.evaluate("hls.levels.map(({height}) => height)") == [144, 240]
        for level, height in ((0, 144), (1, 240), (0, 144)):
            player.evaluate("level => { hls.nextLevel = level }", level)
            wait_for(player, f"video.videoHeight === {height} && hls.currentLevel === {level}")
            plays(player, 10)
            assert player.evaluate("video.buffered.length") == 1
    assert player.evaluate("fatal") == []
    player.evaluate("hls.destroy()")


@pytest.mark.parametrize("name", mostly_long(["nginx", "caddy"], 2))
def test_hls_js_plays_over_http_2(
    server: RunningServer, tabs: Callable[..., Watched], tmp_path: Path, name: str
) -> None:
    """Behind the proxies that the docs configure for it; the publisher uses the same port, with HTTP/1.1."""
    certificate, key = make_certificate(tmp_path)
    port = free_port()
    tab = tabs(ignore_https_errors=True)
    tab.expected += ["Failed to load resource"]
    root = f"https://127.0.0.1:{port}"
    tab.context.route(root + PAGE, lambda route: route.fulfill(body=HARNESS, content_type="text/html"))
    tab.context.route(f"{root}/hls.js", lambda route: route.fulfill(path=HLS_JS, content_type="text/javascript"))
    url, ca = f"{root}/trickle/h2-{name}", ("--ca-file", str(certificate))
    configuration = over_tls(name, port, server.port, certificate, key)
    with (
        running(name, port, tmp_path, configuration, "https"),
        published(url, "fmp4", "testsrc:size=320x180,rate=25", *ca),
    ):
        player = tab.open(root + PAGE)
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        plays(player)
        asked = "performance.getEntriesByType('resource').filter(one => one.name.includes('/trickle/'))"
        assert set(player.evaluate(f"{asked}.map(one => one.nextHopProtocol)")) == {"h2"}
        assert player.evaluate("fatal") == []
        player.evaluate("hls.destroy()")


def goes_on(page: Page, seconds: float) -> None:
    """Wait until so much more was played, without a jump over what is missing."""
    begun = page.evaluate("video.currentTime")
    wait_for(page, f"video.currentTime >= {begun + seconds} && !video.paused")
    assert page.evaluate("video.buffered.length") == 1


@pytest.mark.parametrize(
    ("container", "sound_s"), [("mpegts", 9.96), pytest.param("fmp4", 10.2, marks=pytest.mark.long)]
)
def test_hls_js_plays_to_the_end(tab: Watched, tmp_path: Path, container: str, sound_s: float) -> None:
    """Of a channel whose sound ends before its picture; it stood still before the middle of the last part."""
    clip = tmp_path / "film.mp4"
    picture = ("-f", "lavfi", "-i", "testsrc=size=320x180:rate=25:duration=10.4")
    sound = ("-f", "lavfi", "-i", f"sine=sample_rate=48000:duration={sound_s}")
    codecs = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", "50", "-c:a", "aac")
    subprocess.run(["ffmpeg", "-v", "error", *picture, *sound, *codecs, str(clip)], check=True, timeout=60)
    with serve() as server:
        url, player = f"{server.base}/ends", with_hls_js(tab, server)
        command = forked("publish", url, clip, "--container", container)
        publisher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually(lambda: httpx.get(f"{url}/media.m3u8").status_code == 200, what="something is published")
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        wait_for(player, "video.ended")
        assert player.evaluate("fatal") == []
        assert publisher.wait(WITHIN_S) == 0
        player.evaluate("hls.destroy()")


def test_hls_js_plays_mp3_in_mpeg_ts(server: RunningServer, player: Page, tmp_path: Path) -> None:
    """All of it: it has no parts, of which hls.js plays only the first one of each segment."""
    clip = make_clip(tmp_path / "mp3.ts", seconds=20.0, audio="libmp3lame")
    with published(f"{server.base}/mp3", "mpegts", str(clip)):
        player.evaluate("url => hls.loadSource(url)", f"{server.base}/mp3/index.m3u8")
        plays(player)
        goes_on(player, 3.0)
    assert player.evaluate("fatal") == []
    player.evaluate("hls.destroy()")


def test_hls_js_plays_on_over_pictures_that_are_longer_than_a_part(
    server: RunningServer, player: Page, tmp_path: Path
) -> None:
    """With B-pictures; it left the rest of such a segment out, since the server named no more parts of it."""
    clip = tmp_path / "varying.mp4"
    frozen = "select='not(between(t,7.2,7.8)+between(t,9.1,10.2)+between(t,11.3,11.8))'"
    picture = ("-f", "lavfi", "-i", "testsrc=size=320x180:rate=25:duration=20", "-vf", frozen, "-fps_mode", "vfr")
    codecs = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-bf", "3", "-g", "50")
    subprocess.run(["ffmpeg", "-v", "error", *picture, *codecs, str(clip)], check=True, timeout=60)
    with published(f"{server.base}/varying", "mpegts", str(clip)):
        player.evaluate("url => hls.loadSource(url)", f"{server.base}/varying/index.m3u8")
        wait_for(player, "video.currentTime > 13")
        assert player.evaluate("video.buffered.length") == 1
    assert player.evaluate("fatal") == []
    player.evaluate("hls.destroy()")


@pytest.mark.long
def test_hls_js_shows_the_picture_where_the_browser_has_no_ac_3(
    server: RunningServer, player: Page, tmp_path: Path
) -> None:
    """In MPEG-TS: the multivariant playlist names no codecs then."""
    clip = make_clip(tmp_path / "ac3.ts", seconds=20.0, audio="ac3")
    with published(f"{server.base}/ac3", "mpegts", str(clip)):
        player.evaluate("url => hls.loadSource(url)", f"{server.base}/ac3/index.m3u8")
        plays(player)
    assert player.evaluate("fatal") == []
    player.evaluate("hls.destroy()")


@pytest.mark.long
@pytest.mark.parametrize(("video", "audio"), [("libsvtav1", "aac"), ("libvpx-vp9", "libopus")])
def test_av1_and_vp9_play(
    server: RunningServer, player: Page, tab: Watched, tmp_path: Path, video: str, audio: str
) -> None:
    """In hls.js, in Shaka, and on the player's page: `publish` chooses the container that carries them."""
    clip = make_clip(tmp_path / "film.mkv", seconds=20.0, video=video, audio=audio)
    tab.expected.append("CEA parsing")  # Shaka looks for captions in H.264 alone
    tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
    tab.context.route(f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript"))
    url = f"{server.base}/{video}"
    with published(url, "fmp4", str(clip)):
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        plays(player)
        assert player.evaluate("fatal") == []
        player.evaluate("hls.destroy()")
        shaka = tab.open(f"{server.url}/p")
        shaka.evaluate("async url => { await player.attach(video); await player.load(url) }", f"{url}/index.m3u8")
        plays(shaka)
        assert shaka.evaluate("fatal") == []
        shaka.evaluate("player.destroy()")
        page = tab.open(f"{server.url}/watch/{video}")
        wait_for(page, "() => document.getElementById('video').getVideoPlaybackQuality().totalVideoFrames >= 25")


def test_hls_js_plays_from_the_past(server: RunningServer, player: Page) -> None:
    """From the first segment on, which left the live playlist long ago, over where that begins, and to the end."""
    url = f"{server.base}/past"
    command = forked("publish", url, "testsrc:duration=24s,gop=1s,size=320x180")
    subprocess.run([*command, "--no-realtime", "--leave-open"], check=True, capture_output=True)
    assert "-0.ts" not in httpx.get(f"{url}/media.m3u8").text
    player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8?start=1h")
    goes_on(player, 2.0)
    assert player.evaluate("video.currentTime") < 10
    wait_for(player, "hls.latestLevelDetails.totalduration > 22")
    assert player.evaluate("hls.latestLevelDetails.type") == "EVENT"
    player.evaluate("video.currentTime = 18")
    wait_for(player, "video.currentTime > 19 && video.readyState >= 2")
    assert player.evaluate("fatal") == []
    player.evaluate("hls.destroy()")


@pytest.mark.long
def test_shaka_winds_by_key_pictures(tab: Watched, tmp_path: Path) -> None:
    """At four times the speed it fetches the key pictures alone, and goes on with all pictures afterwards."""
    with serve("--data-dir", str(tmp_path), "--channel-drain-s", "0") as server:
        tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
        tab.context.route(
            f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript")
        )
        page, url = tab.open(f"{server.url}/p"), f"{server.base}/film"
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.headers.get("range", request.url)))
        command = forked("publish", url, "testsrc:duration=90s,gop=1s,size=320x180")
        subprocess.run([*command, "--container", "fmp4", "--no-realtime"], check=True, capture_output=True)
        eventually(lambda: "VOD" in httpx.get(f"{url}/media.m3u8").text, what="the recording")
        page.evaluate("player.configure('manifest.hls.sequenceMode', false)")  # there are no parts
        page.evaluate("async url => { await player.attach(video); await player.load(url) }", f"{url}/index.m3u8")
        plays(page, 5)
        begun = page.evaluate("player.trickPlay(4), video.currentTime")
        wait_for(page, f"video.currentTime > {begun + 20}")
        assert f"{url}/iframes.m3u8" in asked
        assert sum(one.startswith("bytes=0-") for one in asked) >= 5
        page.evaluate("player.cancelTrickPlay()")
        plays(page)
        assert page.evaluate("fatal") == []
        page.evaluate("player.destroy()")


def test_shaka_plays_sound_alone_in_mp4(server: RunningServer, tab: Watched, tmp_path: Path) -> None:
    """With parts, over several segments."""
    tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
    tab.context.route(f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript"))
    tab.expected += ["Failed to load resource"]
    page = tab.open(f"{server.url}/p")
    clip = make_clip(tmp_path / "sound.m4a", seconds=20.0, video=None)
    with published(f"{server.base}/sound", "fmp4", str(clip)):
        page.evaluate(
            "async url => { await player.attach(video); await player.load(url) }", f"{server.base}/sound/index.m3u8"
        )
        goes_on(page, 3.0)
        assert page.evaluate("fatal") == []
        page.evaluate("player.destroy()")


@pytest.mark.long
def test_shaka_shows_the_dates_of_a_film_that_is_published_at_once(server: RunningServer, tab: Watched) -> None:
    """They advance as it plays: the date of the playhead is that of the first segment, and what has passed since."""
    tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
    tab.context.route(f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript"))
    tab.expected += ["Failed to load resource"]
    page, url = tab.open(f"{server.url}/p"), f"{server.base}/at-once"
    command = forked("publish", url, "testsrc:duration=12s,size=320x180")
    subprocess.run([*command, "--container", "fmp4", "--no-realtime", "--leave-open"], check=True, capture_output=True)
    page.evaluate("async url => { await player.attach(video); await player.load(url) }", f"{url}/index.m3u8")
    wait_for(page, "() => video.getVideoPlaybackQuality().totalVideoFrames >= 5")
    dates = [segment.date for segment in read(httpx.get(f"{url}/media.m3u8").text).whole]
    assert dates[0] is not None
    shown_ms, at_s = page.evaluate("[player.getPlayheadTimeAsDate().getTime(), video.currentTime]")
    assert shown_ms / 1000 - at_s == pytest.approx(dates[0].timestamp(), abs=0.1)
    assert page.evaluate("fatal") == []
    page.evaluate("player.destroy()")


@pytest.fixture(scope="module")
def three_languages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film with three tracks of sound, which only say that their languages differ."""
    one, path = (tmp_path_factory.mktemp("film") / name for name in ("one.mp4", "film.mkv"))
    ffmpeg = ("ffmpeg", "-v", "error")
    picture = ("-f", "lavfi", "-i", "testsrc=size=160x90:rate=25:duration=60")
    sound = ("-f", "lavfi", "-i", "sine=sample_rate=48000:duration=60")
    codecs = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", "25", "-c:a", "aac")
    subprocess.run([*ffmpeg, *picture, *sound, *codecs, str(one)], check=True, timeout=60)
    maps = [part for stream in ("v", "a", "a", "a") for part in ("-map", f"0:{stream}")]
    names = [
        part for at, name in enumerate(("fin", "swe", "eng")) for part in (f"-metadata:s:a:{at}", f"language={name}")
    ]
    subprocess.run([*ffmpeg, "-i", str(one), *maps, "-c", "copy", *names, str(path)], check=True, timeout=60)
    return path


@pytest.mark.long
def test_the_recording_of_three_languages_plays(tab: Watched, tmp_path: Path, three_languages: Path) -> None:
    """Each in hls.js and in Shaka, which end with an error if they get all tracks at once."""
    with serve("--data-dir", str(tmp_path / "data"), "--channel-drain-s", "0") as server:
        tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
        tab.context.route(
            f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript")
        )
        url = f"{server.base}/film"
        command = forked("publish", url, three_languages)
        subprocess.run([*command, "--container", "fmp4", "--no-realtime"], check=True, capture_output=True)
        eventually(lambda: "VOD" in httpx.get(f"{url}/media.m3u8").text, what="the recording")
        player = with_hls_js(tab, server)
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        plays(player)
        assert player.evaluate("hls.audioTracks.map(track => track.lang)") == ["fi", "sv", "en"]
        player.evaluate("hls.audioTrack = 1, video.currentTime = 57")
        wait_for(player, "video.ended")
        assert player.evaluate("fatal") == []
        player.evaluate("hls.destroy()")
        shaka = tab.open(f"{server.url}/p")
        shaka.evaluate("async url => { await player.attach(video); await player.load(url, 55) }", f"{url}/index.m3u8")
        plays(shaka)
        assert sorted(shaka.evaluate("player.getAudioTracks().map(track => track.language)")) == ["en", "fi", "sv"]
        wait_for(shaka, "video.ended")
        assert shaka.evaluate("fatal") == []
        shaka.evaluate("player.destroy()")


def test_a_viewer_chooses_among_three_languages(
    server: RunningServer, player: Page, tab: Watched, three_languages: Path
) -> None:
    """In fragmented MP4, which players of HLS play with one track of sound only: in hls.js and in Shaka."""
    tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
    tab.context.route(f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript"))
    url = f"{server.base}/languages"
    with published(url, "fmp4", str(three_languages)):
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        plays(player)
        assert player.evaluate("hls.audioTracks.map(track => track.lang)") == ["fi", "sv", "en"]
        player.evaluate("hls.audioTrack = 2")
        plays(player, 50)
        assert player.evaluate("[hls.audioTrack, fatal]") == [2, []]
        player.evaluate("hls.destroy()")
        page = tab.open(f"{server.url}/watch/languages")  # the server's own player, too
        wait_for(page, "() => document.querySelectorAll('#sounds:not([hidden]) option').length === 3")
        assert page.locator("#sounds option").all_inner_texts() == ["Finnish", "Swedish", "English"]
        page.select_option("#sounds", label="English")
        wait_for(page, "from => video.currentTime > from + 2", arg=page.evaluate("video.currentTime"))
        page.close()
        shaka_chooses(tab.open(f"{server.url}/p"), url)


def shaka_chooses(shaka: Page, url: str) -> None:
    """Play, choose another language, and play on."""
    shaka.evaluate("async url => { await player.attach(video); await player.load(url) }", f"{url}/index.m3u8")
    plays(shaka)
    assert sorted(shaka.evaluate("player.getAudioTracks().map(track => track.language)")) == ["en", "fi", "sv"]
    shaka.evaluate("player.selectAudioTrack(player.getAudioTracks().find(track => track.language === 'sv'))")
    plays(shaka, 50)
    active = "player.getAudioTracks().filter(track => track.active).map(track => track.language)"
    assert shaka.evaluate(active) == ["sv"]
    assert shaka.evaluate("fatal") == []
    shaka.evaluate("player.destroy()")


def test_a_viewer_chooses_among_three_languages_in_mpeg_ts(
    server: RunningServer, player: Page, tab: Watched, three_languages: Path
) -> None:
    """In hls.js, and in Shaka without low latency; ffmpeg reads each."""
    tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
    tab.context.route(f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript"))
    tab.expected.append("Low-latency live stream detected")  # it cannot decode the parts of MPEG-TS
    url = f"{server.base}/languages-ts"
    with published(url, "mpegts", str(three_languages)):
        player.evaluate("url => hls.loadSource(url)", f"{url}/index.m3u8")
        plays(player)
        assert player.evaluate("hls.audioTracks.map(track => track.lang)") == ["fi", "sv", "en"]
        for track in (2, 0):
            player.evaluate("track => { hls.audioTrack = track }", track)
            plays(player, 50)
        assert player.evaluate("[hls.audioTrack, video.buffered.length, fatal]") == [0, 1, []]
        player.evaluate("hls.destroy()")
        shaka = tab.open(f"{server.url}/p")
        shaka.evaluate("player.configure('streaming.lowLatencyMode', false)")
        shaka_chooses(shaka, url)
        command = ["ffprobe", "-v", "error", "-show_entries", "stream=codec_type", "-of", "csv=p=0"]
        found = subprocess.run([*command, f"{url}/index.m3u8"], capture_output=True, text=True, check=True, timeout=60)
        kinds = [line for line in found.stdout.split() if line]
        assert sorted(set(kinds)) == ["audio", "video"]
        assert kinds.count("audio") >= 3


CUES = """() => [...video.textTracks].flatMap(track => [...track.cues ?? []])
    .map(cue => [cue.startTime, cue.endTime, %s])"""
SHOWN = "cue.getCueAsHTML().textContent"


@pytest.mark.parametrize("way", [pytest.param("live", marks=pytest.mark.long), "past", "recording"])
def test_a_viewer_chooses_subtitles(tab: Watched, tmp_path: Path, way: str) -> None:
    """In hls.js and in Shaka: the cues of the language stand beside their pictures."""
    with serve("--data-dir", str(tmp_path / "data"), "--channel-drain-s", "0") as server:
        url = f"{server.base}/subtitled"
        # Later than the clock of 33 bits goes, by which WebVTT tells the time.
        for seq, data in enumerate(subtitled(tmp_path, 12, "fin", "swe", begin_s=100_000)):
            httpx.post(f"{url}/{seq}", content=data, headers={"Content-Type": "video/mp4"}).raise_for_status()
        if way == "recording":
            httpx.delete(url).raise_for_status()
            eventually(lambda: "VOD" in httpx.get(f"{url}/media.m3u8").text, what="the recording")
        else:
            eventually(lambda: "-11.m4s" in httpx.get(f"{url}/media.m3u8").text, what="all segments")
        playlist = f"{url}/index.m3u8?start=10min" if way == "past" else f"{url}/index.m3u8"
        page = with_hls_js(tab, server)
        page.evaluate("url => hls.loadSource(url)", playlist)
        plays(page)
        assert page.evaluate("hls.subtitleTracks.map(track => track.lang)") == ["fi", "sv"]
        assert page.evaluate("hls.subtitleTrack") == -1, "none is chosen for the viewer"
        page.evaluate("hls.subtitleTrack = 1")
        check_cues(page, page.evaluate("hls.latestLevelDetails.fragments.map(one => one.start)"), SHOWN)
        page.evaluate("hls.destroy()")
        if way != "live":  # Shaka stands still in front of a live edge that does not move.
            shaka_shows_subtitles(tab, server, playlist)


def shaka_shows_subtitles(tab: Watched, server: RunningServer, playlist: str) -> None:
    """Play, and choose a language."""
    tab.context.route(f"{server.url}/p", lambda route: route.fulfill(body=SHAKA_HARNESS, content_type="text/html"))
    tab.context.route(f"{server.url}/shaka.js", lambda route: route.fulfill(path=SHAKA, content_type="text/javascript"))
    page = tab.open(f"{server.url}/p")
    # Shaka loads the cues in front of the picture only, of which a film that plays soon has too few: we choose first.
    page.evaluate(
        """async url => {
            await player.attach(video)
            await player.load(url, 0)
            player.selectTextTrack(player.getTextTracks().find(track => track.language === 'sv'))
        }""",
        playlist,
    )
    plays(page)
    assert sorted(page.evaluate("player.getTextTracks().map(track => track.language)")) == ["fi", "sv"]
    end = page.evaluate("video.buffered.end(video.buffered.length - 1)")  # where a segment ends
    check_cues(page, [end - round(end) + nth for nth in range(12)], "cue.text")  # it takes the escapes away
    page.evaluate("player.destroy()")


def check_cues(page: Page, starts: list[float], shown: str) -> None:
    """Wait for cues, and compare them with the times at which the seconds of the film begin.

    Args:
        shown: what tells the text of a cue.
    """
    wait_for(page, f"({CUES % shown})().length > 2")
    for start, end, text in page.evaluate(CUES % shown):
        nth = int(text.split()[1])
        assert text == f"swe {nth} & <more>"
        assert (start, end) == pytest.approx((starts[nth] + 0.25, starts[nth] + 0.75), abs=0.05)
    assert page.evaluate("fatal") == []
