"""The traffic over time, in at most 300 steps, with the lifecycle events as markers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import Answer
from tricklecast.analytics.durations import DAY_US, SECOND_US
from tricklecast.analytics.report_old.figures import Marker, Sparkline, Timeline
from tricklecast.analytics.triggers import SERVER_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tricklecast.analytics.metrics.parts import Row
    from tricklecast.analytics.metrics.totals import Overview
    from tricklecast.analytics.params import StormParams

MAX_STEPS: Final = 300

STEP_WIDTHS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400
)  # fmt: skip
"""Widths of a step that people can read, seconds; above a day, whole days."""

DAY_S: Final = 86_400


def step_width(from_us: int, to_us: int) -> int:
    """The narrowest width, microseconds, at which so long a time fits into :data:`MAX_STEPS` aligned steps."""
    widths = (*STEP_WIDTHS_S, *(days * DAY_S for days in range(2, (to_us - from_us) // DAY_US + 2)))
    for seconds in widths:
        width = seconds * SECOND_US
        if to_us // width - from_us // width < MAX_STEPS:
            return width
    raise AssertionError("a width of the whole time holds it in two steps")


def markers(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Lifecycle events, the server's first, at most ``max_markers``."""
    events = rollup.where(F.col("answer") == Answer.EVENT.value)
    server = F.col("event").isin(*(event.value for event in SERVER_EVENTS))
    chosen = events.select(F.col("first_us").alias("ts_us"), "event", "node", "channel")
    order = (F.when(server, 0).otherwise(1), "ts_us", "node", "channel", "event")
    return chosen.orderBy(*order).limit(params.max_markers)


def timeline(
    seen: Overview, rows: Iterable[Row], events: Iterable[Row], sparklines: Iterable[Sparkline]
) -> Timeline | None:
    """The traffic in steps.

    Args:
        seen: says from when to when; a log without any line has no timeline.
        rows: the cube's rows about steps. A row of the roll-up may last longer than a step; its requests are spread
            evenly from its first step to its last.
        events: the collected rows of :func:`markers`.
        sparklines: the episodes' requests over time.
    """
    if seen.from_us is None or seen.to_us is None:
        return None
    width = step_width(seen.from_us, seen.to_us)
    start = seen.from_us // width
    steps = seen.to_us // width - start + 1
    requests, failures, hits = ([0.0] * steps for _ in range(3))
    for row in rows:
        _spread(requests, row["at"] - start, row["to"] - start, row["requests"])
        _spread(failures, row["at"] - start, row["to"] - start, row["failures"])
    for line in sparklines:
        for place, count in enumerate(line.counts):
            begins = line.start_us + place * line.step_us
            _spread(hits, begins // width - start, (begins + line.step_us - 1) // width - start, count)
    found = sorted(
        (Marker(row["ts_us"], row["event"] or "", row["node"], row["channel"]) for row in events),
        key=lambda marker: (marker.ts_us, marker.event, marker.node or "", marker.channel or ""),
    )
    return Timeline(
        start_us=start * width,
        step_us=width,
        requests=whole(requests),
        failures=whole(failures),
        hits=whole(hits),
        markers=tuple(found),
        n_markers=seen.events,
    )


def _spread(counts: list[float], first: int, last: int, n: float) -> None:
    for place in range(max(0, first), min(len(counts) - 1, last) + 1):
        counts[place] += n / (last - first + 1)


def whole(counts: Iterable[float]) -> tuple[int, ...]:
    """Rounded so that the sum stays what it was: what one step is rounded by is carried to the next."""
    rounded, exact, so_far = [], 0.0, 0
    for count in counts:
        exact += count
        rounded.append(round(exact) - so_far)
        so_far = round(exact)
    return tuple(rounded)
