"""Spark's plans for a report: one scan of the lines, added up where they are read; nothing sorts or holds raw lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tests.analytics.conftest import Known
from tests.analytics.plans import broken_rules, watched
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.sources import read_logs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NOT_NEEDED = {"path", "ua", "trace", "detail", "epoch"}
"""Columns that no figure is computed from: texts that would make a scan of Parquet several times as long."""


def test_no_rule_is_broken(known: Known) -> None:
    """Lines go straight from the scan into an addition, partly before they are shuffled; no operator runs Python."""
    assert known.plans
    assert [broken for plan in known.plans for broken in broken_rules(plan)] == []


def test_lines_are_read_once(known: Known) -> None:
    """One stage of the whole report takes in as many records as the log has lines; all others work on the roll-up,
    which is still persisted when the last of them needs it."""
    assert known.stages.count(known.lines) == 1


def test_few_queries(known: Known) -> None:
    """All that follows the roll-up is a handful of queries, and of plans that the next one is built on: each costs its
    planning, however few its rows are."""
    computed, built_on = 8, 6
    assert sum(bool(plan.scans or len(plan.operators) > 1) for plan in known.plans) <= computed + built_on


def test_only_needed_columns_of_parquet(known: Known) -> None:
    """From Parquet only the columns are read that a report is computed from."""
    scans = [scan for plan in known.plans for scan in plan.scans if "parquet" in scan.name]
    assert scans
    for scan in scans:
        names = set(re.findall(r"(\w+)#\d+", scan.text.partition("]")[0]))
        assert {"ts_us", "client", "channel"} <= names
        assert not NOT_NEEDED & names


def upper_case(name: str) -> Column:
    """A text in capitals, by way of Python."""
    return F.udf(lambda text: text and text.upper(), "string", useArrow=False)(name)


BAD: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a sort of each part": (lambda lines: lines.sortWithinPartitions("ts_us"), "Sort over lines"),
    "a list of lines": (lambda lines: lines.groupBy("client").agg(F.collect_list("ts_us")), "ObjectHashAggregate over"),
    "a join": (lambda lines: lines.join(lines.groupBy("client").count(), "client"), "over lines"),
    "a shuffle first": (lambda lines: lines.repartition("client").groupBy("client").count(), "Exchange over lines"),
    "no addition": (lambda lines: lines.where("status = 404"), "over lines"),
    "a Python function": (
        lambda lines: lines.select(upper_case("client").alias("c")).groupBy("c").count(),
        "runs Python",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_caught(name: str, spark: SparkSession, log: LogWriter, tmp_path: Path) -> None:
    """Each way of handling raw lines that must not be is told by the rules, whatever it is wrapped in."""
    make, told = BAD[name]
    log.not_found(0, "a", "film")
    frame = make(read_logs(spark, find_logs([str(write_lines(tmp_path / "access.jsonl", log.lines()))])))
    plans, _ = watched(spark, lambda: frame.write.format("noop").mode("overwrite").save())
    assert any(told in broken for plan in plans for broken in broken_rules(plan))
