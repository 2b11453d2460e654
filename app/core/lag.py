"""How far a reader may be behind, and since when it has not moved: who is to be cut off.

The lag in bytes and in seconds is about what was published while the reader was there: a backlog that it found is no
lag. Standing still is about everything that a connection is sent, answers included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Final

from tricklecast.app.core.segment import Segment

PACE_BYTES: Final = 4 << 10
"""Who takes less than this in the time that it may lag stands still: 3 kbit/s with the default of 10 s, less than any
medium has, and more than a peer that takes a byte now and then only to keep its place."""


class Cut(StrEnum):
    """Why a connection was cut off."""

    BYTES = "lag_bytes"
    AGE = "lag_s"
    STILL = "standing_still"
    MEMORY = "memory"


@dataclass(slots=True)
class Stall:
    """A connection with bytes that its peer does not take: how many, and since when they have been as many."""

    since: float
    unsent: int

    def stands_still(self, unsent: int, now: float, limit_s: float) -> bool:
        """Look again: whether it took too little for too long.

        Args:
            unsent: bytes that the peer has not taken now.
            now: the time.
            limit_s: how long it may take less than :data:`PACE_BYTES`.
        """
        if self.unsent - unsent >= PACE_BYTES:
            self.since, self.unsent = now, unsent
        return now - self.since >= limit_s


class Timelines:
    """When the bytes of segments were published, as exactly as somebody looks.

    Only segments that have a reader behind are followed, and those only while they have one: nothing is noted for a
    chunk, and what a follower would have to know of the time before was published just before it fell behind.

    Args:
        limit_s: how old a byte may get before a reader must have it, in seconds.
    """

    __slots__ = ("_limit_s", "_marks")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._marks: dict[Segment, deque[tuple[float, int]]] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def look(self, segments: Iterable[Segment], now: float) -> None:
        """Note how far these segments are; the others are followed no longer."""
        before, self._marks = self._marks, {}
        for segment in segments:
            marks = self._marks[segment] = before.get(segment) or deque()
            if not marks or segment.size > marks[-1][1]:
                marks.append((now, segment.size))
            while len(marks) > 1 and now - marks[1][0] >= self._limit_s:
                marks.popleft()

    def overdue(self, segment: Segment, now: float) -> int:
        """How many bytes of a segment are so old that every reader who was there must have them."""
        when, size = self._marks[segment][0]
        return size if now - when >= self._limit_s else 0

    def age_s(self, segment: Segment, have: int, now: float) -> float:
        """For how long a reader that has so many bytes of a segment has lacked the next one, at least.

        Args:
            have: bytes that it has, or found when it came.

        Returns:
            Seconds; 0 where it lacks nothing, or nobody has looked yet.
        """
        marks = self._marks.get(segment, ())
        at = bisect_right(marks, have, key=itemgetter(1))
        return now - marks[at][0] if at < len(marks) else 0.0
