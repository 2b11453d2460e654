"""The media table: odd inputs, published, recorded, checked and played, and what became of each.

Run it as ``python -m benchmarks.media_table``: it takes a quarter of an hour, and writes docs/reference/media-table.md.

Each input (benchmarks/media_cases.py) is published to a server of its own at the speed at which it plays. Meanwhile it
is recorded twice, checked, and played by four players at the same time. A program of our own follows the playlists and
holds them to the rules of the draft (tests/support/hls.py). Then the table compares what came out with what ffmpeg
decodes of the input itself:

* ffmpeg and the recordings are compared picture by picture: their number, and the time of each.
* hls.js and Shaka begin at the live edge. So they are compared with the time that they played: no fatal error, no hole
  that they jumped over, no standstill, and as many pictures as belong to that time.
* VLC is compared by its own count of decoded pictures; it begins some segments behind the live edge.

"plays" and "whole" mean that nothing is missing. All else is said in words: there is no cell for silent loss.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.media_cases import CASES, Case
from tests.support.browser import FLAGS, find_browser
from tests.support.hls import Watcher, read_multivariant

ROOT: Final = Path(__file__).resolve().parents[1]
NPM: Final = ROOT / ".venv" / "npm"
PAGE: Final = ROOT / "docs" / "reference" / "media-table.md"
COLUMNS: Final = ("publish", "record", "check", "playlists", "ffmpeg", "hls.js", "Shaka", "VLC")
PLAYERS: Final = COLUMNS[4:]
PLAYLIST_WITHIN_S: Final = 40
ENDS_WITHIN_S: Final = 20
"""How long readers may take behind the end of the input."""

VLC_SEGMENTS: Final = 3
"""VLC is started when the channel has this number of segments. With fewer it has no stock, and drops late ones."""

VLC_SHARE: Final = 0.55
"""It begins some segments behind the live edge, and has to decode this share of the pictures."""

WAITS: Final = "waits for another publisher"
"""The channel of a publisher that failed stays open."""

VLC_USER: Final = "nobody"
"""VLC refuses to run as root."""

HLS_JS: Final = """url => {
    [window.fatal, window.recovered] = [[], []];
    const hls = new Hls({lowLatencyMode: true});
    hls.on(Hls.Events.ERROR, (_, data) => {
        if (!data.fatal) return;
        // As a page does: https://github.com/video-dev/hls.js, "fatal error recovery".
        if (data.type === Hls.ErrorTypes.MEDIA_ERROR && recovered.length < 30) {
            recovered.push(data.details);
            hls.recoverMediaError();
        } else {
            fatal.push(data.response?.code ? `${data.details} ${data.response.code}` : data.details);
        }
    });
    hls.attachMedia(video);
    hls.loadSource(url);
}"""
SHAKA: Final = """async ([url, low]) => {
    [window.fatal, window.recovered] = [[], []];
    shaka.polyfill.installAll();
    window.player = new shaka.Player();
    player.configure('manifest.hls.disableClosedCaptionsDetection', true);
    // shaka-project/shaka-player#10589
    player.configure('manifest.hls.sequenceMode', true);
    player.configure('streaming.lowLatencyMode', low);
    // A failed request is tried again, unless the player says that it gives up.
    const note = error => {
        const data = error.category === 1 ? error.data[1] : String(error.data).slice(0, 60);
        const words = `${error.code} ${data}`;
        if (error.severity === 2) (error.category === 1 ? recovered : fatal).push(words);
    };
    player.addEventListener('error', ({detail}) => note(detail));
    await player.attach(video);
    try { await player.load(url); } catch (error) { note(error); }
}"""
WATCH: Final = """() => {
    document.body.innerHTML = '<video muted autoplay></video>';
    window.video = document.querySelector('video');
    video.muted = true;
    window.seen = {begun: null, at: 0, holes: 0, still: 0, waited: 0, stops: [], ended: false};
    let last = performance.now();
    setInterval(() => {
        const now = performance.now(), passed = (now - last) / 1000, at = video.currentTime;
        last = now;
        if (seen.begun === null) {
            if (!video.paused && video.readyState >= 3 && video.getVideoPlaybackQuality !== undefined && at > 0) {
                seen.begun = seen.at = at;
            }
            return;
        }
        const step = at - seen.at;
        if (step > 1.2 * passed + 0.25) seen.holes += step - passed;
        seen.still = step > 0 || video.ended ? 0 : seen.still + passed;
        if (step > 0 && seen.waited > 1) seen.stops.push(seen.waited);
        seen.waited = seen.still;
        seen.at = at;
    }, 100);
}"""
SEEN: Final = """() => ({
    ...seen, ended: video.ended, fatal, recovered, pictures: video.getVideoPlaybackQuality().totalVideoFrames,
    size: [video.videoWidth, video.videoHeight], live: !Number.isFinite(video.duration),
    missing: Number.isFinite(video.duration) ? video.duration - video.currentTime : 99,
})"""


@dataclass
class Decoded:
    """The pictures and the sound that ffmpeg decodes of an input.

    Attributes:
        pictures: times of the pictures, in seconds from the first one on. sound_s: length of the first track of sound.
        said: what ffmpeg said in the end.
    """

    pictures: list[float] = field(default_factory=list)
    sound_s: float = 0.0
    said: str = ""


def decoded(report: str, said: str = "") -> Decoded:
    """Read ffmpeg's report of decoded frames (``-f framecrc``)."""
    kinds: dict[int, str] = {}
    bases: dict[int, float] = {}
    found, sounds = Decoded(said=said), 0.0
    for line in report.splitlines():
        if named := re.match(r"#(tb|media_type) (\d+): (\S+)", line):
            if named[1] == "tb":
                up, _, down = named[3].partition("/")
                bases[int(named[2])] = int(up) / int(down)
            else:
                kinds[int(named[2])] = named[3]
        elif re.match(r"\d+,", line):
            index, _, pts, duration, *_ = (part.strip() for part in line.split(","))
            base = bases[int(index)]
            if kinds[int(index)] == "video":
                found.pictures.append(int(pts) * base)
            else:
                sounds += int(duration) * base
    found.pictures.sort()
    found.pictures = [at - found.pictures[0] for at in found.pictures]
    found.sound_s = sounds
    return found


