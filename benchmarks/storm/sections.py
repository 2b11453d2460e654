"""What is measured, section by section: each prints a table and gives its verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.report import spread
from benchmarks.storm import verdicts
from benchmarks.storm.duck import Compared, compare
from benchmarks.storm.made import Clients, Shape, make
from benchmarks.storm.verdicts import Verdict
from benchmarks.storm.worker import Found, Measured, Task, found_from

ROOT: Final = Path(__file__).resolve().parents[2]
KINDS: Final = ("parquet", "json")

WARM_LINES: Final = 15_000_000
"""After so many lines Java has compiled all that a scan runs, ..."""

WARM_ROUNDS: Final = 5
"""... but of small logs so many rounds will do."""


class WorkerFailed(Exception):
    """A worker did not do its task; the message is the end of what it said."""


@dataclass(slots=True)
class Run:
    """One run of the benchmark.

    Attributes:
        folder: where the logs are. lines: sizes of the logs. rounds: how often everything is measured, warm.
        console: for the tables. found: all samples, for the JSON file.
    """

    folder: Path
    lines: list[int]
    rounds: int
    console: Console
    found: dict[str, Any] = field(default_factory=dict)

    def task(self, *logs: Path, lines: int, rest: bool = True, cores: int = 0) -> Task:
        """What a worker is to do with logs of so many lines."""
        warm_up = min(WARM_ROUNDS, -(-WARM_LINES // lines) - 1) if self.rounds > 1 else 0
        return Task(tuple(map(str, logs)), self.rounds, warm_up, rest, cores)

    @property
    def middle(self) -> int:
        """The size at which shapes and cores are compared: the largest of at most three millions, else the least."""
        return max((lines for lines in self.lines if lines <= 3_000_000), default=min(self.lines))


def size(run: Run) -> Iterator[Verdict]:
    """Logs of every size, as JSON and as Parquet."""
    table = _table("size: a thousand clients", "lines", "kind", "session s", "floor s", "roll-up cold s", "warm s")
    for name in ("x floor", "rest cold s", "warm s", "jobs", "rows", "episodes", "peak MB", "DuckDB s"):
        table.add_column(name, justify="right", no_wrap=True)
    judged: list[Verdict] = []
    warm: dict[str, dict[float, float]] = {kind: {} for kind in KINDS}
    for lines in run.lines:
        shape = Shape(lines)
        for kind, path in make(shape, run.folder, kinds=KINDS).items():
            name = f"{lines / 1e6:g} M {kind}"
            with run.console.status(name):
                found = work(run.task(path, lines=lines))
                duck = compare(path, threads=len(os.sched_getaffinity(0)))
            log = found.logs[str(path)]
            run.found[f"size {name}"] = {"spark": asdict(found), "duckdb": asdict(duck)}
            warm[kind][lines / 1e6] = log.rollup.warm_s
            table.add_row(f"{lines / 1e6:g} M", kind, *_size_cells(found, log, duck))
            judged += verdicts.of_one_log(name, log)
    run.console.print(table)
    for kind, points in warm.items():
        if line := verdicts.straight_line(points):
            run.console.print(f"{kind}: roll-up {line.fixed_s:.2f} s + {line.per_million_s:.2f} s per million lines")
            judged.append(Verdict(f"{kind}: off the straight line", line.off, verdicts.OFF_THE_LINE))
    yield from judged


def _size_cells(found: Found, log: Measured, duck: Compared) -> list[str]:
    return [
        f"{found.session_s:.1f}",
        f"{log.floor.warm_s:.2f}",
        f"{log.rollup.wall_s[0]:.1f}",
        f"{log.rollup.warm_s:.2f}",
        spread(verdicts.ratios(log.rollup, log.floor)),
        f"{log.rest.wall_s[0]:.1f}",
        f"{log.rest.warm_s:.2f}",
        f"{log.jobs}",
        f"{log.rows:,}",
        f"{log.episodes}",
        f"{found.peak_mb:.0f}",
        f"{duck.rollup_s:.2f} + {duck.rest_s:.2f}",
    ]


def clients(run: Run) -> Iterator[Verdict]:
    """As many lines of few clients, with a hot one, and of a thousand times as many."""
    logs = {who: make(Shape(run.middle, who), run.folder, kinds=("parquet",))["parquet"] for who in Clients}
    with run.console.status("clients"):
        found = work(run.task(*logs.values(), lines=run.middle, rest=False))
    run.found["clients"] = asdict(found)
    table = _table(
        f"clients: {run.middle / 1e6:g} M lines, Parquet", "clients", "floor s", "roll-up s", "CPU s", "x few"
    )
    few = found.logs[str(logs[Clients.FEW])].rollup
    for who, path in logs.items():
        log = found.logs[str(path)]
        found_ratios = verdicts.ratios(log.rollup, few)
        cells = (f"{log.floor.warm_s:.2f}", f"{log.rollup.warm_s:.2f}", f"{log.rollup.warm_cpu_s:.2f}")
        table.add_row(who, *cells, spread(found_ratios))
        if who is not Clients.FEW:
            yield Verdict(f"clients: {who} x few", median(found_ratios), verdicts.SHAPE)
    run.console.print(table)


def cores(run: Run) -> Iterator[Verdict]:
    """One core against two."""
    if len(os.sched_getaffinity(0)) < 2:
        run.console.print("cores: there is only one")
        return
    path = make(Shape(run.middle), run.folder, kinds=("parquet",))["parquet"]
    table = _table(f"cores: {run.middle / 1e6:g} M lines, Parquet", "cores", "floor s", "roll-up cold s", "warm s")
    warm = {}
    for number in (1, 2):
        with run.console.status(f"cores: {number}"):
            found = work(run.task(path, lines=run.middle, rest=False, cores=number))
        run.found[f"cores {number}"] = asdict(found)
        log = found.logs[str(path)]
        warm[number] = log.rollup.warm_s
        table.add_row(f"{number}", f"{log.floor.warm_s:.2f}", f"{log.rollup.wall_s[0]:.1f}", f"{warm[number]:.2f}")
    run.console.print(table)
    yield Verdict("cores: one / two", warm[1] / warm[2], verdicts.SECOND_CORE, least=True)


_SESSION: Final = """from pyspark.sql import SparkSession
SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate().stop()"""


def start(run: Run) -> Iterator[Verdict]:
    """The command on a million lines of Parquet, from nothing, beside a Spark session that does nothing."""
    path = make(Shape(min(1_000_000, max(run.lines))), run.folder, kinds=("parquet",))["parquet"]
    command = [sys.executable, "-m", "tricklecast", "storms", str(path), "--json", os.devnull, "--fail-on", "never"]
    session, whole = [], []
    for number in range(run.rounds):
        with run.console.status(f"start: round {number + 1} of {run.rounds}"):
            session.append(_seconds([sys.executable, "-c", _SESSION]))
            whole.append(_seconds(command))
    run.found["start"] = {"session_s": session, "report_s": whole}
    table = _table("start: from nothing", "process", "s")
    table.add_row("Spark's session, and nothing else", spread(session))
    table.add_row("tricklecast storms, 1 M lines of Parquet", spread(whole))
    run.console.print(table)
    rounds = zip(whole, session, strict=True)
    yield Verdict("start: report / session", median(ours / theirs for ours, theirs in rounds), verdicts.START)


SECTIONS: Final = {"size": size, "clients": clients, "cores": cores, "start": start}


def work(task: Task) -> Found:
    """Has a task done by a process of its own.

    Raises:
        WorkerFailed: it ended with an error.
    """
    command = [sys.executable, "-m", "benchmarks.storm.worker", json.dumps(asdict(task))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkerFailed(done.stderr.strip()[-2000:])
    return found_from(json.loads(done.stdout.splitlines()[-1]))


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkerFailed(f"{' '.join(command[:5])} ...: {done.stderr.strip()[-2000:]}")
    return time.perf_counter() - begun


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
