"""Channels move between the nodes of a cluster, in the same epoch, and nobody sees a gap.

**Use.** Each node has one :class:`Moving`. :meth:`Moving.move` gives a channel of this node to another one,
:meth:`Moving.drain` gives all of them away before the node stops, and :meth:`Moving.look` keeps the load up to date by
which new channels are placed. All of it is done by the owner: other nodes ask it over its HTTP API.

**One move**, from the owner to its heir:

1. The owner asks the heir for ``_cluster/adopt/CHANNEL`` (:mod:`~tricklecast.app.cluster.feeds`). The heir follows the
   channel as any node that has readers of it, and says ``ready`` when it holds all that was there.
2. From now on requests that would change the channel wait at the owner, also publishers that are connected and have not
   sent a byte. The segments that are being written end. Then nothing changes any more, and the owner says how far it
   has come: epoch, facts, bytes. With ``--ack quorum`` the history has all of it by then.
3. The heir says ``whole`` when it has all of that. Now the owner writes the heir's name into the directory. This is the
   decision; until then the owner may go on as if nothing had been.
4. The heir hears of it from the directory, owns what it has held, and says ``owner``. The one before holds the channel
   from now on, and follows the new one. Its readers stay in the segments in which they are, those of the heir and of
   any other node, too. Requests that have waited go on: at the new owner.

If the heir is lost between 3 and 4, that is the loss of an owner. If NATS gives no answer in step 3, the channel waits
until it is known who has it.

**Placement.** A new channel begins where its publisher comes to, unless this node has 1.5 times as much to do as the
mean of all nodes, or drains. Then the node that has least to do gets the request, and claims the channel. The load of a
node is the number of its channels, and one more for each :data:`RATE` that it receives and sends; :data:`LEAST` is
added when loads are compared, so that a few channels are no reason. A channel that is there never moves by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from math import inf
from typing import Final, NamedTuple

from tricklecast.app.cluster.directory import Directory, Unavailable
from tricklecast.app.cluster.feeds import ADOPT
from tricklecast.app.cluster.quorum import Quorum
from tricklecast.app.cluster.replicas import Cluster
from tricklecast.app.cluster.view import SERVING, Node, Place
from tricklecast.app.core.facts import Fact
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.data_plane.context import DataPlane, Serve
from tricklecast.app.replication.transport import put
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import is_reserved

logger = logging.getLogger("tricklecast.cluster")

MOVE_S: Final = 10.0
"""A move waits so long for the end of the segments that are being written."""

READY_S: Final = 30.0
"""The heir has to hold the whole channel after this time. Meanwhile publishers and readers go on."""

STEP_S: Final = 5.0
"""Any other step of a move is given up after this time."""

DRAIN_S: Final = 20.0
"""All channels of a node have moved after this time, or stay."""

AT_ONCE: Final = 8
"""Channels that are fetched from a node at a time, while it gives many away. Then all wait for the ends of segments."""

LOOK_S: Final = 0.005
"""How often an heir looks whether the next step has come."""

LOAD_S: Final = 0.5
"""How often the load of this node is told; the lease is renewed as often."""

RATE: Final = 100_000
"""Bytes per second that count as much as a channel."""

LEAST: Final = 10.0
MUCH: Final = 1.5
"""A node has too much to do from this many times the mean on; each node counts so much more than it has."""


class Outcome(StrEnum):
    """How an attempt to move a channel has ended."""

    MOVED = "moved"
    NOT_OWNER = "not_owner"
    """This node does not own the channel, or there is none of this name."""
    NO_NODE = "no_node"
    """There is no such node, or it cannot be reached, or it drains."""
    BUSY = "busy"
    """A segment was written for all of the time, or the channel is being moved already. Nothing has changed."""
    REFUSED = "refused"
    """The other node did not take it. Nothing has changed."""
    UNDECIDED = "undecided"
    """NATS has not answered: the channel is this node's or the other one's as soon as it does."""


class Moved(NamedTuple):
    """The result of a move; the text is for people, and says why it was not possible."""

    outcome: Outcome
    detail: str = ""


class Drained(NamedTuple):
    """The result of a drain: how many channels have moved, and why each of the others has not."""

    moved: int
    left: dict[str, Moved]


class _Failed(TrickleError):
    """A move is not possible."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.moved = Moved(outcome, detail)


