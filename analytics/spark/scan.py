"""Spark hands out lines and roll-ups; its executors work on them with DuckDB, by the SQL of the embedded engine.

Each executor parses its lines and rolls them up, and Spark writes these partial roll-ups once, to a folder that every
executor can read. From there rows of one client and channel come together, are merged, and go through the steps that
look at one client and channel; the failures of one node through those that look at one node. The driver gets stretches
and fleets, and never the roll-up, whatever the log's size. The last steps run in the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from tricklecast.analytics.lines.embedded import tally
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import MAX_TS_US
from tricklecast.analytics.scan.reduce import FAILURES, quoted
from tricklecast.analytics.scan.rollup import KEY, MEASURES, merge_sql
from tricklecast.analytics.spark.lines import Parse, SparkLines, Told, connect

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame

_TYPES: Final = {"named": "BOOLEAN", "bucket_us": "BIGINT"} | {one.name: one.type for one in MEASURES}
_NAMES: Final = (*KEY, *(one.name for one in MEASURES))
_TABLE: Final = ", ".join(f"{name} {_TYPES.get(name, 'VARCHAR')}" for name in _NAMES)
SCHEMA: Final = f"{_TABLE}, told VARCHAR".replace("VARCHAR", "STRING")
"""Columns of partial roll-ups, as Spark has them. A row with ``told`` has no others: it is a :class:`Told`."""

_SMALL: Final = {"traffic": ("node", "minute_us"), "happened": (), "lived": ("channel",), "quality": ("answer",)}
"""Tables that every partition adds to, and what each row of them is about; without anything, each row is itself."""

_LEAST: Final = ("first_us", "from_us")
_LATEST: Final = ("last_us", "until_us")
_FOUND: Final = "name STRING, rows BINARY"

Batches = Iterator["pa.RecordBatch"]


def roll_up(
    lines: SparkLines, folder: str, *, now_us: int, latest_us: int = MAX_TS_US, generic: bool = False
) -> DataFrame:
    """Writes the partial roll-ups of some lines.

    Args:
        folder: a path or URL that does not exist yet, and that all executors can write to and read.
        now_us: lines that are later are counted. latest_us: as in :func:`analytics.scan.embedded.roll_up`.
        generic: whether all lines are those of any web server.

    Returns:
        what was written: the columns of a roll-up, and ``told``. Rows of one key may be several.
    """
    work = partial(_roll_up, now_us=now_us, latest_us=latest_us, generic=generic)
    rolled = lines.mapped(work, SCHEMA)
    rolled.write.parquet(folder)
    return rolled.sparkSession.read.schema(SCHEMA).parquet(folder)


def _roll_up(batches: Batches, parse: Parse, now_us: int, latest_us: int, generic: bool) -> Batches:
    with connect() as con:
        con.execute(f"CREATE TEMP TABLE partial ({_TABLE}, told VARCHAR)")
        for _ in parse.tables(con, batches):
            files = con.execute("SELECT coalesce(max(file), 0) FROM parsed_line").fetchall()[0][0] + 1
            told = Told(*tally(con, [str(number) for number in range(files)], now_us))
            relation = embedded.any_server(con) if generic else "line"
            embedded.roll_up(con, relation, latest_us=latest_us)
            con.execute("INSERT INTO partial BY NAME FROM rollup")
            con.execute("INSERT INTO partial (told) VALUES (?)", [msgspec.json.encode(told).decode()])
        yield from con.table("partial").to_arrow_table().to_batches()


def told(rollup: DataFrame) -> list[Told]:
    """What executors told besides the rows."""
    return _decoded(row.told for row in rollup.where("told IS NOT NULL").select("told").collect())


def _decoded(texts: Iterable[str | bytes]) -> list[Told]:
    return [msgspec.json.decode(text, type=Told) for text in texts]


def reduce(rollup: DataFrame, params: Params | None = None) -> tuple[DuckDBPyConnection, list[Told]]:
    """Runs the steps that executors can run, and brings their results to the driver.

    Args:
        rollup: rows of :func:`roll_up`. params: thresholds.

    Returns:
        a database with the tables ``stretches`` and ``fleets`` and those of
        :data:`~analytics.scan.reduce.QUERIES` but ``candidate``, for :data:`analytics.rules.engine.TOGETHER`; and what
        executors told.
    """
    params = params or Params()
    rows = rollup.where("answer IS NOT NULL").select(*_NAMES)
    failed = rows.where(f"named AND answer IN ({quoted(FAILURES)})")
    # One job: most of it is latency where the log is small.
    jobs = [
        _stepped(rows.repartition("client", "channel"), engine.BY_CHANNEL, ("stretches", *_SMALL), params),
        _stepped(failed.repartition("node"), engine.BY_NODE, ("fleets",), params),
        rollup.where("told IS NOT NULL").selectExpr("'told' AS name", "CAST(told AS BINARY) AS rows"),
    ]
    found = jobs[0].unionAll(jobs[1]).unionAll(jobs[2]).toArrow()
    arrived: dict[str, list[bytes]] = {}
    for name, part in zip(found["name"].to_pylist(), found["rows"].to_pylist(), strict=True):
        arrived.setdefault(name, []).append(part)
    return _collected(arrived, params), _decoded(arrived.get("told", ()))


def _stepped(rows: DataFrame, steps: Sequence[str], results: Sequence[str], params: Params) -> DataFrame:
    """Results of some steps over each partition of a roll-up: a table's name and rows, packed by Arrow."""
    return rows.mapInArrow(partial(_packed, steps=tuple(steps), results=tuple(results), params=params), _FOUND)


