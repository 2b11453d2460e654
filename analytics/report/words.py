"""Incidents in sentences: the one place that turns one into words.

Names come from whoever sent the requests. :func:`~analytics.report.plain.plain` makes them safe to show here, so that
every form of the report can print these texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from tricklecast.analytics.report.formats import TIMES, clock, counted, date_and_time, percent, rate, size, span
from tricklecast.analytics.report.model import MAX_BAD, SEVERITIES, History, Lift, Verdict, Words
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.rules.classes import Side, StormClass
from tricklecast.analytics.rules.incidents import Confidence, Incident, Pace
from tricklecast.analytics.rules.params import Params

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Figures, Marker, Quality, ReportedIncident

_S = StormClass
_ARROW: Final = "\N{RIGHTWARDS ARROW}"

PHASES: Final[dict[StormClass, str]] = {
    _S.ZERO_BYTE_LOOP: "empty",
    _S.SAME_SEGMENT_LOOP: "served again",
    _S.ENDED_LOOP: "channel ended",
    _S.NOT_FOUND_LOOP: "404",
    _S.NOT_FOUND_DRIP: "404, slowly",
    _S.SEQ_BEHIND_LOOP: "470, too old",
    _S.SEQ_AHEAD_SWEEP: "470, too new",
    _S.REPOST_LOOP: "posted again",
    _S.OVERLOAD_CLIENT: "refused",
    _S.OVERLOAD_AMPLIFICATION: "refused, many clients",
    _S.THUNDERING_HERD: "all at once",
    _S.SERVER_ERROR_LOOP: "server error",
    _S.REJECTED_LOOP: "rejected",
    _S.ABANDONED_LOOP: "given up",
}
"""The answer that the client got, in a word or two; on a path of any web server it is the status."""

HAPPENED: Final[dict[StormClass, str]] = {
    _S.ZERO_BYTE_LOOP: "{who} asked for {what} {times}, got it empty and never moved on",
    _S.SAME_SEGMENT_LOOP: "{who} asked for {what} {times} although it was served",
    _S.ENDED_LOOP: "{who} asked for {what} {times} after the answer that the channel has ended",
    _S.NOT_FOUND_LOOP: "{who} asked for {what} {times} and got 404 each time",
    _S.NOT_FOUND_DRIP: "{who} asked for {what} {times} although the channel has ended",
    _S.SEQ_BEHIND_LOOP: "{who} asked for {what} {times} after it had left the window",
    _S.SEQ_AHEAD_SWEEP: "{who} asked for {what} {times}, ahead of the publisher",
    _S.REPOST_LOOP: "{who} posted {what} {times}",
    _S.OVERLOAD_CLIENT: "{who} asked for {what} {times} while the server refused",
    _S.OVERLOAD_AMPLIFICATION: "{who} retried {times} on {where} while it refused them",
    _S.THUNDERING_HERD: "{who} came to {where} at the same moment and again, {times}",
    _S.SERVER_ERROR_LOOP: "{who} asked for {what} {times} and got a server error each time",
    _S.REJECTED_LOOP: "{who} asked for {what} {times} and was rejected each time",
    _S.ABANDONED_LOOP: "{who} asked for {what} {times} and gave up before each answer",
    _S.WEB_LOOP: "{who} sent {what} {times} and got {status} each time",
}
"""The sentence of an incident with one phase."""

ENDED: Final = "the channel had ended"

ROOTS: Final[dict[StormClass, str]] = {
    _S.ZERO_BYTE_LOOP: "an empty segment was served again and again",
    _S.SAME_SEGMENT_LOOP: "the same segment was served again and again",
    _S.ENDED_LOOP: ENDED,
    _S.NOT_FOUND_LOOP: "there is no such channel",
    _S.NOT_FOUND_DRIP: ENDED,
    _S.SEQ_BEHIND_LOOP: "the segment had left the window",
    _S.SEQ_AHEAD_SWEEP: "the publisher had not begun the segment",
    _S.REPOST_LOOP: "the publisher repeated a segment that the server had",
    _S.OVERLOAD_CLIENT: "the server refused the client",
    _S.OVERLOAD_AMPLIFICATION: "the server refused many clients",
    _S.THUNDERING_HERD: "many clients acted on one cue",
    _S.SERVER_ERROR_LOOP: "the server failed",
    _S.REJECTED_LOOP: "the server rejected the request",
    _S.ABANDONED_LOOP: "the client did not wait for the answer",
}
"""The first phase of an incident, in words."""

PACES: Final = {
    Pace.HOT_LOOP: "hot loop, a pause of {}",
    Pace.FIXED: "a fixed pause of {}",
    Pace.BACKING_OFF: "backing off, a pause of {} in the middle",
    Pace.IRREGULAR: "irregular pauses, {} in the middle",
}
"""How the client paces itself, with the median of its pauses."""

TRIGGERS: Final[dict[str, str]] = {
    "channel_end": "the channel's end",
    "channel_create": "the channel's creation",
    "server_start": "the server's start",
    "server_ready": "the server's start",
    "worker_restart": "the restart of one of the server's workers",
    "drain": "the server's drain",
    "server_stop": "the server's stop",
    "config": "a change of configuration",
}

_HASH: Final = re.compile(r"[0-9a-f]{16}")
_ADDRESS: Final = re.compile(r"[0-9a-fA-F]*[.:][0-9a-fA-F.:]*(?=$|[#+])")
_BROWSER: Final = re.compile(r"(Edg|OPR|Firefox|Chrome|Version)/([\d]+)")
_BROWSERS: Final = {"Edg": "Edge", "OPR": "Opera", "Version": "Safari"}
_ROUTE: Final = re.compile(r"(\S+ /.*) (\d{3})", re.DOTALL)
_SHORT: Final = 8
_PARAMS: Final = Params()


def describe(incident: Incident, *, ongoing: bool = False) -> Words:
    """The sentences about an incident.

    Args:
        ongoing: whether it still went on when the log ended.
    """
    name = who(incident.clients, incident.release, incident.ua, named=incident.named)
    return Words(
        who=name,
        fault=fault(incident),
        happened=_happened(incident, name),
        when=_when(incident, ongoing=ongoing),
        phases=f" {_ARROW} ".join(
            f"{_statuses(incident) if one.storm is _S.WEB_LOOP else PHASES[one.storm]} {TIMES} {one.n:,}"
            for one in incident.phases
        ),
        root=_root(incident),
        impact=impact(incident),
        confidence=_confidence(incident),
        cause=plain(incident.cause, 1000),
        fix=plain(incident.fix, 1000),
    )


def product(release: str | None, ua: str | None) -> str | None:
    """The program and its version, as people call it: ``myplayer/1.4``, ``Chrome/138``."""
    if release and not release.startswith("Mozilla/"):
        return plain(release)
    if found := _BROWSER.search(ua or ""):
        return f"{_BROWSERS.get(found[1], found[1])}/{found[2]}"
    return plain(release) if release else plain(ua.partition(" ")[0]) if ua else None


def client_name(key: str, about: str | None, *, named: bool = True) -> str:
    """One client: by the name that it gives itself, else by its product and the beginning of its key.

    Args:
        about: its product and version. named: whether the key is a client's, and not a network's.
    """
    if not named:
        return f"the network {plain(key)}"
    if about == plain(key):
        about = None
    if _HASH.fullmatch(key):
        short = key[:_SHORT]
        return f"a client of {about} ({short})" if about else f"client {short}"
    if found := _ADDRESS.match(key):
        return f"{plain(found[0])} ({about})" if about else plain(found[0])
    return f"{plain(key)} ({about})" if about else plain(key)


def who(clients: Sequence[str], release: str | None, ua: str | None, *, named: bool) -> str:
    """The clients of an incident; a crowd by how many they are."""
    if len(clients) == 1:
        return client_name(clients[0], product(release, ua), named=named)
    kind = "clients" if named else "networks"
    # The user agent is one of several, unless all have the same release.
    about = f" of {product(release, ua)}" if release else ""
    return f"{len(clients):,} {kind}{about}"


def fault(incident: Incident) -> str:
    """The side that should change."""
    return "either side's fault" if incident.side is Side.EITHER else f"{incident.side} fault"


def target(incident: Incident) -> str:
    """The target of requests: ``film/17``, ``4 channels``, ``GET /api/token``."""
    names = list(dict.fromkeys(map(place_name, incident.channels)))
    if not names:
        return "the server"
    if len(names) > 1:
        return f"{places(names, incident.channels)} ({plain(names[0])} the most)"
    if _ROUTE.fullmatch(incident.channels[0]):
        return plain(names[0])
    name, low, high = plain(incident.channels[0]), incident.seq_lo, incident.seq_hi
    if low is None or high is None:
        return name
    return f"{name}/{low}" if low == high else f"{name}/{low}\N{EN DASH}{high}"


def place_name(channel: str) -> str:
    """A channel's name; of a path of any web server the method and the path, without the status."""
    route = _ROUTE.fullmatch(channel)
    return route[1].rstrip("/") if route else channel


