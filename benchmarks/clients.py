"""What a client costs: CPU time per MiB and per segment of tricklecast's clients, go-livepeer's and pytrickle's.

Run it as ``python benchmarks/clients.py``; README.md in this folder describes the method. pytrickle takes part if
``PYTRICKLE`` names a Python that has it installed; go-livepeer, if it can be built
(benchmarks/references/go_livepeer.py); the shortest program on asyncio (benchmarks/load/shortest.py) always, as the
floor. A client that takes longer than :data:`RUN_S` is killed, and its figure is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks.references import go_livepeer
from benchmarks.servers import BenchmarkError, Cores, bind, running, tricklecast

PYTRICKLE: Final = "PYTRICKLE"
"""The environment variable that names a Python interpreter with pytrickle."""

RUN_S: Final = 30.0
"""A client may take so long for its work, in seconds: ten times as long as the slowest one needs."""

ROUNDS: Final = 5
OURS, FLOOR, GO = "tricklecast", "asyncio alone", "go-livepeer"
LOAD: Final = (sys.executable, "-m", "benchmarks.load.client")
WINDOW: Final = ("--window-segments", "4096", "--window-bytes", "256MiB", "--window-age-s", "3600")


@dataclass(frozen=True, slots=True)
class Work:
    """What a client does.

    Attributes:
        name: in the table. publishes: it publishes, else it subscribes.
        segments: how many. chunks: of each segment. chunk_bytes: of each chunk.
        pause_s: before each chunk that a subscriber's feed writes; 0: the channel is filled before it is read.
        token: sent with each request. The references send none, and take no part.
    """

    name: str
    publishes: bool
    segments: int
    chunks: int
    chunk_bytes: int
    pause_s: float = 0.0
    token: str | None = None

    @property
    def mib(self) -> float:
        """All bytes of it, in MiB."""
        return self.segments * self.chunks * self.chunk_bytes / (1 << 20)

    def per_unit(self, cpu_s: float) -> tuple[float, str]:
        """CPU time for the unit that matters: milliseconds per MiB of large chunks, else per segment."""
        if self.chunk_bytes >= 1 << 10:
            return 1000 * cpu_s / self.mib, "ms/MiB"
        if self.segments > 1:
            return 1000 * cpu_s / self.segments, "ms/segment"
        return 1e6 * cpu_s / self.chunks, "µs/chunk"


CHUNK: Final = 64 << 10
WORKS: Final = (
    Work("publish 64 KiB chunks", True, segments=256, chunks=16, chunk_bytes=CHUNK),
    Work("publish 200 B segments", True, segments=2000, chunks=1, chunk_bytes=200),
    Work("publish 200 B segments, with a token", True, segments=2000, chunks=1, chunk_bytes=200, token="t" * 200),
    Work("subscribe 64 KiB chunks, live", False, segments=32, chunks=16, chunk_bytes=CHUNK, pause_s=0.004),
    Work("subscribe 200 B segments", False, segments=2000, chunks=1, chunk_bytes=200),
    Work("subscribe 200 B segments, with a token", False, segments=2000, chunks=1, chunk_bytes=200, token="t" * 200),
    Work("publish 1 B chunks", True, segments=1, chunks=20_000, chunk_bytes=1),
)


def clients() -> tuple[dict[str, list[str]], list[str]]:
    """The commands of the clients that are here, and why others are not."""
    found, missing = {OURS: [*LOAD, OURS], FLOOR: [*LOAD, "asyncio"]}, []
    try:
        found[GO] = [str(go_livepeer.built(go_livepeer.CLIENT))]
    except go_livepeer.NotBuiltError as error:
        missing.append(f"go-livepeer cannot be built: {error}")
    if python := os.environ.get(PYTRICKLE):
        found["pytrickle"] = [python, "-m", "benchmarks.load.client", "pytrickle"]
    else:
        missing.append(f"pytrickle: {PYTRICKLE} names no Python that has it")
    return found, missing


def measure(client: str, command: list[str], work: Work, cores: Cores) -> float:
    """The CPU time in seconds that one client takes for its work, as its own process counts it.

    Raises:
        BenchmarkError: it did not do its work.
    """
    # A live feed begins when its reader is there: one that started slowly would find the channel full, and read it at
    # one go. go-livepeer's client needs no warm-up, and does not say that it is ready.
    says_ready = client != GO
    with ExitStack() as stack:
        _, port = stack.enter_context(running(tricklecast(settings=WINDOW), cores.server))
        job = json.dumps({"url": f"http://127.0.0.1:{port}/trickle/work", **asdict(work)})
        processes: list[subprocess.Popen[str]] = []

        def stop() -> None:
            for process in processes:
                process.kill()

        limit = threading.Timer(RUN_S, stop)
        limit.start()
        stack.callback(limit.cancel)

        def start(command: list[str], on: set[int]) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*command, job],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).resolve().parent.parent,
                preexec_fn=bind(on),
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
            return process

        feed = None if work.publishes else start([*LOAD, "feed"], {cores.server or 0})
        if feed is not None:
            feed.stdout.readline()  # type: ignore[union-attr]  # the channel is there, and full unless it is fed live
        done = start(command, cores.others())
        if says_ready:
            done.stdout.readline()  # type: ignore[union-attr]
        if feed is not None:
            with suppress(BrokenPipeError):
                os.write(feed.stdin.fileno(), b"\n")  # type: ignore[union-attr]  # begin
        output, errors = done.communicate()
        if not limit.is_alive():
            raise BenchmarkError(f"{client} took longer than {RUN_S:.0f} s to {work.name}")
    if done.returncode:
        raise BenchmarkError(f"{client}, {work.name}: {errors.strip().rpartition(chr(10))[2]}")
    result = json.loads(output.splitlines()[-1])
    if result["bytes"] != work.segments * work.chunks * work.chunk_bytes:
        raise BenchmarkError(f"{client}, {work.name}: {result['bytes']} bytes arrived")
    return float(result["cpu_s"])


def main() -> int:
    """Measure every client in turn, several times over; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements of each [{ROUNDS}]")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth: that it works, not what it costs")
    parser.add_argument("--only", default="", metavar="TEXT", help="only works with this in their name: 'publish 64'")
    asked = parser.parse_args()
    works = [work for work in WORKS if asked.only in work.name]
    if not works:
        parser.error(f"no work is called {asked.only!r}: {', '.join(work.name for work in WORKS)}")
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"load average {os.getloadavg()[0]:.1f} at the start")
    found, missing = clients()
    for line in missing:
        console.print(line)
    cores = Cores.choose()
    table = Table("work", "unit", *found, *(f"{OURS} / {name}" for name in found if name != OURS))
    try:
        for work in works:
            scaled = _scaled(work, 10) if asked.quick else work
            taking_part = {name: command for name, command in found.items() if name == OURS or work.token is None}
            taken: dict[str, list[float]] = {name: [] for name in found}
            for number in range(1 if asked.quick else asked.rounds):
                for name, command in taking_part.items():
                    try:
                        taken[name].append(measure(name, command, scaled, cores))
                    except BenchmarkError as error:
                        if name == OURS:
                            raise
                        console.print(f"{error}")
                        taken[name].append(nan)
                shown = (f"{name} {scaled.per_unit(taken[name][-1])[0]:.3g}" for name in taking_part)
                console.print(f"{work.name}, round {number + 1}: {', '.join(shown)} {scaled.per_unit(0)[1]}")
            table.add_row(work.name, scaled.per_unit(0)[1], *_row(scaled, taken))
    except BenchmarkError as error:
        sys.stderr.write(f"clients: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(table)
    return 0


def _scaled(work: Work, by: int) -> Work:
    return replace(work, segments=max(1, work.segments // by))


def _row(work: Work, taken: dict[str, list[float]]) -> list[str]:
    """Figures of each client, then the ratios of each round in which both did their work."""
    ours = taken[OURS]
    figures = [_shown([work.per_unit(value)[0] for value in values]) for values in taken.values()]
    others = [values for name, values in taken.items() if name != OURS]
    return figures + [_shown([mine / theirs for mine, theirs in zip(ours, values, strict=False)]) for values in others]


def _shown(values: list[float]) -> str:
    """Median and range of the rounds that have a figure."""
    there = [value for value in values if not isnan(value)]
    return f"{median(there):.3g} ({min(there):.3g}-{max(there):.3g})" if there else "-"


if __name__ == "__main__":
    sys.exit(main())
