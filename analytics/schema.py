"""The Spark schema of an access log, derived from the one definition in :mod:`trickle.records`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.trickle.records import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CORRUPT: Final = "_corrupt_record"
"""Where Spark puts a line that is no record, or whose fields have the wrong types."""

EXPECTED: Final = ("node", "client", "release", "channel", "op", "rseq", "next_seq", "bytes_out", "dur_us", "conn")
"""Fields that some exchange of a log should have. One that never occurs is reported: it blinds the report."""


def log_schema() -> StructType:
    """The schema of a line of the access log, with the column for lines that do not follow it."""
    from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StringType, StructField, StructType

    types: dict[str, DataType] = {
        "int": IntegerType(),
        "long": LongType(),
        "string": StringType(),
        "boolean": BooleanType(),
    }
    known = [StructField(name, types[kind], nullable=True) for name, kind in SCHEMA]
    return StructType([*known, StructField(CORRUPT, StringType(), nullable=True)])
