"""The report and the alerts of the watch as values. JSON is written, and its schema generated, from these classes.

Numbers are for programs, and texts for people: a text has been made of the numbers beside it once, in
:mod:`analytics.report.words`, so that terminal, page and JSON say the same. Names in texts are safe to show; names in
fields of their own are as the log has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from tricklecast.analytics.rules.classes import Side, StormClass
from tricklecast.analytics.rules.incidents import Confidence, Impact, Pace, Phase, Severity
from tricklecast.analytics.rules.params import Params

VERSION: Final = 3
"""Of both documents: raised when a field changes its meaning or goes away; new fields do not raise it."""

MAX_NAMES: Final = 100
"""Clients and channels that are listed of one incident of a report."""

MAX_BAD: Final = 0.01
"""With a larger share of unreadable lines, a report says that it is not to be trusted."""

SEVERITIES: Final = (Severity.CRITICAL, Severity.WARN, Severity.MINOR)
"""The worst first."""


@dataclass(frozen=True, slots=True)
class Words:
    """One incident, as the report tells it.

    Attributes:
        who: the clients. fault: the side that should change.
        happened: one sentence: who, what, how many, how fast.
        when: since when, for how long, where, after what. phases: kinds of answers in the order of time.
        root: what it began with. impact: what it cost. confidence: how sure the class is, and why not more.
        cause, fix: why, and what to do.
    """

    who: str
    fault: str
    happened: str
    when: str
    phases: str
    root: str
    impact: str
    confidence: str
    cause: str
    fix: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of an incident.

    Attributes:
        text: as it stands in the file; of a file that cannot be read twice, the record that was understood.
        file, no: where; the line's number from 1; ``None`` where it is not known.
    """

    text: str
    file: str | None = None
    no: int | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Requests over time: how many in each step.

    Attributes:
        start_us: of the first step; microseconds since the epoch. step_us: a step's length.
        counts: requests in each step.
    """

    start_us: int
    step_us: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The history of an incident, from earlier reports of its fingerprint (:func:`analytics.report.words.history`).

    Attributes:
        state: `new`; `again`; or `regressed`: it was over before a release, and is back.
        first_us: when the first one began, microseconds since the epoch. times: how many, with this one.
        release: for `regressed` the release since which it had been gone. words: all of it as a sentence.
    """

    state: Literal["new", "again", "regressed"]
    first_us: int
    times: int
    release: str | None
    words: str


@dataclass(frozen=True, slots=True)
class Lift:
    """A value that the requests of an incident have far more often than all others of the same time.

    Made by :func:`analytics.report.words.lift`.

    Attributes:
        kind: of what. name: the value, as the log has it. here, others: shares of the requests that have it, 0 to 1.
        words: all of it as a sentence.
    """

    kind: Literal["release", "user agent", "path", "network", "node"]
    name: str
    here: float
    others: float
    words: str


@dataclass(frozen=True, slots=True)
class Mitigation:
    """Configuration to paste against an incident; names in it are escaped for the syntax that it is in.

    Attributes:
        kind: where it belongs: a proxy, the options of a tricklecast server, the client. title: what it does.
        code: the text to paste; its comments say where.
    """

    kind: Literal["nginx", "envoy", "tricklecast", "client"]
    title: str
    code: str


