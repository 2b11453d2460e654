"""The whole report: one pass over the lines, a handful of small actions over the roll-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from analytics.classes import classify
from analytics.episodes import islands, merge_clients, storms
from analytics.fleet import fleet_storms, without_members
from analytics.params import StormParams
from analytics.progress import Stage, silent
from analytics.report.model import Report, episode_from
from analytics.rollup import events_of, roll_up
from analytics.sources import normalise, read_lines
from analytics.totals import answer_totals, island_repeats, summarise
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


def find_storms(rollup: DataFrame, params: StormParams) -> Found:
    """All storms of a roll-up, one client's and fleets'."""
    events = events_of(rollup)
    found = islands(rollup, params)
    fleets = fleet_storms(rollup, events, params)
    single = classify(with_context(storms(found, params), events, params), params)
    merged = merge_clients(without_members(single, fleets), params)
    return Found(found, merged.unionByName(fleets))


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
        with stage("looking for storms"):
            found = find_storms(rollup, params)
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
