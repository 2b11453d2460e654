"""A rolling restart of a cluster under load: do its readers and its publisher see anything?

Three nodes are stopped (SIGTERM) and started again one after the other, while a publisher writes and many readers read
at all nodes, with the clients of this project. Each node is ready again before the next one is stopped.

``python -m benchmarks.rolling`` prints what the clients saw, and how long each node took to stop. It exits with 1 if a
segment was lost, was cut short or came with other bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.campaign.cluster import Cluster, running
from benchmarks.servers import ROOT
from tricklecast import Publisher, Subscriber

LEAD_S: Final = 1.0
"""Clients are at work for this time before the first stop, between two, and after the last start."""

_USUAL: Final = ("SegmentBegun", "SegmentPublished", "Finished", "Connected", "Ended")
"""Events that tell of no trouble."""


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        published: bytes of each segment, by seq. stops: seconds from SIGTERM to the end of each node.
        told: events of the publisher that tell of a trouble, by kind; heard: those of readers.
        slowest_s: the longest that a segment took from its beginning to its answer, without the time to write it.
        wrong: segments that readers got with other bytes, or cut short. missing: that they did not get.
    """

    published: list[bytes] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    wrong: int = 0
    missing: int = 0


async def measure(cluster: Cluster, *, readers: int, rate: float, size: int) -> Seen:
    """Restart each node of a cluster once, under load.

    Args:
        readers: how many there are, a third at each node. rate: segments per second. size: of each, in bytes.
    """
    seen, over = Seen(), asyncio.Event()
    urls = [f"http://127.0.0.1:{node.for_clients.port}/trickle/film" for node in cluster.nodes]

    async def publish() -> None:
        async with Publisher(urls, on_event=lambda event: _count(seen.told, event)) as publisher:
            while not over.is_set():
                data = b"%d " % len(seen.published) * size
                data, begun = data[:size], time.monotonic()
                seen.published.append(data)
                async with publisher.segment() as segment:
                    await segment.write(data[: size // 2])
                    await asyncio.sleep(0.3 / rate)
                    await segment.write(data[size // 2 :])
                seen.slowest_s = max(seen.slowest_s, time.monotonic() - begun - 0.3 / rate)
                await asyncio.sleep(max(0.0, 1 / rate - (time.monotonic() - begun)))

    async def read(number: int) -> None:
        got = set()
        mine = urls[number % 3 :] + urls[: number % 3]
        async with Subscriber(mine, start=0, on_event=lambda event: _count(seen.heard, event)) as subscriber:
            async for segment in subscriber:
                data = b"".join([chunk async for chunk in segment])
                seen.wrong += data != seen.published[segment.seq] or segment.broken is not None
                got.add(segment.seq)
        seen.missing += len(seen.published) - len(got)

    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(publish())
        await asyncio.sleep(1 / rate)
        for number in range(readers):
            group.create_task(read(number))
        for node in cluster.nodes:
            await asyncio.sleep(LEAD_S)
            begun = time.monotonic()
            await node.stop(signal.SIGTERM)
            seen.stops.append(time.monotonic() - begun)
            await node.start()
            await node.ready()
        await asyncio.sleep(LEAD_S)
        over.set()
        await publishing
    return seen


def _count(counts: Counter[str], event: object) -> None:
    name = type(event).__name__
    if name not in _USUAL:
        counts[name] += 1


async def run(options: argparse.Namespace) -> Seen:
    """Run a cluster, and measure."""
    settings = ("--ack", options.ack, "--shutdown-restart-s", "0")
    with tempfile.TemporaryDirectory(prefix="tricklecast-rolling-") as folder:
        async with running(Path(folder), ROOT, 1, settings, lambda _: None) as cluster:
            return await measure(cluster, readers=options.readers, rate=options.rate, size=options.size)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rolling", description=__doc__)
    parser.add_argument("--readers", type=int, default=100, help="how many, a third at each node (100)")
    parser.add_argument("--rate", type=float, default=5.0, help="segments per second (5)")
    parser.add_argument("--size", type=int, default=20_000, help="bytes of a segment (20,000)")
    parser.add_argument("--ack", choices=("memory", "quorum"), default="memory", help="what a 200 promises (memory)")
    options = parser.parse_args()
    seen, console = asyncio.run(run(options)), Console(soft_wrap=True, highlight=False)
    stops = ", ".join(f"{one:.1f} s" for one in seen.stops)
    console.print(f"{len(seen.published)} segments, {options.readers} readers; the nodes stopped in {stops}")
    console.print(f"readers: {seen.missing} missing, {seen.wrong} wrong or cut; troubles told: {dict(seen.heard)}")
    console.print(f"publisher: slowest answer after {seen.slowest_s * 1000:.0f} ms; troubles told: {dict(seen.told)}")
    return 1 if seen.missing or seen.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
