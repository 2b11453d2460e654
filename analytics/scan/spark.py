"""Spark reads the lines, adds them up and reduces them with the same expressions as the embedded engine.

The roll-up is written once, to a folder that every executor can read, and read from there. The steps that look at one
client and channel, or at one node, then run in the executors, each on a DuckDB of its own, over Arrow: the driver gets
stretches and fleets, and never the roll-up, whatever the log's size. The last steps run in the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import COLUMNS, MAX_TS_US, for_spark, line_sql, normalise_sql
from tricklecast.analytics.scan.reduce import FAILURES, QUERIES, quoted
from tricklecast.analytics.scan.rollup import KEY, MEASURES, roll_up_sql

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

_TYPES: Final = {"answer": "VARCHAR", "named": "BOOLEAN", "bucket_us": "BIGINT", "distinct_seqs": "BIGINT"}
_SMALL: Final = ("traffic", "happened", "lived", "quality")

Batches = Iterator["pa.RecordBatch"]


def read_jsonl(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Our own access logs as lines; what is no record is a row of nulls."""
    fields = ", ".join(
        f"{name} {for_spark(kind)}" for name, kind in COLUMNS.items() if name not in ("request", "blind")
    )
    return spark.read.schema(fields).json(list(paths)).selectExpr("*", "'' AS blind")


def roll_up(lines: DataFrame, folder: str, *, latest_us: int = MAX_TS_US) -> DataFrame:
    """Writes the roll-up of some lines.

    Args:
        lines: columns as :data:`~analytics.scan.normalise.COLUMNS`; those that they lack are null.
        folder: a path or URL that does not exist yet, and that all executors can write to and read.
        latest_us: as in :func:`analytics.scan.embedded.roll_up`.

    Returns:
        the roll-up as it was written.
    """
    spark = lines.sparkSession
    # Names of its own: the views of a session belong to the user.
    shaped = spark.sql(for_spark(line_sql("{lines}", set(lines.columns))), lines=lines)
    rows = for_spark(normalise_sql(latest_us)).replace("FROM line\n", "FROM {line} line\n")
    rolled = spark.sql(for_spark(roll_up_sql(f"({rows}) rows_")), line=shaped)
    rolled.write.parquet(folder)
    return spark.read.schema(rolled.schema).parquet(folder)


def reduce(rollup: DataFrame, params: Params | None = None) -> DuckDBPyConnection:
    """Runs the steps that executors can run, and brings their results to the driver.

    Args:
        rollup: :func:`roll_up`. params: thresholds.

    Returns:
        a database with the tables ``stretches`` and ``fleets`` and those of
        :data:`~analytics.scan.reduce.QUERIES` but ``candidate``, for :data:`analytics.rules.engine.TOGETHER`.
    """
    params = params or Params()
    spark = rollup.sparkSession

    def query(name: str) -> DataFrame:
        return spark.sql(for_spark(QUERIES[name].replace("FROM rollup", "FROM {rollup}")), rollup=rollup)

    candidate = query("candidate")
    failed = candidate.where(f"named AND answer IN ({quoted(FAILURES)})")
    found = {
        "stretches": _stepped(candidate.repartition("client", "channel"), engine.BY_CHANNEL, "stretches", params),
        "fleets": _stepped(failed.repartition("node"), engine.BY_NODE, "fleets", params),
    } | {name: query(name) for name in _SMALL}
    # At the same time: most of each is the latency of small jobs.
    with ThreadPoolExecutor(len(found)) as pool:
        arrived = dict(zip(found, pool.map(lambda rows: rows.toArrow(), found.values()), strict=True))
    connection = embedded.connect()
    for name, rows in arrived.items():
        connection.register("arrived", rows)
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM arrived")
        connection.unregister("arrived")
    return connection


def _stepped(rows: DataFrame, steps: Sequence[str], result: str, params: Params) -> DataFrame:
    """The result of some steps over each partition of candidates."""
    schema = ", ".join(f"{name} {_spark_type(kind)}" for name, kind in _shape(steps, result))
    return rows.mapInArrow(partial(run_steps, steps=tuple(steps), result=result, params=params), schema)


def run_steps(batches: Iterable[pa.RecordBatch], steps: tuple[str, ...], result: str, params: Params) -> Batches:
    """Runs steps over the candidates of one partition; what an executor does."""
    import pyarrow as pa

    kept = [batch for batch in batches if batch.num_rows]
    if not kept:
        return
    with embedded.connect() as connection:
        # Spark runs as many of these at a time as it has cores.
        connection.execute("SET threads = 1")
        connection.register("arrived", pa.Table.from_batches(kept))
        connection.execute("CREATE TEMP TABLE candidate AS SELECT * FROM arrived")
        engine.run(connection, params, steps)
        found: pa.Table = connection.sql(f"SELECT * FROM {result}").to_arrow_table()
        yield from found.to_batches()


def _shape(steps: Sequence[str], result: str) -> list[tuple[str, str]]:
    """Names and DuckDB's types of the columns that steps make."""
    types = _TYPES | {one.name: one.type for one in MEASURES}
    columns = (*KEY, *(one.name for one in MEASURES), "distinct_seqs")
    with embedded.connect() as connection:
        shape = ", ".join(f"{name} {types.get(name, 'VARCHAR')}" for name in columns)
        connection.execute(f"CREATE TEMP TABLE candidate ({shape})")
        engine.run(connection, None, steps)
        return [(row[0], row[1]) for row in connection.execute(f"DESCRIBE {result}").fetchall()]


def _spark_type(kind: str) -> str:
    """Spark's name of a type of DuckDB's."""
    if kind.endswith("[]"):
        return f"ARRAY<{_spark_type(kind[:-2])}>"
    if kind.startswith("STRUCT("):
        fields = (part.split(" ") for part in kind[len("STRUCT(") : -1].replace('"', "").split(", "))
        return f"STRUCT<{', '.join(f'{name}: {_spark_type(of)}' for name, of in fields)}>"
    return re.sub(r"^VARCHAR$", "STRING", kind)
