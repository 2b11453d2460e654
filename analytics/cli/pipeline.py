"""From files to a report, with either engine."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tricklecast.analytics.cli.maintenance import Maintenance
from tricklecast.analytics.cli.outputs import write_rows
from tricklecast.analytics.errors import BadInput, CannotWrite
from tricklecast.analytics.lines import ALWAYS, LINE, BadLine, Counts, LogFiles, Reading, Window
from tricklecast.analytics.lines.files import REMOTE, LineReader, is_parquet, shown_name, spooled, unpacked
from tricklecast.analytics.report import figures, requests
from tricklecast.analytics.report.build import Source, build, ranked
from tricklecast.analytics.report.formats import counted, date_and_time
from tricklecast.analytics.report.formats import size as bytes_of
from tricklecast.analytics.report.model import Figures, History, Lift, LogLine, Rate, Report
from tricklecast.analytics.rules import engine, incidents
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.scan.normalise import AHEAD_US

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.lines.reading import Recognised
    from tricklecast.analytics.spark.lines import SparkLines
    from tricklecast.analytics.store.table import Found, Table

Advance = Callable[[int], object]


class Stage(Protocol):
    """Announces a stage of the work for as long as its context is open."""

    def __call__(self, name: str, total: int = 0) -> AbstractContextManager[Advance]:
        """Opens it.

        Args:
            name: what is done. total: bytes to read, 0 where that is not known; the context's value is told those read.
        """


MAX_WITH_LINES: Final = 200
"""Incidents, the worst first, of which lines are shown."""

MAX_LINES: Final = 5
"""Lines per incident: the first one of each phase and the last one."""

READ_HERE: Final = 256 << 20
"""Bytes of files that are read on this machine for lines of incidents that Spark found."""

MOST_AGAIN: Final = 1000
"""Objects that are read again for lines of incidents, unless one is to be explained."""

MANY_LINES: Final = 10
"""Lines that are left out, from which on the report says so first."""

MAX_NAMED: Final = 20
"""Files that a caveat names."""

ROWS: Final = 10_000
"""Lines of an incident that are written at a time."""

_MAX_TEXT: Final = 4000

Step = tuple[str, list[str], list[tuple[Any, ...]]]
"""A table of the rules, names of its columns, rows."""


@dataclass(frozen=True, slots=True)
class Spark:
    """How Spark is run.

    Attributes:
        master: where; ``None`` leaves it to ``spark-submit``. conf: settings of the user's.
        scratch: a folder for the roll-up that all executors share; ``None`` keeps it on their disks.
        verbose: show its log.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    scratch: str | None = None
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is made of.

    Attributes:
        files, reading: the lines. params: thresholds. baseline: other logs to compare with, or a time in the table.
        generic: whether all lines are judged as those of any web server, by method, path and status.
        explain: the incident whose steps are wanted: its id, the beginning of it, or its number in the report.
        spark: ``None`` for the embedded engine.
        maintenance: incidents that lie in one of its windows are muted.
        table: a folder, or with Spark a URL, where roll-ups of logs are kept: the files are added to it, and the report
            is on all that is in it. keep_us: for how long, microseconds; ``None`` for the usual time.
    """

    files: LogFiles
    reading: Reading
    params: Params
    baseline: LogFiles | Window | None = None
    generic: bool = False
    explain: str | None = None
    spark: Spark | None = None
    maintenance: Maintenance = field(default_factory=Maintenance)
    table: str | None = None
    keep_us: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A report; the id of the incident to be explained, and the steps that led to it; how it was made."""

    report: Report
    explained: str | None = None
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Judged:
    """What one engine found in some logs; the connection has the tables of the last rules."""

    connection: DuckDBPyConnection
    found: list[Incident]
    source: Source
    lines: Callable[[Sequence[Incident]], dict[str, tuple[LogLine, ...]]]
    table: Table | None = None
    # Reads the logs again, for all lines of one incident.
    every: Callable[[Incident, Advance], Iterator[pa.RecordBatch]] | None = None
    # What sets the requests of incidents apart, by their ids.
    lifts: Callable[[Sequence[Incident]], dict[str, tuple[Lift, ...]]] = lambda shown: {}


