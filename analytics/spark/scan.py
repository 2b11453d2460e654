"""Spark hands out lines and roll-ups; its workers work on them with DuckDB, by the SQL of the embedded engine.

Each worker parses its lines and rolls them up; Spark keeps these partial roll-ups on the executors' disks, or in a
folder. From there rows of one client and channel come together, are merged, and go through the steps that look at one
client and channel; the failures of one channel, and then those of one node, through the steps that look at crowds. The
driver gets stretches and fleets, with a bounded number of pulses, and never the roll-up, whatever the log's size. The
last steps run in the driver.

What workers tell besides (bad lines, damaged files) is rows of the roll-up: a task that runs twice counts once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec

from tricklecast.analytics.errors import BadInput, SparkFailed
from tricklecast.analytics.lines.embedded import Lines, drop_doubles, tally
from tricklecast.analytics.lines.reading import BadLine, Counts, first_samples
from tricklecast.analytics.report import requests
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import MAX_TS_US
from tricklecast.analytics.scan.reduce import ANONYMOUS, CROWD, REPEATED, quoted
from tricklecast.analytics.scan.rollup import KEY, MEASURES, SKETCH, merge_sql, merged_measures, sketch_of
from tricklecast.analytics.spark.lines import Parse, Piece, PieceTally, SparkLines, connect
from tricklecast.analytics.spark.objects import LONGEST, WHOLE

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame

_TYPES: Final = {"named": "BOOLEAN", "bucket_us": "BIGINT"} | {one.name: one.type for one in MEASURES}
_NAMES: Final = (*KEY, *(one.name for one in MEASURES))
_TABLE: Final = ", ".join(f"{name} {_TYPES.get(name, 'VARCHAR')}" for name in _NAMES)
_ROLLUP: Final = _TABLE.replace("VARCHAR", "STRING")
SCHEMA: Final = f"{_ROLLUP}, source STRING, tally STRING"
"""Columns of partial roll-ups, as Spark has them. A row with ``tally`` has no others, and is a :class:`PieceTally`;
``source`` is the file where pieces are of one."""

_SMALL: Final = {"traffic": ("node", "minute_us"), "happened": (), "lived": ("channel",), "quality": ("answer",)}
"""Tables that every partition adds to, and what each row of them is about; without anything, each row is itself."""

_NETWORK: Final = "\x00network"
"""In the column ``event`` of a row that tells of all clients of a network."""

ROWS: Final = 250_000
"""Rows of a roll-up that one task brings together, if they are of many clients: some 300 MB for the rules."""

LEAST_ROWS: Final = 100_000
"""Fewer are no task of their own: a worker takes longer to start than to work on them."""

MAX_PULSES: Final = 200_000
"""Pulses of all stretches that one task sends to the driver: 100,000 clients that loop all day would have thousands of
millions."""

_LEAST_PULSES: Final = 4

MAX_DAMAGED: Final = 20
"""Files in an object store that cannot be read before the run ends: each of them makes Spark read anew."""

_CAUSES: Final = ("Encountered error while reading file ", "Path does not exist: ")
"""Words of Spark before the name of a file that it cannot read."""

_GONE: Final = re.compile(r"FILE_NOT_EXIST|PATH_NOT_FOUND|FileNotFoundException")

_TOGETHER: Final = dict.fromkeys(("first_us", "from_us"), "min") | dict.fromkeys(("last_us", "until_us"), "max")
_FOUND: Final = "name STRING, rows BINARY"

Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True, slots=True)
class Rolled:
    """Partial roll-ups, and what was read.

    Attributes:
        rows: the columns of a roll-up, and ``tally``; rows of one key may be several. size: how many there are.
        lines: what was read. gone: files that could not be read, because they had gone.
        spans: the earliest and the latest time in each file.
        counts, sketches: by source, of lines, and hashes of some ids of requests.
    """

    rows: DataFrame
    size: int
    lines: Lines
    gone: tuple[str, ...]
    spans: dict[str, tuple[int, int]]
    counts: dict[str, Counts]
    sketches: dict[str, set[int]]


def roll_up(
    lines: SparkLines,
    folder: str | None = None,
    *,
    now_us: int,
    latest_us: int = MAX_TS_US,
    generic: bool = False,
    sketched: bool = False,
) -> Rolled:
    """Makes the partial roll-ups of some lines.

    Args:
        folder: a path or URL that does not exist yet, and that all executors can write to and read; ``None`` keeps
            them on the executors' disks, until ``unpersist()``.
        now_us: lines that are later are counted. latest_us: as in :func:`analytics.scan.embedded.roll_up`.
        generic: whether all lines are those of any web server. sketched: whether sketches are made.

    Raises:
        NothingUnderstood: not one line of a log could be read. SparkFailed: too many files cannot be read.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
    from pyspark import StorageLevel
    from pyspark.errors import PySparkException

    work = partial(_roll_up, now_us=now_us, latest_us=latest_us, generic=generic, sketched=sketched)
    failed: set[str] = set()
    tries = 0
    while True:
        rolled = None
        try:
            rolled = lines.mapped(work, SCHEMA)
            if folder is None:
                rolled = rolled.persist(StorageLevel.DISK_ONLY)
            else:
                target = f"{folder}-{tries}" if tries else folder
                rolled.write.parquet(target)
                rolled = lines.spark.read.schema(SCHEMA).parquet(target)
            tallies = _tallies(rolled)
            missing = lines.left_out(tallies)
            long = {name for name, (_, size) in missing.items() if size <= WHOLE}
            if not long:
                tallies += [_left_out(name, some, lines.apart) for name, (some, _) in missing.items()]
                break
            rolled.unpersist()
            tries += 1
            lines = replace(lines, recognised=replace(lines.recognised, whole=lines.recognised.whole | long))
        except (PySparkException, Py4JError) as error:
            name = _unreadable(error, lines)
            if name is None or name in lines.lenient | lines.gone:
                raise
            if rolled is not None:
                rolled.unpersist()
            if name in failed and _GONE.search(str(error)):
                lines = replace(lines, gone=lines.gone | {name})
            elif name in failed:
                lines = replace(lines, lenient=lines.lenient | {name})
            failed.add(name)
            tries += 1
            if len(failed) > MAX_DAMAGED:
                raise SparkFailed(
                    f"more than {MAX_DAMAGED} files cannot be read, {name!r} among them: leave them out"
                ) from error
    gone = tuple(sorted({*lines.gone, *(name for one in tallies for name in one.gone)}))
    if gone and not lines.part and len(gone) == len(lines.recognised.names):
        raise BadInput(f"no executor can read {gone[0]!r}: every machine must see it under this path")
    spans: dict[str, tuple[int, int]] = {}
    for name, (first, last) in chain.from_iterable(one.times.items() for one in tallies):
        known = spans.get(name, (first, last))
        spans[name] = (min(first, known[0]), max(last, known[1]))
    counts, sketches = dict[str, Counts](), dict[str, set[int]]()
    for one in tallies:
        former = counts.get(one.source, Counts())
        samples = first_samples([(0, bad) for bad in (*former.samples, *one.counts.samples)])
        counts[one.source] = replace(former + one.counts, samples=tuple(samples))
        sketches[one.source] = set(sorted(sketches.get(one.source, set()).union(one.sketch))[:SKETCH])
    return Rolled(rolled, sum(one.rows for one in tallies), lines.summed(tallies), gone, spans, counts, sketches)


