"""Limits of the whole server, counted in memory that all workers map.

**The problem.** A limit holds for the server, and its clients are spread over workers. If a worker asked the others
before it admits a client, it would wait for them. If each worker had its share of the limit, one would refuse clients
while another has room.

**The idea.** Each worker has words of its own in the shared memory, which it alone writes, and adds up the words of all
workers. The processor writes an aligned word as a whole, so there is no lock that a killed worker could leave locked.
Two workers may admit a client at the same moment, so a limit may be exceeded by one for each other worker.

- *Counts* (:class:`SharedCapacity`): readers, publishers, channels, connections.
- *Memory* (:class:`SharedMemory`): each worker reserves as much as its channels hold and a little more. A worker that
  needs more takes it at once from the memory that nobody has reserved. The worker with the largest channel keeps some
  memory free for that.
- *The data directory*: each worker keeps to its share of the bytes that may be stored (:func:`share_of`).
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
from tricklecast.app.workers.clients import SharedAdmission, Sketches
from tricklecast.app.workers.payers import SharedPayers

FREE_SHARE: Final = 16
"""A sixteenth of the memory is kept free for workers that need more at once. All workers together reserve a further
sixteenth that they do not use."""

ASKED_S: Final = 2.0
"""For this time after a channel was refused memory, larger channels of other workers give up more (see there)."""


class Figure(IntEnum):
    """A number that each worker writes for the others."""

    READERS = 0
    PUBLISHERS = auto()
    CHANNELS = auto()
    CONNECTIONS = auto()
    RESERVED = auto()
    """Bytes of memory that a worker may use for segments."""
    MOST = auto()
    """Bytes of the worker's largest channel."""
    HELD = auto()
    """Channels in memory, replicas included."""
    ASKS = auto()
    """Bytes of the channel that was last refused memory; 0 when that is two seconds ago (:data:`ASKED_S`)."""
    STORED = auto()
    """Bytes in the data directory (``Archive.bytes``)."""
    BEAT_MS = auto()
    """When the event loop turned last, in milliseconds of the monotonic clock."""
    DRAINS = auto()
    """1 while the worker drains. It may still hand connections over, and have TLS sessions for which others answer."""


