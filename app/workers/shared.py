"""Figures that all workers of a server share, in memory that all of them map.

**The problem.** A limit holds for the server, and its clients are spread over workers. A worker that asked the others
before it admits somebody would wait for them; a share of the limit for each worker would refuse clients at one while
there is room at another.

**The idea.** Each worker has words of its own, which it alone writes, and adds up those of all to know what all have.
An aligned word is written whole, so nothing is locked, and a worker that is killed leaves nothing locked. Two workers
may admit somebody at the same moment, so a limit may be exceeded by one for each other worker.

- *Counts* (:class:`SharedCapacity`): readers, publishers, channels, connections.
- *Memory* (:class:`SharedMemory`): each worker reserves what its channels hold and a little more. What nobody has
  reserved is free, and who needs it takes it at once. The worker whose channel holds most keeps some of it free.
- *The data directory*: each worker keeps to its part of what may be stored.
- *Clients*, and the readers of one channel (:mod:`app.workers.clients`).

The supervisor makes the memory, and clears the words of a worker that has died before it starts the next one.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum, auto
from functools import partial
from typing import Final

from tricklecast.app.core.limits import Capacities, Capacity, Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.storage.archive import Archive
from tricklecast.app.workers.clients import SharedAdmission, Tallies
from tricklecast.app.workers.payers import SharedPayers

FREE_SHARE: Final = 16
"""A sixteenth of the memory is kept free, for workers that need more at once. All workers together reserve as much that
they do not use."""

ASKED_S: Final = 2.0
"""For this time after a channel was refused memory, larger ones elsewhere give what they would otherwise keep."""


class Figure(IntEnum):
    """A number that each worker has."""

    READERS = 0
    PUBLISHERS = auto()
    CHANNELS = auto()
    CONNECTIONS = auto()
    RESERVED = auto()
    """Bytes of memory that a worker may use for segments."""
    MOST = auto()
    """Bytes of the channel that holds most."""
    HELD = auto()
    """Channels in memory, replicas included."""
    ASKS = auto()
    """Bytes of the channel that was refused memory last; 0 if that was two seconds ago."""
    STORED = auto()
    """Bytes in the data directory (``Archive.bytes``)."""
    BEAT_MS = auto()
    """When the event loop turned last, in milliseconds of the monotonic clock."""
    DRAINS = auto()
    """1 while it drains: it may still hand connections over, and hold TLS sessions of others."""


class Shared:
    """The memory. Make it before the workers are forked.

    Attributes:
        workers: their number.
        tallies: figures of clients and channels, by name.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        words = memoryview(mmap.mmap(-1, len(Figure) * workers * 8)).cast("q")  # shared by forked processes
        # A figure's words stand together, so that they are added up quickly.
        self._columns = [words[at * workers : (at + 1) * workers] for at in range(len(Figure))]
        self.tallies = Tallies(workers)

    def column(self, figure: Figure) -> memoryview:
        """A figure of all workers: a word for each, which that worker alone writes. It changes at any moment."""
        return self._columns[figure]

    def capacity(self, limit: int | None, figure: Figure, worker: int) -> SharedCapacity:
        """The limit of a figure for all workers, for this one to count in."""
        column = self._columns[figure]

        def add(change: int) -> None:
            column[worker] += change

        return SharedCapacity(limit, partial(sum, column), add)

    def clear(self, worker: int) -> None:
        """A worker has died: it has nothing any more but its data directory."""
        for figure, column in enumerate(self._columns):
            if figure != Figure.STORED:
                column[worker] = 0
        self.tallies.clear(worker)


class SharedCapacity(Capacity):
    """A limit that all workers share: each counts its own, and all of them are admitted together.

    Each worker notices by itself when newcomers are to be refused, four times a second at least. So one may go on
    admitting newcomers for that time, or longer if the reserve is touched for less than that.

    Args:
        limit: how many there may be at a time, in all workers; ``None`` for any number.
        total: returns how many there are. add: changes how many of them this worker has.

    Attributes:
        used: those of this worker.
    """

    __slots__ = ("_add", "_refuses_joins", "_total")

    def __init__(self, limit: int | None, total: Callable[[], int], add: Callable[[int], None]) -> None:
        self._total, self._add, self._refuses_joins = total, add, False
        super().__init__(limit)

    @property
    def joinable(self) -> bool:
        """Whether a newcomer may come, at any worker."""
        total = self._total()
        if total >= self._joins_stop:
            self._refuses_joins = True
        elif total < self._joins_return:
            self._refuses_joins = False
        return not self._refuses_joins

    @joinable.setter
    def joinable(self, value: bool) -> None:
        """The base class sets it, and it follows from the words."""

    @property
    def full(self) -> bool:
        """Whether nobody may come, at any worker."""
        return self._total() >= self.limit  # every GET asks

    @full.setter
    def full(self, value: bool) -> None:
        """The base class sets it, and it follows from the words."""

    def admits(self, *, join: bool) -> bool:
        """Whether there is room for one more: a newcomer (``join``), or a client that goes on."""
        return not self.full and (self.joinable or not join)

    def take(self) -> None:
        """One more is in."""
        self.used += 1
        self._add(1)

    def give_back(self) -> None:
        """One has left."""
        self.used -= 1
        self._add(-1)


