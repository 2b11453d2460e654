"""What a publisher has done so far, as a frozen picture."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from tricklecast.publisher.errands import Errands
from tricklecast.publisher.verdicts import Receipt
from tricklecast.trickle.errors import ClosedHere, SegmentDropped, TrickleError


@dataclass(frozen=True, slots=True)
class Statistics:
    """A publisher's counters at one moment.

    Attributes:
        segments: published with bytes: the server has said so.
        bytes: of those segments.
        empty: published without a byte, by the writer or by idle rotation.
        in_flight: entered, and their fate is not known.
        retries: requests made again, those for the position included.
        dropped: given up here because too many were in flight.
        lost: failed, or left unconfirmed by the end, although bytes of them had been handed over.
        last_error: the newest error of a segment, or why nothing more can be published.
    """

    segments: int = 0
    bytes: int = 0
    empty: int = 0
    in_flight: int = 0
    retries: int = 0
    dropped: int = 0
    lost: int = 0
    last_error: TrickleError | None = None


class Counters:
    """The same while it is counted.

    Args:
        flights: the segments in flight.
        errands: which counts the requests for the position.

    Attributes:
        retries: of segments; counted by whoever makes them.
    """

    def __init__(self, flights: Sized, errands: Errands) -> None:
        self.segments = self.bytes = self.empty = self.retries = self.dropped = self.lost = 0
        self.last_error: TrickleError | None = None
        self._flights = flights
        self._errands = errands

    def settle(self, fate: Receipt | TrickleError, handed: int) -> None:
        """The fate of a segment is known, of which so many bytes had been handed over.

        One that its own writer cut off is not counted.
        """
        match fate:
            case Receipt(sent=size):
                self.segments += size > 0
                self.empty += size == 0
                self.bytes += size
            case SegmentDropped():
                self.last_error = fate
                self.dropped += 1
            case ClosedHere():
                pass
            case _:
                self.last_error = fate
                self.lost += handed > 0

    def snapshot(self, error: TrickleError | None) -> Statistics:
        """What there is now, and why nothing more can be published."""
        return Statistics(
            segments=self.segments,
            bytes=self.bytes,
            empty=self.empty,
            in_flight=len(self._flights),
            retries=self.retries + self._errands.asked,
            dropped=self.dropped,
            lost=self.lost,
            last_error=error or self.last_error,
        )
