"""Files of any format to one frame of lines."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tricklecast.analytics.inputs import ALWAYS, REMOTE, LogFiles, Window, link_readable
from tricklecast.analytics.schema import CORRUPT, log_schema
from tricklecast.analytics.sources.clients import DEFAULT, OWN, ClientKey, client_column, parse_client_key
from tricklecast.analytics.sources.fieldmap import TARGETS, BadFormat, Layout
from tricklecast.analytics.sources.grouping import Far, Group, Grouped, group_files
from tricklecast.analytics.sources.mapped import Mapping, read_mapped
from tricklecast.analytics.sources.native import read_jsonl, read_parquet
from tricklecast.analytics.sources.recognise import AUTO, PARQUET, Format
from tricklecast.analytics.sources.remote import list_remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Reading:
    """How logs are to be read.

    Attributes:
        format: ``auto``, ``tricklecast``, ``nginx``, ``envoy``, ``caddy``, or the path of a field map.
        client_key: whom a line is from, as typed (:mod:`analytics.sources.clients`); ``None`` for what
            suits the format.
        path_prefix: what the paths of the channels begin with; ``None`` for what the field map says.
        keep: lines that are no records are kept as they are, for whoever wants to look at them; it costs time.
        window: only lines of requests that arrived in it; those without a time are kept, to be counted.
    """

    format: str = AUTO
    client_key: str | None = None
    path_prefix: str | None = None
    window: Window = ALWAYS
    keep: bool = False


def recognise(files: LogFiles, reading: Reading | None = None) -> Grouped:
    """The formats of the local files. Needs no Spark: what is wrong with them can be said before it starts.

    Raises:
        BadInput: the format of a file cannot be told.
        BadFormat: there is no such format, or its field map or the client key is wrong.
    """
    reading = reading or Reading()
    grouped = group_files(files.names, reading.format, None, files.searched)
    for group in grouped.groups:
        _check_key(group.format, reading)
    return grouped


def read_logs(spark: SparkSession, files: LogFiles, reading: Reading | None = None) -> DataFrame:
    """The lines of the files, one row each, with the columns of :func:`analytics.schema.log_schema`.

    Raises:
        BadInput: the format of a file cannot be told, or a URI leads nowhere.
        BadFormat: as of :func:`recognise`.
    """
    reading = reading or Reading()
    names = [path for name in files.names for path in _listed(spark, name, reading.window)]
    paths = _readable(spark, names)
    found: list[DataFrame] = []
    far = Far(spark, paths.__getitem__)
    for group in group_files(names, reading.format, far, files.searched).groups:
        _check_key(group.format, reading)
        found.append(_read(spark, group, [paths[name] for name in group.names], files, reading))
    # Made only where it is needed: even without rows it has Spark load all that brings rows over from Python.
    first, *others = found or [spark.createDataFrame([], log_schema())]
    lines = reduce(lambda above, frame: above.unionByName(frame), others, first)
    return _within(_without_unfinished(lines, files), reading.window)


def _listed(spark: SparkSession, name: str, window: Window) -> list[str]:
    return list_remote(spark, name, window) if REMOTE.match(name) else [name]


def _readable(spark: SparkSession, names: Sequence[str]) -> dict[str, str]:
    """Each file's path for Spark. The links among them stay for as long as the session may read them."""
    folder = TemporaryDirectory(prefix="tricklecast-storms-")
    paths = {name: link_readable(name, folder.name, number) for number, name in enumerate(names)}
    if os.listdir(folder.name):
        weakref.finalize(spark, folder.cleanup)
    else:
        folder.cleanup()
    return paths


def _read(spark: SparkSession, group: Group, paths: list[str], files: LogFiles, reading: Reading) -> DataFrame:
    damaged = not set(files.damaged).isdisjoint(group.names)
    # Folders named like partitions would add columns; what they say has been used when the files were chosen.
    options = {"ignoreCorruptFiles": str(damaged).lower(), "recursiveFileLookup": "true"}
    key = _key(reading)
    fields = group.format.fields
    if fields is not None:
        mapping = Mapping(
            fields, group.format.columns, DEFAULT if key is None else key, reading.path_prefix, reading.keep
        )
        return read_mapped(spark, paths, mapping, options)
    if group.format.name == PARQUET:
        lines = read_parquet(spark, paths, options, fits=group.fits)
    else:
        lines = read_jsonl(spark, paths, options)
    return lines if key in (None, OWN) else lines.withColumn("client", client_column(key or OWN, _column))


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(name).cast("string")


def _key(reading: Reading) -> ClientKey | None:
    return None if reading.client_key is None else parse_client_key(reading.client_key)


def _check_key(found: Format, reading: Reading) -> None:
    """Whether the fields of the client key are there to be had."""
    known: frozenset[str] | None = TARGETS
    if found.fields is not None:
        known = TARGETS | set(found.columns) if found.fields.layout is Layout.WORDS else None
    for name in (part for choice in _key(reading) or () for part in choice):
        if known is not None and name not in known:
            raise BadFormat(f"client key: {found.name} has no field {name!r}")


def _without_unfinished(lines: DataFrame, files: LogFiles) -> DataFrame:
    """Without what was being written when the files were read: it will be a line the next time."""
    from pyspark.sql import functions as F

    if not files.unfinished:
        return lines
    broken = F.col(CORRUPT)
    being_written = broken.isNotNull() & F.sha2(broken.cast("binary"), 256).isin(*files.unfinished)
    return lines.where(~being_written)


def _within(lines: DataFrame, window: Window) -> DataFrame:
    from pyspark.sql import functions as F

    if window == ALWAYS:
        return lines
    ts = F.col("ts_us")
    inside = F.lit(True)
    if window.from_us is not None:
        inside &= ts >= window.from_us
    if window.to_us is not None:
        inside &= ts < window.to_us
    return lines.where(F.coalesce(inside, F.lit(True)))