class SharedMemory:
    """One worker's part of the memory of all segments: it reserves what its channels hold, and a little more.

    **The rule is that of one process**: the channel that holds most gives first, in whichever worker it is
    (:class:`~tricklecast.app.core.window.Budget`). It takes effect with the ticks of the workers:

    - A worker that needs more than it has reserved takes it from what nobody has reserved, at once.
    - When less than a sixteenth is left, the worker whose channel holds most gives what is lacking, with its next tick.
      A channel gives none of that as long as it holds less than three quarters of an equal share: of 100 MB and 5
      channels, 15 MB.
    - When a channel was refused memory all the same, larger ones give up more: their newest segments, and those that
      are being written. So a channel of one worker is never starved by a larger one of another.

    What is reserved never exceeds the limit, but for workers that take the rest at the same moment, which can be a
    sixteenth too much. A worker that needs more than the rest within one tick evicts its own channels' segments.

    Args:
        limit: bytes, of all workers. shared: the memory of the figures. worker: this one. clock: seconds.

    Attributes:
        step: bytes that are reserved beside what is used.
    """

    def __init__(self, limit: int, shared: Shared, worker: int, clock: Callable[[], float]) -> None:
        self._limit, self._worker, self._clock = limit, worker, clock
        self._reserved, self._most = shared.column(Figure.RESERVED), shared.column(Figure.MOST)
        self._held, self._asks = shared.column(Figure.HELD), shared.column(Figure.ASKS)
        self._asked_at = 0.0  # when a channel of this worker was refused memory
        self.step = self._reserved[worker] = limit // (FREE_SHARE * shared.workers)

    @property
    def free(self) -> int:
        """Bytes that no worker has reserved."""
        return max(0, self._limit - sum(self._reserved))

    def lend(self, missing: int, asks: int) -> int:
        """Reserve more memory for this worker's budget, which adds it to its limit; returns how much.

        Args:
            missing: bytes. asks: those of the channel that needs them.
        """
        lent = min(self.free, missing + self.step)
        if lent < missing:
            self._asks[self._worker], self._asked_at = asks, self._clock()
        self._reserved[self._worker] += lent
        return lent

    def tick(self, registry: Registry) -> None:
        """Reserve what is used and a little more, and give memory where it is needed; four times a second."""
        budget, me = registry.budget, self._worker
        self._most[me], self._held[me] = budget.most, len(registry.channels)
        if self._clock() - self._asked_at > ASKED_S:
            self._asks[me] = 0
        idle = budget.limit - budget.used - self.step  # this tick gives it back anyway
        lacking = self._limit // FREE_SHARE - self.free - max(0, idle)
        if lacking > 0 and self._most[me] == max(self._most) > 0:
            self._give(registry, lacking)
            idle = budget.limit - budget.used - self.step
        change = min(-idle, self.free)
        self._reserved[me] += change
        budget.limit += change

    def _give(self, registry: Registry, lacking: int) -> None:
        """Free this much for other workers, since the channel that holds most is here."""
        asking = [asks for worker, asks in enumerate(self._asks) if asks and worker != self._worker]
        if asking:
            registry.give(lacking, asks=min(asking), short=True)
        else:
            registry.give(lacking, asks=self._limit * 3 // (4 * sum(self._held)), short=False)


def part_of(limit: int, column: memoryview, worker: int) -> int:
    """The bytes that one worker may have at present, of a limit that holds for all: what it has, and an equal part of
    what is free.

    It may have an equal part of the limit in any case, since otherwise the first worker that is busy would keep all for
    ever. Until the others have given back what they have above theirs, the limit may be exceeded by this part.

    Args:
        limit: bytes, of all workers. column: what each has.
    """
    workers = len(column)
    return max(limit // workers, column[worker] + (limit - sum(column)) // workers)


class SharedLimits:
    """One worker's part in the limits of a server.

    Args:
        limits: of the server. shared: the memory. worker: this one. clock: seconds, of the machine.

    Attributes:
        limits: the same; tables that only bound memory get an equal part of their places.
        capacities, memory, payers, admission: count what all workers have.
        reading: makes the limit of a channel's readers, which several workers may have; ``None``: there is no limit.
    """

    def __init__(self, limits: Limits, shared: Shared, worker: int, clock: Callable[[], float]) -> None:
        self._shared, self._worker = shared, worker
        workers = shared.workers
        self.limits = replace(limits, clients=limits.clients // workers, tombstones=limits.tombstones // workers)
        self.capacities = Capacities(
            readers=shared.capacity(limits.readers, Figure.READERS, worker),
            publishers=shared.capacity(limits.publishers, Figure.PUBLISHERS, worker),
            channels=shared.capacity(limits.channels, Figure.CHANNELS, worker),
            connections=shared.capacity(limits.connections, Figure.CONNECTIONS, worker),
        )
        self.reading = None if limits.readers_per_channel is None else self._reading
        self.memory = SharedMemory(limits.total_bytes, shared, worker, clock)
        self.payers = SharedPayers(limits.publisher_bytes, shared.tallies, worker)
        self.admission = SharedAdmission(self.limits, self.capacities.connections, shared.tallies, worker)

    def _reading(self, channel: str) -> Capacity:
        """Counts readers by the name of their channel, as clients are counted by their address."""
        tally, places = self._shared.tallies.readers, self._shared.tallies.places(channel)
        add = partial(tally.add, self._worker, places)
        return SharedCapacity(self.limits.readers_per_channel, partial(tally.total, places), add)

    def tick(self, registry: Registry, archive: Archive | None = None) -> None:
        """Take this worker's part of what all share, and give what others need; four times a second."""
        if archive is not None:
            stored = self._shared.column(Figure.STORED)
            stored[self._worker] = archive.bytes
            archive.limit = part_of(archive.retention.total_bytes, stored, self._worker)
        self.memory.tick(registry)
        self.payers.tick()
        for capacity in self.capacities:
            capacity.admits(join=True)  # notes a rise by clients that go on, who ask whether it is full only