def make(asked: Asked, stage: Stage) -> Made:
    """Makes the report.

    Raises:
        BadInput: a file cannot be read, or nothing of it was understood; there is no such incident.
        SparkUnavailable, SparkFailed: Spark is missing, did not start, or failed.
    """
    with _own_errors():
        return _make(asked, stage)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Turns what DuckDB makes of Ctrl-C back into what it was, and tells of a full disk in one line."""
    import duckdb

    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        # The second where the rows came from Python.
        if "Query interrupted" in str(error) or "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from error
        full = "max_temp_directory_size" in str(error) or os.strerror(errno.ENOSPC) in str(error)
        if full or isinstance(error, duckdb.OutOfMemoryException):
            raise _too_large("is full" if full else "did not help: memory is short") from error
        raise


def _too_large(why: str) -> CannotWrite:
    folder = tempfile.gettempdir()
    return CannotWrite(
        f"these logs are too large for this machine: {folder!r}, for what does not fit into memory, {why}."
        " Set TMPDIR to a folder on a larger disk, shorten the time (--since, --until), or pass --engine spark"
    )


def _judged(asked: Asked, files: LogFiles, stage: Stage) -> AbstractContextManager[_Judged]:
    if asked.table is not None:
        asked = replace(asked, reading=replace(asked.reading, window=_minutes(asked.reading.window)))
    if asked.spark is not None:
        return _spark(asked, files, stage)
    if asked.table is not None:
        return _embedded_table(asked, files, stage, asked.table)
    return _embedded(asked, files, stage)


def _make(asked: Asked, stage: Stage) -> Made:
    looked_at = asked.reading.window if asked.table is None else _minutes(asked.reading.window)
    before: tuple[Figures, int] | None = None
    if asked.baseline is not None:
        how, earlier = replace(asked, table=None), asked.baseline
        if isinstance(earlier, Window):
            how, earlier = replace(asked, reading=replace(asked.reading, window=earlier)), LogFiles(())
        with stage("reading the baseline"), _judged(how, earlier, stage) as other:
            before = figures.figures(other.connection), len(other.found)
    with _judged(asked, asked.files, stage) as here:
        with stage("writing the report"):
            shown = ranked(here.found)[:MAX_WITH_LINES]
            chosen = _chosen(here.found, asked.explain) if asked.explain is not None else None
            if chosen is not None and chosen not in shown:
                shown.append(chosen)
            rates: tuple[Rate, ...] = ()
            if before is not None:
                rates = figures.compare(figures.figures(here.connection), len(here.found), *before)
            lines = here.lines(shown) if shown else {}
            source = replace(here.source, caveats=(*_looked_at(looked_at), *here.source.caveats))
            muted = {
                one.id: f"in maintenance ({window})"
                for one in here.found
                if (window := asked.maintenance.covers(one.since_us, one.until_us))
            }
            history: dict[str, History] = {}
            notes = list(here.table.notes) if here.table is not None else []
            if here.table is not None:
                from tricklecast.analytics.store.memory import Memory

                memory, now_us = Memory(here.table.place), _now_us()
                history = memory.history(here.found)
                muted |= memory.muted(here.found, now_us)
                if asked.files.names and asked.explain is None:
                    memory.remember(here.found, now_us)
                if memory.damaged:
                    notes.append(f"{counted(memory.damaged, 'damaged file')} of incidents in {asked.table}: left out")
            report = build(
                here.connection,
                here.found,
                source,
                params=asked.params,
                lines=lines,
                baseline=rates,
                lifts=here.lifts(many) if (many := requests.comparable(shown)) else {},
                history=history,
                muted=muted,
            )
            steps = tuple(engine.explain(here.connection, chosen.number)) if chosen is not None else ()
        return Made(report, chosen.id if chosen else None, steps, tuple(notes))


def write_lines(asked: Asked, file: str, wanted: str, stage: Stage) -> int:
    """Writes all lines of one incident to a file as they are found, and returns how many.

    Args:
        file: its name; Parquet if it ends so, else an object of JSON per line; ``-`` for standard output.
        wanted: the incident's id, the beginning of it, or its number in the report.

    Raises:
        as :func:`make`. CannotWrite: the file cannot be written.
    """
    with _own_errors(), _judged(asked, asked.files, stage) as here:
        if here.every is None:
            raise BadInput("the lines of incidents stand in the logs: pass these, too")
        chosen = _chosen(here.found, wanted)
        with stage(f"reading the lines of {chosen.id}", asked.files.size) as advance:
            lines = here.every(chosen, advance)
            if (first := next(lines, None)) is None:
                raise BadInput(f"the lines of {chosen.id} have gone: the logs changed while they were read")
            return write_rows(file, chain((first,), lines))


def _chosen(found: Sequence[Incident], wanted: str) -> Incident:
    order = ranked(found)
    if wanted.isdecimal() and 1 <= int(wanted) <= len(order):
        return order[int(wanted) - 1]
    matching = [one for one in order if one.id == wanted] or [one for one in order if one.id.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise BadInput(f"{len(matching)} incidents have an id that begins with {wanted}: {matching[0].id} …")
    if not order:
        raise BadInput(f"there is no incident {wanted}: these logs have no incidents")
    ids = [one.id for one in order]
    near = get_close_matches(wanted, ids, cutoff=0.5) or ids[:3]
    raise BadInput(
        f"there is no incident {wanted} in these logs. Of their {len(ids):,},"
        f" {'the nearest are' if near != ids[:3] else 'the worst are'} {', '.join(near)}; --json-file lists all"
    )


# --- the embedded engine


@contextmanager
def _embedded(asked: Asked, files: LogFiles, stage: Stage) -> Iterator[_Judged]:
    from tricklecast.analytics.lines.embedded import read_lines

    now_us = _now_us()
    known = None if files.pipes else files.size
    with embedded.bounded(known) as connection, ExitStack() as held:
        with stage(f"reading {counted(len(files.names), 'file')}", files.size) as advance:
            files = held.enter_context(spooled(files))
            # How much of the log a part of its time is cannot be known before.
            lack = embedded.missing_room(unpacked(files.names), least=True)
            if lack > 0 and asked.reading.window == ALWAYS:
                raise _too_large(f"lacks at least {bytes_of(lack)}")
            if _is_empty(files):
                columns = ", ".join(f"{name} {kind}" for name, kind in LINE)
                connection.execute(f"CREATE TEMP TABLE line ({columns})")
                names, source = files.names, Source("embedded", files.names, nothing=asked.reading.window == ALWAYS)
            else:
                read = read_lines(connection, files, asked.reading, now_us, progress=advance)
                names = read.recognised.names
                source = _source(
                    "embedded",
                    files,
                    read.recognised,
                    read.counts,
                    read.damaged,
                    read.recognised.gone,
                    asked.reading.window,
                )
            embedded.roll_up(connection, _relation(connection, asked), latest_us=now_us + AHEAD_US)
        found = _found(connection, asked, stage)
        yield _Judged(
            connection,
            found,
            source,
            lambda shown: _lines(connection, names, shown),
            every=lambda one, advance: _every(connection, files, asked, one, advance),
            lifts=lambda shown: _lifts(connection, shown, asked.generic),
        )


def _relation(connection: DuckDBPyConnection, asked: Asked) -> str:
    """What is added up."""
    return embedded.any_server(connection) if asked.generic else "line"


def _found(connection: DuckDBPyConnection, asked: Asked, stage: Stage) -> list[Incident]:
    with stage("looking for incidents"):
        embedded.reduce(connection)
        engine.run(connection, asked.params)
        found = incidents.found(connection)
        figures.prepare(connection)
        return found


@contextmanager
def _embedded_table(asked: Asked, files: LogFiles, stage: Stage, root: str) -> Iterator[_Judged]:
    from tricklecast.analytics.lines.embedded import read_lines
    from tricklecast.analytics.store.table import Embedded, Folder, Table, embedded_rows

    table = Table(Folder(root), asked.keep_us)
    if not files.names and not table.commits:
        raise BadInput(f"there is no table in {root!r}, and no logs were given")
    if files.names:
        with (
            stage(f"reading what is new in {counted(len(files.names), 'file')}", files.size) as advance,
            embedded.bounded(files.size) as connection,
        ):
            reader = Embedded(connection, files, asked.reading, asked.generic, _now_us(), advance)
            table.add(files, asked.reading, asked.generic, reader)
    with embedded.bounded() as connection:
        with stage("reading the table"):
            told = embedded_rows(connection, table, asked.reading.window, files)
        found = _found(connection, asked, stage)

        def lines(shown: Sequence[Incident]) -> dict[str, tuple[LogLine, ...]]:
            moments = _moments(shown)
            names = _having(told.spans, moments.values())
            if not names:
                return {}
            window = Window(min(map(min, moments.values())), max(map(max, moments.values())) + 1)
            read = read_lines(connection, LogFiles(names), replace(asked.reading, window=window), part=True)
            return _lines(connection, read.recognised.names, shown)

        source = _of_table("embedded", asked, files, table, told)
        judged = _Judged(connection, found, source, lines, table)
        if files.names:
            judged.every = lambda one, advance: _every(connection, files, asked, one, advance)
            judged.lifts = lambda shown: _near_lifts(told.spans, connection, asked, shown)[0] or {}
        yield judged


def _of_table(name: Any, asked: Asked, files: LogFiles, table: Table, told: Found) -> Source:
    """What the report says of the logs behind the rows of a table."""
    source = _source(name, files, told, told.counts, told.damaged, window=asked.reading.window)
    caveats = [*source.caveats, *table.caveats]
    if not files.names:
        caveats.append("No logs were given: incidents are shown without their lines.")
    return replace(source, caveats=tuple(caveats), doubts=(*table.doubts, *source.doubts))


def _is_empty(files: LogFiles) -> bool:
    return files.size == 0 and not files.remote and not files.pipes


def _lines(
    connection: DuckDBPyConnection, names: Sequence[str], shown: Sequence[Incident]
) -> dict[str, tuple[LogLine, ...]]:
    """Lines of incidents as they stand in their files."""
    ids = {one.number: one.id for one in shown}
    answer = connection.execute(
        f"""WITH moments AS (
            SELECT incident, nodes, clients, named, channels,
                unnest(list_distinct([one.first_us FOR one IN phases][:{MAX_LINES - 1}] || [last_us])) AS ts_us
            FROM incidents WHERE incident IN ({", ".join(map(str, ids))})
        )
        SELECT m.incident, p.* EXCLUDE (bad)
        FROM moments m JOIN parsed_line p ON p.ts_us = m.ts_us AND p.bad IS NULL AND p.kind = 'exchange'
        WHERE list_contains(m.nodes, coalesce(p.node, ''))
            AND (NOT m.named OR list_contains(m.clients, substr(p.client, 1, 256)))
        QUALIFY row_number() OVER (PARTITION BY m.incident, m.ts_us
            ORDER BY coalesce(list_contains(m.channels, p.channel), false) DESC, p.file, p.no) = 1
        ORDER BY m.incident, p.ts_us, p.file, p.no"""
    )
    columns = [column[0] for column in answer.description or ()]
    rows = [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]
    texts = _texts(names, {(row["file"], row["no"]) for row in rows if row["text"] is None and row["no"] is not None})
    made: dict[str, list[LogLine]] = {}
    for row in rows:
        incident, file, no, text = (row.pop(name) for name in ("incident", "file", "no", "text"))
        text = texts.get((file, no), text)
        line = _understood(row) if text is None else LogLine(text[:_MAX_TEXT], shown_name(names[file]), no)
        made.setdefault(ids[incident], []).append(line)
    return {key: tuple(lines) for key, lines in made.items()}


def _lifts(connection: DuckDBPyConnection, shown: Sequence[Incident], generic: bool) -> dict[str, tuple[Lift, ...]]:
    requests.find(connection, requests.members(connection, shown), generic)
    own = connection.execute(requests.own_sql()).fetchall()
    count = lambda wanted: connection.execute(requests.count_sql(connection, wanted)).fetchall()  # noqa: E731
    return requests.lifts(shown, own, count)


def _every(
    connection: DuckDBPyConnection, files: LogFiles, asked: Asked, one: Incident, advance: Advance
) -> Iterator[pa.RecordBatch]:
    """All lines of an incident, in the order of time."""
    from tricklecast.analytics.lines.embedded import read_lines

    reading = replace(asked.reading, window=Window(one.since_us, one.until_us + 1), texts=True)
    names = read_lines(connection, files, reading, part=True, progress=advance).recognised.names
    requests.find(connection, requests.members(connection, [one]), asked.generic)
    every = requests.every_sql(connection, tuple(map(shown_name, names)))
    found = connection.sql(f"{every} ORDER BY ts_us, file, no")
    # DuckDB has renamed it.
    yield from (found.to_arrow_reader if hasattr(found, "to_arrow_reader") else found.fetch_arrow_reader)(ROWS)


def _texts(names: Sequence[str], wanted: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Lines by file and number, from files that can be read twice."""
    found: dict[tuple[int, int], str] = {}
    for file in {number for number, _ in wanted}:
        numbers = sorted(no for number, no in wanted if number == file)
        if is_parquet(names[file]):
            continue
        first = 1
        for block in LineReader(names[file]).blocks():
            count = block.count(b"\n")
            if numbers and numbers[0] <= first + count:
                lines = block.split(b"\n")
                while numbers and numbers[0] < first + len(lines):
                    text = lines[numbers[0] - first][:_MAX_TEXT]
                    found[file, numbers.pop(0)] = text.decode("utf-8", "replace").rstrip("\r")
            if not numbers:
                break
            first += count
    return found


