"""Lines in Spark: it hands out what is to be read, and each Python worker parses its share with DuckDB, by the SQL of
the embedded engine.

Logs are read in one of four ways.

* Files that have the same path on every machine are opened by the workers, with the reader of the embedded engine. A
  task is a list of files, or of parts of a large one. So compression, damage, a line of 600 MB and the numbers of lines
  are the same in both engines, and 20,000 small files are no more tasks than 20 large ones.
* Text in an object store is read by Spark, which has the user's credentials. The name of its file comes with each line,
  and the bytes that it had there, by which it is known whether Spark has left out lines.
  Spark never passes over a file that it cannot read: the job fails and names the file, which is tried again, and then
  read up to the damage, and told (:func:`~tricklecast.analytics.spark.scan.roll_up`).
* Objects whose lines Spark cannot read are handed to workers whole (:mod:`~tricklecast.analytics.spark.objects`).
* Parquet in an object store is read by Spark, column by column; columns that only some files have are null in the
  others.

No task is told the names of files that it does not read: numbers of files are those of a *piece*, the rows that a
worker parses at a time, and what a worker tells of files it tells by name.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final, Literal

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.embedded import Lines, drop_unfinished, empty_table, insert_parquet
from tricklecast.analytics.lines.files import (
    BYTE_ORDER_MARK,
    COMPRESSED,
    PACKED,
    REMOTE,
    LineReader,
    LogFiles,
    packed,
    sample_of,
)
from tricklecast.analytics.lines.reading import (
    BadLine,
    Counts,
    Reading,
    Recognised,
    check_understood,
    first_samples,
    node_sql,
    parquet_values,
    selected,
)
from tricklecast.analytics.lines.recognise import PARQUET, Format
from tricklecast.analytics.lines.records import PARSED, parsed
from tricklecast.analytics.lines.wrapping import Unwrapper
from tricklecast.analytics.scan.embedded import bounded
from tricklecast.analytics.spark.objects import (
    LONGEST,
    listed,
    looked_up,
    name_of,
    recognise_in_spark,
    rows_of,
    whole,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

PIECE: Final = 64 << 20
"""Bytes of lines that a worker parses at a time."""

FILES: Final = 5_000
"""And files: each takes some ten kilobytes besides its lines."""

TASK: Final = 128 << 20
"""Bytes of files that one task reads, and the largest part of one file."""

_LEAST_TASK: Final = 8 << 20
"""Fewer bytes are no task of their own, even if cores are idle: a worker takes a second to start."""

MEMORY: Final = 1 << 30
"""Bytes that the DuckDB of a worker may take; beyond, it goes on in a folder on disk."""

RETRY_S: Final = 0.2
_NOTHING: Final = f"SELECT {', '.join(f'NULL AS {name}' for name, _ in PARSED)} LIMIT 0"

_UNSPLIT: Final = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"\x04\x22\x4d\x18", b"\xff\xfe", b"\xfe\xff")
"""First bytes of files in which a line's end cannot be found by its byte: compressed ones, and UTF-16."""


_NAMED: Final = "SELECT p.*, n.name FROM parsed_line p LEFT JOIN named n ON n.number = p.file"
_MARK: Final = "piece"
"""In the column ``kind``: of a row that is no line, but says what is known of the files of a piece."""
_WITH_NAME: Final = (*PARSED, ("name", "VARCHAR"))


@contextmanager
def connect() -> Iterator[DuckDBPyConnection]:
    """The database of a worker, which bounds its memory. Spark runs as many of these at a time as it has cores."""
    with bounded(memory=MEMORY) as con:
        con.execute("SET threads = 1")
        yield con


