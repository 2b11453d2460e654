"""Channels move between nodes, with a real directory: what clients see of it, what is refused, drain and placement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from tests.app.cluster.test_nodes_on_nats import NatsNode, film, node
from tests.support.nats import NatsServer, nats_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cluster.moving import Moved, Outcome
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.publisher import Publisher
from tricklecast.subscriber import Subscriber


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A server for all tests here."""
    with nats_server() as server:
        yield server


@contextmanager
def nodes(nats: NatsServer, names: str, **settings: Any) -> Iterator[list[NatsNode]]:
    """Nodes with these one-letter names, which know each other."""
    with ExitStack() as stack:
        found = [stack.enter_context(node(name, nats, **settings)) for name in names]
        for one in found:
            eventually(partial(_knows_all, one, names), what="the nodes know each other")
        yield found
        assert [one.server.plane.faults for one in found] == [0] * len(found)


def _knows_all(one: NatsNode, names: str) -> bool:
    return all(map(one.directory.reachable, names))


def move(one: NatsNode, to: str, channel: str = "film", **options: Any) -> Moved:
    """Move a channel of this node."""
    moved = one.run(one.member.moving.move(channel, to, **options))
    assert isinstance(moved, Moved)
    return moved


def knows(one: NatsNode, owner: str, channel: str = "film") -> None:
    """Wait until a node knows where a channel is."""
    eventually(lambda: (place := one.directory.place(channel)) is not None and place.node == owner, what=owner)


def test_neither_readers_nor_the_publisher_see_a_move(nats: NatsServer) -> None:
    """The publisher has its next segment open at the old owner; readers wait at all nodes, and one is in the middle."""
    with nodes(nats, "abc", cluster_name="unseen") as (a, b, c):
        film(a).publish(0, b"zero")
        for one in (b, c):
            knows(one, "a")
        upload, reader = film(a).started(1, b"one, ")
        next_one, from_c = film(a).preconnect(2), film(c).preconnect(3)
        eventually(lambda: len(a.server.plane.registry.channels["film"].unclosed) == 3, what="both are connected")
        waiting = [film(one).waiting(2) for one in (a, b, c)]
        middle = [film(one).arrived(1, b"one, ") for one in (b, c)]
        moving = asyncio.run_coroutine_threadsafe(a.member.moving.move("film", "b"), a.server.loop)
        eventually(lambda: a.server.plane.parked[ParkedFor.REPLICA], what="publishers wait")
        upload.chunk(b"and all").end()
        assert upload.answer().status == 200
        for each in (reader, *middle):
            each.ends(b"and all")
        assert moving.result(WITHIN_S) == Moved(Outcome.MOVED)
        next_one.chunk(b"two").end()
        assert next_one.answer().status == 200
        assert [each.response().body for each in waiting] == [b"two"] * 3
        from_c.chunk(b"three").end()
        answer = from_c.answer()
        assert (answer.status, answer.get("Lp-Trickle-Node")) == (200, b.directory.nodes["b"].url)
        for one in (a, b, c):
            film(one).has(3, b"three", epoch=1).has(0, b"zero", epoch=1)
        assert (b.directory.owns("film"), a.directory.owns("film")) == (True, False)
        assert sorted(a.member.replicas.held) == ["film"], "it holds it now"
        assert a.server.plane.registry.capacities.channels.used == 0
        assert (a.member.peers.loops, a.member.moving.under_way) == (0, {})
        assert dict(a.member.moving.counters) == {"moved": 1}


def test_a_channel_that_moves_back_and_forth(nats: NatsServer) -> None:
    """Each byte arrives once and in order, in one epoch, at both nodes; no client has to try anything again."""
    with nodes(nats, "ab", cluster_name="to_and_fro") as (a, b):
        ended = asyncio.Event()

        async def publish(publisher: Publisher) -> int:
            number = 0
            while not ended.is_set():
                async with publisher.segment() as segment:
                    for part in range(3):
                        await segment.write(b"%d.%d " % (number, part) * 100)
                number += 1
            return number

        async def read(one: NatsNode) -> list[tuple[int, int | None, bytes]]:
            async with Subscriber(one.target_url("film"), start=0) as subscriber:
                found = [(segment.seq, segment.epoch, await segment.read()) async for segment in subscriber]
                seen = subscriber.statistics()
                assert (seen.retries, seen.gaps, seen.truncated) == (0, 0, 0), seen
            return found

        async def move_all() -> None:
            owner, other, moves = a, b, 0
            while moves < 12:
                moving = owner.member.moving.move("film", other.directory.me.name)
                moved = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(moving, owner.server.loop))
                if moved.outcome is Outcome.UNDECIDED:  # on a busy machine the lease is in doubt now and then
                    continue
                assert moved == Moved(Outcome.MOVED)
                owner, other, moves = other, owner, moves + 1
            ended.set()

        async def run() -> None:
            async with Publisher(a.target_url("film")) as publisher:
                async with publisher.segment() as segment:
                    await segment.write(b"begin")
                readers = [asyncio.create_task(read(one)) for one in (a, b)]
                number, _ = await asyncio.gather(publish(publisher), move_all())
                statistics = publisher.statistics()
                assert (statistics.retries, statistics.lost, statistics.dropped) == (0, 0, 0), statistics
            bodies = [
                b"begin",
                *(b"".join(b"%d.%d " % (one, part) * 100 for part in range(3)) for one in range(number)),
            ]
            wanted = [(seq, 1, body) for seq, body in enumerate(bodies)]
            for reader in readers:
                assert await reader == wanted

        asyncio.run(run())
