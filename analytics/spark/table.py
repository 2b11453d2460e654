"""The table of :mod:`tricklecast.analytics.store.table` with Spark: on a disk that machines share, or below a URL."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import CannotWrite
from tricklecast.analytics.lines import ALWAYS, Counts, LogFiles, Reading, Window
from tricklecast.analytics.lines.reading import Recognised
from tricklecast.analytics.scan.normalise import AHEAD_US
from tricklecast.analytics.scan.rollup import KEY, MEASURES
from tricklecast.analytics.spark import scan
from tricklecast.analytics.spark.lines import SparkLines, overlapping, read_lines
from tricklecast.analytics.spark.objects import recognise_in_spark, spark_path, versions
from tricklecast.analytics.store.place import (
    HOUR_US,
    Commit,
    Folder,
    Source,
    digest_of,
    folder_of,
    hour_of,
    is_in,
    living,
    missing,
)
from tricklecast.analytics.store.table import Table, TableLogs, Unit, how_read, within

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = (*KEY, *(one.name for one in MEASURES))


class Bucket:
    """A table below a URL, which only Spark can read and write; nothing can be removed there."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        """Args: spark: with access to it."""
        self.root, self._spark = root.rstrip("/"), spark

    def texts(self, kind: str) -> dict[str, str]:
        with nothing_there():
            path = f"{spark_path(self.root)}/{kind}"
            texts = self._spark.read.text(path, wholetext=True, recursiveFileLookup=True)
            rows = texts.selectExpr("_metadata.file_path AS path", "value").collect()
            return {row.path.split("/")[-2]: row.value for row in rows}
        return {}

    def put(self, kind: str, name: str, text: str) -> None:
        row = self._spark.sql("SELECT :text AS value", {"text": text})
        row.coalesce(1).write.text(f"{self.root}/{kind}/{name}")

    def remove(self, kind: str, names: Iterable[str]) -> None:
        """Does nothing: a life-cycle rule removes what is old."""

    def tables(self, kind: str) -> tuple[list[pa.Table], int]:
        """As of :class:`~analytics.store.place.Folder`; what is damaged is not counted."""
        with nothing_there():
            reader = self._spark.read.option("ignoreCorruptFiles", "true")
            return [reader.parquet(f"{spark_path(self.root)}/{kind}").toArrow()], 0
        return [], 0

    def add(self, kind: str, rows: pa.Table, most: int, every: pa.Table) -> None:
        """Adds a Parquet file; a life-cycle rule removes what is old."""
        self._spark.createDataFrame(rows).coalesce(1).write.mode("append").parquet(f"{self.root}/{kind}")

    @contextmanager
    def locked(self, name: str = "lock") -> Iterator[None]:
        """Does nothing: nobody can wait there."""
        yield

    def intact(self, commits: Mapping[str, Commit], hours: range) -> tuple[list[str], set[str]]:
        """As of :class:`~analytics.store.place.Folder`, by the number of rows."""
        live = living(commits)
        wanted = sorted({folder_of(hour) for one in live.values() for hour in one.hours if is_in(hour, hours)})
        paths, there = [f"{spark_path(self.root)}/rollup/{{{','.join(wanted)}}}"], dict[str, int]()
        if wanted:
            with nothing_there():
                counts = read_rows(self._spark, paths).groupBy("source").count().collect()
                there = {row[0]: row[1] for row in counts}

        return paths if there else [], missing(live, there, hours)

    def clean(self, commits: dict[str, Commit], oldest: int) -> None:
        """Does nothing: see :meth:`remove`."""


@contextmanager
def nothing_there() -> Iterator[None]:
    """Passes over a path that does not exist in an object store."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise


