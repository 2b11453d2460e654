"""What is expected of the report, and what of it was met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Final

from benchmarks.storm.worker import Measured, Timing

ROLLUP_X_FLOOR: Final = 1.7
REST_S: Final = 3.0
SHAPE: Final = 1.3
"""For one hot client, and for a thousand times as many, as a ratio to few."""

SECOND_CORE: Final = 1.6
START: Final = 3.0
OFF_THE_LINE: Final = 0.15
"""How far a size may lie from the straight line through all of them, as a share."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure and its bound.

    Attributes:
        what: in words, with the unit. bound: the largest value that is expected, or with ``least`` the smallest.
    """

    what: str
    found: float
    bound: float
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether it holds."""
        return self.found >= self.bound if self.least else self.found <= self.bound

    def __str__(self) -> str:
        side = "at least" if self.least else "at most"
        return f"{'met   ' if self.met else 'MISSED'} {self.what}: {self.found:.2f} ({side} {self.bound:g})"


def ratios(timing: Timing, beside: Timing) -> list[float]:
    """Round by round, without the cold one: the two lie next to each other in time."""
    pairs = list(zip(timing.wall_s, beside.wall_s, strict=True))
    return [a / b for a, b in pairs[1:] or pairs if b > 0]


def of_one_log(name: str, log: Measured) -> Iterator[Verdict]:
    """Verdicts on the report on one log."""
    yield Verdict(f"{name}: roll-up x floor", median(ratios(log.rollup, log.floor)), ROLLUP_X_FLOOR)
    if log.rest.wall_s:
        yield Verdict(f"{name}: all that follows, s", log.rest.warm_s, REST_S)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds by millions of lines: ``fixed_s`` + ``per_million_s`` x millions; ``off``: the worst relative error."""

    fixed_s: float
    per_million_s: float
    off: float


def straight_line(seconds: dict[float, float]) -> Line | None:
    """The line through points (millions of lines, seconds); ``None`` if there are fewer than three."""
    if len(seconds) < 3:
        return None
    slope, intercept = linear_regression(list(seconds), list(seconds.values()))
    off = max(abs(intercept + slope * millions - found) / found for millions, found in seconds.items())
    return Line(intercept, slope, off)
