"""The report for people, in a terminal: what ``report.html`` says, in short.

Names in a log come from whoever sent the requests. Everything of that kind goes through
:func:`analytics.report.plain.plain`, and into ``rich.text.Text``, which knows no markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.report.formats import clock, counted, date_and_time, duration, peak, percent, size, times
from tricklecast.analytics.report.plain import as_text, plain
from tricklecast.analytics.report_old.caveats import caveats
from tricklecast.analytics.report_old.change import change, interval_words
from tricklecast.analytics.report_old.evidence import seqs_of
from tricklecast.analytics.report_old.verdict import steps, verdict

if TYPE_CHECKING:
    from rich.console import Console

    from tricklecast.analytics.report_old.figures import BudgetBreak, Offender, RateRatio
    from tricklecast.analytics.report_old.model import Episode, Report

MAX_ROWS: Final = 25
MAX_OFFENDERS: Final = 5
MAX_BREAKS: Final = 3
MAX_RATIOS: Final = 5
MAX_CAVEATS: Final = 12
PLAIN_WIDTH: Final = 180
"""Columns where there is no terminal to ask (a pipe, a CI log): wide enough for a whole row."""

FULL_WIDTH: Final = 160
"""From so many columns on, the table has all that it can have; below, what fits into 100."""

_STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARN: "yellow"}


def print_report(report: Report, console: Console) -> None:
    """Prints verdict, figures, the worst episodes with causes and advice, offenders, and how far to trust the log."""
    for line in (*_verdict(report), *_figures(report)):
        console.print(line)
    if report.episodes:
        shown = report.episodes[:MAX_ROWS]
        console.print()
        console.print(_table(shown, full=console.width >= FULL_WIDTH))
        if report.n_episodes > len(shown):
            rest = report.n_episodes - len(shown)
            console.print(Text(f"… and {rest:,} more; --json and --html list up to {report.params.max_episodes:,}"))
        console.print()
        for line in _causes(shown):
            console.print(line)
    for block in (_offenders(report), _budgets(report), _comparison(report), _quality(report), _more(report)):
        for line in block:
            console.print(line)


def _verdict(report: Report) -> list[Text]:
    said = verdict(report)
    style = _STYLES[report.episodes[0].severity] if report.episodes else "bold green"
    lines = [Text(said.count, style=style), Text(as_text(said.what))]
    for title, words in (("Likely cause: ", said.why), ("Do first: ", said.first)):
        if words is not None:
            lines.append(Text(title, style="bold").append(f"{words}.", style="not bold"))
    return lines


def _figures(report: Report) -> list[Text]:
    totals, success, worst = report.totals, report.success, report.worst_minute
    amplified = f"{totals.requests:,} requests, {totals.wanted:,} wanted: amplification {times(totals.amplification)}"
    parts = [amplified, f"{size(totals.bytes_out)} sent", counted(totals.nodes, "node")]
    if report.episodes and totals.first_us is not None and totals.last_us is not None:
        parts.append(f"{date_and_time(totals.first_us)} to {date_and_time(totals.last_us)} UTC")
    lines = [_joined(parts)]
    if success is not None:
        wasted = f"wasted: {counted(success.wasted_requests, 'request')}, {size(success.wasted_bytes)}"
        lines.append(
            _joined(
                [
                    f"{wasted}, {duration(success.wasted_handler_s)} of handling",
                    f"succeeded at once {percent(success.first_try)}, in the end {percent(success.eventual)}",
                ]
            )
        )
    if worst is not None:
        at = f"{plain(worst.node)} at {date_and_time(worst.minute_us)[:16]} UTC"
        lines.append(
            Text(f"worst minute: {at}, {worst.requests:,} requests, amplification {times(worst.amplification)}")
        )
    return lines


def _joined(parts: Sequence[str]) -> Text:
    return Text(" \N{MIDDLE DOT} ".join(parts))


def _table(episodes: Sequence[Episode], *, full: bool) -> Table:
    """Two lines for each, so that it fits into 100 columns: channel and client stand below the class."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("id", no_wrap=True)
    table.add_column("severity" if full else "", no_wrap=True)
    table.add_column("class, channel, client", overflow="fold")
    table.add_column("start", no_wrap=True)
    for title in ("lasted", "requests", "peak/s"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("node", "seqs", "trigger", "rhythm", "outcome") if full else ():
        table.add_column(title, overflow="fold")
    for episode in episodes:
        table.add_row(*_cells(episode, full=full))
    return table


def _cells(episode: Episode, *, full: bool) -> list[Text]:
    severity = episode.severity.value.upper()
    who = ", ".join((_names(episode.channels, episode.n_channels), _names(episode.clients, episode.n_clients)))
    short = [
        Text(episode.id),
        Text(severity if full else severity[:4], style=_STYLES[episode.severity]),
        Text(f"{episode.storm}\n{who}"),
        Text(date_and_time(episode.start_us)[5:] if full else clock(episode.start_us)),
        Text(duration(episode.duration_s)),
        Text(f"{episode.n:,}"),
        Text(peak(episode.peak_rps)),
    ]
    if not full:
        return short
    node, seqs, rest = plain(episode.node), plain(seqs_of(episode)), (episode.backoff, episode.outcome)
    return [*short, Text(node), Text(seqs), Text(_trigger(episode)), *(Text(plain(cell)) for cell in rest)]


def _causes(episodes: Sequence[Episode]) -> list[Text]:
    """Cause and advice, once for all episodes that share them."""
    lines: list[Text] = []
    for storm, why in dict.fromkeys((episode.storm, episode.why) for episode in episodes):
        lines.append(Text(f"{storm}: ", style="bold").append(f"{why.cause}.", style="not bold"))
        lines += [Text(f"  → {step}.") for step in steps(why.advice)]
    return lines


def _offenders(report: Report) -> list[Text]:
    groups = (
        ("clients", report.offending_clients),
        ("releases", report.offending_releases),
        ("networks", report.offending_networks),
    )
    lines = [Text(f"  {title}: {_pareto(found)}") for title, found in groups if found]
    return [Text(), Text("Offenders, by share of all repeats:", style="bold"), *lines] if lines else []


def _pareto(found: Sequence[Offender]) -> str:
    shown = found[:MAX_OFFENDERS]
    named = ", ".join(f"{plain(each.name)} {percent(each.share)}" for each in shown)
    return f"{named} (together {percent(shown[-1].cumulative)})" if len(shown) > 1 else named


def _budgets(report: Report) -> list[Text]:
    if not report.n_budget_breaks:
        return []
    minutes = counted(report.n_budget_breaks, "minute")
    head = Text(f"Retry budgets broken in {minutes}, the worst:", style="bold")
    return [head, *(Text(f"  {_break(each)}") for each in report.budget_breaks[:MAX_BREAKS])]


def _break(each: BudgetBreak) -> str:
    at = date_and_time(each.minute_us)[:16]
    retries = f"{each.retries:,} retries in {each.requests:,} requests ({percent(each.ratio)})"
    return f"{each.scope} {plain(each.name)} at {at} UTC: {retries}"


def _comparison(report: Report) -> list[Text]:
    found = report.comparison
    if found is None:
        return []
    head = Text(f"Before and after, by {found.by}: {plain(found.before)} against {plain(found.after)}:", style="bold")
    rest = len(found.ratios) - MAX_RATIOS
    lines = [Text(f"  {_ratio(each)}") for each in found.ratios[:MAX_RATIOS]]
    return [head, *lines, *([Text(f"  … and {rest:,} more")] if rest > 0 else [])]


def _ratio(each: RateRatio) -> str:
    counts = f"{each.before:,} of {each.before_of:,} → {each.after:,} of {each.after_of:,}"
    ratio = "" if each.ratio is None else f": {times(each.ratio)}"
    return f"{plain(each.name)}, {counts}{ratio} ({change(each)}; {interval_words(each)})"


def _quality(report: Report) -> list[Text]:
    quality = report.quality
    read = (
        f"Log: {counted(quality.lines, 'line')}, {quality.unparsable:,} unparsable, {counted(quality.events, 'event')}."
    )
    found = caveats(quality)
    lines = [Text(), Text(read, style="dim")]
    lines += [Text(f"  {as_text(words, 80)}", style="yellow") for words in found[:MAX_CAVEATS]]
    if len(found) > MAX_CAVEATS:
        lines.append(Text(f"  … and {len(found) - MAX_CAVEATS:,} more", style="yellow"))
    return lines


def _more(report: Report) -> list[Text]:
    if not report.episodes:
        return []
    example = f"--explain {report.episodes[0].id}"
    return [Text(f"More: {example} shows the evidence of an episode, --html FILE the whole report.", style="dim")]


def _names(names: Sequence[str], count: int) -> str:
    if not names:
        return "-"
    return plain(names[0]) + (f" +{count - 1:,}" if count > 1 else "")


def _trigger(episode: Episode) -> str:
    if episode.trigger is None or episode.trigger_us is None:
        return "-"
    lead = (episode.start_us - episode.trigger_us) / 1e6
    return f"{plain(episode.trigger)}\n{duration(abs(lead))} {'before' if lead >= 0 else 'later'}"
