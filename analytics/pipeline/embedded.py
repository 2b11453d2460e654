"""The embedded engine: DuckDB in this process reads and judges."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tricklecast.analytics.errors import BadInput, CannotWrite
from tricklecast.analytics.lines import ALWAYS, LINE, LogFiles, Window
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.lines.files import spooled, unpacked
from tricklecast.analytics.pipeline.again import all_lines, files_having, lifts_of, moments_of, near_lifts, shown_lines
from tricklecast.analytics.pipeline.logs_read import logs_read, table_read
from tricklecast.analytics.pipeline.request import Judgement, ReportRequest, Stage
from tricklecast.analytics.report import figures
from tricklecast.analytics.report.build import NOTHING, LogsRead
from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.report.formats import size as bytes_of
from tricklecast.analytics.report.model import LogLine
from tricklecast.analytics.rules import engine, incidents
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import AHEAD_US

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@contextmanager
def judge(request: ReportRequest, files: LogFiles, stage: Stage) -> Iterator[Judgement]:
    now_us = time.time_ns() // 1000
    known = None if files.pipes else files.size
    with embedded.bounded(known) as connection, ExitStack() as held:
        with stage(f"reading {counted(len(files.names), 'file')}", files.size) as advance:
            files = held.enter_context(spooled(files))
            # How much of the log a part of its time is cannot be known before.
            lack = embedded.missing_room(unpacked(files.names), least=True)
            if lack > 0 and request.reading.window == ALWAYS:
                raise too_large(f"lacks at least {bytes_of(lack)}")
            if is_empty(files):
                columns = ", ".join(f"{name} {kind}" for name, kind in LINE)
                connection.execute(f"CREATE TEMP TABLE line ({columns})")
                names, empty = files.names, replace(NOTHING, nothing=request.reading.window == ALWAYS)
                logs = LogsRead("embedded", names, empty)
            else:
                read = read_lines(connection, files, request.reading, now_us, progress=advance)
                names = read.recognised.names
                logs = logs_read(
                    "embedded",
                    files,
                    read.recognised,
                    read.counts,
                    read.damaged,
                    read.recognised.gone,
                    request.reading,
                )
            embedded.roll_up(connection, _relation(connection, request), latest_us=now_us + AHEAD_US)
        found = find_incidents(connection, request, stage)
        yield Judgement(
            connection,
            found,
            logs,
            lambda shown: shown_lines(connection, names, shown),
            all_lines=lambda one, advance: all_lines(connection, files, request, one, advance),
            lifts=lambda shown: lifts_of(connection, shown, request.generic),
        )


@contextmanager
def judge_table(request: ReportRequest, files: LogFiles, stage: Stage, root: str) -> Iterator[Judgement]:
    from tricklecast.analytics.store.place import Folder
    from tricklecast.analytics.store.table import Embedded, Table, embedded_rows

    table = Table(Folder(root), request.keep_us)
    if not files.names and not table.commits:
        raise BadInput(f"there is no table in {root!r}, and no logs were given")
    if files.names:
        with (
            stage(f"reading what is new in {counted(len(files.names), 'file')}", files.size) as advance,
            embedded.bounded(files.size) as connection,
        ):
            reader = Embedded(connection, files, request.reading, request.generic, time.time_ns() // 1000, advance)
            table.add(files, request.reading, request.generic, reader)
    with embedded.bounded() as connection:
        with stage("reading the table"):
            told = embedded_rows(connection, table, request.reading.window, files)
        found = find_incidents(connection, request, stage)

        def lines(shown: Sequence[Incident]) -> dict[str, tuple[LogLine, ...]]:
            moments = moments_of(shown)
            names = files_having(told.spans, moments.values())
            if not names:
                return {}
            window = Window(min(map(min, moments.values())), max(map(max, moments.values())) + 1)
            read = read_lines(connection, LogFiles(names), replace(request.reading, window=window), part=True)
            return shown_lines(connection, read.recognised.names, shown)

        logs = table_read("embedded", request, files, table, told)
        judged = Judgement(connection, found, logs, lines, table)
        if files.names:
            judged.all_lines = lambda one, advance: all_lines(connection, files, request, one, advance)
            judged.lifts = lambda shown: near_lifts(told.spans, connection, request, shown)[0] or {}
        yield judged


def find_incidents(connection: DuckDBPyConnection, request: ReportRequest, stage: Stage) -> list[Incident]:
    with stage("looking for incidents"):
        embedded.reduce(connection)
        engine.run(connection, request.params)
        found = incidents.found(connection)
        figures.prepare(connection)
        return found


def _relation(connection: DuckDBPyConnection, request: ReportRequest) -> str:
    """The relation that is added up."""
    return embedded.any_server(connection) if request.generic else "line"


def is_empty(files: LogFiles) -> bool:
    return files.size == 0 and not files.remote and not files.pipes


def too_large(why: str) -> CannotWrite:
    folder = tempfile.gettempdir()
    return CannotWrite(
        f"these logs are too large for this machine: {folder!r}, for what does not fit into memory, {why}."
        " Set TMPDIR to a folder on a larger disk, shorten the time (--since, --until), or pass --engine spark"
    )
