"""Rows of new logs into hourly Parquet files, and back."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.durations import HOUR_US
from tricklecast.analytics.incremental.folder import HOURS, WORK
from tricklecast.analytics.incremental.manifest import KnownLog, Manifest, Part
from tricklecast.analytics.incremental.merge import merged
from tricklecast.analytics.inputs import COMPRESSED, LogFiles
from tricklecast.analytics.normalise import normalise
from tricklecast.analytics.rollup import KEY, roll_up
from tricklecast.analytics.schema import log_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE: Final = "source"
"""Column: the id of the log that a row came from."""

HOUR: Final = "hour"
"""Column: hours since the epoch. Lines without a time belong to their log's first hour: they are forgotten with it."""

NO_HOUR: Final = -1
"""The hour of a log in which no line has a time."""

_FOLDER: Final = "of_hour"
"""The same, as Spark takes a column to choose files by: it leaves it out of them."""


Lines = dict[str, dict[int, int]]
"""How many lines, by log and hour."""

_ASIDE: Final = "fresh"
"""Below :data:`WORK`: what is to be taken in."""


@contextmanager
def linked(logs: Mapping[str, KnownLog], files: LogFiles) -> Iterator[LogFiles]:
    """The logs under their ids as names, which is how Spark's rows say where they came from."""
    with TemporaryDirectory(prefix="tricklecast-storms-") as folder:
        names = {key: str(Path(folder, f"{key}{_ending(log.name)}")) for key, log in logs.items()}
        for key, log in logs.items():
            os.symlink(os.path.abspath(log.name), names[key])
        damaged = tuple(names[key] for key, log in logs.items() if log.damaged)
        yield replace(files, names=tuple(names.values()), damaged=damaged, duplicates=())


def _ending(name: str) -> str:
    packed = next((ending for ending in COMPRESSED if name.endswith(ending)), "")
    return ".parquet" if name.endswith(".parquet") else f".jsonl{packed}"


def with_source(lines: DataFrame) -> DataFrame:
    """Lines of :func:`linked` files with :data:`SOURCE`."""
    return lines.withColumn(SOURCE, F.regexp_extract(F.input_file_name(), r"([0-9a-f]{32})\.[a-z0-9.]+$", 1))


def set_aside(
    spark: SparkSession, folder: Path, rows: DataFrame, known: Collection[str] = (), hours: Collection[int] = ()
) -> Lines:
    """Writes the roll-up of logs, with :data:`SOURCE`, to where it does not count yet.

    Args:
        known: logs whose rows are wanted of these ``hours`` only. Their lines without a time stay where they are.

    Returns:
        the lines that were written.
    """
    target = folder / WORK / _ASIDE
    shutil.rmtree(target, ignore_errors=True)
    rows = rows.persist()
    placed = _placed(rows)
    _write(placed.where(~F.col(SOURCE).isin(*known) | _replaceable(hours)) if known else placed, target)
    rows.unpersist()
    return _lines_of(_aside(spark, folder))


def compared(
    spark: SparkSession, folder: Path, manifest: Manifest, logs: Collection[str], hours: Iterable[int]
) -> DataFrame:
    """What was set aside and what is kept of some logs and hours, added up: as if it all were one log."""
    kept, aside = _kept(spark, folder, manifest, logs, hours), _aside(spark, folder)
    return merged(aside if kept is None else kept.unionByName(aside))


def lines_kept(
    spark: SparkSession, folder: Path, manifest: Manifest, logs: Collection[str], hours: Collection[int]
) -> Lines:
    """The lines that would be replaced, were these logs set aside with these hours."""
    kept = _kept(spark, folder, manifest, logs, hours)
    return {} if kept is None else _lines_of(kept.where(_replaceable(hours)))


def write_hours(
    spark: SparkSession,
    folder: Path,
    manifest: Manifest,
    aside: Lines,
    gone: Collection[str],
    known: Collection[str] = (),
    hours: Collection[int] = (),
) -> dict[int, tuple[Part, ...]]:
    """Writes every hour that changes as a whole, under new names; nothing that counts is touched.

    Args:
        aside: what was set aside; nothing if it is empty.
        gone: ids of logs whose rows go; known, hours: as of :func:`set_aside`.

    Returns:
        the files by hour, of the hours that changed.
    """
    changed = {hour for key in gone for hour in manifest.logs[key].hours}
    changed |= {hour for lines in aside.values() for hour in lines} | (set(hours) if known else set())
    before = changed & set(manifest.hours)
    if before:
        here = _read(spark, _paths(folder, manifest, before))
        here = here.where(~F.col(SOURCE).isin(*gone)) if gone else here
        here = here.where(~(F.col(SOURCE).isin(*known) & _replaceable(hours))) if known else here
        if aside:
            here = here.unionByName(_aside(spark, folder).where(F.col(HOUR).isin(*before)))
        _write(here, folder / WORK / "merged")
    new = _adopt(folder / WORK / _ASIDE, folder, changed - before) | _adopt(folder / WORK / "merged", folder, before)
    return {hour: new.get(hour, ()) for hour in changed}


