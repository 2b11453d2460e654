"""Statements of a report on its logs: which were read, and why incidents may be missing or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import ALWAYS, BadLine, Counts, LogFiles, Reading
from tricklecast.analytics.lines.files import shown_name
from tricklecast.analytics.pipeline.request import ReportRequest
from tricklecast.analytics.report.build import LogsRead
from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.report.model import LogLine, Quality

if TYPE_CHECKING:
    from tricklecast.analytics.lines.reading import Recognised
    from tricklecast.analytics.store.table import Table, TableLogs


MANY_LINES: Final = 10
"""Lines that are left out, from which on the report says so first."""


MAX_NAMED: Final = 20
"""Files that a caveat names."""


def logs_read(
    name: Any,
    files: LogFiles,
    recognised: Recognised | TableLogs,
    counts: Counts,
    damaged: Sequence[str],
    gone: Sequence[str] = (),
    reading: Reading = Reading(),  # noqa: B008 - it is frozen
) -> LogsRead:
    """The report's statements on the files.

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
    caveats += reading.unused(form.name for form in recognised.formats)
    if any(form.coarse for form in recognised.formats):
        caveats.append("This log's times are whole seconds: pauses between requests cannot be judged.")
    quality = Quality(
        lines=counts.lines,
        unreadable=counts.bad,
        future=counts.future,
        unrouted=counts.unrouted,
        duplicates=counts.doubled,
        events=0,
        formats=tuple(sorted({form.name for form in recognised.formats})),
        samples=tuple(_sample(one) for one in counts.samples),
        caveats=tuple(caveats),
        doubts=tuple(_doubts(unread, counts)),
        nothing=(reading.window == ALWAYS and not counts.lines - counts.bad - counts.other)
        or 0 < counts.requests == counts.unanswered,
    )
    return LogsRead(name, tuple(map(shown_name, recognised.names)), quality)


def table_read(name: Any, request: ReportRequest, files: LogFiles, table: Table, told: TableLogs) -> LogsRead:
    """The report's statements on the logs behind the rows of a table."""
    read = logs_read(name, files, told, told.counts, told.damaged, reading=request.reading)
    caveats = [*read.quality.caveats, *table.caveats]
    if not files.names:
        caveats.append("No logs were given: incidents are shown without their lines.")
    doubts = (*table.doubts, *read.quality.doubts)
    return replace(read, quality=replace(read.quality, caveats=tuple(caveats), doubts=doubts))


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


def _sample(bad: BadLine) -> LogLine:
    return LogLine(bad.text, shown_name(bad.file), bad.no)
