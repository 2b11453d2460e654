"""`tricklecast demo`: all of it at work, with the same commands that a user would type.

A server, a publisher of a real film clip, two subscribers, a client with the historic fault, and the storm report:
each is a process of its own. What they did is then checked here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tricklecast.app.demo_clip import Frames, decode, encode, find_clip
from tricklecast.app.demo_fault import NAIVE_CLIENT, replay_fault
from tricklecast.trickle.errors import TrickleError

PATIENCE_S = 180
"""Far more than any step takes; a step that needs longer hangs."""


class DemoFailed(TrickleError):
    """A step of the demo did not do what it should."""


@dataclass
class Stage:
    """What the steps share.

    Attributes:
        directory: where logs and received media go.
        checks: what was proven, and whether it held.
    """

    directory: Path
    console: Console
    checks: list[tuple[str, bool]] = field(default_factory=list)

    @contextmanager
    def step(self, text: str, *, quiet: bool = True) -> Iterator[Callable[[str], None]]:
        """Show what goes on while it does, and how it went, in one line.

        Args:
            quiet: the step shows no progress of its own.
        """
        details: list[str] = []
        begun = time.monotonic()
        spin = quiet and self.console.is_terminal
        with self.console.status(f"{text} …") if spin else _announced(self.console, text):
            yield details.append
        took = f"[dim]{time.monotonic() - begun:.1f} s[/dim]"
        self.console.print(f"[green]•[/green] {text}: {', '.join(details) or 'done'} {took}", highlight=False)

    def check(self, text: str, holds: bool) -> None:
        """Note a proof."""
        self.checks.append((text, holds))


def demo(
    keep: Annotated[
        Path | None, typer.Option(help="Keep logs, media and report in this directory.", show_default=False)
    ] = None,
    clip: Annotated[
        Path | None, typer.Option(help="A film clip of your own (H.264/AAC) to publish.", show_default=False)
    ] = None,
) -> None:
    """Show all of it at work, in about a minute.

    Starts a server on a free port, publishes a film clip to it with two subscribers, proves that what they received
    decodes to the same frames, replays a historic fault from a naive client, and has Spark find that storm in the
    access log. Ends by itself; exit code 0 only if all of it held.
    """
    console = Console(stderr=False)
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tricklecast-demo-")))
        directory.mkdir(parents=True, exist_ok=True)
        stage = Stage(directory, console)
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
        raise DemoFailed("the demo did not hold what it promises")


def _run_media(stage: Stage, clip: Path | None, log: Path) -> None:
    with stage.step("Get a film clip, and encode one with a keyframe every second") as detail:
        clips = {"film": clip or find_clip(), "test": stage.directory / "test.mp4"}
        encode(clips["test"])
        wanted = {name: decode(path) for name, path in clips.items()}
        detail("; ".join(f"{name}: {w.video} pictures, {w.audio} audio frames" for name, w in wanted.items()))
    with ExitStack() as stack:
        with stage.step("Start a server") as detail:
            server, base = stack.enter_context(_server(log))
            detail(base)
        received = {(name, n): stage.directory / f"{name}-{n}.ts" for name in clips for n in (1, 2)}
        with stage.step("Publish both in real time, each to two subscribers") as detail:
            readers = [
                _start("subscribe", f"{base}/{name}", "-o", str(path), "--start", "0", "--wait", "60")
                for (name, _), path in received.items()
            ]
            publishers = [_start("publish", f"{base}/{name}", str(path)) for name, path in clips.items()]
            for publisher in publishers:
                _finish(publisher, "a publisher")
            for reader in readers:
                _finish(reader, "a subscriber")
            detail(", ".join(f"{path.name} {path.stat().st_size:,} bytes" for path in received.values()))
        with stage.step("Compare every decoded frame with the clips") as detail:
            for (name, number), path in received.items():
                holds = _same(decode(path), wanted[name])
                stage.check(f"subscriber {number} of {name} decodes to the same frames as the clip", holds)
            detail(f"{2 * sum(w.video + w.audio for w in wanted.values())} frames")
        with stage.step("Replay the historic fault from a naive client") as detail:
            asked = replay_fault(f"{base}/fault")
            detail(f"it asked {asked} times for one dead segment")
        with stage.step("Stop the server"):
            server.terminate()
            code = server.wait(PATIENCE_S)
        stage.check("the server drained and ended with exit code 0", code == 0)


def _run_report(stage: Stage, log: Path) -> None:
    report_file = stage.directory / "report.json"
    with stage.step("Look for retry storms in the access log with Spark", quiet=False) as detail:
        command = ["storms", str(log), "--json", str(report_file), "--fail-on", "never"]
        done = _finish(_start(*command, like=stage.console), "the storm report")
        report: dict[str, Any] = json.loads(report_file.read_text())
        storms = report["episodes"]
        detail(f"{len(storms)} found in {sum(1 for _ in log.open('rb'))} lines")
    stage.console.print()
    sys.stdout.write(done)
    found = [storm for storm in storms if NAIVE_CLIENT in storm["clients"]]
    stage.check("the report names the naive client's storm", bool(found))
    stage.check("and accuses nobody else", len(found) == len(storms))


def _same(got: Frames, wanted: Frames) -> bool:
    return got.video > 0 and got == wanted


@contextmanager
def _server(log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    # Held back, the naive client would ask once a second: too slow for a demo.
    arguments = ["serve", "--port", "0", "--channel-drain-s", "2", "--storm-guard", "off", "--access-log", str(log)]
    with subprocess.Popen(_command(*arguments), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if " on " not in line:
                raise DemoFailed("the server did not start")
            yield process, line.strip().rpartition(" on ")[2]
        finally:
            if process.poll() is None:
                process.kill()


def _start(*arguments: str, like: Console | None = None) -> subprocess.Popen[str]:
    """Start a command of ours.

    Args:
        like: print as wide and as colourful as this console would, and show progress on its standard error.
    """
    environment = dict(os.environ)
    if like is not None:
        environment["COLUMNS"] = str(like.width)
        if like.is_terminal:
            environment["FORCE_COLOR"] = "1"
    output = subprocess.PIPE
    return subprocess.Popen(
        _command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if like else output,
        text=True,
        env=environment,
    )


def _finish(process: subprocess.Popen[str], what: str) -> str:
    """Wait for a process, and return what it printed.

    Raises:
        DemoFailed: it failed, or hangs.
    """
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise DemoFailed(f"{what} did not end within {PATIENCE_S} s") from None
    if process.returncode != 0:
        raise DemoFailed(f"{what} failed with exit code {process.returncode}: {(err or out or '').strip()[-500:]}")
    return out


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tricklecast", *arguments]


@contextmanager
def _announced(console: Console, text: str) -> Iterator[None]:
    console.print(f"{text} …", style="dim", highlight=False)
    yield
