"""Glass to glass: how old the picture is that a viewer sees, for each way in which a browser can play a channel.

Run it as ``python benchmarks/glass.py``. `tricklecast publish URL testsrc` draws a clock into each picture as it is
made (docs/reference/test-source.md). A script in Chromium reads that clock back from each picture that the video
element shows. The difference to the clock of the same machine contains encoding, publishing, the server, reading, the
player's buffer and decoding.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from playwright.sync_api import Page, sync_playwright

HLS_JS: Final = Path(__file__).parents[1] / ".venv" / "npm" / "hls.js"
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required")
WAYS: Final = {
    "mse": ("fMP4, MSE", "fmp4"),
    "ts": ("MPEG-TS, mpegts.js", "mpegts"),
    "hls": ("LL-HLS, hls.js", "fmp4"),
    "webrtc": ("WebRTC, the gateway", "mpegts"),
}
"""What is measured, by name: its title, and the container of the segments."""

WARM_UP_S: Final = 8
"""A player begins with what the server has, and then comes closer to the live edge."""

PLAYS_WITHIN_S: Final = 60

# Reads the clock as `read_clock` in trickle/media/clock.py does, from the middle of each cell.
READ: Final = """seconds => new Promise(resolve => {
    const video = document.querySelector('video');
    const [columns, rows] = [20, 4];
    const canvas = document.createElement('canvas');
    const draws = canvas.getContext('2d', {willReadFrequently: true});
    const crc = bytes => {
        let value = ~0;
        for (const byte of bytes) {
            value ^= byte;
            for (let bit = 0; bit < 8; bit += 1) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
        }
        return ~value >>> 0;
    };
    const read = () => {
        const [width, height] = [video.videoWidth, video.videoHeight];
        canvas.width = width;
        canvas.height = Math.floor(height * 2 / 9);
        draws.drawImage(video, 0, 0);
        const {data} = draws.getImageData(0, 0, canvas.width, canvas.height);
        const levels = [];
        for (let cell = 0; cell < columns * rows; cell += 1) {
            const x = Math.floor((cell % columns + 0.5) * width / columns);
            const y = Math.floor((Math.floor(cell / columns) + 0.5) * canvas.height / rows);
            levels.push(data[4 * (y * width + x) + 1]);
        }
        const middle = (Math.min(...levels) + Math.max(...levels)) / 2;
        const bytes = new Uint8Array(10);
        levels.forEach((level, cell) => { if (level > middle) bytes[cell >> 3] |= 0x80 >> (cell & 7); });
        const view = new DataView(bytes.buffer);
        if (crc(bytes.subarray(0, 6)) !== view.getUint32(6)) return null;
        return view.getUint16(0) * 2 ** 32 + view.getUint32(2);
    };
    const samples = [];
    let damaged = 0;
    const until = performance.now() + 1000 * seconds;
    const shown = now => {
        const made = read();
        if (made === null) damaged += 1;
        else samples.push(performance.timeOrigin + now - made);
        if (performance.now() < until) video.requestVideoFrameCallback(shown);
    };
    video.requestVideoFrameCallback(shown);
    setTimeout(() => {
        const quality = video.getVideoPlaybackQuality();
        resolve({samples, damaged, dropped: quality.droppedVideoFrames});
    }, 1000 * seconds + 500);
})"""

PLAY_HLS: Final = """url => {
    const video = document.createElement('video');
    video.muted = true;
    document.body.append(video);
    const hls = new Hls({lowLatencyMode: true});
    hls.loadSource(url);
    hls.attachMedia(video);
    hls.on(Hls.Events.MANIFEST_PARSED, () => video.play());
}"""

PLAY_WEBRTC: Final = """async url => {
    const video = document.createElement('video');
    video.muted = video.autoplay = true;
    video.srcObject = new MediaStream();
    document.body.append(video);
    const peer = new RTCPeerConnection();
    for (const kind of ['video', 'audio']) peer.addTransceiver(kind, {direction: 'recvonly'});
    peer.ontrack = ({track}) => video.srcObject.addTrack(track);
    await peer.setLocalDescription();
    const headers = {'Content-Type': 'application/sdp'};
    const answer = await fetch(url, {method: 'POST', headers, body: peer.localDescription.sdp});
    const sdp = await answer.text();
    if (answer.status !== 201) throw new Error(sdp);
    await peer.setRemoteDescription({type: 'answer', sdp});
}"""
GATEWAY: Final = "127.0.0.1:28889"


@dataclass(frozen=True, slots=True)
class Result:
    """What one way of playing has shown.

    Attributes:
        way: how it was played.
        pictures: number of pictures whose clock could be read. damaged: of those whose clock could not.
        median_s: their age, in seconds. p95_s: 95 % were younger.
        dropped: pictures that the browser did not show.
    """

    way: str
    pictures: int
    damaged: int
    median_s: float
    p95_s: float
    dropped: int


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of tricklecast that is interrupted at the end of the block."""
    command = [sys.executable, "-m", "tricklecast", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def measured(page: Page, way: str, seconds: float) -> Result:
    """The age of the pictures that a page shows, once it plays."""
    page.wait_for_function(
        "() => document.querySelector('video')?.currentTime > 0.5", timeout=1000 * PLAYS_WITHIN_S, polling=100
    )
    time.sleep(WARM_UP_S)
    found: dict[str, Any] = page.evaluate(READ, seconds)
    ages = [age / 1000 for age in found["samples"]]
    if len(ages) < 2:
        raise SystemExit(f"{way}: no picture with a clock was shown ({found['damaged']} with a damaged one)")
    return Result(way, len(ages), found["damaged"], median(ages), quantiles(ages, n=20)[-1], found["dropped"])


def has_playlist(url: str) -> bool:
    """Whether the server has a playlist of the channel."""
    try:
        with urllib.request.urlopen(f"{url}/index.m3u8", timeout=30) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def run(names: list[str], seconds: float, gop: str) -> Iterator[Result]:
    """Measure one way after the other; two players at a time would share a processor."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("Chromium is needed: install it (Debian: apt-get install chromium)")
    with running("serve", "--port", "0", "--shutdown-drain-s", "0.1", "--shutdown-restart-s", "0") as server:
        assert server.stdout is not None
        base = server.stdout.readline().strip().removeprefix("tricklecast is listening on ")
        root = base.removesuffix("/trickle")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
            for name in names:
                way, container = WAYS[name]
                channel = f"{base}/glass-{name}"
                source = ("publish", channel, f"testsrc:gop={gop}", "--min-segment", gop, "--container", container)
                with running(*source):
                    page = browser.new_page()
                    if name == "hls":
                        time.sleep(5)  # a playlist needs some segments
                        if not has_playlist(channel):
                            print("LL-HLS: this server has no index.m3u8", file=sys.stderr)
                            continue
                        page.goto(f"{root}/healthz")  # a page of the server that has no policy
                        page.add_script_tag(path=HLS_JS / "hls.min.js")
                        page.evaluate(PLAY_HLS, f"{channel}/index.m3u8")
                    elif name == "webrtc":
                        with running("gateway", "webrtc", f"{base}/", "--listen", GATEWAY, "--quiet"):
                            time.sleep(10)  # both have begun
                            page.goto(f"{root}/healthz")
                            page.evaluate(PLAY_WEBRTC, f"http://{GATEWAY}/whep/glass-{name}")
                            yield measured(page, way, seconds)
                            page.close()
                        continue
                    else:
                        page.goto(f"{root}/watch/glass-{name}")
                    yield measured(page, way, seconds)
                    page.close()
            browser.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="how long each player is measured")
    parser.add_argument("--only", choices=list(WAYS), action="append", help="measure this way; may be repeated")
    parser.add_argument("--gop", default="500ms", help="from keyframe to keyframe, and the length of a segment")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    results = []
    print(f"{'way':<20} {'pictures':>8} {'median':>8} {'p95':>8} {'dropped':>8} {'damaged':>8}")
    for result in run(options.only or list(WAYS), options.seconds, options.gop):
        results.append(result)
        print(
            f"{result.way:<20} {result.pictures:>8} {result.median_s:>6.2f} s {result.p95_s:>6.2f} s"
            f" {result.dropped:>8} {result.damaged:>8}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
