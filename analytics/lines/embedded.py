"""Lines in DuckDB: files, or a chunk of lines at a time, to the table ``parsed_line`` and the view ``line``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.dialect import Engine
from tricklecast.analytics.lines.files import STDIN, LineReader, LogFiles, line_batch, line_schema, sample_of
from tricklecast.analytics.lines.reading import (
    MAX_SAMPLES,
    BadLine,
    Counts,
    Reading,
    Recognised,
    check_understood,
    parquet_values,
    recognise_files,
    selected,
)
from tricklecast.analytics.lines.recognise import PARQUET, Format
from tricklecast.analytics.lines.records import PARSED, parsed, view

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

_NAMES: Final = ", ".join(name for name, _ in PARSED)
_RAW: Final = "SELECT file, no, line FROM raw_line"


@dataclass(frozen=True, slots=True)
class Lines:
    """What was read into a connection, where ``line`` is a view of the lines that are good.

    Attributes:
        recognised: files and formats. counts: of their lines. damaged: files that ended early.
    """

    recognised: Recognised
    counts: Counts
    damaged: tuple[str, ...] = ()


def read_lines(
    con: duckdb.DuckDBPyConnection, files: LogFiles, reading: Reading | None = None, now_us: int | None = None
) -> Lines:
    """Reads files into the temporary table ``parsed_line``, and makes the view ``line`` of the good lines in it.

    Args:
        con: where; a table and a view of these names are replaced.
        now_us: what is later is in the future, microseconds since 1970.

    Raises:
        BadInput: the format of a file cannot be told, nothing of it was understood, or it cannot be read.
        BadFormat: as of :meth:`Reading.check`.
    """
    reading = reading or Reading()
    if files.remote:
        raise BadInput(f"only Spark reads {files.remote[0]!r}: pass --engine spark")
    standard_input = LineReader(STDIN) if STDIN in files.names else None
    recognised = recognise_files(
        files, reading, lambda name: standard_input.sample if name == STDIN and standard_input else sample_of(name)
    )
    columns = ", ".join(f"{name} {kind}" for name, kind in PARSED)
    con.execute(f"CREATE OR REPLACE TEMP TABLE parsed_line ({columns})")
    blind: dict[int, tuple[str, ...]] = {}
    damaged: list[str] = []
    for form, numbers in recognised.groups():
        if form.name == PARQUET:
            for number in numbers:
                _insert_parquet(con, form, number, recognised.names[number], reading)
            continue
        select, cannot = selected(Engine.EMBEDDED, form, reading, _RAW)
        blind |= dict.fromkeys(numbers, cannot)
        unfinished: list[tuple[int, int]] = []
        readers = ((number, _reader(recognised.names[number], standard_input)) for number in numbers)
        _insert(con, select, _batches(readers, damaged, unfinished))
        for number, no in unfinished:
            # It is still being written, and will be a line the next time.
            con.execute("DELETE FROM parsed_line WHERE file = ? AND no = ? AND bad IS NOT NULL", [number, no])
    con.execute(f"CREATE OR REPLACE TEMP VIEW line AS {view(blind)}")
    doubled = _drop_doubles(con)
    counts = _counted(con, recognised, doubled, time.time_ns() // 1000 if now_us is None else now_us)
    tallies = con.execute("SELECT file, count(*) FILTER (bad IS NULL), count(bad) FROM parsed_line GROUP BY file")
    rows = tallies.fetchall()
    good = {file: number for file, number, _ in rows if number}
    check_understood(recognised, files.searched, good, {file: number for file, _, number in rows})
    return Lines(recognised, counts, tuple(damaged))


class ChunkReader:
    """Lines of one format, a chunk at a time, as they are added to a log.

    Attributes:
        blind: columns that the format cannot know.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, form: Format, reading: Reading | None = None) -> None:
        """Prepare the SQL.

        Args:
            con: runs it; form: as of :func:`~tricklecast.analytics.lines.recognise.recognise`.
        """
        self._con = con
        select, self.blind = selected(Engine.EMBEDDED, form, reading or Reading(), _RAW)
        told = ",".join(self.blind)
        self._sql = f"SELECT *, '{told}' AS blind FROM ({select}) chunk ORDER BY no"

    def read(self, lines: Sequence[bytes], file: int = 0, no: int = 1) -> pa.Table:
        """Lines as a table with the columns of ``line`` and ``file``, ``no``, ``bad``, ``text``, in their order.

        Bad lines are in it, with ``bad`` set; blank ones are not.

        Args:
            lines: without their ends; none has a line's end in it.
            file, no: what the columns begin at.
        """
        import pyarrow as pa

        block = b"".join(line[: 1 << 21] + b"\n" for line in lines)
        self._con.register("raw_line", pa.Table.from_batches([line_batch(block, file, no)]))
        try:
            return self._con.sql(self._sql).to_arrow_table()
        finally:
            self._con.unregister("raw_line")


