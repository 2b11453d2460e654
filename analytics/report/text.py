"""The report for people. Colours are for terminals only, and so is wrapping: a line in a pipe is for other programs."""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO, TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from tricklecast.analytics.report.formats import date_and_time, percent, rate, span
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.report.scale import rates, thinned
from tricklecast.analytics.report.words import client_name, event
from tricklecast.analytics.rules.incidents import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tricklecast.analytics.report.model import Figures, LogLine, Offender, Report, ReportedIncident, Timeline

WIDTH: Final = 80
"""Columns of bars where there is no terminal to ask: a pipe, a CI log."""

UNWRAPPED: Final = 1_000_000
"""Columns of a console that breaks no line."""

MAX_WIDTH: Final = 120
"""Longer lines are hard to read."""

MAX_INCIDENTS: Final = 10
"""Incidents that are told in full."""

MAX_SHORT: Final = 40
"""Incidents that are told in one sentence."""

MAX_LINE: Final = 240
"""Characters of a line of the log that are shown; page and JSON have more of it."""

RELEASES: Final = "Releases"
MAX_OFFENDERS: Final = 5
MAX_EVENTS: Final = 8

_STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARN: "bold yellow", Severity.MINOR: "bold"}
_DOT: Final = " \N{MIDDLE DOT} "
_BARS: Final = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_LABEL: Final = 14
"""Columns of the names before the bars."""


def console(file: IO[str]) -> Console:
    """A console for a report.

    Args:
        file: where it writes; colours and the terminal's width if it is a terminal. ``COLUMNS`` sets the width of
            whatever it is.
    """
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        width = max(40, int(told))
    elif file.isatty():
        width = min(MAX_WIDTH, max(40, shutil.get_terminal_size((WIDTH, 24)).columns))
    else:
        width = UNWRAPPED
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def print_report(report: Report, to: Console | None = None) -> None:
    """Prints verdict, incidents, timeline, figures, offenders, and how far to trust the log.

    Args:
        to: standard output if not given.
    """
    to = to or console(sys.stdout)
    for text, indent in _report(report, to.width):
        for line in text.wrap(to, to.width - indent, overflow="fold"):
            line.rstrip()
            to.print(Text(" " * indent).append_text(line), no_wrap=True, crop=False)


def _report(report: Report, width: int) -> Iterator[tuple[Text, int]]:
    told = report.verdict
    yield Text(told.headline, style=_STYLES[told.severity] if told.severity else "bold green"), 0
    if told.warning:
        yield Text(told.warning, style="bold red"), 0
    yield Text(told.examined), 0
    if report.baseline:
        yield from _section("Compared with the baseline")
        for rate in report.baseline:
            yield Text(f"{rate.words}."), 2
    counting = [one for one in report.incidents if one.muted is None]
    for entry in counting[:MAX_INCIDENTS]:
        yield Text(), 0
        yield from _incident(entry)
    if rest := counting[MAX_INCIDENTS:]:
        yield from _section(f"{len(rest):,} more, in short (--explain ID shows one; --html and --json-file have all)")
        yield from _short(rest)
    if report.timeline is not None:
        yield from _timeline(report.timeline, report.figures, width if width < UNWRAPPED else WIDTH)
    yield from _section("Figures")
    for tile in report.tiles:
        yield _titled(tile.name, f"{tile.value} ({tile.note})"), 2
    yield from _offenders(report)
    if muted := [one for one in report.incidents if one.muted is not None]:
        yield from _section(f"{len(muted):,} muted")
        yield from _short(muted)
    yield from _quality(report)


def _short(entries: Sequence[ReportedIncident]) -> Iterator[tuple[Text, int]]:
    for entry in entries[:MAX_SHORT]:
        head = Text(f"{entry.number} {entry.severity}", style=_STYLES[entry.severity])
        why = f" ({entry.muted})" if entry.muted else ""
        yield head.append(f" {entry.words.happened} [{entry.id}]{why}", style="not bold"), 2
    if len(entries) > MAX_SHORT:
        yield Text(f"… {len(entries) - MAX_SHORT:,} more"), 2


def _section(title: str) -> Iterator[tuple[Text, int]]:
    yield Text(), 0
    yield Text(title, style="bold"), 0


def _titled(title: str, words: str) -> Text:
    return Text(f"{title}: ", style="bold").append(words, style="not bold")


