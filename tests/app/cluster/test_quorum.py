"""``--ack quorum`` with a real NATS server: what was acknowledged is there after the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.app.cluster.quorums import Node, Way, bodies, cluster, in_loop
from tests.app.core.support import grant
from tests.support.nats import NatsServer, nats_server
from tests.support.waiting import until
from tricklecast.app.cluster import history, jetstream, quorum
from tricklecast.app.cluster.history import Superseded
from tricklecast.app.cluster.jetstream import Message, Unreachable


async def last(node: Node, name: str) -> Message | None:
    """The last message of a history."""
    stream, subject = node.quorum.streams.of(name)
    return await (await node.quorum.streams.connected()).last(stream.name, subject)


async def gone(node: Node, name: str) -> None:
    """Wait until a history is removed."""
    while await last(node, name) is not None:
        pass


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A server for all tests of the module; each has streams of its own."""
    with nats_server() as server:
        yield server


@in_loop
async def test_a_successor_goes_on_where_the_owner_was_killed(nats: NatsServer) -> None:
    """It has every byte, key and mark, in the same epoch; what was open is open for a retry."""
    shared = cluster(nats.url)
    first = await shared.node()
    first.publish(0, b"zero", content_type="video/mp2t", key="k0")
    first.channel().mark_playlist("1 is next", 7.0)
    writer = grant(first.registry, "c", 1, key="k1")
    first.channel().append(writer, [b"half"], 7.0)
    assert await first.stored()
    await first.kill()

    second = await shared.node()
    channel = await second.recover()
    assert channel is not None
    assert channel is second.channel()
    assert (channel.epoch, channel.content_type, channel.playlist) == (1, "video/mp2t", "1 is next")
    assert bodies(channel) == {0: b"zero", 1: b"half"}
    again = grant(second.registry, "c", 1, key="k1", attempt=2)
    assert again.repeated == 4
    channel.finish(again, [b"half", b" and half"], 7.0)
    assert await second.stored()
    await second.kill()

    third = await shared.node()
    channel = await third.recover()
    assert channel is not None
    assert bodies(channel) == {0: b"zero", 1: b"half and half"}
    await shared.stop()


@in_loop
async def test_a_deposed_owner_acknowledges_nothing(nats: NatsServer) -> None:
    """It may be alive and write on: JetStream refuses it, its publishers hear so, and it is told that it is deposed."""
    shared = cluster(nats.url)
    first = await shared.node()
    first.publish(0, b"a")
    assert await first.stored()
    second = await shared.node()
    channel = await second.recover()
    assert channel is not None
    first.publish(1, b"of the deposed one")
    second.publish(1, b"of its successor")
    assert await second.stored()
    assert not await first.stored()
    assert first.lost == [("c", 1)]
    assert second.lost == []
    assert not await first.stored(), "nor later"
    third = await shared.node()
    channel = await third.recover()
    assert channel is not None
    assert bodies(channel) == {0: b"a", 1: b"of its successor"}
    await shared.stop()


@in_loop
async def test_a_fence_ends_a_reign_whatever_the_directory_says(nats: NatsServer) -> None:
    """A writer that meets the message of a later reign is deposed, though it is told that it owns the channel."""
    shared = cluster(nats.url)
    first, second = await shared.node(), await shared.node()
    first.publish(0, b"a")
    assert await first.stored()
    assert await second.quorum.recover("c", 1) is not None
    first.publish(1, b"of the deposed one")
    assert not await first.stored()
    assert first.lost == [("c", 1)]
    await shared.stop()


@in_loop
async def test_an_owner_that_was_deposed_before_its_first_message(nats: NatsServer) -> None:
    """It asks the directory before it takes over from another one, so it does not depose its own successor."""
    shared = cluster(nats.url)
    first = await shared.node(Way(closed=True))
    first.publish(0, b"a")
    second = await shared.node()
    assert await second.recover() is None, "there is nothing"
    first.way.closed = False
    assert not await first.stored()
    assert first.lost == [("c", 1)]
    second.registry.remember_ended("c", 1, 0, 1e12)
    second.publish(0, b"b")
    assert second.channel().epoch == 2
    assert await second.stored()
    assert second.lost == []
    await shared.stop()


