"""Drawings of traffic over time, as SVG inside the page.

Every drawing is as wide as its place: the outer SVG has no view box, so that its texts keep their size on a telephone;
positions are percentages, and only the curves are stretched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from analytics.report.evidence import span_of, trigger_of
from analytics.report.formats import clock, counted, duration, rate
from analytics.report.html.markup import Markup, element, joined
from analytics.report.html.scale import TimeAxis, round_top, thinned
from analytics.report.plain import as_text, plain

if TYPE_CHECKING:
    from analytics.params import StormParams
    from analytics.report.figures import Marker, Timeline
    from analytics.report.model import Episode

MAX_POINTS: Final = 480
MAX_FLAGS: Final = 30
MAX_LANES: Final = 8
MAX_BARS: Final = 60
_TOP: Final = 26
"""Pixels above a curve: for flags."""
_TIMES: Final = 20
"""Pixels below: for the times."""
_LANE: Final = 14
_FLAG_SHARE: Final = 3.0
"""Events nearer to each other than this share of the width are one flag. Percent."""
_NEAR_S: Final = 5.0


def timeline(data: Timeline, episodes: Sequence[Episode]) -> Markup:
    """All traffic, what of it failed and what of it was storm, with the storms below and flags for events."""
    axis = TimeAxis(data.start_us, data.start_us + max(1, len(data.requests)) * data.step_us)
    width, requests = thinned(data.requests, MAX_POINTS)
    curves = [requests, thinned(data.failures, MAX_POINTS)[1], thinned(data.hits, MAX_POINTS)[1]]
    per_second = data.step_us / 1e6
    top = round_top(max(requests, default=0) / per_second)
    lanes, bars = _lanes(episodes, axis)
    plot = 180
    drawn = [
        _frame(axis, top, plot, _TOP),
        _curves(curves, top * per_second, plot, ("traffic", "failures", "hits")),
        element("g", [_bar(episode, axis, lane, _TOP + plot + _TIMES + 6) for episode, lane in bars]),
        element("g", [_flag(axis, first, last, at, plot) for first, last, at in grouped(data.markers, axis)]),
    ]
    step = duration(data.step_us * width / 1e6)
    label = f"Requests per second over time, in steps of {step}; highest {rate(max(requests, default=0) / per_second)}"
    return _svg(label, _TOP + plot + _TIMES + (10 + lanes * _LANE if lanes else 0), drawn, "timeline")


def grouped(markers: Sequence[Marker], axis: TimeAxis) -> list[tuple[int, int, float]]:
    """Flags: numbers of the first and the last event (from 1) that stand at one place, and that place in percent."""
    flags: list[tuple[int, int, float]] = []
    for number, marker in enumerate(markers[:MAX_FLAGS], 1):
        at = axis.at(marker.ts_us)
        if flags and at - flags[-1][2] < _FLAG_SHARE:
            flags[-1] = (flags[-1][0], number, flags[-1][2])
        else:
            flags.append((number, number, at))
    return flags


def sparkline(episode: Episode, params: StormParams, points: int) -> Markup | None:
    """One episode's requests over time, with the event that it followed and the rate from which it is a storm."""
    data = episode.sparkline
    if data is None or not data.counts:
        return None
    width, counts = thinned(data.counts, points)
    end_us = data.start_us + len(counts) * width * data.step_us
    axis = _with_trigger(episode, TimeAxis(data.start_us, end_us))
    per_second = data.step_us / 1e6
    peak = max(counts) / per_second
    top, plot = round_top(max(peak, 1.0)), 72
    place = {"x": f"{axis.at(data.start_us)}%", "width": f"{axis.at(end_us) - axis.at(data.start_us):.3f}%"}
    drawn = [
        _frame(axis, top, plot, 18),
        _curves([counts], top * per_second, plot, ("hits",), y=18, **place),
        _threshold(params.critical_rps, top, plot) if episode.n_clients == 1 else None,
        _trigger(episode, axis, plot),
    ]
    label = f"Requests per second, {span_of(episode)}, in steps of {duration(data.step_us * width / 1e6)}; highest "
    return _svg(label + rate(peak), 18 + plot + _TIMES, drawn, "spark")


def _svg(label: str, height: int, drawn: Sequence[Markup | None], kind: str) -> Markup:
    title = element("title", label)
    return element("svg", title, drawn, class_=f"chart {kind}", width="100%", height=height, role="img")


def _frame(axis: TimeAxis, top: float, plot: int, y: int) -> Markup:
    lines = []
    for share in (1.0, 0.5):
        at = y + plot * (1 - share)
        lines += [
            element("line", x1=0, x2="100%", y1=at, y2=at, class_="grid"),
            element("text", rate(top * share), x=0, y=at - 3, class_="scale"),
        ]
    lines.append(element("line", x1=0, x2="100%", y1=y + plot, y2=y + plot, class_="base"))
    for place, text in axis.ticks():
        anchor = "start" if place < 4 else "end" if place > 96 else "middle"
        attributes = {"text-anchor": anchor, "class": "scale"}
        lines.append(element("line", x1=f"{place}%", x2=f"{place}%", y1=y + plot, y2=y + plot + 4, class_="base"))
        lines.append(element("text", text, x=f"{place}%", y=y + plot + 16, **attributes))
    return element("g", lines)


