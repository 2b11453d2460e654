"""The report in a few sentences: what, where, since when, why, and what to do first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.report.formats import counted, date_and_time, duration, moment_in
from tricklecast.analytics.report.plain import Name, Phrase
from tricklecast.analytics.report_old.first_aid import first_aid

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.model import Episode, Report

_OF_A_NODE = (StormClass.OVERLOAD_AMPLIFICATION, StormClass.THUNDERING_HERD)
"""Storms of a fleet: they are about a server; the others are about a channel."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the report comes to.

    Attributes:
        count: how many storms there are, in one sentence.
        what: the worst one, in one sentence; without any storm, what was examined.
        why: its likely cause; first: what helps at once, on the server; then: the first step of the cure. ``None``
            without a storm.
    """

    count: str
    what: Phrase
    why: str | None = None
    first: str | None = None
    then: str | None = None


def verdict(report: Report) -> Verdict:
    """The verdict on a report whose episodes are in order, the worst first."""
    if not report.episodes:
        return Verdict("No retry storms.", _examined(report))
    worst = report.episodes[0]
    return Verdict(
        count=_count(report),
        what=_what(worst, report),
        why=worst.why.cause,
        first=first_aid(worst.storm),
        then=next(iter(steps(worst.why.advice)), None),
    )


def steps(advice: str) -> list[str]:
    """What an advice says to do, one thing after the other."""
    return [step for step in advice.split("; ") if step]


def severities(report: Report) -> dict[str, int]:
    """How many of the listed episodes are of each severity, the worst first."""
    found = [episode.severity.value for episode in report.episodes]
    return {name: found.count(name) for name in ("critical", "warn")}


def _count(report: Report) -> str:
    listed = len(report.episodes)
    critical = severities(report)["critical"]
    ongoing = sum(episode.outcome == "ongoing" for episode in report.episodes)
    parts = [counted(report.n_episodes, "retry storm")]
    if report.n_episodes > listed:
        parts.append(f"the worst {listed:,} are listed, {critical:,} of them critical")
    elif listed == 1:
        parts[0] += f", {report.episodes[0].severity}"
    else:
        parts.append("all critical" if critical == listed else f"{critical or 'none'} of them critical")
    if ongoing:
        parts.append(f"{ongoing:,} still going on when the log ends")
    return "; ".join([", ".join(parts[:2]), *parts[2:]]) + "."


def _what(episode: Episode, report: Report) -> Phrase:
    named = episode.n_clients == 1 and episode.clients
    who: Phrase = (Name(episode.clients[0]),) if named else (counted(episode.n_clients, "client"),)
    went = "since" if episode.outcome == "ongoing" else "from"
    return (
        episode.storm.value,
        *_where(episode),
        f" {went} {moment_in(episode.start_us, report.totals.first_us, report.totals.last_us)} UTC: ",
        *who,
        f" sent {counted(episode.n, 'request')} in {duration(episode.duration_s)}",
        *_after(episode),
        ".",
    )


def _where(episode: Episode) -> Phrase:
    channel: Phrase = ()
    if episode.channels and episode.storm not in _OF_A_NODE:
        channel = (" on channel ", Name(episode.channels[0]))
        if episode.n_channels > 1:
            channel = (*channel, f" and {episode.n_channels - 1:,} more")
    node: Phrase = () if episode.node is None else (", " if channel else " on ", Name(episode.node))
    return (*channel, *node)


def _after(episode: Episode) -> Phrase:
    if episode.trigger is None or episode.trigger_us is None:
        return ()
    lead = (episode.start_us - episode.trigger_us) / 1e6
    if lead >= 0:
        return (f", {duration(lead)} after ", Name(episode.trigger))
    if episode.trigger_us >= episode.end_us:
        return (", until ", Name(episode.trigger))
    return (", around ", Name(episode.trigger))


def _examined(report: Report) -> Phrase:
    totals = report.totals
    if totals.first_us is None or totals.last_us is None:
        return ("Nothing was examined: the log has no requests.",)
    length = duration((totals.last_us - totals.first_us) / 1e6)
    span = f"{date_and_time(totals.first_us)} to {date_and_time(totals.last_us)} UTC ({length})"
    return (f"Examined: {counted(totals.requests, 'request')} to {counted(totals.nodes, 'node')}, {span}.",)
