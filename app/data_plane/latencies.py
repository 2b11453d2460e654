"""How long exchanges take, in histograms that are added to when an exchange ends: nothing is measured per chunk."""

from __future__ import annotations

from tricklecast.app.core.segment import Segment
from tricklecast.app.data_plane.histogram import Histogram
from tricklecast.app.data_plane.tally import Record
from tricklecast.trickle.records import Op


class Latencies:
    """The histograms of one server, in microseconds.

    Attributes:
        waits: by operation: arrival of a request to the first byte of its answer, whatever it waited for.
        first_byte: a segment's first byte is published, to the same byte's way to a reader that waited for it.
        delivery: a segment closes, to its last byte's way to a reader that was there already.
    """

    __slots__ = ("delivery", "first_byte", "waits")

    def __init__(self) -> None:
        self.waits = {str(op): Histogram() for op in [*Op, "none"]}
        self.first_byte = Histogram()
        self.delivery = Histogram()

    def relayed(self, segment: Segment, record: Record, arrived: float) -> None:
        """A reader has all of a segment, which has bytes and is closed.

        The record's times are rounded down, and so are those taken from them here: no latency is negative.

        Args:
            record: of its exchange, which has ended.
            arrived: when its request came, in seconds of the clock that the segment's times are from.
        """
        before = segment.opened_at - arrived
        if before > 0:
            self.first_byte.add((record.wait_us or 0) - int(before * 1_000_000))
        before = (segment.closed_at or 0) - arrived
        if before > 0:
            self.delivery.add((record.dur_us or 0) - int(before * 1_000_000))

    def settle(self) -> None:
        """Count what was noted since the last time."""
        for histogram in (*self.waits.values(), self.first_byte, self.delivery):
            histogram.settle()
