"""What a hop between two nodes costs: CPU of the node that forwards, beside one process, and the time that it adds.

Run it as ``python benchmarks/cluster.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.load.meter import cpu_clock
from benchmarks.report import spread
from benchmarks.servers import BenchmarkError, Contender, Cores, raise_file_limit, running

ROUNDS: Final = 5
CHANNELS: Final = 20
CHUNK: Final = b"x" * (8 << 10)
FRAME: Final = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
RATE: Final = 50
"""Chunks of one channel a second."""
SMALL: Final = b"s" * 200
ASKS: Final = 3_000
"""Requests that are timed one after the other."""
AGES_RATE: Final = 200
"""Chunks a second whose age is measured."""
BUSY: Final = 2.0
"""How many times as long as planned the sending may take; beyond that, the machine is too busy."""
ONE_BAR: Final = 1.3
FIRST_BYTE_MS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Running:
    """Servers that run, by what they are: process and port."""

    one: tuple[int, int]
    owner: tuple[int, int]
    edge: tuple[int, int]
    holder: tuple[int, int]


@contextmanager
def servers(cores: Cores) -> Iterator[Running]:
    """A single server, the owner of all channels, and two nodes that own nothing: one forwards, one holds replicas.

    All but the owner are on one core, since one of them works at a time.

    Raises:
        BenchmarkError: one of them does not start.
    """

    def node(name: str, *arguments: str) -> Contender:
        return Contender(name, "benchmarks.references.node", arguments)

    with running(node("one"), cores.server) as one, running(node("owner"), cores.load) as owner:
        url = f"http://127.0.0.1:{owner[1]}/trickle"
        edges = running(node("edge", url), cores.server), running(node("holder", url, "held"), cores.server)
        with edges[0] as edge, edges[1] as holder:
            yield Running(one, owner, edge, holder)


async def relay(publish_at: int, read_at: int, pid: int, number: int, *, for_s: float) -> dict[str, float]:
    """Streams of chunks, one reader each; CPU of a server for each chunk that it has taken and given."""
    got = [0]

    async def publish(name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", publish_at)
        writer.write(b"POST /trickle/%b/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % name.encode())
        due = time.perf_counter()
        try:
            while True:
                writer.write(FRAME)
                due += 1 / RATE
                await asyncio.sleep(due - time.perf_counter())
        finally:
            writer.transport.abort()
            del reader

    async def read(name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", read_at, limit=1 << 20)
        writer.write(b"GET /trickle/%b/0 HTTP/1.1\r\nHost: x\r\n\r\n" % name.encode())
        try:
            while data := await reader.read(1 << 20):
                got[0] += len(data)
        finally:
            writer.transport.abort()

    names = [f"relay-{number}-{one}" for one in range(CHANNELS)]
    tasks = [asyncio.create_task(publish(name)) for name in names]
    await asyncio.sleep(0.3)
    tasks += [asyncio.create_task(read(name)) for name in names]
    await asyncio.sleep(0.7)
    clock = cpu_clock(pid)
    before, cpu, begun = got[0], time.clock_gettime_ns(clock), time.perf_counter()
    await asyncio.sleep(for_s)
    chunks = (got[0] - before) / len(FRAME)
    cpu_us = (time.clock_gettime_ns(clock) - cpu) / 1000
    offered = CHANNELS * RATE * (time.perf_counter() - begun)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if not 0.8 < chunks / offered < 1.2:
        raise BenchmarkError(f"{chunks:.0f} of {offered:.0f} chunks came: the machine is too busy")
    return {"cpu_us": cpu_us / chunks}


async def post(port: int, pid: int, number: int, *, for_s: float) -> dict[str, float]:
    """Small segments, one after the other on each of several connections; CPU of a server for each."""
    sent = [0]

    async def publish(name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for seq in count():
                line = b"POST /trickle/%b/%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                writer.write(line % (name.encode(), seq, len(SMALL), SMALL))
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200"):
                    raise BenchmarkError(f"a POST failed: {head[:40]!r}")
                sent[0] += 1
        finally:
            writer.transport.abort()

    tasks = [asyncio.create_task(publish(f"post-{number}-{one}")) for one in range(CHANNELS)]
    await asyncio.sleep(0.5)
    clock = cpu_clock(pid)
    before, cpu, posts = sent[0], time.clock_gettime_ns(clock), 0
    # Each connection may have had its first answer before: then the server has done nothing for it yet.
    while posts <= CHANNELS and not any(task.done() for task in tasks):
        await asyncio.sleep(for_s)
        posts = sent[0] - before
    cpu_us = (time.clock_gettime_ns(clock) - cpu) / 1000
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return {"cpu_us": cpu_us / posts}


async def first_byte(port: int, number: int) -> dict[str, float]:
    """The time to the first byte of a stored segment, over one connection; milliseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /trickle/first-%d/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" % number)
    await reader.readuntil(b"\r\n\r\n")
    taken = []
    for _ in range(ASKS):
        begun = time.perf_counter()
        writer.write(b"GET /trickle/first-%d/0 HTTP/1.1\r\nHost: x\r\n\r\n" % number)
        await reader.readuntil(b"\r\n\r\n")
        taken.append((time.perf_counter() - begun) * 1000)
        await reader.readuntil(b"\r\n\r\n")  # its body
    writer.transport.abort()
    cuts = quantiles(taken, n=100)
    return {"p50_ms": median(taken), "p99_ms": cuts[98]}


