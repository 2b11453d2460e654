"""How long exchanges take: histograms that are added to when an exchange ends. Nothing is measured per chunk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from tricklecast.app.core.segment import Segment
from tricklecast.trickle.records import Op

DELAYS_US: Final = (
    100, 250, 500,
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
)  # fmt: skip
"""Bucket bounds in microseconds: from the fastest answer over a loopback to a long poll of a slow publisher."""


class Histogram:
    """How many values fell into which bucket.

    Args:
        bounds: upper bounds of the buckets, ascending and inclusive; values beyond the last one have a bucket, too.

    Attributes:
        add: notes a value. It is the ``append`` of a list, so that the hot path pays next to nothing; the values are
            counted when somebody looks, or by :meth:`settle`, which keeps the list short.
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
        """Values per bucket."""
        self.settle()
        return self._counts

    @property
    def sum(self) -> int:
        """Sum of all values."""
        self.settle()
        return self._sum

    def settle(self) -> None:
        """Count what was noted. Sorted, it takes one search per bucket instead of one per value."""
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


class Latencies:
    """The histograms of one server, in microseconds.

    Attributes:
        waits: by operation: from a request's arrival to the first byte of its response.
        first_byte: from a segment's first published byte to its way to a reader that waited for it.
        delivery: from a segment's end to its last byte's way to a reader that was there already.
    """

    __slots__ = ("delivery", "first_byte", "waits")

    def __init__(self) -> None:
        self.waits = {str(op): Histogram() for op in [*Op, "none"]}
        self.first_byte = Histogram()
        self.delivery = Histogram()

    def relayed(self, segment: Segment, arrived: float, *, wait_us: int, dur_us: int) -> None:
        """A reader has all of a closed segment that has bytes.

        The times of a record are rounded down, and so is what is subtracted from them: no latency is negative.

        Args:
            arrived: when the reader's request came, in seconds of the clock that the segment's times are from.
            wait_us, dur_us: of the exchange's record.
        """
        before = segment.opened_at - arrived
        if before > 0:
            self.first_byte.add(wait_us - int(before * 1_000_000))
        before = (segment.closed_at or 0) - arrived
        if before > 0:
            self.delivery.add(dur_us - int(before * 1_000_000))

    def settle(self) -> None:
        """Count what was noted since the last time."""
        for histogram in (*self.waits.values(), self.first_byte, self.delivery):
            histogram.settle()
