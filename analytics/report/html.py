"""The report as one HTML page that loads nothing.

Every name in it comes from whoever sent the requests: Jinja2 escapes what the templates print, invisible characters are
spelled out, and a content security policy lets the browser use the page's own style and script and nothing else. The
script copies snippets and unfolds incidents; where it may not run (on the dashboard) the page lacks only that.

Drawings are SVG with positions in percent of the width, so that they fit any window and print sharp. They are made of
few paths: a page of a bad day is sent by mail.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tricklecast.analytics.report.formats import counted, date_and_time, percent, rate, span
from tricklecast.analytics.report.plain import plain, spelled
from tricklecast.analytics.report.scale import TimeAxis, rates, round_top, thinned
from tricklecast.analytics.report.text import RELEASES, ends, offender_name, offenders, shown, who_sent
from tricklecast.analytics.report.words import client_name, event, places
from tricklecast.analytics.rules.incidents import Severity

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Curve, Heat, Marker, Report, ReportedIncident, Timeline

MAX_POINTS: Final = 240
MAX_BARS: Final = 60
MAX_LANES: Final = 10
MAX_FLAGS: Final = 12
MAX_OPEN: Final = 3
"""Incidents that are unfolded from the beginning."""

MAX_CARDS: Final = 12
"""Incidents with all that is known of them; the others have a line each."""

MAX_ROWS: Final = 5000
"""Incidents that are listed; a page with more would be slow to open."""

MAX_NAMES: Final = 20
"""Clients and channels of an incident that are listed; JSON has more."""

LEVELS: Final = 5
"""Shades of a heat map."""

_HIGH: Final = 99
"""Units of a curve's height."""

_FLAGS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Bar:
    """An incident above the timeline: place and width in percent, and the row that it stands in.

    Attributes:
        phases: place and width of each. named: whether there is room for its number beside it.
    """

    number: int
    severity: str
    title: str
    x: float
    width: float
    lane: int
    phases: tuple[tuple[float, float], ...]
    named: bool


