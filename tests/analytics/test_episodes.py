"""Islands, thresholds and the merging of clients, on small logs with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.analytics.support.rollups import rolled_up
from tests.analytics.support.writer import LogWriter, us
from tricklecast.analytics.episodes import EPISODE, merge_channels, merge_clients
from tricklecast.analytics.islands import islands
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.severity import severity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_pause_ends_an_island(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Exactly the allowed pause joins, a microsecond more separates, per client and family of answers."""
    for at in (0.0, 5.0, 10.000001):
        log.not_found(at, "a", "film")
    log.not_found(1.0, "b", "film")
    log.missing(1.0, "a", "film", 3, head=9)
    log.ended(1.0, "a", "film", 3)
    found = islands(rolled_up(spark, log.lines(), tmp_path), StormParams(warn_hits=1))
    told = sorted((row["client"], row["answer"], row["first_us"], row["last_us"], row["n"]) for row in found.collect())
    assert told == [
        ("a", "ended", us(1), us(1), 1),
        ("a", "not_found", us(0), us(5), 3),
        ("a", "not_found", us(10.000001), us(10.000001), 1),
        ("b", "not_found", us(1), us(1), 1),
    ]


def test_what_is_far_away_is_told_nothing_by(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """A pause that no episode spans parts what is slow from what was fast; and too few lines for a storm are left out,
    however often they come."""
    for turn in range(1000):
        log.not_found(turn * 0.0009, "a", "film")
    for turn in range(10):
        log.not_found(40 + 4 * turn, "a", "film")
        log.not_found(60 * turn, "b", "film")
    found = islands(rolled_up(spark, log.lines(), tmp_path), StormParams())
    told = sorted((row["client"], row["n"], round(row["peak_rps"])) for row in found.collect())
    assert told == [("a", 10, 1), ("a", 1000, 1000)]


def test_severity(spark: SparkSession) -> None:
    """Fast for a moment, or slowly for long: each bound holds exactly, whichever of the two rates reaches it."""
    expected = {
        (7, 100.0): None,
        (8, 7.9): None,
        (8, 8.0): "warn",
        (9, 100.0): "warn",
        (10, 9.9): "warn",
        (10, 10.0): "critical",
        (29, 0.1): None,
        (30, 0.1): "warn",
        (49, 0.1): "warn",
        (50, 0.1): "critical",
    }
    rows = [(hits, *rates, None) for hits, rate in expected for rates in ((rate, 0.0), (0.0, rate))]
    judged = spark.createDataFrame(rows, "hits long, mean_rps double, peak_rps double, node_bits long")
    told = judged.selectExpr("*", f"{severity(StormParams())} AS severity").collect()
    assert [row["severity"] for row in told] == [said for said in expected.values() for _ in range(2)]


def test_clients_of_one_storm_are_merged(spark: SparkSession) -> None:
    """What overlaps, or nearly does, is one episode with the worst client first; what comes later is another."""
    schema = """class string, node string, channel string, release string, client string, severity string,
        first_us long, last_us long, n long, hits long, seq_lo long, seq_hi long, head_hi long,
        bytes_out long, dur_us long, retry_after_ms long, peak_rps double, trigger string, trigger_us long,
        n_clients long, clients array<string>, n_channels long, channels array<string>, answer string, slow boolean,
        release_lo string, release_hi string, named boolean, head_lo long"""
    rest = (3, 3, 4, 0, 0, None, 9.0, None, None, None, None, None, None, "not_found", False, "r", "r", True, 4)
    second = 1_000_000
    rows = [
        ("x", "n", "film", "r", "long", "warn", 0, 20 * second, 40, 40, *rest),
        ("x", "n", "film", "r", "inside", "critical", 2 * second, 3 * second, 90, 90, *rest),
        ("x", "n", "film", "r", "after", "warn", 25 * second, 26 * second, 8, 8, *rest),
        ("x", "n", "film", "r", "later", "warn", 32 * second, 33 * second, 8, 8, *rest),
        ("x", "n", "other", "r", "inside", "warn", 2 * second, 3 * second, 8, 8, *rest),
    ]
    merged = merge_channels(merge_clients(spark.createDataFrame(rows, schema), StormParams()), StormParams())
    assert tuple(merged.columns) == EPISODE
    told = sorted(
        (row["first_us"], *row["channels"], row["n"], row["severity"], row["clients"]) for row in merged.collect()
    )
    assert told == [
        (0, "film", 138, "critical", ["inside", "long", "after"]),
        (2 * second, "other", 8, "warn", ["inside"]),
        (32 * second, "film", 8, "warn", ["later"]),
    ]
