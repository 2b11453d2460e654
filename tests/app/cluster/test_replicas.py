"""Reads at any node: replicas on demand, what is forwarded, and what happens when the owner goes away."""

from __future__ import annotations

from tests.app.cluster.table import members
from tests.support.waiting import eventually


def test_a_reader_at_another_node_reads_a_replica() -> None:
    """One feed, however many readers; each gets what the owner's would. The owner has no reader but the feed."""
    with members("a", "b") as (a, b), a.server.client() as at_a, b.server.client() as at_b:
        channel = at_a.channel("film")
        upload, _ = channel.started(0, b"one ")
        readers = [at_b.channel("film").waiting(0) for _ in range(3)]
        b.holds("film")
        upload.chunk(b"two").end()
        for reader in readers:
            assert reader.response().body == b"one two"
        eventually(lambda: len(a.cluster.feeds.sending) == 1)
        assert b.forwarding.forwarded == 0
        assert a.server.plane.registry.readers == 0
