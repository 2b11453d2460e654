"""Rhythms of retrying: the pauses between one request and the next."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final

LONGEST_S: Final = 4.0
"""No rhythm pauses longer by chance: a storm with a long hole in it would be two."""

HOT_S: Final = 0.1
"""Shorter pauses are none. Seconds."""

_GROWTH: Final = 1.6
_FIRST: Final = 0.05


class Pace(StrEnum):
    """How a client paces its retries; the names are those of the report's ``backoff``."""

    HOT_LOOP = "hot_loop"
    FIXED = "fixed"
    FIXED_JITTER = "fixed_jitter"
    EXPONENTIAL = "exponential"
    EXPONENTIAL_JITTER = "exponential_jitter"
    IRREGULAR = "irregular"


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A pace with its scale.

    Attributes:
        pace: its law.
        gap_s: the usual pause, or the longest one of a pace that grows. Seconds.
    """

    pace: Pace
    gap_s: float

    @property
    def label(self) -> Pace:
        """What the rhythm is called: whatever its law, pauses below 100 ms are a hot loop."""
        match self.pace:
            case Pace.EXPONENTIAL_JITTER:
                median = self.gap_s / 2
            case Pace.IRREGULAR:
                median = self.gap_s * 0.6
            case _:
                median = self.gap_s
        return self.pace if median >= HOT_S else Pace.HOT_LOOP

    def gaps(self, rng: random.Random) -> Iterator[float]:
        """Its pauses, without end, seconds."""
        return (self._gap(rng, turn) for turn in count())

    def _gap(self, rng: random.Random, turn: int) -> float:
        grown = min(self.gap_s, self.gap_s * _FIRST * _GROWTH ** min(turn, 40))
        match self.pace:
            case Pace.HOT_LOOP:
                return self.gap_s * rng.uniform(0.7, 1.3)
            case Pace.FIXED:
                return self.gap_s * rng.uniform(0.985, 1.015)
            case Pace.FIXED_JITTER:
                return self.gap_s * rng.uniform(0.5, 1.5)
            case Pace.EXPONENTIAL:
                return grown * rng.uniform(0.985, 1.015)
            case Pace.EXPONENTIAL_JITTER:
                return grown * rng.uniform(0.02, 1.0)
            case Pace.IRREGULAR:
                return min(LONGEST_S, 4 * self.gap_s, self.gap_s * rng.lognormvariate(-0.5, 1.0))


def polite(rng: random.Random, first_s: float, cap_s: float, attempts: int) -> list[float]:
    """The pauses of a client that does it right: exponential, with jitter, never less than it was told.

    Args:
        first_s: what ``Retry-After`` says, and the base of the growth. Seconds.
        cap_s: the longest pause. Seconds.
    """
    return [first_s + rng.uniform(0, min(cap_s, first_s * 2.0**turn)) for turn in range(attempts)]
