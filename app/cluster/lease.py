"""A node's lease: whether it may still say that its channels are its own.

**The problem.** Another node takes over the channels of one that it has not heard of for :data:`LEASE_S`. From then on
a publisher that the old node answers with 200 has been lied to: its bytes are lost. The old node may be alive, and only
have stood still (SIGSTOP, a suspended machine), or be cut off from NATS.

**The idea.** Both sides count on their own clocks, and the old node stops first. It renews its lease each quarter of
the time. An observer counts from when it *sees* a renewal; the node counts from when it *sent* it, which is earlier,
and only for :data:`SAFETY` of the time. So the two clocks may differ in pace by a fifth, and need not agree on the
time. The node's clock goes on while the machine is suspended.

**Three states.**

- ``LEASED``: the last renewal that succeeded was sent less than 1.6 s ago. Answering costs one comparison.
- ``DOUBTFUL``: it is older, and nothing says that NATS is out of reach: this process stood still. A publisher is
  answered when a renewal has come back, and until then not at all (:meth:`Lease.confirmed`).
- ``CUT_OFF``: it is older, and NATS is known to be out of reach: there is no connection, or a renewal had no answer
  *while this process ran*. What needs no decision may go on, and says that it is degraded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, Final

LEASE_S: Final = 2.0
"""A node that others have not heard of for this time is gone. Kubernetes' client-go has 15 s, since its leases are
renewed through a slower store; a publisher here is to write again within 3 s."""

SAFETY: Final = 0.8
"""A node trusts its lease for this part of the time only."""

RENEWALS: Final = 4
"""Renewals in the time of a lease."""

_SLICES: Final = 4
"""An answer is awaited in so many slices of time, see :func:`answered`."""


class LeaseState(Enum):
    """See the module's text."""

    LEASED = "leased"
    DOUBTFUL = "doubtful"
    CUT_OFF = "cut off"


def boottime() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the machine is suspended (Linux only)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


async def answered(answer: asyncio.Future[Any], within_s: float) -> bool:
    """Wait for an answer, but give up only after ``within_s`` in which this process ran.

    A process that stood still for an hour finds its timer over, and the answer in its socket. So the time is cut into
    slices, and each counts once, however long it took: the event loop has read its sockets before the last one is over.
    """
    for _ in range(_SLICES):
        await asyncio.wait((answer,), timeout=within_s / _SLICES)
        if answer.done():
            return True
    return False


class Lease:
    """The lease of this node. :class:`~tricklecast.app.cluster.directory.Directory` renews it.

    Args:
        lease_s: after this time without a renewal, others may take this node's channels.
        clock: the time in seconds.

    Attributes:
        lease_s: as given. wanted: set when somebody waits for a renewal.
        unsure: the channels of this node that may be another node's by now, though the lease is valid.
    """

    def __init__(self, lease_s: float = LEASE_S, clock: Callable[[], float] = boottime) -> None:
        self.lease_s = lease_s
        self.wanted = asyncio.Event()
        self.unsure: dict[str, None] = {}
        self._clock = clock
        self._until = -inf  # until when the last renewal counts
        self._reachable = False  # nothing says that NATS is out of reach
        self._waiting: set[asyncio.Future[bool]] = set()  # for the next renewal

    @property
    def fresh(self) -> bool:
        """Whether every channel that this node owns is its own beyond doubt: then a publisher may be answered."""
        return not self.unsure and self._clock() < self._until

    @property
    def valid(self) -> bool:
        """Whether the last renewal counts. A single channel may be in doubt all the same (:attr:`unsure`)."""
        return self._clock() < self._until

    @property
    def state(self) -> LeaseState:
        """At this moment."""
        if self.valid:
            return LeaseState.LEASED
        return LeaseState.DOUBTFUL if self._reachable else LeaseState.CUT_OFF

    def renewed(self, sent_at: float) -> None:
        """A renewal that was sent at this time has succeeded."""
        self._until = sent_at + SAFETY * self.lease_s
        self._reachable = True
        self.wanted.clear()
        self._answer(True)

    def cut_off(self) -> None:
        """NATS is out of reach. What was renewed before still counts as long as it would have."""
        self._reachable = False
        self._answer(False)

    def lost(self) -> None:
        """Another node has ended this lease: no earlier renewal counts any more."""
        self._until = -inf

    async def confirmed(self, within_s: float | None = None) -> bool:
        """Whether the lease is valid; in doubt a renewal is awaited, for half of the lease's time if none is given."""
        if self.valid or not self._reachable:
            return self.valid
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        self.wanted.set()
        try:
            await answered(answer, self.lease_s / 2 if within_s is None else within_s)
        finally:
            self._waiting.discard(answer)
        return self.valid

    def _answer(self, renewed: bool) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(renewed)