class Shared:
    """The memory that all workers share. Make it before they are forked.

    Attributes:
        workers: how many there are.
        sketches: counts of clients and channels, by name.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        words = memoryview(mmap.mmap(-1, len(Figure) * workers * 8)).cast("q")  # shared by forked processes
        # A figure's words stand together, so that they are added up quickly.
        self._columns = [words[at * workers : (at + 1) * workers] for at in range(len(Figure))]
        self.sketches = Sketches(workers)

    def column(self, figure: Figure) -> memoryview:
        """A figure of all workers, by their numbers. Each worker writes its own word, at any moment."""
        return self._columns[figure]

    def capacity(self, limit: int | None, figure: Figure, worker: int) -> SharedCapacity:
        """A limit that all workers share, in which this worker counts."""
        column = self._columns[figure]

        def add(change: int) -> None:
            column[worker] += change

        return SharedCapacity(limit, partial(sum, column), add)

    def clear(self, worker: int) -> None:
        """Forget a worker that has died, except for its data directory."""
        for figure, column in enumerate(self._columns):
            if figure != Figure.STORED:
                column[worker] = 0
        self.sketches.clear(worker)


class SharedCapacity(Capacity):
    """A limit that all workers share: each counts its own clients, and admits by the sum.

    Each worker notices by itself that newcomers are to be refused (:attr:`joinable`), four times a second at least. So
    it may admit newcomers for that time, or for longer if the sum falls again within it.

    Args:
        limit: how many there may be at a time, in all workers; ``None`` for any number.
        total: returns how many there are. add: changes how many of them this worker has.

    Attributes:
        used: those of this worker.
    """

    __slots__ = ("_add", "_total")

    def __init__(self, limit: int | None, total: Callable[[], int], add: Callable[[int], None]) -> None:
        super().__init__(limit)
        self._total, self._add = total, add

    @property
    def joinable(self) -> bool:
        """Whether a newcomer may come, at any worker."""
        total = self._total()
        if total >= self._joins_stop:
            self._refuses_joins = True
        elif total < self._joins_return:
            self._refuses_joins = False
        return not self._refuses_joins

    @property
    def full(self) -> bool:
        """Whether nobody may come, at any worker."""
        return self._total() >= self.limit  # every GET asks

    def take(self) -> None:
        """One more is in."""
        self.used += 1
        self._add(1)

    def give_back(self) -> None:
        """One has left."""
        self.used -= 1
        self._add(-1)


class SharedMemory:
    """One worker's reservation in the memory of all segments: as much as its channels hold, and a little more.

    **The rule is that of one process**: the channel that holds most gives memory first, whichever worker has it
    (:class:`~tricklecast.app.core.window.Budget`). The workers apply it with their ticks:

    - A worker that needs more than it has reserved takes it from what nobody has reserved, at once.
    - When less than a sixteenth is left, the worker with the largest channel evicts segments at its next tick, until a
      sixteenth is free. A channel that holds less than three quarters of an equal share gives nothing: with 100 MB and
      5 channels, that is 15 MB.
    - If a channel was refused memory all the same, larger ones give up more: their newest segments, and those that are
      being written. So a channel of one worker is never starved by a larger one of another.

    Two workers that take the rest at the same moment may together reserve a sixteenth too much. A worker that needs
    more than the rest within one tick evicts segments of its own channels.

    Args:
        limit: bytes, over all workers. shared: has the figures. worker: this one's number. clock: seconds.

    Attributes:
        margin: bytes that this worker reserves in addition to those that it uses.
    """

    def __init__(self, limit: int, shared: Shared, worker: int, clock: Callable[[], float]) -> None:
        self._limit, self._worker, self._clock = limit, worker, clock
        self._reserved, self._most = shared.column(Figure.RESERVED), shared.column(Figure.MOST)
        self._held, self._asks = shared.column(Figure.HELD), shared.column(Figure.ASKS)
        self._asked_at = 0.0  # when a channel of this worker was refused memory
        self.margin = self._reserved[worker] = limit // (FREE_SHARE * shared.workers)

    @property
    def free(self) -> int:
        """Bytes that no worker has reserved."""
        return max(0, self._limit - sum(self._reserved))

    def lend(self, missing: int, asks: int) -> int:
        """Reserve more memory, and return how much. This worker's budget adds it to its limit.

        Args:
            missing: bytes that are needed. asks: bytes of the channel that needs them.
        """
        lent = min(self.free, missing + self.margin)
        if lent < missing:
            self._asks[self._worker], self._asked_at = asks, self._clock()
        self._reserved[self._worker] += lent
        return lent

    def tick(self, registry: Registry) -> None:
        """Adapt the reservation to what is used, and free memory that other workers need; four times a second."""
        budget, me = registry.budget, self._worker
        self._most[me], self._held[me] = budget.most, len(registry.channels)
        if self._clock() - self._asked_at > ASKED_S:
            self._asks[me] = 0
        idle = budget.limit - budget.used - self.margin  # reserved and not needed: this tick gives it back anyway
        lacking = self._limit // FREE_SHARE - self.free - max(0, idle)
        if lacking > 0 and self._most[me] == max(self._most) > 0:
            self._give(registry, lacking)
            idle = budget.limit - budget.used - self.margin
        change = min(-idle, self.free)
        self._reserved[me] += change
        budget.limit += change

    def _give(self, registry: Registry, lacking: int) -> None:
        """Free this much for other workers, since the largest channel is here."""
        asking = [asks for worker, asks in enumerate(self._asks) if asks and worker != self._worker]
        if asking:
            registry.give(lacking, asks=min(asking), short=True)
        else:
            registry.give(lacking, asks=self._limit * 3 // (4 * sum(self._held)), short=False)


def share_of(limit: int, column: memoryview, worker: int) -> int:
    """How much of a common limit one worker may use at present: what it uses, and an equal share of what is free.

    It may use an equal share of the limit in any case; otherwise the first busy worker would keep everything for ever.
    Until the others have given back what they use above their shares, the limit may be exceeded by this share.

    Args:
        limit: bytes, over all workers. column: what each uses.
    """
    workers = len(column)
    return max(limit // workers, column[worker] + (limit - sum(column)) // workers)


class SharedLimits:
    """The limits of a server, as one of its workers counts in them.

    Args:
        limits: of the server. shared: the memory. worker: this one's number. clock: seconds, the same in all workers.

    Attributes:
        limits: of this worker: those of the server, but an equal share of the places in tables that only bound memory.
        capacities, memory, payers, admission: those that all workers share.
        reading: makes the limit of a channel's readers, which may be at several workers; ``None``: there is no limit.
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
        self.payers = SharedPayers(limits.publisher_bytes, shared.sketches, worker)
        self.admission = SharedAdmission(self.limits, self.capacities.connections, shared.sketches, worker)

    def _reading(self, channel: str) -> Capacity:
        """The limit of a channel's readers, counted by its name, as a client's connections are by its address."""
        sketch, places = self._shared.sketches.readers, self._shared.sketches.places(channel)
        add = partial(sketch.add, self._worker, places)
        return SharedCapacity(self.limits.readers_per_channel, partial(sketch.total, places), add)

    def tick(self, registry: Registry, archive: Archive | None = None) -> None:
        """Adapt this worker's reservations, and give what others need; four times a second."""
        if archive is not None:
            stored = self._shared.column(Figure.STORED)
            stored[self._worker] = archive.bytes
            archive.limit = share_of(archive.retention.total_bytes, stored, self._worker)
        self.memory.tick(registry)
        self.payers.tick()
        for capacity in self.capacities:
            # Clients that go on ask for `full` only: without this, nobody would notice a rise that they cause.
            capacity.admits(join=True)
