"""What is expected: figures of one case, or ratios to another one, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

Sample = Mapping[str, float]
Figure = Callable[[Mapping[str, Sample]], float]
"""Computed from one round: what was found for each case."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on a figure.

    Attributes:
        what: the figure in words. found: computes it. at_most: the limit; ``None`` if it is only told.
    """

    what: str
    found: Figure
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound, and what was found in each round; it is judged by the median."""

    bound: Bound
    rounds: tuple[float, ...]

    @property
    def found(self) -> float:
        """The median."""
        return median(self.rounds)

    @property
    def met(self) -> bool:
        """Whether it holds; what is only told always does."""
        return self.bound.at_most is None or self.found <= self.bound.at_most

    def __str__(self) -> str:
        text = f"{self.bound.what}: {self.found:.3g}"
        if len(self.rounds) > 1:
            text += f" ({min(self.rounds):.3g}-{max(self.rounds):.3g})"
        if self.bound.at_most is None:
            return f"told   {text}"
        return f"{'met   ' if self.met else 'MISSED'} {text} (at most {self.bound.at_most:g})"


def figure(name: str, case: str, factor: float = 1.0) -> Figure:
    """A figure of one case, times a factor."""
    return lambda samples: samples[case][name] * factor


def ratio(name: str, case: str, beside: str) -> Figure:
    """A figure of one case, divided by that of another one."""
    return lambda samples: samples[case][name] / samples[beside][name]


def difference(name: str, case: str, beside: str, count: int) -> Figure:
    """By how much a figure of one case exceeds that of another one, per each of ``count``."""
    return lambda samples: (samples[case][name] - samples[beside][name]) / count
