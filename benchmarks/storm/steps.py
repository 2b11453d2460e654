"""The steps of a report, one by one, for a stopwatch; :func:`analytics.job.make_report` does the same in one go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analytics.inputs import find_logs
from analytics.job import find_storms
from analytics.normalise import normalise
from analytics.params import StormParams
from analytics.rollup import roll_up
from analytics.sources import read_logs
from analytics.spark import interpreted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARAMS = StormParams()


def lines(spark: SparkSession, folder: Path) -> DataFrame:
    """The lines of a log, not read yet."""
    return read_logs(spark, find_logs([str(folder)]))


def rollup(read: DataFrame) -> DataFrame:
    """Its roll-up, not computed yet."""
    return roll_up(normalise(read))


def rest(spark: SparkSession, rolled: DataFrame) -> int:
    """All that follows a roll-up that is there; returns how many episodes were found."""
    with interpreted(spark):
        return len(find_storms(rolled, PARAMS).collect())


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