def decoding(source: str, *options: str) -> list[str]:
    """The command that decodes something with ffmpeg, and reports each frame."""
    return ["ffmpeg", "-v", "error", "-nostdin", *options, "-i", source, "-map", "0:v:0?", "-map", "0:a:0?",
            "-fps_mode", "passthrough", "-f", "framecrc", "-"]  # fmt: skip


@cache
def decode(path: Path) -> Decoded:
    """Decode a file with ffmpeg."""
    done = subprocess.run(decoding(str(path)), capture_output=True, text=True, timeout=120, check=False)
    return decoded(done.stdout, last_line(done.stderr))


def compared(found: Decoded, source: Decoded, *, even: bool = True) -> str:
    """In words, what is missing of the source; nothing if all is there."""
    words = []
    pictures, wanted = len(found.pictures), len(source.pictures)
    if pictures < wanted:
        words.append(f"{wanted - pictures} of {wanted} pictures are missing" if pictures else "no picture")
    elif pictures > wanted:
        words.append(f"{pictures} pictures, the source has {wanted}")
    elif wanted:
        shift = max(abs(one - other) for one, other in zip(found.pictures, source.pictures, strict=True))
        if shift > 0.021:
            words.append(f"a picture is {shift:.2f} s off")
    missing = source.sound_s - found.sound_s
    if abs(missing) > 0.1:
        what = "are missing" if missing > 0 else "more than in the source"
        words.append(f"{abs(missing):.1f} of {source.sound_s:.1f} s of sound {what}" if found.sound_s else "no sound")
    return ", ".join(words)


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class Running:
    """A program in the background, whose output goes to files."""

    def __init__(self, folder: Path, name: str, command: list[str], **options: Any) -> None:
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True, **options)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or ``None`` if it had to be killed: it hung."""
        try:
            return self.process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
            return None

    def said(self) -> str:
        """Its standard error."""
        return self.err.read_text(errors="replace")

    def told(self) -> str:
        """Its standard output."""
        return self.out.read_text(errors="replace")


def ours(*arguments: str) -> list[str]:
    """A command of tricklecast."""
    return [sys.executable, "-m", "tricklecast", *arguments]


@contextlib.contextmanager
def served(folder: Path, options: tuple[str, ...]) -> Iterator[str]:
    """A server that keeps what it gets; gives the URL of its channels."""
    command = ours("serve", "--port", "0", "--data-dir", str(folder / "data"), "--shutdown-drain-s", "0.1",
                   "--shutdown-restart-s", "0", *options)  # fmt: skip
    with (folder / "serve.err").open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().removeprefix("tricklecast is listening on ")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


class Follower(threading.Thread):
    """Follows the playlists of a channel as a player of low latency does, and holds them to the rules."""

    def __init__(self, channel: str) -> None:
        super().__init__(daemon=True)
        self.channel, self.words, self.states, self.refused = channel, "", 0, ""
        self.stopping = threading.Event()

    def run(self) -> None:
        """Ask for each state, until the playlist ends."""
        try:
            self._follow()
        except (AssertionError, ValueError, KeyError) as error:
            self.words = f"breaks a rule: {error}"
        except httpx.HTTPError as error:
            self.words = f"{type(error).__name__}: {error}"

    def _follow(self) -> None:
        watcher, query = Watcher(), ""
        with httpx.Client(timeout=30) as client:
            while not self.stopping.is_set():
                whole = client.get(f"{self.channel}/index.m3u8")
                if whole.status_code == 415:
                    self.refused = whole.text.strip()
                    return
                if whole.status_code == 200 and "STREAM-INF" in whole.text:
                    break
                self.stopping.wait(0.2)
            else:
                return
            for rendition in read_multivariant(whole.text).renditions:
                if rendition.uri:
                    Watcher().see(client.get(f"{self.channel}/{rendition.uri}").raise_for_status().text)
            while not self.stopping.is_set():
                answer = client.get(f"{self.channel}/media.m3u8{query}")
                if answer.status_code != 200:
                    self.words = f"{answer.status_code} {answer.text.strip()[:80]}"
                    return
                found = watcher.see(answer.text)
                self.states += 1
                if found.ended:
                    return
                last = found.segments[-1]
                open_parts = len(last.parts) if last.duration is None else 0
                msn = last.msn + (last.duration is not None)
                query = f"?_HLS_msn={msn}" + (f"&_HLS_part={open_parts}" if found.part_target is not None else "")


class Vlc:
    """VLC without a screen; it is asked for its figures every half second."""

    def __init__(self, folder: Path, url: str) -> None:
        program = shutil.which("vlc") or shutil.which("cvlc")
        self.running: Running | None = None
        if program is None:
            return
        user = {"user": VLC_USER, "env": {**os.environ, "HOME": "/tmp"}} if os.geteuid() == 0 else {}
        command = [program, "-I", "rc", "--rc-fake-tty", "--play-and-exit", "--vout", "dummy", "--aout", "dummy",
                   "--stats", "-q", url]  # fmt: skip
        self.running = Running(folder, "vlc", command, stdin=subprocess.PIPE, **user)

    def ask(self) -> None:
        """Ask for the figures."""
        if self.running is None or self.running.process.stdin is None:
            return
        with contextlib.suppress(OSError):
            self.running.process.stdin.write(b"stats\n")
            self.running.process.stdin.flush()

    def figures(self) -> dict[str, int]:
        """The highest figure of each name."""
        found: dict[str, int] = {}
        if self.running is not None:
            for name, value in re.findall(r"\| ([a-z ]+?)\s*:\s+(\d+)", self.running.told()):
                found[name] = max(found.get(name, 0), int(value))
        return found


def refusal(said: str) -> str:
    """Return the line with which a command gave up."""
    lines = [line for line in said.splitlines() if line.lower().startswith(("error", "tricklecast"))] or [
        last_line(said)
    ]
    return lines[-1].removeprefix("error: ").removeprefix("Error: ")


@dataclass
class Row:
    """A row of the table: the case, the cell of each column, and notes."""

    title: str
    cells: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def unsound(self) -> list[str]:
        """The cells of players that do not just play."""
        players = (self.cells.get(name, "") for name in PLAYERS)
        return [cell for cell in players if cell != "plays" and not cell.startswith("refused")]


class Table:
    """Runs the cases, one after the other."""

    def __init__(self, folder: Path, browser: Browser | None) -> None:
        self.folder, self.browser = folder, browser
        self.inputs = folder / "inputs"
        self.inputs.mkdir(exist_ok=True)

    def run(self, case: Case, tries: int) -> Row:
        """The best of some tries: a machine that is busy with other things makes players stand still."""
        best = self._try(case)
        for _ in range(1, tries):
            if not best.unsound:
                break
            best = min(best, self._try(case), key=lambda row: len(row.unsound))
        return best

    def _try(self, case: Case) -> Row:
        """Publish an input, read it in all ways, and judge."""
        path = case.make(self.inputs)
        source = decode(path)
        folder = self.folder / case.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        row = Row(case.title)
        with served(folder, case.serve) as base:
            self._run(case, path, source, folder, f"{base}/{case.name}", row)
        log = (folder / "serve.err").read_text(errors="replace")
        if "Traceback" in log:
            row.notes["server"] = "CRASH " + last_line(log)
        return row

    def _run(self, case: Case, path: Path, source: Decoded, folder: Path, url: str, row: Row) -> None:
        seconds = max([*source.pictures[-1:], source.sound_s])
        readers = {
            kind: Running(folder, f"record-{kind}", ours("subscribe", url, "-o", str(folder / f"record.{kind}"),
                                                         "--start", "earliest", "--wait", "20s", "--fail-on", "loss"))
            for kind in ("mp4", "mkv")
        }  # fmt: skip
        check = Running(folder, "check", ours("check", url, "--start", "earliest", "--wait", "20s", "--for", "5min"))
        follower = Follower(url)
        follower.start()
        command = ours("publish", url, "-" if case.piped else str(path), *case.publish)
        with path.open("rb") if case.piped else contextlib.nullcontext() as data:
            piped = {"stdin": subprocess.PIPE} if case.piped else {}
            publish = Running(folder, "publish", command, **piped)
            if case.piped:
                feed(publish, data)
        refused = self._await_playlist(url, publish)
        live = refused is None
        pages: dict[str, Page] = {}
        vlc: Vlc | None = None
        ffmpeg: Running | None = None
        if live:
            ffmpeg = Running(folder, "ffmpeg", decoding(f"{url}/index.m3u8", "-live_start_index", "0"))
            pages = self._open(url)
        while publish.process.poll() is None:
            if live and vlc is None and httpx.get(f"{url}/media.m3u8").text.count("#EXTINF") >= VLC_SEGMENTS:
                vlc = Vlc(folder, f"{url}/index.m3u8")
            self._pause(pages, vlc)
        if live and vlc is None:
            vlc = Vlc(folder, f"{url}/index.m3u8")
        code = publish.wait(1)
        until = time.monotonic() + ENDS_WITHIN_S
        while time.monotonic() < until and self._still(pages, vlc, ffmpeg):
            self._pause(pages, vlc)
        row.cells["publish"] = words_of_publish(code, publish.said())
        row.notes["publish"] = publish.said()
        for kind, reader in readers.items():
            cell = self._record(reader, folder / f"record.{kind}", source, until, gave_up=bool(code))
            row.cells["record"] = cell if kind == "mp4" else row.cells["record"] + (
                "" if cell == row.cells["record"] else f"; MKV: {cell}"
            )  # fmt: skip
            row.notes[f"record {kind}"] = reader.said()
        check_code = check.wait(until - time.monotonic())
        told = check.told() + check.said()
        row.cells["check"] = WAITS if code and check_code is None else words_of_check(check_code, told)
        row.notes["check"] = check.told() + check.said()
        follower.stopping.set()
        follower.join(30)
        row.cells["playlists"] = f"refused: {follower.refused}" if follower.refused else (
            follower.words or (f"{follower.states} states keep the rules" if follower.states else "no playlist")
        )  # fmt: skip
        for column in PLAYERS:
            row.cells[column] = f"refused: {refused}" if refused else "not there"
        if ffmpeg is not None:
            hung = ffmpeg.wait(until - time.monotonic()) is None
            found = decoded(ffmpeg.told(), last_line(ffmpeg.said()))
            row.notes["ffmpeg"] = ffmpeg.said()
            row.cells["ffmpeg"] = ("hangs; " if hung else "") + (compared(found, source) or "plays")
            if code and hung:
                row.cells["ffmpeg"] = WAITS
        for name, page in pages.items():
            seen = page.evaluate(SEEN)
            row.notes[name] = json.dumps(seen)
            row.cells[name] = words_of_page(seen, source, seconds, case)
            page.close()
        if vlc is not None and vlc.running is not None:
            hung = vlc.running.wait(until - time.monotonic()) is None
            figures = vlc.figures()
            row.notes["VLC"] = json.dumps(figures) + "\n" + vlc.running.said()[-2000:]
            row.cells["VLC"] = WAITS if code and hung else ("hangs; " if hung else "") + words_of_vlc(figures, source)

    def _await_playlist(self, url: str, publish: Running) -> str | None:
        """Wait for a playlist; returns why there will be none."""
        until = time.monotonic() + PLAYLIST_WITHIN_S
        answer = None
        while time.monotonic() < until:
            answer = httpx.get(f"{url}/index.m3u8")
            if answer.status_code == 200 and "STREAM-INF" in answer.text:
                return None
            if answer.status_code == 415:
                return answer.text.strip()
            if publish.process.poll() not in (None, 0):
                break
            time.sleep(0.2)
        return f"{answer.status_code}" if answer is not None else "no answer"

    def _open(self, url: str) -> dict[str, Page]:
        if self.browser is None:
            return {}
        root = url.partition("/trickle/")[0]
        low = "mpegts" not in httpx.get(f"{url}/media.m3u8").text and ".ts" not in httpx.get(f"{url}/media.m3u8").text
        pages = {}
        for name in ("hls.js", "Shaka"):
            page = self.browser.new_page()
            page.goto(f"{root}/healthz")
            page.evaluate(WATCH)
            script = NPM / ("hls.js/hls.min.js" if name == "hls.js" else "shaka-player/shaka-player.compiled.js")
            page.add_script_tag(path=script)
            if name == "hls.js":
                page.evaluate(HLS_JS, f"{url}/index.m3u8")
            else:
                page.evaluate(SHAKA, [f"{url}/index.m3u8", low])
            pages[name] = page
        return pages

    @staticmethod
    def _pause(pages: dict[str, Page], vlc: Vlc | None) -> None:
        if vlc is not None:
            vlc.ask()
        for page in pages.values():
            page.wait_for_timeout(250)  # playwright hears the browser meanwhile
        if not pages:
            time.sleep(0.5)

    @staticmethod
    def _still(pages: dict[str, Page], vlc: Vlc | None, ffmpeg: Running | None) -> bool:
        """Whether a player still has something to do."""
        seen = [page.evaluate(SEEN) for page in pages.values()]
        if any(not one["ended"] and not one["fatal"] and one["still"] < 8 for one in seen):
            return True
        programs = [ffmpeg, vlc.running if vlc is not None else None]
        return any(one is not None and one.process.poll() is None for one in programs)

    @staticmethod
    def _record(reader: Running, path: Path, source: Decoded, until: float, *, gave_up: bool) -> str:
        code = reader.wait(until - time.monotonic())
        if code is None:
            return WAITS if gave_up else "hangs"
        said = reader.said()
        if "Traceback" in said:
            return "CRASH " + last_line(said)
        if not path.exists():
            return f"no file: {refusal(said)}"
        lost = compared(decode(path), source)
        if code not in (0, 3):
            return f"exit code {code}: {refusal(said)}" + (f"; {lost}" if lost else "")
        return lost or "whole"


def feed(running: Running, data: Any) -> None:
    """Write a file to a program's standard input, in the background."""

    def write() -> None:
        stdin = running.process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.write(data_bytes)
        with contextlib.suppress(OSError):
            stdin.close()

    data_bytes = data.read()
    threading.Thread(target=write, daemon=True).start()


