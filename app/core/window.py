"""The window: closed segments that a channel keeps for catching up, limited by count, bytes and age."""

from __future__ import annotations

from bisect import insort
from enum import StrEnum

from tricklecast.app.core.budget import Budget
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import Segment


class Eviction(StrEnum):
    """Why a segment left its window."""

    AGE = "age"
    COUNT = "count"
    BYTES = "bytes"
    BUDGET = "budget"


class Window:
    """Closed segments in the order of their seq. The newest one is kept, unless its memory is needed.

    Attributes:
        bytes: body bytes of all that is kept. cost: memory that it takes, in bytes.
        evicted: how many segments have left it so far, by the reason.
    """

    __slots__ = ("_budget", "_limits", "_segments", "bytes", "cost", "evicted")

    def __init__(self, limits: Limits, budget: Budget) -> None:
        self._limits = limits
        self._budget = budget
        self._segments: list[Segment] = []
        self.bytes = self.cost = 0
        self.evicted = dict.fromkeys(Eviction, 0)

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
        """Take in a segment that has just closed (usually the newest, but segments may overlap).

        The budget has counted it since its first byte; one without a byte is counted from now on.
        """
        if not segment.size:
            self._budget.charge(segment.cost)
        if not self._segments or segment.seq > self._segments[-1].seq:
            self._segments.append(segment)
        else:
            insort(self._segments, segment, key=lambda kept: kept.seq)
        self.bytes += segment.size
        self.cost += segment.cost

    def completed_after(self, seq: int) -> bool:
        """Whether a segment newer than ``seq`` has ended as its publisher wanted."""
        return any(segment.seq > seq and segment.complete for segment in self._segments)

    def evict(self, now: float) -> list[Segment]:
        """Let go of what exceeds a limit; returns it, oldest first."""
        evicted = []
        while (why := self._exceeds(now)) is not None:
            self.evicted[why] += 1
            evicted.append(self._drop_oldest())
        return evicted

    def make_room(self, *, keep: int) -> Segment | None:
        """Let go of the oldest segment because its memory is needed, unless no more than ``keep`` are left."""
        if len(self._segments) <= keep:
            return None
        self.evicted[Eviction.BUDGET] += 1
        return self._drop_oldest()

    def clear(self) -> list[Segment]:
        """Let go of everything; returns it, oldest first."""
        return [self._drop_oldest() for _ in range(len(self._segments))]

    def _drop_oldest(self) -> Segment:
        segment = self._segments.pop(0)
        self.bytes -= segment.size
        self.cost -= segment.cost
        self._budget.release(segment)
        return segment

    def _exceeds(self, now: float) -> Eviction | None:
        if len(self._segments) <= 1:
            return None
        limits = self._limits
        if len(self._segments) > limits.window_segments:
            return Eviction.COUNT
        if self.bytes > limits.window_bytes:
            return Eviction.BYTES
        return Eviction.AGE if self._ages_out_at() <= now else None

    def _ages_out_at(self) -> float:
        closed_at = self._segments[0].closed_at
        assert closed_at is not None, "only closed segments are kept"
        return closed_at + self._limits.window_age_s
