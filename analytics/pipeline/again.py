"""Lines of incidents, and what sets their requests apart: found where lines are parsed, or parsed again."""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.lines import LogFiles, Reading, Window
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.lines.files import REMOTE, LineReader, is_parquet, shown_name, unpacked
from tricklecast.analytics.pipeline.request import Advance, ReportRequest
from tricklecast.analytics.report import requests
from tricklecast.analytics.report.model import Lift, LogLine
from tricklecast.analytics.rules.incidents import Incident

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection


MAX_WITH_LINES: Final = 200
"""Incidents, the worst first, of which lines are shown."""

MAX_LINES: Final = 5
"""Lines per incident: the first one of each phase and the last one."""


READ_HERE: Final = 256 << 20
"""Bytes of files that are read on this machine for lines of incidents that Spark found."""


ROWS: Final = 10_000
"""Lines of an incident that are written at a time."""


_MAX_TEXT: Final = 4000


def shown_lines(
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


def moments_of(shown: Sequence[Incident]) -> dict[str, list[int]]:
    """When the lines that are shown of incidents came, by the incident's id."""
    return {one.id: sorted({*[phase.since_us for phase in one.phases][: MAX_LINES - 1], one.until_us}) for one in shown}


def files_having(spans: Mapping[str, tuple[int, int]], moments: Iterable[Sequence[int]]) -> tuple[str, ...]:
    """The files that may have lines of some moments, and that are still there."""
    times = sorted({us for some in moments for us in some})
    return tuple(
        name
        for name, (first, last) in spans.items()
        if bisect_left(times, first) < bisect_right(times, last) and (REMOTE.match(name) or os.path.exists(name))
    )


def files_of_time(spans: Mapping[str, tuple[int, int]], since: int, until: int) -> tuple[str, ...]:
    """The files that may have requests of a time, and that are still there."""
    names = (name for name, (first, last) in spans.items() if first <= until and since <= last)
    return tuple(name for name in names if REMOTE.match(name) or os.path.exists(name))


def are_few(names: Sequence[str]) -> bool:
    return not any(REMOTE.match(name) for name in names) and unpacked(names) <= READ_HERE


def lifts_of(connection: DuckDBPyConnection, shown: Sequence[Incident], generic: bool) -> dict[str, tuple[Lift, ...]]:
    requests.find(connection, requests.members(connection, shown), generic)
    own = connection.execute(requests.own_sql()).fetchall()
    count = lambda wanted: connection.execute(requests.count_sql(connection, wanted)).fetchall()  # noqa: E731
    return requests.lifts(shown, own, count)


def near_lifts(
    spans: Mapping[str, tuple[int, int]],
    connection: DuckDBPyConnection,
    request: ReportRequest,
    shown: Sequence[Incident],
) -> tuple[dict[str, tuple[Lift, ...]] | None, tuple[str, ...], Reading]:
    """Lifts of incidents, if their files are few and on this machine; these files, and how they are read.

    Args:
        spans: the times that each file has.
    """
    # All requests of a second are counted, also of that in which an incident begins.
    since = min(one.since_us for one in shown) // 1_000_000 * 1_000_000
    until = (max(one.until_us for one in shown) // 1_000_000 + 1) * 1_000_000
    names, window = files_of_time(spans, since, until), request.reading.window
    whole = Window(max(since, window.from_us or since), min(until, window.to_us or until))
    reading = replace(request.reading, window=whole)
    if not are_few(names):
        return None, names, reading
    read_lines(connection, LogFiles(names), reading, part=True)
    return lifts_of(connection, shown, request.generic), names, reading


def all_lines(
    connection: DuckDBPyConnection, files: LogFiles, request: ReportRequest, one: Incident, advance: Advance
) -> Iterator[pa.RecordBatch]:
    """All lines of an incident, in the order of time."""
    reading = replace(request.reading, window=Window(one.since_us, one.until_us + 1), texts=True)
    names = read_lines(connection, files, reading, part=True, progress=advance).recognised.names
    requests.find(connection, requests.members(connection, [one]), request.generic)
    every = requests.every_sql(connection, tuple(map(shown_name, names)))
    found = connection.sql(f"{every} ORDER BY ts_us, file, no")
    # DuckDB has renamed it.
    yield from (found.to_arrow_reader if hasattr(found, "to_arrow_reader") else found.fetch_arrow_reader)(ROWS)