def words_of_publish(code: int | None, said: str) -> str:
    """What the publisher made of the input."""
    if "Traceback" in said or (code or 0) < 0:
        return "CRASH " + last_line(said)
    warned = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("published ")]
    if code:
        return f"refused: {refusal(said)}"
    return "whole" + (f"; says: {'; '.join(warned)}" if warned else "")


def words_of_check(code: int | None, told: str) -> str:
    """The verdict, and what is wrong."""
    if code is None:
        return "hangs"
    if "Traceback" in told:
        return "CRASH " + last_line(told)
    wrong = re.findall(r"^\s*(?:FAIL|WARN|fail|warn)\S*\s+(\S+)", told, re.MULTILINE)
    verdict = "ok" if code == 0 and not wrong else "failures" if code else "warnings"
    return verdict + (f": {', '.join(dict.fromkeys(wrong))}" if wrong else "")


def words_of_page(seen: dict[str, Any], source: Decoded, seconds: float, case: Case) -> str:
    """What a browser's player showed."""
    words = [f"fatal error {fatal}" for fatal in dict.fromkeys(seen["fatal"])]
    if seen["recovered"]:
        words.append(
            f"{len(seen['recovered'])} errors that it recovers from ({', '.join(dict.fromkeys(seen['recovered']))})"
        )
    if seen["begun"] is None:
        return "; ".join(["shows nothing", *words])
    played = seen["at"] - seen["begun"]
    if seen["holes"] > 0.3:
        words.append(f"jumps over {seen['holes']:.1f} s")
    if seen["stops"]:
        words.append(f"stands still for {sum(seen['stops']):.1f} s")
    if not seen["ended"] and seen["missing"] > 0.3:
        words.append(f"stops {seen['missing']:.1f} s before the end")
    if source.pictures and case.even and source.pictures[-1]:
        wanted = played * (len(source.pictures) - 1) / source.pictures[-1]
        if seen["pictures"] < 0.9 * wanted:
            words.append(f"{seen['pictures']} pictures in {played:.1f} s")
    if played < 0.3 * seconds:
        words.append(f"plays {played:.1f} s alone")
    return "; ".join(words) or "plays"