@in_loop
async def test_a_node_that_was_given_a_channel_and_lost_it_at_once(nats: NatsServer) -> None:
    """It recovers nothing, and does not depose the one that has it now."""
    shared = cluster(nats.url)
    first, second, third = [await shared.node() for _ in range(3)]
    first.publish(0, b"a")
    assert await first.stored()
    assert await second.recover() is not None
    with pytest.raises(Superseded):
        await third.quorum.recover("c", 1)
    second.publish(1, b"b")
    assert await second.stored()
    assert third.registry.channels == {}
    with pytest.raises(Superseded):
        await third.recover(epoch=0)
    await shared.stop()


@in_loop
async def test_a_channel_that_begins_again_or_is_given_without_its_history(nats: NatsServer) -> None:
    """The first message of an owner is a fence, too: for a higher epoch, and for a channel that it has otherwise."""
    shared = cluster(nats.url)
    first, second = await shared.node(), await shared.node()
    first.publish(0, b"a")
    assert await first.stored()
    first.registry.end("c", 1000.0)
    first.publish(0, b"again")
    assert first.channel().epoch == 2
    assert await first.stored()
    held = second.registry.replicate("c", 2, 1000.0)
    second.take()
    channel = second.registry.adopt(held, 1000.0)
    second.publish(0, b"handed over")
    assert await second.quorum.flush(channel)
    first.publish(1, b"too late")
    assert not await first.stored()
    third = await shared.node()
    recovered = await third.recover(epoch=2)
    assert recovered is not None
    assert bodies(recovered) == {0: b"handed over"}
    await shared.stop()


@in_loop
async def test_an_owner_that_dies_before_it_has_written_all_leaves_the_history_before_it(nats: NatsServer) -> None:
    """It has the channel from a replica, so it writes all anew: until that is done, a successor gets what was there."""
    shared = cluster(nats.url)
    first, second = await shared.node(), await shared.node(Way(dies_at=(3, True)))
    first.publish(0, b"a")
    assert await first.stored()
    second.take()
    second.registry.adopt(second.registry.replicate("c", 1, 1000.0), 1000.0)
    for seq in range(5):
        second.publish(seq, bytes(history.MESSAGE))
    await until(lambda: second.way.sent >= 3)
    await second.kill()
    assert [headers["Trickle-Live"] != "0@0" for _, _, headers, _ in second.way.stored] == [True]
    recovered = await (await shared.node()).recover()
    assert recovered is not None
    assert bodies(recovered) == {0: b"a"}
    await shared.stop()


@in_loop
async def test_a_channel_that_has_ended(nats: NatsServer) -> None:
    """Its successor hears that it has ended; nothing of it goes on."""
    shared = cluster(nats.url)
    first, second = await shared.node(channel_drain_s=10.0, tombstone_s=20.0), await shared.node()
    first.publish(0, b"a")
    channel = first.channel()
    first.registry.end("c", 1000.0)
    assert await first.quorum.flush(channel)
    assert await second.recover() is None
    assert second.registry.channels["c"].ended
    await shared.stop()