def _understood(row: Mapping[str, Any]) -> LogLine:
    """A record in place of a line that cannot be read again."""
    return LogLine(json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False))


# --- Spark


@contextmanager
def _spark(asked: Asked, files: LogFiles, stage: Stage) -> Iterator[_Judged]:
    from tricklecast.analytics.spark import scan
    from tricklecast.analytics.spark.lines import read_lines
    from tricklecast.analytics.spark.session import SMALL_INPUT, failures_as_one_line, spark_session

    assert asked.spark is not None
    how, now_us = asked.spark, _now_us()
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
            if asked.table is not None:
                rollup, size, source, read_again, spans, table = _spark_table(spark, asked, files, stage, asked.table)
            else:
                with stage(f"reading {_what(files)}"):
                    read = read_lines(spark, files, asked.reading)
                    rolled = scan.roll_up(
                        read, folder, now_us=now_us, latest_us=now_us + AHEAD_US, generic=asked.generic
                    )
                rollup, size, found_lines = rolled.rows, rolled.size, rolled.lines
                held.callback(rollup.unpersist)
                source = _source(
                    "spark",
                    files,
                    read.recognised,
                    found_lines.counts,
                    found_lines.damaged,
                    (*read.recognised.gone, *rolled.gone),
                    asked.reading.window,
                )
                spans, read_again = rolled.spans, read.of
            lines: _LinesOf = partial(_spark_lines, read_again, asked.reading, spans)
            with stage("looking for incidents"):
                connection = held.enter_context(scan.reduce(rollup, size, asked.params))
                engine.run(connection, asked.params, engine.TOGETHER)
                found = incidents.found(connection)
                figures.prepare(connection)
            again = _having(spans, _moments(ranked(found)[:MAX_WITH_LINES]).values())
            judged = _Judged(connection, found, source, partial(lines, connection), table)
            if files.names:
                judged.every = partial(_spark_every, read_again, spans, connection, asked)
                judged.lifts = partial(_spark_lifts, read_again, spans, connection, asked)
            if len(list(filter(REMOTE.match, again))) > MOST_AGAIN and asked.explain is None:
                text = f"No lines of incidents: {len(again):,} objects would be read again. --explain ID shows some."
                judged.source = replace(source, caveats=(*source.caveats, text))
                judged.lines, judged.lifts = lambda shown: {}, lambda shown: {}

            yield judged
    finally:
        session.__exit__(None, None, None)


