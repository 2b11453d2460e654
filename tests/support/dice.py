"""Dice that are known, so that delays are."""

from __future__ import annotations

from random import Random


class TopRandom(Random):
    """Dice that always show the highest number."""

    def uniform(self, a: float, b: float) -> float:
        return b


class ZeroRandom(Random):
    """Dice that always show the lowest number."""

    def uniform(self, a: float, b: float) -> float:
        return a