@in_loop
async def test_histories_of_ended_channels_are_removed(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is after the drain and the time of the tombstone; a history that has begun since stays."""
    monkeypatch.setattr(quorum, "PURGE_S", 0.01)
    shared = cluster(nats.url)
    node = await shared.node(channel_drain_s=10.0, tombstone_s=20.0)
    await node.quorum.start()
    for name in ("c", "d"):
        node.publish(0, b"a", name)
        ended = node.channel(name)
        node.registry.end(name, 1000.0)
        assert await node.quorum.flush(ended)
    node.publish(0, b"again", "d")
    assert await node.stored("d")
    shared.now += 29.0
    await asyncio.sleep(0.05)
    assert {name: await last(node, name) is not None for name in ("c", "d")} == {"c": True, "d": True}
    shared.now += 2.0
    await gone(node, "c")
    second = await shared.node()
    channel = await second.recover("d", 2)
    assert channel is not None
    assert bodies(channel) == {0: b"again"}
    await shared.stop()


# How it is written.


@in_loop
async def test_messages_are_bounded(nats: NatsServer) -> None:
    """A chunk of 1 MiB takes several messages; its publisher is answered with the last one."""
    shared = cluster(nats.url)
    first = await shared.node()
    data = bytes(range(256)) * 4096
    first.publish(0, data)
    assert await first.stored()
    sizes = [len(about[1]) for about in first.way.stored]
    assert max(sizes) <= history.MESSAGE
    assert sum(sizes) > len(data)
    channel = await (await shared.node()).recover()
    assert channel is not None
    assert bodies(channel) == {0: data}
    await shared.stop()


@in_loop
async def test_segments_share_messages(nats: NatsServer) -> None:
    """What gathers while a message is on its way goes into the next one, so many publishers cost few messages."""
    shared = cluster(nats.url)
    node = await shared.node()
    answers: list[bool] = []
    for seq in range(200):
        node.publish(seq, b"x" * 200)
        node.quorum.when_stored(answers.append, node.channel())
        if seq % 20 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(answers) == 200)
    assert all(answers)
    assert node.way.sent < 20
    await shared.stop()


@in_loop
async def test_bytes_for_which_nobody_waits_are_gathered(nats: NatsServer) -> None:
    """A segment of many small chunks is few messages; a publisher that waits is answered at once."""
    shared = cluster(nats.url)
    node = await shared.node()
    writer = grant(node.registry, "c", 0)
    for _ in range(100):
        node.channel().append(writer, [b"x"], 0.0)
        await asyncio.sleep(0.001)
    node.channel().finish(writer, [], 0.0)
    assert await node.stored()
    assert node.way.sent < 60
    await shared.stop()


@in_loop
async def test_a_lost_answer(nats: NatsServer) -> None:
    """A message that was stored is not stored again, and is acknowledged; one that comes late does no harm."""
    for seed in range(3):
        shared = cluster(nats.url)
        way = Way(Random(seed), 0.7)
        node = await shared.node(way)
        for seq in range(6):
            node.publish(seq, b"%d" % seq)
            assert await node.stored()
        way.chance = 0.0
        assert node.lost == []
        channel = await (await shared.node()).recover()
        assert channel is not None
        assert bodies(channel) == {seq: b"%d" % seq for seq in range(6)}
        await shared.stop()


@in_loop
async def test_an_owner_that_dies_with_any_of_its_messages(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it writes all again beside what is published, and before the old part is removed."""
    monkeypatch.setattr(history, "MESSAGE", 600)
    await _die_with_each(nats, lambda at: at % 2 == 0)


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
@in_loop
async def test_a_last_message_that_arrives_or_not(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Each of them, in both ways."""
    monkeypatch.setattr(history, "MESSAGE", 600)
    await _die_with_each(nats, lambda at: arrives)


async def _die_with_each(nats: NatsServer, arrives: Callable[[int], bool]) -> None:
    at = 0
    while True:
        at += 1
        shared = cluster(nats.url)
        node = await shared.node(Way(dies_at=(at, arrives(at))))
        acknowledged: dict[int, bytes] = {}

        def publish(seq: int, node: Node = node, acknowledged: dict[int, bytes] = acknowledged) -> None:
            data = b"%x" % seq * 500
            node.publish(seq, data)
            node.quorum.when_stored(lambda stored: acknowledged.update({seq: data} if stored else {}), node.channel())

        async def until_dead_or(fact: Callable[[], bool], node: Node = node, at: int = at) -> None:
            await until(lambda: node.way.sent >= at or fact())

        for seq in range(6):
            publish(seq)
        await until_dead_or(lambda: len(acknowledged) == 6)  # noqa: B023
        before = node.way.sent

        def meanwhile(node: Node = node, publish: Callable[[int], None] = publish, before: int = before) -> None:
            if node.way.sent == before + 2:  # the snapshot is on its way
                for seq in range(6, 12):
                    publish(seq)

        node.way.meanwhile = meanwhile
        node.quorum._running["c"].writer.look(1e12)  # write all again
        await until_dead_or(lambda: len(acknowledged) == 12)  # noqa: B023
        await asyncio.sleep(0.01)  # a message that has not arrived in this time counts as one that does not
        await node.kill()
        channel = await (await shared.node()).recover()
        found = {} if channel is None else bodies(channel)
        assert acknowledged.items() <= found.items()
        await shared.stop()
        if node.way.sent < at:
            break
    assert at > 30
    assert len(found) == 12
    assert node.quorum.counters["generations"] == 2, "it was written again meanwhile"


@in_loop
async def test_what_is_behind_is_bounded(nats: NatsServer) -> None:
    """The history of a channel that goes on for long is at most a few times as long as what the channel holds."""
    shared = cluster(nats.url)
    node = await shared.node(window_bytes=1 << 20)
    for seq in range(60):
        node.publish(seq, b"x" * 200_000)
        assert await node.stored()
    await asyncio.sleep(0)
    stream, _ = node.quorum.streams.of("c")

    await node.quorum.streams.look(stream.name)
    while stream.used > 5 << 20:  # the last removal may be on its way
        await node.quorum.streams.look(stream.name)
    assert node.quorum.counters["bytes"] < 3 * 60 * 200_000
    await shared.stop()


# Bounds.


@in_loop
async def test_publishers_that_wait_are_bounded(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are refused at once; those that wait are refused after a time, and their retries are answered."""
    monkeypatch.setattr(history, "MAX_WAITING", 3)
    monkeypatch.setattr(history, "ACK_S", 0.1)
    shared = cluster(nats.url)
    node = await shared.node(Way(closed=True))
    answers: list[bool] = []
    for seq in range(4):
        node.publish(seq)
        node.quorum.when_stored(answers.append, node.channel())
    assert answers == [False]
    await until(lambda: len(answers) == 4)
    assert not any(answers)
    assert (node.quorum.counters["refused"], node.quorum.counters["unacknowledged"]) == (1, 3)
    node.way.closed = False
    while not await node.stored():
        pass
    assert node.quorum.counters["acknowledged"] == 1
    await shared.stop()


@in_loop
async def test_a_server_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers are refused meanwhile; when it goes on, the history does, too."""
    monkeypatch.setattr(history, "ACK_S", 0.2)
    monkeypatch.setattr(jetstream, "ANSWER_S", 0.2)
    with nats_server() as server:
        shared = cluster(server.url)
        node = await shared.node()
        node.publish(0)
        while not await node.stored():
            pass
        server.freeze()
        node.publish(1, b"y")
        assert not await node.stored()
        server.thaw()
        while not await node.stored():
            pass
        channel = await (await shared.node()).recover()
        assert channel is not None
        assert bodies(channel) == {0: b"x", 1: b"y"}
        await shared.stop()


@in_loop
async def test_a_channel_that_is_too_far_behind(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While NATS is away the node keeps no more than its window. What has left it without being stored is refused."""
    shared = cluster(nats.url)
    node = await shared.node(total_bytes=400_000)
    node.publish(0, b"first")
    assert await node.stored()
    node.way.closed = True
    node.publish(1, b"x" * 150_000)
    answers: list[bool] = []
    node.quorum.when_stored(answers.append, node.channel())
    for seq in range(2, 8):
        node.publish(seq, b"x" * 150_000)
    assert node.registry.budget.used <= 400_000
    node.way.closed = False
    await until(lambda: answers)
    assert answers == [False]
    assert await node.stored()
    channel = await (await shared.node()).recover()
    assert channel is not None
    assert bodies(channel) == bodies(node.channel())
    await shared.stop()


@in_loop
async def test_a_channel_that_is_still_here_is_not_recovered(nats: NatsServer) -> None:
    """Whoever holds it for readers, or still believes to own it, has to let go of it first. Nothing is lost."""
    shared = cluster(nats.url)
    first, second = await shared.node(), await shared.node()
    first.publish(0, b"a")
    assert await first.stored()
    held = second.registry.replicate("c", 1, 1000.0)
    with pytest.raises(Unreachable, match="let go of it first"):
        await second.recover()
    second.registry.let_go(held)
    channel = await second.recover()
    assert channel is not None
    assert bodies(channel) == {0: b"a"}
    await shared.stop()


@in_loop
async def test_a_channel_is_recovered_once(nats: NatsServer) -> None:
    """Requests that need it at the same time wait for the same work; nobody finds it half done."""
    shared = cluster(nats.url)
    first, second = await shared.node(), await shared.node()
    first.publish(0, b"a")
    assert await first.stored()
    both = asyncio.gather(second.recover(), second.recover())
    await asyncio.sleep(0)
    assert list(second.quorum.recovering) == ["c"]
    one, other = await both
    assert one is other is second.channel()
    assert second.quorum.recovering == {}
    await shared.stop()


@in_loop
async def test_a_channel_is_handed_over(nats: NatsServer) -> None:
    """Its owner writes the rest and nothing more; acknowledgements of all channels can be awaited."""
    shared = cluster(nats.url)
    first, second = await shared.node(), await shared.node()
    for name in ("c", "d"):
        first.publish(0, b"a", name)
    assert await first.quorum.flush()
    assert await first.quorum.flush(), "there is nothing to wait for"
    first.publish(1, b"b")
    assert await first.quorum.release(first.channel())
    assert not await first.stored(), "it acknowledges nothing any more"
    channel = await second.recover()
    assert channel is not None
    assert bodies(channel) == {0: b"a", 1: b"b"}
    await first.quorum.stop()
    await shared.stop()
