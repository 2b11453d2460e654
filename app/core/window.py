"""The windows of closed segments that channels keep for catching up, and the memory budget that all of them share."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from enum import StrEnum
from heapq import heappop, heappush
from itertools import chain, count
from typing import Final

from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import Faults, Segment

STALE_ENTRIES: Final = 64
"""How many outdated entries, beside half of all entries, the budget's heaps may hold before they are rebuilt."""


class Eviction(StrEnum):
    """Why a segment left its window."""

    AGE = "age"
    COUNT = "count"
    BYTES = "bytes"
    BUDGET = "budget"


class Window:
    """Closed segments in the order of their seq, limited by count, bytes and age.

    The newest one is kept, unless its memory is needed.

    Args:
        limits: of the window.
        budget: of the server.
        on_evicted: told of each segment that leaves because of a limit, when it has left.

    Attributes:
        bytes: body bytes of all segments kept. cost: memory that they take, in bytes.
        evicted: how many segments have left it so far, by the reason.
        number: counts the windows of the budget; of equally large ones the lowest number is evicted from first.
        bound: the budget's estimate of ``cost``; never below it.
    """

    __slots__ = ("_budget", "_limits", "_on_evicted", "_segments", "bound", "bytes", "cost", "evicted", "number")

    def __init__(self, limits: Limits, budget: Budget, on_evicted: Callable[[Segment], None]) -> None:
        self._limits = limits
        self._budget = budget
        self._on_evicted = on_evicted
        self._segments: list[Segment] = []
        self.bytes = self.cost = self.bound = 0
        self.evicted = dict.fromkeys(Eviction, 0)
        self.number = budget.next_number()

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

    def keep(self, segment: Segment) -> bool:
        """Take in a segment that has just closed (usually the newest, but segments may overlap).

        The budget has counted the segment since its first byte; one without a byte is counted from now on.

        Returns:
            Whether :attr:`next_deadline` may be another one now.
        """
        if not segment.size:
            self._budget.charge(segment.cost)
        segments = self._segments
        if not segments or segment.seq > segments[-1].seq:
            segments.append(segment)
        else:
            insort(segments, segment, key=lambda kept: kept.seq)
        self.bytes += segment.size
        self.cost += segment.cost
        if self.cost > self.bound or len(segments) <= 2:
            self._budget.grew(self)
        return len(segments) == 2 or segments[0] is segment

    def completed_after(self, seq: int) -> bool:
        """Whether a segment newer than ``seq`` was ended by its publisher, with at least one byte."""
        return any(segment.seq > seq and segment.complete for segment in reversed(self._segments))

    def evict(self, now: float) -> None:
        """Let go of the oldest segments until no limit is exceeded."""
        while (why := self._exceeds(now)) is not None:
            self._drop_oldest(why)

    def make_room(self) -> Segment:
        """Let go of the oldest segment, and return it, because its memory is needed. Only the budget calls this."""
        return self._drop_oldest(Eviction.BUDGET)

    def clear(self) -> None:
        """The channel's life is over: let go of everything. The budget no longer knows the window."""
        while self._segments:
            self._drop_oldest()
        self._budget.forget(self)
        self._on_evicted = (
            _nobody  # the channel: a cycle that only a full garbage collection, which is rare, would find
        )

    def _drop_oldest(self, why: Eviction | None = None) -> Segment:
        segment = self._segments.pop(0)
        self.bytes -= segment.size
        self.cost -= segment.cost
        self._budget.release(segment)
        if why is not None:
            self.evicted[why] += 1
            self._on_evicted(segment)
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


Entry = tuple[int, int, Window]
"""A window in a heap of the budget: its bound, negated so that the largest comes first; its number; itself."""


