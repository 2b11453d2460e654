"""The whole report: one pass over the lines, a handful of small actions over the roll-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from tricklecast.analytics.answers import FAILURES, Answer
from tricklecast.analytics.classes import classify, without_repetition
from tricklecast.analytics.content import has_repeated_line
from tricklecast.analytics.divided import FEW_ROWS, Divided, divided
from tricklecast.analytics.duplicates import once, suspected
from tricklecast.analytics.episodes import merge_channels, merge_clients, storms
from tricklecast.analytics.fleet import candidates, fleet_candidates, worth_looking
from tricklecast.analytics.islands import islands
from tricklecast.analytics.meanwhile import meanwhile
from tricklecast.analytics.metrics.measure import figures, of_episodes, of_traffic
from tricklecast.analytics.metrics.timeline import step_width
from tricklecast.analytics.metrics.totals import overview
from tricklecast.analytics.normalise import normalise
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.progress import Stage, silent
from tricklecast.analytics.query import planned
from tricklecast.analytics.report_old.model import Episode, Report, episode_from
from tricklecast.analytics.rhythm import tempos
from tricklecast.analytics.rollup import events_of, roll_up
from tricklecast.analytics.rotating import rotating_candidates
from tricklecast.analytics.sources import read_logs
from tricklecast.analytics.spark import interpreted
from tricklecast.analytics.triggers import with_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.inputs import LogFiles
    from tricklecast.analytics.metrics.totals import Overview
    from tricklecast.analytics.sources import Reading


@dataclass(frozen=True, slots=True)
class Counted:
    """A roll-up in which every line counts once.

    Attributes:
        rollup: persisted; seen: what there is of what in it.
        duplicates: lines that were left out, being there already.
    """

    rollup: DataFrame
    seen: Overview
    duplicates: int = 0


def make_report(
    spark: SparkSession,
    files: LogFiles,
    params: StormParams | None = None,
    stage: Stage = silent,
    reading: Reading | None = None,
) -> Report:
    """Reads the logs and finds their storms.

    Args:
        files: what is to be read; reading: how, and of what time.
        stage: told what is being done.
    """
    count = len(files.names)
    what = f"reading {count:,} file{'s' if count != 1 else ''}, {files.size / 1e6:,.1f} MB"
    rollup = rolled_up(spark, files, reading)
    again = partial(rolled_up, spark, files, reading, each_once=True)
    return report_from_rollup(rollup, files, params, stage, what, again)


def rolled_up(
    spark: SparkSession, files: LogFiles, reading: Reading | None = None, *, each_once: bool = False
) -> DataFrame:
    """The roll-up of the logs, not computed yet: all that a report needs of them.

    Args:
        each_once: leave out lines that are there already (:mod:`analytics.duplicates`), which is expensive.
    """
    rows = normalise(read_logs(spark, files, reading))
    return roll_up(once(rows) if each_once else rows)


def report_from_rollup(
    rollup: DataFrame,
    files: LogFiles,
    params: StormParams | None = None,
    stage: Stage = silent,
    what: str = "reading what was kept",
    again: Callable[[], DataFrame] | None = None,
) -> Report:
    """The report on a roll-up, wherever it is from.

    Args:
        rollup: with the columns of :func:`analytics.rollup.roll_up`.
        files: what it was made from.
        what: says what computing it does.
        again: makes the roll-up of every line once, which is asked for if some seem to be there more often.
    """
    with counted(rollup, files, stage, what, again) as found:
        return report_on(found, files, params, stage)


@contextmanager
def counted(
    rollup: DataFrame,
    files: LogFiles,
    stage: Stage = silent,
    what: str = "reading what was kept",
    again: Callable[[], DataFrame] | None = None,
) -> Iterator[Counted]:
    """The roll-up for a report, persisted while the context is open; the arguments of :func:`report_from_rollup`."""
    with _kept(rollup):
        with stage(what):
            seen = overview(rollup)
        if again is None or not suspected(seen.traces, partial(has_repeated_line, files.names)):
            yield Counted(rollup, seen)
            return
    every = again()
    with _kept(every):
        with stage("leaving out lines that are there twice"):
            unique = overview(every)
        yield Counted(every, unique, seen.lines - unique.lines)


def report_on(found: Counted, files: LogFiles, params: StormParams | None = None, stage: Stage = silent) -> Report:
    """The report on a roll-up that is persisted.

    Args:
        files: what it was made from.
    """
    return _report(found.rollup, found.seen, files, params or StormParams(), stage, duplicates=found.duplicates)


def _report(
    rollup: DataFrame,
    seen: Overview,
    files: LogFiles,
    params: StormParams,
    stage: Stage,
    *,
    duplicates: int = 0,
) -> Report:
    spark = rollup.sparkSession
    with stage("setting healthy traffic aside"), _suited(spark, seen.rows):
        parts = divided(rollup, step_width(seen.from_us or 0, seen.to_us or 0)).settled()
    with _suited(spark, parts.rows), meanwhile(spark, partial(of_traffic, parts, seen, params)) as traffic:
        with stage("looking for storms"):
            episodes, count = _episodes(parts, seen, params)
        with stage("adding up"):
            found = of_episodes(parts, episodes, params) | traffic()
    measured = figures(found, seen, episodes, params)
    told = {field.name: getattr(measured, field.name) for field in fields(measured)}
    told["quality"] = replace(
        measured.quality, damaged_files=files.damaged, duplicate_files=files.duplicates, duplicates=duplicates
    )
    return Report(inputs=files.names, n_episodes=count, params=params, **told)


@contextmanager
def _kept(rollup: DataFrame) -> Iterator[None]:
    if rollup.storageLevel.useMemory:  # by the caller, who needs it afterwards, too
        yield
        return
    rollup.persist()
    try:
        yield
    finally:
        rollup.unpersist()


def _suited(spark: SparkSession, rows: int) -> AbstractContextManager[None]:
    return interpreted(spark) if rows <= FEW_ROWS else nullcontext()


def find_storms(rollup: DataFrame, params: StormParams, *, fleets: bool = True) -> DataFrame:
    """All storms of a roll-up: rows with the columns of :data:`analytics.episodes.EPISODE`.

    Args:
        fleets: also look for storms of many clients (:func:`analytics.fleet.worth_looking`).
    """
    single = planned(storms(planned(islands(rollup, params)), params))
    fleet = fleet_candidates(rollup, params).unionByName(rotating_candidates(rollup, params)) if fleets else None
    found = candidates(single, fleet and planned(fleet))
    triggered = planned(with_context(found, events_of(rollup), params))
    classified = planned(classify(triggered, params))
    merged = merge_channels(merge_clients(classified, params), params)
    return without_repetition(merged, params)


def _episodes(parts: Divided, seen: Overview, params: StormParams) -> tuple[tuple[Episode, ...], int]:
    """The worst episodes, and how many there are."""
    refused, failed = (_clients(seen, kinds) for kinds in ((Answer.OVERLOAD,), FAILURES))
    fleets = worth_looking(refused, failed, params)
    worst, count = _worst(find_storms(parts.storm_rows(), params, fleets=fleets), params)
    # Segments that nobody repeated are part of the pace of whoever repeated those beside them.
    served = any(row["answer"] == Answer.SERVED for row in worst)
    paces = tempos(parts.rollup if served else parts.telling, worst)
    return tuple(episode_from(row, pace) for row, pace in zip(worst, paces, strict=True)), count


def _clients(seen: Overview, kinds: tuple[Answer, ...]) -> int:
    return sum(seen.failed_clients.get(kind.value, 0) for kind in kinds)


def _worst(episodes: DataFrame, params: StormParams) -> tuple[list[dict[str, Any]], int]:
    # "critical" sorts before "warn"; the rest makes the order the same in every run.
    order = [
        F.col("severity"),
        F.col("n").desc(),
        F.col("first_us"),
        F.col("class"),
        F.col("channels"),
        F.col("clients"),
    ]
    rows = episodes.orderBy(*order).limit(params.max_episodes + 1).collect()
    count = len(rows) if len(rows) <= params.max_episodes else episodes.count()
    return [row.asDict() for row in rows[: params.max_episodes]], count
