"""What the storm report costs, beside what nothing can undercut: a bare aggregate over the same columns.

Run it as ``python benchmarks/storms.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks.pressure.bounds import Bound, Sample, Verdict, figure, ratio
from benchmarks.report import spread
from benchmarks.storm import scale
from benchmarks.storm.made import Clients, Shape, make

ROOT: Final = Path(__file__).resolve().parents[1]
SMALL: Final = 350
LINES: Final = (1.3, 3.0, 10.0)
"""Millions."""

QUICK_LINES: Final = (0.05, 0.1, 0.2)
ROUNDS: Final = 3
ENGINES: Final = ("embedded", "spark")

Section = Callable[["Run"], Iterator[Verdict]]


class RunFailed(Exception):
    """A measured process failed; the message is the end of what it said."""


@dataclass(slots=True)
class Run:
    """One run of the benchmark.

    Attributes:
        folder: where the logs are. lines: sizes of the logs, the smallest first. rounds: how often each is measured.
        part: of the full size of a fleet's logs.
        console: for the tables. found: all samples, for the JSON file.
    """

    folder: Path
    lines: list[int]
    rounds: int
    console: Console
    part: float = 1.0
    found: dict[str, Any] = field(default_factory=dict)

    def measured(self, name: str, commands: dict[str, list[str]]) -> list[dict[str, Sample]]:
        """Runs some commands in turn, round by round, so that a disturbance meets all of them; prints a table."""
        rounds: list[dict[str, Sample]] = []
        for number in range(self.rounds):
            with self.console.status(f"{name}: round {number + 1} of {self.rounds}"):
                rounds.append({case: watched(command) for case, command in commands.items()})
        self.found[name] = rounds
        table = Table(title=name, title_justify="left", title_style="bold")
        table.add_column("process")
        for head in ("s", "CPU s", "peak MB", "incidents"):
            table.add_column(head, justify="right", no_wrap=True)
        for case in commands:
            samples = [one[case] for one in rounds]
            seconds, cpu, peak = ([one[head] for one in samples] for head in ("s", "cpu_s", "peak_mb"))
            told = f"{samples[0].get('incidents', '')}"
            table.add_row(case, spread(seconds), spread(cpu), f"{max(peak):.0f}", told)
        self.console.print(table)
        return rounds


def storms(folder: Path | str, engine: str, *more: str) -> list[str]:
    """The command, as one types it."""
    options = ["--engine", engine, "--json-file", os.devnull, "-q", "--fail-on", "never", *more]
    return [sys.executable, "-m", "tricklecast", "storms", str(folder), *options]


def bare(folder: Path, engine: str) -> list[str]:
    """A process that only reads the same columns."""
    return [sys.executable, "-m", "benchmarks.storm.bare", engine, str(folder)]


def staged(folder: Path, engine: str) -> list[str]:
    """A report whose stages are timed."""
    return [sys.executable, "-m", "benchmarks.storm.report", engine, str(folder)]


def start(run: Run) -> Iterator[Verdict]:
    """350 lines, from the shell."""
    log = make(Shape(SMALL), run.folder)
    commands = {"embedded": storms(log, "embedded"), "spark": storms(log, "spark"), "bare spark": bare(log, "spark")}
    rounds = run.measured(f"start: {SMALL} lines", commands)
    yield judged(Bound("350 lines, embedded, s", figure("s", "embedded"), 1.5), rounds)
    yield judged(Bound("350 lines, Spark / a session with one job", ratio("s", "spark", "bare spark"), 1.5), rounds)


def scan(run: Run) -> Iterator[Verdict]:
    """The smallest of the large logs: both engines beside a bare aggregate, and what comes after the roll-up."""
    lines = run.lines[0]
    log, name = make(Shape(lines), run.folder), f"{lines / 1e6:g} M lines"
    commands = {
        "embedded": storms(log, "embedded"),
        "bare duckdb": bare(log, "duckdb"),
        "spark": storms(log, "spark"),
        "bare spark": bare(log, "spark"),
        "spark, by stage": staged(log, "spark"),
    }
    rounds = run.measured(f"scan: {name}", commands)
    yield judged(Bound(f"{name}, embedded / DuckDB aggregate", ratio("s", "embedded", "bare duckdb"), 8.0), rounds)
    what = f"{name}, Spark / a session and a bare scan"
    yield judged(Bound(what, ratio("s", "spark", "bare spark"), 1.6), rounds)

    yield judged(Bound(f"{name}, Spark, after the roll-up, s", figure("looking", "spark, by stage"), 2.0), rounds)

    def again(samples: Mapping[str, Sample]) -> float:
        return samples["spark, by stage"]["writing"] / samples["spark, by stage"]["reading"]

    yield judged(Bound(f"{name}, Spark, reading lines of incidents again / reading all", again, 0.5), rounds)


def size(run: Run) -> Iterator[Verdict]:
    """Logs of every size."""
    logs = {lines: make(Shape(lines), run.folder) for lines in run.lines}
    commands = {f"{engine} {lines}": storms(log, engine) for engine in ENGINES for lines, log in logs.items()}
    rounds = run.measured("size", commands)
    for engine in ENGINES:

        def off(samples: Mapping[str, Sample], engine: str = engine) -> float:
            return off_the_line({lines / 1e6: samples[f"{engine} {lines}"]["s"] for lines in run.lines})

        if len(run.lines) > 2:
            yield judged(Bound(f"{engine}: off the straight line", off, 0.15), rounds)


def store(run: Run) -> Iterator[Verdict]:
    """The same lines as files that workers open, and as objects that Spark reads: plain ones, and compressed ones."""
    log = make(Shape(run.lines[0]), run.folder)
    packed = log.with_name(f"{log.name}-gz")
    packed.mkdir(exist_ok=True)
    for path in log.iterdir():
        with open(path, "rb") as whole, gzip.open(packed / f"{path.name}.gz", "wb", 6) as small:
            shutil.copyfileobj(whole, small)
    commands = {"files": storms(log, "spark"), "files, gzip": storms(packed, "spark")}
    for name, folder in (("objects", log), ("objects, gzip", packed)):
        link = f"spark.hadoop.fs.viewfs.mounttable.logs.link./in=file://{folder}"
        commands[name] = storms("viewfs://logs/in", "spark", "--conf", link)
    rounds = run.measured(f"store: {run.lines[0] / 1e6:g} M lines", commands)
    gigabytes = sum(path.stat().st_size for path in log.iterdir()) / 1e9
    for name in commands:
        per_gb = figure("cpu_s", name, 1 / gigabytes)
        yield judged(Bound(f"{name}: CPU seconds per GB of lines, with Spark's start", per_gb), rounds)


def clients(run: Run) -> Iterator[Verdict]:
    """As many lines of a thousand clients, of a thousand times as many, and with half of them from one client."""
    logs = {who: make(Shape(run.lines[0], who), run.folder) for who in Clients}
    commands = {f"{engine} {who}": storms(log, engine) for engine in ENGINES for who, log in logs.items()}
    rounds = run.measured(f"clients: {run.lines[0] / 1e6:g} M lines", commands)
    for engine in ENGINES:
        for who in (Clients.HOT, Clients.SESSIONS, Clients.SCATTERED):
            found = ratio("s", f"{engine} {who}", f"{engine} {Clients.FEW}")
            yield judged(Bound(f"{engine}: {who} / few", found, 1.3), rounds)


def scaled(name: str) -> Section:
    """A case of benchmarks/storm/scale.py: a fleet's logs beside the same in their easy shape."""

    def section(run: Run) -> Iterator[Verdict]:
        case, bounds = scale.CASES[name]
        with tempfile.TemporaryDirectory(dir=run.folder) as folder:
            commands = case(Path(folder), run.part)
            rounds = run.measured(name, commands)
        cases = list(commands)
        head = "rules_s" if name == "rules" else "s"
        # The rules are measured in pairs, all else beside the first.
        pairs = (
            list(zip(cases[::2], cases[1::2], strict=True))
            if name == "rules"
            else [(cases[0], one) for one in cases[1:]]
        )
        for (first, other), at_most in zip(pairs, bounds * (len(pairs) // len(bounds)), strict=True):
            yield judged(Bound(f"{name}: {other} / {first}", ratio(head, other, first), at_most), rounds)
            if head == "s":
                yield judged(Bound(f"{name}: {other} / {first}, CPU", ratio("cpu_s", other, first)), rounds)

    return section


SECTIONS: Final[dict[str, Section]] = {
    **{"start": start, "scan": scan, "size": size, "store": store, "clients": clients},
    **{name: scaled(name) for name in scale.CASES},
}


def judged(bound: Bound, rounds: list[dict[str, Sample]]) -> Verdict:
    """A bound with what each round found."""
    return Verdict(bound, tuple(bound.found(samples) for samples in rounds))


def off_the_line(seconds: dict[float, float]) -> float:
    """How far the worst of some points (millions of lines, seconds) lies from the line through them, as a share."""
    slope, intercept = linear_regression(list(seconds), list(seconds.values()))
    return max(abs(intercept + slope * millions - found) / found for millions, found in seconds.items())


def watched(command: list[str]) -> Sample:
    """Runs a command.

    Returns:
        ``s``, seconds; ``cpu_s``, CPU seconds of it and its children, but for the last tenth of a second of each;
        ``peak_mb``, the most memory that they held, MB, each at its own peak; and what the command printed as JSON.

    Raises:
        RunFailed: it failed.
    """
    begun = time.perf_counter()
    child = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    peaks: dict[str, tuple[int, float]] = {}
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(child.pid, peaks, over))
    watcher.start()
    try:
        out, errors = child.communicate()
    finally:
        over.set()
        watcher.join()
    spent = time.perf_counter() - begun
    if child.returncode:
        raise RunFailed(f"{' '.join(command[1:5])} ...: {errors.strip()[-2000:]}")
    peak, cpu = (sum(values) for values in zip(*peaks.values(), strict=True)) if peaks else (0, 0.0)
    sample = {"s": round(spent, 3), "cpu_s": round(cpu, 2), "peak_mb": peak / 1000}
    with suppress(ValueError, TypeError):
        sample |= json.loads(out)
    return sample


def _watch(session: int, peaks: dict[str, tuple[int, float]], over: threading.Event) -> None:
    """Notes the most memory, kB, that each process of a session has held, and its CPU seconds so far."""
    tick = os.sysconf("SC_CLK_TCK")
    while not over.wait(0.1):
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, StopIteration, ProcessLookupError):
                if os.getsid(int(process.name)) == session:
                    lines = (process / "status").read_text(encoding="utf-8").splitlines()
                    times = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
                    peaks[process.name] = peak, sum(map(int, times)) / tick


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    arguments = _arguments()
    if sys.platform != "linux":
        sys.stderr.write("storms: it reads the memory of other processes, which needs Linux\n")
        return 1
    millions = QUICK_LINES if arguments.quick else arguments.lines
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tricklecast-storms-"))
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(f"{os.cpu_count()} core(s); load average {os.getloadavg()[0]:.1f} at the start; logs in {folder}")
    sizes = sorted(round(million * 1_000_000) for million in millions)
    run = Run(folder, sizes, 1 if arguments.quick else arguments.rounds, console, 0.01 if arguments.quick else 1.0)
    try:
        found = [verdict for name in arguments.only or SECTIONS for verdict in SECTIONS[name](run)]
    except RunFailed as error:
        sys.stderr.write(f"storms: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    for verdict in found:
        console.print(str(verdict))
    if arguments.json:
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
        said = [{"what": one.bound.what, "found": one.found, "bound": one.bound.at_most} for one in found]
        document = {"machine": machine, "rounds": run.rounds, "sections": run.found, "verdicts": said}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=float, nargs="+", default=LINES, metavar="M", help="sizes, millions of lines")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="run only this section; repeatable")
    parser.add_argument("--quick", action="store_true", help="small logs, one round: that it works, not what it costs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements of each [{ROUNDS}]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs here, and use those that are there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to this file")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or min(arguments.lines) <= 0:
        parser.error("--rounds must be at least 1, and --lines above 0")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