def read_rows(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Rows of the table. Files that are damaged or gone give none: who counts rows finds that they are missing."""
    reader = spark.read.option("ignoreCorruptFiles", "true").option("ignoreMissingFiles", "true")
    return reader.schema(scan.SCHEMA).parquet(*paths)


class OnSpark:
    """Reads logs with Spark: one job for all, and one for each group of logs that share requests."""

    def __init__(self, spark: SparkSession, files: LogFiles, reading: Reading, generic: bool, now_us: int) -> None:
        """Args: generic: as of :func:`analytics.spark.scan.roll_up`. now_us: as elsewhere."""
        self._spark, self._files, self._reading = spark, files, replace(reading, window=ALWAYS)
        self._how, self._generic, self._now_us = how_read(reading, generic), generic, now_us
        # Rows that are not written yet; what executors keep on their disks for them; local logs that share requests.
        self._rows: list[DataFrame] = []
        self._held: list[DataFrame] = []
        self._overlap: set[str] = set()

    def versions(self, uris: Sequence[str]) -> Mapping[str, str | None]:
        return versions(self._spark, uris)

    def recognise(self, files: LogFiles) -> Recognised:
        return recognise_in_spark(self._spark, files, self._reading)

    def read(self, units: Mapping[int, Unit], table: Table) -> dict[int, Source]:
        names = tuple(log.name for unit in units.values() for log in unit.logs)
        some = replace(self._files, names=names, searched=self._files.searched & set(names))
        lines = read_lines(self._spark, some, self._reading, overlap=False, part=True)
        table.leave_out(lines.recognised)
        there = {n: unit for n, unit in units.items() if all(log.name in lines.recognised.names for log in unit.logs)}
        alone = {n: unit for n, unit in there.items() if len(unit.logs) == 1}
        if overlapping(lines.recognised):
            forms = zip(lines.recognised.names, lines.recognised.formats, strict=True)
            self._overlap |= {name for name, one in forms if one.fields is not None and "request_id" in one.present}
        made = self._rolled(replace(lines, apart=True), alone, table) if alone else {}
        for number, unit in there.items():
            if number not in alone:
                made |= self._rolled(replace(lines, together=True), {number: unit}, table)
        return made

    def _rolled(self, lines: SparkLines, units: Mapping[int, Unit], table: Table) -> dict[int, Source]:
        from pyspark.sql import functions as f

        lines, name = lines.of(log.name for unit in units.values() for log in unit.logs), uuid.uuid4().hex
        latest_us = self._now_us + AHEAD_US
        rolled = scan.roll_up(lines, now_us=self._now_us, latest_us=latest_us, generic=self._generic, sketched=True)
        hours: dict[str, dict[int, int]] = {}
        hour = f.expr(f"bucket_us div {HOUR_US}")
        for key, at, n in rolled.rows.where("answer IS NOT NULL").groupBy("source", hour).count().collect():
            hours.setdefault(key, {})[at] = n
        self._rows.append(rolled.rows.withColumn("source", f.concat(f.lit(f"{name} "), f.col("source"))))
        self._held.append(rolled.rows)
        made = {}
        for number, unit in units.items():
            if gone := tuple(log.name for log in unit.logs if log.name in rolled.gone):
                table.leave_out(Recognised((), (), gone=gone))
                continue
            key = unit.logs[0].name if lines.apart else ""
            counts, sketch = rolled.counts.get(key, Counts()), sorted(rolled.sketches.get(key, ()))
            made[number] = unit.source(f"{name} {key}", self._how, rolled.lines, counts, hours.get(key, {}), sketch)
        return made

    def shared(self, units: Mapping[int, Unit], made: Mapping[int, Source]) -> list[set[int]]:
        """As of :class:`~analytics.store.table.Embedded`: as without a table, and beyond that by sketches."""
        by_id: dict[int, set[int]] = {}
        for number, source in made.items():
            for id_ in source.sketch:
                by_id.setdefault(id_, set()).add(number)
        local = {n for n in made if n >= 0 and any(log.name in self._overlap for log in units[n].logs)}
        return [numbers for numbers in (*by_id.values(), local) if len(numbers) > 1]

    def write(self, table: Table, name: str, sources: Sequence[Source]) -> dict[str, str]:
        from pyspark.sql import functions as f

        folder, files = table.place.root if isinstance(table.place, Folder) else None, dict[str, str]()
        target = f"{table.place.root}/rollup" if folder is None else os.path.abspath(folder / f".new-{name}")
        rows = reduce(lambda one, other: one.unionAll(other), self._rows)
        live = self._spark.createDataFrame([(one.id,) for one in sources], "source STRING")
        # By numbers: the session's time zone may be any.
        day = f"date_add(DATE'1970-01-01', CAST(bucket_us div {24 * HOUR_US} AS INT)) AS dt"
        hour = f"lpad(CAST(bucket_us div {HOUR_US} % 24 AS STRING), 2, '0') AS hr"
        rows = rows.where("answer IS NOT NULL").join(f.broadcast(live), "source", "left_semi")
        rows = rows.selectExpr(*_COLUMNS, "source", day, hour).hint("rebalance", "dt", "hr")
        rows.write.partitionBy("dt", "hr").mode("append").option("compression", "zstd").parquet(target)
        if folder is None:
            return files
        for number, path in enumerate(sorted(Path(target).glob("dt=*/hr=*/*.parquet"))):
            to = folder / "rollup" / path.parent.relative_to(target) / f"{name}-{number}.parquet"
            to.parent.mkdir(parents=True, exist_ok=True)
            path.replace(to)
            files[str(to.relative_to(folder))] = digest_of(to)
        shutil.rmtree(target, ignore_errors=True)
        if {hour_of(one) for one in files} != set(chain.from_iterable(one.hours for one in sources)):
            raise CannotWrite(
                f"executors do not write to {table.place.root!r}: every machine must see it under this path"
            )
        return files

    def close(self) -> None:
        """Forgets the rows."""
        for rows in self._held:
            rows.unpersist()


def spark_rows(spark: SparkSession, table: Table, window: Window, files: LogFiles) -> tuple[DataFrame, int, TableLogs]:
    """The rows of a window, and how many there are."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    paths, sources = table.rows(window)
    if not paths or not sources:
        return spark.createDataFrame([], scan.SCHEMA), 0, table.found(files, sources, {})
    if isinstance(table.place, Folder):
        paths = [spark_path(os.path.abspath(path)) for path in paths]
    live = spark.createDataFrame([(id_,) for id_ in sources], "source STRING")
    rows = read_rows(spark, paths).join(f.broadcast(live), "source", "left_semi").persist(StorageLevel.DISK_ONLY)
    lines = f.sum(f.expr(f"CASE WHEN answer <> 'cured' AND {within(window)} THEN n END"))
    counted = {row[0]: row[1:] for row in rows.groupBy("source").agg(f.count("*"), lines).collect()}
    for id_ in missing(sources, {id_: row[0] for id_, row in counted.items()}, table.hours(window)):
        table.doubts.append(f"The rows of {sources.pop(id_).logs[0].name!r} cannot be read, and are left out.")
    if len(sources) < len(counted):
        rows = rows.where(f.col("source").isin([*sources]))
    size = sum(row[0] for row in counted.values())
    return (
        rows.where(within(window)),
        size,
        table.found(files, sources, {id_: row[1] or 0 for id_, row in counted.items()}),
    )
