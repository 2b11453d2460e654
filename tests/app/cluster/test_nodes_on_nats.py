"""Two nodes and a real directory: claims, reads and writes at any node, takeover and hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.nats import NatsServer, nats_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.directory import Directory, NodeFacts, Place
from tricklecast.app.cluster.feeds import Feeds
from tricklecast.app.cluster.forward import Forwarding
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.peers import Peers
from tricklecast.app.cluster.replicas import Cluster, Replicas
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

LEASE_S = 0.5


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A server for all tests here."""
    with nats_server() as server:
        yield server


class Told:
    """Tells a node's cluster what its directory says, as soon as there is one."""

    def __init__(self) -> None:
        self.cluster: Cluster | None = None

    def moved(self, channel: str, place: Place | None) -> None:
        """Another owner."""
        if self.cluster is not None:
            self.cluster.moved(channel, place)

    def lost(self, channel: str, epoch: int) -> None:
        """Not this node's any more."""
        if self.cluster is not None:
            self.cluster.lost(channel, epoch)

    def given(self, channel: str, epoch: int) -> bool:
        """It is this node's now."""
        return self.cluster is not None and self.cluster.given(channel, epoch)


@dataclass(frozen=True)
class NatsNode:
    """A node.

    Attributes:
        server, cluster, directory, forwarding: it, and its parts. target: a client of it.
    """

    server: LocalServer
    cluster: Cluster
    directory: Directory
    forwarding: Forwarding
    target: Target

    def run(self, coroutine: Any) -> Any:
        """Do something in its event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.server.loop).result(WITHIN_S)

    async def join(self) -> None:
        """Enter the cluster."""
        assert await self.directory.start({}, WITHIN_S)
        while self.directory.degraded:  # noqa: ASYNC110 - a test
            await asyncio.sleep(0.02)

    async def die(self) -> None:
        """Renew the lease no more, as a process that is killed."""
        assert self.directory._running is not None
        self.directory._running.cancel()


@contextmanager
def node(name: str, nats: NatsServer) -> Iterator[NatsNode]:
    """A node of the cluster that this NATS server has the directory of."""
    with local_server(node=name, channel_drain_s=100) as server, server.client() as target:
        plane = server.plane
        url = f"http://127.0.0.1:{server.port}{server.settings.base_path}"

        def make() -> NatsNode:
            told = Told()
            open_bucket = partial(Bucket.open, NatsOptions((nats.url,)), name)
            directory = Directory(open_bucket, NodeFacts(name, url), told, lease_s=LEASE_S)
            peers = Peers(name, lambda: directory.secret.encode())
            forwarding = Forwarding(peers)
            feeds = Feeds(plane, peers, directory.place, directory.owns, forwarding.tls)
            replicas = Replicas(plane, feeds.connect)
            cluster = told.cluster = Cluster(plane, peers, directory, forwarding.begin, feeds, replicas)
            plane.registry.owns, plane.registry.epochs, plane.cluster = cluster.owns, cluster.epoch, cluster
            return NatsNode(server, cluster, directory, forwarding, target)

        made = server.inside(make)
        try:
            made.run(made.join())
            yield made
        finally:
            made.run(made.directory.stop())
            server.inside(made.cluster.end)
            server.inside(made.forwarding.end)


def film(one: NatsNode) -> RemoteChannel:
    """The channel, as a client of this node sees it."""
    return one.target.channel("film")


def test_channels_are_found_moved_and_taken_over(nats: NatsServer) -> None:
    """Each in one epoch, with one owner at a time, whichever node a client asks."""
    with node("a", nats) as a, node("b", nats) as b:
        film(a).publish(0, b"one")
        eventually(lambda: b.directory.place("film"))
        film(b).has(0, b"one", epoch=1).publish(1, b"two").has(1, b"two", epoch=1)
        assert film(b).next_seq() == 2
        assert (a.cluster.feeds.sent, b.directory.owns("film")) == (1, False)

        # Handed over in its epoch: the replica at b is adopted.
        waiting = film(a).waiting(2)
        assert a.run(a.directory.hand_over("film", 1, "b")) is True
        a.server.inside(lambda: a.cluster.gave("film"))
        assert waiting.response().status == 503
        eventually(lambda: b.server.plane.registry.live("film"), what="it is adopted")
        film(b).has(0, b"one", epoch=1).publish(2, b"three").has(2, b"three", epoch=1)
        film(a).has(2, b"three", epoch=1)
        assert b.cluster.feeds.sent == 1, "a holds it now"

        # Ended: its last owner answers, and begins the next epoch.
        film(b).end()
        eventually(lambda: a.directory.former("film"))
        assert film(a).post(3).status == 404
        film(a).has(2, b"three", epoch=1)
        assert film(a).post(0, b"new").status == 200
        film(b).has(0, b"new", epoch=2)

        # Its owner dies: the next POST takes it over, in the next epoch.
        b.run(b.die())
        eventually(lambda: film(a).post(0, b"again").status == 200, what="a has taken it over")
        film(a).has(0, b"again", epoch=3)
        assert (a.server.plane.faults, b.server.plane.faults) == (0, 0)