def places(names: Sequence[str], channels: Sequence[str], count: int | None = None) -> str:
    """How many channels, or paths of any web server."""
    noun = "path" if channels and all(map(_ROUTE.fullmatch, channels)) else "channel"
    return counted(len(names) if count is None else count, noun)


def _statuses(incident: Incident) -> str:
    """The answers of a web server: ``401``, ``301 or 302``."""
    found = sorted({route[2] for route in map(_ROUTE.fullmatch, incident.channels) if route})
    return " or ".join(found) if 0 < len(found) <= 3 else "an error"


def _happened(incident: Incident, name: str) -> str:
    seconds = (incident.until_us - incident.since_us) / 1e6
    times = f"{incident.n:,} times in {span(seconds)} ({rate(incident.mean_rps)})"
    if incident.peak_rps >= (1 if len(incident.clients) > 1 else 2) * incident.mean_rps:
        times = f"{times[:-1]}, at most {rate(incident.peak_rps)})"
    form = HAPPENED[incident.storm]
    alone = len(incident.clients) == 1
    if len(incident.phases) > 1 and alone:
        form = "{who} asked for {what} {times} and never moved on"
    if incident.channels and all(map(_ROUTE.fullmatch, incident.channels)):
        form = form.replace("asked for", "sent").replace("and never moved on", "and never got what it wanted")
        if len(set(map(place_name, incident.channels))) > 1:
            form = form.replace("sent {what}", "sent requests for {what}")
    if not alone:
        form = form.replace("was rejected", "were rejected")
    return form.format(
        who=name,
        what=target(incident),
        times=times,
        where=_nodes(incident.nodes),
        status=_statuses(incident),
    )