async def ages(publish_at: int, read_at: int, number: int, *, for_s: float) -> dict[str, float]:
    """How old chunks are when a reader has them; milliseconds. Each says when it was sent."""
    name = b"ages-%d" % number
    chunks = round(AGES_RATE * for_s)
    answers, publisher = await asyncio.open_connection("127.0.0.1", publish_at)
    publisher.write(b"POST /trickle/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % name)
    await answers.readuntil(b"\r\n\r\n")  # the channel is there
    publisher.write(b"POST /trickle/%b/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % name)
    publisher.write(_stamped())
    reader, asks = await asyncio.open_connection("127.0.0.1", read_at, limit=1 << 20)
    asks.write(b"GET /trickle/%b/0 HTTP/1.1\r\nHost: x\r\n\r\n" % name)
    await reader.readuntil(b"\r\n\r\n")
    taken: list[float] = []

    async def read() -> None:
        for _ in range(1 + chunks):
            line = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(line, 16) + 2)
            taken.append((time.perf_counter_ns() - int.from_bytes(chunk[:8], "big")) / 1e6)

    reading = asyncio.create_task(read())
    begun = time.perf_counter()
    for _ in range(chunks):
        await asyncio.sleep(1 / AGES_RATE)
        publisher.write(_stamped())
    await reading
    took_s = time.perf_counter() - begun
    for writer in (publisher, asks):
        writer.transport.abort()
    if took_s > BUSY * for_s:
        raise BenchmarkError(f"{chunks} chunks took {took_s:.1f} s: the machine is too busy")
    del taken[:10]  # until all have met
    cuts = quantiles(taken, n=100)
    return {"p50_ms": median(taken), "p99_ms": cuts[98]}


def _stamped() -> bytes:
    return b"%x\r\n%b\r\n" % (len(CHUNK), time.perf_counter_ns().to_bytes(8, "big") + CHUNK[8:])


def measure(found: Running, number: int, *, is_quick: bool) -> dict[str, dict[str, float]]:
    """One round of everything."""
    for_s = 0.5 if is_quick else 2.0
    (one, one_port), (_, owner_port), (edge, edge_port) = found.one, found.owner, found.edge
    holder, holder_port = found.holder

    def run(work: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
        async def main() -> dict[str, float]:
            return await work()

        return uvloop.run(main())

    return {
        "one relay": run(lambda: relay(one_port, one_port, one, number, for_s=for_s)),
        "holder read": run(lambda: relay(owner_port, holder_port, holder, number + 1000, for_s=for_s)),
        "edge read": run(lambda: relay(owner_port, edge_port, edge, number * 2, for_s=for_s)),
        "edge write": run(lambda: relay(edge_port, owner_port, edge, number * 2 + 1, for_s=for_s)),
        "one post": run(lambda: post(one_port, one, number, for_s=for_s)),
        "edge post": run(lambda: post(edge_port, edge, number, for_s=for_s)),
        "one first": run(lambda: first_byte(one_port, number)),
        "edge first": run(lambda: first_byte(edge_port, number)),
        "holder first": run(lambda: first_byte(holder_port, number + 1000)),
        "one ages": run(lambda: ages(one_port, one_port, number, for_s=for_s)),
        "holder ages": run(lambda: ages(owner_port, holder_port, number, for_s=for_s)),
    }


def table(rounds: list[dict[str, dict[str, float]]]) -> Table:
    """The figures of all rounds; ratios are taken round by round."""
    made = Table(title="a hop between two nodes beside one process", title_justify="left", title_style="bold")
    for title in ("load", "figure", "one process", "edge", "edge beside one", "expected"):
        made.add_column(title, justify="left" if title in ("load", "expected") else "right")
    for what, here, there, figure, unit, bar in (
        ("chunks read from a replica", "one relay", "holder read", "cpu_us", "us per chunk", ONE_BAR),
        ("chunks read through the edge", "one relay", "edge read", "cpu_us", "us per chunk", ONE_BAR),
        ("chunks published through the edge", "one relay", "edge write", "cpu_us", "us per chunk", ONE_BAR),
        ("small segments published", "one post", "edge post", "cpu_us", "us per POST", None),
        ("first byte, median", "one first", "edge first", "p50_ms", "ms", FIRST_BYTE_MS),
        ("first byte, p99", "one first", "edge first", "p99_ms", "ms", None),
        ("first byte from a replica, median", "one first", "holder first", "p50_ms", "ms", FIRST_BYTE_MS),
        ("age of a chunk from a replica, median", "one ages", "holder ages", "p50_ms", "ms", FIRST_BYTE_MS),
        ("age of a chunk from a replica, p99", "one ages", "holder ages", "p99_ms", "ms", None),
    ):
        ones, edges = ([one[name][figure] for one in rounds] for name in (here, there))
        pairs = list(zip(ones, edges, strict=True))
        beside = [b - a if unit == "ms" else b / a for a, b in pairs]
        value = median(beside)
        verdict = "" if bar is None else f"{value:.2f} of {bar:g}: {'met' if value <= bar else 'MISSED'}"
        made.add_row(
            what, unit, spread(ones), spread(edges), ("+ " if unit == "ms" else "x ") + spread(beside), verdict
        )
    return made


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, shorter measurements")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements of each [{ROUNDS}]")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if sys.platform != "linux":
        sys.stderr.write("cluster: it reads the clocks of other processes, which needs Linux\n")
        return 1
    raise_file_limit()
    # Told to stop, it must still stop the servers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(f"{os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f} at the start")
    try:
        with servers(Cores.choose()) as found:
            rounds = [
                measure(found, number, is_quick=arguments.quick)
                for number in range(1 if arguments.quick else arguments.rounds)
            ]
    except BenchmarkError as error:
        console.print(f"cluster: {error}")
        return 1
    console.print(table(rounds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
