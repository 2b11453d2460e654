"""What nothing can undercut: an aggregate over the columns that the report reads, without any report.

Run as a process of its own: ``python -m benchmarks.storm.bare duckdb|spark FOLDER``.
"""

from __future__ import annotations

import sys
from typing import Final

from tricklecast.analytics.scan.normalise import COLUMNS

READ: Final = {name: kind for name, kind in COLUMNS.items() if name not in ("request", "blind")}
"""The columns of the server's own log, with their types."""


def duckdb_aggregate(folder: str) -> int:
    """Reads every column with DuckDB; gives the number of lines."""
    import duckdb

    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in READ.items())
    source = f"read_json('{folder}/*.jsonl', format = 'newline_delimited', columns = {{{columns}}})"
    with duckdb.connect() as connection:
        every = ", ".join(f"max({name})" for name in READ)
        (row,) = connection.execute(f"SELECT count(*), {every} FROM {source}").fetchall()
    return int(row[0])


def spark_aggregate(folder: str) -> int:
    """Starts a Spark session and reads every column in one job; gives the number of lines."""
    from pyspark.sql import SparkSession

    from tricklecast.analytics.spark.session import DRIVER_MEMORY

    builder = SparkSession.Builder().master("local[*]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", DRIVER_MEMORY).getOrCreate()
    schema = ", ".join(f"{name} {kind.replace('VARCHAR', 'STRING')}" for name, kind in READ.items())
    read = spark.read.schema(schema).json(folder)
    row = read.selectExpr("count(*)", *(f"max({name})" for name in READ)).collect()[0]
    spark.stop()
    return int(row[0])


if __name__ == "__main__":
    print({"duckdb": duckdb_aggregate, "spark": spark_aggregate}[sys.argv[1]](sys.argv[2]))