def _nodes(nodes: Sequence[str]) -> str:
    shown = [plain(node) or "the server" for node in nodes]
    return ", ".join(shown) if len(shown) <= 3 else f"{shown[0]} and {len(shown) - 1:,} more servers"


def _when(incident: Incident, *, ongoing: bool) -> str:
    seconds = (incident.until_us - incident.since_us) / 1e6
    where = f" on {_nodes(incident.nodes)}" if any(incident.nodes) else ""
    end = ", still going on when the log ends" if ongoing else ""
    pause = span((incident.pause_ms or 0) / 1000)
    # A rate that is no storm's may be one: it is judged by the client's own time.
    held = f"; the storm guard held its requests for {span(incident.held_s)} in all" if incident.held_s >= 1 else ""
    pace = f"; {PACES[incident.pace]}" if incident.pace and len(incident.clients) == 1 else ""
    return f"{date_and_time(incident.since_us)} UTC, for {span(seconds)}{where}{end}{pace.format(pause)}{held}"


def _root(incident: Incident) -> str:
    storm = incident.storm
    began = f"the server answered {_statuses(incident)}" if storm is _S.WEB_LOOP else ROOTS[storm]
    if storm is _S.ZERO_BYTE_LOOP and incident.ended_us is not None:
        began = "channel closed before its DELETE"
    elif storm in (_S.NOT_FOUND_LOOP, _S.NOT_FOUND_DRIP) and incident.trigger == "channel_end":
        began = ENDED
    if incident.trigger is None or incident.trigger_us is None:
        return began
    lead = (incident.since_us - incident.trigger_us) / 1e6
    at = f"({clock(incident.trigger_us)})"
    if began == ENDED and incident.trigger == "channel_end":
        return f"{began} {span(lead)} before {at}" if lead >= 0.001 else f"{began} {at}"
    event = TRIGGERS.get(incident.trigger, plain(incident.trigger))
    # Events and requests of one moment may be logged in either order.
    after = f"{span(lead)} after" if lead >= 0.001 else "at the moment of"
    return f"{began}, {after} {event} {at}"


def impact(incident: Incident) -> str:
    """The cost of an incident and the clients that it harmed; "none measurable" is an answer."""
    cost = incident.impact
    if not cost.measurable:
        return "none measurable"
    parts = []
    if cost.others_refused >= _PARAMS.harm_n:
        parts.append(f"{counted(cost.others_refused, 'request')} of others refused")
    if cost.others_slowed >= _PARAMS.harm_n:
        parts.append(f"{counted(cost.others_slowed, 'answer')} to others slow")
    took_us = cost.handler_us or 0
    shares = [
        (cost.request_share, "requests", ""),
        (cost.handler_share, "handler time", span(took_us / 1e6) if took_us >= 1000 else None),
        (cost.byte_share, "bytes", size(cost.bytes) if cost.bytes else None),
    ]
    told = [
        f"{percent(share)} of the {name}{f' ({amount})' if amount else ''}"
        for share, name, amount in shares
        if share is not None and share >= 0.01 and amount is not None
    ]
    if told:
        where = "its servers" if len(incident.nodes) > 1 else "its server"
        parts.append(f"{', '.join(told)} of {where} in these minutes")
    # With a lower threshold (--set peak_rps=5) the peak alone may be what is measurable.
    if incident.peak_rps >= _PARAMS.peak_rps or not parts:
        parts.append(f"a peak of {rate(incident.peak_rps)}")
    return "; ".join(parts)


