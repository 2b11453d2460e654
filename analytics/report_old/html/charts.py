"""Drawings of traffic over time, as SVG inside the page.

Every drawing is as wide as its place: the outer SVG has no view box, so that its texts keep their size on a telephone;
positions are percentages, and only the curves are stretched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report.formats import clock, counted, duration, rate
from tricklecast.analytics.report.plain import plain
from tricklecast.analytics.report.scale import TimeAxis, round_top, thinned
from tricklecast.analytics.report_old.evidence import span_of
from tricklecast.analytics.report_old.html.markup import Markup, element, joined
from tricklecast.analytics.triggers import SERVER_EVENTS

if TYPE_CHECKING:
    from tricklecast.analytics.params import StormParams
    from tricklecast.analytics.report_old.figures import Marker, Timeline
    from tricklecast.analytics.report_old.model import Episode

MAX_POINTS: Final = 480
MAX_FLAGS: Final = 30
MAX_LANES: Final = 8
MAX_BARS: Final = 60
_TOP: Final = 34
"""Pixels above a curve: for flags."""
_TIMES: Final = 20
"""Pixels below: for the times."""
_HIGH: Final = 99
"""Units of a curve's height: two digits, since a thousand curves are long."""
_LANE: Final = 17
_FLAG_SHARE: Final = 4.0
"""Events nearer to each other than this share of the width are one flag. Percent."""
_OF_SERVERS: Final = frozenset(event.value for event in SERVER_EVENTS)
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
        _frame(axis, plot, _TOP, (1.0, 0.5)),
        _curves(curves, top * per_second, plot, ("traffic", "failures", "hits")),
        _scale(top, plot, _TOP, (1.0, 0.5)),
        element("g", [_bar(episode, axis, lane, _TOP + plot + _TIMES + 6) for episode, lane in bars]),
        element(
            "g", [_flag(axis, first, last, at, plot) for first, last, at in grouped(flagged(data, episodes), axis)]
        ),
    ]
    step = duration(data.step_us * width / 1e6)
    label = f"Requests per second over time, in steps of {step}; highest {rate(max(requests, default=0) / per_second)}"
    return _svg(label, _TOP + plot + _TIMES + (10 + lanes * _LANE if lanes else 0), drawn)


def flagged(data: Timeline, episodes: Sequence[Episode]) -> list[Marker]:
    """The events that get a flag, at most :data:`MAX_FLAGS`, in order: what storms followed, then the servers' own.

    Args:
        episodes: the worst first.
    """
    triggers: dict[tuple[int | None, str | None], int] = {}
    for rank, episode in enumerate(episodes):
        triggers.setdefault((episode.trigger_us, episode.trigger), rank)

    def importance(place: int) -> tuple[int, bool]:
        marker = data.markers[place]
        return triggers.get((marker.ts_us, marker.event), len(episodes)), marker.event not in _OF_SERVERS

    chosen = sorted(range(len(data.markers)), key=importance)[:MAX_FLAGS]
    return [data.markers[place] for place in sorted(chosen)]


def grouped(markers: Sequence[Marker], axis: TimeAxis) -> list[tuple[int, int, float]]:
    """Flags: numbers of the first and the last event (from 1) that stand at one place, and that place in percent."""
    flags: list[tuple[int, int, float]] = []
    for number, marker in enumerate(markers, 1):
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
    left, right = axis.at(data.start_us), axis.at(end_us)
    place = {} if right - left == 100 else {"x": f"{left}%", "width": f"{right - left:.3f}%"}
    drawn = [
        _frame(axis, plot, 18, (1.0,)),
        _curves([counts], top * per_second, plot, ("hits",), y=18, **place),
        _scale(top, plot, 18, (1.0,)),
        _threshold(params, top, plot) if episode.n_clients == 1 else None,
        _trigger(episode, axis, plot),
    ]
    label = f"Requests, {span_of(episode)}, in steps of {duration(data.step_us * width / 1e6)}"
    return _svg(label, 18 + plot + _TIMES, drawn)


def _svg(label: str, height: int, drawn: Sequence[Markup | None]) -> Markup:
    title = element("title", label)
    return element("svg", title, drawn, class_="chart", height=height, role="img")


