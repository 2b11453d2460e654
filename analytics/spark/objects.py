"""Objects that only Spark can read, with the user's credentials: which there are, of what format, and their rows.

Most text is read by Spark, line by line. Some it cannot: UTF-16, lines that end in CR alone, and what is compressed and
not called so, or by xz or zstd, which not every Hadoop knows. A worker gets such an object as it is, and reads it as
the embedded engine reads a file. It gets all that is compressed, unless it is large: that is less to send.

Spark leaves out a line of more than 16 MiB, since no memory holds it for certain, and does not say so. So the bytes of
the lines that came are compared with the size of their object. If some are missing, a worker gets the object as it is.
Of one that is too large for that, the missing bytes are counted as one line.
"""

from __future__ import annotations

import re
import time
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.files import (
    COMPRESSED,
    REMOTE,
    LogFiles,
    Window,
    in_window,
    is_compressed,
    looks_like_log,
    sample_of,
    utf16,
)
from tricklecast.analytics.lines.reading import KNOWN, Reading, Recognised, recognise_files
from tricklecast.analytics.lines.recognise import PARQUET, SAMPLE_LINES, Format, UnknownFormat, recognise
from tricklecast.analytics.lines.records import MAX_LINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession

_MISSING: Final = "PATH_NOT_FOUND"
_LOCAL: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
_TEXT_BYTES: Final = 1 << 16

LONGEST: Final = 16 << 20
"""Bytes of a line that Spark itself reads; it leaves out longer ones."""

WHOLE: Final = 128 << 20
"""Bytes of an object that a worker is given whole; the executor has them in memory about three times."""

_ANY: Final = (1 << 31) - 1
"""Bytes of a line that Spark reads of what is compressed and larger: there its size does not tell what is missing."""

UNREAD: Final = (".zst", ".xz")
"""Names of what not every Hadoop decompresses."""

SAMPLED: Final = 5
"""Objects of one prefix that are looked into to tell the format of all of them."""

MANY: Final = 100
"""Files of this machine whose names are alike, of which no more are looked into than of objects."""

MAX_FOLDERS: Final = 10_000
"""Folders of days or hours that one URI stands for."""

AT_ONCE: Final = 8
"""Objects that are looked into at the same time: most of it is latency."""

_DAY_US: Final = 86_400_000_000

_HEAD: Final = 1 << 20
"""Bytes of an object that tell its format, where Spark does not read its lines."""


def listed(spark: SparkSession, files: LogFiles, window: Window) -> LogFiles:
    """The files with those in place of each URI that it leads to."""
    names: list[str] = []
    large: set[str] = set()
    searched = set(files.searched)
    for name in files.names:
        if not REMOTE.match(name):
            names.append(name)
            continue
        found = list_remote(spark, name, window)
        names += found
        large.update(one for one, size in found.items() if size > WHOLE)
        if [*found] != [name]:
            searched.update(found)
    names = [*dict.fromkeys(names)]
    return replace(files, names=tuple(names), searched=frozenset(searched), large=frozenset(large))


def list_remote(spark: SparkSession, uri: str, window: Window) -> dict[str, int]:
    """The files below a URI, or those that it is a glob for, without those of other hours; sorted, with their sizes.

    Files of other days are left out before the list is brought here. With ``{yyyy}``, ``{mm}``, ``{dd}``, ``{hh}`` in
    the URI, only the folders of these days (and hours) are listed at all.

    Raises:
        BadInput: there are none, or the URI is for days and the window has no beginning.
    """
    from pyspark.errors import AnalysisException

    # Names and sizes only: nothing of the contents is read.
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    pattern = _of_days(uri, window)
    try:
        rows = files.load(pattern).select("path", "length")
        if (days := _days(window)) is not None:
            day = "regexp_replace(regexp_extract(path, '[/=]([0-9]{4}[-/][0-9]{2}[-/][0-9]{2})/', 1), '/', '-')"
            rows = rows.where(f"{day} = '' OR {day} BETWEEN '{days[0]}' AND '{days[1]}'")
        paths = dict(sorted((row["path"], row["length"]) for row in rows.collect()))
    except AnalysisException as error:
        if error.getCondition() == _MISSING:
            raise BadInput(f"no such log: {uri!r}") from error
        raise
    named = len(paths) == 1 and next(iter(paths)).rstrip("/").endswith(uri.rstrip("/").rpartition("/")[2])
    globbed = any(char in uri for char in "*?[") or pattern != uri
    found = [path for path in paths if named or globbed or looks_like_log(path)]
    if not found:
        raise BadInput(f"no logs (*.jsonl, *.log, *.parquet, also compressed) in {uri!r}")
    return {name_of(path): paths[path] for path in found if in_window(path, window)}