@dataclass(slots=True)
class Piece:
    """The lines that were read into the table ``parsed_line`` and the view ``line``.

    Attributes:
        names: of the files, by number. damaged: those that ended early; gone: those that could not be opened.
        unfinished: file and number of lines that have no end. numberless: files whose lines are not counted from 1.
        taken: by the name of an object that Spark reads itself: bytes of its lines here, and of all of it.
    """

    names: list[str]
    damaged: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    unfinished: list[tuple[int, int]] = field(default_factory=list)
    numberless: list[int] = field(default_factory=list)
    taken: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parse:
    """How a worker parses what Spark gives it.

    Attributes:
        form: of all of it; ``None`` for rows that were parsed before.
        given: ``files`` to open, as JSON in the column ``files``; ``objects``, with ``file`` and ``content``; or
            ``rows``, with the name of each one's file.
        moments: of the lines of our own format, only those of these times; all if there are none.
        apart: whether a piece has lines of one file only.
    """

    form: Format | None
    reading: Reading
    given: Literal["files", "objects", "rows"]
    moments: tuple[int, ...] = ()
    apart: bool = False

    def pieces(self, con: DuckDBPyConnection, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
        """Makes the table ``parsed_line`` and the view ``line`` of some rows, then of the next."""
        if self.given == "rows":
            wrapping = self.form.wrapping if self.form else ()
            for table in _held(batches, whole=self.form is None, wrapping=wrapping):
                table, names = _numbered(table, quoted=self.form is not None)
                taken = _taken(table, names)
                if not self.apart:
                    yield self._parsed(con, Piece(names, taken=taken), table)
                    continue
                for number, name in enumerate(names):
                    some = {name: taken[name]} if name in taken else {}
                    yield self._parsed(con, Piece([name], taken=some), _only(table, number))
            return
        if self.given == "objects":
            yield from self._files(con, _unpacked(batches))
            return
        for batch in batches:
            for text in batch.column("files").to_pylist():
                if self.form is not None and self.form.name == PARQUET:
                    for name, _, _ in json.loads(text):
                        yield self._parquet(con, name)
                else:
                    spans: list[tuple[str, int, int | None]] = json.loads(text)
                    opened = ((name, start, _opened(name, start, until)) for name, start, until in spans)
                    yield from self._files(con, opened)

    def _files(self, con: DuckDBPyConnection, opened: Iterable[tuple[str, int, LineReader | None]]) -> Iterator[Piece]:
        import pyarrow as pa

        piece, held, size = Piece([]), list[pa.RecordBatch](), 0
        for name, start, reader in opened:
            if reader is None:
                piece.gone.append(name)
                continue
            piece.names.append(name)
            piece.numberless += [len(piece.names) - 1] if start else []
            for batch in reader.batches(0, self.form.wrapping if self.form else ()):
                if size >= PIECE:
                    yield self._parsed(con, piece, pa.Table.from_batches(held).combine_chunks())
                    piece, held, size = Piece([name], numberless=[0] if start else []), [], 0
                held.append(_of_file(batch, len(piece.names) - 1))
                size += batch.column("line").buffers()[2].size
            # All that is known of its end belongs to the piece that has its last line.
            piece.damaged += [name] if reader.damaged else []
            piece.unfinished += [(len(piece.names) - 1, reader.lines)] if reader.unfinished else []
            if self.apart or (held and len(piece.names) >= FILES):
                yield self._parsed(con, piece, pa.Table.from_batches(held).combine_chunks() if held else None)
                piece, held, size = Piece([]), [], 0
        if held or piece.damaged or piece.gone:
            yield self._parsed(con, piece, pa.Table.from_batches(held).combine_chunks() if held else None)

    def _parsed(self, con: DuckDBPyConnection, piece: Piece, table: pa.Table | None) -> Piece:
        if table is None or self.form is None:
            select = "FROM raw_line" if table is not None else _NOTHING
        elif self.form.name == PARQUET:
            typed = replace(self.form, columns=tuple((name, "") for name in table.schema.names if name != "file"))
            raw, found = parquet_values(typed, "file", "CAST(NULL AS BIGINT)", "raw_line", self.reading)
            select = parsed(found, raw, (self.reading.window.from_us, self.reading.window.to_us))
        else:
            place = "no" if "no" in table.schema.names else "CAST(NULL AS BIGINT) AS no"
            raw = f"SELECT file, {place}, line FROM raw_line"
            if self.moments and self.form.fields is None:
                # To look for a number costs a sixth of parsing a line.
                times = ", ".join(f"'{moment}'" for moment in self.moments)
                raw += f""" WHERE regexp_extract(line, '"ts_us": ?(\\d+)', 1) IN ({times})"""
            select = selected(self.form, self.reading, raw, node_sql(piece.names))
        empty_table(con)
        if table is not None:
            con.register("raw_line", table)
            con.execute(f"INSERT INTO parsed_line BY NAME SELECT * FROM ({select}) good")
            con.unregister("raw_line")
        if self.form is None:
            for (mark,) in con.execute("DELETE FROM parsed_line WHERE kind = ? RETURNING text", [_MARK]).fetchall():
                damaged, gone, taken = json.loads(mark)
                piece.damaged += damaged
                piece.gone += gone
                for name, (bytes_, size) in taken.items():
                    piece.taken[name] = (piece.taken.get(name, (0, size))[0] + bytes_, size)
        drop_unfinished(con, piece.unfinished)
        if piece.numberless:
            con.execute("UPDATE parsed_line SET no = NULL WHERE list_contains(?, file)", [piece.numberless])
        return piece

    def _parquet(self, con: DuckDBPyConnection, name: str) -> Piece:
        import duckdb

        assert self.form is not None
        empty_table(con)
        try:
            insert_parquet(con, self.form, 0, name, self.reading)
        except BadInput as error:
            if not isinstance(error.__cause__, (duckdb.IOException, duckdb.InvalidInputException)):
                raise
            return Piece([name], damaged=[name]) if os.path.exists(name) else Piece([], gone=[name])
        return Piece([name])


def _opened(name: str, start: int, until: int | None) -> LineReader | None:
    """The lines that begin in a part of a file; ``None`` if it cannot be opened, tried twice."""
    for last in (False, True):
        try:
            if (start, until) == (0, None):
                return LineReader(name)
            with open(name, "rb") as file:
                first = _line_at(file, start)
                # A line that goes on beyond the end is looked through once.
                after = until if until is None or first >= until else _line_at(file, until)
            return LineReader(name, (first, None if after is None else max(first, after)))
        except (BadInput, OSError):
            if not last:
                time.sleep(RETRY_S)
    return None


def _unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, LineReader]]:
    """The lines of whole objects: each is a temporary file until the next one."""
    for batch in batches:
        for name, content in zip(batch.column("file").to_pylist(), batch.column("content"), strict=True):
            with NamedTemporaryFile(prefix="tricklecast-object-") as file:
                file.write(content.as_buffer())
                file.flush()
                yield name_of(name), 0, LineReader(file.name)


