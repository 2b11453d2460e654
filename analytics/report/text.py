"""The report for people, in a terminal of 80 columns or more; colours only there."""

from __future__ import annotations

import shutil
import sys
from typing import IO, TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from tricklecast.analytics.report.formats import percent
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.report.words import client_name
from tricklecast.analytics.rules.incidents import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tricklecast.analytics.report.model import Entry, LogLine, Offender, Report

WIDTH: Final = 80
"""Columns where there is no terminal to ask: a pipe, a CI log."""

MAX_WIDTH: Final = 120
"""Longer lines are hard to read."""

MAX_INCIDENTS: Final = 25
MAX_LINE: Final = 240
"""Characters of a line of the log that are shown; page and JSON have more of it."""

MAX_OFFENDERS: Final = 5

_STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARN: "bold yellow", Severity.MINOR: "bold"}
_DOT: Final = " \N{MIDDLE DOT} "


def console(file: IO[str]) -> Console:
    """A console for a report.

    Args:
        file: where it writes; colours and the terminal's width if it is a terminal.
    """
    terminal = file.isatty()
    width = min(MAX_WIDTH, max(40, shutil.get_terminal_size((WIDTH, 24)).columns)) if terminal else WIDTH
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def print_report(report: Report, to: Console | None = None) -> None:
    """Prints verdict, figures, incidents, offenders, and how far to trust the log.

    Args:
        to: standard output if not given.
    """
    to = to or console(sys.stdout)
    for text, indent in _report(report):
        for line in text.wrap(to, to.width - indent, overflow="fold"):
            line.rstrip()
            to.print(Text(" " * indent).append_text(line), no_wrap=True, crop=False)


def _report(report: Report) -> Iterator[tuple[Text, int]]:
    told = report.verdict
    yield Text(told.headline, style=_STYLES[told.severity] if told.severity else "bold green"), 0
    yield Text(told.sentence), 0
    if told.do_first:
        yield _titled("Do first", told.do_first), 0
    yield Text(), 0
    for tile in report.tiles:
        yield _titled(tile.name, f"{tile.value} ({tile.note})"), 0
    for rate in report.baseline:
        yield _titled("Baseline", rate.words), 0
    for entry in report.incidents[:MAX_INCIDENTS]:
        yield Text(), 0
        yield from _incident(entry)
    if (rest := len(report.incidents) - MAX_INCIDENTS) > 0:
        yield Text(), 0
        yield Text(f"… and {rest:,} more incidents: --html and --json list all."), 0
    yield from _offenders(report)
    yield from _quality(report)


def _titled(title: str, words: str) -> Text:
    return Text(f"{title}: ", style="bold").append(words, style="not bold")


def _incident(entry: Entry) -> Iterator[tuple[Text, int]]:
    words = entry.words
    head = Text(f"INCIDENT {entry.number}", style=_STYLES[entry.severity])
    head.append(f"{_DOT}{entry.severity}{_DOT}{words.fault}{_DOT}{entry.id}", style="not bold")
    yield head, 0
    yield Text(f"{words.happened}."), 2
    for title, text in (
        ("When", words.when),
        ("Phases", words.phases),
        ("Root", words.root),
        ("Impact", words.impact),
        ("Confidence", words.confidence),
        ("Cause", words.cause),
        ("Fix", words.fix),
    ):
        yield _titled(title, f"{text}."), 2
    # The first and the last; page and JSON have those between.
    for line in dict.fromkeys((*entry.lines[:1], *entry.lines[-1:])):
        yield Text(shown(line), style="dim"), 4


def shown(line: LogLine, limit: int = MAX_LINE) -> str:
    """A line of a log as it is shown: where it stands, and what is in it."""
    at = f"{plain(line.file, 80)}:{line.no}: " if line.file is not None and line.no is not None else ""
    return f"{at}{plain(line.text, limit)}"


def _offenders(report: Report) -> Iterator[tuple[Text, int]]:
    for kind, title in (("client", "Clients"), ("release", "Releases"), ("network", "Networks")):
        found = [one for one in report.figures.offenders if one.kind == kind]
        if found:
            if kind == "client":
                yield Text(), 0
                yield Text("Who sent the requests of the incidents", style="bold"), 0
            names = ", ".join(f"{offender_name(one)} {percent(one.share)}" for one in found[:MAX_OFFENDERS])
            yield _titled(title, names), 2


def offender_name(one: Offender) -> str:
    """How an offender is called."""
    if one.kind == "client":
        return client_name(one.name, one.about)
    return plain(one.name) or "several or unknown"


def _quality(report: Report) -> Iterator[tuple[Text, int]]:
    quality = report.quality
    formats = f" of {', '.join(quality.formats)}" if quality.formats else ""
    yield Text(), 0
    yield _titled("Log", f"{quality.lines:,} lines{formats}, {quality.unreadable:,} unreadable."), 0
    for caveat in quality.caveats:
        yield Text(caveat, style="yellow"), 2
    for sample in quality.samples:
        yield Text(shown(sample, 120), style="dim"), 4
    if report.incidents:
        yield Text(f"More: --explain {report.incidents[0].id}, --html FILE, --json FILE.", style="dim"), 0
