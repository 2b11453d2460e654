"""Figures that all workers of a server share, in memory that all of them map.

**The problem.** A limit holds for the server, and its clients are spread over workers. A worker that asked the others
before it admits somebody would wait for them; a share of the limit for each worker would refuse clients at one while
there is room at another.

**The idea.** Each worker has a row of figures of its own, which it alone writes, and adds up a column to know what all
have. An aligned word is written whole, so nothing is locked, and a worker that is killed in the middle leaves nothing
locked. Two workers may admit somebody at the same moment, so a limit may be exceeded by one for each other worker.

The supervisor makes the memory, and clears the row of a worker that has died before it starts the next one.
"""

from __future__ import annotations

import mmap
from enum import IntEnum, auto

from tricklecast.app.core.limits import Capacities, Capacity, Limits


class Figure(IntEnum):
    """The columns."""

    READERS = 0
    PUBLISHERS = auto()
    CHANNELS = auto()
    CONNECTIONS = auto()
    BYTES = auto()
    """Memory of all segments (``Budget.used``)."""
    BEAT_MS = auto()
    """When the event loop turned last, in milliseconds of the monotonic clock."""


class Shared:
    """The memory. Make it before the workers are forked.

    Args:
        workers: their number.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        memory = mmap.mmap(-1, len(Figure) * workers * 8)  # shared by processes that are forked
        words = memoryview(memory).cast("q")
        # A figure's words stand together, so that they are added up quickly.
        self._columns = [words[at * workers : (at + 1) * workers] for at in range(len(Figure))]

    def column(self, figure: Figure) -> memoryview:
        """A figure of all workers: a word for each, which this worker alone writes. It changes at any moment."""
        return self._columns[figure]

    def clear(self, worker: int) -> None:
        """A worker has died: it has nothing any more."""
        for column in self._columns:
            column[worker] = 0


class SharedCapacity(Capacity):
    """A limit that all workers share: each counts its own, and all of them are admitted together.

    Args:
        limit: how many there may be at a time, in all workers; ``None`` for any number.
        shared: the memory. worker: this one. figure: which figure is counted.
    """

    __slots__ = ("_column", "_worker")

    def __init__(self, limit: int | None, shared: Shared, worker: int, figure: Figure) -> None:
        super().__init__(limit)
        self._column, self._worker = shared.column(figure), worker

    def admits(self, *, join: bool) -> bool:
        """Whether there is room for one more: a newcomer (``join``), or a client that goes on."""
        total = sum(self._column)
        if total >= self._joins_stop:
            self.joinable = False
        elif total < self._joins_return:
            self.joinable = True
        return total < self.limit and (self.joinable or not join)

    def take(self) -> None:
        """One more is in."""
        self.used += 1
        self._column[self._worker] = self.used

    def give_back(self) -> None:
        """One has left."""
        self.used -= 1
        self._column[self._worker] = self.used


def shared_capacities(limits: Limits, shared: Shared, worker: int) -> Capacities:
    """The limits of one worker that hold for all."""

    def of(limit: int | None, figure: Figure) -> SharedCapacity:
        return SharedCapacity(limit, shared, worker, figure)

    return Capacities(
        of(limits.readers, Figure.READERS),
        of(limits.publishers, Figure.PUBLISHERS),
        of(limits.channels, Figure.CHANNELS),
        of(limits.connections, Figure.CONNECTIONS),
    )


def share_of_memory(limit: int, shared: Shared, worker: int) -> int:
    """The bytes that one worker's segments may take at present, of a limit that holds for all.

    A worker may use an equal part of what is free beside what it has; and an equal part of the limit in any case, since
    otherwise the first worker that is busy would keep all memory for ever. The others, which hold more, give it back
    when they are asked the next time, so for a moment the limit may be exceeded by that part.

    Args:
        limit: bytes, of all workers.
    """
    column = shared.column(Figure.BYTES)
    own, free = column[worker], limit - sum(column)
    return max(limit // shared.workers, own + free // shared.workers)
