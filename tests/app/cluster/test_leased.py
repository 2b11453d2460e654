"""A publisher is answered only while its channel is the node's own beyond doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.cluster.leased import LeasedDurability
from tricklecast.app.core.facts import EndReason
from tricklecast.app.data_plane.responses import unconfirmed_reply
from tricklecast.app.http1.connection import UNREAD_BYTES
from tricklecast.app.tools.conformance.target import RemoteChannel


class Lease:
    """A node's lease, as a test wants it.

    Attributes:
        fresh: as of the protocol. valid: what is heard once a renewal has come back. asked: for which channels.
        news: set when a renewal has come back. cut_off: why NATS is known to be out of reach.
    """

    def __init__(self) -> None:
        self.fresh = self.valid = True
        self.asked: list[object] = []
        self.news = asyncio.Event()
        self.cut_off = ""

    async def confirmed(self) -> bool:
        """Wait for a renewal."""
        return await self.ask(None)

    async def of(self, channel: str, epoch: int) -> bool:
        """The same for one channel."""
        return await self.ask((channel, epoch))

    async def ask(self, about: object) -> bool:
        """Wait for a renewal."""
        self.asked.append(about)
        await self.news.wait()
        return self.valid


@contextmanager
def node(**settings: Any) -> Iterator[tuple[LocalServer, Lease, LeasedDurability, RemoteChannel]]:
    """A server with a lease, and a channel."""
    with local_server(**settings) as server, server.client() as target:
        lease, plane = server.inside(Lease), server.plane
        refusal = lambda: unconfirmed_reply(plane.jitter)  # noqa: E731 - for one line
        durable = LeasedDurability(lease, lease.of, lambda: lease.cut_off, refusal, plane.durability)
        server.inside(lambda: setattr(plane, "durability", durable))
        yield server, lease, durable, target.channel("film")


def doubt(server: LocalServer, lease: Lease) -> Callable[[], None]:
    """Let the lease be in doubt; what this returns lets a renewal come back."""
    lease.fresh = False
    return lambda: server.inside(lease.news.set)


def test_with_a_fresh_lease_nobody_waits() -> None:
    """And nobody is asked."""
    with node() as (_, lease, durable, channel):
        answer = channel.post(0)
        assert (answer.status, answer.get("Lp-Trickle-Durability"), answer.get("Lp-Trickle-Degraded")) == (
            200, "memory", None,
        )  # fmt: skip
        assert (lease.asked, durable.waited, durable.delays) == ([], 0, False)


@pytest.mark.parametrize("valid", [True, False], ids=["its own", "lost"])
def test_in_doubt_a_publisher_is_answered_when_a_renewal_has_come_back(valid: bool) -> None:
    """200 if the channel is still this node's in this epoch; 503 otherwise, and the publisher sends it again."""
    with node() as (server, lease, durable, channel):
        upload, _ = channel.started(0, b"x")
        renew = doubt(server, lease)
        upload.end().silent()
        eventually(lambda: lease.asked == [("film", 1)])
        lease.valid = valid
        renew()
        answer = upload.answer()
        assert answer.status == (200 if valid else 503)
        assert valid or answer.get("Retry-After") is not None
        assert (durable.waited, durable.refused, durable.unconfirmed) == (1, int(not valid), 0)
        lease.valid = True


def test_every_answer_to_a_publisher_asks() -> None:
    """A creation, a closed segment and a retry ask for the channel; of one that has ended only the lease is asked."""
    with node() as (server, lease, _, channel):
        renew = doubt(server, lease)
        renew()
        channel.create()
        assert channel.post(0, headers={"Idempotency-Key": "k"}).status == 200
        assert channel.post(0, headers={"Idempotency-Key": "k"}).status == 200
        assert channel.close(0).status == 200
        assert channel.end().status == 200
        assert lease.asked == [("film", 1)] * 4 + [None]


def test_a_retry_of_a_large_segment_that_is_stored_waits_for_the_lease() -> None:
    """Its body is thrown away meanwhile, however large: to refuse it would make the publisher give the segment up."""
    with node() as (server, lease, _, channel):
        body, keyed = b"x" * (3 * UNREAD_BYTES), {"Idempotency-Key": "k"}
        assert channel.post(0, body, headers=keyed).status == 200
        renew = doubt(server, lease)
        retry = channel.upload(0, body, headers=keyed).end()
        eventually(lambda: lease.asked == [("film", 1)])
        retry.silent()
        renew()
        assert retry.answer().status == 200


def test_a_node_that_is_cut_off_from_nats_says_so() -> None:
    """It answers all the same, since its promise needs no other node."""
    with node() as (server, lease, durable, channel):
        doubt(server, lease)()
        lease.valid, lease.cut_off = False, "NATS is out of reach"
        answer = channel.post(0)
        assert (answer.status, answer.get("Lp-Trickle-Degraded")) == (200, "NATS is out of reach")
        assert (durable.unconfirmed, durable.refused) == (1, 0)
        lease.cut_off = ""
        assert channel.post(1).status == 503
        lease.valid = True


def test_the_lease_is_asked_behind_storage(tmp_path: Path) -> None:
    """A disk that stands still may outlast a lease: a publisher is answered by what the lease is afterwards."""
    with node(data_dir=tmp_path, ack="journal") as (server, lease, durable, channel):
        assert channel.post(0).get("Lp-Trickle-Durability") == "journal"
        assert durable.delays
        storage = server.archive
        assert storage is not None
        when_stored = storage.when_stored

        def slow(then: Callable[[bool], None], channel: object = None) -> None:
            when_stored(then)
            lease.fresh = lease.valid = False

        server.inside(lambda: setattr(storage, "when_stored", slow))
        server.inside(lease.news.set)
        assert channel.post(1).status == 503
        assert lease.asked == [("film", 1)]
        server.inside(lambda: setattr(storage, "when_stored", lambda then, channel=None: then(False)))
        answer = channel.post(2)
        assert (answer.status, b"torage" in answer.body) == (503, True)
        server.inside(lambda: setattr(storage, "when_stored", when_stored))
        lease.fresh = lease.valid = True


@pytest.mark.parametrize("cut_off", ["", "NATS is out of reach"])
def test_a_channel_that_is_lost_while_storage_writes_is_asked_for(tmp_path: Path, cut_off: str) -> None:
    """The lease may be fresh again by then: what the node holds is sure, but this channel is another one's."""
    with node(data_dir=tmp_path, ack="journal") as (server, lease, _, channel):
        channel.publish(0)
        storage, registry = server.archive, server.plane.registry
        assert storage is not None
        when_stored = storage.when_stored

        def slow(then: Callable[[bool], None], about: object = None) -> None:
            when_stored(then)
            registry.end("film", server.plane.clock(), EndReason.MOVED, force=True)

        server.inside(lambda: setattr(storage, "when_stored", slow))
        server.inside(lease.news.set)
        lease.valid, lease.cut_off = False, cut_off
        assert channel.post(1).status == 503
        assert lease.asked == [("film", 1)]
        server.inside(lambda: setattr(storage, "when_stored", when_stored))
        lease.valid = True


def test_a_program_in_the_server_waits_for_the_lease_too() -> None:
    """It hears whether it is sure."""
    with node() as (server, lease, durable, _):
        for valid in (True, False):
            lease.fresh, lease.valid = False, valid
            server.inside(lease.news.set)
            assert asyncio.run_coroutine_threadsafe(durable.flush(), server.loop).result(10) is valid
        lease.fresh = lease.valid = True
        assert asyncio.run_coroutine_threadsafe(durable.flush(), server.loop).result(10)
