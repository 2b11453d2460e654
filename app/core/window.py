"""The windows of closed segments that channels keep for catching up, and the memory budget that all channels share."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from enum import StrEnum
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import Faults, Segment

STALE_ENTRIES: Final = 64
"""How many outdated entries, beside half of all entries, the budget's heap may hold before it is rebuilt."""


class Eviction(StrEnum):
    """Why a segment left its window."""

    AGE = "age"
    COUNT = "count"
    BYTES = "bytes"
    BUDGET = "budget"


_NONE: Final = dict.fromkeys(Eviction, 0)
"""Copied for each window: to list an enumeration takes longer."""


class Window:
    """Closed segments in the order of their seq, limited by count, bytes and age; and all memory of their channel.

    The newest one is kept, unless its memory is needed.

    Args:
        limits: of the window.
        budget: of the server.
        on_evicted: told of each segment that has left because of a limit, and of the limit.
        give_open: cuts the largest segment that is being written, so that it comes into the window; returns whether
            there was one.

    Attributes:
        bytes: body bytes of all segments kept. cost: memory that they take, in bytes.
        open: memory of the channel's segments that are being written.
        held: memory of all of the channel's segments: those kept, those being written, and those that linger.
        lingering: the segments that have left the window and are still read, in the order in which they left it.
        evicted: how many segments have left it so far, by the reason.
        number: counts the windows of the budget; of channels that hold the same the lowest number gives first.
        bound: the budget's estimate of ``held``; never below it.
    """

    __slots__ = (
        "_budget", "_give_open", "_limits", "_on_evicted", "_segments", "bound", "bytes", "cost", "evicted", "held",
        "lingering", "number", "open",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        on_evicted: Callable[[Segment, Eviction], None] | None = None,
        give_open: Callable[[], bool] | None = None,
    ) -> None:
        self._limits = limits
        self._budget = budget
        self._on_evicted = on_evicted or _nobody
        self._give_open = give_open or _nothing
        self._segments: list[Segment] = []
        self.bytes = self.cost = self.open = self.held = self.bound = 0
        self.lingering: dict[Segment, None] = {}
        self.evicted = _NONE.copy()
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
        if segment.size:
            self.open -= segment.cost
        else:
            self._budget.charge(self, segment.cost)
        segments = self._segments
        if not segments or segment.seq > segments[-1].seq:
            segments.append(segment)
        else:
            insort(segments, segment, key=lambda one: one.seq)
        self.bytes += segment.size
        self.cost += segment.cost
        return len(segments) == 2 or segments[0] is segment

    def completed_after(self, seq: int) -> bool:
        """Whether a segment newer than ``seq`` was ended by its publisher, with at least one byte."""
        return any(segment.seq > seq and segment.complete for segment in reversed(self._segments))

    def evict(self, now: float) -> None:
        """Let go of the oldest segments until no limit is exceeded."""
        while (why := self._exceeds(now)) is not None:
            self._drop_oldest(why)

    def give(self, faults: Faults, *, short: bool, cut: bool) -> bool:
        """Give up memory, as little as there is to give at a time. Only the budget calls this.

        Args:
            faults: told of the cursors that raise when they are told to leave.
            short: memory is short, so the newest segment is given, too.
            cut: if there is no other, the largest segment that is being written is cut, and given.

        Returns:
            Whether there was something to give.
        """
        held = self.held
        for segment in list(self.lingering):
            segment.evict_readers(faults)
            if self.held < held:
                return True
        if len(self._segments) > 1 or (short and self._segments):
            self._drop_oldest(Eviction.BUDGET).evict_readers(faults)
            return True
        return short and cut and self._give_open()

    def drop(self, segment: Segment, why: Eviction | None) -> None:
        """Let go of this segment, which is mostly the oldest, because of a limit."""
        self._segments.remove(segment)
        self.bytes -= segment.size
        self.cost -= segment.cost
        self._budget.release(self, segment)
        if why is not None:
            self.evicted[why] += 1

    def belong_to(self, on_evicted: Callable[[Segment, Eviction], None], give_open: Callable[[], bool]) -> None:
        """From now on tell another object for the same channel, which has taken the window over."""
        self._on_evicted, self._give_open = on_evicted, give_open

    def clear(self) -> None:
        """The channel is forgotten: let go of everything that nobody reads."""
        while self._segments:
            self._drop_oldest()
        # The channel: a cycle that only a full garbage collection, which is rare, would find.
        self._on_evicted, self._give_open = _nobody, _nothing

    def _drop_oldest(self, why: Eviction | None = None) -> Segment:
        segment = self._segments[0]
        self.drop(segment, why)
        if why is not None:
            self._on_evicted(segment, why)
        return segment

    def _exceeds(self, now: float) -> Eviction | None:
        count, limits = len(self._segments), self._limits
        if count <= 1:
            return None
        if count > limits.window_segments:
            return Eviction.COUNT
        if self.bytes > limits.window_bytes:
            return Eviction.BYTES
        return Eviction.AGE if self._ages_out_at() <= now else None

    def _ages_out_at(self) -> float:
        closed_at = self._segments[0].closed_at
        assert closed_at is not None, "only closed segments are kept"
        return closed_at + self._limits.window_age_s


