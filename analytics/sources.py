"""Reads the files of a log: one row per line, with the columns of :func:`analytics.schema.log_schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analytics.schema import CORRUPT, log_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession


def read_lines(spark: SparkSession, paths: Sequence[str], *, damaged: bool = False) -> DataFrame:
    """The lines of JSON Lines files, one row each.

    Args:
        paths: what :func:`analytics.inputs.readable_paths` gave.
        damaged: some of the files are cut; read them as far as they go.
    """
    reader = spark.read.schema(log_schema()).option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", CORRUPT)
    return reader.option("ignoreCorruptFiles", str(damaged).lower()).json(list(paths))
