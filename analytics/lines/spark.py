"""Lines in Spark: the same SQL as in DuckDB, over files that executors read."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.dialect import Engine
from tricklecast.analytics.lines.files import (
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
    BadLine,
    Counts,
    Reading,
    Recognised,
    check_understood,
    parquet_values,
    recognise_files,
    selected,
)
from tricklecast.analytics.lines.recognise import PARQUET, SAMPLE_LINES, Format
from tricklecast.analytics.lines.records import MAX_SAMPLE, PARSED, parsed, view

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

_MISSING: Final = "PATH_NOT_FOUND"
_LOCAL: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
_TEXT_BYTES: Final = 1 << 16
_ROWS: Final = "_rows_to_read_"


@dataclass(frozen=True, slots=True)
class SparkLines:
    """What Spark will read.

    Attributes:
        line: the good lines, with the columns of ``line``. parsed: all of them, the bad ones too.
        recognised: files and formats.
    """

    line: DataFrame
    parsed: DataFrame
    recognised: Recognised
    searched: frozenset[str]
    _observed: Observation
    _dropped: Observation

    def counts(self) -> Counts:
        """What was in the files. Call it when some action has read all of ``line``: this waits for one.

        Raises:
            NothingUnderstood: not one line of a log could be read.
        """
        found, kept = self._observed.get, self._dropped.get
        samples: tuple[BadLine, ...] = ()
        if found["bad"]:
            rows = self.parsed.where("bad IS NOT NULL").select("file", "no", "bad", "text").limit(MAX_SAMPLES).collect()
            names = self.recognised.names
            samples = tuple(BadLine(names[row.file], row.no, row.bad, row.text or "") for row in rows)
            if found["bad"] == found["lines"]:
                check_understood(self.recognised, (), {}, {rows[0].file: found["bad"]})
        return Counts(
            lines=found["lines"],
            bad=found["bad"],
            unrouted=found["unrouted"],
            future=found["future"],
            doubled=found["lines"] - found["bad"] - kept["kept"],
            samples=samples,
        )


def read_lines(
    spark: SparkSession,
    files: LogFiles,
    reading: Reading | None = None,
    now_us: int | None = None,
    overlap: bool | None = None,
) -> SparkLines:
    """The lines of files; nothing is read yet but the beginnings of the files.

    Args:
        now_us: what is later is in the future, microseconds since 1970.
        overlap: whether requests with an id of their own are looked for twice, which costs a shuffle; ``None`` looks
            whether a request that a local file begins with is in another one.

    Raises:
        BadInput: the format of a file cannot be told, or it cannot be read. BadFormat: as of :meth:`Reading.check`.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    reading = reading or Reading()
    files = _listed(spark, files, reading.window)
    if STDIN in files.names:
        raise BadInput("Spark does not read standard input: pass --engine embedded, or a file")
    recognised = recognise_files(files, reading, lambda name: _sample(spark, name))
    frames: list[DataFrame] = []
    blind: dict[int, tuple[str, ...]] = {}
    for form, numbers in recognised.groups():
        named = [(number, recognised.names[number]) for number in numbers]
        frame, cannot = _group(spark, form, named, reading)
        frames.append(frame)
        blind |= dict.fromkeys(numbers, cannot)
    if not frames:
        frames = [spark.createDataFrame([], ", ".join(f"{name} {_type(kind)}" for name, kind in PARSED))]
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    observed, dropped = Observation(), Observation()
    every = reduce(lambda above, frame: above.unionAll(frame), frames)
    unrouted = "bad IS NULL AND kind = 'exchange' AND op IS NULL AND channel IS NULL"
    lines = every.observe(
        observed,
        F.count(F.lit(1)).alias("lines"),
        F.count("bad").alias("bad"),
        F.count_if(F.expr(unrouted)).alias("unrouted"),
        F.count_if(F.expr(f"bad IS NULL AND ts_us > {now_us:d}")).alias("future"),
    ).where("bad IS NULL")
    if _overlap(recognised) if overlap is None else overlap:
        # Only an id tells a line from its double; lines that merely look alike are as many requests.
        key = "coalesce(request, concat('line ', monotonically_increasing_id()))"
        lines = lines.withColumn("_key", F.expr(key)).dropDuplicates(["_key"]).drop("_key")
    good = _sql(spark, view(blind, _ROWS), lines).observe(dropped, F.count(F.lit(1)).alias("kept"))
    return SparkLines(good, every, recognised, files.searched, observed, dropped)


