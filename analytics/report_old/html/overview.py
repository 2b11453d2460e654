"""The top of the page: the verdict, the figures that matter most, and the traffic over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report.formats import counted, date_and_time, duration, moment_in, percent, size, times
from tricklecast.analytics.report.plain import Name
from tricklecast.analytics.report_old.caveats import caveats
from tricklecast.analytics.report_old.html.charts import flagged, timeline
from tricklecast.analytics.report_old.html.episodes import SIGNS
from tricklecast.analytics.report_old.html.markup import Child, Markup, element, joined, name, time
from tricklecast.analytics.report_old.verdict import severities, verdict

if TYPE_CHECKING:
    from tricklecast.analytics.report_old.figures import Marker
    from tricklecast.analytics.report_old.model import Report

_CALM: Final = "\N{CHECK MARK}"


def verdict_section(report: Report) -> Markup:
    """What, where, since when, why, what to do first; or that there is nothing, and what was looked at."""
    said = verdict(report)
    worst = report.episodes[0] if report.episodes else None
    sign = SIGNS[worst.severity.value] if worst else _CALM
    heading = element("h1", element("span", sign, class_="sign", aria_hidden="true"), f" {said.count}")
    named = [element("b", name(part.text, 64)) if isinstance(part, Name) else part for part in said.what]
    what = element("p", named, class_="what")
    why = None if said.why is None else element("p", element("b", "Likely cause: "), said.why, ".")
    first = None if said.first is None else element("p", element("b", "Do first: "), said.first, ".")
    then = None if said.then is None else element("p", element("b", "Then: "), said.then, ".")
    more = None if worst is None else element("p", element("a", "Its evidence and advice", href=f"#e-{worst.id}"))
    kind = worst.severity.value if worst else "calm"
    return element("section", heading, what, why, first, then, more, class_=f"verdict {kind}")


def tiles_section(report: Report) -> Markup:
    """The figures that matter most."""
    tiles = [_storms(report), _amplification(report), *_waste(report), _worst_minute(report), *_success(report)]
    tiles.append(_quality(report))
    shown = [element("div", element("dt", title), element("dd", value), note) for title, value, note in tiles]
    return element("dl", shown, class_="tiles")


Tile = tuple[str, Child, Markup | None]


def _note(*words: Child, kind: str | None = None) -> Markup:
    return element("dd", *words, class_=f"note {kind}" if kind else "note")


def _storms(report: Report) -> Tile:
    found = severities(report)
    parts = [element("span", f"{SIGNS[kind]} {count:,} {kind}", class_=f"sev {kind}") for kind, count in found.items()]
    of = f" of the {len(report.episodes):,} listed" if report.n_episodes > len(report.episodes) else None
    note = _note(joined([(" \N{MIDDLE DOT} " if at else None, part) for at, part in enumerate(parts)], of))
    return ("Storms", f"{report.n_episodes:,}", note if report.episodes else _note("none in this log"))


def _amplification(report: Report) -> Tile:
    totals = report.totals
    note = f"{totals.requests:,} requests for {totals.wanted:,} wanted; 1 is healthy"
    return ("Amplification", times(totals.amplification), _note(note))


def _waste(report: Report) -> list[Tile]:
    success, totals = report.success, report.totals
    if success is None:
        return []
    share = success.wasted_requests / totals.requests if totals.requests else 0.0
    bytes_share = success.wasted_bytes / totals.bytes_out if totals.bytes_out else 0.0
    return [
        ("Wasted requests", f"{success.wasted_requests:,}", _note(f"{percent(share)} of all")),
        ("Wasted bytes", size(success.wasted_bytes), _note(f"{percent(bytes_share)} of {size(totals.bytes_out)} sent")),
        ("Wasted handling", duration(success.wasted_handler_s), _note(f"of {duration(totals.handler_s)}, with waits")),
    ]


def _worst_minute(report: Report) -> Tile:
    worst = report.worst_minute
    if worst is None:
        return ("Worst node-minute", "none", _note(f"no minute had {report.params.busy_minute:,} requests"))
    note = _note(name(worst.node, 24), ", ", time(worst.minute_us, date_and_time(worst.minute_us)[:16]), " UTC, ")
    of = f"{worst.repeats:,} of {worst.requests:,} too many"
    return ("Worst node-minute", times(worst.amplification), joined(note, _note(of)))


def _success(report: Report) -> list[Tile]:
    success = report.success
    if success is None:
        return []
    gained = f"in the end {percent(success.eventual)}; retry ratio {percent(success.retry_ratio)}"
    return [("Succeeded at once", percent(success.first_try), _note(gained))]


def _quality(report: Report) -> Tile:
    found = caveats(report.quality)
    value = "complete" if not found else counted(len(found), "caveat")
    link = element("a", f"{report.quality.lines:,} lines", href="#quality")
    return ("Data quality", value, _note(link, f", {report.quality.unparsable:,} unparsable"))


def timeline_section(report: Report) -> Markup | None:
    """The traffic with storms and events, and the events again in words; ``None`` where it was not computed."""
    data = report.timeline
    if data is None and report.totals.requests:
        return None
    if data is None or not data.requests:
        return element("p", "The log has no requests, so there is nothing to draw.", class_="none")
    legend = [
        element("span", title, class_=f"key {kind}")
        for kind, title in (("traffic", "all requests"), ("failures", "refused or failed"), ("hits", "storm"))
    ]
    shown_of = f"the {len(report.episodes):,} storms that are listed, of {report.n_episodes:,}"
    listed = f" Red, and bars: {shown_of}." if report.n_episodes > len(report.episodes) else " Bars: the worst storms."
    bars = listed if report.episodes else ""
    shown = flagged(data, report.episodes)
    flags = " Flags: events, listed below; first of all those that storms followed." if shown else ""
    caption = f"Requests per second from {date_and_time(data.start_us)} UTC.{bars}{flags}"
    last_us = data.start_us + len(data.requests) * data.step_us
    numbered = [element("li", _event(marker, data.start_us, last_us)) for marker in shown]
    rest = data.n_markers - len(numbered)
    return element(
        "figure",
        element("figcaption", caption, element("span", legend, class_="keys")),
        timeline(data, report.episodes),
        element("ol", numbered, class_="events") if numbered else None,
        element("p", f"and {counted(rest, 'more event')}", class_="none") if rest > 0 else None,
    )


def _event(marker: Marker, first_us: int, last_us: int) -> Markup:
    where = [(" ", name(each, 32)) for each in (marker.node, marker.channel) if each is not None]
    at = time(marker.ts_us, moment_in(marker.ts_us, first_us, last_us))
    return joined(at, " ", element("b", name(marker.event, 32)), where)
