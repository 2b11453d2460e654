"""An hour of the test source at eight times its speed, through the command line: does it drift, leak or lose anything?

Run it as ``python benchmarks/testsrc_hour.py``; it takes seven and a half minutes, and with ``--minutes`` less. Server,
publisher and subscriber are processes of their own; this one decodes all that the subscriber writes. README.md in this
folder says what is looked at. It needs Linux, since it reads the memory of other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.received import RATE, Received, receive

ROOT: Final = Path(__file__).resolve().parent.parent
CHANNEL: Final = "hour"
END_S: Final = 30.0
MIB: Final = 1 << 20

MAX_APART_MS: Final = 1000 / RATE
"""How far timestamps, picture clock and producer time may come apart: by one picture."""

MAX_GROWTH_MIB: Final = 16.0
WARM_S: Final = 75.0
"""After so long a process is as large as it will be: the server's window of 60 s is full."""


class NotRun(Exception):
    """Something did not work at all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        minutes: how long it takes. speed: media time per time. size: of the picture.
    """

    minutes: float
    speed: float
    size: str

    @property
    def source(self) -> str:
        """The test source with its options."""
        return f"testsrc:size={self.size},rate={RATE},speed={self.speed:g},duration={self.media_s}"

    @property
    def media_s(self) -> int:
        """How much media that is, in seconds."""
        return round(self.minutes * 60 * self.speed)


@dataclass
class Result:
    """What came of it.

    Attributes:
        received: what was decoded.
        totals: what the subscriber says at its end.
        publisher: what the publisher says at its end, and its exit code.
        memory: of each process, in MiB, once a second.
    """

    received: Received
    totals: dict[str, Any]
    publisher: tuple[str, int]
    memory: dict[str, list[float]] = field(default_factory=dict)


def run(plan: Plan) -> Result:
    """Publish and receive.

    Raises:
        NotRun: a process did not start, or did not end.
    """
    with tempfile.TemporaryDirectory() as folder, _server() as (server, base):
        url = f"{base}/{CHANNEL}"
        events, said = Path(folder, "events"), Path(folder, "said")
        listen = ["subscribe", url, "-o", "-", "--json", "--start", "earliest", "--wait", "15s"]
        with (
            events.open("wb") as errors,
            said.open("wb") as output,
            _started(listen, subprocess.PIPE, errors) as subscriber,
            _started(["publish", url, plan.source], output, output) as publisher,
        ):
            processes = {"server": server, "publisher": publisher, "subscriber": subscriber}
            with _sampled({name: process.pid for name, process in processes.items()}) as memory:
                assert subscriber.stdout is not None
                received = receive(subscriber.stdout)
            try:
                subscriber.wait(END_S)
                code = publisher.wait(END_S)
            except subprocess.TimeoutExpired as error:
                raise NotRun(f"a process did not end; the subscriber's last words: {_last(events)}") from error
        last = json.loads(_last(events))
        if last["event"] != "end":
            raise NotRun(f"the subscriber failed: {last}")
        return Result(received, last["totals"], (said.read_text().strip(), code), memory)


def losses(plan: Plan, result: Result) -> list[str]:
    """Whatever is wrong, for people."""
    received, totals = result.received, result.totals
    found = [
        f"{totals[kind]} x {kind} in the channel" for kind in ("gaps", "missed", "truncated", "broken") if totals[kind]
    ]
    if result.publisher[1]:
        found.append(f"the publisher ended with exit code {result.publisher[1]}")
    found += [f"{count} jumps in the timestamps of {kind}" for kind, count in received.jumps.items() if count]
    if received.corrupt:
        found.append(f"{received.corrupt} corrupt packets")
    if received.pictures != plan.media_s * RATE:
        found.append(f"{received.pictures} pictures of {plan.media_s * RATE}")
    if len(received.keyframes) != len(received.producer):
        found.append(f"{len(received.keyframes)} keyframes, but {len(received.producer)} producer times")
    if unreadable := sum(clock is None for _, clock in received.keyframes):
        found.append(f"{unreadable} unreadable picture clocks")
    for name, offsets in clocks(plan, received).items():
        if offsets and max(offsets) - min(offsets) > MAX_APART_MS:
            found.append(f"{name}: {max(offsets) - min(offsets):.0f} ms apart")
    for name, samples in result.memory.items():
        warm = samples[round(WARM_S) :]
        if warm and max(warm) - warm[0] > MAX_GROWTH_MIB:
            found.append(f"the {name} grew by {max(warm) - warm[0]:.1f} MiB")
    return found


