"""Publishers of a node with ``--ack quorum``, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.nats import NatsServer, nats_server
from tricklecast.app.clock import to_time, to_us
from tricklecast.app.cluster import history, jetstream
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.quorum import Quorum
from tricklecast.app.cluster.streams import StreamOptions
from tricklecast.app.data_plane.context import Durability
from tricklecast.app.tools.conformance.target import RemoteChannel

_buckets = count()


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A server of NATS."""
    with nats_server() as server:
        yield server


async def _owned(channel: str, epoch: int) -> bool:
    return True


@contextmanager
def node(nats: NatsServer, **settings: Any) -> Iterator[tuple[LocalServer, Quorum, RemoteChannel]]:
    """A server whose publishers are answered by the quorum, and a channel."""
    with local_server(**settings) as server, server.client() as target:
        plane = server.plane

        def begin() -> Quorum:
            quorum = Quorum(
                NatsOptions((nats.url,), bucket=f"p{next(_buckets)}"),
                plane.registry,
                plane.clock,
                name="n",
                to_us=to_us,
                to_time=to_time,
                confirmed=_owned,
                lost=lambda channel, epoch: None,
                options=StreamOptions(max_bytes=512 << 20),
            )
            durability: Durability = quorum
            plane.durability = durability
            return quorum

        quorum = server.inside(begin)
        try:
            yield server, quorum, target.channel("film")
        finally:
            asyncio.run_coroutine_threadsafe(quorum.stop(), server.loop).result(30)


def test_a_publisher_is_told_that_its_segment_is_stored(nats: NatsServer) -> None:
    """So is one that comes back for it, one that closes a segment, and one that ends the channel."""
    with node(nats) as (_, quorum, channel):
        key = (("Idempotency-Key", "k"),)
        for answer in (
            channel.post(0, b"a", headers=key),
            channel.post(0, b"a", headers=key),
            channel.close(0),
            channel.ask("DELETE"),
        ):
            assert (answer.status, answer.get("Lp-Trickle-Durability")) == (200, "quorum")
        assert quorum.counters["acknowledged"] >= 2


def test_without_nats_a_publisher_gets_503(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segment stays: when NATS is there again, its retry is answered."""
    monkeypatch.setattr(history, "ACK_S", 0.2)
    monkeypatch.setattr(jetstream, "ANSWER_S", 0.2)
    with node(nats) as (_, quorum, channel):
        key = (("Idempotency-Key", "k"),)
        while channel.post(0, b"a").status != 200:
            pass
        nats.freeze()
        answer = channel.post(1, b"b", headers=key)
        assert answer.status == 503
        assert answer.get("Retry-After") is not None
        nats.thaw()
        while (answer := channel.post(1, b"b", headers=key)).status == 503:
            pass
        assert (answer.status, answer.get("Lp-Trickle-Durability")) == (200, "quorum")
        assert quorum.counters["unacknowledged"] >= 1
