"""From files to a report, with either engine."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from typing import TYPE_CHECKING

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import LogFiles, Window
from tricklecast.analytics.pipeline import embedded, spark
from tricklecast.analytics.pipeline.again import MAX_WITH_LINES
from tricklecast.analytics.pipeline.request import Judgement, ReportRequest, ReportResult, Stage
from tricklecast.analytics.report import figures, requests
from tricklecast.analytics.report.build import build, ranked
from tricklecast.analytics.report.formats import counted, date_and_time
from tricklecast.analytics.report.model import Figures, History
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.signals import is_interruption

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types


def make(request: ReportRequest, stage: Stage) -> ReportResult:
    """Makes the report.

    Raises:
        BadInput: a file cannot be read, or nothing of it was understood; there is no such incident.
        SparkUnavailable, SparkFailed: Spark is missing, did not start, or failed.
    """
    with _typed_errors():
        return _make(request, stage)


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Turns what DuckDB makes of Ctrl-C back into what it was, and tells of a full disk in one line."""
    import duckdb

    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        if is_interruption(error):
            raise KeyboardInterrupt from error
        full = "max_temp_directory_size" in str(error) or os.strerror(errno.ENOSPC) in str(error)
        if full or isinstance(error, duckdb.OutOfMemoryException):
            raise embedded.too_large("is full" if full else "did not help: memory is short") from error
        raise


def _judged(request: ReportRequest, files: LogFiles, stage: Stage) -> AbstractContextManager[Judgement]:
    """One engine's judgement of some logs, or of the table."""
    if request.table is not None:
        request = replace(request, reading=replace(request.reading, window=_minutes(request.reading.window)))
    if request.spark is not None:
        return spark.judge(request, files, stage)
    if request.table is not None:
        return embedded.judge_table(request, files, stage, request.table)
    return embedded.judge(request, files, stage)


def _make(request: ReportRequest, stage: Stage) -> ReportResult:
    baseline = _baseline(request, stage)
    with _judged(request, request.files, stage) as here:
        with stage("writing the report"):
            shown = ranked(here.found)[:MAX_WITH_LINES]
            chosen = _chosen(here.found, request.explain) if request.explain is not None else None
            if chosen is not None and chosen not in shown:
                shown.append(chosen)
            muted = {
                one.id: f"in maintenance ({window})"
                for one in here.found
                if (window := request.maintenance.covers(one.since_us, one.until_us))
            }
            history, muted_before, notes = _remembered(request, here)
            looked_at = request.reading.window if request.table is None else _minutes(request.reading.window)
            comparable = requests.comparable(shown)
            report = build(
                here.connection,
                here.found,
                here.logs.saying(*_looked_at(looked_at)),
                params=request.params,
                lines=here.lines(shown) if shown else {},
                baseline=figures.compare(figures.figures(here.connection), len(here.found), *baseline)
                if baseline
                else (),
                lifts=here.lifts(comparable) if comparable else {},
                history=history,
                muted=muted | muted_before,
            )
            steps = tuple(engine.explain(here.connection, chosen.number)) if chosen is not None else ()
        return ReportResult(report, chosen.id if chosen else None, steps, notes)


def _baseline(request: ReportRequest, stage: Stage) -> tuple[Figures, int] | None:
    """The figures of the baseline, and how many incidents it has; ``None`` if there is no baseline."""
    earlier = request.baseline
    if earlier is None:
        return None
    if isinstance(earlier, Window):
        how, files = replace(request, reading=replace(request.reading, window=earlier)), LogFiles(())
    else:
        how, files = replace(request, table=None), earlier
    with stage("reading the baseline"), _judged(how, files, stage) as other:
        return figures.figures(other.connection), len(other.found)


def _remembered(request: ReportRequest, here: Judgement) -> tuple[dict[str, History], dict[str, str], tuple[str, ...]]:
    """The history of incidents in a table by their ids, why some are muted, and notes for the user.

    The incidents of this report are added to the memory, unless it only explains one.
    """
    if here.table is None:
        return {}, {}, ()
    from tricklecast.analytics.store.memory import Memory

    memory, now_us = Memory(here.table.place), time.time_ns() // 1000
    history, muted = memory.history(here.found), memory.muted(here.found, now_us)
    if request.files.names and request.explain is None:
        memory.remember(here.found, now_us)
    notes = list(here.table.notes)
    if memory.damaged:
        notes.append(f"{counted(memory.damaged, 'damaged file')} of incidents in {request.table}: left out")
    return history, muted, tuple(notes)


def write_lines(
    request: ReportRequest, wanted: str, stage: Stage, write: Callable[[Iterator[pa.RecordBatch]], int]
) -> int:
    """Writes all lines of one incident as they are found, and returns how many.

    Args:
        wanted: the incident's id, the beginning of it, or its number in the report.
        write: takes the lines, and says how many it has written.

    Raises:
        as :func:`make`, and what ``write`` raises.
    """
    with _typed_errors(), _judged(request, request.files, stage) as here:
        if here.all_lines is None:
            raise BadInput("the lines of incidents stand in the logs: pass these, too")
        chosen = _chosen(here.found, wanted)
        with stage(f"reading the lines of {chosen.id}", request.files.size) as advance:
            lines = here.all_lines(chosen, advance)
            if (first := next(lines, None)) is None:
                raise BadInput(f"the lines of {chosen.id} have gone: the logs changed while they were read")
            return write(chain((first,), lines))


def _chosen(found: Sequence[Incident], wanted: str) -> Incident:
    order = ranked(found)
    if wanted.isdecimal() and 1 <= int(wanted) <= len(order):
        return order[int(wanted) - 1]
    matching = [one for one in order if one.id == wanted] or [one for one in order if one.id.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise BadInput(f"{len(matching)} incidents have an id that begins with {wanted}: {matching[0].id} …")
    if not order:
        raise BadInput(f"there is no incident {wanted}: these logs have no incidents")
    ids = [one.id for one in order]
    near = get_close_matches(wanted, ids, cutoff=0.5)
    shown = f"the nearest: {', '.join(near)}" if near else f"the worst: {', '.join(ids[:3])}"
    raise BadInput(f"there is no incident {wanted}: these logs have {counted(len(ids), 'incident')}, {shown}")


def _minutes(window: Window) -> Window:
    """A window as a table has it: its rows are of up to a minute."""
    minute = 60_000_000
    first, last = window.from_us, window.to_us
    return Window(first and first // minute * minute, last and -(-last // minute) * minute)


def _looked_at(window: Window) -> Iterator[str]:
    bounds = ((window.from_us, "from {} UTC on"), (window.to_us, "before {} UTC"))
    if told := [words.format(date_and_time(us)) for us, words in bounds if us is not None]:
        yield f"Only requests {' and '.join(told)} were looked at."
