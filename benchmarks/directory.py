"""The directory of a cluster with 100,000 channels: start, memory, the cost of an update, claims, and a takeover.

Run it as ``python benchmarks/directory.py [CHANNELS]``. It starts a NATS server and two nodes, each a process of its
own: the first claims all channels, the second starts then, and watches. The first is killed, and the second takes over.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop
from rich.console import Console
from rich.table import Table

from tests.support.nats import nats_server
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.directory import Claimed, Directory, NodeFacts
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.view import Place

CHANNELS: Final = 100_000
SAMPLES: Final = 1_000
"""Claims that are timed one after the other."""

AT_ONCE: Final = 256
"""Claims on their way at once, where many are made."""

START_S: Final = 2.0
"""The bar: a node with 100,000 channels in the directory has read it in this time."""


class _Nobody:
    def moved(self, channel: str, place: Place | None) -> None: ...
    def lost(self, channel: str, epoch: int) -> None: ...
    def given(self, channel: str, epoch: int) -> bool:
        return False


def _node(name: str, url: str) -> Directory:
    options = NatsOptions((url,))
    return Directory(lambda: Bucket.open(options, name), NodeFacts(name, f"http://{name}"), _Nobody())


def _name(number: int) -> str:
    return f"channel-{number:07}"


async def _claim(directory: Directory, channel: str) -> float:
    """Claim until it succeeds; returns how long it took."""
    began = time.perf_counter()
    while True:
        if isinstance(await directory.claim(channel), Claimed):
            return time.perf_counter() - began
        await asyncio.sleep(0.01)


async def _all(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def _say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


async def own(url: str, channels: int) -> None:
    """The first node: it claims all channels, then ends and claims some again, for ever."""
    directory = _node("a", url)
    await directory.start({})
    await _claim(directory, "first")  # it waits until nobody can have put anything back
    times = [await _claim(directory, f"timed-{number}") for number in range(SAMPLES)]
    began = time.perf_counter()
    await _all(channels, lambda number: _claim(directory, _name(number)))
    _say(claims=sorted(times), fill_s=time.perf_counter() - began)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for number in range(channels // 10):
        directory.ended(_name(number), 1)
    while directory.view.due:  # noqa: ASYNC110 - a benchmark may look
        await asyncio.sleep(0.01)
    _say(ended=channels // 10)
    await asyncio.Event().wait()


def _rss() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def observe(url: str, channels: int) -> None:
    """The second node."""
    directory = _node("b", url)
    gc.collect()
    rss, began, cpu = _rss(), time.perf_counter(), _cpu()
    await directory.start({})
    start = {"start_s": time.perf_counter() - began, "start_cpu_s": _cpu() - cpu}
    gc.collect()
    _say(**start, channels=len(directory.channels), mb=_rss() - rss)
    cpu, began = _cpu(), time.perf_counter()
    await asyncio.sleep(5)
    _say(idle_cpu=(_cpu() - cpu) / (time.perf_counter() - began))
    stdin = asyncio.get_running_loop().run_in_executor
    updates, cpu = directory.counters.updates, _cpu()
    await stdin(None, sys.stdin.readline)
    _say(updates=directory.counters.updates - updates, updates_cpu_s=_cpu() - cpu)
    await stdin(None, sys.stdin.readline)
    first = await _claim(directory, _name(channels - 1))
    others = range(channels // 10, min(channels - 1, channels // 10 + SAMPLES))
    times = [await _claim(directory, _name(number)) for number in others]
    _say(takeover_s=first, takeovers=sorted(times))


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await self.process.stdout.readline())

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    @classmethod
    async def start(cls, *arguments: object) -> _Process:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, __file__, *map(str, arguments)]
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 22))


async def measure(channels: int) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {}
    with nats_server() as server:
        first = await _Process.start("--own", server.url, channels)
        try:
            figures |= await first.read()
            second = await _Process.start("--observe", server.url, channels)
            try:
                figures |= await second.read()
                figures |= await second.read()
                first.go()
                await first.read()
                second.go()
                figures |= await second.read()
                first.process.kill()
                second.go()
                figures |= await second.read()
            finally:
                second.process.kill()
                await second.process.wait()
        finally:
            if first.process.returncode is None:
                first.process.kill()
            await first.process.wait()
    return figures


def _spread(times: list[float]) -> str:
    return f"{times[len(times) // 2] * 1e3:.2f} / {times[len(times) * 99 // 100] * 1e3:.2f} ms"


def report(figures: dict[str, Any]) -> None:
    """Print the figures."""
    table = Table("figure", "value", title=f"The directory with {figures['channels']:,} channels")
    table.add_row("start: all keys read", f"{figures['start_s']:.2f} s ({figures['start_cpu_s']:.2f} s CPU)")
    table.add_row("memory", f"{figures['mb']:.1f} MB, {figures['mb'] * 1e6 / figures['channels']:.0f} bytes a channel")
    table.add_row("CPU of a node while nothing happens", f"{figures['idle_cpu'] * 100:.2f} %")
    per_update = figures["updates_cpu_s"] * 1e6 / max(1, figures["updates"])
    table.add_row("CPU of an update at each other node", f"{per_update:.0f} µs ({figures['updates']:,} updates)")
    table.add_row("claim, p50 / p99", _spread(figures["claims"]))
    table.add_row(f"claims, {AT_ONCE} at once", f"{figures['channels'] / figures['fill_s']:,.0f} a second")
    table.add_row("owner killed: first claim after", f"{figures['takeover_s']:.2f} s")
    table.add_row("claim of another of its channels, p50 / p99", _spread(figures["takeovers"]))
    Console().print(table)


def main() -> None:
    """Run the benchmark, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("channels", nargs="?", type=int, default=CHANNELS)
    parser.add_argument("--own", help=argparse.SUPPRESS)
    parser.add_argument("--observe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.own:
        uvloop.run(own(given.own, given.channels))
    elif given.observe:
        uvloop.run(observe(given.observe, given.channels))
    else:
        figures = asyncio.run(measure(given.channels))
        report(figures)
        if figures["start_s"] > START_S:
            sys.exit(f"the start took longer than {START_S:.0f} s")


if __name__ == "__main__":
    main()
