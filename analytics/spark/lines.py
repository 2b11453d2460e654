"""Lines in Spark: it finds, reads and hands out lines; each executor parses its own with DuckDB, by the same SQL as
the embedded engine."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.embedded import Lines
from tricklecast.analytics.lines.files import (
    BYTE_ORDER_MARK,
    REMOTE,
    STDIN,
    LineReader,
    LogFiles,
    Window,
    in_window,
    looks_like_log,
    sample_of,
    unfinished_tail,
)
from tricklecast.analytics.lines.reading import (
    MAX_SAMPLES,
    OWN,
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
from tricklecast.analytics.lines.recognise import PARQUET, SAMPLE_LINES, Format
from tricklecast.analytics.lines.records import LINE, MAX_LINE, MAX_SAMPLE, PARSED, parsed, view

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

_MISSING: Final = "PATH_NOT_FOUND"
_LOCAL: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
_TEXT_BYTES: Final = 1 << 16
PIECE: Final = 64 << 20
"""Bytes of lines that an executor parses at a time."""

_NAMES: Final = ", ".join(name for name, _ in PARSED)
_NOTHING: Final = f"SELECT {', '.join(f'NULL AS {name}' for name, _ in PARSED)} LIMIT 0"
_SUMS: Final = ("lines", "bad", "unrouted", "future", "doubled", "bad_timed")


@dataclass(frozen=True, slots=True)
class Parse:
    """How an executor parses rows that Spark has read, with DuckDB.

    Attributes:
        select: SELECT of the columns of ``parsed_line`` from ``raw_line``.
        numbers: a file's number by the checksum of its path, which is in the column ``file``; none where that is a
            number. tails: beginnings of last lines that have no end.
        whole: whether a partition is parsed at once, not in pieces.
    """

    select: str
    numbers: Mapping[int, int]
    tails: tuple[str, ...] = ()
    whole: bool = False

    def tables(self, con: DuckDBPyConnection, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
        """Makes the table ``parsed_line`` and the view ``line`` of some rows, then of the next."""
        columns = ", ".join(f"{name} {kind}" for name, kind in PARSED)
        rows = "FROM arrived"
        if self.numbers:
            con.execute("CREATE TEMP TABLE numbered (checksum BIGINT, number INT)")
            con.executemany("INSERT INTO numbered VALUES (?, ?)", list(self.numbers.items()))
            number = f"coalesce(n.number, {min(self.numbers.values())})"
            rows = f"SELECT a.* REPLACE ({number} AS file) FROM arrived a LEFT JOIN numbered n ON n.checksum = a.file"
        for table in _pieces(batches, self.whole):
            con.register("arrived", table)
            con.execute(f"CREATE OR REPLACE TEMP VIEW raw_line AS {rows}")
            con.execute(f"CREATE OR REPLACE TEMP TABLE parsed_line ({columns})")
            con.execute(f"INSERT INTO parsed_line SELECT {_NAMES} FROM ({self.select}) good")
            con.unregister("arrived")
            if self.tails:
                # What is still being written will be a line the next time.
                con.execute(
                    "DELETE FROM parsed_line WHERE bad IS NOT NULL AND list_contains(?, text)", [list(self.tails)]
                )
            con.execute(f"CREATE OR REPLACE TEMP VIEW line AS {view()}")
            yield


def _pieces(batches: Iterable[pa.RecordBatch], whole: bool) -> Iterator[pa.Table]:
    """Batches, some of them at a time; no rows are no piece."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(_with_texts(batch))
        if not whole and sum(one.nbytes for one in held) >= PIECE:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _with_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Lines as text; as in the embedded engine, what is no UTF-8 is replaced, and a byte order mark left out."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    if "line" not in batch.schema.names:
        return batch
    place, lines = batch.schema.get_field_index("line"), batch.column("line")
    try:
        texts = None if pc.any(pc.starts_with(lines, BYTE_ORDER_MARK)).as_py() else lines.cast(pa.string())
    except pa.ArrowInvalid:
        texts = None
    if texts is None:
        each = (line.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace") for line in lines.to_pylist())
        texts = pa.array(each, pa.string())
    return batch.set_column(place, "line", texts)


def tables_of(batches: Iterable[pa.RecordBatch], parse: Parse, query: str) -> Iterator[pa.RecordBatch]:
    """Rows of a query over ``parsed_line`` and ``line``; what an executor does."""
    with connect() as con:
        for _ in parse.tables(con, batches):
            yield from con.sql(query).to_arrow_table().to_batches()


def connect() -> DuckDBPyConnection:
    """The database of an executor. Spark runs as many of these at a time as it has cores."""
    import duckdb

    return duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false", "threads": 1})


@dataclass(frozen=True, slots=True)
class Told:
    """What an executor tells of lines besides their roll-up.

    Attributes:
        counts: of all; in the samples a file's name is its number. good, bad: lines by the file's number.
    """

    counts: Counts
    good: dict[int, int]
    bad: dict[int, int]


@dataclass(frozen=True, slots=True)
class SparkLines:
    """What Spark will read.

    Attributes:
        recognised: files and formats. searched: files that nobody gave by name.
        groups: rows of files that are read alike, and how they are parsed.
        window: only lines of that time are read. part: these are some files of a report.
    """

    recognised: Recognised
    searched: frozenset[str]
    groups: tuple[tuple[DataFrame, Parse], ...]
    window: Window
    part: bool = False

    def mapped(
        self, work: Callable[[Iterator[pa.RecordBatch], Parse], Iterator[pa.RecordBatch]], columns: str
    ) -> DataFrame:
        """What executors make of the lines.

        Args:
            work: makes it of the rows of one partition. columns: names and Spark's types of what it makes.
        """
        made = [rows.mapInArrow(partial(_work, work=work, parse=parse), columns) for rows, parse in self.groups]
        return reduce(lambda above, frame: above.unionAll(frame), made)

    @property
    def line(self) -> DataFrame:
        """The good lines, with the columns of ``line``."""
        return self.mapped(partial(tables_of, query="FROM line"), _spark_columns(LINE))

    @property
    def parsed(self) -> DataFrame:
        """All lines, the bad ones too."""
        return self.mapped(partial(tables_of, query="FROM parsed_line"), _spark_columns(PARSED))

    def chosen(self, condition: str) -> DataFrame:
        """Good lines of which a condition holds."""
        return self.mapped(partial(tables_of, query=f"FROM line WHERE {condition}"), _spark_columns(LINE))

    def summed(self, told: Iterable[Told]) -> Lines:
        """What was in the files.

        Args:
            told: by each executor.

        Raises:
            NothingUnderstood: not one line of a log could be read.
        """
        found, samples = Counts(), list[tuple[int, BadLine]]()
        good, bad = Counter[int](), Counter[int]()
        for one in sorted(told, key=lambda one: one.counts.first_us or 0):
            has = one.counts
            sums = {name: getattr(found, name) + getattr(has, name) for name in _SUMS}
            times = [us for us in (found.first_us, found.last_us, has.first_us, has.last_us) if us is not None]
            found = Counts(**sums, first_us=min(times, default=None), last_us=max(times, default=None))
            samples += [(int(bad_line.file), bad_line) for bad_line in has.samples]
            good.update(one.good)
            bad.update(one.bad)
        if not self.part:
            check_understood(self.recognised, self.searched, good, bad, self.window)
        samples.sort(key=lambda sample: sample[0])
        names = self.recognised.names
        shown = tuple(replace(one, file=names[number]) for number, one in samples[:MAX_SAMPLES])
        return Lines(self.recognised, replace(found, samples=shown), (), dict(good), dict(bad))


def _work(batches: Iterator[pa.RecordBatch], work: Any, parse: Parse) -> Iterator[pa.RecordBatch]:
    yield from work(batches, parse)


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
    if STDIN in files.names:
        raise BadInput("Spark does not read standard input: pass --engine embedded, or a file")
    recognised = recognise_in_spark(spark, files, reading, part)
    made = []
    node = node_sql(recognised.names)
    for form, numbers in recognised.groups():
        made.append(_group(spark, form, [(one, recognised.names[one]) for one in numbers], reading, node))
    if not made:
        made = [(spark.createDataFrame([], "file BIGINT, line BINARY"), Parse(_NOTHING, {}))]
    found = SparkLines(recognised, files.searched, tuple(made), reading.window, part)
    if overlapping(recognised) if overlap is None else overlap:
        # Lines of one id come together. The others go anywhere, but to the same place when a task is run again.
        key = "coalesce(request, CAST(xxhash64(ts_us, client, path, conn) AS STRING))"
        from pyspark.sql import functions as F

        together = found.parsed.repartition(F.expr(key))
        parse = Parse("FROM raw_line", {}, whole=True)
        found = replace(found, groups=((together, parse),))
    return found


def listed(spark: SparkSession, files: LogFiles, window: Window) -> LogFiles:
    """The files with those in place of each URI that it leads to."""
    names: list[str] = []
    searched = set(files.searched)
    for name in files.names:
        if not REMOTE.match(name):
            names.append(name)
            continue
        found = list_remote(spark, name, window)
        names += found
        if found != [name]:
            searched.update(found)
    return replace(files, names=tuple(dict.fromkeys(names)), searched=frozenset(searched))


def list_remote(spark: SparkSession, uri: str, window: Window) -> list[str]:
    """The files below a URI, or those that it is a glob for, without those of other hours; sorted.

    Raises:
        BadInput: there are none.
    """
    from pyspark.errors import AnalysisException

    # Names and sizes only: nothing of the contents is read.
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        paths = sorted(row["path"] for row in files.load(uri).select("path").collect())
    except AnalysisException as error:
        if error.getCondition() == _MISSING:
            raise BadInput(f"no such log: {uri!r}") from error
        raise
    named = len(paths) == 1 and paths[0].rstrip("/").endswith(uri.rstrip("/").rpartition("/")[2])
    found = paths if named or any(char in uri for char in "*?[{") else [path for path in paths if looks_like_log(path)]
    if not found:
        raise BadInput(f"no logs (*.jsonl, *.log, *.parquet, also compressed) in {uri!r}")
    # Hadoop writes file:/x for what is file:///x everywhere else.
    return [_LOCAL.sub(r"\1:///", path) for path in found if in_window(path, window)]


def versions(spark: SparkSession, uris: Sequence[str]) -> dict[str, str | None]:
    """What changes when the file of a URI is written again: its size and time; ``None`` where Spark does not tell."""
    if not uris:
        return {}
    rows = spark.read.format("binaryFile").load([spark_path(name) for name in uris])
    told = {
        _LOCAL.sub(r"\1:///", row.path): f"{row.path} {row.length} {row.modificationTime}"
        for row in rows.select("path", "length", "modificationTime").collect()
    }
    return {name: told.get(name) for name in uris}


def recognise_in_spark(spark: SparkSession, files: LogFiles, reading: Reading, part: bool = False) -> Recognised:
    """:func:`~tricklecast.analytics.lines.reading.recognise_files` of files that Spark reads."""
    return recognise_files(files, reading, lambda name: _sample(spark, name), part)


def _sample(spark: SparkSession, name: str) -> Sequence[bytes]:
    """The first lines of a file that only Spark can read, or of a local one."""
    from pyspark.sql import functions as F

    if not REMOTE.match(name):
        return sample_of(name)
    text = spark.read.option("lineSep", "\n").text(_GLOB.sub(r"\\\1", name))
    rows = text.select(F.substring("value", 1, _TEXT_BYTES).alias("value")).limit(SAMPLE_LINES).collect()
    return [row.value.encode("utf-8", "replace").rstrip(b"\r") for row in rows if row.value.strip()]


def spark_path(name: str) -> str:
    """The path under which Spark reads a file; what looks like a glob in it is taken for what it is.

    Raises:
        BadInput: Spark would pass over the file without a word, or fail on its name.
    """
    if REMOTE.match(name):
        return _GLOB.sub(r"\\\1", name)
    path = os.path.abspath(name)
    if os.path.basename(path)[0] in "._" or ":" in path:
        raise BadInput(f"Spark does not read {name!r}: rename it (no '.' or '_' first, no ':'), or --engine embedded")
    return _GLOB.sub(r"\\\1", path)


def _group(
    spark: SparkSession, form: Format, files: Sequence[tuple[int, str]], reading: Reading, node: str
) -> tuple[DataFrame, Parse]:
    """The rows of files of one format, and how they are parsed."""
    paths = [spark_path(name) for _, name in files]
    # Executors know a file by its path; a number for each is less to hand over with every line.
    file = "crc32(CAST(_metadata.file_path AS BINARY)) AS file"
    if form.name == PARQUET:
        rows = spark.read.option("recursiveFileLookup", "true").parquet(*paths)
        typed = Format(PARQUET, columns=tuple((field.name, field.dataType.simpleString()) for field in rows.schema))
        raw, found = parquet_values(typed, "file", "CAST(NULL AS BIGINT)", "raw_line")
        select = parsed(found, raw, (reading.window.from_us, reading.window.to_us))
        known = {*OWN, *dict(LINE)}
        wanted = [f"`{name}`" for name, _ in typed.columns if name in known]
        return rows.selectExpr(file, *wanted), Parse(select, _numbers(rows, files))
    # What an archive that ends early has before its end is read.
    reader = (
        spark.read.option("lineSep", "\n").option("ignoreCorruptFiles", "true").option("recursiveFileLookup", "true")
    )
    rows = reader.text(paths)
    # A line that is too long is read as far as tells that it is.
    line = f"CASE WHEN octet_length(value) > {MAX_LINE} THEN left(value, {MAX_LINE + 1}) ELSE value END"
    raw = "SELECT file, CAST(NULL AS BIGINT) AS no, line FROM raw_line"
    select = selected(form, reading, raw, node)
    tails = tuple(_shown(tail) for _, name in files if (tail := unfinished_tail(name)) is not None)
    return rows.selectExpr(file, f"CAST({line} AS BINARY) AS line"), Parse(select, _numbers(rows, files), tails)


def _shown(tail: bytes) -> str:
    """The column ``text`` of a bad line."""
    return tail.decode("utf-8", "replace")[:MAX_SAMPLE].rstrip("\r")


def _numbers(rows: DataFrame, files: Sequence[tuple[int, str]]) -> dict[int, int]:
    """The number of each file by the checksum of its path."""
    numbers = {
        re.sub("^file:/+", "/", name) if REMOTE.match(name) else os.path.abspath(name): number for number, name in files
    }
    found = {}
    for path in rows.inputFiles():
        number = numbers.get(re.sub("^file:/+", "/", unquote(path)), files[0][0])
        # With one slash or three: Spark writes the same path in two ways.
        for form in {path, re.sub("^file:/+", "file:/", path)}:
            found[zlib.crc32(form.encode())] = number
    return found


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