def _curves(
    curves: Sequence[Sequence[int]], top: float, plot: int, kinds: Sequence[str], y: int = _TOP, **place: str
) -> Markup:
    steps = max(1, len(curves[0]))
    box: dict[str, str | int] = {
        "viewBox": f"0 0 {steps} 200",
        "preserveAspectRatio": "none",
        "width": "100%",
        "height": plot,
        "y": y,
    }
    paths = [element("path", d=_path(curve, top), class_=kind) for curve, kind in zip(curves, kinds, strict=True)]
    return element("svg", paths, **box | place)


def _path(counts: Sequence[int], top: float) -> str:
    """A curve of steps, closed at the bottom; runs of equal height are one step."""
    parts = ["M0 200"]
    height, run = 200, 0
    for count in counts:
        now = round(200 - 200 * min(1.0, count / top))
        if count and now == 200:
            now = 199  # one request in a storm of thousands is still one
        if now != height:
            parts.append(f"{f'h{run}' if run else ''}V{now}")
            height, run = now, 0
        run += 1
    return "".join([*parts, f"h{run}V200Z"])


def _threshold(per_second: float, top: float, plot: int) -> Markup | None:
    if per_second > top:
        return None
    y = round(18 + plot * (1 - per_second / top), 1)
    return element("line", x1=0, x2="100%", y1=y, y2=y, class_="threshold")


def _with_trigger(episode: Episode, axis: TimeAxis) -> TimeAxis:
    """The same axis, longer if the trigger is so near that it can be shown without squeezing the curve."""
    if episode.trigger_us is None:
        return axis
    room = max(round(_NEAR_S * 1e6), (axis.end_us - axis.start_us) // 2)
    start = min(axis.start_us, max(episode.trigger_us, axis.start_us - room))
    return TimeAxis(start, max(axis.end_us, min(episode.trigger_us + 1, axis.end_us + room)))


def _trigger(episode: Episode, axis: TimeAxis, plot: int) -> Markup | None:
    if episode.trigger is None or episode.trigger_us is None:
        return None
    at = axis.at(episode.trigger_us)
    arrow = "" if axis.holds(episode.trigger_us) else "\N{LEFTWARDS ARROW} " if at < 50 else "\N{RIGHTWARDS ARROW} "
    anchor = {"text-anchor": "start" if at < 50 else "end"}
    text = f"{arrow}{plain(episode.trigger, 24)}, {clock(episode.trigger_us)}"
    return element(
        "g",
        element("title", as_text(trigger_of(episode))),
        element("line", x1=f"{at}%", x2=f"{at}%", y1=4, y2=18 + plot, class_="event"),
        element("text", text, x=f"{at}%", dx=5 if at < 50 else -5, y=12, class_="event", **anchor),
    )


def _flag(axis: TimeAxis, first: int, last: int, at: float, plot: int) -> Markup:
    text = f"{first}" if first == last else f"{first}\N{EN DASH}{last}"
    width = 9 + 7 * len(text)
    left = -width if at > 97 else 0
    return element(
        "svg",
        element("line", x1=0, x2=0, y1=0, y2=_TOP + plot, class_="event"),
        element("rect", x=left, y=1, width=width, height=16, rx=2, class_="flag"),
        element("text", text, x=left + width / 2, y=13, **{"text-anchor": "middle", "class": "flag"}),
        x=f"{at}%",
        overflow="visible",
    )


def _lanes(episodes: Sequence[Episode], axis: TimeAxis) -> tuple[int, list[tuple[Episode, int]]]:
    """Which of the worst storms go into which row, so that none covers another."""
    ends: list[float] = []
    bars: list[tuple[Episode, int]] = []
    for episode in sorted(episodes[:MAX_BARS], key=lambda episode: (episode.start_us, -episode.end_us)):
        at, until = axis.at(episode.start_us), axis.at(episode.end_us)
        lane = next((lane for lane, end in enumerate(ends) if end + 0.4 < at), len(ends))
        if lane == MAX_LANES:
            continue
        ends[lane : lane + 1] = [max(until, at + 0.5)]
        bars.append((episode, lane))
    return len(ends), bars


def _bar(episode: Episode, axis: TimeAxis, lane: int, y: int) -> Markup:
    at, until = axis.at(episode.start_us), axis.at(episode.end_us)
    wide = until - at > 12
    title = f"{episode.storm}, {episode.severity}: {counted(episode.n, 'request')}, {span_of(episode)}"
    top = y + lane * _LANE
    shape = element("rect", x=f"{at}%", y=top, width=f"{until - at:.3f}%", height=_LANE - 4, rx=1)
    text = element("text", episode.storm.value, x=f"{at}%", dx=5, y=top + 8) if wide else None
    return element(
        "a", joined(element("title", title), shape, text), href=f"#e-{episode.id}", class_=episode.severity.value
    )
