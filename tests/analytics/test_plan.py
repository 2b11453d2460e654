"""Spark's plans for a report: one scan of the lines, added up where they are read; nothing sorts or holds raw lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from tests.analytics.plans import Plan, broken_rules, watched
from tests.analytics.support.scenarios import write_all
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import make_report
from tricklecast.analytics.sources import read_logs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NOT_NEEDED = {"path", "ua", "trace", "detail", "epoch"}
"""Columns that no figure is computed from: texts that would make a scan of Parquet several times as long."""


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Every scenario, with fleets among them."""
    return write_all(7)[0]


@pytest.fixture(scope="module")
def log(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of them."""
    return write_lines(tmp_path_factory.mktemp("plan") / "access.jsonl", lines)


@pytest.fixture(scope="module")
def seen(
    spark: SparkSession, lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Plan], list[int]]:
    """The plans of a whole report on half of it as JSON and half as Parquet, and what each of its stages took in."""
    folder, half = tmp_path_factory.mktemp("halves"), len(lines) // 2
    first = write_lines(folder / "first.jsonl", lines[:half])
    second = read_logs(spark, find_logs([str(write_lines(folder / "second.jsonl", lines[half:]))]))
    second.drop("_corrupt_record").coalesce(1).write.parquet(str(folder / "second"))
    files = find_logs([str(first), str(folder / "second")])
    return watched(spark, lambda: make_report(spark, files))


def test_no_rule_is_broken(seen: tuple[list[Plan], list[int]]) -> None:
    """Lines go straight from the scan into an addition, partly before they are shuffled; no operator runs Python."""
    assert seen[0]
    assert [broken for plan in seen[0] for broken in broken_rules(plan)] == []


def test_lines_are_read_once(seen: tuple[list[Plan], list[int]], lines: list[str]) -> None:
    """One stage of the whole report takes in as many records as the log has lines; all others work on the roll-up,
    which is still persisted when the last of them needs it."""
    assert seen[1].count(len(lines)) == 1


def test_few_queries(seen: tuple[list[Plan], list[int]]) -> None:
    """All that follows the roll-up is a handful of queries, and of plans that the next one is built on: each costs its
    planning, however few its rows are."""
    computed, built_on = 8, 6
    assert sum(bool(plan.scans or len(plan.operators) > 1) for plan in seen[0]) <= computed + built_on


def test_only_needed_columns_of_parquet(seen: tuple[list[Plan], list[int]]) -> None:
    """From Parquet only the columns are read that a report is computed from."""
    scans = [scan for plan in seen[0] for scan in plan.scans if "parquet" in scan.name]
    assert scans
    for scan in scans:
        names = set(re.findall(r"(\w+)#\d+", scan.text.partition("]")[0]))
        assert {"ts_us", "client", "channel"} <= names
        assert not NOT_NEEDED & names


def numbered_lines(lines: DataFrame) -> DataFrame:
    """Numbers each client's lines in the order of time."""
    return lines.withColumn("turn", F.row_number().over(Window.partitionBy("client").orderBy("ts_us")))


def upper_case(name: str) -> Column:
    """A text in capitals, by way of Python."""
    return F.udf(lambda text: text and text.upper(), "string", useArrow=False)(name)


BAD: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a sort": (lambda lines: lines.orderBy("ts_us"), "Exchange over lines"),
    "a sort of each part": (lambda lines: lines.sortWithinPartitions("ts_us"), "Sort over lines"),
    "a window": (lambda lines: numbered_lines(lines).groupBy("turn").count(), "Exchange over lines"),
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
def test_a_bad_plan_is_caught(name: str, spark: SparkSession, log: Path) -> None:
    """Each way of handling raw lines that must not be is told by the rules, whatever it is wrapped in."""
    make, told = BAD[name]
    frame = make(read_logs(spark, find_logs([str(log)])))
    plans, _ = watched(spark, lambda: frame.write.format("noop").mode("overwrite").save())
    assert any(told in broken for plan in plans for broken in broken_rules(plan))
