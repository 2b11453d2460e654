"""What several workers cost beside one process: CPU of all processes together, hand-overs, memory.

Run it as ``python benchmarks/workers.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks import saturation
from benchmarks.load import tls
from benchmarks.load.meter import pss_bytes
from benchmarks.load.saturation import Load
from benchmarks.report import BUSY, spread
from benchmarks.scenarios import SCENARIOS, Ask, Repeat, Scenario, Stream, quick
from benchmarks.servers import BenchmarkError, Contender, Cores, load, measure, raise_file_limit, running, tricklecast

Sample = dict[str, float]
Measure = Callable[[Contender, Cores, bool], Sample]

ROUNDS: Final = 5
WORKERS: Final = 2
ONE, SEVERAL = (f"{number} worker(s)" for number in (1, WORKERS))

NO_GUARD: Final = ("--storm-guard", "off")
"""Clients that ask for the same again and again would be delayed."""


@dataclass(frozen=True, slots=True)
class Case:
    """A load on one process and on several workers.

    Attributes:
        what: in the table. measure: runs it, with less time for a quick one.
        figure: of a sample; unit: in the table.
        at_most: the ratio that is expected.
        moves: how many connections are handed over for each unit; the difference is then shown for one of them.
        at_most_us: the cost of a hand-over that is expected.
        settings: of the server. pinned: the server has one core, whatever it has processes.
    """

    what: str
    measure: Measure
    figure: str = "cpu_us"
    unit: str = "us per chunk"
    at_most: float | None = None
    moves: float = 0.0
    at_most_us: float | None = None
    settings: tuple[str, ...] = ()
    pinned: bool = True


def _of(scenario: Scenario) -> Measure:
    return lambda contender, cores, is_quick: measure(contender, quick(scenario) if is_quick else scenario, cores)


def _many(contender: Contender, cores: Cores, is_quick: bool) -> Sample:
    offered = Load(channels=20, readers=25, chunk_bytes=8 << 10, chunks_per_segment=30, rate=30)
    return saturation.measure(contender, offered, cores, 2.0 if is_quick else 4.0)


def _memory(contender: Contender, cores: Cores, is_quick: bool) -> Sample:
    del is_quick
    with running(contender, cores.server) as (pid, port):
        found = load(pid, port, SCENARIOS["small"], cores.load)
        return {"mb": pss_bytes(pid) / 1e6, "rate": found["rate"]}


def _tls(contender: Contender, cores: Cores, is_quick: bool) -> Sample:
    with tls.certificate() as options:
        encrypted = replace(contender, arguments=(*contender.arguments, *options))
        with running(encrypted, cores.server) as (pid, port):
            return tls.run(tls.Job(pid=pid, port=port, readers=100, rate=30.0, seconds=2.0 if is_quick else 4.0))


SPREAD: Final = Stream(readers=2500, chunk_bytes=8 << 10, chunks_per_segment=6, rate=6, warm_up_s=6.0, by_worker=True)
"""Its readers spread in the first seconds."""

CASES: Final = {
    "many": Case("20 channels with 25 readers each, chunks of 8 KiB, 30/s", _many, at_most=1.05),
    "busy": Case("one channel with 2,500 readers, chunks of 8 KiB, 6/s", _of(SPREAD), at_most=1.15),
    "small": Case(
        "100 channels with one reader each, segments of 200 bytes",
        _of(SCENARIOS["small"]),
        unit="us per segment",
        at_most=1.1,
    ),
    "connect": Case(
        "GETs of 200 bytes, each on a new connection",
        _of(Repeat(ask=Ask.KEPT, clients=50, keep_alive=False)),
        unit="us per GET",
        moves=1 - 1 / WORKERS,
        at_most_us=60.0,
        settings=NO_GUARD,
    ),
    "move": Case(
        "GETs of 200 bytes of two channels by turns, on connections that stay",
        _of(Repeat(ask=Ask.KEPT, clients=50, channels=2)),
        unit="us per GET",
        moves=1.0,
        settings=NO_GUARD,
    ),
    "stay": Case(
        "GETs of 200 bytes of one channel, on connections that stay",
        _of(Repeat(ask=Ask.KEPT, clients=50)),
        unit="us per GET",
        settings=NO_GUARD,
    ),
    "tls": Case("TLS: one channel with 100 readers, chunks of 8 KiB, 30/s", _tls),
    "memory": Case("memory after the load of `small`, shared pages once", _memory, "mb", "MB"),
    "rate": Case(
        "segments per second of `small`; server and clients share all cores",
        _of(SCENARIOS["small"]),
        "rate",
        "segments/s",
        pinned=False,
    ),
}


def run(name: str, rounds: int, cores: Cores, console: Console, *, is_quick: bool) -> dict[str, list[Sample]]:
    """Run a case: in each round one process and several, so that a disturbance meets both.

    Raises:
        BenchmarkError: a run did not work.
    """
    case = CASES[name]
    found: dict[str, list[Sample]] = {ONE: [], SEVERAL: []}
    for number in range(1, rounds + 1):
        for label, samples in found.items():
            with console.status(f"{name}: {label}, round {number} of {rounds}"):
                contender = tricklecast(label, settings=("--workers", label.partition(" ")[0], *case.settings))
                samples.append(case.measure(contender, cores if case.pinned else Cores(None, None), is_quick))
    return found


def row(case: Case, found: dict[str, list[Sample]]) -> list[str]:
    """A line of the table."""
    one, several = ([sample[case.figure] for sample in found[label]] for label in (ONE, SEVERAL))
    ratios = [b / a for a, b in zip(one, several, strict=True)]
    moves = [(b - a) / case.moves for a, b in zip(one, several, strict=True)] if case.moves else []
    verdicts = [
        f"{median(values):.2f} of {bound:g}: {'met' if median(values) <= bound else 'MISSED'}"
        for values, bound in ((ratios, case.at_most), (moves, case.at_most_us))
        if bound is not None
    ]
    return [case.what, case.unit, spread(one), spread(several), spread(ratios), spread(moves), ", ".join(verdicts)]


def latencies(samples: list[Sample]) -> str:
    """How late chunks are at the owner of a channel, and at a worker that holds it, too: medians of the rounds."""

    def of(figure: str) -> float:
        return median(sample[figure] for sample in samples)

    first, p99 = (
        f"{of(f'owner_{name}'):.1f} ms at the owner, {of(f'holder_{name}'):.1f} at a holder"
        for name in ("first_ms", "p99_ms")
    )
    return f"first chunk of a segment {first}; p99 of all chunks {p99}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, shorter measurements: about a minute")
    parser.add_argument("--only", action="append", choices=CASES, help="run only this case; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements of each server [{ROUNDS}]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to this file")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    arguments = _arguments()
    if sys.platform != "linux":
        sys.stderr.write("workers: it reads the clocks of other processes, which needs Linux\n")
        return 1
    raise_file_limit()
    # Told to stop, it must still stop the server that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(f"{os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f} at the start")
    table = Table(title=f"CPU of all processes: {SEVERAL} beside {ONE}", title_justify="left", title_style="bold")
    for title in ("load", "figure", ONE, SEVERAL, "ratio", "us per hand-over", "expected"):
        table.add_column(title, justify="left" if title in ("load", "expected") else "right")
    begun, samples = time.monotonic(), {}
    try:
        for name in arguments.only or CASES:
            rounds = 1 if arguments.quick else arguments.rounds
            found = samples[name] = run(name, rounds, Cores.choose(), console, is_quick=arguments.quick)
            table.add_row(*row(CASES[name], found))
            if "holder_p99_ms" in found[SEVERAL][0]:
                for label in found:
                    console.print(f"{name}, {label}: {latencies(found[label])}")
            if max(sample.get("load_busy", 0.0) for one in found.values() for sample in one) > BUSY:
                console.print(f"! {name}: the load generator was the bottleneck (more than {BUSY:.0%} of its core)")
    except BenchmarkError as error:
        sys.stderr.write(f"workers: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(table)
    console.print(f"took {time.monotonic() - begun:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(samples, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