class Moving:
    """Gives channels of this node to other nodes, and takes theirs.

    Args:
        plane: of this node. directory: knows the nodes. cluster: what is held of others.
        quorum: the histories of this node, if it has any.

    Attributes:
        under_way: channels that are being moved at present, and to which node each.
        counters: how many moves have ended, by their :class:`Outcome`.
        placed: requests for a new channel that went to another node, since this one has much more to do, or drains.
    """

    def __init__(self, plane: DataPlane, directory: Directory, cluster: Cluster, quorum: Quorum | None = None) -> None:
        self.under_way: dict[str, str] = {}
        self.counters: Counter[str] = Counter()
        self.placed = 0
        self._plane, self._directory, self._cluster, self._quorum = plane, directory, cluster, quorum
        self._moves: set[asyncio.Task[Moved]] = set()
        self._fetching = asyncio.Semaphore(AT_ONCE)
        self._told_at = plane.clock()  # when the load was told
        self._bytes = 0  # received and sent until then
        self._rate = 0.0  # bytes per second
        cluster.feeds.adopt, cluster.elsewhere = self._adopt, self._elsewhere

    async def move(self, channel: str, to: str, *, within_s: float = MOVE_S, force: bool = False) -> Moved:
        """Give a channel of this node to another node, in the same epoch.

        Publishers that begin a segment meanwhile wait, and go on at the other node; a segment that is being written
        ends first. Readers stay where they are.

        Args:
            to: the name of the other node. within_s: how long it may take until the segment has ended.
            force: after that time its publisher is sent away, and may send it again.
        """
        if channel in self.under_way:
            return self._over(Moved(Outcome.BUSY, f"{channel!r} is being moved to {self.under_way[channel]!r} already"))
        self.under_way[channel] = to
        task = asyncio.get_running_loop().create_task(self._move(channel, to, within_s, force))
        self._moves.add(task)
        task.add_done_callback(partial(self._done, channel))
        await asyncio.wait((task,), timeout=READY_S + within_s + 4 * STEP_S)
        if not task.done():
            return Moved(Outcome.UNDECIDED, "NATS has not answered; look again where the channel is")
        return Moved(Outcome.REFUSED, "this node stops") if task.cancelled() else task.result()

    async def drain(self, within_s: float = DRAIN_S) -> Drained:
        """Give all channels away, to the nodes that have least to do; from now on this node takes no new ones.

        Args:
            within_s: when this time is over, segments that are still written are cut off: their publishers are sent
                away, and may send them again.
        """
        directory, registry = self._directory, self._plane.registry
        directory.me.draining = True
        directory.lease.wanted.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        left: dict[str, Moved] = {}
        moved = 0

        async def give(channel: str) -> None:
            nonlocal moved
            left[channel] = Moved(Outcome.NO_NODE, "no other node takes channels")
            for node in self._others()[:2]:
                node.load += 1  # until it tells its load itself
                left_s = max(0.0, until - loop.time())
                left[channel] = await self.move(channel, node.name, within_s=left_s, force=True)
                if left[channel].outcome is Outcome.MOVED:
                    moved += 1
                    del left[channel]
                    return

        # Others may begin until every node knows that this one takes none.
        while (names := owned_channels(registry).keys() - left.keys() - self.under_way.keys()) and loop.time() < until:
            await asyncio.gather(*map(give, names))
        if moved or left:
            logger.info("%d channels have moved to other nodes, %d have not", moved, len(left))
        return Drained(moved, left)

    def look(self, now: float) -> None:
        """Tell the others how much this node has to do. Call it a few times a second."""
        passed_s = now - self._told_at
        if passed_s >= LOAD_S:
            size = self._plane.bytes_in + self._plane.bytes_out
            self._rate, self._bytes, self._told_at = (size - self._bytes) / passed_s, size, now
            self._directory.me.load = round(self._load, 1)

    def end(self) -> None:
        """Move nothing any more."""
        for task in list(self._moves):
            task.cancel()

    # The owner's side.

    async def _move(self, name: str, to: str, within_s: float, force: bool) -> Moved:
        directory, registry = self._directory, self._plane.registry
        owned, node = registry.live(name), directory.nodes.get(to)
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        if owned is None or is_reserved(name) or not directory.owns(name):
            return Moved(Outcome.NOT_OWNER, f"this node does not own {name!r}")
        if node is None or node.name == directory.me.name:
            return Moved(Outcome.NO_NODE, f"there is no other node {to!r}")
        if node.state != SERVING or not directory.reachable(to):
            state = "silent" if node.state == SERVING else node.state
            return Moved(Outcome.NO_NODE, f"node {to!r} takes no channels: it is {state}")
        writer, is_released = None, False
        try:
            async with self._fetching:
                reader, writer = await self._cluster.feeds.ask(_place(node), ADOPT, name)
                await _hears(reader, b"ready\n", READY_S)
            self._cluster.part(owned)
            await self._until_whole(owned, until - loop.time(), force)
            if self._quorum is not None:
                is_released = True
                if not await self._quorum.release(owned):
                    raise _Failed(Outcome.UNDECIDED, "NATS has not stored all of the channel's history: it has stayed")
            put(writer, [b"%d %d %d\n" % (owned.epoch, owned.facts, owned.bytes_in)])
            await _hears(reader, b"whole\n")
            await self._decide(owned, to)
            with suppress(OSError, _Failed):  # if it is lost, this is the loss of an owner
                await _hears(reader, b"owner\n")
            return Moved(Outcome.MOVED)
        except _Failed as error:
            return error.moved
        except (OSError, TrickleError) as error:
            return Moved(Outcome.REFUSED, f"{to!r} did not take it: {error or type(error).__name__}")
        finally:
            if writer is not None:
                writer.transport.abort()
            place = directory.place(name)
            if place is not None and place.node != directory.me.name:
                self._cluster.gave(name)
            elif is_released and self._quorum is not None and registry.live(name) is owned:
                self._quorum.begin(owned)
            self._cluster.stay(name)

    async def _until_whole(self, owned: OwnedChannel, within_s: float, force: bool) -> None:
        """Wait until nobody writes to the channel."""
        changed = asyncio.Event()

        def hear(fact: Fact) -> None:
            changed.set()

        owned.follow(hear)
        try:
            async with asyncio.timeout(within_s):
                while not owned.ended and any(segment.writer is not None for segment in owned.unclosed):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            if not force:
                text = "a segment was being written for all of the time: move the channel later, or wait for longer"
                raise _Failed(Outcome.BUSY, text) from None
            self._cluster.refuse_publishers(owned)
        finally:
            owned.unfollow(hear)
        if owned.ended:
            raise _Failed(Outcome.NOT_OWNER, f"{owned.name!r} has ended")

    async def _decide(self, owned: OwnedChannel, to: str) -> None:
        """Write the new owner into the directory.

        Raises:
            _Failed: it is not the owner.
        """
        directory, name = self._directory, owned.name
        await directory.lease.confirmed()  # this process may have stood still
        decision = False if owned.ended else await directory.hand_over(name, owned.epoch, to)
        if isinstance(decision, Unavailable):
            logger.warning("nobody knows whether %r was handed over to %r: %s", name, to, decision.why)
            waiting = asyncio.get_running_loop().call_later(STEP_S, self._cluster.stay, name)
            try:
                while (place := directory.place(name)) is not None and place.node == directory.me.name:
                    if directory.owns(name):
                        raise _Failed(Outcome.UNDECIDED, "NATS did not answer in time: the channel has stayed")
                    await asyncio.sleep(10 * LOOK_S)
            finally:
                waiting.cancel()
            decision = place is not None and place.node == to
        if not decision and directory.owns(name):
            raise _Failed(Outcome.NO_NODE, f"{to!r} takes no channels any more")
        if not decision:
            raise _Failed(Outcome.NOT_OWNER, f"another node has {name!r}, or it has ended")

    def _done(self, channel: str, task: asyncio.Task[Moved]) -> None:
        self._moves.discard(task)
        self.under_way.pop(channel, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._plane.fault("while a channel was moved", error)
        elif not task.cancelled():
            self._over(task.result())

    def _over(self, moved: Moved) -> Moved:
        self.counters[moved.outcome] += 1
        return moved

    # The heir's side.

    def _adopt(self, name: str) -> Serve:
        return partial(self._follow, name)

    async def _follow(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Follow a channel that another node gives to this one. If that breaks off, nothing has been."""
        replicas, registry = self._cluster.replicas, self._plane.registry
        if (held := replicas.want(name)) is None:
            logger.warning("%r is not taken: too many channels are held", name)
            writer.transport.abort()
            return
        held.wanted += 1

        def has(epoch: int, facts: int, size: int) -> bool:
            channel = held.replica.channel
            return (
                channel is not None and channel.epoch == epoch and channel.facts >= facts and channel.bytes_in >= size
            )

        def let_go() -> None:
            held.wanted -= 1
            held.whole = held.whole and held.wanted > 0

        try:
            await _until(lambda: held.replica.live, READY_S)
            put(writer, [b"ready\n"])
            epoch, facts, size = map(int, (await reader.readline()).split())
            await _until(lambda: has(epoch, facts, size))
            held.whole = True
            put(writer, [b"whole\n"])
            await _until(lambda: registry.live(name) is not None, inf)  # as long as the owner is there
            put(writer, [b"owner\n"])
            await reader.read()
        except (OSError, ValueError) as error:
            logger.info("%r is not taken: %s", name, error or type(error).__name__)
        finally:
            # If the owner is gone, its decision may still be on its way.
            asyncio.get_running_loop().call_later(STEP_S, let_go)
            writer.transport.abort()

    # Placement.

    @property
    def _load(self) -> float:
        return self._plane.registry.capacities.channels.used + self._rate / RATE

    def _others(self) -> list[Node]:
        """The other nodes that take channels, those first that have least to do."""
        directory = self._directory
        names = (name for name in directory.nodes if name != directory.me.name and directory.reachable(name))
        nodes = (directory.nodes[name] for name in names)
        return sorted((node for node in nodes if node.state == SERVING), key=lambda node: node.load)

    def _elsewhere(self) -> Place | None:
        """The node at which a new channel is to begin, if that is not this one."""
        others = self._others()
        if not others:
            return None
        mine, least = self._load, others[0]
        mean = (mine + sum(node.load for node in others)) / (1 + len(others))
        if not self._directory.me.draining and mine + LEAST < MUCH * (mean + LEAST):
            return None
        least.load += 1  # until it tells its load itself
        self.placed += 1
        return _place(least)


def owned_channels(registry: Registry) -> dict[str, int]:
    """The channels that this node owns, with their epochs: after a restart those of its data directory."""
    live = (channel for channel in registry.channels.values() if isinstance(channel, OwnedChannel))
    return {one.name: one.epoch for one in live if not one.ended and not is_reserved(one.name)}


def _place(node: Node) -> Place:
    return Place(node.name, node.url, 0, True)


async def _hears(reader: asyncio.StreamReader, word: bytes, within_s: float | None = None) -> None:
    """Wait for the next word of the heir."""
    try:
        async with asyncio.timeout(within_s or STEP_S):
            if await reader.readline() != word:
                raise _Failed(Outcome.REFUSED, f"the other node did not get {word.decode().strip()!r}")
    except TimeoutError:
        raise _Failed(Outcome.REFUSED, f"the other node was not {word.decode().strip()!r} in time") from None


async def _until(condition: Callable[[], bool], within_s: float = STEP_S) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - it hears of a channel that moves, which is rare
            await asyncio.sleep(LOOK_S)
