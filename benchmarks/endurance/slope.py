"""Does it grow? A straight line through samples, and a limit on what it may rise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean

ENOUGH = 60
"""Samples, one a second, below which a line says nothing."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a line through samples says.

    Attributes:
        what: was sampled. samples: how many. level: their mean. per_hour: the slope.
        grown: by how much the line rises over the time that was sampled. at_most: by how much it may.
    """

    what: str
    samples: int
    level: float
    per_hour: float
    grown: float
    at_most: float

    @property
    def judged(self) -> bool:
        """Whether there is enough to judge by."""
        return self.samples >= ENOUGH

    @property
    def met(self) -> bool:
        """Whether it stays within its limit; what cannot be judged is not held against it."""
        return not self.judged or self.grown <= self.at_most

    def __str__(self) -> str:
        sign = ("met   " if self.met else "MISSED") if self.judged else "told  "
        return (
            f"{sign} {self.what}: {self.level:.1f}, line rises by {self.grown:+.2f} in {self.samples} s "
            f"({self.per_hour:+.1f} an hour; at most {self.at_most:.1f})"
        )


def growth(what: str, seconds: Sequence[float], values: Sequence[float], share: float, floor: float) -> Growth:
    """Fit a line.

    Args:
        what: was sampled. seconds, values: when, and what.
        share: of its mean by which the line may rise. floor: by so much it may in any case.
    """
    level = mean(values) if values else 0.0
    slope = linear_regression(seconds, values).slope if len(set(seconds)) > 1 else 0.0
    span = seconds[-1] - seconds[0] if seconds else 0.0
    return Growth(what, len(values), level, slope * 3600, slope * span, max(share * level, floor))
