"""The Parquet tables: what Spark, DuckDB and others read back is what the report says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.analytics.support.sample_report import hostile_report, quiet_report, sample_report
from tricklecast.analytics.report_old.json_report import as_dict
from tricklecast.analytics.report_old.parquet import EPISODES_DDL, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_episodes_and_rollup(spark: SparkSession, tmp_path: Path) -> None:
    """Columns as in report.json, a row per episode; the roll-up as it was."""
    report = sample_report()
    write_parquet(spark, report, spark.range(3), str(tmp_path / "out"))
    episodes = spark.read.parquet(str(tmp_path / "out" / "episodes"))
    assert [row.asDict(recursive=True) for row in episodes.collect()] == as_dict(report)["episodes"]
    assert spark.read.parquet(str(tmp_path / "out" / "rollup")).count() == 3


def test_no_episodes_are_a_table_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Its columns are there, so that a query over many days does not fail on a good one."""
    write_parquet(spark, quiet_report(), spark.range(0), str(tmp_path / "out"))
    episodes = spark.read.parquet(str(tmp_path / "out" / "episodes"))
    assert episodes.count() == 0
    assert episodes.schema.simpleString() == spark.createDataFrame([], EPISODES_DDL).schema.simpleString()


def test_hostile_names(spark: SparkSession, tmp_path: Path) -> None:
    """Names that are no UTF-8, or no text at all, are written as far as they can be."""
    write_parquet(spark, hostile_report(), spark.range(0), str(tmp_path / "out"))
    rows = spark.read.parquet(str(tmp_path / "out" / "episodes")).select("node").collect()
    assert "<script>document.title='pwned'</script>" in {row["node"] for row in rows}
    assert len(rows) == hostile_report().n_episodes
