"""Incidents from a DataFrame to a DataFrame, in the user's own session, which may be one of Spark Connect.

It reads and writes no file: what comes between stays on the executors' disks. So it runs wherever the session runs,
also with ``--deploy-mode cluster``, in a notebook, or in a job that writes the incidents to a table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.files import STDIN
from tricklecast.analytics.lines.reading import KNOWN, Reading, Recognised
from tricklecast.analytics.lines.recognise import AUTO, PARQUET, SAMPLE_LINES, Format, UnknownFormat, recognise
from tricklecast.analytics.rules import engine
from tricklecast.analytics.rules.incidents import found
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan.normalise import AHEAD_US
from tricklecast.analytics.spark import scan
from tricklecast.analytics.spark.lines import Parse, SparkLines
from tricklecast.analytics.spark.objects import cut
from tricklecast.analytics.store.memory import table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def incidents(
    lines: DataFrame,
    *,
    format: str = AUTO,
    client_key: str | None = None,
    path_prefix: str | None = None,
    generic: bool = False,
    params: Mapping[str, float] | None = None,
) -> DataFrame:
    """The incidents in some log lines.

    Args:
        lines: text in a column ``value`` (``spark.read.text``), with the name of its file in a column ``file`` if there
            is one; or records, with the columns of what ``tricklecast logs compact`` writes.
        format, client_key, path_prefix, generic, params: as of ``tricklecast storms`` (``--set`` for params).

    Returns:
        a row for each incident, in the order of time: ``id``, ``fingerprint``, ``storm``, ``severity``,
        ``confidence``, ``side``, ``since`` and ``until`` (timestamps), ``requests``, ``peak_rps``, ``mean_rps``,
        ``clients`` and ``channels`` (the busiest first), ``nodes``, ``release``, ``trigger``, ``cause``, ``fix``.

    Raises:
        UnknownFormat: the format of the lines cannot be told. NothingUnderstood: not one of them could be read.
        BadInput: the columns are of neither kind. BadFormat: as of ``--format`` and ``--client-key``.
    """
    reading = Reading(format, client_key, path_prefix)
    reading.check()
    spark, now_us = lines.sparkSession, time.time_ns() // 1000
    form, rows = rows_of(lines, reading)
    read = SparkLines(
        spark, Recognised((STDIN,), (form,)), frozenset(), reading, frame=(rows, Parse(form, reading, "rows"))
    )
    rolled = scan.roll_up(read, now_us=now_us, latest_us=now_us + AHEAD_US, generic=generic)
    try:
        limits = Params(**(params or {}))  # type: ignore[arg-type]  # whole numbers are floats, too
        with scan.reduce(rolled.rows, rolled.size, limits) as connection:
            engine.run(connection, limits, engine.TOGETHER)
            table = table_of(found(connection))
    finally:
        rolled.rows.unpersist()
    return spark.createDataFrame(table)


def rows_of(lines: DataFrame, reading: Reading, otherwise: Format | None = None) -> tuple[Format, DataFrame]:
    """The format of some lines, and their rows as workers parse them.

    Args:
        otherwise: their format if it cannot be told.
    """
    names = set(lines.columns)
    file = "CAST(file AS STRING) AS file" if "file" in names and "ts_us" not in names else f"'{STDIN}' AS file"
    if "value" in names:
        first = lines.where("trim(value) <> ''").limit(SAMPLE_LINES).select("value").collect()
        sample = [str(row.value).encode("utf-8", "replace").rstrip(b"\r") for row in first]
        try:
            form = recognise("the DataFrame", sample, reading.format)
        except UnknownFormat:
            if otherwise is None:
                raise
            form = otherwise
        return form, lines.selectExpr(file, cut("value"))
    if not {"ts_us", "kind"} <= names:
        raise BadInput(
            f"incidents() takes lines of text in a column 'value', or records with 'ts_us' and 'kind'; "
            f"these columns are {', '.join(sorted(names)) or 'none'}"
        )
    there = [name for name in lines.columns if name in KNOWN]
    return Format(PARQUET), lines.selectExpr(file, *(f"`{name}`" for name in there))