def _days(window: Window) -> tuple[str, str] | None:
    """The first and the last day of a window, one more on either side: a log may be of when requests ended."""
    if window.from_us is None and window.to_us is None:
        return None
    first = _moment(window.from_us - _DAY_US) if window.from_us is not None else datetime.min.replace(tzinfo=UTC)
    last = _moment(window.to_us + _DAY_US) if window.to_us is not None else datetime.max.replace(tzinfo=UTC)
    return f"{first:%Y-%m-%d}".rjust(10, "0"), f"{last:%Y-%m-%d}"


def _moment(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def _of_days(uri: str, window: Window) -> str:
    """A URI with places for days or hours as a glob of those of a window."""
    if "{dd}" not in uri:
        return uri
    if window.from_us is None:
        raise BadInput(f"{uri!r} is for days: pass --since, and --until for the last one")
    step = timedelta(hours=1) if "{hh}" in uri else timedelta(days=1)
    last = _moment(window.to_us if window.to_us is not None else time.time_ns() // 1000)
    at, names = _moment(window.from_us).replace(minute=0, second=0, microsecond=0), []
    # Requests of a window may stand in the hour after it, in which they ended.
    while at.date() <= last.date() if "{hh}" not in uri else at <= last + step:
        made = uri
        for place, code in (("{yyyy}", "%Y"), ("{mm}", "%m"), ("{dd}", "%d"), ("{hh}", "%H")):
            made = made.replace(place, at.strftime(code))
        names.append(made)
        at += step
        if len(names) > MAX_FOLDERS:
            raise BadInput(f"{uri!r} is more than {MAX_FOLDERS:,} folders since --since: leave {{hh}} out of it")
    start = uri.index("{")
    start = uri.rindex("/", 0, start) + 1
    return f"{uri[:start]}{{{','.join(name[start:] for name in dict.fromkeys(names))}}}"


def versions(spark: SparkSession, uris: Sequence[str]) -> dict[str, str | None]:
    """Size and time of the files of URIs: they change when one is written again; ``None`` where Spark does not tell."""
    rows = looked_up(spark, uris)
    return {name: " ".join(map(str, rows[name])) if name in rows else None for name in uris}


def looked_up(spark: SparkSession, uris: Sequence[str]) -> dict[str, Row]:
    """``path``, ``length`` and ``modificationTime`` of files of URIs; nothing is read of the files."""
    if not uris:
        return {}
    files = spark.read.format("binaryFile").load([spark_path(name) for name in uris])
    return {name_of(row.path): row for row in files.select("path", "length", "modificationTime").collect()}


def recognise_in_spark(spark: SparkSession, files: LogFiles, reading: Reading, part: bool = False) -> Recognised:
    """:func:`~tricklecast.analytics.lines.reading.recognise_files` of files that Spark reads.

    Objects of one folder whose names differ in digits only are of one format, if some that are looked into are: then
    they share one sample. So the number of jobs is that of the folders, not of the objects.
    """
    alike: dict[str, list[str]] = {}
    for name in files.names:
        if ".parquet" not in name:
            alike.setdefault(re.sub(r"\d+", "0", name), []).append(name)
    # Each of a few files of this machine is looked into: that costs nothing.
    groups = [names for names in alike.values() if REMOTE.match(names[0]) or len(names) > MANY]
    chosen = [name for names in groups for name in names[:: -(-len(names) // SAMPLED)]]
    samples: dict[str, _Sample] = {}

    def sample(name: str) -> Sequence[bytes]:
        if name not in samples:
            samples[name] = _sample(spark, name)
        return samples[name].lines

    def looked_into(name: str) -> None:
        with suppress(BadInput):  # it has gone, or is wrong in a way that is told below
            sample(name)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(looked_into, chosen))
    first_of: dict[str, str] = {}
    for names in groups:
        parts = {name: samples[name] for name in names if name in samples}
        if len({(one.whole, _format_name(name, one.lines, reading)) for name, one in parts.items()}) == 1:
            lines = [line for one in parts.values() for line in one.lines[: SAMPLE_LINES // len(parts)]]
            first = next(iter(parts))
            samples[first] = replace(parts[first], lines=lines)
            first_of.update((name, first) for name in names)
    few = replace(files, names=tuple(dict.fromkeys(first_of.get(name, name) for name in files.names)))
    found = recognise_files(few, reading, sample, part)
    forms = dict(zip(found.names, found.formats, strict=True))

    def those(firsts: Container[str]) -> tuple[str, ...]:
        return tuple(name for name in files.names if first_of.get(name, name) in firsts)

    every = those(forms)
    return Recognised(
        every,
        tuple(forms[first_of.get(name, name)] for name in every),
        those(found.strange),
        those(found.unreadable),
        found.gone,
        frozenset(those({name for name, one in samples.items() if one.whole}))
        | {name for name in every if REMOTE.match(name) and name.endswith(COMPRESSED) and name not in files.large},
    )


def _format_name(name: str, sample: Sequence[bytes], reading: Reading) -> str | None:
    try:
        return recognise(name, sample, reading.format).name
    except UnknownFormat:
        return None


@dataclass(frozen=True, slots=True)
class _Sample:
    """The first lines of a file, and whether a worker must be given all of it, because Spark cannot read its lines."""

    lines: Sequence[bytes]
    whole: bool = False


def _sample(spark: SparkSession, name: str) -> _Sample:
    from pyspark.errors import AnalysisException

    if not REMOTE.match(name):
        return _Sample(sample_of(name))
    try:
        return _sample_of_object(spark, name)
    except AnalysisException as error:
        if error.getCondition() != _MISSING:
            raise
        raise BadInput(f"no such log: {name!r}") from FileNotFoundError(name)


def _sample_of_object(spark: SparkSession, name: str) -> _Sample:
    if not name.endswith(UNREAD):
        # Whether it is damaged is found when all of it is read.
        text = _lenient(_text(spark, LONGEST)).text(spark_path(name))
        some = text.selectExpr(f"CAST(substring(value, 1, {_TEXT_BYTES}) AS BINARY) AS line").limit(SAMPLE_LINES)
        lines = [bytes(row.line).rstrip(b"\r") for row in some.collect()]
        if lines and not (is_compressed(lines[0]) or utf16(lines[0]) or (len(lines) == 1 and b"\r" in lines[0])):
            return _Sample([line for line in lines if line.strip()])
    # Where not one line is short enough, all that can be said is how many bytes there are.
    found = whole(spark, [name]).where(f"length <= {WHOLE}")
    rows = found.selectExpr(f"substring(content, 1, {_HEAD}) AS head").collect()
    with NamedTemporaryFile() as file:
        file.write(rows[0].head if rows else b"")
        file.flush()
        return _Sample(sample_of(file.name), whole=True)


def whole(spark: SparkSession, names: Sequence[str]) -> DataFrame:
    """The bytes of objects, as ``content``, with the name of each as ``file``; an object is at most 2 GiB."""
    rows = spark.read.format("binaryFile").load([spark_path(name) for name in names])
    return rows.selectExpr("path AS file", "content", "length")


def _text(spark: SparkSession, longest: int) -> DataFrameReader:
    return (
        spark.read.option("lineSep", "\n")
        .option("recursiveFileLookup", "true")
        .option("mapreduce.input.linerecordreader.line.maxlength", str(longest))
    )


def _lenient(reader: DataFrameReader) -> DataFrameReader:
    return reader.option("ignoreCorruptFiles", "true").option("ignoreMissingFiles", "true")


def spark_path(name: str) -> str:
    """The path under which Spark reads a file; what looks like a glob in it is taken for what it is."""
    return _GLOB.sub(r"\\\1", name)


def rows_of(spark: SparkSession, form: Format, names: Sequence[str], *, lenient: bool) -> DataFrame:
    """The rows of files that only Spark can read, with the name of each one's file.

    With a line comes how many bytes it and its end have, and the size of its file, unless that is compressed.
    """
    paths = [spark_path(name) for name in names]
    file = "_metadata.file_path AS file"
    if form.name == PARQUET:
        rows = spark.read.option("recursiveFileLookup", "true").option("mergeSchema", "true").parquet(*paths)
        return rows.selectExpr(file, *(f"`{field.name}`" for field in rows.schema if field.name in KNOWN))
    is_packed = names[0].endswith(COMPRESSED)
    reader = _text(spark, _ANY if is_packed else LONGEST)
    if lenient:
        # These are known to be damaged, and told: what is before the damage is read.
        reader = _lenient(reader)
    taken = [] if is_packed or lenient else ["octet_length(value) + 1 AS taken", "_metadata.file_size AS size"]
    return reader.text(paths).selectExpr(file, cut("value"), *taken)


def cut(column: str) -> str:
    """Spark's SQL for lines of text as workers take them: of one that is too long, as much as tells that it is."""
    # A log that was emptied while its writer went on begins with zeros, which are no part of its first line.
    long = f"left(trim(LEADING chr(0) FROM {column}), {MAX_LINE + 1})"
    line = f"CASE WHEN octet_length({column}) > {MAX_LINE} THEN {long} ELSE {column} END"
    return f"CAST({line} AS BINARY) AS line"


def name_of(path: str, *, quoted: bool = False) -> str:
    """The name of a file of the path that Spark lists, or, quoted, of the URL that it gives with a row."""
    if quoted and (REMOTE.match(path) or _LOCAL.match(path)):
        path = unquote(path)
    # Hadoop writes file:/x for what is file:///x everywhere else.
    return _LOCAL.sub(r"\1:///", path)
