"""The roll-up adds up what it should, in one scan and one shuffle, and estimates connections well enough."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.analytics.support.rollups import planned, rolled_up
from tests.analytics.support.writer import LogWriter, us
from tricklecast.analytics.divided import together
from tricklecast.analytics.job import find_storms
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.rollup import events_of
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    rollup = rolled_up(spark, log.lines(), tmp_path)
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


def test_plan(spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Raw lines meet no sort, no window and no Python; one scan and one shuffle make the roll-up."""
    log.not_found(0, "a", "film")
    rollup = planned(spark, log.lines(), tmp_path)
    plan = executed_plan(rollup)
    assert len(re.findall(r"FileScan", plan)) == 1
    assert len(re.findall(r"Exchange", plan)) == 1
    assert not re.search(r"\b(Sort|Window|\w*Python\w*|SortAggregate|ObjectHashAggregate)\b", plan)

    few = together(rollup.localCheckpoint(), 1)
    rest = executed_plan(find_storms(few, StormParams()))
    # What needs windows reads the stored roll-up and nothing else; and its few rows are never moved.
    assert "Window" in rest
    assert not re.search(r"FileScan|\w*Python\w*|Exchange hash|Exchange Single", rest)


def executed_plan(frame: DataFrame) -> str:
    """The physical plan as text."""
    return str(frame._jdf.queryExecution().executedPlan().toString())
