"""Latencies: histograms of the times of exchanges. A value is added when an exchange ends, and none per chunk."""

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
    """Counts of values, by bucket.

    Args:
        bounds: upper bounds of the buckets, ascending and inclusive. Values beyond the last one have a bucket, too.
    """

    __slots__ = ("_counts", "_new", "_sum", "add", "bounds")

    def __init__(self, bounds: tuple[int, ...] = DELAYS_US) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0
        self._new: list[int] = []  # values that are not counted yet
        self.add: Callable[[int], None] = self._new.append  # a list's append is cheap; settle counts later

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
        """Count the new values. They are sorted first: that takes one search per bucket instead of one per value."""
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
        first_byte: from the first byte of a segment from its publisher to that byte's write to a waiting reader.
        delivery: from the end of a segment to the write of its last byte to a reader that was there already.
    """

    __slots__ = ("delivery", "first_byte", "waits")

    def __init__(self) -> None:
        self.waits = {str(op): Histogram() for op in [*Op, "none"]}
        self.first_byte = Histogram()
        self.delivery = Histogram()

    def relayed(self, segment: Segment, arrived: float, *, wait_us: int, dur_us: int) -> None:
        """Note that a reader has all bytes of a closed segment.

        The times of a record are rounded down, and so are the times that are subtracted: no latency is negative.

        Args:
            arrived: the time of the reader's request, on the clock of the segment's times.
            wait_us, dur_us: of the exchange's record.
        """
        before = segment.opened_at - arrived
        if before > 0:
            self.first_byte.add(wait_us - int(before * 1_000_000))
        before = (segment.closed_at or 0) - arrived
        if before > 0:
            self.delivery.add(dur_us - int(before * 1_000_000))

    def settle(self) -> None:
        """Count the new values of all histograms."""
        for histogram in (*self.waits.values(), self.first_byte, self.delivery):
            histogram.settle()
