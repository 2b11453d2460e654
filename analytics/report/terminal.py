"""The report for people, in a terminal.

Names in a log come from whoever sent the requests. Everything of that kind goes through :func:`plain`, and into
``rich.text.Text``, which knows no markup.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from analytics.episodes import Severity
from analytics.report.model import Episode, Report

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS: Final = 25
MAX_NAME: Final = 40
PLAIN_WIDTH: Final = 180
"""Columns where there is no terminal to ask (a pipe, a CI log): wide enough for a whole row."""

_STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARN: "yellow"}
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def plain(value: str | None, limit: int = MAX_NAME) -> str:
    r"""A text of unknown origin as something that is safe to print: control and format characters spelled out, cut.

    >>> plain("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    if value is None:
        return "-"
    shown = "".join(_spelled(char) if unicodedata.category(char)[0] in "CZ" else char for char in value[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _spelled(char: str) -> str:
    return char if char == " " else char.encode("unicode_escape", "backslashreplace").decode("ascii")


def print_report(report: Report, console: Console) -> None:
    """Prints verdict, totals, the worst episodes with their causes, and how far the log can be trusted."""
    console.print(_verdict(report))
    console.print(_totals(report))
    if report.episodes:
        shown = report.episodes[:MAX_ROWS]
        console.print(_table(shown))
        if report.n_episodes > len(shown):
            console.print(Text(f"… and {report.n_episodes - len(shown):,} more; --json lists up to {_limit(report):,}"))
        for line in _causes(shown):
            console.print(line)
    for line in _quality(report):
        console.print(line)


def _limit(report: Report) -> int:
    return report.params.max_episodes


def _verdict(report: Report) -> Text:
    if not report.episodes:
        return Text("No retry storms.", style="bold green")
    worst = max(report.episodes, key=lambda episode: (episode.severity is Severity.CRITICAL, episode.n))
    count = f"{report.n_episodes:,} retry storm{'s' if report.n_episodes != 1 else ''}."
    at = f" Worst: {worst.storm} on {_names(worst.channels, worst.n_channels)}, {worst.n:,} requests"
    return Text(count, style=_STYLES[worst.severity]).append(f"{at} in {_duration(worst.duration_s)}.", style="default")


def _totals(report: Report) -> Text:
    totals = report.totals
    parts = [
        f"{totals.requests:,} requests, {totals.wanted:,} wanted: amplification {totals.amplification:.2f}",
        f"{_bytes(totals.bytes_out)} sent",
        f"{totals.nodes} node{'s' if totals.nodes != 1 else ''}",
    ]
    if totals.first_us is not None and totals.last_us is not None:
        parts.append(f"{_time(totals.first_us)} to {_time(totals.last_us)} UTC")
    return Text(" · ".join(parts))


def _table(episodes: tuple[Episode, ...]) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in ("severity", "class", "start (UTC)", "lasted"):
        table.add_column(name, no_wrap=True)
    for name in ("requests", "peak/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("client", "channel", "seqs", "trigger", "rhythm"):
        table.add_column(name, overflow="fold")
    for episode in episodes:
        table.add_row(*_cells(episode))
    return table


def _cells(episode: Episode) -> list[Text]:
    return [
        Text(episode.severity.value.upper(), style=_STYLES[episode.severity]),
        Text(episode.storm.value),
        Text(_time(episode.start_us)),
        Text(_duration(episode.duration_s)),
        Text(f"{episode.n:,}"),
        Text(f"{episode.peak_rps:,.0f}"),
        Text(_names(episode.clients, episode.n_clients)),
        Text(_names(episode.channels, episode.n_channels)),
        Text(_seqs(episode)),
        Text(_trigger(episode)),
        Text(episode.backoff or "-"),
    ]


def _causes(episodes: tuple[Episode, ...]) -> list[Text]:
    """Cause and advice, once for all episodes that share them."""
    lines: list[Text] = []
    for storm, why in dict.fromkeys((episode.storm, episode.why) for episode in episodes):
        lines.append(Text(f"{storm}: ", style="bold").append(f"{why.cause}.", style="default"))
        lines.append(Text(f"  → {why.advice}."))
    return lines


def _quality(report: Report) -> list[Text]:
    quality = report.quality
    events = f"{quality.events:,} events" if quality.events else "no events (so no storm has a trigger)"
    lines = [Text(f"Log: {quality.lines:,} lines, {quality.unparsable:,} unparsable, {events}.", style="dim")]
    warnings = {
        "events that say that the server dropped records (log_dropped)": quality.dropped,
        "requests without a client, in no client's episode": quality.anonymous,
    }
    lines += [Text(f"  {count:,} {what}", style="yellow") for what, count in warnings.items() if count]
    if quality.missing_columns:
        lines.append(Text(f"  fields that no line has: {', '.join(quality.missing_columns)}", style="yellow"))
    lines += [Text(f"  cut or no gzip: {plain(name, 200)}", style="yellow") for name in quality.damaged_files]
    return lines


def _names(names: tuple[str, ...], count: int) -> str:
    if not names:
        return "-"
    return plain(names[0]) + (f" +{count - 1:,}" if count > 1 else "")


def _seqs(episode: Episode) -> str:
    if episode.seq_lo is None or episode.seq_hi is None:
        return "-"
    return f"{episode.seq_lo}" if episode.seq_lo == episode.seq_hi else f"{episode.seq_lo}..{episode.seq_hi}"


def _trigger(episode: Episode) -> str:
    if episode.trigger is None or episode.trigger_us is None:
        return "-"
    lead = (episode.start_us - episode.trigger_us) / 1e6
    return f"{plain(episode.trigger)} {abs(lead):.1f} s {'before' if lead >= 0 else 'later'}"


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _bytes(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_BINARY_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.1f} {_BINARY_UNITS[unit]}" if unit else f"{count:,} B"