class Lender(Protocol):
    """Has memory that several budgets share."""

    def lend(self, missing: int, asks: int) -> int:
        """As many of the missing bytes as there are, and perhaps some more.

        Args:
            asks: what the channel holds for which they are.
        """


HeapItem = tuple[int, int, Window]
"""A window in the heap of the budget: its bound, negated so that the largest comes first; its number; itself."""


class Budget:
    """Memory of all segments of all channels: those in windows, those being written, and those that linger.

    A segment that left its window while a reader or storage reads it lingers: its memory is free when nobody does.

    When memory is short, **the channel that holds most gives first**, again and again: the readers of one of its
    lingering segments are cut off; then the oldest segment of its window goes; at last its largest segment that is
    being written is cut, and goes. No channel gives to one that holds more, so a channel that asks for more than any
    other holds is refused. Hence a channel that holds less than an equal share of the budget (less a sixteenth) keeps
    its segments, however much the others ask for. For example, of 21 channels one holds half of the memory in open
    segments: it is refused, or cut when another one needs memory, and the windows of the 20 stay.

    The budget frees a sixteenth more than is needed, so that a full server does not evict on every chunk. For that part
    no channel gives its newest segment, or one that is being written.

    The channel that holds most comes from a heap. A window has one valid entry, whose bound is at least what its
    channel holds; an entry that turns out to be too high is put back lower. A channel that outgrows its bound gets a
    new one of twice what it holds, so most chunks cost no entry at all, and each eviction O(log n), however many
    channels there are and however few of them have anything to evict.

    Where several workers share the memory, each has a budget, and its limit is this worker's part at present: what it
    lacks it takes from what all have left (:class:`Lender`), and what others lack it gives (:meth:`give`).

    Args:
        limit: bytes.
        faults: told of the cursors that raise when they are told to leave.
        lender: has more memory for the budget, if there is any.

    Attributes:
        limit: the same, and what was lent since.
        used: bytes held, the parts that are replayed from storage (:meth:`lend`) included.
        lingering: the segments that linger, with the window that they have left.
    """

    __slots__ = ("_faults", "_heap", "_lender", "_numbers", "_stale", "limit", "lingering", "used")

    def __init__(self, limit: int, faults: Faults, lender: Lender | None = None) -> None:
        self.limit = limit
        self._lender = lender
        self.used = 0
        self.lingering: dict[Segment, Window] = {}
        self._faults = faults
        self._numbers = count()
        self._heap: list[HeapItem] = []
        self._stale = 0

    def next_number(self) -> int:
        """A number that no window has had."""
        return next(self._numbers)

    def take(self, window: Window, size: int) -> bool:
        """Account for ``size`` more bytes of a channel; ``False`` (and nothing accounted for) if there is no room."""
        self.charge(window, size)
        if self.used > self.limit:
            self.give_back(window, size)
            return False
        return True

    def charge(self, window: Window, size: int) -> None:
        """Account for ``size`` bytes that a channel holds already, making room where that is possible."""
        self.used += size
        window.held += size
        if window.held > window.bound:
            self._stale += window.bound > 0
            window.bound = 2 * window.held
            self._push(window)
            self._sweep()
        if self.used > self.limit:
            self._reclaim(window)

    def lend(self, size: int) -> bool:
        """Account for ``size`` bytes of no channel; ``False`` (and nothing accounted for) if there is no room.

        The caller takes them off :attr:`used` when they are free again. Channels that hold as much give for them, but
        nothing that is being written is cut.
        """
        self.used += size
        if self.used > self.limit:
            self._reclaim(None, size)
            if self.used > self.limit:
                self.used -= size
                return False
        return True

    def give_back(self, window: Window, size: int) -> None:
        """A channel no longer holds these bytes."""
        self.used -= size
        window.held -= size
        if not window.held:
            self._stale += window.bound > 0
            window.bound = 0
            self._sweep()

    def release(self, window: Window, segment: Segment) -> None:
        """A segment has left its window: its memory is free, unless a reader still reads it."""
        if segment.is_read:
            self.lingering[segment] = window
            window.lingering[segment] = None
        else:
            self.give_back(window, segment.cost)

    def settle(self, segment: Segment) -> None:
        """A reader has left: if it was the last one of a segment that lingers, its memory is free."""
        if self.lingering and not segment.is_read and (window := self.lingering.pop(segment, None)) is not None:
            del window.lingering[segment]
            self.give_back(window, segment.cost)

    def _reclaim(self, taker: Window | None, size: int = 0) -> None:
        """Borrow what is missing, or free memory by taking it from the channels that hold most.

        Then a sixteenth of the limit is free again. It ends earlier where the channel that holds most holds less than
        the one that the memory is for.

        Args:
            taker: the channel that the memory is for; ``None``: ``size`` bytes that belong to no channel.
        """
        if self._lender is not None:
            self.limit += self._lender.lend(self.used - self.limit, size if taker is None else taker.held)
        if self.used > self.limit:
            self._free(self.limit - (self.limit >> 4), self.limit, taker, size)

    def give(self, size: int, *, asks: int, short: bool) -> None:
        """Free this many bytes for other workers, if possible. The limit stays as it is.

        Args:
            asks: a channel that holds less gives nothing.
            short: a channel there is refused memory, and holds ``asks``: larger ones give their newest segments, too,
                and those that are being written are cut.
        """
        before, goal = self.used, self.used - size
        self._free(goal, goal if short else before, None, asks, cut=short)

    @property
    def most(self) -> int:
        """The bytes of the channel that holds most."""
        window = self._largest()
        if window is None:
            return 0
        self._put_back(window)
        return window.held

    def _free(self, goal: int, enough: int, taker: Window | None, size: int, *, cut: bool = False) -> None:
        """Free memory until no more than ``goal`` is used, by taking it from the channels that hold most.

        Args:
            enough: when no more is used, no channel gives its newest segment, or one that is being written.
            taker, size: as of :meth:`_reclaim`: a channel that holds less gives nothing.
            cut: segments that are being written are cut also where no channel here takes the memory.
        """
        empty = []
        while self.used > goal and (window := self._largest()) is not None:
            short = self.used > enough
            asks = size if taker is None else taker.held
            if window.held < asks:
                self._put_back(window)
                break
            if window.give(self._faults, short=short, cut=(cut or taker is not None) and window.held > asks):
                self._put_back(window)
            else:
                empty.append(window)
                if not short:
                    break
        for window in empty:
            self._put_back(window)

    def _largest(self) -> Window | None:
        """Take the window out of the heap whose channel holds most."""
        heap = self._heap
        while heap:
            bound, _, window = heappop(heap)
            if -bound != window.bound:
                self._stale -= 1
            elif window.bound != window.held:
                window.bound = window.held
                self._push(window)
            else:
                window.bound = 0
                return window
        return None

    def _put_back(self, window: Window) -> None:
        if window.held and not window.bound:
            window.bound = window.held
            self._push(window)

    def _push(self, window: Window) -> None:
        heappush(self._heap, (-window.bound, window.number, window))

    def _sweep(self) -> None:
        """Rebuild the heap when too many entries are outdated: they would keep forgotten windows in memory."""
        if self._stale > STALE_ENTRIES + len(self._heap) // 2:
            valid = {number: window for bound, number, window in self._heap if -bound == window.bound}
            self._heap, self._stale = [], 0
            for window in valid.values():
                self._push(window)


def _nobody(segment: Segment, why: Eviction) -> None:
    """No channel is there to be told."""


def _nothing() -> bool:
    """No channel is there that could give something."""
    return False
