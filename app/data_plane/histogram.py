"""Counts values in buckets that are fixed beforehand: what a value costs does not depend on how many there were."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

DELAYS_US: Final = (
    100, 250, 500,
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
)  # fmt: skip
"""Bounds for delays, in microseconds: from what a loopback takes to what a reader waits for a slow publisher."""


class Histogram:
    """How many values fell into which bucket.

    Args:
        bounds: upper bounds of the buckets, ascending and inclusive; beyond the last one is a bucket of its own.

    Attributes:
        counts: one per bucket. sum: of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...] = DELAYS_US) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def add(self, value: int) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
