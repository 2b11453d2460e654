"""What the command is doing, on stderr: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Stage = Callable[[str], AbstractContextManager[None]]
"""Announces a stage of the work for as long as its context is open."""

TaskCount = Callable[[], tuple[int, int]]
"""How many tasks Spark has finished, and how many it knows of, of the jobs that run now."""

POLL_S: Final = 0.25
"""How often Spark is asked for its tasks."""


@contextmanager
def silent(name: str) -> Iterator[None]:
    """A :data:`Stage` that says nothing."""
    yield


class Watched:
    """Where the bar's figures come from: nowhere until Spark has started."""

    def __init__(self) -> None:
        self.count: TaskCount | None = None

    def follow(self, spark: SparkSession) -> None:
        """Asks this session for its tasks from now on, if it can be asked: one of Spark Connect cannot."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
        from pyspark.errors import PySparkException

        try:
            tracker = spark.sparkContext.statusTracker()
        except (PySparkException, AttributeError, NotImplementedError):
            return

        def count() -> tuple[int, int]:
            try:
                jobs = [tracker.getJobInfo(number) for number in tracker.getActiveJobsIds()]
                stages = [tracker.getStageInfo(number) for job in jobs if job for number in job.stageIds]
            except (Py4JError, OSError):  # Spark is going away; whoever works with it will say so
                return 0, 0
            known = [stage for stage in stages if stage]
            return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)

        self.count = count


@contextmanager
def on_stderr(watched: Watched | None = None) -> Iterator[Stage]:
    """A :data:`Stage` for stderr.

    The bar writes to a copy of the terminal's descriptor: Spark's start redirects the original for a while
    (:mod:`analytics.spark`).

    Args:
        watched: what the bar shows; without it there is a spinner.
    """
    if not sys.stderr.isatty():
        yield _lines
        return
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8", errors="replace") as terminal:
        console = Console(file=terminal, force_terminal=True)

        @contextmanager
        def bar(name: str) -> Iterator[None]:
            started = time.monotonic()
            with _shown(name, console, watched or Watched()):
                yield
            console.print(Text(f"{name}: {time.monotonic() - started:.1f} s", style="dim"))

        yield bar


@contextmanager
def _lines(name: str) -> Iterator[None]:
    print(f"storms: {name} …", file=sys.stderr, flush=True)
    yield


@contextmanager
def _shown(name: str, console: Console, watched: Watched) -> Iterator[None]:
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{name} …", total=None)
        ended = threading.Event()
        asking = threading.Thread(target=_ask, args=(progress, task, watched, ended), daemon=True)
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()


def _ask(progress: Progress, task: TaskID, watched: Watched, ended: threading.Event) -> None:
    while not ended.wait(POLL_S):
        if watched.count is None:
            continue
        done, total = watched.count()
        # Between two jobs there is nothing to count; one task is no progress either.
        progress.update(task, completed=done, total=total if total > 1 else None)
