"""The whole report: one pass over the lines, a handful of small actions over the roll-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from analytics.classes import classify, without_repetition
from analytics.episodes import islands, merge_clients, storms
from analytics.fleet import fleet_candidates, no_fleet, worth_looking
from analytics.normalise import normalise
from analytics.params import StormParams
from analytics.progress import Stage, silent
from analytics.report.model import Report, episode_from
from analytics.rollup import events_of, roll_up
from analytics.sources import read_lines
from analytics.spark import interpreted
from analytics.totals import answer_totals, failed_clients, island_repeats, summarise
from analytics.triggers import with_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from analytics.inputs import LogFiles


@dataclass(frozen=True, slots=True)
class Found:
    """What the roll-up gives: lazy frames, nothing computed yet."""

    islands: DataFrame
    episodes: DataFrame


def find_storms(rollup: DataFrame, params: StormParams, *, fleets: bool = True) -> Found:
    """All storms of a roll-up.

    Args:
        fleets: also look for storms of many clients (:func:`analytics.fleet.worth_looking`).
    """
    found = islands(rollup, params)
    candidates = storms(found, params)
    if fleets:
        candidates = candidates.unionByName(fleet_candidates(rollup, params), allowMissingColumns=True)
    else:
        candidates = no_fleet(candidates)
    classified = classify(with_context(candidates, events_of(rollup), params), params)
    return Found(found, without_repetition(merge_clients(classified, params)))


def make_report(
    spark: SparkSession,
    files: LogFiles,
    paths: Sequence[str],
    params: StormParams | None = None,
    stage: Stage = silent,
) -> Report:
    """Reads the logs and finds their storms.

    Args:
        files: what was asked for; ``paths``: the same files as Spark can read them.
        stage: told what is being done.
    """
    params = params or StormParams()
    with stage(f"reading {len(paths):,} file{'s' if len(paths) != 1 else ''}, {files.size / 1e6:,.1f} MB"):
        rollup = roll_up(normalise(read_lines(spark, paths, damaged=bool(files.damaged)))).persist()
        rows: list[Any] = answer_totals(rollup, params).collect()
    try:
        with stage("looking for storms"), interpreted(spark):
            found = find_storms(rollup, params, fleets=worth_looking(*failed_clients(rows), params))
            repeats = island_repeats(found.islands).collect()[0]["repeats"]
            worst, count = _worst(found.episodes, params)
    finally:
        rollup.unpersist()
    totals, quality = summarise(rows, repeats, files.damaged)
    episodes = tuple(episode_from(row.asDict()) for row in worst)
    return Report(files.names, totals, quality, episodes, count, params)


def _worst(episodes: DataFrame, params: StormParams) -> tuple[list[Any], int]:
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
    return rows[: params.max_episodes], count
