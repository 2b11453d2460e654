"""A publisher of a node is answered 200 only while the channel is the node's own beyond doubt.

A process that stood still, or was cut off from NATS, may have lost its channels to another node without knowing. So the
last thing before each 200, behind storage, is a look at the node's lease (:mod:`~tricklecast.app.cluster.lease`). As
long as the lease is fresh, that is one comparison. In doubt the publisher waits until a renewal has come back, and then
hears whether its channel is still this node's. Where NATS is known to be out of reach, and the promise needs no other
node, it may be answered all the same, and is told that the promise is weaker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import Durability
from tricklecast.app.data_plane.responses import Reply

Then = Callable[[bool | Reply], None]


class Lease(Protocol):
    """What is asked of the lease (:class:`~tricklecast.app.cluster.lease.Lease`)."""

    @property
    def fresh(self) -> bool:
        """Whether every channel that this node owns is its own beyond doubt."""

    async def confirmed(self) -> bool:
        """Whether the lease is valid; in doubt a renewal is awaited, for a time."""


class LeasedDurability:
    """Storage behind a node's lease (:class:`app.data_plane.context.Durability`).

    Args:
        lease: of this node.
        confirmed: whether a channel is still this node's, in this epoch; in doubt it asks, for a time.
        degraded: why publishers are answered though the lease is not confirmed; empty: they are refused.
        refusal: makes the response to those that are refused.
        storage: of this node, if it has any.
        fences: whether nothing may be published while the lease is in doubt: another node may go on in the same epoch.

    Attributes:
        storage: as given. waited: publishers that had to wait for a renewal. refused: those of them that were refused.
        unconfirmed: those that were answered though it was not confirmed.
    """

    def __init__(
        self,
        lease: Lease,
        confirmed: Callable[[str, int], Awaitable[bool]],
        degraded: Callable[[], str],
        refusal: Callable[[], Reply],
        storage: Durability | None = None,
        *,
        fences: bool = False,
    ) -> None:
        self.storage = storage
        self.waited = self.refused = self.unconfirmed = 0
        self._fences = fences
        self._lease, self._confirmed, self._degraded, self._refusal = lease, confirmed, degraded, refusal
        self._asking: set[asyncio.Task[None]] = set()  # one for each publisher that waits

    @property
    def durability(self) -> str:
        """The promise of a response to a publisher at present."""
        return "memory" if self.storage is None else self.storage.durability

    @property
    def degraded(self) -> str:
        """Why the promise is weaker than usual; empty if it is not."""
        return "" if self._lease.fresh else self._degraded()

    @property
    def fenced(self) -> bool:
        """Whether nothing may be published at present."""
        return self._fences and not self._lease.fresh

    @property
    def delays(self) -> bool:
        """Whether publishers are answered by :meth:`when_stored`, not at once."""
        return not self._lease.fresh or (self.storage is not None and self.storage.delays)

    def when_stored(self, callback: Then, channel: Channel | None = None) -> None:
        """Call back when storage has all changes until now and the lease is sure; see the module's text."""
        living = None if channel is None or channel.ended else channel
        if self.storage is not None and self.storage.delays:
            self.storage.when_stored(partial(self._stored, callback, living), channel)
        else:
            self._stored(callback, living, True)

    async def flush(self) -> bool:
        """Wait for the result of :meth:`when_stored`; whether it is a success."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.when_stored(lambda stored: None if done.done() else done.set_result(stored is True))
        return await done

    def _stored(self, callback: Then, living: Channel | None, stored: bool | Reply) -> None:
        # A channel that has ended while storage wrote may have been lost to another node.
        if stored is not True or (self._lease.fresh and (living is None or not living.ended)):
            callback(stored)
            return
        self.waited += 1
        task = asyncio.get_running_loop().create_task(self._ask(callback, living))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, callback: Then, living: Channel | None) -> None:
        if living is None:
            sure = await self._lease.confirmed()
        else:
            sure = await self._confirmed(living.name, living.epoch)
        if sure:
            callback(True)
        elif self._degraded() and (living is None or not living.ended):
            self.unconfirmed += 1
            callback(True)
        else:
            self.refused += 1
            callback(self._refusal())