def _incident(entry: ReportedIncident) -> Iterator[tuple[Text, int]]:
    head = Text(f"INCIDENT {entry.number}", style=_STYLES[entry.severity])
    head.append(f"{_DOT}{entry.severity}{_DOT}{entry.words.fault}{_DOT}{entry.id}", style="not bold")
    yield head, 0
    yield Text(f"{entry.words.happened}."), 2
    for title, text in entry.details():
        yield _titled(title, f"{text}."), 2
    for line in ends(entry.lines):
        yield Text(shown(line), style="dim"), 4


def _timeline(data: Timeline, figures: Figures, width: int) -> Iterator[tuple[Text, int]]:
    """A row of bars for all requests, one for those that failed, and one for those of incidents."""
    rows = (("requests", data.requests), ("failed", data.failures), ("in incidents", data.in_incidents))
    columns = {
        name: thinned(
            rates(counts, data.start_us, data.step_us, figures.since_us, figures.until_us), width - _LABEL - 2
        )
        for name, counts in rows
    }
    steps, requests = columns["requests"]
    top = max(requests)
    last = data.start_us + len(data.requests) * data.step_us
    yield from _section("Timeline")
    words = (
        f"{date_and_time(data.start_us)} to {date_and_time(last)} UTC, {span(data.step_us / 1e6 * steps)} per column"
    )
    yield Text(f"{words}, at most {rate(top)}"), 2
    for name, (_, column) in columns.items():
        bars = "".join(_bar(count, top) for count in column)
        yield Text(f"{name:{_LABEL}}{bars}"), 2
    if data.events:
        events = [*map(event, data.events)]
        more = f", {len(events) - MAX_EVENTS:,} more" if len(events) > MAX_EVENTS else ""
        yield Text(f"{'events':{_LABEL}}{', '.join(events[:MAX_EVENTS])}{more}"), 2


def _bar(count: float, top: float) -> str:
    """A bar of an eighth to the whole height of a line; nothing for nothing."""
    return _BARS[max(1, round(count / top * (len(_BARS) - 1)))] if count else " "


def ends(lines: Sequence[LogLine]) -> list[LogLine]:
    """The first and the last one; JSON has those between."""
    return list(dict.fromkeys((*lines[:1], *lines[-1:])))


def shown(line: LogLine, limit: int = MAX_LINE) -> str:
    """A line of a log as it is shown: where it stands, and what is in it."""
    at = f"{plain(line.file, 80)}:{line.no}: " if line.file is not None and line.no is not None else ""
    return f"{at}{plain(line.text, limit)}"


def _offenders(report: Report) -> Iterator[tuple[Text, int]]:
    if report.figures.offenders:
        yield from _section(who_sent(report))
    for title, found in offenders(report).items():
        names = ", ".join(f"{offender_name(one)} {percent(one.share)}" for one in found[:MAX_OFFENDERS])
        yield _titled(title, names), 2


def offenders(report: Report) -> dict[str, list[Offender]]:
    """The offenders of each kind that has some, by the title of their list."""
    kinds = (("client", "Clients"), ("release", RELEASES), ("network", "Networks"))
    every = report.figures.offenders
    return {title: found for kind, title in kinds if (found := [one for one in every if one.kind == kind])}


def who_sent(report: Report) -> str:
    """The title of the offenders: of how many requests their shares are."""
    stormy, requests = report.figures.in_incidents, report.figures.requests
    share = percent(stormy / max(1, requests))
    return (
        f"Who sent the {stormy:,} requests of the incidents ({share} of all {requests:,}); shares are of the {stormy:,}"
    )


def offender_name(one: Offender) -> str:
    """How an offender is called."""
    if one.kind == "client":
        return client_name(one.name, one.about)
    return plain(one.name) or "several or unknown"


def _quality(report: Report) -> Iterator[tuple[Text, int]]:
    quality = report.quality
    formats = f" of {', '.join(quality.formats)}" if quality.formats else ""
    yield from _section("The log")
    yield Text(f"{quality.lines:,} lines{formats}, {quality.unreadable:,} unreadable."), 2
    for caveat in quality.caveats:
        yield Text(caveat, style="yellow"), 2
    for sample in quality.samples:
        yield Text(shown(sample, 120), style="dim"), 4
    if report.incidents:
        yield Text(), 0
        why = f"Why is this an incident, and what to paste against it? --explain {report.incidents[0].id}."
        yield Text(f"{why} A page: --html FILE."), 0