def _left_out(name: str, missing: int, apart: bool) -> PieceTally:
    """The count of the lines that Spark has left out of an object: as one."""
    sample = BadLine(name, None, "unreadable", f"{missing:,} bytes in lines of more than {LONGEST:,}")
    return PieceTally(Counts(lines=1, bad=1, samples=(sample,)), {}, {name: 1}, source=name if apart else "")


def _unreadable(error: Exception, lines: SparkLines) -> str | None:
    """The file of an object store that Spark could not read, if that is why it failed."""
    for cause in _CAUSES:
        said = str(error).partition(cause)[2].partition("\n")[0]
        forms = (said, unquote(said))
        names = [name for name in lines.recognised.names if any(form.startswith(name) for form in forms if form)]
        if names:
            return max(names, key=len)
    return None


def _roll_up(batches: Batches, parse: Parse, now_us: int, latest_us: int, generic: bool, sketched: bool) -> Batches:
    with connect() as con:
        con.execute(f"CREATE TEMP TABLE partial ({_TABLE}, source VARCHAR, tally VARCHAR)")
        for piece in parse.pieces(con, batches):
            counts, *by_number = tally(con, piece.names, now_us)
            good, bad = ({piece.names[number]: count for number, count in has.items()} for has in by_number)
            relation = embedded.any_server(con) if generic else "line"
            embedded.roll_up(con, relation, latest_us=latest_us)
            source = piece.names[0] if parse.apart and piece.names else ""
            con.execute("INSERT INTO partial BY NAME SELECT *, ? AS source FROM rollup", [source])
            rows = con.execute("SELECT count(*) FROM rollup").fetchall()[0][0]
            times = con.execute(
                "SELECT file, min(ts_us), max(ts_us) FROM parsed_line WHERE bad IS NULL GROUP BY file"
            ).fetchall()
            spans = {piece.names[number]: (first, last) for number, first, last in times}
            sketch = sketch_of(con) if sketched else ()
            one = PieceTally(
                counts, good, bad, tuple(piece.damaged), tuple(piece.gone), piece.taken, rows, spans, source, sketch
            )
            con.execute("INSERT INTO partial (tally) VALUES (?)", [msgspec.json.encode(one).decode()])
        yield from con.table("partial").to_arrow_table().to_batches()