_LinesOf = Callable[["DuckDBPyConnection", Sequence[Incident]], dict[str, tuple[LogLine, ...]]]
"""Gives lines of incidents, in a database that has the table of incidents."""


def _spark_table(
    spark: SparkSession, asked: Asked, files: LogFiles, stage: Stage, root: str
) -> tuple[DataFrame, int, Source, Callable[[tuple[str, ...]], SparkLines], dict[str, tuple[int, int]], Table]:
    from tricklecast.analytics.spark.lines import read_lines
    from tricklecast.analytics.spark.objects import listed
    from tricklecast.analytics.spark.table import Bucket, OnSpark, spark_rows
    from tricklecast.analytics.store.table import Folder, Table

    table = Table(Bucket(root, spark) if REMOTE.match(root) else Folder(root), asked.keep_us)
    if not files.names and not table.commits:
        raise BadInput(f"there is no table in {root!r}, and no logs were given")
    if files.names:
        files = listed(spark, files, asked.reading.window)
        with (
            stage(f"reading what is new in {_what(files)}"),
            closing(OnSpark(spark, files, asked.reading, asked.generic, _now_us())) as reader,
        ):
            table.add(files, asked.reading, asked.generic, reader)
    with stage("reading the table"):
        rollup, size, told = spark_rows(spark, table, asked.reading.window, files)

    def read_again(names: tuple[str, ...]) -> SparkLines:
        return read_lines(spark, replace(files, names=names), asked.reading, overlap=False, part=True)

    return rollup, size, _of_table("spark", asked, files, table, told), read_again, told.spans, table


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