def _confidence(incident: Incident) -> str:
    if incident.confidence is Confidence.LOW:
        return "low: this log's format lacks a field that would decide"
    if incident.confidence is Confidence.MEDIUM:
        if incident.shared:
            return "medium: several programs behind one key would look the same"
        few = "few requests of each client" if len(incident.clients) > 1 else "few requests"
        return f"medium: {few if incident.named else 'the log does not tell clients apart'}"
    return "high"


def history(
    state: Literal["new", "again", "regressed"], first_us: int, times: int, release: str | None = None
) -> History:
    """The history of an incident's kind, from earlier reports.

    Args:
        state, first_us, times, release: see :class:`~analytics.report.model.History`.
    """
    told = f"{state} (first seen {date_and_time(first_us)[:10]}, {_ordinal(times)} time)"
    if state == "new":
        told = "new: not seen before"
    elif state == "regressed":
        told = f"regressed: last seen before release {plain(release)}; {told.partition(' ')[2][1:-1]}"
    return History(state, first_us, times, release, told)


def _ordinal(number: int) -> str:
    last = 0 if number // 10 % 10 == 1 else number % 10
    return f"{number:,}{({1: 'st', 2: 'nd', 3: 'rd'}).get(last, 'th')}"


def lift(
    kind: Literal["release", "user agent", "path", "network", "node"], name: str, here: float, others: float
) -> Lift:
    """A value that an incident's requests have far more often than others.

    Args:
        kind, name, here, others: see :class:`~analytics.report.model.Lift`.
    """
    told = f"{kind} {plain(name, 80)}: {percent(here)} of its requests, {percent(others)} of all others then"
    return Lift(kind, name, round(here, 6), round(others, 6), told)


def event(marker: Marker) -> str:
    """A lifecycle event: when, what, of which channel or server."""
    return f"{clock(marker.ts_us)} {plain(marker.event)} {plain(marker.channel or marker.node)}"


def line_of(entry: ReportedIncident) -> str:
    """An incident in one paragraph: the form in which an SRE passes it on."""
    words = entry.words
    return (
        f"INCIDENT {entry.number} \N{MIDDLE DOT} {words.fault} \N{MIDDLE DOT} {words.happened}."
        f" Phases: {words.phases}. Root: {words.root}. Impact: {words.impact}. Confidence: {words.confidence}."
        f" Fix: {words.fix}."
    )


def verdict(entries: Sequence[ReportedIncident], figures: Figures, quality: Quality) -> Verdict:
    """The verdict on incidents in order, the worst first."""
    warnings = list(quality.doubts)
    if quality.unreadable > MAX_BAD * quality.lines:
        share = percent(quality.unreadable / quality.lines)
        warnings.insert(
            0,
            f"Do not trust this report: {quality.unreadable:,} of {quality.lines:,} lines ({share}) could not be read.",
        )
    elif quality.nothing and not figures.requests:
        warnings.insert(0, "These logs have no requests: there is nothing to judge.")
    warning = " ".join(warnings) or None
    counting = [one for one in entries if one.muted is None]
    muted = f"; {len(entries) - len(counting):,} muted" if len(entries) > len(counting) else ""
    if not counting:
        headline = "No incidents" if figures.requests and not quality.nothing else "No requests to judge"
        return Verdict(None, f"{headline}{muted}.", _examined(figures), warning)
    count = {severity: sum(one.severity is severity for one in counting) for severity in SEVERITIES}
    parts = [f"{number:,} {severity}" for severity, number in count.items() if number]
    if len(parts) == 1:
        parts = [f"{'all ' if len(counting) > 1 else ''}{counting[0].severity}"]
    headline = f"{counted(len(counting), 'incident')}: {', '.join(parts)}"
    if ongoing := sum(one.ongoing for one in counting):
        headline += f"; {ongoing:,} still going on when the log ends"
    return Verdict(counting[0].severity, f"{headline}{muted}.", _examined(figures), warning)


def _examined(figures: Figures) -> str:
    if figures.since_us is None or figures.until_us is None:
        return "Examined: no requests."
    length = span((figures.until_us - figures.since_us) / 1e6)
    return (
        f"Examined: {counted(figures.requests, 'request')} to {counted(len(figures.nodes), 'server')},"
        f" {date_and_time(figures.since_us)} to {date_and_time(figures.until_us)} UTC ({length})."
    )
