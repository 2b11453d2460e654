"""The report as Parquet, for whoever asks further: ``episodes``, a row each, and the ``rollup`` it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report_old.json_report import episode_dict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.report_old.model import Report

EPISODES_DDL: Final = """
    id string, class string, severity string, start_us bigint, end_us bigint, n bigint, hits bigint,
    clients array<string>, n_clients bigint, channels array<string>, n_channels bigint, node string, release string,
    seq_lo bigint, seq_hi bigint, head bigint, trigger string, trigger_us bigint, outlived_trigger_s double,
    peak_rps double, backoff string,
    rhythm struct<gaps: bigint, median_ms: double, cv: double, growth: double>,
    retry_after string, outcome string,
    blast struct<healthy_clients: bigint, p95_wait_ms: double, p95_before_ms: double, ratio: double>,
    sparkline struct<start_us: bigint, step_us: bigint, counts: array<bigint>>,
    bytes_out bigint, handler_s double, cause string, advice string
"""
"""Names and types of the columns: those of ``episodes`` in ``report.json``, in the same order."""


def write_parquet(spark: SparkSession, report: Report, rollup: DataFrame, folder: str) -> None:
    """Writes the tables ``episodes`` and ``rollup`` below a folder that does not have them yet.

    Args:
        folder: a path or URI that Spark can write.
    """
    episodes = spark.createDataFrame([_row(episode_dict(episode)) for episode in report.episodes], EPISODES_DDL)
    episodes.coalesce(1).write.parquet(f"{folder}/episodes")
    rollup.write.parquet(f"{folder}/rollup")


def _row(fields: dict[str, object]) -> tuple[object, ...]:
    return tuple(_encodable(value) for value in fields.values())


def _encodable(value: object) -> object:
    """Half a surrogate pair, as hostile JSON can have it, has no place in UTF-8."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():
            return [_encodable(inner) for inner in value]
        case dict():
            return tuple(_encodable(inner) for inner in value.values())
    return value