def _moments(shown: Sequence[Incident]) -> dict[str, list[int]]:
    """When the lines that are shown of incidents came, by the incident's id."""
    return {one.id: sorted({*[phase.since_us for phase in one.phases][: MAX_LINES - 1], one.until_us}) for one in shown}


def _having(spans: Mapping[str, tuple[int, int]], moments: Iterable[Sequence[int]]) -> tuple[str, ...]:
    """The files that may have lines of some moments, and that are still there."""
    times = sorted({us for some in moments for us in some})
    return tuple(
        name
        for name, (first, last) in spans.items()
        if bisect_left(times, first) < bisect_right(times, last) and (REMOTE.match(name) or os.path.exists(name))
    )


def _spark_lines(
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
    moments = _moments(shown)
    times = sorted({us for some in moments.values() for us in some})
    names = _having(spans, moments.values())
    if _are_few(names):
        from tricklecast.analytics.lines.embedded import read_lines

        window = Window(times[0], times[-1] + 1)
        lines = read_lines(connection, LogFiles(names), replace(reading, window=window), part=True)
        return _lines(connection, lines.recognised.names, shown)
    found = read_again(names).of_moments(times).limit(10_000).toArrow()
    connection.register("found_line", found)
    by_name = "CAST(dense_rank() OVER (ORDER BY name) - 1 AS INT) AS file"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE parsed_line AS SELECT * EXCLUDE (name) REPLACE ({by_name}) FROM found_line"
    )
    return _lines(connection, sorted(set(found.column("name").to_pylist())), shown)


