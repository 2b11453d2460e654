"""A roll-up in two: nothing is lost between them, and storms are found in the one as in the whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tests.analytics.support.scenarios import write_all
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.divided import divided
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import find_storms, rolled_up
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.spark import interpreted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_US = 60_000_000


def rollup_of(spark: SparkSession, lines: list[str], folder: Path) -> DataFrame:
    """The roll-up of some lines, computed."""
    return rolled_up(spark, find_logs([str(write_lines(folder / "access.jsonl", lines))])).localCheckpoint()


@pytest.mark.long
def test_the_same_storms(spark: SparkSession, tmp_path: Path) -> None:
    """Of every scenario's log, the telling rows give the very storms that all rows give, whatever the thresholds."""
    params = StormParams(gap_s=25.0, warn_hits=3, warn_hits_alone=4)
    rollup = rollup_of(spark, write_all(11)[0], tmp_path)
    with interpreted(spark):
        few = divided(rollup, STEP_US).settled().storm_rows()
        found, expected = (find_storms(rows, params).collect() for rows in (few, rollup))
    assert len(expected) > 10
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert few.count() < rollup.count()


def test_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    """The telling rows that are not quiet and either sums have all requests between them."""
    rollup = rollup_of(spark, write_all(12)[0][::4], tmp_path)
    parts = divided(rollup, STEP_US).settled()
    lines = F.coalesce(F.sum("n"), F.lit(0))
    all_lines = rollup.where("answer <> 'unparsable'").agg(lines).first()
    for sums in (parts.who, parts.times):
        both = parts.telling.where("NOT quiet").select("n").unionAll(sums.select("n"))
        assert both.agg(lines).first() == all_lines
    assert parts.arrivals().agg(lines).first() == all_lines


def test_healthy_traffic_leaves_no_rows(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Who gets and posts each segment once is in the sums alone: as many of them for one minute as for ten."""
    for second in range(600):
        log.posted(second, "studio", "film", second)
        for reader in range(3):
            log.served(second + 0.1, f"reader-{reader}", "film", second)
    parts = divided(rollup_of(spark, log.lines(), tmp_path), STEP_US).settled()
    assert parts.rows == 0
    assert {(row["client"], row["n"]) for row in parts.who.collect()} == {
        ("studio", 600),
        *((f"reader-{reader}", 600) for reader in range(3)),
    }


def test_a_post_repeated_in_the_next_bucket(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Posts of a seq in two buckets, once in each, are telling, and all others of that publisher with them."""
    for second in range(60):
        log.posted(second + 0.5, "studio", "film", min(second, 29))
        log.posted(second + 0.5, "other", "film-2", second)
    parts = divided(rollup_of(spark, log.lines(), tmp_path), STEP_US).settled()
    kept = parts.storm_rows().collect()
    assert {row["client"] for row in kept} == {"studio"}
    assert sum(row["n"] for row in kept) == 60
