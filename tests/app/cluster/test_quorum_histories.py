"""Random histories of a channel over several owners, with a real NATS server: nothing acknowledged is lost or changed.

An owner is killed, dies with some message, or is deposed and does not know it. Then the next one reads the history and
goes on. Ways lose answers and deliver late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from tests.app.cluster.quorums import Cluster, Node, Way, bodies, cluster
from tests.app.core.support import check_registry, content
from tests.support.nats import NatsServer, nats_server
from tests.support.waiting import WITHIN_S
from tricklecast.app.cluster import history
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import COMPLETE, EMPTY, State, Writer

NAME = "c"


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """One server for all histories."""
    with nats_server() as server:
        yield server


@dataclass
class Acknowledged:
    """A publisher was told that its segment is stored."""

    epoch: int
    seq: int
    data: bytes
    key: str | None
    state: State
    by: Node


class History:
    """One channel and its owners.

    Attributes:
        acknowledged: what publishers were told. zombies: owners that are deposed and go on.
    """

    def __init__(self, shared: Cluster, seed: int) -> None:
        self.shared, self.dice = shared, Random(seed)
        self.acknowledged: list[Acknowledged] = []
        self.zombies: list[Node] = []
        self.limits: dict[str, Any] = {"window_segments": self.dice.choice([3, 1000]), "idle_timeout_s": 1e6}
        self.limits["window_age_s"] = 1e6
        self.keys = 0
        self.recoveries = 0

    async def node(self) -> Node:
        dice = Random(self.dice.random())
        way = Way(dice, self.dice.choice([0.0, 0.0, 0.2]))
        return await self.shared.node(way, **self.limits)

    # What publishers and time do.

    def act(self, node: Node) -> None:
        """One step of the history at a node that takes itself for the owner."""
        dice, registry, now = self.dice, node.registry, self.shared.now
        channel = registry.channels.get(NAME)
        if not isinstance(channel, OwnedChannel) or channel.ended:
            self._publish(node, 0)
            return
        opened = [one.writer for one in channel.unclosed if one.writer is not None]
        match dice.randrange(14):
            case 0 | 1 | 2 | 3 | 4:
                self._publish(node, channel.first_free())
            case 5 | 6:
                self._reserve(node, channel.first_free() + dice.choice([0, 0, 1]))
            case 7 | 8 if opened:
                writer = dice.choice(opened)
                channel.append(writer, self._chunks(), now)
            case 9 | 10 if opened:
                writer = dice.choice(opened)
                channel.finish(writer, self._chunks() if dice.random() < 0.5 else [], now)
                self._wait(node, writer)
            case 11 if opened:
                channel.abort(dice.choice(opened), now)
            case 12:
                channel.mark_playlist(f"mark {dice.random()}", now)
            case _:
                match dice.randrange(5):
                    case 0:
                        self._publish(node, channel.next_seq + 5, reset=True)
                    case 1:
                        self.shared.now += dice.choice([0.1, 1.0, 6.0])
                        registry.expire(self.shared.now)
                    case 2:
                        node.quorum._running[NAME].writer.look(1e12)  # a new generation
                    case 3 if opened:
                        registry.close_segment(NAME, dice.choice(opened).segment.seq, now, truncate=True)
                    case _:
                        pass

    def _chunks(self) -> list[bytes]:
        return [self.dice.randbytes(self.dice.choice([1, 30, 300, 3000])) for _ in range(self.dice.randrange(1, 4))]

    def _reserve(self, node: Node, seq: int, **more: Any) -> Writer[OwnedChannel] | None:
        self.keys += 1
        key = self.dice.choice([None, f"k{self.keys}"])
        found = node.registry.reserve(NAME, seq, _Publisher(), self.shared.now, key=key, **more)
        return found if isinstance(found, Writer) else None

    def _publish(self, node: Node, seq: int, **more: Any) -> None:
        writer = self._reserve(node, seq, **more)
        if writer is not None:
            writer.channel.finish(writer, self._chunks() if self.dice.random() < 0.9 else [], self.shared.now)
            self._wait(node, writer)

    def _wait(self, node: Node, writer: Writer[OwnedChannel]) -> None:
        segment, channel = writer.segment, writer.channel
        if segment.state not in (COMPLETE, EMPTY):
            return
        told = Acknowledged(channel.epoch, segment.seq, content(segment), segment.key, segment.state, node)

        def stored(is_stored: bool) -> None:
            if is_stored:
                self.acknowledged.append(told)

        node.quorum.when_stored(stored, channel)

    # Owners.

    async def run(self) -> None:
        """Five owners, one after the other."""
        node, epoch = await self.node(), 1
        node.take()
        for _ in range(5):
            for _ in range(self.dice.randrange(1, 40)):
                self.act(node)
                for zombie in self.zombies:
                    if self.dice.random() < 0.3:
                        self.act(zombie)
                for _ in range(self.dice.choice([0, 0, 1, 5])):
                    await asyncio.sleep(0)
                if self.dice.random() < 0.1:
                    await asyncio.sleep(0.003)
            fate = self.dice.randrange(4)
            if fate == 0:
                await node.kill()
            elif fate == 1:
                node.way.dies_at = node.way.sent + self.dice.randrange(1, 4), self.dice.random() < 0.5
                for _ in range(5):
                    self.act(node)
                    await asyncio.sleep(0.001)
                await node.kill()
            elif fate == 2:
                await node.quorum.flush()
                await node.kill()
            else:
                self.zombies.append(node)
            node, epoch = await self._take_over(node, epoch)
        await self._settle(node)

    async def _take_over(self, before: Node, epoch: int) -> tuple[Node, int]:
        node = await self.node()
        channel = await node.recover(NAME, epoch)
        self.recoveries += channel is not None
        owner = before.registry.channels.get(NAME)
        assert isinstance(owner, OwnedChannel)
        if channel is None:
            assert not [one for one in self.acknowledged if one.epoch == epoch], "what was acknowledged is lost"
            node.registry.remember_ended(NAME, epoch, 0, 1e12)
            return node, epoch + 1
        check_registry(node.registry)
        assert channel.epoch == epoch
        found = bodies(channel)
        self._check(channel)
        for seq, data in found.items():
            if before not in self.zombies and seq in owner.segments:
                segment = owner.segments[seq]
                assert content(segment).startswith(data), "it has no byte that was never published"
                if channel.segments[seq].complete:
                    assert (content(segment), segment.state) == (data, COMPLETE)
        return node, epoch

    def _check(self, channel: OwnedChannel) -> None:
        """All that was acknowledged is there, unless the window has no room for it."""
        for one in self.acknowledged:
            if one.epoch != channel.epoch:
                continue
            segment = channel.segments.get(one.seq)
            if segment is None:
                assert one.seq < channel.floor, "nothing acknowledged is lost"
                assert len(channel.window) == self.limits["window_segments"], "it has left a window that is full"
            else:
                assert (content(segment), segment.key, segment.state) == (one.data, one.key, one.state)

    async def _settle(self, node: Node) -> None:
        """In the end no deposed owner has acknowledged anything that the last one lacks."""
        await asyncio.sleep(0.01)
        channel = node.registry.channels.get(NAME)
        if isinstance(channel, OwnedChannel):
            self._check(channel)
        for zombie in self.zombies:
            zombie.channel(NAME).mark_playlist("it goes on", self.shared.now)
            assert not await zombie.quorum.flush(zombie.channel(NAME)), "a deposed owner acknowledges nothing"


class _Publisher:
    def preempted(self, outcome: object) -> None:
        """It is not there to hear."""


async def run(nats: NatsServer, seed: int) -> History:
    shared = cluster(nats.url)
    done = History(shared, seed)
    try:
        async with asyncio.timeout(WITHIN_S):
            await done.run()
    finally:
        await shared.stop()
    return done


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are short, and generations, too."""
    monkeypatch.setattr(history, "MESSAGE", 700)
    monkeypatch.setattr(history, "SPARE", 1500)
    monkeypatch.setattr(history, "GATHER_S", 0.001)


@pytest.mark.usefixtures("small")
def test_nothing_acknowledged_is_lost(nats: NatsServer) -> None:
    """Ten histories of five owners each."""
    recoveries = acknowledged = 0
    for seed in range(10):
        try:
            done = asyncio.run(run(nats, seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        recoveries += done.recoveries
        acknowledged += len(done.acknowledged)
    assert recoveries > 5
    assert acknowledged > 25


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_nothing_acknowledged_is_lost_in_many_histories(nats: NatsServer) -> None:
    """Two thousand of them."""
    for seed in range(1000, 3000):
        asyncio.run(run(nats, seed))
