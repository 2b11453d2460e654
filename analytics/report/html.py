"""The report as one HTML page that loads nothing and runs nothing.

Every name in it comes from whoever sent the requests: Jinja2 escapes what the templates print, invisible characters are
spelled out, and a content security policy lets the browser use the page's own style and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tricklecast.analytics.report.formats import clock, counted, date_and_time, percent, rate, span
from tricklecast.analytics.report.plain import plain, spelled
from tricklecast.analytics.report.scale import TimeAxis, round_top, thinned
from tricklecast.analytics.report.text import offender_name, shown, who_sent
from tricklecast.analytics.report.words import client_name, places

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Curve, Entry, Marker, Report, Timeline

MAX_POINTS: Final = 240
MAX_BARS: Final = 60
MAX_LANES: Final = 8
MAX_FLAGS: Final = 24
MAX_OPEN: Final = 5
"""Incidents that are unfolded from the beginning."""

MAX_CHARTS: Final = 200
"""Incidents with a curve of their own; a page with thousands would be slow to open."""

_HIGH: Final = 99
"""Units of a curve's height."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An incident below the timeline: place and width in percent, and the row that it stands in."""

    number: int
    severity: str
    title: str
    x: float
    width: float
    lane: int


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of requests over time; positions are percent of its width, and a curve has its own units.

    Attributes:
        label: what it shows, for those who cannot see it. top: the rate at its upper edge, as text.
        steps: units of a curve's width. curves: class and path of each. ticks: place and text of each time.
        bars: incidents below it, in so many lanes. flags: place and text of events.
    """

    label: str
    top: str
    steps: int
    curves: tuple[tuple[str, str], ...]
    ticks: tuple[tuple[float, str], ...]
    bars: tuple[Bar, ...] = ()
    lanes: int = 0
    flags: tuple[tuple[float, str], ...] = ()


def as_html(report: Report) -> str:
    """The report as an HTML document, to be written as UTF-8."""
    style = files(__package__).joinpath("templates", "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template("report.html.j2")
    return page.render(
        report=report,
        max_open=MAX_OPEN,
        counting=[one for one in report.incidents if one.muted is None],
        muted=[one for one in report.incidents if one.muted is not None],
        style=Markup(style),  # our own file
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        timeline=_timeline(report.timeline, report.incidents) if report.timeline else None,
        curves={one.number: _curve(one) for one in report.incidents[:MAX_CHARTS] if len(one.curve.counts) > 1},
    )


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
    made.filters |= {"plain": plain, "percent": percent, "moment": date_and_time, "shown": shown}
    made.globals |= {
        "client_name": client_name,
        "offender_name": offender_name,
        "counted": counted,
        "places": places,
        "who_sent": who_sent,
    }
    return made


def _visible(value: Any) -> Any:
    """Spells out what cannot be seen, in every text that a template prints."""
    return spelled(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _timeline(data: Timeline, entries: Sequence[Entry]) -> Chart:
    axis = TimeAxis(data.start_us, data.start_us + len(data.requests) * data.step_us)
    width, requests = thinned(data.requests, MAX_POINTS)
    counts = (requests, thinned(data.failures, MAX_POINTS)[1], thinned(data.in_incidents, MAX_POINTS)[1])
    per_second = data.step_us / 1e6
    top = round_top(max(requests) / per_second)
    bars, lanes = _bars(entries, axis)
    step = span(data.step_us * width / 1e6)
    return Chart(
        label=f"Requests per second over time, in steps of {step}; at most {rate(max(requests) / per_second)}",
        top=rate(top),
        steps=len(requests),
        curves=tuple(
            (name, _path(column, top * per_second))
            for name, column in zip(("requests", "failures", "storm"), counts, strict=True)
        ),
        ticks=tuple(axis.ticks()),
        bars=bars,
        lanes=lanes,
        flags=_flags(data.events, axis),
    )


def _curve(entry: Entry) -> Chart:
    data: Curve = entry.curve
    axis = TimeAxis(data.start_us, data.start_us + len(data.counts) * data.step_us)
    per_second = data.step_us / 1e6
    top = round_top(max(data.counts) / per_second)
    return Chart(
        label=f"Requests per second of incident {entry.number}, in steps of {span(per_second)}",
        top=rate(top),
        steps=len(data.counts),
        curves=((entry.severity, _path(data.counts, top * per_second)),),
        ticks=tuple(axis.ticks()),
    )


def _path(counts: Sequence[int], top: float) -> str:
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


def _bars(entries: Sequence[Entry], axis: TimeAxis) -> tuple[tuple[Bar, ...], int]:
    """The worst incidents in rows, so that none covers another; and how many rows there are."""
    ends: list[float] = []
    bars = []
    for one in sorted(entries[:MAX_BARS], key=lambda one: (one.since_us, -one.until_us)):
        at, until = axis.at(one.since_us), axis.at(one.until_us)
        lane = next((lane for lane, end in enumerate(ends) if end + 0.4 < at), len(ends))
        if lane == MAX_LANES:
            continue
        width = max(until - at, 0.5)
        ends[lane : lane + 1] = [at + width]
        title = f"Incident {one.number}: {one.words.happened}"
        bars.append(Bar(one.number, one.severity, title, at, round(width, 3), lane))
    return tuple(bars), len(ends)


def _flags(events: Sequence[Marker], axis: TimeAxis) -> tuple[tuple[float, str], ...]:
    """Events as flags, those near each other as one."""
    found: list[tuple[float, list[str]]] = []
    for one in events:
        where = plain(one.channel or one.node)
        text = f"{clock(one.ts_us)} {plain(one.event)} {where}"
        at = axis.at(one.ts_us)
        if found and (at - found[-1][0] < 100 / MAX_FLAGS):
            found[-1][1].append(text)
        else:
            found.append((at, [text]))
    return tuple(
        (at, "; ".join([*texts[:8], *([f"and {len(texts) - 8:,} more"] if len(texts) > 8 else [])]))
        for at, texts in found
    )
