"""Islands, thresholds and the merging of clients, on small logs with known truth."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from analytics.episodes import EPISODE, islands, merge_clients, severity, storms
from analytics.normalise import normalise
from analytics.params import StormParams
from analytics.rollup import roll_up
from analytics.sources import read_lines
from tests.analytics.support.writer import LogWriter, us, write_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rolled_up(spark: SparkSession, log: LogWriter, folder: Path) -> DataFrame:
    """The roll-up of a log."""
    return roll_up(normalise(read_lines(spark, [str(write_lines(folder / "access.jsonl", log.lines()))])))


@pytest.fixture
def log() -> LogWriter:
    """An empty log."""
    return LogWriter("n1", random.Random(1))


def test_a_pause_ends_an_island(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Exactly the allowed pause joins, a microsecond more separates, per client and kind of answer."""
    for at in (0.0, 5.0, 10.000001):
        log.not_found(at, "a", "film")
    log.not_found(1.0, "b", "film")
    log.missing(1.0, "a", "film", 3, head=9)
    found = islands(rolled_up(spark, log, tmp_path), StormParams())
    told = sorted((row["client"], row["answer"], row["first_us"], row["last_us"], row["n"]) for row in found.collect())
    assert told == [
        ("a", "not_found", us(0), us(5), 2),
        ("a", "not_found", us(10.000001), us(10.000001), 1),
        ("a", "seq_missing", us(1), us(1), 1),
        ("b", "not_found", us(1), us(1), 1),
    ]


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
    rows = [(hits, *rates) for hits, rate in expected for rates in ((rate, 0.0), (0.0, rate))]
    judged = spark.createDataFrame(rows, "hits long, mean_rps double, peak_rps double")
    told = judged.withColumn("severity", severity(StormParams())).collect()
    assert [row["severity"] for row in told] == [said for said in expected.values() for _ in range(2)]


def test_rhythm(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """A hot loop, a fixed pause and an exponential back-off are told apart."""
    for turn in range(100):
        log.not_found(turn * 0.02, "hot", "film")
        log.not_found(turn * 0.25, "fixed", "film")
    at = 0.0
    for turn in range(60):
        log.not_found(at, "exponential", "film")
        at += min(4.0, 0.01 * 1.15**turn)
    found = storms(islands(rolled_up(spark, log, tmp_path), StormParams()), StormParams())
    told = {row["client"]: row["backoff"] for row in found.collect()}
    assert told == {"hot": "hot_loop", "fixed": "fixed", "exponential": "exponential"}


def test_clients_of_one_storm_are_merged(spark: SparkSession) -> None:
    """What overlaps, or nearly does, is one episode with the worst client first; what comes later is another."""
    schema = """class string, node string, channel string, release string, client string, severity string,
        first_us long, last_us long, n long, hits long, seq_lo long, seq_hi long, head_hi long,
        bytes_out long, dur_us long, retry_after_ms long, peak_rps double, backoff string, gap_ms double,
        trigger string, trigger_us long, n_clients int, clients array<string>, n_channels int, channels array<string>"""
    rest = (3, 3, 4, 0, 0, None, 9.0, "fixed", 100.0, None, None, None, None, None, None)
    second = 1_000_000
    rows = [
        ("x", "n", "film", "r", "long", "warn", 0, 20 * second, 40, 40, *rest),
        ("x", "n", "film", "r", "inside", "critical", 2 * second, 3 * second, 90, 90, *rest),
        ("x", "n", "film", "r", "after", "warn", 25 * second, 26 * second, 8, 8, *rest),
        ("x", "n", "film", "r", "later", "warn", 32 * second, 33 * second, 8, 8, *rest),
        ("x", "n", "other", "r", "inside", "warn", 2 * second, 3 * second, 8, 8, *rest),
    ]
    merged = merge_clients(spark.createDataFrame(rows, schema), StormParams())
    assert tuple(merged.columns) == EPISODE
    told = sorted(
        (row["first_us"], *row["channels"], row["n"], row["severity"], row["clients"]) for row in merged.collect()
    )
    assert told == [
        (0, "film", 138, "critical", ["inside", "long", "after"]),
        (2 * second, "other", 8, "warn", ["inside"]),
        (32 * second, "film", 8, "warn", ["later"]),
    ]