def _tallies(rollup: DataFrame) -> list[PieceTally]:
    """The counts that workers gave besides the rows."""
    rows = rollup.where("tally IS NOT NULL").select("tally").collect()
    return [msgspec.json.decode(row.tally, type=PieceTally) for row in rows]


@contextmanager
def reduce(rollup: DataFrame, size: int, params: Params | None = None) -> Iterator[DuckDBPyConnection]:
    """Runs the steps that executors can run, and brings their results to the driver.

    Args:
        rollup: rows of :func:`roll_up`; size: how many. params: thresholds.

    Yields:
        a database, of bounded memory, with the tables ``stretches`` and ``fleets`` and those of
        :data:`~analytics.scan.reduce.QUERIES` but ``candidate``, for :data:`analytics.rules.engine.TOGETHER`.
    """
    from pyspark.sql import functions as f

    params = params or Params()
    chosen = int(rollup.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    parts = max(-(-size // ROWS), min(chosen, size // LEAST_ROWS + 1))
    rows = rollup.where("answer IS NOT NULL").select(*_NAMES)
    failed = rows.where(f"named AND answer IN ({quoted(CROWD)})")
    by_channel = rows
    if parts > 1:
        # The clients of a network are in all partitions: what it is found guilty of needs a second shuffle.
        networks = failed.repartition(parts, "client", "channel").mapInArrow(_networks, _ROLLUP)
        by_channel = rows.unionAll(networks)
        # A crowd on one path is on many nodes, and goes where its path goes.
        by_path = failed.repartition(parts, f.coalesce("channel", "node"))
        failed = by_path.mapInArrow(partial(_spread, params=params), _ROLLUP)
    steps = (engine.BY_CHANNEL, ("stretches", *_SMALL), parts > 1)
    crowds = (engine.BY_NODE if parts > 1 else (*engine.BY_PATH, *engine.BY_NODE), ("fleets",), parts > 1)
    # One job: most of it is latency where the log is small.
    found = (
        _stepped(by_channel.repartition(parts, "client", "channel"), *steps, params)
        .unionAll(_stepped(failed.repartition(parts, "node"), *crowds, params))
        .toArrow()
    )
    arrived: dict[str, list[bytes]] = {}
    for name, part in zip(found["name"].to_pylist(), found["rows"].to_pylist(), strict=True):
        arrived.setdefault(name, []).append(part)
    with embedded.bounded() as connection:
        _collect(connection, arrived, params)
        yield connection


def _networks(batches: Batches) -> Batches:
    """The rows of networks, as rows of a roll-up that are marked."""
    with _arrived(batches) as con:
        if con is not None:
            con.execute(f"CREATE TEMP TABLE rollup AS {merge_sql('arrived')}")
            marked = f"SELECT * REPLACE ('{_NETWORK}' AS event) FROM ({ANONYMOUS})"
            yield from con.sql(f"SELECT {', '.join(_NAMES)} FROM ({marked})").to_arrow_table().to_batches()


def _spread(batches: Batches, params: Params) -> Batches:
    """The failures of channels, with those of crowds under the names of their paths, and their cures everywhere."""
    with _arrived(batches) as con:
        if con is not None:
            con.execute(f"CREATE TEMP TABLE rollup AS {merge_sql('arrived')}")
            con.execute(f"CREATE TEMP TABLE candidate AS {REPEATED}")
            engine.run(con, params, engine.BY_PATH)
            con.execute("CREATE TEMP TABLE failed AS FROM placed('candidate') WHERE answer <> 'cured'")
            cured = f"""SELECT {", ".join(KEY).replace("node", "f.node")}, {merged_measures()}
                FROM candidate JOIN (SELECT DISTINCT node, client, channel FROM failed) f USING (client, channel)
                WHERE answer = 'cured' GROUP BY {", ".join(KEY).replace("node", "f.node")}"""
            names = ", ".join(_NAMES)
            yield from con.sql(f"SELECT {names} FROM failed UNION ALL {cured}").to_arrow_table().to_batches()


@contextmanager
def _arrived(batches: Batches) -> Iterator[DuckDBPyConnection | None]:
    """A database with the view ``arrived`` of the rows of a partition; ``None`` if there are none."""
    import pyarrow as pa

    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        yield None
        return
    with connect() as con:
        # DuckDB takes one batch after the other: the rows of a partition are never in memory as they came.
        con.register("arrived", pa.RecordBatchReader.from_batches(first.schema, chain((first,), batches)))
        yield con


def _stepped(rows: DataFrame, steps: Sequence[str], results: Sequence[str], apart: bool, params: Params) -> DataFrame:
    """Results of some steps over each partition of a roll-up: a table's name and rows, packed by Arrow."""
    work = partial(_packed, steps=tuple(steps), results=tuple(results), apart=apart, params=params)
    return rows.mapInArrow(work, _FOUND)


def _packed(batches: Batches, steps: tuple[str, ...], results: tuple[str, ...], apart: bool, params: Params) -> Batches:
    with _arrived(batches) as con:
        if con is None:
            return
        found = run_steps(con, "arrived", steps, results, params, apart=apart)
        for name, table in found.items():
            # Not by Arrow's own means: they import pandas, which takes longer than all of this.
            packed = con.sql("SELECT ?::VARCHAR AS name, ?::BLOB AS rows", params=[name, _pack(table)])
            yield from packed.to_arrow_table().to_batches()


def run_steps(
    con: DuckDBPyConnection,
    rows: str,
    steps: Sequence[str],
    results: Sequence[str],
    params: Params,
    *,
    apart: bool = False,
) -> dict[str, pa.Table]:
    """Runs steps over partial roll-ups in which all rows of a key are; what a worker does.

    Args: apart: they are a part of the log. Rows of networks are among them, those of :func:`_networks`, or crowds are
        found already, by :func:`_spread`.
    """
    con.execute(f"CREATE TEMP TABLE rollup AS {merge_sql(rows)}")
    if apart:
        con.execute(
            f"CREATE TEMP TABLE repeated AS SELECT * REPLACE (nullif(event, '{_NETWORK}') AS event) FROM ({REPEATED})"
        )
        con.execute(f"DELETE FROM rollup WHERE event = '{_NETWORK}'")
    embedded.reduce(con)
    if apart:
        con.execute("CREATE OR REPLACE TEMP TABLE candidate AS FROM repeated")
        con.execute(
            "CREATE TEMP TABLE spread AS SELECT answer, node, client, channel, first_us, last_us FROM candidate LIMIT 0"
        )
        if "fleets" in steps:
            # Each node has its copy of what helped a client anywhere.
            con.execute("""DELETE FROM candidate WHERE rowid NOT IN (SELECT min(rowid) FROM candidate
                GROUP BY client, channel, bucket_us, CASE WHEN answer <> 'cured' THEN rowid END)""")
    engine.run(con, params, steps)
    return {name: con.sql(_bounded(con, name)).to_arrow_table() for name in results}


def _bounded(con: DuckDBPyConnection, name: str) -> str:
    """The rows of a table, with no more than :data:`MAX_PULSES` pulses in all.

    A storm of a few minutes keeps every pulse. Where there are too many, the longest stretches tell theirs in fewer
    and longer ones: the sum is the same, and the peak of a second becomes the mean of a longer time.
    """
    if name not in ("stretches", "fleets"):
        return f"FROM {name}"
    rows, pulses, longest = con.execute(f"SELECT count(*), sum(len(pulse)), max(len(pulse)) FROM {name}").fetchall()[0]
    most = max(_LEAST_PULSES, MAX_PULSES // max(1, rows))
    if (pulses or 0) <= MAX_PULSES or longest <= most:
        return f"FROM {name}"
    share = f"pulse[1 + i * len(pulse) // {most} : (i + 1) * len(pulse) // {most}]"
    merged = (
        f"{{'from_us': {share}[1].from_us, 'until_us': {share}[-1].until_us, 'n': list_sum([p.n FOR p IN {share}])}}"
    )
    fewer = f"[{merged} FOR i IN range({most})]"
    return f"SELECT * REPLACE (CASE WHEN len(pulse) > {most} THEN {fewer} ELSE pulse END AS pulse) FROM {name}"


def _pack(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _collect(connection: DuckDBPyConnection, arrived: dict[str, list[bytes]], params: Params) -> None:
    """Makes the tables of all partitions together."""
    import pyarrow as pa

    tables = {name: [pa.ipc.open_stream(part).read_all() for part in parts] for name, parts in arrived.items()}
    if missing := {"stretches", "fleets", *_SMALL}.difference(tables):
        # No partition had rows for them: only the steps know their columns.
        with connect() as con:
            con.execute(f"CREATE TEMP TABLE nothing ({_TABLE})")
            steps = (*engine.BY_CHANNEL, *engine.BY_PATH, *engine.BY_NODE)
            empty = run_steps(con, "nothing", steps, tuple(missing), params)
        tables |= {name: [table] for name, table in empty.items()}
    for name, parts in tables.items():
        connection.register("arrived", pa.concat_tables(parts))
        query = _together(parts[0].column_names, _SMALL[name]) if name in _SMALL else "FROM arrived"
        connection.execute(f"CREATE TEMP TABLE {name} AS {query}")
        connection.unregister("arrived")


def _together(columns: Sequence[str], key: Sequence[str]) -> str:
    """Adds up the rows of all partitions about the same."""
    if not key:
        return "SELECT DISTINCT * FROM arrived"
    values = (
        name
        if name in key
        else f"{'bit_or' if name == 'slots' else _TOGETHER.get(name, 'sum')}({name})::BIGINT AS {name}"
        for name in columns
    )
    return f"SELECT {', '.join(values)} FROM arrived GROUP BY {', '.join(key)}"


# --- for a stream


LEFT_OUT: Final = "left out"
"""The answer of a row that says how many lines were left out (:func:`brought`)."""


def brought(rollup: DataFrame, size: int, most: int) -> tuple[pa.Table, int]:
    """The rows of a roll-up, brought to the driver, and how many lines were left out.

    Where there are too many rows, those that cannot be a storm are added up by server, channel and minute; where there
    are still too many, those of the fewest lines are left out, but no events.

    Args:
        rollup: rows of :func:`roll_up`; size: their number. most: the number of rows that come to the driver at most.
    """
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    rows = rollup.where("answer IS NOT NULL").select(*_NAMES)
    if size <= most:
        return rows.toArrow(), 0
    parts = -(-size // ROWS)
    fewer = partial(_fewer, most=max(1, most // parts))
    table = rows.repartition(parts, "client", "channel").mapInArrow(fewer, _ROLLUP).toArrow()
    left_out = pc.equal(table.column("answer"), LEFT_OUT)
    return table.filter(pc.invert(left_out)), pc.sum(table.filter(left_out).column("n")).as_py() or 0


def _fewer(batches: Batches, most: int) -> Batches:
    with _arrived(batches) as con:
        if con is None:
            return
        con.execute(f"CREATE TEMP TABLE rollup AS SELECT *, row_number() OVER () AS id FROM ({merge_sql('arrived')})")
        key = "answer, node, channel, NULL, false, NULL, bucket_us - bucket_us % 60000000"
        con.execute(
            f"""CREATE TEMP TABLE fewer AS
            WITH whole AS (SELECT id FROM ({REPEATED}) UNION ALL SELECT id FROM rollup WHERE answer = 'event'),
            rows AS (
                SELECT {", ".join(_NAMES)} FROM rollup SEMI JOIN whole USING (id)
                UNION ALL
                SELECT {key}, {merged_measures()} FROM rollup ANTI JOIN whole USING (id)
                GROUP BY answer, node, channel, bucket_us - bucket_us % 60000000
            )
            SELECT *, row_number() OVER (ORDER BY answer = 'event' DESC, client IS NOT NULL DESC, n DESC) AS place
            FROM rows"""
        )
        rows = con.sql(
            f"""SELECT {", ".join(_NAMES)} FROM fewer WHERE place <= {most}
            UNION ALL BY NAME
            SELECT '{LEFT_OUT}' AS answer, CAST(sum(n) AS BIGINT) AS n FROM fewer
            WHERE place > {most} AND answer <> 'cured'"""
        )
        yield from rows.to_arrow_table().to_batches()


# --- back to the lines of incidents

MAX_ROWS: Final = 50_000
"""Values of the requests of all incidents that the driver gets, the commonest first; it asks for those of 200."""


def own(lines: SparkLines, member: pa.Table, generic: bool) -> list[requests.Row]:
    """The values of the requests of incidents (:func:`analytics.report.requests.own_sql`).

    Args:
        lines: those of their time. member: as of :func:`analytics.report.requests.find`.
    """
    from pyspark.sql import functions as f

    columns = "incident LONG, kind STRING, name STRING, requests LONG, clients ARRAY<LONG>"
    work = partial(_asked, lambda con, piece: requests.own_sql(), member=member, generic=generic)
    rows = lines.mapped(work, columns)
    clients = f.array_sort(f.array_distinct(f.flatten(f.collect_list("clients"))))
    found = rows.groupBy("incident", "kind", "name").agg(
        f.sum("requests").alias("requests"), f.slice(clients, 1, requests.CLIENTS).alias("clients")
    )
    often = found.where(f"requests >= {requests.LEAST}").orderBy(f.desc("requests"), "incident", "kind", "name")
    return [tuple(row) for row in often.limit(MAX_ROWS).collect()]


def counted(lines: SparkLines, wanted: requests.Wanted) -> list[tuple[int, str, str | None, int]]:
    """How many requests have some values (:func:`analytics.report.requests.count_sql`)."""
    columns = "incident LONG, kind STRING, name STRING, n LONG"
    rows = lines.mapped(partial(_asked, lambda con, piece: requests.count_sql(con, tuple(wanted))), columns)
    return [tuple(row) for row in rows.groupBy("incident", "kind", "name").sum("n").collect()]


def chosen(lines: SparkLines, member: pa.Table, generic: bool) -> Iterator[dict[str, object]]:
    """All lines of an incident, in the order of time, a part of them at a time."""
    kinds = {"VARCHAR": "STRING"}
    columns = ", ".join(f"{name} {kinds.get(kind, kind)}" for name, kind in requests.EVERY_COLUMNS)
    work = partial(_asked, lambda con, piece: requests.every_sql(con, piece.names), member=member, generic=generic)
    rows = lines.mapped(work, columns)
    return (row.asDict() for row in rows.orderBy("ts_us", "file", "no").toLocalIterator())


def _asked(
    sql: Callable[[DuckDBPyConnection, Piece], str],
    batches: Batches,
    parse: Parse,
    member: pa.Table | None = None,
    generic: bool = False,
) -> Batches:
    """The rows that a query gives over each piece; with ``member`` over the requests of incidents in it."""
    with connect() as con:
        for piece in parse.pieces(con, batches):
            if parse.form is None:
                # Requests of one id were brought together to be told once.
                drop_doubles(con)
            if member is not None:
                requests.find(con, member, generic)
            yield from con.sql(sql(con, piece)).to_arrow_table().to_batches()
