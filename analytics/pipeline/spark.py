"""Spark: executors read and add up, and the driver judges what they found."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import LogFiles, Reading, Window
from tricklecast.analytics.lines.embedded import read_lines as read_here
from tricklecast.analytics.lines.files import REMOTE
from tricklecast.analytics.pipeline.again import (
    MAX_WITH_LINES,
    ROWS,
    all_lines,
    are_few,
    files_having,
    files_of_time,
    moments_of,
    near_lifts,
    shown_lines,
)
from tricklecast.analytics.pipeline.logs_read import logs_read, table_read
from tricklecast.analytics.pipeline.request import Advance, Judgement, ReportRequest, Stage
from tricklecast.analytics.report import figures, requests
from tricklecast.analytics.report.build import LogsRead, ranked
from tricklecast.analytics.report.model import Lift, LogLine
from tricklecast.analytics.rules import engine, incidents
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.scan.normalise import AHEAD_US

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.spark.lines import SparkLines
    from tricklecast.analytics.store.table import Table


MOST_AGAIN: Final = 1000
"""Objects that are read again for lines of incidents, unless one is to be explained."""


@contextmanager
def judge(request: ReportRequest, files: LogFiles, stage: Stage) -> Iterator[Judgement]:
    from tricklecast.analytics.spark import scan
    from tricklecast.analytics.spark.lines import read_lines
    from tricklecast.analytics.spark.session import SMALL_INPUT, failures_as_one_line, spark_session

    assert request.spark is not None
    how, now_us = request.spark, time.time_ns() // 1000
    small = files.size <= SMALL_INPUT and not files.remote
    starting = stage("starting Spark")
    with starting:
        session = spark_session(how.master, small=small, verbose=how.verbose, conf=how.conf)
        spark = session.__enter__()
    try:
        with failures_as_one_line(), _scratch(how.scratch) as folder, ExitStack() as held:
            table: Table | None = None
            spans: Mapping[str, tuple[int, int]] = {}
            read_again: Callable[[tuple[str, ...]], SparkLines]
            if request.table is not None:
                rollup, size, logs, read_again, spans, table = _with_table(spark, request, files, stage, request.table)
            else:
                with stage(f"reading {described(files)}"):
                    read = read_lines(spark, files, request.reading)
                    rolled = scan.roll_up(
                        read, folder, now_us=now_us, latest_us=now_us + AHEAD_US, generic=request.generic
                    )
                rollup, size, found_lines = rolled.rows, rolled.size, rolled.lines
                held.callback(rollup.unpersist)
                logs = logs_read(
                    "spark",
                    files,
                    read.recognised,
                    found_lines.counts,
                    found_lines.damaged,
                    (*read.recognised.gone, *rolled.gone),
                    request.reading,
                )
                spans, read_again = rolled.spans, read.of
            lines = partial(_lines, read_again, request.reading, spans)
            with stage("looking for incidents"):
                connection = held.enter_context(scan.reduce(rollup, size, request.params))
                engine.run(connection, request.params, engine.TOGETHER)
                found = incidents.found(connection)
                figures.prepare(connection)
            again = files_having(spans, moments_of(ranked(found)[:MAX_WITH_LINES]).values())
            judged = Judgement(connection, found, logs, partial(lines, connection), table)
            if files.names:
                judged.all_lines = partial(_all_lines, read_again, spans, connection, request)
                judged.lifts = partial(_lifts, read_again, spans, connection, request)
            if len(list(filter(REMOTE.match, again))) > MOST_AGAIN and request.explain is None:
                text = f"No lines of incidents: {len(again):,} objects would be read again. --explain ID shows some."
                judged.logs = logs.saying(text)
                judged.lines, judged.lifts = lambda shown: {}, lambda shown: {}

            yield judged
    finally:
        session.__exit__(None, None, None)


def _with_table(
    spark: SparkSession, request: ReportRequest, files: LogFiles, stage: Stage, root: str
) -> tuple[DataFrame, int, LogsRead, Callable[[tuple[str, ...]], SparkLines], dict[str, tuple[int, int]], Table]:
    from tricklecast.analytics.spark.lines import read_lines
    from tricklecast.analytics.spark.objects import listed
    from tricklecast.analytics.spark.table import Bucket, OnSpark, spark_rows
    from tricklecast.analytics.store.place import Folder
    from tricklecast.analytics.store.table import Table

    table = Table(Bucket(root, spark) if REMOTE.match(root) else Folder(root), request.keep_us)
    if not files.names and not table.commits:
        raise BadInput(f"there is no table in {root!r}, and no logs were given")
    if files.names:
        files = listed(spark, files, request.reading.window)
        with (
            stage(f"reading what is new in {described(files)}"),
            closing(OnSpark(spark, files, request.reading, request.generic, time.time_ns() // 1000)) as reader,
        ):
            table.add(files, request.reading, request.generic, reader)
    with stage("reading the table"):
        rollup, size, told = spark_rows(spark, table, request.reading.window, files)

    def read_again(names: tuple[str, ...]) -> SparkLines:
        return read_lines(spark, replace(files, names=names), request.reading, overlap=False, part=True)

    return rollup, size, table_read("spark", request, files, table, told), read_again, told.spans, table


@contextmanager
def _scratch(shared: str | None) -> Iterator[str | None]:
    """A folder for the roll-up that does not exist yet, and goes afterwards."""
    if shared is None:
        yield None
        return
    if REMOTE.match(shared):
        # Spark can write there and cannot delete: a life-cycle rule of the bucket may.
        yield f"{shared.rstrip('/')}/tricklecast-{uuid.uuid4().hex}"
        return
    folder = tempfile.mkdtemp(prefix="tricklecast-", dir=shared)
    try:
        yield f"{folder}/rollup"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lines(
    read_again: Callable[[tuple[str, ...]], SparkLines],
    reading: Reading,
    spans: Mapping[str, tuple[int, int]],
    connection: DuckDBPyConnection,
    shown: Sequence[Incident],
) -> dict[str, tuple[LogLine, ...]]:
    """Lines of incidents, read here where their files are few and here, and else by Spark.

    Args:
        read_again: the lines of some files, in Spark. spans: the times that each file has.
    """
    moments = moments_of(shown)
    times = sorted({us for some in moments.values() for us in some})
    names = files_having(spans, moments.values())
    if are_few(names):
        window = Window(times[0], times[-1] + 1)
        lines = read_here(connection, LogFiles(names), replace(reading, window=window), part=True)
        return shown_lines(connection, lines.recognised.names, shown)
    found = read_again(names).of_moments(times).limit(10_000).toArrow()
    connection.register("found_line", found)
    by_name = "CAST(dense_rank() OVER (ORDER BY name) - 1 AS INT) AS file"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE parsed_line AS SELECT * EXCLUDE (name) REPLACE ({by_name}) FROM found_line"
    )
    return shown_lines(connection, sorted(set(found.column("name").to_pylist())), shown)


def _lifts(
    read_again: Callable[[tuple[str, ...]], SparkLines],
    spans: Mapping[str, tuple[int, int]],
    connection: DuckDBPyConnection,
    request: ReportRequest,
    shown: Sequence[Incident],
) -> dict[str, tuple[Lift, ...]]:
    from tricklecast.analytics.spark import scan

    near, names, reading = near_lifts(spans, connection, request, shown)
    if near is not None:
        return near
    again = replace(read_again(names), reading=reading)
    own = scan.own(again, requests.members(connection, shown), request.generic)
    return requests.lifts(shown, own, partial(scan.counted, again))


def _all_lines(
    read_again: Callable[[tuple[str, ...]], SparkLines],
    spans: Mapping[str, tuple[int, int]],
    connection: DuckDBPyConnection,
    request: ReportRequest,
    one: Incident,
    advance: Advance,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from tricklecast.analytics.spark import scan

    names = files_of_time(spans, one.since_us, one.until_us)
    if are_few(names):
        yield from all_lines(connection, LogFiles(names), request, one, advance)
        return
    window = Window(one.since_us, one.until_us + 1)
    again = replace(read_again(names), reading=replace(request.reading, window=window, texts=True))
    rows = scan.chosen(again, requests.members(connection, [one]), request.generic)
    types = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32(), "BOOLEAN": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in requests.EVERY_COLUMNS])
    while some := list(islice(rows, ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema)


def described(files: LogFiles) -> str:
    count = len(files.names)
    size = f", {files.size / 1e6:,.1f} MB" if files.size else ""
    return f"{count:,} file{'' if count == 1 else 's'}{size}"
