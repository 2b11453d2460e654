"""Makes a report of what the rules found, and of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, Literal

from tricklecast.analytics.report import figures as figure
from tricklecast.analytics.report import words
from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.report.mitigate import mitigations
from tricklecast.analytics.report.model import (
    MAX_NAMES,
    SEVERITIES,
    VERSION,
    Curve,
    History,
    Lift,
    LogLine,
    Quality,
    Rate,
    Report,
    ReportedIncident,
    Summary,
)
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.rules.incidents import Confidence, Incident
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.scan.reduce import WATCHED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_HEAT: Final = 5
"""Incidents, the worst first, among which one with several clients is looked for."""

MAX_MITIGATED: Final = 200
"""Incidents, the worst first, with snippets against them: a report of thousands would consist of these."""

TO_CHANNELS: Final = frozenset(WATCHED) - {"overload", "server_error", "web", "again"}
"""Kinds of answer that only requests to channels have."""


_LESS: Final = {
    Confidence.HIGH: Confidence.MEDIUM,
    Confidence.MEDIUM: Confidence.LOW,
    Confidence.LOW: Confidence.LOW,
}


NOTHING: Final = Quality(0, 0, 0, 0, 0, 0, (), (), ())
"""Of no logs."""


@dataclass(frozen=True, slots=True)
class LogsRead:
    """The logs that were read.

    Attributes:
        engine: which engine read them. inputs: the files. quality: what reading them showed; the rules add to it.
    """

    engine: Literal["embedded", "spark"]
    inputs: tuple[str, ...] = ()
    quality: Quality = NOTHING

    def saying(self, *caveats: str) -> LogsRead:
        """The same, with caveats before its own."""
        return replace(self, quality=replace(self.quality, caveats=(*caveats, *self.quality.caveats)))


def ranked(incidents: Sequence[Incident]) -> list[Incident]:
    """Incidents in the order of a report: the worst first, the largest first among equals."""
    return sorted(incidents, key=lambda one: (SEVERITIES.index(one.severity), -one.n, one.since_us, one.id))


def summary(one: Incident, *, ongoing: bool = False, most: int = MAX_NAMES) -> Summary:
    """The fields of an incident in the report.

    Args:
        ongoing: whether it still went on when the log ended. most: how many clients and channels are listed.
    """
    shared = {field.name: getattr(one, field.name) for field in fields(Summary) if hasattr(one, field.name)}
    own = {
        "words": words.describe(one, ongoing=ongoing),
        "clients": one.clients[:most],
        "n_clients": len(one.clients),
        "channels": one.channels[:most],
        "n_channels": len(one.channels),
        "peak_rps": round(one.peak_rps, 6),
        "mean_rps": round(one.mean_rps, 6),
    }
    return Summary(**(shared | own))


def build(
    connection: DuckDBPyConnection,
    incidents: Sequence[Incident],
    logs: LogsRead,
    *,
    params: Params | None = None,
    lines: Mapping[str, Sequence[LogLine]] | None = None,
    baseline: tuple[Rate, ...] = (),
    history: Mapping[str, History] | None = None,
    lifts: Mapping[str, Sequence[Lift]] | None = None,
    muted: Mapping[str, str] | None = None,
) -> Report:
    """The report.

    Args:
        connection: on which all steps of the rules have run, and :func:`analytics.report.figures.prepare`.
        incidents: found by the rules. params: thresholds of the rules. logs: that were read.
        lines: some lines of each incident, by its id. baseline: rates here and in other logs.
        history: what earlier reports say of an incident; lifts: what sets its requests apart; muted: why it does not
            count. By its id; those that have none are not there.
    """
    params = params or Params()
    found = figure.figures(connection)
    curves = figure.curves(connection)
    ends_us = (found.until_us or 0) - round(params.gap_s * 1e6)
    entries: list[ReportedIncident] = []
    for number, one in enumerate(ranked(incidents), 1):
        if logs.quality.doubts:
            one = replace(one, confidence=_LESS[one.confidence])
        ongoing = one.until_us >= ends_us
        told = summary(one, ongoing=ongoing)
        silenced = (muted or {}).get(one.id)
        heat = None
        if number <= MAX_HEAT and silenced is None and not any(each.heat for each in entries):
            heat = figure.heat(connection, one.number)
        entries.append(
            ReportedIncident(
                **{field.name: getattr(told, field.name) for field in fields(told)},
                number=number,
                ongoing=ongoing,
                curve=curves.get(one.number, Curve(one.since_us, 1_000_000, ())),
                lines=tuple((lines or {}).get(one.id, ())),
                history=(history or {}).get(one.id),
                lifts=tuple((lifts or {}).get(one.id, ())),
                mitigations=mitigations(told, logs.quality.formats) if number <= MAX_MITIGATED else (),
                heat=heat,
                muted=silenced,
            )
        )
    quality = _quality(connection, logs.quality, params)
    return Report(
        report="tricklecast storms",
        version=VERSION,
        engine=logs.engine,
        inputs=logs.inputs,
        verdict=words.verdict(entries, found, quality),
        tiles=figure.tiles(found),
        incidents=tuple(entries),
        timeline=figure.timeline(connection),
        figures=found,
        quality=quality,
        baseline=baseline,
        params=params,
    )


def _quality(connection: DuckDBPyConnection, read: Quality, params: Params) -> Quality:
    counts = dict(connection.execute("SELECT answer, n FROM quality").fetchall())
    lines = read.lines or sum(counts.values())
    future = counts.get("future", 0)
    events = counts.get("event", 0)
    caveats = [*read.caveats, *figure.skews(connection), *figure.gaps(connection)]
    if future:
        caveats.append(f"{counted(future, 'line')} from the future, because a clock is wrong. The report ignores them.")
    if read.unrouted:
        # As the rules have it: beside requests to channels, what is refused elsewhere is scanners' mostly.
        alone = params.generic or not any(counts.get(answer) for answer in TO_CHANNELS)
        caveats.append(
            "Requests are judged by client, method, path and status, as those of any web server."
            if alone
            else f"{counted(read.unrouted, 'request')} to paths that are not channels:"
            " only 429 and 5xx count there, unless --generic."
        )
    if read.duplicates:
        caveats.append(f"{counted(read.duplicates, 'line')} left out, because other lines have the same requests.")
    if lines and not events:
        caveats.append("This log has no lifecycle events, so the triggers of incidents are unknown.")
    return replace(
        read,
        lines=lines,
        unreadable=read.unreadable or counts.get("unparsable", 0),
        future=future,
        events=events,
        caveats=tuple(plain(one, 500) for one in caveats),
        doubts=tuple(plain(one, 500) for one in read.doubts),
    )
