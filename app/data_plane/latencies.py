"""How long exchanges take, in histograms that are added to when an exchange ends: nothing is measured per chunk."""

from __future__ import annotations

from app.core.segment import Segment
from app.data_plane.histogram import Histogram
from trickle.records import AccessRecord, Op


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

    def ended(self, record: AccessRecord) -> None:
        """An exchange ended, one way or another; one that was never answered counts nowhere."""
        if (wait_us := record.wait_us) is not None:
            self.waits[record.op or "none"].add(wait_us)

    def relayed(self, segment: Segment, record: AccessRecord, arrived: float) -> None:
        """A reader has all of a segment, which has bytes and is closed.

        The record's times are rounded down, and so are those taken from them here: no latency is negative.

        Args:
            record: of its exchange, which has ended.
            arrived: when its request came, in seconds of the clock that the segment's times are from.
        """
        opened_at, closed_at, wait_us, dur_us = segment.opened_at, segment.closed_at, record.wait_us, record.dur_us
        assert opened_at is not None, "it has bytes"
        assert closed_at is not None, "it is closed"
        assert wait_us is not None, "it was answered"
        assert dur_us is not None, "it has ended"
        if arrived < opened_at:
            self.first_byte.add(wait_us - int((opened_at - arrived) * 1_000_000))
        if arrived < closed_at:
            self.delivery.add(dur_us - int((closed_at - arrived) * 1_000_000))
