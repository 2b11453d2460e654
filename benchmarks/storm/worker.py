"""A process with a Spark session of its own that measures what it is told, and prints it as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to measure.

    Attributes:
        logs: folders of logs. They are measured in turn, round by round, so that a disturbance meets all of them.
        rounds: how often, after a first time that is kept as the cold one.
        warm_up: further rounds in between of which nothing is kept: Java compiles what runs often.
        rest: also all that follows the roll-up.
        cores: on how many.
    """

    logs: tuple[str, ...]
    rounds: int = 3
    warm_up: int = 0
    rest: bool = True
    cores: int = 0


@dataclass(slots=True)
class Timing:
    """Wall and CPU seconds of a step; the first is the cold one."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def warm_s(self) -> float:
        """Wall seconds once it is warm; of one that never got there, the cold ones."""
        return median(self.wall_s[1:] or self.wall_s)

    @property
    def warm_cpu_s(self) -> float:
        """The same in CPU seconds."""
        return median(self.cpu_s[1:] or self.cpu_s)


@dataclass(slots=True)
class Measured:
    """What was found about one log.

    Attributes:
        floor, rollup, rest: the bare scan, the roll-up, all that follows it.
        rows: of the roll-up; episodes: found in it; jobs: Spark jobs that followed the roll-up.
    """

    floor: Timing = field(default_factory=Timing)
    rollup: Timing = field(default_factory=Timing)
    rest: Timing = field(default_factory=Timing)
    rows: int = 0
    episodes: int = 0
    jobs: int = 0


@dataclass(slots=True)
class Found:
    """What a worker found.

    Attributes:
        session_s: from nothing to a session, Python's imports included, seconds.
        peak_mb: the most memory that Java and Python held together, MB.
        logs: per folder.
    """

    session_s: float
    peak_mb: float
    logs: dict[str, Measured]


def found_from(said: dict[str, Any]) -> Found:
    """What a worker printed, as values again."""
    logs = {}
    for name, log in said["logs"].items():
        timings = {step: Timing(**log[step]) for step in ("floor", "rollup", "rest")}
        logs[name] = Measured(**log | timings)
    return Found(said["session_s"], said["peak_mb"], logs)


def work(task: Task) -> Found:
    """Does a task."""
    begun = time.perf_counter()
    from tricklecast.analytics.spark import SMALL_INPUT, spark_session

    size = max(sum(path.stat().st_size for path in Path(log).iterdir()) for log in task.logs)
    with spark_session(small=size <= SMALL_INPUT) as spark:
        session_s = time.perf_counter() - begun
        watch = Stopwatch(spark)
        logs = {log: Measured() for log in task.logs}
        for kept in _rounds(task):
            for log, measured in logs.items():
                _scan(watch, Path(log), measured if kept else Measured())
        for log, measured in logs.items():
            if task.rest:
                _finish(watch, Path(log), measured, task)
        return Found(session_s, watch.peak_mb(), logs)


def _rounds(task: Task) -> list[bool]:
    """All rounds, and of which the figures are kept."""
    return [True] + [False] * task.warm_up + [True] * task.rounds


def _scan(watch: Stopwatch, log: Path, measured: Measured) -> None:
    from benchmarks.storm.steps import bare, lines, rollup

    # The roll-up first: it is the one whose cold time is of interest.
    rolled = rollup(watch.spark, log)
    watch.time(measured.rollup, lambda: _run(rolled))
    only_read = bare(lines(watch.spark, log), rolled)
    watch.time(measured.floor, lambda: _run(only_read))


def _finish(watch: Stopwatch, log: Path, measured: Measured, task: Task) -> None:
    from benchmarks.storm.steps import report, rollup

    measured.rows = rollup(watch.spark, log).count()
    for kept in _rounds(task):
        stages = StageWatch(watch)
        measured.episodes = report(rollup(watch.spark, log), log, stages)
        if not kept:
            continue
        _, *others = stages.timings.values()
        measured.rest.wall_s.append(round(sum(timing.wall_s[0] for timing in others), 3))
        measured.rest.cpu_s.append(round(sum(timing.cpu_s[0] for timing in others), 2))
        measured.jobs = watch.jobs() - stages.jobs_of_first


def _run(frame: DataFrame) -> None:
    """Computes every row and column, and keeps none."""
    frame.write.format("noop").mode("overwrite").save()


class Stopwatch:
    """Times steps by the clock and by what Java's process uses of the CPU."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._java = int(self._jvm().java.lang.ProcessHandle.current().pid())

    def time(self, timing: Timing, step: Callable[[], T]) -> T:
        """Runs a step and adds how long it took."""
        start = self.start()
        result = step()
        self.stop(timing, start)
        return result

    def start(self) -> tuple[float, float]:
        """Both clocks, for :meth:`stop`."""
        return time.perf_counter(), self._cpu_s()

    def stop(self, timing: Timing, start: tuple[float, float]) -> None:
        """Adds how long it took since then."""
        timing.wall_s.append(round(time.perf_counter() - start[0], 3))
        timing.cpu_s.append(round(self._cpu_s() - start[1], 2))

    def jobs(self) -> int:
        """How many jobs Spark has run."""
        return len(self.spark.sparkContext.statusTracker().getJobIdsForGroup())

    def peak_mb(self) -> float:
        """The most memory that both processes have held, MB."""
        return sum(_high_water_kb(process) for process in (self._java, os.getpid())) / 1000

    def _jvm(self) -> Any:
        jvm: Any = self.spark._jvm
        return jvm

    def _cpu_s(self) -> float:
        text = Path(f"/proc/{self._java}/stat").read_text(encoding="ascii", errors="replace")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class StageWatch:
    """A :data:`analytics.progress.Stage` that times each stage of a report; the first one computes the
    roll-up."""

    def __init__(self, watch: Stopwatch) -> None:
        self.timings: dict[str, Timing] = {}
        self.jobs_of_first = 0
        self._watch = watch

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._watch.start()
        yield
        self._watch.stop(self.timings.setdefault(name, Timing()), start)
        if len(self.timings) == 1:
            self.jobs_of_first = self._watch.jobs()


def _high_water_kb(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> None:
    """Reads a task as JSON from the command line."""
    task = Task(**json.loads(sys.argv[1]))
    if task.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.cores])
    print(json.dumps(asdict(work(task))))


if __name__ == "__main__":
    main()
