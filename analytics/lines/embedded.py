"""Lines in DuckDB: files, or a chunk of lines at a time, to the table ``parsed_line`` and the view ``line``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.dialect import text
from tricklecast.analytics.lines.files import (
    LineReader,
    LogFiles,
    Span,
    line_batch,
    line_schema,
    packed,
)
from tricklecast.analytics.lines.reading import (
    MAX_SAMPLES,
    BadLine,
    Counts,
    Reading,
    Recognised,
    check_understood,
    node_sql,
    parquet_values,
    recognise_files,
    selected,
)
from tricklecast.analytics.lines.recognise import PARQUET, Format
from tricklecast.analytics.lines.records import DETAILS, OTHER, PARSED, parsed, view
from tricklecast.analytics.lines.wrapping import Unwrapper

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

_RAW: Final = "SELECT file, no, line FROM raw_line"


@dataclass(frozen=True, slots=True)
class Lines:
    """The result of reading into a connection, where ``line`` is a view of the lines that are good.

    Attributes:
        recognised: files and formats. counts: of their lines. damaged: files that ended early.
        good, bad: number of such lines by the file's number.
    """

    recognised: Recognised
    counts: Counts
    damaged: tuple[str, ...] = ()
    good: dict[int, int] = field(default_factory=dict)
    bad: dict[int, int] = field(default_factory=dict)


def read_lines(
    con: duckdb.DuckDBPyConnection,
    files: LogFiles,
    reading: Reading | None = None,
    now_us: int | None = None,
    part: bool = False,
    progress: Callable[[int], object] = lambda taken: None,
    spans: Mapping[str, Span] | None = None,
) -> Lines:
    """Reads files into the temporary table ``parsed_line``, and makes the view ``line`` of the good lines in it.

    Args:
        con: where; a table and a view of these names are replaced.
        now_us: what is later is in the future, microseconds since 1970.
        part: these are some files of a report, which checks whether anything was understood.
        progress: is told how many bytes of the files have been read since it was told last.
        spans: the part of a file that is read; all of those without one.

    Raises:
        BadInput: the format of a file cannot be told, nothing of it was understood, or it cannot be read.
        BadFormat: as of :meth:`Reading.check`.
    """
    reading, spans = reading or Reading(), spans or {}
    if files.remote:
        raise BadInput(f"only Spark reads {files.remote[0]!r}: pass --engine spark")
    recognised = recognise_files(files, reading, part=part)
    empty_table(con, details=reading.details)
    node = node_sql(recognised.names)
    damaged: list[str] = []
    for form, numbers in recognised.groups():
        if form.name == PARQUET:
            for number in numbers:
                insert_parquet(con, form, number, recognised.names[number], reading)
            continue
        select = selected(form, reading, _RAW, node)
        unfinished: list[tuple[int, int]] = []
        names = ((number, recognised.names[number]) for number in numbers)
        readers = ((number, LineReader(name, spans.get(name, (0, None)))) for number, name in names)
        _insert(con, select, _batches(readers, form.wrapping, damaged, unfinished, progress))
        drop_unfinished(con, unfinished)
    counts, good, bad = tally(con, recognised.names, time.time_ns() // 1000 if now_us is None else now_us)
    if not part:
        check_understood(recognised, files.searched, good, bad, reading.window, counts.samples)
    return Lines(recognised, counts, tuple(damaged), good, bad)


def empty_table(con: duckdb.DuckDBPyConnection, *, details: bool = False) -> None:
    """Makes the table ``parsed_line``, without a line, and the view ``line`` of the good ones in it."""
    columns = ", ".join(f'"{name}" {kind}' for name, kind in (*PARSED, *(DETAILS if details else ())))
    con.execute(f"CREATE OR REPLACE TEMP TABLE parsed_line ({columns})")
    con.execute(f"CREATE OR REPLACE TEMP VIEW line AS {view()}")


def drop_unfinished(con: duckdb.DuckDBPyConnection, unfinished: Sequence[tuple[int, int]]) -> None:
    """Drops lines without an end, given as file and number, that cannot be read: they are still being written."""
    for number, no in unfinished:
        con.execute("DELETE FROM parsed_line WHERE file = ? AND no = ? AND bad IS NOT NULL", [number, no])


class ChunkReader:
    """Lines of one format, a chunk at a time, as they are added to a log."""

    def __init__(
        self, con: duckdb.DuckDBPyConnection, form: Format, reading: Reading | None = None, node: str | None = None
    ) -> None:
        """Prepare the SQL.

        Args:
            con: runs it; form: as of :func:`~tricklecast.analytics.lines.recognise.recognise`.
            node: the server of lines that do not name one.
        """
        self._con = con
        select = selected(form, reading or Reading(), _RAW, node and text(node))
        self._sql = f"{select} ORDER BY no"
        self._unwrapper = Unwrapper(form.wrapping)

    def read(self, lines: Sequence[bytes], file: int = 0, no: int = 1) -> pa.Table:
        """Lines as a table with the columns of ``line`` and ``file``, ``no``, ``bad``, ``text``, in their order.

        Bad lines are in it, with ``bad`` set; blank ones are not.

        Args:
            lines: without their ends; none has a line's end in it.
            file, no: what the columns begin at.
        """
        import pyarrow as pa

        block = self._unwrapper.feed(b"".join(line[: 1 << 21] + b"\n" for line in lines))
        self._con.register("raw_line", pa.Table.from_batches([line_batch(block, file, no)]))
        try:
            return self._con.sql(self._sql).to_arrow_table()
        finally:
            self._con.unregister("raw_line")


def _batches(
    readers: Iterator[tuple[int, LineReader]],
    wrapping: Sequence[str],
    damaged: list[str],
    unfinished: list[tuple[int, int]],
    progress: Callable[[int], object],
) -> Iterator[pa.RecordBatch]:
    for number, reader in readers:
        is_packed = packed(reader.name)
        for batch in reader.batches(number, wrapping):
            yield batch
            if not is_packed:
                progress(batch.column("line").buffers()[2].size)
        if is_packed:
            progress(os.path.getsize(reader.name))
        if reader.damaged:
            damaged.append(reader.name)
        if reader.unfinished:
            unfinished.append((number, reader.lines))


def _insert(con: duckdb.DuckDBPyConnection, select: str, batches: Iterator[pa.RecordBatch]) -> None:
    import pyarrow as pa

    con.register("raw_line", pa.RecordBatchReader.from_batches(line_schema(), batches))
    try:
        con.execute(f"INSERT INTO parsed_line BY NAME {select}")
    finally:
        con.unregister("raw_line")


def insert_parquet(con: duckdb.DuckDBPyConnection, form: Format, number: int, name: str, reading: Reading) -> None:
    """Reads a Parquet file into ``parsed_line``.

    Raises:
        BadInput: it cannot be read.
    """
    import duckdb

    path = name.replace("'", "''")
    table = f"read_parquet('{path}', file_row_number = true, hive_partitioning = false)"
    raw, found = parquet_values(form, str(number), "file_row_number + 1", table, reading)
    window = (reading.window.from_us, reading.window.to_us)
    select = parsed(found, raw, window, details=reading.details)
    try:
        con.execute(f"INSERT INTO parsed_line BY NAME {select}")
    except duckdb.Error as error:
        raise BadInput(f"cannot read {name!r}: {error}") from error


def drop_doubles(con: duckdb.DuckDBPyConnection) -> int:
    """Drops lines that stand in two files, which overlap; only those of requests with an id. Returns how many.

    A line that stands in one file several times is as many requests: the id is a trace's, or the client's.
    """
    same = "request, ts_us, method, path, status, client"
    found = con.execute(f"""
        DELETE FROM parsed_line WHERE rowid IN (
            SELECT id FROM (
                SELECT id, row_number() OVER (PARTITION BY {same}, place ORDER BY file) AS copy FROM (
                    SELECT rowid AS id, file, {same}, row_number() OVER (PARTITION BY {same}, file ORDER BY no) AS place
                    FROM parsed_line WHERE request IS NOT NULL AND bad IS NULL))
            WHERE copy > 1)""").fetchall()
    return int(found[0][0])


def tally(
    con: duckdb.DuckDBPyConnection, names: Sequence[str], now_us: int
) -> tuple[Counts, dict[int, int], dict[int, int]]:
    """Drops doubles from ``parsed_line`` and counts: all lines, and by the file's number the good and the bad ones.

    Args:
        names: of the files, by number. now_us: what is later is in the future, microseconds since 1970.
    """
    rows = con.execute(
        f"""SELECT file, count(*) FILTER (bad IS NULL), count(*) FILTER (bad <> '{OTHER}'),
            count(ts_us) FILTER (bad IS NOT NULL), min(ts_us), max(ts_us), count(request)
            FROM parsed_line GROUP BY file"""
    ).fetchall()
    doubled = drop_doubles(con) if sum(row[6] > 0 for row in rows) > 1 else 0
    counts = replace(
        _counted(con, names, doubled, now_us),
        bad_timed=sum(row[3] for row in rows),
        first_us=min((row[4] for row in rows if row[4] is not None), default=None),
        last_us=max((row[5] for row in rows if row[5] is not None), default=None),
    )
    return counts, {row[0]: row[1] for row in rows if row[1]}, {row[0]: row[2] for row in rows}


def _counted(con: duckdb.DuckDBPyConnection, names: Sequence[str], doubled: int, now_us: int) -> Counts:
    # All rows are fetched, always: a connection with a result that is not is good for nothing else.
    ((lines, bad, unrouted, future, other, requests, unnamed, unanswered),) = con.execute(
        f"""SELECT count(*), count(*) FILTER (bad <> '{OTHER}'),
            count(*) FILTER (bad IS NULL AND kind = 'exchange' AND op IS NULL AND channel IS NULL),
            count(*) FILTER (bad IS NULL AND ts_us > ?), count(*) FILTER (bad = '{OTHER}'),
            count(*) FILTER (bad IS NULL AND kind = 'exchange'),
            count(*) FILTER (bad IS NULL AND kind = 'exchange' AND client IS NULL),
            count(*) FILTER (bad IS NULL AND kind = 'exchange' AND status IS NULL AND reason IS NULL)
            FROM parsed_line""",
        [now_us],
    ).fetchall()
    counts = Counts(
        lines,
        bad,
        unrouted,
        future,
        doubled,
        other=other,
        requests=requests,
        unnamed=unnamed,
        unanswered=unanswered,
    )
    if not counts.bad:
        return counts
    rows = con.execute(
        f"SELECT file, no, bad, text FROM parsed_line WHERE bad <> '{OTHER}' ORDER BY file, no LIMIT {MAX_SAMPLES}"
    ).fetchall()
    samples = tuple(BadLine(names[file], no, why, text or "") for file, no, why, text in rows)
    return replace(counts, samples=samples)
