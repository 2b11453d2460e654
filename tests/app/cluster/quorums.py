"""Nodes that write the histories of their channels to a real NATS server, and what can go wrong between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from random import Random
from typing import Any

from tests.app.core.support import content, grant
from tests.support.waiting import WITHIN_S
from tricklecast.app.cluster.jetstream import Conflict, Connection, NatsOptions, Unreachable
from tricklecast.app.cluster.quorum import Quorum
from tricklecast.app.cluster.streams import StreamOptions
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Segment

_buckets = count()


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop, and end what it has left."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(WITHIN_S):
                await test(*arguments, **named)

        asyncio.run(main())

    return run


@dataclass
class Way:
    """The way of one node to NATS, and what happens on it.

    Attributes:
        dice: for faults, each of which has this chance. closed: nothing arrives.
        dies_at: the message with which the node dies, and whether the message still arrives.
        meanwhile: called while a message is on its way.
        sent: messages that were to be published. stored: those of which an answer has come.
    """

    dice: Random = field(default_factory=lambda: Random(0))
    chance: float = 0.0
    dies_at: tuple[int, bool] | None = None
    closed: bool = False
    sent: int = 0
    stored: list[tuple[Any, ...]] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    late: list[asyncio.Task[Any]] = field(default_factory=list)

    async def publish(self, connection: Connection, *about: Any) -> int:
        self.sent += 1
        self.meanwhile()
        if self.closed:
            raise Unreachable("a fault of the test")
        if self.dies_at is not None and self.sent >= self.dies_at[0]:
            if self.sent == self.dies_at[0] and self.dies_at[1]:
                await Connection.publish(connection, *about)
            await asyncio.get_running_loop().create_future()
        if self.dice.random() >= self.chance:
            seq = await Connection.publish(connection, *about)
            self.stored.append(about)
            return seq
        fate = self.dice.randrange(3)
        if fate == 0:  # its answer gets lost
            await Connection.publish(connection, *about)
        elif fate == 1:  # it arrives later, when nobody expects it
            self.late.append(asyncio.ensure_future(self._later(connection, *about)))
        raise Unreachable("a fault of the test")

    async def _later(self, connection: Connection, *about: Any) -> None:
        await asyncio.sleep(self.dice.uniform(0, 0.02))
        with suppress(Conflict, Unreachable):
            await Connection.publish(connection, *about)


@dataclass(eq=False)
class Node:
    """A node with its registry and its histories.

    Attributes:
        lost: channels that it was told to have lost. asked: how often the directory was asked.
    """

    cluster: Cluster
    name: str
    registry: Registry
    way: Way = field(default_factory=Way)
    lost: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        cluster = self.cluster
        self.quorum = Quorum(
            cluster.nats,
            self.registry,
            cluster.clock,
            name=self.name,
            to_us=lambda at: round(at * 1e6),
            to_time=lambda at_us: at_us / 1e6,
            confirmed=self._confirmed,
            lost=lambda *about: self.lost.append(about),
            options=cluster.options,
        )
        connected = self.quorum.streams.connected

        async def through() -> Connection:
            connection = await connected()
            connection.publish = lambda *about: self.way.publish(connection, *about)  # type: ignore[method-assign]
            return connection

        self.quorum.streams.connected = through  # type: ignore[method-assign]

    async def _confirmed(self, name: str, epoch: int) -> bool:
        await asyncio.sleep(0)
        return self.cluster.owners.get(name, self) is self

    def take(self, name: str = "c") -> None:
        """The directory gives it a channel."""
        self.cluster.owners[name] = self

    async def recover(self, name: str = "c", epoch: int = 1) -> OwnedChannel | None:
        """Take a channel over."""
        self.take(name)
        return await self.quorum.recover(name, epoch)

    def channel(self, name: str = "c") -> OwnedChannel:
        """A channel that it owns."""
        channel = self.registry.channels[name]
        assert isinstance(channel, OwnedChannel)
        return channel

    def publish(self, seq: int, data: bytes = b"x", name: str = "c", **options: Any) -> Segment:
        """A POST, which may wait for an acknowledgement then."""
        writer = grant(self.registry, name, seq, self.cluster.clock(), **options)
        writer.channel.finish(writer, [data] if data else [], self.cluster.clock())
        return writer.segment

    async def stored(self, name: str = "c") -> bool:
        """Wait for the acknowledgement of all until now."""
        return await self.quorum.flush(self.channel(name))

    async def kill(self) -> None:
        """It is gone, with all that it has not sent."""
        for task in [*self.quorum.streams._tasks, *self.way.late]:
            task.cancel()
        await asyncio.sleep(0)
        if (connection := self.quorum.streams._connection) is not None:
            await connection.close()


@dataclass
class Cluster:
    """Several nodes, and the table that stands for their directory.

    Attributes:
        owners: by the channel's name; anybody owns one that is not there.
    """

    nats: NatsOptions
    options: StreamOptions = field(default_factory=StreamOptions)
    owners: dict[str, Node] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    now: float = 1000.0

    def clock(self) -> float:
        return self.now

    async def node(self, way: Way | None = None, *, start: bool = False, **limits: Any) -> Node:
        """One more node."""
        name = f"n{len(self.nodes)}"
        registry = Registry(Limits(**limits), autocreate=True, instance=name)
        node = Node(self, name, registry, way or Way())
        self.nodes.append(node)
        if start:
            assert await node.quorum.start()
        return node

    async def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            await node.kill()


def cluster(*urls: str, **options: Any) -> Cluster:
    """A cluster with streams of its own."""
    nats = NatsOptions(urls, bucket=f"t{next(_buckets)}")
    return Cluster(nats, StreamOptions(**{"max_bytes": 512 << 20, **options}))


def bodies(channel: OwnedChannel) -> Mapping[int, bytes]:
    """The bytes of all segments that have some."""
    return {seq: content(segment) for seq, segment in channel.segments.items() if segment.size}