def words_of_vlc(figures: dict[str, int], source: Decoded) -> str:
    """What VLC counted: each picture twice, when it is decoded and when it is handed on."""
    pictures, wanted = figures.get("video decoded", 0) // 2, len(source.pictures)
    words = []
    if wanted and pictures < VLC_SHARE * wanted:
        words.append(f"{pictures} of {wanted} pictures" if pictures else "no picture")
    if source.sound_s and not figures.get("audio decoded", 0):
        words.append("no sound")
    if lost := figures.get("buffers lost", 0):
        words.append(f"{lost} pieces of sound lost")
    return ", ".join(words) or "plays"


def page(rows: list[Row]) -> str:
    """The page of the docs."""
    lines = [
        INTRODUCTION.read_text(encoding="utf-8").rstrip("\n"),
        "",
        "| input | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for row in rows:
        cells = (re.sub(r"\s+", " ", row.cells.get(column, "")).replace("|", "/") for column in COLUMNS)
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


INTRODUCTION: Final = Path(__file__).with_name("media_table.md")
"""The text above the table."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[case.name for case in CASES], action="append", help="may be repeated")
    parser.add_argument("--folder", type=Path, help="keep inputs, recordings and what each program said here")
    parser.add_argument("--tries", type=int, default=2, help="of a case in which a player does not just play")
    parser.add_argument("--output", type=Path, default=PAGE, help="where the table goes")
    options = parser.parse_args()
    program = find_browser()
    rows = []
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        browser = None
        if program is not None:
            playwright = stack.enter_context(sync_playwright())
            browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
            stack.callback(browser.close)
        table = Table(folder.resolve(), browser)
        for case in CASES:
            if options.only and case.name not in options.only:
                continue
            row = table.run(case, options.tries)
            rows.append(row)
            (folder / case.name / "row.json").write_text(json.dumps([row.cells, row.notes], indent=1))
            print(f"\n{row.title}", *(f"  {name:<10} {cell}" for name, cell in row.cells.items()), sep="\n", flush=True)
            if "server" in row.notes:
                print("  server     ", row.notes["server"], flush=True)
    if not options.only:
        options.output.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
