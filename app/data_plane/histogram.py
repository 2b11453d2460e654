"""Counts values in buckets that are fixed beforehand, many at a time: noting one costs the hot path next to nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
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
        add: notes a value. It is the ``append`` of a list: the values are counted when somebody looks, or by
            :meth:`settle`, which is to be called now and then so that the list stays short.
    """

    __slots__ = ("_counts", "_new", "_sum", "add", "bounds")

    def __init__(self, bounds: tuple[int, ...] = DELAYS_US) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0
        self._new: list[int] = []
        self.add: Callable[[int], None] = self._new.append

    @property
    def counts(self) -> list[int]:
        """One per bucket."""
        self.settle()
        return self._counts

    @property
    def sum(self) -> int:
        """Of all values."""
        self.settle()
        return self._sum

    def settle(self) -> None:
        """Count what was noted: sorted, it takes one search per bucket instead of one per value."""
        new = self._new
        if not new:
            return
        new.sort()
        self._sum += sum(new)
        at = 0
        for bucket, bound in enumerate(self.bounds):
            end = bisect_right(new, bound, at)
            self._counts[bucket] += end - at
            at = end
        self._counts[-1] += len(new) - at
        new.clear()