def _of_time(spans: Mapping[str, tuple[int, int]], since: int, until: int) -> tuple[str, ...]:
    """The files that may have requests of a time, and that are still there."""
    names = (name for name, (first, last) in spans.items() if first <= until and since <= last)
    return tuple(name for name in names if REMOTE.match(name) or os.path.exists(name))


def _are_few(names: Sequence[str]) -> bool:
    return not any(REMOTE.match(name) for name in names) and unpacked(names) <= READ_HERE


def _near_lifts(
    spans: Mapping[str, tuple[int, int]], connection: DuckDBPyConnection, asked: Asked, shown: Sequence[Incident]
) -> tuple[dict[str, tuple[Lift, ...]] | None, tuple[str, ...], Reading]:
    """What sets the requests of incidents apart, if their files are few and here; these files, and how they are read.

    Args:
        spans: the times that each file has.
    """
    from tricklecast.analytics.lines.embedded import read_lines

    # All requests of a second are counted, also of that in which an incident begins.
    since = min(one.since_us for one in shown) // 1_000_000 * 1_000_000
    until = (max(one.until_us for one in shown) // 1_000_000 + 1) * 1_000_000
    names, window = _of_time(spans, since, until), asked.reading.window
    whole = Window(max(since, window.from_us or since), min(until, window.to_us or until))
    reading = replace(asked.reading, window=whole)
    if not _are_few(names):
        return None, names, reading
    read_lines(connection, LogFiles(names), reading, part=True)
    return _lifts(connection, shown, asked.generic), names, reading


def _spark_lifts(
    read_again: Callable[[tuple[str, ...]], SparkLines],
    spans: Mapping[str, tuple[int, int]],
    connection: DuckDBPyConnection,
    asked: Asked,
    shown: Sequence[Incident],
) -> dict[str, tuple[Lift, ...]]:
    from tricklecast.analytics.spark import scan

    near, names, reading = _near_lifts(spans, connection, asked, shown)
    if near is not None:
        return near
    again = replace(read_again(names), reading=reading)
    own = scan.own(again, requests.members(connection, shown), asked.generic)
    return requests.lifts(shown, own, partial(scan.counted, again))


def _spark_every(
    read_again: Callable[[tuple[str, ...]], SparkLines],
    spans: Mapping[str, tuple[int, int]],
    connection: DuckDBPyConnection,
    asked: Asked,
    one: Incident,
    advance: Advance,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from tricklecast.analytics.spark import scan

    names = _of_time(spans, one.since_us, one.until_us)
    if _are_few(names):
        yield from _every(connection, LogFiles(names), asked, one, advance)
        return
    window = Window(one.since_us, one.until_us + 1)
    again = replace(read_again(names), reading=replace(asked.reading, window=window, texts=True))
    rows = scan.chosen(again, requests.members(connection, [one]), asked.generic)
    types = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32(), "BOOLEAN": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in requests.EVERY_COLUMNS])
    while some := list(islice(rows, ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema)


# --- what both share


def _source(
    name: Any,
    files: LogFiles,
    recognised: Recognised | Found,
    counts: Counts,
    damaged: Sequence[str],
    gone: Sequence[str] = (),
    window: Window = ALWAYS,
) -> Source:
    """What the report says of the files.

    Raises:
        BadInput: not one line came out of them, and one is damaged: that is no log without incidents.
    """
    if damaged and not counts.lines:
        raise BadInput(f"nothing could be read of {shown_name(damaged[0])!r}, which is damaged")
    caveats = [f"{one!r} is damaged and was read up to the damage." for one in damaged[:MAX_NAMED]]
    if len(damaged) > MAX_NAMED:
        caveats.append(f"{len(damaged) - MAX_NAMED:,} more files are damaged and were read up to the damage.")
    if gone:
        shown = ", ".join(map(repr, gone[:MAX_NAMED]))
        caveats.append(f"{counted(len(gone), 'file')} had gone before it could be read, and is left out: {shown}.")
    # The server's log of errors lies beside its access log, and is none.
    unread = [*recognised.unreadable, *(one for one in recognised.strange if "error" not in Path(one).name)]
    caveats += [f"{one!r} has an unknown format and was left out." for one in recognised.strange if one not in unread]
    if files.passed:
        caveats.append(f"No logs, and passed over: {_some(files.passed)}.")
    if files.copies:
        caveats.append(f"Left out, because other files have the same lines: {', '.join(files.copies[:5])}.")
    if counts.other:
        caveats.append(f"{counted(counts.other, 'line')} of other programs passed over.")
    if 0 < counts.unanswered < counts.requests:
        caveats.append(f"{counted(counts.unanswered, 'request')} without a status.")
    caveats += sorted({getattr(form, "unsure", "") for form in recognised.formats} - {""})
    if any(form.coarse for form in recognised.formats):
        caveats.append("This log's times are whole seconds: pauses between requests cannot be judged.")
    return Source(
        engine=name,
        inputs=tuple(map(shown_name, recognised.names)),
        formats=tuple(sorted({form.name for form in recognised.formats})),
        lines=counts.lines,
        unreadable=counts.bad,
        future=counts.future,
        unrouted=counts.unrouted,
        duplicates=counts.doubled,
        samples=tuple(_sample(one) for one in counts.samples),
        caveats=tuple(caveats),
        doubts=tuple(_doubts(unread, counts)),
        nothing=(window == ALWAYS and not counts.lines - counts.bad - counts.other)
        or 0 < counts.requests == counts.unanswered,
    )


def _doubts(unread: Sequence[str], counts: Counts) -> Iterator[str]:
    """Why incidents may be missing or wrong, the worst first."""
    if 0 < counts.requests == counts.unanswered:
        yield "No request has a status: failures cannot be told. Log the status, or map it (--format FILE.toml)."
    if counts.unnamed > counts.requests / 2:
        yield (
            f"{counts.unnamed:,} of {counted(counts.requests, 'request')} name no client: what one client repeats"
            " cannot be found. Log the address, map it (--format FILE.toml), or choose a field (--client-key)."
        )
    if unread:
        yield f"{counted(len(unread), 'file')} could not be understood, and was left out: {_some(unread)}."
    if counts.other > counts.lines / 2:
        yield f"{counts.other:,} of {counts.lines:,} lines are of other programs and were passed over."
    if counts.doubled > max(MANY_LINES, counts.lines / 100):
        yield f"{counted(counts.doubled, 'line')} left out, because other files have the same requests."


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(map(repr, names[:MAX_NAMED])) + more


def _minutes(window: Window) -> Window:
    """A window as a table has it: its rows are of up to a minute."""
    minute = 60_000_000
    first, last = window.from_us, window.to_us
    return Window(first and first // minute * minute, last and -(-last // minute) * minute)


def _looked_at(window: Window) -> Iterator[str]:
    bounds = ((window.from_us, "from {} UTC on"), (window.to_us, "before {} UTC"))
    if told := [words.format(date_and_time(us)) for us, words in bounds if us is not None]:
        yield f"Only requests {' and '.join(told)} were looked at."


def _sample(bad: BadLine) -> LogLine:
    return LogLine(bad.text, shown_name(bad.file), bad.no)


def _what(files: LogFiles) -> str:
    count = len(files.names)
    size = f", {files.size / 1e6:,.1f} MB" if files.size else ""
    return f"{count:,} file{'' if count == 1 else 's'}{size}"


def _now_us() -> int:
    return time.time_ns() // 1000
