"""The main job at work, with the commands that a user would type.

A server, a publisher of a clip, two subscribers, a client with a historic fault, and the storm report run as
processes of their own. The demo then checks what they did.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from tricklecast.app.tools.demo.stage import DemoFailed, Stage
from tricklecast.trickle.pyav import reason

STEP_S: Final = 180
"""Limit of a step, far above what any step takes."""

NAIVE_CLIENT: Final = "naive-subscriber"
NAIVE_PAUSE_S: Final = 0.01
NAIVE_REQUESTS: Final = 300
NAIVE_END_AFTER: Final = 40
"""The number of these requests after which the channel ends."""


class Processes(ExitStack):
    """The processes that the demo has started. Those that still run when it ends are killed, also after Ctrl-C."""

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start ``tricklecast`` with these arguments; options are those of ``Popen``."""
        command = [sys.executable, "-m", "tricklecast", *arguments]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: subprocess.Popen[str] = subprocess.Popen(command, text=True, **{**streams, **options})
        self.callback(process.communicate)
        self.callback(process.kill)
        return process


def show(stage: Stage, clip: Path | None) -> None:
    """Run all steps.

    Args:
        stage: gets their results, and the checks. clip: is published; ``None``: one is made.

    Raises:
        DemoFailed: a step failed.
    """
    (log := stage.directory / "access.jsonl").unlink(missing_ok=True)
    with Processes() as processes:
        _run_media(stage, processes, clip, log)
        _run_report(stage, processes, log)


def _run_media(stage: Stage, processes: Processes, clip: Path | None, log: Path) -> None:
    with stage.step("Decode the clip" if clip else "Encode a clip with a keyframe every second") as detail:
        if clip is None:
            encode(clip := stage.directory / "clip.mp4")
        wanted = decode(clip)
        detail(f"{wanted.video} pictures, {wanted.audio} audio frames")
    with stage.step("Start a server") as detail:
        # The storm guard would delay the naive client to one request per second, too slow for a demo.
        options = ("--port", "0", "--channel-drain-s", "2", "--storm-guard", "off", "--access-log", str(log))
        server = processes.start("serve", *options, stderr=None)
        assert server.stdout is not None
        line = server.stdout.readline()
        if " on " not in line:
            raise DemoFailed("the server did not start")
        base = line.strip().rpartition(" on ")[2]
        detail(base)
    received = [stage.directory / f"film-{number}.ts" for number in (1, 2)]
    with stage.step("Publish it in real time, to two subscribers") as detail:
        readers = [
            processes.start("subscribe", f"{base}/film", "-o", str(path), "--start", "0", "--wait", "60")
            for path in received
        ]
        for process in [processes.start("publish", f"{base}/film", str(clip)), *readers]:
            _finish(process)
        detail(", ".join(f"{path.name} {path.stat().st_size:,} bytes" for path in received))
    with stage.step("Compare every decoded frame with the clip") as detail:
        for number, path in enumerate(received, 1):
            same = decode(path) == wanted and wanted.video > 0
            stage.checks.append((f"subscriber {number} decodes to the same frames as the clip", same))
        detail(f"{2 * (wanted.video + wanted.audio)} frames")
    with stage.step("Replay the historic fault from a naive client") as detail:
        replay_fault(f"{base}/fault")
        detail(f"it asked {NAIVE_REQUESTS} times for one dead segment")
    with stage.step("Stop the server"):
        server.terminate()
        stage.checks.append(("the server drained and ended with exit code 0", server.wait(STEP_S) == 0))


def _run_report(stage: Stage, processes: Processes, log: Path) -> None:
    report_file = stage.directory / "report.json"
    with stage.step("Look for retry storms in the access log with Spark", quiet=False) as detail:
        # The report prints as wide and as colourful as this console, and shows its progress on standard error.
        colour = {"FORCE_COLOR": "1"} if stage.console.is_terminal else {}
        environment = {**os.environ, **colour, "COLUMNS": str(stage.console.width)}
        command = ("storms", str(log), "--engine", "spark", "--json-file", str(report_file), "--fail-on", "never")
        text = _finish(processes.start(*command, stderr=None, env=environment))
        incidents = json.loads(report_file.read_text())["incidents"]
        detail(f"{len(incidents)} found in {sum(1 for _ in log.open('rb'))} lines")
    stage.console.print()
    sys.stdout.write(text)
    found = [NAIVE_CLIENT in incident["clients"] for incident in incidents]
    stage.checks += [
        ("the report names the naive client's storm", any(found)),
        ("and accuses no other client", all(found)),
    ]