class Budget:
    """Memory of all segments of all channels: those in windows, those being written, and those that linger.

    A segment that left its window while a reader or storage reads it lingers: its memory is free when nobody does.

    When memory is short, first the readers of lingering segments are cut off, then the oldest segment of the largest
    window is evicted, again and again; the newest segment of a window only when no window has another one. A sixteenth
    of the budget is freed beyond what is needed, the newest segments aside, so that a full server does not evict on
    every chunk.

    The largest window comes from two heaps: of windows with several segments, and of windows with one. A window has
    one valid entry, whose bound is at least its cost; an entry that turns out to be too high is put back lower. A
    window that outgrows its bound gets a new one of twice its cost, so most closing segments cost no entry at all, and
    each eviction O(log n), however many channels there are and however few of them have anything to evict.

    Args:
        limit: bytes.
        faults: told of the cursors that raise when they are told to leave.

    Attributes:
        used: bytes held. lingering: the segments that linger, in the order in which they left their windows.
    """

    __slots__ = ("_faults", "_numbers", "_several", "_single", "_stale", "limit", "lingering", "used")

    def __init__(self, limit: int, faults: Faults) -> None:
        self.limit = limit
        self.used = 0
        self.lingering: dict[Segment, None] = {}
        self._faults = faults
        self._numbers = count()
        self._several: list[Entry] = []
        self._single: list[Entry] = []
        self._stale = 0

    def next_number(self) -> int:
        """A number that no window has had."""
        return next(self._numbers)

    def take(self, size: int) -> bool:
        """Account for ``size`` more bytes; ``False`` (and nothing accounted for) if there is no room to be made."""
        self.used += size
        if self.used > self.limit:
            self._reclaim()
            if self.used > self.limit:
                self.used -= size
                return False
        return True

    def charge(self, size: int) -> None:
        """Account for ``size`` bytes that are held already, making room where that is possible."""
        self.used += size
        if self.used > self.limit:
            self._reclaim()

    def release(self, segment: Segment) -> None:
        """A segment has left its window: its memory is free, unless a reader still reads it."""
        if segment.is_read:
            self.lingering[segment] = None
        else:
            self.used -= segment.cost

    def settle(self, segment: Segment) -> None:
        """A reader has left: if it was the last one of a segment that lingers, its memory is free."""
        if self.lingering and not segment.is_read and segment in self.lingering:
            del self.lingering[segment]
            self.used -= segment.cost

    def grew(self, window: Window) -> None:
        """A window holds more than its bound, or has got its first or second segment."""
        self._stale += window.bound > 0
        window.bound = 2 * window.cost
        self._push(window)
        self._sweep()

    def forget(self, window: Window) -> None:
        """A window is empty for good."""
        self._stale += window.bound > 0
        window.bound = 0
        self._sweep()

    def _reclaim(self) -> None:
        """Free what exceeds the limit and a sixteenth of it, as far as that does not touch segments being written."""
        spare = self.limit >> 4
        for segment in list(self.lingering):
            if self.used <= self.limit - spare:
                return
            segment.evict_readers(self._faults)
        while self.used > self.limit - spare and (window := self._largest(self._several)) is not None:
            self._evict_from(window)
        while self.used > self.limit and (window := self._largest(self._single)) is not None:
            self._evict_from(window)

    def _evict_from(self, window: Window) -> None:
        segment = window.make_room()
        segment.evict_readers(self._faults)
        if len(window):
            window.bound = window.cost
            self._push(window)

    def _largest(self, heap: list[Entry]) -> Window | None:
        """Take the largest window out of a heap; while there is one with several segments, that heap is asked first."""
        while heap:
            bound, _, window = heappop(heap)
            if -bound != window.bound:
                self._stale -= 1
            elif window.bound != window.cost or (heap is self._several) != (len(window) > 1):
                window.bound = window.cost
                self._push(window)
            else:
                window.bound = 0
                return window
        return None

    def _push(self, window: Window) -> None:
        heap = self._several if len(window) > 1 else self._single
        heappush(heap, (-window.bound, window.number, window))

    def _sweep(self) -> None:
        """Rebuild the heaps when too many entries are outdated: they would keep forgotten windows in memory."""
        if self._stale > STALE_ENTRIES + (len(self._several) + len(self._single)) // 2:
            entries = chain(self._several, self._single)
            valid = {number: window for bound, number, window in entries if -bound == window.bound}
            self._several, self._single, self._stale = [], [], 0
            for window in valid.values():
                self._push(window)


def _nobody(segment: Segment) -> None:
    """Is not told."""
