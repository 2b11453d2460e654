"""How long exchanges take, in histograms that are added to when an exchange ends: nothing is measured per chunk."""

from __future__ import annotations

from app.core.segment import Segment
from app.data_plane.histogram import Histogram
from trickle.records import AccessRecord, Op


class Latencies:
    """The histograms of one server, in microseconds.

    Attributes:
        waits: by operation: arrival of a request to the first byte of its answer, whatever it waited for.
        durations: by operation: arrival of a request to the end of its exchange.
        first_byte: a segment's first byte is published, to the same byte's way to a reader that waited for it.
        delivery: a segment closes, to its last byte's way to a reader that was there already.
    """

    __slots__ = ("delivery", "durations", "first_byte", "waits")

    def __init__(self) -> None:
        ops = [*Op, "none"]
        self.waits = {str(op): Histogram() for op in ops}
        self.durations = {str(op): Histogram() for op in ops}
        self.first_byte = Histogram()
        self.delivery = Histogram()

    def ended(self, record: AccessRecord) -> None:
        """An exchange ended, one way or another."""
        op = record.op or "none"
        if record.wait_us is not None:
            self.waits[op].add(record.wait_us)
        if record.dur_us is not None:
            self.durations[op].add(record.dur_us)

    def relayed(self, segment: Segment, record: AccessRecord, arrived: float) -> None:
        """A reader has all of a segment that has bytes.

        Args:
            record: of its exchange, which has ended.
            arrived: when its request came, in seconds of the clock that the segment's times are from.
        """
        if segment.opened_at is not None and record.wait_us is not None and arrived < segment.opened_at:
            self.first_byte.add(record.wait_us - _us(segment.opened_at - arrived))
        if segment.closed_at is not None and record.dur_us is not None and arrived < segment.closed_at:
            self.delivery.add(record.dur_us - _us(segment.closed_at - arrived))


def _us(seconds: float) -> int:
    """Rounded down, as the record's times are: a difference is never negative."""
    return int(seconds * 1_000_000)
