"""The steps of a report, one by one, for a stopwatch; :func:`analytics.job.make_report` does the same in
one go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import report_from_rollup, rolled_up
from tricklecast.analytics.progress import Stage
from tricklecast.analytics.sources import read_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def lines(spark: SparkSession, folder: Path) -> DataFrame:
    """The lines of a log, not read yet."""
    return read_logs(spark, find_logs([str(folder)]))


def rollup(spark: SparkSession, folder: Path) -> DataFrame:
    """Its roll-up, not computed yet."""
    return rolled_up(spark, find_logs([str(folder)]))


def report(rolled: DataFrame, folder: Path, stage: Stage) -> int:
    """The report on a roll-up, which its first stage computes; returns how many episodes were found."""
    return report_from_rollup(rolled, find_logs([str(folder)]), stage=stage).n_episodes


def bare(read: DataFrame, rolled: DataFrame) -> DataFrame:
    """Of the lines, the very columns that the roll-up reads, and nothing done with them: what no plan can undercut."""
    return read.select(*columns_read(rolled))


def columns_read(frame: DataFrame) -> list[str]:
    """Names of the columns that a plan reads of its files, as Spark's physical plan says it."""
    spark: Any = frame.sparkSession
    spark.conf.set("spark.sql.maxMetadataStringLength", "100000")
    spark.conf.set("spark.sql.debug.maxToStringFields", "1000")
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    schema = re.search(r"ReadSchema: struct<(.*?)>(?:\s|$)", plan)
    assert schema, plan
    return [field.partition(":")[0] for field in schema[1].split(",")]
