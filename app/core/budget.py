"""The one memory budget over all segments: what is held is counted by what it really costs."""

from __future__ import annotations

from collections.abc import Callable

from tricklecast.app.core.segment import Segment


class Budget:
    """Memory of segments, over all channels: those in windows, those being written, and those that linger.

    A segment that left its window while somebody reads it lingers: its memory is not free before the last of its
    readers has gone.

    Args:
        limit: bytes.
        reclaim: asked to free so many bytes (at least) by evicting; it may free fewer.

    Attributes:
        used: bytes held. lingering: the segments that linger, in the order in which they left their windows.
    """

    __slots__ = ("_reclaim", "limit", "lingering", "used")

    def __init__(self, limit: int, reclaim: Callable[[int], None]) -> None:
        self.limit = limit
        self.used = 0
        self.lingering: dict[Segment, None] = {}
        self._reclaim = reclaim

    def take(self, size: int) -> bool:
        """Account for ``size`` more bytes; ``False`` (and nothing accounted for) if there is no room to be made."""
        self.used += size
        if self.used > self.limit:
            self._reclaim(self.used - self.limit)
            if self.used > self.limit:
                self.used -= size
                return False
        return True

    def charge(self, size: int) -> None:
        """Account for ``size`` bytes that are held already, making room where that is possible."""
        self.used += size
        if self.used > self.limit:
            self._reclaim(self.used - self.limit)

    def release(self, segment: Segment) -> None:
        """A segment has left its window: its memory is free, unless somebody still reads it."""
        if segment.cursors:
            self.lingering[segment] = None
        else:
            self.used -= segment.cost

    def settle(self, segment: Segment) -> None:
        """A reader has left: if it was the last one of a segment that lingers, its memory is free."""
        if self.lingering and not segment.cursors and segment in self.lingering:
            del self.lingering[segment]
            self.used -= segment.cost

    def drop_readers(self, segment: Segment) -> None:
        """Cut off those who still read a segment that lingers, so that its memory is free."""
        for cursor in list(segment.cursors):
            cursor.evict()
