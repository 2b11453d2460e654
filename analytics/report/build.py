"""Makes a report of what the rules found, and of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tricklecast.analytics.report import figures as figure
from tricklecast.analytics.report import words
from tricklecast.analytics.report.formats import counted, percent
from tricklecast.analytics.report.model import (
    MAX_NAMES,
    SEVERITIES,
    VERSION,
    Curve,
    Entry,
    LogLine,
    Quality,
    Rate,
    Report,
)
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.rules.incidents import Incident
from tricklecast.analytics.rules.params import Params

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_BAD: Final = 0.01
"""Share of unreadable lines from which on a report says so loudly."""


@dataclass(frozen=True, slots=True)
class Source:
    """What was read.

    Attributes:
        engine: which engine read it. inputs: the files.
        formats: of the files. lines, unreadable, future, unrouted, duplicates: how many.
        samples: some unreadable lines. caveats: what the reader should know about the files, one sentence each.
    """

    engine: Literal["embedded", "spark"]
    inputs: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    lines: int = 0
    unreadable: int = 0
    future: int = 0
    unrouted: int = 0
    duplicates: int = 0
    samples: tuple[LogLine, ...] = ()
    caveats: tuple[str, ...] = ()


def ranked(incidents: Sequence[Incident]) -> list[Incident]:
    """Incidents in the order of a report: the worst first, the largest first among equals."""
    return sorted(incidents, key=lambda one: (SEVERITIES.index(one.severity), -one.n, one.since_us, one.id))


def build(
    connection: DuckDBPyConnection,
    incidents: Sequence[Incident],
    source: Source,
    *,
    params: Params | None = None,
    lines: Mapping[str, Sequence[LogLine]] | None = None,
    baseline: tuple[Rate, ...] = (),
) -> Report:
    """The report.

    Args:
        connection: on which all steps of the rules have run, and :func:`analytics.report.figures.prepare`.
        incidents: what they found. params: their thresholds. source: what was read.
        lines: some lines of each incident, by its id. baseline: rates here and in other logs.
    """
    params = params or Params()
    found = figure.figures(connection)
    curves = figure.curves(connection)
    ends_us = (found.until_us or 0) - round(params.gap_s * 1e6)
    entries = tuple(
        _entry(number, one, curves, (lines or {}).get(one.id, ()), ongoing=one.until_us >= ends_us)
        for number, one in enumerate(ranked(incidents), 1)
    )
    return Report(
        report="tricklecast storms",
        version=VERSION,
        engine=source.engine,
        inputs=source.inputs,
        verdict=words.verdict(entries, found),
        tiles=figure.tiles(found),
        incidents=entries,
        timeline=figure.timeline(connection),
        figures=found,
        quality=_quality(connection, source),
        baseline=baseline,
        params=params,
    )


def _entry(
    number: int, one: Incident, curves: Mapping[int, Curve], lines: Sequence[LogLine], *, ongoing: bool
) -> Entry:
    return Entry(
        number=number,
        id=one.id,
        storm=one.storm,
        instead=one.instead,
        severity=one.severity,
        confidence=one.confidence,
        words=words.describe(one, ongoing=ongoing),
        clients=one.clients[:MAX_NAMES],
        n_clients=len(one.clients),
        named=one.named,
        release=one.release,
        ua=one.ua,
        channels=one.channels[:MAX_NAMES],
        n_channels=len(one.channels),
        seq_lo=one.seq_lo,
        seq_hi=one.seq_hi,
        nodes=one.nodes,
        n=one.n,
        peak_rps=round(one.peak_rps, 6),
        mean_rps=round(one.mean_rps, 6),
        since_us=one.since_us,
        until_us=one.until_us,
        ongoing=ongoing,
        trigger=one.trigger,
        trigger_us=one.trigger_us,
        ended_us=one.ended_us,
        phases=one.phases,
        impact=one.impact,
        curve=curves.get(one.number, Curve(one.since_us, 1_000_000, ())),
        lines=tuple(lines),
    )


def _quality(connection: DuckDBPyConnection, source: Source) -> Quality:
    counts = dict(connection.execute("SELECT answer, n FROM quality").fetchall())
    lines = source.lines or sum(counts.values())
    unreadable = source.unreadable or counts.get("unparsable", 0)
    future = counts.get("future", 0)
    events = counts.get("event", 0)
    caveats = [*source.caveats, *figure.gaps(connection)]
    if unreadable:
        share = f"{counted(unreadable, 'line')} of {lines:,} ({percent(unreadable / lines)}) could not be read."
        caveats.insert(0, f"Do not trust this report: {share}" if unreadable > MAX_BAD * lines else share)
    if future:
        caveats.append(f"{counted(future, 'line')} from the future: a clock is wrong. No rule looks at them.")
    if source.unrouted:
        caveats.append(
            f"{counted(source.unrouted, 'request')} to paths that are no channel's: judged by method, path and status."
        )
    if source.duplicates:
        caveats.append(f"{counted(source.duplicates, 'line')} of requests that other lines tell already: left out.")
    if lines and not events:
        caveats.append("This log has no lifecycle events: what set an incident off cannot be told.")
    return Quality(
        lines=lines,
        unreadable=unreadable,
        future=future,
        unrouted=source.unrouted,
        duplicates=source.duplicates,
        events=events,
        formats=source.formats,
        samples=source.samples,
        caveats=tuple(plain(one, 500) for one in caveats),
    )
