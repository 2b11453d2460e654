"""Slow readers: how far a reader lags, for how long its connection has taken nothing, and when the server cuts it off.

Lag in bytes and in seconds counts what was published while the reader was there: a backlog that it found is no lag.
A stall concerns everything that the server sends on a connection, the heads of replies included.
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
"""A peer that takes less than this in the time that a reader may lag stands still: 3 kbit/s with the default of 10 s,
less than any medium has, and more than a peer takes that reads a byte now and then only to keep its connection."""


class Cut(StrEnum):
    """Why the server cut a connection off."""

    BYTES = "lag_bytes"
    AGE = "lag_s"
    STILL = "standing_still"
    MEMORY = "memory"
    STORAGE = "storage"
    DELETED = "deleted"  # an operator has ended it


@dataclass(slots=True)
class Stall:
    """A connection whose peer does not take its bytes.

    Attributes:
        unsent: bytes that the peer had not taken at the time ``since``.
        since: when it last took as much as :data:`PACE_BYTES`.
    """

    since: float
    unsent: int

    def stands_still(self, unsent: int, now: float, limit_s: float) -> bool:
        """Look again: whether the peer took too little for too long.

        Args:
            unsent: bytes that the peer has not taken now.
            now: the time in seconds.
            limit_s: seconds for which the peer may take less than :data:`PACE_BYTES`.
        """
        if self.unsent - unsent >= PACE_BYTES:
            self.since, self.unsent = now, unsent
        return now - self.since >= limit_s


class Timelines:
    """When the bytes of segments were published, as exactly as :meth:`look` is called often.

    Only segments with a reader that lags are followed, and only while they have one: no chunk costs anything, and a
    reader that has just fallen behind lacks only bytes that were published just before.

    Args:
        limit_s: how old a byte may get before a reader must have it, in seconds.
    """

    __slots__ = ("_limit_s", "_marks")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._marks: dict[Segment, deque[tuple[float, int]]] = {}

    def look(self, segments: Iterable[Segment], now: float) -> None:
        """Note the present size of these segments; the others are followed no longer."""
        before, self._marks = self._marks, {}
        for segment in segments:
            marks = self._marks[segment] = before.get(segment) or deque()
            if not marks or segment.size > marks[-1][1]:
                # A reader may come to a segment that has been closed for long: a stream does.
                marks.append((now if segment.closed_at is None else min(now, segment.closed_at), segment.size))
            while len(marks) > 1 and now - marks[1][0] >= self._limit_s:
                marks.popleft()

    def overdue(self, segment: Segment, now: float) -> int:
        """How many bytes of a segment are so old that every reader that was there must have them."""
        when, size = self._marks[segment][0]
        return size if now - when >= self._limit_s else 0

    def age_s(self, segment: Segment, have: int, now: float) -> float:
        """For how long, at least, a reader has lacked the next byte of a segment.

        Args:
            segment: that it reads.
            have: bytes that it has, or found when it came.
            now: the time in seconds.

        Returns:
            Seconds; 0 if it lacks nothing, or if :meth:`look` has not noted the segment yet.
        """
        marks = self._marks.get(segment, ())
        at = bisect_right(marks, have, key=itemgetter(1))
        return now - marks[at][0] if at < len(marks) else 0.0