def _finish(process: subprocess.Popen[str]) -> str:
    """Wait for a command that :meth:`Processes.start` started, and return its output.

    Raises:
        DemoFailed: it failed, or takes longer than :data:`STEP_S`.
    """
    command = f"tricklecast {cast('list[str]', process.args)[3]}"
    try:
        out, err = process.communicate(timeout=STEP_S)
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"{command} did not end within {STEP_S} s") from None
    if process.returncode != 0:
        raise DemoFailed(f"{command} failed with exit code {process.returncode}: {(err or out or '').strip()[-500:]}")
    return out


def replay_fault(url: str) -> None:
    """Publish one segment, close the next one empty, and let a naive client repeat its GET while the channel ends.

    A publisher of the reference implementation closed its preconnect before it deleted the channel. That left a segment
    behind that was answered empty for ever, and subscribers that took "empty" for "try again" repeated the GET
    thousands of times. This server moves past such a segment and sends `Lp-Trickle-Closed`; the naive client ignores
    both. It sends :data:`NAIVE_REQUESTS` requests, about 100 per second. The channel must not exist yet.
    """
    names = {"Trickle-Client": NAIVE_CLIENT, "User-Agent": "naive/1.0"}
    import httpx

    with httpx.Client(timeout=30) as publisher, httpx.Client(timeout=30, headers=names) as naive:
        publisher.post(f"{url}/0", content=b"the only segment")
        publisher.post(f"{url}/1", content=b"")  # the preconnect, closed before the DELETE
        for asked in range(NAIVE_REQUESTS):
            if asked == NAIVE_END_AFTER:
                publisher.delete(url)
            naive.get(f"{url}/1")
            time.sleep(NAIVE_PAUSE_S)


class Frames(NamedTuple):
    """The decoded frames of a file: their numbers, and a digest of all their samples, in order."""

    video: int
    audio: int
    digest: str


def decode(path: Path) -> Frames:
    """Decode all video and audio frames of a file.

    Raises:
        DemoFailed: it is not there, or holds no media.
    """
    import av
    from av.codec.context import Flags2

    video, audio, pictures, sounds = hashlib.sha256(), hashlib.sha256(), 0, 0
    try:
        opened = av.open(str(path))
    except (OSError, av.FFmpegError) as error:
        raise DemoFailed(f"cannot read {path}: {reason(error)}") from None
    with opened as container:
        streams = [*container.streams.video[:1], *container.streams.audio[:1]]
        for stream in streams:
            # MP4 names the number of samples that an encoder put before the sound, MPEG-TS cannot: compare all of them.
            stream.codec_context.flags2 |= Flags2.skip_manual
        for frame in container.decode(*streams):  # planes end with padding, and so do their rows
            if isinstance(frame, av.VideoFrame):
                pictures += 1
                for plane in frame.planes:
                    pixels, stride = bytes(plane), plane.line_size
                    for row in range(plane.height):
                        video.update(pixels[row * stride : row * stride + plane.width])
            elif isinstance(frame, av.AudioFrame):
                sounds += 1
                channels = 1 if frame.format.is_planar else frame.layout.nb_channels
                for samples in frame.planes:
                    audio.update(bytes(samples)[: frame.samples * frame.format.bytes * channels])
    return Frames(pictures, sounds, f"{video.hexdigest()} {audio.hexdigest()}")


def encode(path: Path, *, seconds: int = 6, rate: int = 25, size: str = "320x180") -> None:
    """Encode a moving picture with a tone as MP4: H.264 with B-frames, one keyframe a second, and AAC."""
    import av

    generator = (
        f"testsrc2=duration={seconds}:rate={rate}:size={size}[out0];sine=sample_rate=48000:duration={seconds}[out1]"
    )
    with av.open(generator, format="lavfi") as source, av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", rate=rate, options={"g": str(rate), "bf": "2"})
        video.width, video.height = map(int, size.split("x"))
        audio: Any = container.add_stream("aac", rate=48_000, layout="mono")
        for frame in source.decode():
            container.mux((video if isinstance(frame, av.VideoFrame) else audio).encode(frame))
        container.mux(video.encode(None))
        container.mux(audio.encode(None))
