"""From files to a report with everything that was asked for: read or kept roll-ups, tables, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tricklecast.analytics import sides
from tricklecast.analytics.command.baseline import Kind
from tricklecast.analytics.command.request import Request
from tricklecast.analytics.duplicates import once
from tricklecast.analytics.explain import Evidence, gather
from tricklecast.analytics.incremental.store import SOURCE, hour_name, with_source
from tricklecast.analytics.incremental.update import Kept, State, kept_of, update
from tricklecast.analytics.inputs import ALWAYS, LogFiles
from tricklecast.analytics.job import Counted, counted, report_on, rolled_up
from tricklecast.analytics.normalise import normalise
from tricklecast.analytics.progress import silent
from tricklecast.analytics.report_old.model import Report
from tricklecast.analytics.rollup import roll_up
from tricklecast.analytics.sources import Reading, notes_on, read_logs, recognise
from tricklecast.analytics.spark import interpreted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.progress import Stage
    from tricklecast.analytics.report_old.figures import Comparison


def report_on_logs(
    spark: SparkSession, request: Request, files: LogFiles, other: LogFiles | None, stage: Stage
) -> Report:
    """The report on logs that are read now.

    Args:
        other: the logs to compare with, if any.
    """
    with _read(spark, files, request.reading, stage) as found:
        report = report_on(found, files, request.params, stage)
        report = _with_notes(report, *notes_on(files, recognise(files, request.reading)))
        return _finished(spark, request, found.rollup, report, other, stage)


def report_on_state(
    spark: SparkSession, request: Request, state: State, other: LogFiles | None, stage: Stage
) -> Report:
    """The report on what a state keeps, after it has taken in what is new."""
    everything, window = replace(request.reading, window=ALWAYS), request.reading.window

    def roll(files: LogFiles, each_once: bool) -> DataFrame:
        lines = normalise(with_source(read_logs(spark, files, everything)), keep=[SOURCE])
        return roll_up(once(lines, SOURCE) if each_once else lines, also=[SOURCE])

    manifest = update(spark, state, roll, request.keep_us, stage)
    kept = kept_of(spark, state, manifest, window)
    files = LogFiles(kept.names, 0, kept.damaged, kept.doubles)
    with interpreted(spark), counted(kept.rollup, files, stage, _what_kept(kept)) as found:
        report = report_on(replace(found, duplicates=kept.duplicates), files, request.params, stage)
        report = _with_notes(report, *_notes(kept, request))
        return _finished(spark, request, found.rollup, report, other, stage)


def _with_notes(report: Report, *notes: str) -> Report:
    return replace(report, quality=replace(report.quality, notes=(*report.quality.notes, *notes)))


def explained(spark: SparkSession, report: Report, episode: str, files: LogFiles, reading: Reading) -> Evidence:
    """The evidence for one episode of a report.

    Raises:
        BadInput: there is no such episode.
    """
    from tricklecast.analytics.command.explaining import find_episode

    lines, found = read_logs(spark, files, reading), find_episode(report, episode)
    return gather(lines, found, each_once=report.quality.duplicates > 0)


def _finished(
    spark: SparkSession,
    request: Request,
    rollup: DataFrame,
    report: Report,
    other: LogFiles | None,
    stage: Stage,
) -> Report:
    if request.baseline is not None:
        with stage("comparing"):
            compared = _comparison(spark, request, rollup, report, other)
            report = replace(report, comparison=compared)
    if request.outputs.parquet is not None:
        with stage("writing tables"):
            request.outputs.write_tables(spark, report, rollup)
    return report


def _comparison(
    spark: SparkSession, request: Request, rollup: DataFrame, report: Report, other: LogFiles | None
) -> Comparison | None:
    baseline = request.baseline
    if baseline is None:
        return None
    match baseline.kind:
        case Kind.RELEASE:
            return sides.by_release(rollup, report, baseline.text)
        case Kind.DATE:
            return sides.by_date(rollup, report, baseline.at_us or 0, baseline.text)
        case Kind.LOGS:
            assert other is not None
            # --from and --to choose from these logs, not from those of another time.
            everything = replace(request.reading, window=ALWAYS)
            with _read(spark, other, everything) as old:
                before = (old.rollup, report_on(old, other, request.params), baseline.text)
                return sides.by_logs(before, (rollup, report, "these logs"))


def _read(
    spark: SparkSession, files: LogFiles, reading: Reading, stage: Stage = silent
) -> AbstractContextManager[Counted]:
    again = partial(rolled_up, spark, files, reading, each_once=True)
    return counted(rolled_up(spark, files, reading), files, stage, _what(files), again)


def _what(files: LogFiles) -> str:
    count = len(files.names)
    return f"reading {count:,} file{'' if count == 1 else 's'}, {files.size / 1e6:,.1f} MB"


def _what_kept(kept: Kept) -> str:
    return f"reading what is kept of {len(kept.hours):,} hour{'' if len(kept.hours) == 1 else 's'}"


def _notes(kept: Kept, request: Request) -> Iterator[str]:
    if count := len(kept.unsure):
        which = kept.unsure[0] if count == 1 else f"{count:,} logs, {kept.unsure[0]} first,"
        yield f"Lines of {which} may be counted twice: other logs seem to have had them, and were gone."
    count = len(kept.hours)
    cut = "; the span is cut at full minutes" if request.reading.window != ALWAYS else ""
    if not count:
        yield f"From hourly roll-ups: there are none of this time{cut}."
        return
    first, last = hour_name(kept.hours[0]), hour_name(kept.hours[-1])
    yield f"From hourly roll-ups: {count:,} hour{'' if count == 1 else 's'}, {first} to {last}{cut}."