def _packed(batches: Batches, steps: tuple[str, ...], results: tuple[str, ...], params: Params) -> Batches:
    import pyarrow as pa

    kept = [batch for batch in batches if batch.num_rows]
    if kept:
        with connect() as con:
            con.register("arrived", pa.Table.from_batches(kept))
            found = run_steps(con, "arrived", steps, results, params)
            for name, table in found.items():
                # Not by Arrow's own means: they import pandas, which takes longer than all of this.
                packed = con.sql("SELECT ?::VARCHAR AS name, ?::BLOB AS rows", params=[name, _pack(table)])
                yield from packed.to_arrow_table().to_batches()


def run_steps(
    con: DuckDBPyConnection, rows: str, steps: Sequence[str], results: Sequence[str], params: Params
) -> dict[str, pa.Table]:
    """Runs steps over partial roll-ups in which all rows of a key are; what an executor does."""
    con.execute(f"CREATE TEMP TABLE rollup AS {merge_sql(rows)}")
    embedded.reduce(con)
    engine.run(con, params, steps)
    return {name: con.table(name).to_arrow_table() for name in results}


def _pack(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _collected(arrived: dict[str, list[bytes]], params: Params) -> DuckDBPyConnection:
    """The tables of all partitions together."""
    import pyarrow as pa

    with connect() as con:
        con.execute(f"CREATE TEMP TABLE nothing ({_TABLE})")
        steps = (*engine.BY_CHANNEL, *engine.BY_NODE)
        empty = run_steps(con, "nothing", steps, ("stretches", "fleets", *_SMALL), params)
    connection = embedded.connect()
    for name, none in empty.items():
        parts = [none, *(pa.ipc.open_stream(part).read_all() for part in arrived.get(name, ()))]
        connection.register("arrived", pa.concat_tables(parts))
        query = _together(none.column_names, _SMALL[name]) if name in _SMALL else "FROM arrived"
        connection.execute(f"CREATE TEMP TABLE {name} AS {query}")
        connection.unregister("arrived")
    return connection


def _together(columns: Sequence[str], key: Sequence[str]) -> str:
    """Adds up the rows of all partitions about the same."""
    if not key:
        return "SELECT DISTINCT * FROM arrived"
    values = (
        name
        if name in key
        else f"{'min' if name in _LEAST else 'max' if name in _LATEST else 'sum'}({name})::BIGINT AS {name}"
        for name in columns
    )
    return f"SELECT {', '.join(values)} FROM arrived GROUP BY {', '.join(key)}"
