"""The streams of the histories in real servers of NATS: made, lost, put back, full, too old, and with a server less."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.app.cluster.quorums import Node, bodies, cluster, in_loop
from tests.app.core.support import grant
from tests.support.nats import NatsServer, nats_cluster, nats_server
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.cluster import history, streams
from tricklecast.app.cluster.jetstream import NatsOptions, Unreachable


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A server for the tests that leave it alone."""
    with nats_server() as server:
        yield server


async def ask(node: Node, verb: str, name: str = "c", body: Any = None) -> dict[str, Any] | None:
    """Ask JetStream about the stream of a channel."""
    stream, _ = node.quorum.streams.of(name)
    return await (await node.quorum.streams.connected()).ask(verb, stream.name, body)


async def wait_stored(node: Node, name: str = "c") -> None:
    """Wait until all is acknowledged, as a publisher does that comes back after each 503."""
    while not await node.stored(name):
        pass


@in_loop
async def test_nodes_make_the_streams_at_the_same_time(nats: NatsServer) -> None:
    """Each of them starts with all sixteen, as they were asked for."""
    shared = cluster(nats.url)
    nodes = [await shared.node() for _ in range(3)]
    assert await asyncio.gather(*(node.quorum.start() for node in nodes)) == [True] * 3
    for node in nodes:
        found = node.quorum.streams.by_name.values()
        assert {(stream.replicas, stream.room) for stream in found} == {(1, shared.options.max_bytes // 16)}
        assert all(stream.found for stream in found)
    await shared.stop()


@in_loop
async def test_other_settings(nats: NatsServer) -> None:
    """They apply to the streams that are there; one for which there is no room keeps what it has."""
    shared = cluster(nats.url)
    await (await shared.node()).quorum.start()
    shared.options = streams.StreamOptions(max_bytes=64 << 20, max_age_s=60.0)
    node = await shared.node()
    assert await node.quorum.start()
    assert {stream.room for stream in node.quorum.streams.by_name.values()} == {4 << 20}
    shared.options = streams.StreamOptions(max_bytes=1 << 55)
    node = await shared.node()
    assert await node.quorum.start()
    assert {stream.room for stream in node.quorum.streams.by_name.values()} == {4 << 20}
    shared.options = streams.StreamOptions(max_bytes=1 << 55)
    shared.nats = NatsOptions(shared.nats.servers, bucket="huge")
    node = await shared.node()
    assert not await node.quorum.start(), "there is no room"
    assert node.quorum.counters["full"]
    await shared.stop()


@in_loop
async def test_without_nats() -> None:
    """A node starts all the same; its publishers are refused."""
    shared = cluster("nats://127.0.0.1:1")
    node = await shared.node()
    assert not await node.quorum.start()
    with pytest.raises(Unreachable):
        await node.quorum.streams.connected()
    await node.quorum.stop()


@in_loop
async def test_a_stream_that_was_deleted(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again, and the owner writes all of the channel, also if nobody publishes."""
    monkeypatch.setattr(streams, "LOOK_S", 0.02)
    shared = cluster(nats.url)
    node = await shared.node()
    await node.quorum.start()
    node.publish(0, b"a")
    assert await node.stored()
    await ask(node, "STREAM.DELETE")
    node.publish(1, b"b")
    await wait_stored(node)
    await ask(node, "STREAM.DELETE")
    before = node.quorum.counters["acknowledged"]
    await until(lambda: node.quorum.counters["lost_histories"] == 2 and node.quorum.counters["acknowledged"] == before)
    await until(lambda: not node.quorum._running["c"].writer.lacks)
    channel = await (await shared.node()).recover()
    assert channel is not None
    assert bodies(channel) == {0: b"a", 1: b"b"}
    await shared.stop()


@in_loop
async def test_a_deposed_owner_whose_stream_was_deleted(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence of its successor is gone, but the directory knows better: it acknowledges nothing."""
    monkeypatch.setattr(streams, "LOOK_S", WITHIN_S)  # its successor writes nothing anew before
    shared = cluster(nats.url)
    first, second = await shared.node(), await shared.node()
    first.publish(0, b"a")
    assert await first.stored()
    assert await second.recover() is not None
    await ask(first, "STREAM.DELETE")
    first.publish(1, b"of the deposed one")
    assert not await first.stored()
    assert first.lost == [("c", 1)]
    second.publish(1, b"b")
    await wait_stored(second)
    await shared.stop()


@in_loop
async def test_a_deposed_owner_when_its_successor_has_written_as_much_in_a_new_stream(nats: NatsServer) -> None:
    """The numbers of two streams never meet: the last one that it knows is not taken for that of its successor."""
    shared = cluster(nats.url)
    first, second, third = [await shared.node() for _ in range(3)]
    for seq in range(20):
        first.publish(seq, b"a")
        assert await first.stored()
    at = await _place(first)
    assert await second.recover() is not None
    await ask(first, "STREAM.DELETE")
    second.publish(20, b"b")
    await wait_stored(second)
    connection, (stream, _) = await second.quorum.streams.connected(), second.quorum.streams.of("c")
    other = 0
    for _ in range(at - 1 - await _place(second)):
        other = await connection.publish(f"{stream.subjects}.other", b"", {}, other)
    second.publish(21, b"b")
    assert await second.stored()
    assert await _place(second) == at, "it is where the other one was"
    first.publish(20, b"of the deposed one")
    assert not await first.stored()
    assert first.lost == [("c", 1)]
    channel = await third.recover()
    assert channel is not None
    assert bodies(channel) == bodies(second.channel())
    await shared.stop()


async def _place(node: Node) -> int:
    """How many messages the stream has taken until the last one of the channel."""
    found, (stream, subject) = await ask(node, "STREAM.INFO"), node.quorum.streams.of("c")
    message = await (await node.quorum.streams.connected()).last(stream.name, subject)
    assert found is not None
    assert message is not None
    first: int = found["config"].get("first_seq", 1)
    return message.seq - first


@in_loop
async def test_a_stream_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older copy has the beginning only: the owner notices, and writes all of the channel."""
    with nats_server() as server:
        shared = cluster(server.url)
        node = await shared.node()
        node.publish(0, b"a")
        await wait_stored(node)
        copy = server.save()
        node.publish(1, b"b")
        await wait_stored(node)
        server.roll_back(copy)
        node.publish(2, b"c")
        await wait_stored(node)
        assert node.quorum.counters["lost_histories"] == 1
        assert node.lost == []
        channel = await (await shared.node()).recover()
        assert channel is not None
        assert bodies(channel) == {0: b"a", 1: b"b", 2: b"c"}
        await shared.stop()


@in_loop
async def test_a_stream_that_was_put_back_and_has_grown_since() -> None:
    """The owner of a channel that is silent notices, though another node has passed the number that was the last."""
    with nats_server() as server:
        shared = cluster(server.url)
        silent, busy = await shared.node(), await shared.node()
        silent.publish(0, b"a")
        await wait_stored(silent)
        copy = server.save()
        silent.publish(1, b"a")
        await wait_stored(silent)
        stream, other = silent.quorum.streams.of("c")[0], _neighbour(silent)
        assert await silent.quorum.streams.look(stream.name)
        server.roll_back(copy)
        for seq in range(5):
            busy.publish(seq, b"b", other)
            await wait_stored(busy, other)
        while not await silent.quorum.streams.look(stream.name):
            pass
        await until(lambda: silent.quorum.counters["lost_histories"] == 1)
        await wait_stored(silent)
        channel = await busy.recover()
        assert channel is not None
        assert bodies(channel) == {0: b"a", 1: b"a"}
        await shared.stop()


@in_loop
async def test_a_late_message_in_a_stream_that_was_put_back() -> None:
    """Numbers come back there, so one of a deposed owner may be stored. The owner notices, also if it is silent."""
    with nats_server() as server:
        shared = cluster(server.url)
        first, second, third = [await shared.node() for _ in range(3)]
        copy = None
        for seq in range(20):
            if seq == 3:
                copy = server.save()
            first.publish(seq, b"a")
            await wait_stored(first)
        assert copy is not None
        at = await _place(first)
        assert await second.recover() is not None
        server.roll_back(copy)
        for node in (first, second):
            await _reconnected(node)
        seq = 20
        while await _place(second) != at:
            second.publish(seq, b"b")
            await wait_stored(second)
            seq += 1
        first.publish(20, b"of the deposed one")
        await until(lambda: not first.quorum._running["c"].writer.lacks)
        assert await _place(second) == at + 1, "it is stored"
        assert await second.quorum.streams.look(second.quorum.streams.of("c")[0].name)
        await until(lambda: second.quorum.counters["lost_histories"] == 2)
        await wait_stored(second)
        channel = await third.recover()
        assert channel is not None
        assert bodies(channel) == bodies(second.channel())
        await shared.stop()


@in_loop
async def test_a_stream_that_was_emptied(nats: NatsServer) -> None:
    """All channels of a node are written again, each once, also if the one that was written last notices by itself."""
    shared = cluster(nats.url)
    node = await shared.node()
    other = _neighbour(node)
    stream, _ = node.quorum.streams.of("c")
    for name in ("c", other):
        node.publish(0, b"a", name)
        assert await node.stored(name)
    await ask(node, "STREAM.PURGE")
    node.publish(1, b"b", other)
    await wait_stored(node, other)
    for _ in range(3):
        assert await node.quorum.streams.look(stream.name)
        await until(lambda: not node.quorum._running["c"].writer._new)
    assert (node.quorum.counters["lost_histories"], node.quorum.counters["generations"]) == (2, 5)
    successor = await shared.node()
    for name, found in (("c", {0: b"a"}), (other, {0: b"a", 1: b"b"})):
        channel = await successor.recover(name)
        assert channel is not None
        assert bodies(channel) == found
    await shared.stop()


async def _reconnected(node: Node) -> None:
    """Wait until a node has a connection to a server that was started again."""
    while True:
        with suppress(Unreachable):
            await ask(node, "STREAM.INFO")
            return


def _neighbour(node: Node) -> str:
    """A channel that has the stream of the usual one."""
    stream, _ = node.quorum.streams.of("c")
    return next(name for n in range(1000) if node.quorum.streams.of(name := f"d{n}")[0] is stream)


@in_loop
async def test_a_part_that_is_missing(nats: NatsServer) -> None:
    """Nobody goes on with what is left, and nobody reads it: the channel begins anew in a higher epoch."""
    shared = cluster(nats.url)
    node = await shared.node()
    for seq in range(5):
        node.publish(seq, b"a")
        assert await node.stored()
    found = await ask(node, "STREAM.INFO")
    assert found is not None
    await ask(node, "STREAM.MSG.DELETE", body={"seq": found["state"]["first_seq"] + 2})
    successor = await shared.node()
    assert await successor.recover() is None
    assert successor.quorum.counters["damaged"] == 1
    assert successor.registry.channels["c"].ended
    await shared.stop()


@in_loop
async def test_a_part_of_a_segment_that_is_missing(nats: NatsServer) -> None:
    """Its records alone would tell nothing: the messages do, each of which names the one before."""
    shared = cluster(nats.url)
    node = await shared.node()
    writer = grant(node.registry, "c", 0)
    for messages, part in enumerate((b"x", b"y", b"z"), 1):
        node.channel().append(writer, [part * 100], 7.0)
        await until(partial(_has_sent, node, messages))
    found = await ask(node, "STREAM.INFO")
    assert found is not None
    await ask(node, "STREAM.MSG.DELETE", body={"seq": found["state"]["last_seq"] - 1})
    successor = await shared.node()
    assert await successor.recover() is None
    assert successor.quorum.counters["damaged"] == 1
    await shared.stop()


def _has_sent(node: Node, messages: int) -> bool:
    return len(node.way.stored) >= messages


@in_loop
async def test_a_history_that_grows_old(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written again before the stream forgets its beginning, also if nobody publishes."""
    monkeypatch.setattr(streams, "LOOK_S", 0.05)
    shared = cluster(nats.url, max_age_s=0.5)
    node = await shared.node()
    await node.quorum.start()
    node.publish(0, b"a")
    assert await node.stored()
    await until(lambda: node.quorum.counters["generations"] >= 4)
    channel = await (await shared.node()).recover()
    assert channel is not None
    assert bodies(channel) == {0: b"a"}
    await shared.stop()


@in_loop
async def test_a_stream_that_is_full(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publishers are refused, and nothing that was acknowledged is dropped. Owners make room by writing less."""
    monkeypatch.setattr(streams, "LOOK_S", 0.02)
    monkeypatch.setattr(history, "ACK_S", 0.3)
    shared = cluster(nats.url, max_bytes=16 * 2_000_000)
    node = await shared.node(window_segments=3)
    await node.quorum.start()
    for seq in range(60):  # without room for more than two million, and without being written again
        node.publish(seq, b"x" * 50_000)
        await wait_stored(node)
    assert node.quorum.counters["generations"] > 1, "it was written again to make room"
    other = _neighbour(node)
    refused, seq = False, 0
    while not refused:
        node.publish(seq, b"y" * 200_000, other, content_type="video/mp2t")
        refused, seq = not await node.stored(other), seq + 1
    assert node.quorum.counters["full"] > 0
    successor = await shared.node(window_segments=3)
    channel = await successor.recover()
    assert channel is not None
    assert bodies(channel) == {seq: b"x" * 50_000 for seq in (57, 58, 59)}
    await shared.stop()


def test_three_servers_one_of_which_is_lost() -> None:
    """Three replicas of each stream: with the leader of a history gone, the others go on, and nothing is lost."""
    with nats_cluster() as servers:
        asyncio.run(_lose_a_leader(servers))


async def _lose_a_leader(servers: list[NatsServer]) -> None:
    shared = cluster(*(server.url for server in servers), max_bytes=160 << 20)
    first, second = await shared.node(), await shared.node()
    for node in (first, second):
        while not await node.quorum.streams.start():
            pass
    assert {stream.replicas for stream in first.quorum.streams.by_name.values()} == {3}
    first.publish(0, b"a")
    await wait_stored(first)
    name = first.quorum.streams.of("c")[0].name
    leader = await asyncio.to_thread(
        eventually, lambda: [server for server in servers if server.leads(name)], what=name
    )
    await asyncio.to_thread(leader[0].stop)
    first.publish(1, b"b")
    await wait_stored(first)
    channel = None
    while channel is None:
        try:
            channel = await second.recover()
        except Unreachable:
            continue
    assert bodies(channel) == {0: b"a", 1: b"b"}
    second.publish(2, b"c")
    await wait_stored(second)
    shared.nats = NatsOptions(shared.nats.servers, bucket=shared.nats.bucket, replicas=1)
    third = await shared.node()
    while not await third.quorum.streams.look(name):
        pass
    assert third.quorum.streams.by_name[name].replicas == 3, "no node takes replicas away"
    first.publish(2, b"of the deposed one")
    assert not await first.stored()
    await shared.stop()
