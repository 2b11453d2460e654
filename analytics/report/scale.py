"""Axes: where a value lies, and which round values to name."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from tricklecast.analytics.report.formats import clock, date_and_time

_STEPS_S: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12)),
)
_DAY_S: Final = 86_400
_ROUND: Final = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
MAX_TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A stretch of time laid over the width of a drawing, in percent of it.

    Attributes:
        start_us, end_us: its ends, microseconds since the epoch; the end is later.
    """

    start_us: int
    end_us: int

    def at(self, us: int) -> float:
        """Where a moment lies, 0 to 100; moments outside lie at the ends."""
        share = (us - self.start_us) / (self.end_us - self.start_us)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def ticks(self) -> list[tuple[float, str]]:
        """Round times on it, as their places and what to write there; at most :data:`MAX_TICKS` and one."""
        length_s = (self.end_us - self.start_us) / 1e6
        fitting = [step for step in _STEPS_S if length_s / step <= MAX_TICKS]
        step_s = fitting[0] if fitting else _DAY_S * ceil(length_s / _DAY_S / MAX_TICKS)
        step_us = round(step_s * 1e6)
        first = -(-self.start_us // step_us) * step_us
        return [(self.at(us), _label(us, step_s)) for us in range(first, self.end_us + 1, step_us)]


def round_top(highest: float) -> float:
    """The round number at which an axis ends that has to show so much; 1 for nothing."""
    if highest <= 0:
        return 1.0
    size = 10.0 ** (len(f"{int(highest)}") - 1) if highest >= 1 else 0.1
    while size * 10 < highest:
        size *= 10
    return next((size * factor for factor in _ROUND if size * factor >= highest), highest)


def rates(
    counts: tuple[int, ...], start_us: int, step_us: int, since_us: int | None, until_us: int | None
) -> tuple[float, ...]:
    """Counts per second. A log covers only a part of the first and the last step.

    Args:
        start_us: of the first step. step_us: a step's length. since_us, until_us: first and last moment of the log.
    """
    since_us, until_us = (at if at is not None else start_us for at in (since_us, until_us))
    return tuple(
        count / max(1.0, (min(until_us, at + step_us) - max(since_us, at)) / 1e6)
        for count, at in zip(counts, range(start_us, start_us + len(counts) * step_us, step_us), strict=True)
    )


def thinned(counts: tuple[float, ...], points: int) -> tuple[int, list[float]]:
    """At most so many steps in place of many: how many went into one, and the highest count of each of those."""
    width = max(1, ceil(len(counts) / points))
    return width, [max(counts[first : first + width]) for first in range(0, len(counts), width)]


def _label(us: int, step_s: float) -> str:
    if step_s >= _DAY_S:
        return date_and_time(us)[5:10]
    if step_s >= 60:
        return clock(us)[:5]
    return clock(us) + (f".{us // 100_000 % 10}" if step_s < 1 else "")