@dataclass(frozen=True, slots=True)
class Flag:
    """Events near each other: the place in percent, a letter, and what they were."""

    x: float
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of requests over time; positions are percent of its width, and a curve has its own units.

    Attributes:
        label: what it shows, for those who cannot see it. top: the rate at its upper edge, as text.
        view: the part of a curve's units that is seen. curves: class and path of each.
        ticks: place and text of each time. bars: incidents above it. lanes: rows of bars. flags: events.
    """

    label: str
    top: str
    view: str
    curves: tuple[tuple[str, str], ...]
    ticks: tuple[tuple[float, str], ...]
    bars: tuple[Bar, ...] = ()
    lanes: int = 0
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A drawing of requests by client and time.

    Attributes:
        label: what it shows. names: of the rows. steps: units of its width. levels: a path for each shade.
        ticks: place and text of each time.
    """

    label: str
    names: tuple[str, ...]
    steps: int
    levels: tuple[str, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Release:
    """A release: its incidents, how many of them are critical, the class of most, its requests in them."""

    name: str
    incidents: str
    critical: int
    storm: str
    requests: int
    share: float


def as_html(report: Report) -> str:
    """The report as an HTML document, to be written as UTF-8."""
    style, script = (
        files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
        for name in ("report.css", "report.js")
    )
    told = [one for one in report.incidents if one.muted is None]
    muted = [one for one in report.incidents if one.muted is not None]
    releases = list(_releases(report, told))
    cards = [*told[:MAX_CARDS], *muted[:MAX_CARDS]]
    page = _environment().get_template("report.html.j2")
    return page.render(
        report=report,
        told=told,
        muted=muted,
        max_open=MAX_OPEN,
        max_cards=MAX_CARDS,
        max_rows=MAX_ROWS,
        max_names=MAX_NAMES,
        style=Markup(style),  # our own file
        script=Markup(script),  # as is this
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none';"
        " form-action 'none'",
        chart=_timeline(report.timeline, told, report) if report.timeline else None,
        curves={one.number: _curve(one) for one in cards if len(one.curve.counts) > 1},
        heats={one.number: _heat(one, one.heat) for one in cards if one.heat},
        releases=releases,
        # Several releases have a table of their own.
        who=[each for each in offenders(report).items() if each[0] != RELEASES or len(releases) == 1],
    )


def _digest(text: str) -> str:
    """A source of a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        loader=PackageLoader(__package__),
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "plain": plain,
        "percent": percent,
        "moment": date_and_time,
        "shown": shown,
        "lines": _lines,
        "ends": ends,
    }
    made.globals |= {"offender_name": offender_name, "counted": counted, "places": places, "who_sent": who_sent}
    return made


def _visible(value: Any) -> Any:
    """Spells out what cannot be seen, in every text that a template prints."""
    return spelled(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(text: str) -> Markup:
    """A text of several lines, of which nothing else is markup."""
    return Markup("\n").join(escape(spelled(line)) for line in text.split("\n"))


def _timeline(data: Timeline, entries: Sequence[ReportedIncident], report: Report) -> Chart:
    figures = report.figures
    start_us = data.start_us if figures.since_us is None else figures.since_us
    until_us = start_us if figures.until_us is None else figures.until_us
    edge = max(500_000, (until_us - start_us) // 50)
    axis = TimeAxis(start_us - edge, until_us + edge)
    curves = {}
    for name, counts in (("requests", data.requests), ("storm", data.in_incidents), ("failures", data.failures)):
        told = rates(counts, data.start_us, data.step_us, start_us, until_us)
        width, curves[name] = thinned(told, MAX_POINTS)
    unit, highest = data.step_us * width, max(curves["requests"])
    top = round_top(highest)
    bars, lanes = _bars(entries, axis)
    return Chart(
        label=f"Requests per second over time, in steps of {span(unit / 1e6)}; at most"
        f" {rate(highest)}. {counted(len(bars), 'incident')} above it.",
        top=f"{rate(top)}, means of {span(data.step_us / 1e6)}",
        view=f"{round((axis.start_us - data.start_us) / unit, 4)} 0"
        f" {round((axis.end_us - axis.start_us) / unit, 4)} {_HIGH}",
        curves=tuple((name, _path(told, top)) for name, told in curves.items()),
        ticks=tuple(axis.ticks()),
        bars=bars,
        lanes=lanes,
        flags=_flags(data.events, axis),
    )


def _curve(entry: ReportedIncident) -> Chart:
    data: Curve = entry.curve
    axis = TimeAxis(data.start_us, data.start_us + len(data.counts) * data.step_us)
    per_second = data.step_us / 1e6
    top = round_top(max(data.counts) / per_second)
    return Chart(
        label=f"Requests per second of incident {entry.number}, in steps of {span(per_second)}",
        top=rate(top),
        view=f"0 0 {len(data.counts)} {_HIGH}",
        curves=((entry.severity, _path(data.counts, top * per_second)),),
        ticks=tuple(axis.ticks()),
    )


def _heat(entry: ReportedIncident, data: Heat) -> HeatMap:
    steps = max(map(len, data.counts))
    top = max(map(max, data.counts))
    axis = TimeAxis(data.start_us, data.start_us + steps * data.step_us)
    levels: list[list[str]] = [[] for _ in range(LEVELS)]
    for row, counts in enumerate(data.counts):
        shades = [-(-count * LEVELS // top) for count in counts]
        begin = 0
        for place in range(1, len(shades) + 1):
            if place == len(shades) or shades[place] != shades[begin]:
                if shades[begin]:
                    levels[shades[begin] - 1].append(f"M{begin} {row}h{place - begin}v.9h-{place - begin}z")
                begin = place
    rows, clients = len(data.clients), counted(entry.n_clients, "client")
    whose = clients if rows == entry.n_clients else f"the {rows} busiest of {clients}"
    return HeatMap(
        label=f"Requests by client and time, {whose}; at most {top:,} in {span(data.step_us / 1e6)}",
        names=tuple(client_name(one, None, named=entry.named) for one in data.clients),
        steps=steps,
        levels=tuple(map("".join, levels)),
        ticks=tuple(axis.ticks()),
    )


def _releases(report: Report, entries: Sequence[ReportedIncident]) -> Iterator[Release]:
    """The releases that sent most of the requests of incidents, with what they did."""
    incidents: dict[str, list[ReportedIncident]] = {}
    for one in entries:
        incidents.setdefault(one.release or "", []).append(one)
    for release in report.figures.offenders:
        if release.kind == "release":
            theirs = incidents.get(release.name, [])
            most = Counter(each.storm for each in theirs).most_common(1)
            critical = sum(each.severity is Severity.CRITICAL for each in theirs)
            storm = most[0][0] if most else "\N{EN DASH}"
            yield Release(offender_name(release), f"{len(theirs):,}", critical, storm, release.requests, release.share)


def _path(counts: Sequence[float], top: float) -> str:
    """A curve of steps, closed at the bottom; steps of equal height are one."""
    parts = [f"M0 {_HIGH}"]
    height, run = _HIGH, 0
    for count in counts:
        # One request in a storm of thousands is still one.
        now = min(round(_HIGH - _HIGH * min(1.0, count / top)), _HIGH - 1) if count else _HIGH
        if now != height:
            parts.append(f"{f'h{run}' if run else ''}V{now}")
            height, run = now, 0
        run += 1
    return "".join([*parts, f"h{run}V{_HIGH}Z"])


def _bars(entries: Sequence[ReportedIncident], axis: TimeAxis) -> tuple[tuple[Bar, ...], int]:
    """The worst incidents in rows, so that none covers another; and how many rows there are."""
    ends: list[float] = []
    bars = []
    few = len(entries) <= MAX_BARS // 2
    gap = 2.5 if few else 0.3  # room for a number
    for one in sorted(entries[:MAX_BARS], key=lambda one: (one.since_us, -one.until_us)):
        at = axis.at(one.since_us)
        width = round(max(axis.at(one.until_us) - at, 0.5), 3)
        lane = next((lane for lane, end in enumerate(ends) if end + gap < at), len(ends))
        if lane == MAX_LANES:
            continue
        ends[lane : lane + 1] = [at + width]
        title = f"Incident {one.number}: {one.words.happened}"
        phases = tuple(
            (begin, round(max(axis.at(phase.until_us) - begin, 0.3), 3))
            for phase, begin in ((phase, axis.at(phase.since_us)) for phase in one.phases)
        )
        bars.append(Bar(one.number, one.severity, title, at, width, lane, phases, few))
    return tuple(bars), len(ends)


def _flags(events: Sequence[Marker], axis: TimeAxis) -> tuple[Flag, ...]:
    """Events as flags, those near each other as one; of them, those of servers are told first."""
    found: list[tuple[float, list[Marker]]] = []
    for one in events:
        at = axis.at(one.ts_us)
        if found and at - found[-1][0] < 100 / MAX_FLAGS:
            found[-1][1].append(one)
        else:
            found.append((at, [one]))
    flags = []
    for name, (at, near) in zip(_FLAGS, found, strict=False):
        near.sort(key=lambda one: (one.channel is not None, one.ts_us))
        texts = [*map(event, near[:3])]
        texts += [f"{len(near) - 3:,} more"] if len(near) > 3 else []
        flags.append(Flag(at, name, ", ".join(texts)))
    return tuple(flags)