@dataclass(frozen=True, slots=True)
class Heat:
    """Requests of an incident by client and time.

    Attributes:
        start_us: of the first step; microseconds since the epoch. step_us: a step's length.
        clients: the busiest first. counts: for each of them the requests in each step.
    """

    start_us: int
    step_us: int
    clients: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """One incident; the same object in a report and in an alert of the watch.

    Attributes:
        id: the same in every report and in the live watch, whichever part of the storm these see.
        fingerprint: the same for all storms of a class by a kind of client, on a kind of channel, of a release.
        storm: the class of its root. side: which side should change.
        instead: another class that it may be, where the log's format cannot tell.
        severity: what it costs. confidence: how sure the class is. words: all of it in sentences.
        clients, channels: the busiest first, at most 100 in a report and 20 in an alert.
        n_clients, n_channels: how many there are.
        named: whether the clients are keys of clients, not networks.
        release, ua: product and version if all clients have the same; a user agent.
        seq_lo, seq_hi: range of the segments that were asked for.
        nodes: servers; none where the log does not say.
        n: requests. peak_rps, mean_rps: requests per second of all clients together.
        pace, pause_ms: how its busiest client paces itself, and the median of its pauses, milliseconds; none for a
            crowd, for fewer than six requests, and where the log has times in whole seconds.
        since_us, until_us: first and last arrival, microseconds since the epoch.
        trigger, trigger_us: the event that set it off, and when. ended_us: when the channel ended in its course.
        phases: what it consists of, in the order of time. impact: what it cost, and whom it harmed.
        held_s: how long the storm guard held its requests, all together, seconds.
    """

    id: str
    fingerprint: str
    storm: StormClass
    side: Side
    instead: StormClass | None
    severity: Severity
    confidence: Confidence
    words: Words
    clients: tuple[str, ...]
    n_clients: int
    named: bool
    release: str | None
    ua: str | None
    channels: tuple[str, ...]
    n_channels: int
    seq_lo: int | None
    seq_hi: int | None
    nodes: tuple[str, ...]
    n: int
    peak_rps: float
    mean_rps: float
    pace: Pace | None
    pause_ms: float | None
    since_us: int
    until_us: int
    trigger: str | None
    trigger_us: int | None
    ended_us: int | None
    phases: tuple[Phase, ...]
    impact: Impact
    held_s: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class ReportedIncident(Summary):
    """One incident of a report.

    Attributes:
        number: its place in this report. ongoing: whether the log ends with it.
        curve: its requests over time. lines: some of them, as they stand in the log.
        history: what earlier reports say of its kind; ``None`` without a memory (`--table`).
        lifts: what sets its requests apart from all others of the same time.
        heat: its requests by client and time: of the worst incident that has several clients.
        mitigations: what to paste against it; the 200 worst incidents have some.
        muted: why it counts neither for the verdict nor for the exit code; ``None`` if it does.
    """

    number: int
    ongoing: bool
    curve: Curve
    lines: tuple[LogLine, ...]
    history: History | None = None
    lifts: tuple[Lift, ...] = ()
    heat: Heat | None = None
    mitigations: tuple[Mitigation, ...] = ()
    muted: str | None = None

    def details(self) -> tuple[tuple[str, str], ...]:
        """The lines below the first sentence of an incident, with their titles."""
        history = (("History", self.history.words),) if self.history else ()
        # A user agent is its release, as a rule.
        releases = {one.name for one in self.lifts if one.kind == "release"}
        lifts = [one for one in self.lifts if one.kind != "user agent" or one.name not in releases]
        different = (("Different", "; ".join(one.words for one in lifts)),) if lifts else ()
        muted = (("Muted", self.muted),) if self.muted else ()
        words = self.words
        return (
            *muted,
            ("When", words.when),
            *history,
            ("Phases", words.phases),
            ("Root", words.root),
            ("Impact", words.impact),
            *different,
            ("Confidence", words.confidence),
            ("Cause", words.cause),
            ("Fix", words.fix),
        )


@dataclass(frozen=True, slots=True)
class Alert:
    """An incident as an alert of the watch tells it.

    Attributes:
        alert: what kind of document this is. version: of its form.
        key: the same when the alert is sent again. told_us: when it was made, microseconds since the epoch.
        status: `firing` when the incident begins, `worse` when its severity rises, `resolved` when it is over.
        into: the id of the incident that this one turned out to be a part of; then it is `resolved`.
        incident: what is known of it by now.
    """

    alert: Literal["tricklecast storms watch"]
    version: int
    key: str
    status: Literal["firing", "worse", "resolved"]
    told_us: int
    into: str | None
    incident: Summary


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a report.

    Attributes:
        severity: of the worst incident; ``None`` without one.
        headline: how many incidents there are. examined: which requests were looked at.
        warning: why not to trust the report; ``None`` where nothing speaks against that.
    """

    severity: Severity | None
    headline: str
    examined: str
    warning: str | None


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure as people read it.

    Attributes:
        name: what it is. value: with its unit. note: what it is made of.
    """

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Marker:
    """A lifecycle event of a server or a channel.

    Attributes:
        ts_us: when, microseconds since the epoch. event: its name in the access log. node, channel: of which.
    """

    ts_us: int
    event: str
    node: str | None
    channel: str | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """All traffic over time.

    Attributes:
        start_us: of the first step, microseconds since the epoch. step_us: a step's length, whole minutes.
        requests, failures, in_incidents: how many in each step. events: what set incidents off, and the servers' own.
    """

    start_us: int
    step_us: int
    requests: tuple[int, ...]
    failures: tuple[int, ...]
    in_incidents: tuple[int, ...]
    events: tuple[Marker, ...]