def _sql(spark: SparkSession, select: str, rows: DataFrame) -> DataFrame:
    """Runs a SELECT from :data:`_ROWS`. The session is the user's: no view is left in it."""
    return spark.sql(select.replace("{", "{{").replace("}", "}}").replace(_ROWS, "{rows}"), rows=rows)


def _type(kind: str) -> str:
    return "STRING" if kind == "VARCHAR" else kind


def _listed(spark: SparkSession, files: LogFiles, window: Window) -> LogFiles:
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
    spark: SparkSession, form: Format, files: Sequence[tuple[int, str]], reading: Reading
) -> tuple[DataFrame, tuple[str, ...]]:
    """The parsed lines of files of one format, and the columns that it cannot know."""
    names = ", ".join(name for name, _ in PARSED)
    paths = [spark_path(name) for _, name in files]
    # Executors know a file by its path; a table of a few rows turns it into its number.
    number = _number_of(files)
    if form.name == PARQUET:
        rows = spark.read.option("recursiveFileLookup", "true").parquet(*paths)
        typed = Format(PARQUET, columns=tuple((field.name, field.dataType.simpleString()) for field in rows.schema))
        rows = rows.selectExpr("*", "_metadata.file_path AS file_path")
        raw, found = parquet_values(Engine.SPARK, typed, number, "CAST(NULL AS BIGINT)", _ROWS)
        window = (reading.window.from_us, reading.window.to_us)
        select = parsed(Engine.SPARK, found, raw, window)
        return _sql(spark, f"SELECT {names} FROM ({select}) good", rows), ()
    # What an archive that ends early has before its end is read.
    reader = (
        spark.read.option("lineSep", "\n").option("ignoreCorruptFiles", "true").option("recursiveFileLookup", "true")
    )
    rows = reader.text(paths).selectExpr("value", "_metadata.file_path AS file_path")
    # Without a byte order mark.
    line = "make_valid_utf8(ltrim(decode(unhex('EFBBBF'), 'UTF-8'), value))"
    raw = f"SELECT {number} AS file, CAST(NULL AS BIGINT) AS no, {line} AS line FROM {_ROWS}"
    select, cannot = selected(Engine.SPARK, form, reading, raw)
    tails = [tail for _, name in files if (tail := unfinished_tail(name)) is not None]
    written = ""
    if tails:
        # What is still being written will be a line the next time.
        hashes = ", ".join(f"'{_hash(tail)}'" for tail in tails)
        written = f" WHERE bad IS NULL OR md5(text) NOT IN ({hashes})"
    return _sql(spark, f"SELECT {names} FROM ({select}) good{written}", rows), cannot


def _hash(tail: bytes) -> str:
    """The MD5 of the column ``text`` of a bad line."""
    shown = tail.decode("utf-8", "replace")[:MAX_SAMPLE].rstrip("\r")
    return hashlib.md5(shown.encode(), usedforsecurity=False).hexdigest()


def _number_of(files: Sequence[tuple[int, str]]) -> str:
    if len(files) == 1:
        return str(files[0][0])
    paths = {}
    for number, name in files:
        local = os.path.abspath(name) if not REMOTE.match(name) else name
        paths[local] = number
    return _MAP.format(", ".join(f"{_quoted(path)}, {number}" for path, number in paths.items()))


_MAP: Final = "try_element_at(map({}), regexp_replace(try_url_decode(replace(file_path, '+', '%2B')), '^file:/+', '/'))"


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _overlap(recognised: Recognised) -> bool:
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
