"""The roll-up adds up what it should, in one scan and one shuffle, and estimates connections well enough."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from analytics.job import find_storms
from analytics.normalise import normalise
from analytics.params import StormParams
from analytics.rollup import connections, events_of, repeated_hits, roll_up
from analytics.sources import read_lines
from tests.analytics.support.writer import LogWriter, us, write_lines
from trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rolled_up(spark: SparkSession, log: LogWriter, folder: Path) -> DataFrame:
    """The roll-up of a log."""
    return roll_up(normalise(read_lines(spark, [str(write_lines(folder / "access.jsonl", log.lines()))])))


@pytest.fixture
def log() -> LogWriter:
    """An empty log."""
    return LogWriter("n1", random.Random(1))


def test_sums(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Failures are added up per second and client, segments per minute and client, and the rest without a client."""
    log.not_found(0.1, "a", "film", 5)
    log.not_found(0.9, "a", "film", 9)
    log.not_found(1.1, "a", "film", 9)
    log.not_found(0.5, "b", "film")
    for second in range(3):
        log.served(second, "a", "film", second, attempt=2, bytes_out=10)
        log.exchange(second, "a", "film", op="next", status=200)
    log.event(2.0, Event.CHANNEL_END, "film")
    rollup = rolled_up(spark, log, tmp_path)
    found = {
        (row["answer"], row["client"], row["bucket_us"]): (row["n"], row["seq_lo"], row["seq_hi"], row["bytes_out"])
        for row in rollup.collect()
    }
    minute = us(-20)  # the log begins 20 s into a minute
    assert found == {
        ("not_found", "a", us(0)): (2, 5, 9, 0),
        ("not_found", "a", us(1)): (1, 9, 9, 0),
        ("not_found", "b", us(0)): (1, None, None, 0),
        ("served", "a", minute): (3, 0, 2, 30),
        ("ok", None, minute): (3, None, None, 0),
        ("event", None, us(2)): (1, None, None, None),
    }
    assert [tuple(row) for row in events_of(rollup).collect()] == [("n1", "film", "channel_end", us(2))]


@pytest.mark.parametrize(("distinct", "low", "high"), [(1, 1, 1), (2, 1, 2), (20, 14, 26), (2000, 2000, 2000)])
def test_connections_are_estimated(spark: SparkSession, distinct: int, low: int, high: int) -> None:
    """One connection is told from two and from many; more than the sketch can hold count as one per request."""
    bit = F.call_function("shiftleft", F.expr("1L"), F.pmod(F.hash("id"), F.lit(64)).cast("int"))
    lines = spark.range(2000).select((F.col("id") % distinct).alias("id")).select(bit.alias("bit"))
    counted = lines.agg(F.bit_or("bit").alias("conn_bits"), F.count(F.lit(1)).alias("n"))
    (row,) = counted.select(connections().alias("conns")).collect()
    assert low <= row["conns"] <= high


def test_repeated_hits(spark: SparkSession) -> None:
    """Only what exceeds one request per seq and reader counts."""
    second = 1_000_000
    cases = {
        "ten segments, each once": (10, 0, 9, 1, 9 * second, 1),
        "one segment, ten times": (10, 7, 7, 1, second, 10),
        "six at most of the same": (15, 0, 9, 1, 9 * second, 6),
        "two readers behind one key": (20, 0, 9, 0b11, 9 * second, 1),
        "a crowd on one segment": (10, 7, 7, -1, second, 1),
        "that crowd again and again": (10, 7, 7, -1, 10 * second, 10),
        "no seq known": (10, None, None, 1, second, 10),
        "no connection known": (10, 7, 7, None, second, 10),
    }
    schema = "name string, n long, seq_lo long, seq_hi long, conn_bits long, last_us long, expected long, first_us long"
    rows = spark.createDataFrame([(name, *case, 0) for name, case in cases.items()], schema)
    told = rows.select("name", repeated_hits(StormParams()).alias("hits")).collect()
    assert {row["name"]: row["hits"] for row in told} == {name: case[-1] for name, case in cases.items()}


def test_plan(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Raw lines meet no sort, no window and no Python; one scan and one shuffle make the roll-up."""
    log.not_found(0, "a", "film")
    rollup = rolled_up(spark, log, tmp_path)
    plan = executed_plan(rollup)
    assert len(re.findall(r"FileScan", plan)) == 1
    assert len(re.findall(r"Exchange", plan)) == 1
    assert not re.search(r"\b(Sort|Window|\w*Python\w*|SortAggregate|ObjectHashAggregate)\b", plan)

    rollup.persist()
    try:
        rest = executed_plan(find_storms(rollup, StormParams()))
    finally:
        rollup.unpersist()
    assert not re.search(r"\w*Python\w*", rest)
    # What needs windows reads the stored roll-up and nothing else: there is no scan of a file but below it.
    assert "Window" in rest
    assert len(re.findall("FileScan", rest)) == len(re.findall("InMemoryRelation", rest))


def executed_plan(frame: DataFrame) -> str:
    """The physical plan as text."""
    return str(frame._jdf.queryExecution().executedPlan().toString())