@dataclass(frozen=True, slots=True)
class WorstMinute:
    """The minute of a server, with 1,000 requests or more, in which the most requests were sent per wanted one.

    Attributes:
        node: the server. minute_us: its beginning, microseconds since the epoch. requests: in it.
        amplification: requests per wanted request.
    """

    node: str
    minute_us: int
    requests: int
    amplification: float


@dataclass(frozen=True, slots=True)
class Offender:
    """The senders of the requests of the incidents.

    Attributes:
        kind: what the name names. name: as the log has it. about: for a client its product and version.
        requests: in incidents; those of a crowd are divided evenly among its clients. share: of all of these, 0 to 1.
    """

    kind: Literal["client", "release", "network"]
    name: str
    about: str | None
    requests: int
    share: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost of the incidents.

    Attributes:
        requests: all. failures: those that were answered with 4xx or 5xx. in_incidents: those of incidents.
        wasted_requests: of these, all that a client sent after the first one for the same thing; wasted_bytes: their
            bodies; wasted_handler_s: seconds of handling them; ``None`` where no line has any.
        amplification: requests per wanted (not wasted) request. retry_ratio: wasted requests per request, 0 to 1.
        worst_minute: where it was highest; ``None`` if no server was busy. offenders: who sent most of it.
        nodes: the servers.
        since_us, until_us: first and last arrival in the log, microseconds since the epoch.
    """

    requests: int
    failures: int
    in_incidents: int
    wasted_requests: int
    wasted_bytes: int | None
    wasted_handler_s: float | None
    amplification: float
    retry_ratio: float
    worst_minute: WorstMinute | None
    offenders: tuple[Offender, ...]
    nodes: tuple[str, ...]
    since_us: int | None
    until_us: int | None


@dataclass(frozen=True, slots=True)
class Quality:
    """How far the log can be trusted.

    Attributes:
        lines: all. unreadable: those that are no record. future: with a clock that is ahead; no rule judges them.
        unrouted: requests whose path is no channel's. duplicates: left out, since the inputs overlap.
        events: lifecycle events. formats: that the files have. samples: some unreadable lines.
        caveats: what the reader should know, one sentence each. doubts: why incidents may be missing or wrong; they
            stand first in the report. nothing: whether there was nothing to judge.
    """

    lines: int
    unreadable: int
    future: int
    unrouted: int
    duplicates: int
    events: int
    formats: tuple[str, ...]
    samples: tuple[LogLine, ...]
    caveats: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    nothing: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """One rate, here and in the baseline.

    Attributes:
        name: what is counted. per: by what it is divided. here, before: the rates. ratio: the first by the second;
            ``None`` if that is 0.
        words: all of it as a sentence.
    """

    name: str
    per: str
    here: float
    before: float
    ratio: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Report:
    """The document.

    Attributes:
        report: what kind of document this is. version: of its form. engine: which one read the logs. inputs: the logs.
        verdict: what it comes to. tiles: the main figures as people read them. incidents: the worst first.
        timeline: all traffic over time; ``None`` without any. figures: what the incidents cost.
        quality: how far the log can be trusted. baseline: rates here and in other logs. params: the thresholds.
    """

    report: Literal["tricklecast storms"]
    version: int
    engine: Literal["embedded", "spark"]
    inputs: tuple[str, ...]
    verdict: Verdict
    tiles: tuple[Tile, ...]
    incidents: tuple[ReportedIncident, ...]
    timeline: Timeline | None
    figures: Figures
    quality: Quality
    baseline: tuple[Rate, ...]
    params: Params

    @property
    def trusted(self) -> bool:
        """Whether so few lines were unreadable, and so much was there to judge, that the report says something."""
        return not self.quality.nothing and self.quality.unreadable <= MAX_BAD * self.quality.lines

    def fails(self, severity: Severity) -> bool:
        """Whether there is an incident of this severity or a worse one that is not muted."""
        return any(
            SEVERITIES.index(one.severity) <= SEVERITIES.index(severity) for one in self.incidents if one.muted is None
        )


def schema(kind: type[Report] | type[Alert] = Report) -> dict[str, Any]:
    """The JSON Schema of a report, or of an alert."""
    return msgspec.json.schema(kind)