def _aside(spark: SparkSession, folder: Path) -> DataFrame:
    return _read(spark, [folder / WORK / _ASIDE])


def _kept(
    spark: SparkSession, folder: Path, manifest: Manifest, logs: Collection[str], hours: Iterable[int]
) -> DataFrame | None:
    paths = _paths(folder, manifest, hours) if logs else []
    return _read(spark, paths).where(F.col(SOURCE).isin(*logs)) if paths else None


def _replaceable(hours: Collection[int]) -> Column:
    return F.col(HOUR).isin(*hours) & F.col("bucket_us").isNotNull()


def read_hours(spark: SparkSession, folder: Path, manifest: Manifest, hours: Iterable[int]) -> DataFrame:
    """The roll-up of some hours, as if all logs had been read at once."""
    paths = _paths(folder, manifest, hours)
    return merged(_read(spark, paths) if paths else spark.createDataFrame([], _schema(spark)))


def _paths(folder: Path, manifest: Manifest, hours: Iterable[int]) -> list[Path]:
    return [folder / HOURS / part.name for hour in sorted(hours) for part in manifest.hours.get(hour, ())]


def _read(spark: SparkSession, paths: list[Path]) -> DataFrame:
    reader = spark.read.schema(_schema(spark)).option("recursiveFileLookup", "true")
    return reader.parquet(*[path.as_uri() for path in paths])


def _schema(spark: SparkSession) -> StructType:
    """What the roll-up of no lines at all has for columns: nothing has to be inferred from files."""
    nothing = spark.createDataFrame([], log_schema()).withColumn(SOURCE, F.lit(""))
    return roll_up(normalise(nothing, keep=[SOURCE]), also=[SOURCE]).withColumn(HOUR, F.lit(0).cast("long")).schema


def _placed(rows: DataFrame) -> DataFrame:
    starts = rows.groupBy(SOURCE).agg(F.min("bucket_us").alias("start_us"))
    hour = F.coalesce(F.expr(f"coalesce(bucket_us, start_us) DIV {HOUR_US}"), F.lit(NO_HOUR)).cast("long")
    return rows.join(F.broadcast(starts), SOURCE).withColumn(HOUR, hour).select(*rows.columns, HOUR)


def _lines_of(rows: DataFrame) -> Lines:
    found: Lines = {}
    for row in rows.groupBy(SOURCE, HOUR).agg(F.sum("n").alias("n")).collect():
        found.setdefault(row[SOURCE], {})[row[HOUR]] = row["n"]
    return found


def _write(rows: DataFrame, folder: Path) -> None:
    """One file per hour, its rows in order, so that the same rows make the same file."""
    ordered = rows.withColumn(_FOLDER, F.col(HOUR)).repartition(_FOLDER).sortWithinPartitions(_FOLDER, SOURCE, *KEY)
    ordered.write.partitionBy(_FOLDER).option("compression", "zstd").parquet(folder.as_uri())


def _adopt(written: Path, folder: Path, hours: Iterable[int]) -> dict[int, tuple[Part, ...]]:
    """Moves Spark's files to where they will count, under names that say what is in them."""
    adopted: dict[int, tuple[Part, ...]] = {}
    for hour in hours:
        parts = [_adopted(path, folder, hour) for path in sorted(written.glob(f"{_FOLDER}={hour}/*.parquet"))]
        if parts:
            adopted[hour] = tuple(parts)
    return adopted


def _adopted(path: Path, folder: Path, hour: int) -> Part:
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        os.fsync(file.fileno())
    part = Part(f"{hour_name(hour)}.{checksum}.parquet", path.stat().st_size)
    path.replace(folder / HOURS / part.name)
    return part


def hour_name(hour: int) -> str:
    """An hour as people read it: ``2025-10-09T14``."""
    return "no-time" if hour == NO_HOUR else datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H")
