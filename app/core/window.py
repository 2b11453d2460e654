"""The window: closed segments that a channel keeps for catching up, limited by count, bytes and age."""

from __future__ import annotations

from bisect import insort

from app.core.limits import Budget, Limits
from app.core.segment import Segment


class Window:
    """Closed segments in the order of their seq. The newest one is always kept.

    Attributes:
        bytes: body bytes of all that is kept.
    """

    __slots__ = ("_budget", "_limits", "_segments", "bytes")

    def __init__(self, limits: Limits, budget: Budget) -> None:
        self._limits = limits
        self._budget = budget
        self._segments: list[Segment] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def earliest(self) -> int | None:
        """Seq of the oldest segment kept."""
        return self._segments[0].seq if self._segments else None

    @property
    def next_deadline(self) -> float | None:
        """When the oldest segment leaves because of its age."""
        return self._ages_out_at() if len(self._segments) > 1 else None

    def keep(self, segment: Segment) -> None:
        """Take in a segment that has just closed (usually the newest, but segments may overlap)."""
        if not self._segments or segment.seq > self._segments[-1].seq:
            self._segments.append(segment)
        else:
            insort(self._segments, segment, key=lambda kept: kept.seq)
        self.bytes += segment.size

    def completed_after(self, seq: int) -> bool:
        """Whether a segment newer than ``seq`` has ended as its publisher wanted."""
        return any(segment.seq > seq and segment.complete for segment in self._segments)

    def evict(self, now: float) -> list[Segment]:
        """Let go of what exceeds a limit; returns it, oldest first."""
        evicted = []
        while self._exceeds(now) and (segment := self.evict_oldest()):
            evicted.append(segment)
        return evicted

    def evict_oldest(self) -> Segment | None:
        """Let go of the oldest segment, unless it is the only one; the bytes go back to the budget."""
        return self._drop_oldest() if len(self._segments) > 1 else None

    def clear(self) -> list[Segment]:
        """Let go of everything; returns it, oldest first."""
        return [self._drop_oldest() for _ in range(len(self._segments))]

    def _drop_oldest(self) -> Segment:
        segment = self._segments.pop(0)
        self.bytes -= segment.size
        self._budget.give_back(segment.size)
        return segment

    def _exceeds(self, now: float) -> bool:
        limits = self._limits
        return (
            len(self._segments) > limits.window_segments
            or self.bytes > limits.window_bytes
            or (len(self._segments) > 1 and self._ages_out_at() <= now)
        )

    def _ages_out_at(self) -> float:
        closed_at = self._segments[0].closed_at
        assert closed_at is not None, "only closed segments are kept"
        return closed_at + self._limits.window_age_s