def _line_at(file: Any, at: int) -> int:
    """Where the first line begins that does not begin before a position."""
    if at == 0:
        return 0
    file.seek(at - 1)
    at -= 1
    while block := file.read(1 << 20):
        if (found := block.find(b"\n")) >= 0:
            return at + int(found) + 1
        at += len(block)
    return at


def _of_file(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """The same lines as of another file."""
    import pyarrow as pa

    if number == 0:
        return batch
    place = batch.schema.get_field_index("file")
    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
    return batch.set_column(place, batch.schema.field("file"), numbers)


def _held(batches: Iterable[pa.RecordBatch], whole: bool, wrapping: Sequence[str]) -> Iterator[pa.Table]:
    """Batches, some of them at a time; no rows are no piece."""
    import pyarrow as pa

    unwrapper = Unwrapper(wrapping)
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(_with_texts(batch, unwrapper if wrapping else None))
        if not whole and sum(one.nbytes for one in held) >= PIECE:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _numbered(table: pa.Table, *, quoted: bool) -> tuple[pa.Table, list[str]]:
    """Rows with numbers in place of their files' names or, quoted, URLs, and the names."""
    place = table.schema.get_field_index("file")
    coded = table.column(place).combine_chunks().dictionary_encode()
    if hasattr(coded, "combine_chunks"):
        coded = coded.combine_chunks()
    return table.set_column(place, "file", coded.indices), [
        name_of(path, quoted=quoted) for path in coded.dictionary.to_pylist()
    ]


def _taken(table: pa.Table, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of each file: the bytes of its lines here, and of all of it, where Spark gives them."""
    if "taken" not in table.schema.names:
        return {}
    sums = table.group_by("file").aggregate([("taken", "sum"), ("size", "max")])
    return {names[row["file"]]: (row["taken_sum"], row["size_max"]) for row in sums.to_pylist()}


def _only(table: pa.Table, number: int) -> pa.Table:
    """The rows of one file, as of the first one."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    rows = table.filter(pc.equal(table.column("file"), number))
    return rows.set_column(
        rows.schema.get_field_index("file"), "file", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
    )


def _with_texts(batch: pa.RecordBatch, unwrapper: Unwrapper | None) -> pa.RecordBatch:
    """Lines as text; as in the embedded engine, what is no UTF-8 is replaced; zeros, mark and wrapping go."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "line" not in batch.schema.names:
        return batch
    place, lines = batch.schema.get_field_index("line"), batch.column("line")
    if unwrapper is not None:
        lines = pa.array(unwrapper.feed(b"\n".join(lines.to_pylist())).split(b"\n"), pa.binary())
    try:
        odd = pc.or_(pc.starts_with(lines, BYTE_ORDER_MARK), pc.match_substring(lines, b"\0"))
        texts = None if pc.any(odd).as_py() else lines.cast(pa.string())
    except pa.ArrowInvalid:
        texts = None
    if texts is None:
        bare = (line.replace(b"\0", b"").removeprefix(BYTE_ORDER_MARK) for line in lines.to_pylist())
        each = (line.decode("utf-8", "replace") for line in bare)
        texts = pa.array(each, pa.string())
    return batch.set_column(place, "line", texts)


def _queried(
    batches: Iterable[pa.RecordBatch], parse: Parse, query: str, marked: bool = False
) -> Iterator[pa.RecordBatch]:
    """Rows of a query over ``parsed_line`` and ``line``, with the name of each one's file; what a worker does.

    Args:
        marked: with what is known of the files of each piece, as a row.
    """
    with connect() as con:
        for piece in parse.pieces(con, batches):
            if marked and (piece.damaged or piece.gone or piece.taken):
                mark = json.dumps((piece.damaged, piece.gone, piece.taken))
                con.execute("INSERT INTO parsed_line (kind, text) VALUES (?, ?)", [_MARK, mark])
            con.execute("CREATE OR REPLACE TEMP TABLE named (number INT, name VARCHAR)")
            con.executemany("INSERT INTO named VALUES (?, ?)", [*enumerate(piece.names), (None, None)])
            yield from con.sql(query).to_arrow_table().to_batches()


@dataclass(frozen=True, slots=True)
class PieceTally:
    """Counts and names of files that a worker gives for a piece besides its roll-up.

    Attributes:
        counts: of all. good, bad: lines by the file's name. damaged, gone: as of :class:`Piece`.
        taken: as of :class:`Piece`. rows: of the roll-up. times: the earliest and the latest of each file.
        source: the file, where a piece is of one. sketch: hashes of some ids of its requests.
    """

    counts: Counts
    good: dict[str, int]
    bad: dict[str, int]
    damaged: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    taken: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0
    times: dict[str, tuple[int, int]] = field(default_factory=dict)
    source: str = ""
    sketch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SparkLines:
    """The lines that Spark will read.

    Attributes:
        recognised: files and formats. searched: files that nobody gave by name.
        part: these are some files of a report.
        lenient: files in an object store that could not be read, tried twice: they are read up to the damage.
        gone: those that were not there any more.
        together: requests with one id are brought together, and count once. apart: no piece is of two files.
        frame: rows that somebody has read, in place of files, and how they are parsed.
        moments: as of :class:`Parse`.
    """

    spark: SparkSession
    recognised: Recognised
    searched: frozenset[str]
    reading: Reading
    part: bool = False
    lenient: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    together: bool = False
    apart: bool = False
    frame: tuple[DataFrame, Parse] | None = None
    moments: tuple[int, ...] = ()

    def mapped(self, work: Callable[..., Iterator[pa.RecordBatch]], columns: str) -> DataFrame:
        """The rows that workers make of the lines.

        Args:
            work: makes them of the rows of one partition, and the argument ``parse``. columns: their names and types.
        """
        if self.together:
            # Lines of one id come together. The others go anywhere, but to the same place when a task is run again.
            key = "coalesce(request, CAST(xxhash64(ts_us, client, path, conn) AS STRING))"
            marked = partial(_queried, query=_NAMED, marked=True)
            rows = replace(self, together=False).mapped(marked, _spark_columns(_WITH_NAME))
            rows = rows.drop("file").withColumnRenamed("name", "file")
            brought = rows.selectExpr("*", f"{key} AS together").repartition("together").drop("together")
            groups = [(brought, Parse(None, self.reading, "rows"))]
        else:
            groups = list(self._groups())
        if not groups:
            groups = [(self.spark.createDataFrame([], "files STRING"), Parse(None, self.reading, "files"))]
        frames = [rows.mapInArrow(partial(work, parse=parse), columns) for rows, parse in groups]
        return reduce(lambda above, frame: above.unionAll(frame), frames)

    def _groups(self) -> Iterator[tuple[DataFrame, Parse]]:
        if self.frame is not None:
            yield self.frame
            return
        parse = Parse(None, self.reading, "files", self.moments, self.apart)
        for form, numbers in self.recognised.groups():
            names = [self.recognised.names[number] for number in numbers]
            remote = [name for name in names if REMOTE.match(name) and name not in self.gone]
            if local := [name for name in names if not REMOTE.match(name)]:
                yield _handed_out(self.spark, local, form), replace(parse, form=form)
            if objects := [name for name in remote if name in self.recognised.whole]:
                yield whole(self.spark, objects), replace(parse, form=form, given="objects")
            alike: dict[tuple[bool, bool], list[str]] = {}
            for name in remote:
                if name not in self.recognised.whole:
                    alike.setdefault((name in self.lenient, name.endswith(COMPRESSED)), []).append(name)
            for (lenient, _), some in alike.items():
                yield rows_of(self.spark, form, some, lenient=lenient), replace(parse, form=form, given="rows")

    def of(self, names: Iterable[str]) -> SparkLines:
        """The lines of some of the files."""
        wanted, recognised = frozenset(names), self.recognised
        kept = [(name, form) for name, form in zip(recognised.names, recognised.formats, strict=True) if name in wanted]
        some = Recognised(tuple(name for name, _ in kept), tuple(form for _, form in kept), whole=recognised.whole)
        return replace(self, recognised=some, part=True)

    @property
    def parsed(self) -> DataFrame:
        """All lines, the bad ones too, with the name of each one's file."""
        return self.mapped(partial(_queried, query=_NAMED), _spark_columns(_WITH_NAME))

    def of_moments(self, times: Iterable[int]) -> DataFrame:
        """Good lines of requests that arrived at these times, with their texts and the name of each one's file."""
        some = replace(self, moments=tuple(times), reading=replace(self.reading, texts=True))
        wanted = f"p.bad IS NULL AND p.kind = 'exchange' AND p.ts_us IN ({', '.join(map(str, some.moments))})"
        return some.mapped(partial(_queried, query=f"{_NAMED} WHERE {wanted}"), _spark_columns(_WITH_NAME))

    def left_out(self, tallies: Iterable[PieceTally]) -> dict[str, tuple[int, int]]:
        """The objects of which Spark has left out lines that are too long: the bytes of these, and of all of it."""
        taken, every = Counter[str](), dict[str, int]()
        for one in tallies:
            for name, (bytes_, size) in one.taken.items():
                taken[name] += bytes_
                every[name] = size
        others = {*self.recognised.whole, *self.lenient, *self.gone, *every}
        # Of these not one line has come. Some are empty.
        silent = [
            name
            for name, form in zip(self.recognised.names, self.recognised.formats, strict=True)
            if REMOTE.match(name) and name not in others and form.name != PARQUET and not name.endswith(COMPRESSED)
        ]
        every |= {name: row.length for name, row in looked_up(self.spark, silent).items()}
        return {name: (size - taken[name], size) for name, size in every.items() if size - taken[name] >= LONGEST}

    def summed(self, tallies: Iterable[PieceTally]) -> Lines:
        """Counts of the lines in the files.

        Args:
            tallies: of each worker.

        Raises:
            NothingUnderstood: not one line of a log could be read.
        """
        numbers = {name: number for number, name in enumerate(self.recognised.names)}
        found, samples = Counts(), list[tuple[int, BadLine]]()
        good, bad = Counter[int](), Counter[int]()
        damaged = set(self.lenient)
        for one in sorted(tallies, key=lambda one: one.counts.first_us or 0):
            found += one.counts
            samples += [(numbers.get(bad_line.file, 0), bad_line) for bad_line in one.counts.samples]
            for into, by_name in ((good, one.good), (bad, one.bad)):
                into.update({numbers.get(name, 0): count for name, count in by_name.items()})
            damaged.update(one.damaged)
        if not self.part:
            check_understood(self.recognised, self.searched, good, bad, self.reading.window, first_samples(samples))
        named = tuple(name for name in self.recognised.names if name in damaged)
        return Lines(
            self.recognised, replace(found, samples=tuple(first_samples(samples))), named, dict(good), dict(bad)
        )


def _spark_columns(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {'STRING' if kind == 'VARCHAR' else kind}" for name, kind in columns)


def read_lines(
    spark: SparkSession,
    files: LogFiles,
    reading: Reading | None = None,
    overlap: bool | None = None,
    part: bool = False,
) -> SparkLines:
    """The lines of files; nothing is read yet but the beginnings of the files.

    Args:
        overlap: whether requests with an id of their own are looked for twice, which costs a shuffle; ``None`` looks
            whether a request that a local file begins with is in another one.
        part: these are some files of a report, found by :func:`listed`; it checks whether anything was understood.

    Raises:
        BadInput: the format of a file cannot be told, or it cannot be read. BadFormat: as of :meth:`Reading.check`.
    """
    reading = reading or Reading()
    files = files if part else listed(spark, files, reading.window)
    if files.pipes:
        raise BadInput("Spark does not read standard input or pipes: pass --engine embedded, or a file")
    recognised = recognise_in_spark(spark, files, reading, part)
    together = overlapping(recognised) if overlap is None else overlap
    return SparkLines(spark, recognised, files.searched, reading, part, together=together)


def _handed_out(spark: SparkSession, names: Sequence[str], form: Format) -> DataFrame:
    """One row for each task: the files, or parts of one, that it reads."""
    spans: list[tuple[int, tuple[str, int, int | None]]] = []
    for name in names:
        size = _size(name)
        if size > TASK and form.name != PARQUET and _can_be_split(name):
            borders = range(0, size, TASK)
            spans += [(TASK, (name, start, start + TASK if start != borders[-1] else None)) for start in borders]
        else:
            spans.append((size * (PACKED if packed(name) else 1), (name, 0, None)))
    total = sum(size for size, _ in spans)
    cores = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    share = max(1, total // max(1, -(-total // TASK), min(cores, total // _LEAST_TASK)))
    tasks: list[list[tuple[str, int, int | None]]] = [[]]
    taken = 0
    for size, span in spans:
        if tasks[-1] and taken + size > share * 1.01:
            tasks.append([])
            taken = 0
        tasks[-1].append(span)
        taken += size
    rows = spark.createDataFrame([(json.dumps(task),) for task in tasks], "files STRING").coalesce(1)
    return rows.repartition(len(tasks)) if len(tasks) > 1 else rows


def _size(name: str) -> int:
    try:
        return os.path.getsize(name)
    except OSError:
        return 0  # it has gone: the worker that is to read it tells


def _can_be_split(name: str) -> bool:
    with open(name, "rb") as file:
        return not file.read(8).startswith(_UNSPLIT)


def overlapping(recognised: Recognised) -> bool:
    """Whether a line that a local file begins with is in another one as well."""
    alike = [
        name
        for form, numbers in recognised.groups()
        if form.fields is not None and "request_id" in form.present and len(numbers) > 1
        for name in (recognised.names[number] for number in numbers)
        if not REMOTE.match(name)
    ]
    firsts = {name: sample[0] for name in alike if (sample := sample_of(name))}
    for name in alike:
        wanted = [line for other, line in firsts.items() if other != name]
        for block in LineReader(name).blocks():
            if any(line in block for line in wanted):
                return True
    return False