def _reader(name: str, standard_input: LineReader | None) -> LineReader:
    return standard_input if name == STDIN and standard_input is not None else LineReader(name)


def _batches(
    readers: Iterator[tuple[int, LineReader]], damaged: list[str], unfinished: list[tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    for number, reader in readers:
        yield from reader.batches(number)
        if reader.damaged:
            damaged.append(reader.name)
        if reader.unfinished:
            unfinished.append((number, reader.lines))


def _insert(con: duckdb.DuckDBPyConnection, select: str, batches: Iterator[pa.RecordBatch]) -> None:
    import pyarrow as pa

    con.register("raw_line", pa.RecordBatchReader.from_batches(line_schema(), batches))
    try:
        con.execute(f"INSERT INTO parsed_line SELECT {_NAMES} FROM ({select}) good")
    finally:
        con.unregister("raw_line")


def _insert_parquet(con: duckdb.DuckDBPyConnection, form: Format, number: int, name: str, reading: Reading) -> None:
    import duckdb

    path = name.replace("'", "''")
    table = f"read_parquet('{path}', file_row_number = true, hive_partitioning = false)"
    raw, found = parquet_values(Engine.EMBEDDED, form, str(number), "file_row_number + 1", table)
    select = parsed(Engine.EMBEDDED, found, raw, (reading.window.from_us, reading.window.to_us))
    try:
        con.execute(f"INSERT INTO parsed_line SELECT {_NAMES} FROM ({select}) good")
    except duckdb.Error as error:
        raise BadInput(f"cannot read {name!r}: {error}") from error


def _drop_doubles(con: duckdb.DuckDBPyConnection) -> int:
    """Drops all but the first line of each request that has an id of its own; the inputs overlap. Returns how many."""
    found = con.execute("""
        DELETE FROM parsed_line WHERE rowid IN (
            SELECT unnest(list(rowid ORDER BY file, no)[2:]) FROM parsed_line
            WHERE request IS NOT NULL AND bad IS NULL GROUP BY request HAVING count(*) > 1)""").fetchall()
    return int(found[0][0])


def _counted(con: duckdb.DuckDBPyConnection, recognised: Recognised, doubled: int, now_us: int) -> Counts:
    # All rows are fetched, always: a connection with a result that is not is good for nothing else.
    ((lines, bad, unrouted, future),) = con.execute(
        """SELECT count(*), count(bad),
            count(*) FILTER (bad IS NULL AND kind = 'exchange' AND op IS NULL AND channel IS NULL),
            count(*) FILTER (bad IS NULL AND ts_us > ?) FROM parsed_line""",
        [now_us],
    ).fetchall()
    counts = Counts(lines, bad, unrouted, future, doubled)
    if not counts.bad:
        return counts
    rows = con.execute(
        f"SELECT file, no, bad, text FROM parsed_line WHERE bad IS NOT NULL ORDER BY file, no LIMIT {MAX_SAMPLES}"
    ).fetchall()
    samples = tuple(BadLine(recognised.names[file], no, why, text or "") for file, no, why, text in rows)
    return replace(counts, samples=samples)
