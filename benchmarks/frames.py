"""What a frame costs that is decoded, passed through a function, encoded and published: latency and CPU.

A source publishes pictures with a number in their brightness; a relay inverts them; a reader takes them from the
relay's channel. Latency is the time from ``write`` to the decoded frame, without the relay and with it; CPU is that of
the relay's process. With ``--pytrickle PYTHON``, an interpreter that has pytrickle, the same relay written with it
runs in turns with ours, on the same server: compare ratios only, since other programs may use the machine.

    python -m benchmarks.frames --seconds 10 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from fractions import Fraction
from typing import Any

import anyio
import numpy as np

from tricklecast.media import MediaPublisher, frames
from tricklecast.testing import server

FPS = 30
SIZE = (360, 640)

OURS = """
import sys, anyio
from tricklecast.media import relay
anyio.run(relay, sys.argv[1], sys.argv[2], lambda picture: 255 - picture)
"""

PYTRICKLE = """
import asyncio, sys
from pytrickle import TrickleClient, TrickleProtocol
from pytrickle.frame_processor import FrameProcessor

class Invert(FrameProcessor):
    async def load_model(self, **kwargs): pass
    async def warmup(self): pass
    async def initialize(self): pass
    async def process_video_async(self, frame): return frame.replace_tensor(1.0 - frame.tensor)
    async def process_audio_async(self, frame): return [frame]
    async def update_params(self, params): pass

async def main():
    protocol = TrickleProtocol(subscribe_url=sys.argv[1], publish_url=sys.argv[2], width=640, height=360)
    await TrickleClient(protocol=protocol, frame_processor=Invert()).start("bench")

asyncio.run(main())
"""


async def latencies(source: str, target: str, seconds: float) -> list[float]:
    """Seconds from ``write`` to the decoded frame of ``target``, by the time that each frame carries."""
    written: dict[int, float] = {}
    found: list[float] = []
    async with MediaPublisher(source, fps=FPS) as publisher, anyio.create_task_group() as tasks:

        async def read() -> None:
            async for frame in frames(target, format="gray", start="current", wait_for_channel_s=30):
                assert frame.array is not None
                # The number stands in eight bars, black and white, which the relay inverts.
                bars = frame.array[SIZE[0] // 2, SIZE[1] // 16 :: SIZE[1] // 8] > 127
                bits = bars if target == source else ~bars
                number = int(sum(1 << at for at, bit in enumerate(bits[:8]) if bit))
                if number in written:
                    found.append(time.perf_counter() - written.pop(number))

        tasks.start_soon(read)
        begun = time.perf_counter()
        for number in range(round(seconds * FPS)):
            picture = np.zeros((*SIZE, 3), np.uint8)
            for at in range(8):
                picture[:, at * SIZE[1] // 8 : (at + 1) * SIZE[1] // 8] = 255 if number >> at & 1 else 0
            written[number & 255] = time.perf_counter()
            await publisher.write(picture, pts=3000 * (number + 30), time_base=Fraction(1, 90_000))
            await anyio.sleep(max(0.0, begun + (number + 1) / FPS - time.perf_counter()))
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    return found[FPS:]  # without the first second


def relayed(base: str, name: str, command: list[str], seconds: float) -> dict[str, Any]:
    """Latency and CPU of one relay."""
    source, target = f"{base}{name}", f"{base}{name}-out"
    process = subprocess.Popen([*command, source, target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = anyio.run(latencies, source, target, seconds)
        with open(f"/proc/{process.pid}/stat") as stat:
            ticks = sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
    finally:
        process.terminate()
        process.wait()
    return {"found": found, "cpu_s": ticks / os.sysconf("SC_CLK_TCK")}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pytrickle", metavar="PYTHON", help="an interpreter with pytrickle")
    options = parser.parse_args()
    relays = {"tricklecast": [sys.executable, "-c", OURS]}
    if options.pytrickle:
        relays["pytrickle"] = [options.pytrickle, "-c", PYTRICKLE]
    with server() as running:
        base = running.url("")
        direct = anyio.run(latencies, f"{base}direct", f"{base}direct", options.seconds)
        print(f"without a relay: {1000 * statistics.median(direct):.1f} ms from write to frame")
        for number in range(options.rounds):
            for name, command in relays.items():
                result = relayed(base, f"{name}-{number}", command, options.seconds)
                found = result["found"]
                if not found:
                    print(f"{name}: no frame came back")
                    continue
                wanted = options.seconds * FPS
                print(
                    f"{name}: {1000 * statistics.median(found):.1f} ms from write to frame (90 %: "
                    f"{1000 * sorted(found)[len(found) * 9 // 10]:.1f} ms), {len(found)} frames, "
                    f"{1000 * result['cpu_s'] / wanted:.1f} ms of CPU a frame"
                )


if __name__ == "__main__":
    main()