def _frame(axis: TimeAxis, plot: int, y: int, shares: Sequence[float]) -> Markup:
    heights = [round(y + plot * (1 - share)) for share in shares]
    lines = [element("line", x2="100%", y1=at, y2=at) for at in heights]
    times = []
    for place, text in axis.ticks():
        anchor = {"text-anchor": "start" if place < 4 else "end"} if place < 4 or place > 96 else {}
        times.append(element("text", text, x=f"{place:.1f}%", y=y + plot + 15, **anchor))
    base = element("line", x2="100%", y1=y + plot, y2=y + plot)
    return joined(element("g", lines, class_="grid"), element("g", base, times, class_="times"))


def _scale(top: float, plot: int, y: int, shares: Sequence[float]) -> Markup:
    """What the lines of the frame stand for; in front of the curves, that would hide it."""
    texts = [element("text", rate(top * share), y=round(y + plot * (1 - share)) - 3) for share in shares]
    return element("g", texts, class_="scale")


def _curves(
    curves: Sequence[Sequence[int]], top: float, plot: int, kinds: Sequence[str], y: int = _TOP, **place: str
) -> Markup:
    steps = max(1, len(curves[0]))
    box: dict[str, str | int] = {
        "viewBox": f"0 0 {steps} {_HIGH}",
        "preserveAspectRatio": "none",
        "width": "100%",
        "height": plot,
        "y": y,
    }
    paths = [element("path", d=_path(curve, top), class_=kind) for curve, kind in zip(curves, kinds, strict=True)]
    return element("svg", paths, **box | place)


def _path(counts: Sequence[int], top: float) -> str:
    """A curve of steps, closed at the bottom; runs of equal height are one step."""
    parts = [f"M0 {_HIGH}"]
    height, run = _HIGH, 0
    for count in counts:
        now = round(_HIGH - _HIGH * min(1.0, count / top))
        if count and now == _HIGH:
            now -= 1  # one request in a storm of thousands is still one
        if now != height:
            parts.append(f"{f'h{run}' if run else ''}V{now}")
            height, run = now, 0
        run += 1
    return "".join([*parts, f"h{run}V{_HIGH}Z"])


def _threshold(params: StormParams, top: float, plot: int) -> Markup | None:
    if params.critical_rps > top:
        return None
    y = round(18 + plot * (1 - params.critical_rps / top))
    line = element("line", x2="100%", y1=y, y2=y)
    text = element("text", f"critical from {rate(params.critical_rps)}", x="99%", y=y - 3)
    return element("g", line, text, class_="threshold")


def _with_trigger(episode: Episode, axis: TimeAxis) -> TimeAxis:
    """The same axis, longer if the trigger is so near that it can be shown without squeezing the curve."""
    at = episode.trigger_us
    room = max(round(_NEAR_S * 1e6), (axis.end_us - axis.start_us) // 2)
    if at is None or not axis.start_us - room <= at <= axis.end_us + room:
        return axis
    return TimeAxis(min(axis.start_us, at), max(axis.end_us, at))


def _trigger(episode: Episode, axis: TimeAxis, plot: int) -> Markup | None:
    """A line where the event was; where it is too far away, an arrow towards it."""
    if episode.trigger is None or episode.trigger_us is None:
        return None
    at = axis.at(episode.trigger_us)
    shown = axis.holds(episode.trigger_us)
    arrow = "" if shown else "\N{LEFTWARDS ARROW} " if at < 50 else "\N{RIGHTWARDS ARROW} "
    anchor = {} if at < 50 else {"text-anchor": "end"}
    text = f"{arrow}{plain(episode.trigger, 24)}, {clock(episode.trigger_us)}"
    # Beside the label of the scale, which is at the left end.
    dx = (5 if at < 50 else -5) + (70 if at < 12 else 0)
    return element(
        "g",
        element("line", x1=f"{at}%", x2=f"{at}%", y1=4, y2=18 + plot) if shown else None,
        element("text", text, x=f"{at}%", dx=dx, y=12, **anchor),
        class_="event",
    )


def _flag(axis: TimeAxis, first: int, last: int, at: float, plot: int) -> Markup:
    text = f"{first}" if first == last else f"{first}\N{EN DASH}{last}"
    width = 9 + 7 * len(text)
    left = -width if at > 97 else 0
    return element(
        "svg",
        element("line", y2=_TOP + plot),
        element("rect", x=left, y=1, width=width, height=16, rx=2),
        element("text", text, x=left + width / 2, y=13),
        x=f"{at}%",
        class_="flag",
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
    text = element("text", episode.storm.value, x=f"{at}%", dx=5, y=top + 10) if wide else None
    return element(
        "a", joined(element("title", title), shape, text), href=f"#e-{episode.id}", class_=episode.severity.value
    )
