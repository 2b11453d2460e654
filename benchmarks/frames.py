"""What a frame costs that is decoded, passed through a function, encoded and published: latency and CPU.

A source publishes pictures, each of which shows its number in ten bars, black or white. A relay, a process of its own,
inverts the pictures. A reader decodes the relay's channel. The figures are those of a running relay:

- latency: from ``write`` to the decoded frame, without a relay and with one;
- CPU: time of the relay's process (user and system, all threads), divided by the pictures that were published;
- start: from the start of the process to the first frame that comes back. Nothing of it is in the other figures.

With ``--pytrickle PYTHON``, an interpreter that has pytrickle, the same relay written with it takes turns with ours, on
the same server. Compare ratios only: the machine, and whatever else it does, are the same for both.

    python -m benchmarks.frames --rounds 5 --pytrickle ~/pytrickle/bin/python
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Any

import anyio
import numpy as np

from tricklecast.media import MediaPublisher, frames
from tricklecast.testing import server

FPS = 30
HEIGHT, WIDTH = 480, 640  # pytrickle's encoder scales pictures of another size to this one
BITS = 10
BAR = WIDTH // BITS

# With pytrickle's settings of x264: its default preset is "superfast", and ours is faster.
OURS = """
import sys, anyio
from tricklecast.media import relay

async def main():
    await relay(sys.argv[1], sys.argv[2], lambda picture: 255 - picture, preset="superfast", gop_s=2)

anyio.run(main)
"""

# Its default limit of 24 frames per second would drop a fifth of the pictures.
PYTRICKLE = f"""
import asyncio, sys
from pytrickle import TrickleClient, TrickleProtocol
from pytrickle.frame_processor import FrameProcessor

class Invert(FrameProcessor):
    async def load_model(self, **kwargs): pass
    async def process_video_async(self, frame): return frame.replace_tensor(1.0 - frame.tensor)
    async def process_audio_async(self, frame): return [frame]
    async def update_params(self, params): pass

async def main():
    protocol = TrickleProtocol(
        subscribe_url=sys.argv[1], publish_url=sys.argv[2], width={WIDTH}, height={HEIGHT}, max_framerate={2 * FPS}
    )
    await TrickleClient(protocol=protocol, frame_processor=Invert()).start("benchmark")

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement.

    Attributes:
        start_s: from the start of the relay to its first frame, in seconds.
        latencies_s: of the frames that came back, in seconds.
        published: pictures that were published meanwhile.
        cpu_s: of the relay, meanwhile.
    """

    start_s: float
    latencies_s: list[float]
    published: int
    cpu_s: float


async def measured(base: str, name: str, command: list[str], warm_up_s: float, seconds: float) -> Result:
    """Publish, relay with ``command`` (empty: do not), read, and measure."""
    source = f"{base}{name}"
    target = f"{source}-inverted" if command else source
    written: dict[int, float] = {}
    count, latencies = 0, list[float]()
    first, process = anyio.Event(), None

    async def write(publisher: MediaPublisher) -> None:
        nonlocal count
        begun = time.perf_counter()
        while True:
            number, picture = count % (1 << BITS), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            for bar in range(BITS):
                picture[:, bar * BAR : (bar + 1) * BAR] = 255 * (number >> bar & 1)
            written[number] = time.perf_counter()
            await publisher.write(picture, pts=3000 * (count + FPS), time_base=Fraction(1, 90_000))
            count += 1
            await anyio.sleep(max(0.0, begun + count / FPS - time.perf_counter()))

    async def read() -> None:
        async for frame in frames(target, format="gray", start="current", wait_for_channel_s=60):
            bars = frame.array[HEIGHT // 2, BAR // 2 :: BAR] > 127
            number = sum(1 << bar for bar, is_white in enumerate(bars) if is_white != bool(command))
            if number in written:
                latencies.append(time.perf_counter() - written.pop(number))
            first.set()

    try:
        async with MediaPublisher(source, fps=FPS) as publisher, anyio.create_task_group() as tasks:
            tasks.start_soon(write, publisher)
            await anyio.sleep(1)  # pytrickle needs a channel that has begun
            started = time.perf_counter()
            if command:
                process = subprocess.Popen([*command, source, target], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
            tasks.start_soon(read)
            with anyio.fail_after(60):
                await first.wait()
            start_s = time.perf_counter() - started
            await anyio.sleep(warm_up_s)
            latencies.clear()
            begun_at, cpu_s = count, 0.0 if process is None else -cpu_time_s(process.pid)
            await anyio.sleep(seconds)
            cpu_s += 0.0 if process is None else cpu_time_s(process.pid)
            result = Result(start_s, list(latencies), count - begun_at, cpu_s)
            tasks.cancel_scope.cancel()
    finally:
        if process is not None:
            process.terminate()
            process.wait()
    return result


def cpu_time_s(pid: int) -> float:
    """CPU time of a process up to now, in seconds."""
    with open(f"/proc/{pid}/stat") as stat:
        return sum(map(int, stat.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def spread(values: Iterable[float], unit: str = "") -> str:
    """Median and range."""
    known = sorted(values)
    return f"{median(known):.2f}{unit} ({known[0]:.2f} to {known[-1]:.2f})"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="measured in each round")
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds behind the first frame")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pytrickle", metavar="PYTHON", help="an interpreter with pytrickle")
    options = parser.parse_args()
    ways: dict[str, list[str]] = {"no relay": [], "tricklecast": [sys.executable, "-c", OURS]}
    if options.pytrickle:
        ways["pytrickle"] = [options.pytrickle, "-c", PYTRICKLE]
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
    with server() as running:
        for number in range(options.rounds):
            for name, command in ways.items():
                label = f"{name.replace(' ', '-')}-{number}"
                result: Any = anyio.run(measured, running.url(""), label, command, options.warm_up, options.seconds)
                found = sorted(result.latencies_s)
                row = {
                    "p50 ms": 1000 * median(found),
                    "p95 ms": 1000 * found[len(found) * 95 // 100],
                    "CPU ms": 1000 * result.cpu_s / result.published,
                    "delivered": len(found) / result.published,
                    "start s": result.start_s,
                }
                print(f"{label}:", ", ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
                for key, value in row.items():
                    figures[name].setdefault(key, []).append(value)
    print("\nmedian (range) of the rounds")
    for name, columns in figures.items():
        print(f"{name}:", ", ".join(f"{key} {spread(values)}" for key, values in columns.items()))
    if options.pytrickle:
        ours, theirs, direct = (figures[name] for name in ("tricklecast", "pytrickle", "no relay"))
        print("\ntricklecast / pytrickle, round by round")
        for key in ("p50 ms", "p95 ms", "CPU ms", "start s"):
            print(f"{key}:", spread(mine / other for mine, other in zip(ours[key], theirs[key], strict=True)))
        for key in ("p50 ms", "p95 ms"):
            added = zip(ours[key], theirs[key], direct[key], strict=True)
            print(f"added {key}:", spread((mine - none) / (other - none) for mine, other, none in added))


if __name__ == "__main__":
    main()