def clocks(plan: Plan, received: Received) -> dict[str, list[float]]:
    """The distances between clocks at each keyframe, in milliseconds; they should be constant."""
    pairs = [
        (media_ms / plan.speed, clock_ms, producer_ms)
        for (media_ms, clock_ms), (producer_ms, _) in zip(received.keyframes, received.producer, strict=False)
        if clock_ms is not None
    ]
    return {
        "picture clock - timestamps": [clock - media for media, clock, _ in pairs],
        "producer time - picture clock": [producer - clock for _, clock, producer in pairs],
    }


def report(plan: Plan, result: Result) -> Iterator[str]:
    """The figures, line by line."""
    received, totals = result.received, result.totals
    yield f"media      {plan.media_s} s at {plan.speed:g} x, {plan.size}, {totals['bytes'] / MIB:.1f} MiB"
    yield "segments   " + ", ".join(f"{totals[name]} {name}" for name in ("segments", "gaps", "missed", "retries"))
    yield f"video      {received.pictures} pictures, {received.jumps['video']} jumps in time"
    yield f"audio      {received.packets['audio']} packets, {received.jumps['audio']} jumps in time"
    for name, offsets in clocks(plan, received).items():
        if offsets:
            spread = max(offsets) - min(offsets)
            yield f"drift      {offsets[-1] - offsets[0]:+.1f} ms, spread {spread:.1f} ms: {name}"
    fifth = len(received.producer) // 5
    for name, part in (("first", received.producer[:fifth]), ("last", received.producer[-fifth:])):
        late = [late_ms for _, late_ms in part]
        if len(late) > 1:
            p99 = quantiles(late, n=100, method="inclusive")[98]
            yield f"latency    median {median(late):.1f} ms, p99 {p99:.1f}, max {max(late):.1f}: {name} fifth"
    for name, samples in result.memory.items():
        if samples:
            warm = samples[min(round(WARM_S), len(samples) - 1)]
            yield f"memory     warm {warm:.1f} MiB, last {samples[-1]:.1f}, most {max(samples):.1f}: {name}"
    yield f"publisher  {result.publisher[0].rpartition(chr(10))[2]}"


def _last(events: Path) -> str:
    return events.read_text().rpartition("\n")[0].rpartition("\n")[2]


@contextmanager
def _server() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    with _started(["serve", "--port", "0"], subprocess.PIPE, None) as process:
        assert process.stdout is not None
        _, found, address = process.stdout.readline().decode().strip().partition("http://")
        if not found:
            raise NotRun("the server did not start")
        yield process, f"http://{address}"


@contextmanager
def _started(arguments: Sequence[str], output: Any, errors: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the command line; it does not outlive the block."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    command = [sys.executable, "-m", "tricklecast", *arguments]
    process = subprocess.Popen(command, stdout=output, stderr=errors, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _sampled(pids: dict[str, int]) -> Iterator[dict[str, list[float]]]:
    """Sample the resident memory of processes, once a second."""
    samples: dict[str, list[float]] = {name: [] for name in pids}
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(1.0):
            for name, pid in pids.items():
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                except OSError:
                    continue  # it has ended
                if pages:
                    samples[name].append(pages * os.sysconf("SC_PAGE_SIZE") / MIB)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the figures; 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=7.5, help="how long it takes (default 7.5)")
    parser.add_argument("--speed", type=float, default=8.0, help="seconds of media per second (default 8)")
    parser.add_argument("--size", default="320x180", help="of the picture (default 320x180)")
    given = parser.parse_args(arguments)
    plan = Plan(given.minutes, given.speed, given.size)
    try:
        result = run(plan)
    except NotRun as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in report(plan, result):
        print(line)
    found = losses(plan, result)
    for loss in found:
        print(f"WRONG: {loss}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
