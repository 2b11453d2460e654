"""What ``--ack quorum`` costs: the time until a segment is acknowledged, how much one channel carries, and CPU.

Run it as ``python benchmarks/quorum.py``; README.md in this folder describes the method. It starts the real servers of
NATS, one and three of them on this machine, and publishes to the core of a node in this process, without HTTP, so that
what is measured is the history alone.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Final, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop
from rich.console import Console
from rich.table import Table

from tests.support.nats import NatsServer, nats_cluster, nats_server
from tricklecast.app.clock import to_time, to_us
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.quorum import Quorum
from tricklecast.app.cluster.streams import StreamOptions
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Outcome
from tricklecast.app.core.segment import Writer

SMALL: Final = 200
LARGE: Final = 64 << 10
CHUNK: Final = 8 << 10
IN_FLIGHT: Final = 8
"""Segments of one channel that wait for their acknowledgements, where its throughput is measured."""


class Figures(NamedTuple):
    """Of segments of one size.

    Attributes:
        p50_ms, p99_ms: from the end of a segment to its acknowledgement, one after the other.
        mb_s: of one channel with :data:`IN_FLIGHT`.
        cpu_ms: of this process, and servers_ms: of those of NATS, for a megabyte.
    """

    p50_ms: float
    p99_ms: float
    mb_s: float
    cpu_ms: float
    servers_ms: float


class _Publisher:
    def preempted(self, outcome: Outcome) -> None:
        """Nobody does that here."""


class Node:
    """A core, with histories or without."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self.registry = Registry(Limits(window_bytes=8 << 20), autocreate=True, instance="benchmark")
        self.quorum: Quorum | None = None
        self._seq = 0
        if urls:
            self.quorum = Quorum(
                NatsOptions(urls),
                self.registry,
                time.monotonic,
                name="benchmark",
                to_us=to_us,
                to_time=to_time,
                confirmed=_confirmed,
                lost=lambda channel, epoch: None,
                options=StreamOptions(max_bytes=4 << 30),
            )

    async def publish(self, size: int) -> None:
        """Publish a segment, and wait until it is acknowledged."""
        now = time.monotonic()
        writer = self.registry.reserve("c", self._seq, _Publisher(), now)
        self._seq += 1
        assert isinstance(writer, Writer), writer
        channel, chunk = writer.channel, b"x" * min(size, CHUNK)
        for _ in range(size // len(chunk)):
            channel.append(writer, [chunk], now)
        channel.finish(writer, [], now)
        if self.quorum is not None and not await self.quorum.flush(channel):
            raise RuntimeError("a segment was not acknowledged in time")

    async def publish_many(self, size: int, segments: int) -> None:
        """Publish segments, some at a time."""

        async def some() -> None:
            for _ in range(segments // IN_FLIGHT):
                await self.publish(size)
                await asyncio.sleep(0)

        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


async def _confirmed(channel: str, epoch: int) -> bool:
    return True


def _cpu_of(servers: list[NatsServer]) -> float:
    """Seconds of CPU that servers have taken."""
    total = 0.0
    for server in servers:
        assert server.process is not None
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / 100
    return total


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(servers: list[NatsServer], size: int, segments: int) -> Figures:
    """Publish segments of one size to a node."""
    node = Node(tuple(server.url for server in servers))
    if node.quorum is not None and not await node.quorum.start():
        raise RuntimeError("the streams cannot be made")
    for _ in range(20):
        await node.publish(size)
    times = []
    for _ in range(segments):
        began = time.perf_counter()
        await node.publish(size)
        times.append(1e3 * (time.perf_counter() - began))
    cuts = quantiles(times, n=100)
    own, theirs, began = _own_cpu(), _cpu_of(servers), time.perf_counter()
    many = segments * (4 if size < LARGE else 1)
    await node.publish_many(size, many)
    took, megabytes = time.perf_counter() - began, many // IN_FLIGHT * IN_FLIGHT * size / 1e6
    own, theirs = _own_cpu() - own, _cpu_of(servers) - theirs
    if node.quorum is not None:
        await node.quorum.stop()
    return Figures(cuts[49], cuts[98], megabytes / took, 1e3 * own / megabytes, 1e3 * theirs / megabytes)


@contextmanager
def _servers(replicas: int) -> Iterator[list[NatsServer]]:
    if replicas == 0:
        yield []
    elif replicas == 1:
        with nats_server() as server:
            yield [server]
    else:
        with nats_cluster(replicas) as servers:
            yield servers


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=1000, help="of each size [default: 1000]")
    segments = parser.parse_args().segments
    table = Table("acknowledged by", "segment", "p50 ms", "p99 ms", "MB/s", "CPU ms/MB", "CPU of NATS ms/MB")
    for replicas, label in ((0, "memory"), (1, "quorum, R1"), (3, "quorum, R3")):
        with _servers(replicas) as servers:
            for size in (SMALL, LARGE):
                found = uvloop.run(measure(servers, size, segments))
                table.add_row(label, f"{size:,}", *(f"{figure:,.2f}" for figure in found))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
