"""Our own records, as JSON Lines and as Parquet.

A field of the wrong type spoils a line only if it matters: if the answer, its time or its seq would be another one
without it (:data:`MATTERS`). Any other is taken for absent. Texts cannot have a wrong type: whatever is there is taken
as text. A line of another version of the record is not guessed at; fields that are not known are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.schema import CORRUPT, log_schema
from tricklecast.trickle.records import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

MATTERS: Final = ("ts_us", "status", "seq", "rseq", "bytes_out", "eos")
"""Numbers and flags without which a line would say something else."""

UNKNOWN_VERSION: Final = "unknown version"
WRONG_TYPE: Final = "wrong type"
"""Stand in the column for broken lines where there is no text of a line to stand there."""

FITTING: Final[dict[str, frozenset[str]]] = {
    "int": frozenset({"int32"}),
    "long": frozenset({"int64", "int32"}),
    "string": frozenset({"string"}),
    "boolean": frozenset({"bool"}),
}
"""Types of Parquet columns, in Arrow's words, that Spark reads as those of the record."""


def read_jsonl(spark: SparkSession, paths: Sequence[str], options: dict[str, str]) -> DataFrame:
    """The lines of our JSON Lines files, one row each, with the columns of the schema.

    Args:
        options: for Spark's reader.
    """
    reader = spark.read.schema(log_schema()).options(**options)
    lines = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", CORRUPT).json(list(paths))
    return lines.withColumn(CORRUPT, _excused())


def read_lines(spark: SparkSession, paths: Sequence[str], *, damaged: bool = False) -> DataFrame:
    """The same, from paths that Spark can read as they are.

    Args:
        damaged: some of the files are cut; read them as far as they go.
    """
    return read_jsonl(spark, paths, {"ignoreCorruptFiles": str(damaged).lower()})


def read_parquet(spark: SparkSession, paths: Sequence[str], options: dict[str, str], *, fits: bool) -> DataFrame:
    """The rows of Parquet files, with the columns of the schema; a column that is missing is null.

    Args:
        options: for Spark's reader.
        fits: the columns that are there have the types of the schema.
    """
    from pyspark.sql import functions as F

    schema = log_schema()
    if fits:
        known = [field for field in schema if field.name != CORRUPT]
        rows = spark.read.schema(type(schema)(known)).options(**options).parquet(*paths)
        broken = F.when(_other_version(), UNKNOWN_VERSION)
        return rows.select(*(field.name for field in known), broken.alias(CORRUPT))
    return _cast(spark.read.options(**options).parquet(*paths))


def _other_version() -> Column:
    from pyspark.sql import functions as F

    return F.col("v") != VERSION


def _excused() -> Column:
    """What is wrong with a line, null if nothing that matters."""
    from pyspark.sql import functions as F

    broken = F.col(CORRUPT)
    # Of what is no JSON object nothing could be read, not even the time.
    lost = F.col("ts_us").isNull()
    for name in MATTERS:
        # Not from_json: it would keep Spark from compiling all of the plan.
        lost |= F.col(name).isNull() & F.get_json_object(broken, f"$.{name}").isNotNull()
    return F.when(broken.isNotNull() & lost, broken).when(_other_version(), UNKNOWN_VERSION)


def _cast(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    types = {field.name.lower(): field.dataType for field in rows.schema}
    columns, lost = [], F.lit(False)
    for field in log_schema():
        if field.name == CORRUPT:
            continue
        given = types.get(field.name.lower())
        value = F.lit(None).cast(field.dataType) if given is None else _as(field.name, given, field.dataType)
        columns.append(value.alias(field.name))
        if given is not None and field.name in MATTERS:
            lost |= F.col(field.name).isNotNull() & value.isNull()
    broken = F.when(lost, WRONG_TYPE)
    return rows.select(*columns, broken.alias("_lost")).select(
        *(field.name for field in log_schema() if field.name != CORRUPT),
        F.coalesce("_lost", F.when(_other_version(), UNKNOWN_VERSION)).alias(CORRUPT),
    )


def _as(name: str, given: DataType, wanted: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        MapType,
        NumericType,
        StringType,
        StructType,
        TimestampType,
        VariantType,
    )

    column = F.col(name)
    if isinstance(given, TimestampType):
        column = F.unix_micros(column)
    elif isinstance(given, (ArrayType, MapType, StructType, VariantType)):
        column = column.cast("string") if isinstance(wanted, StringType) else F.lit(None)
    elif isinstance(given, BinaryType) or not isinstance(given, NumericType):
        column = column.cast("string")
    return column.try_cast(wanted)
