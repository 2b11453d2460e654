"""Channels move between nodes, with a real directory: what clients see of it, what is refused, drain and placement."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.cluster.test_nodes_on_nats import NatsNode, film, node
from tests.app.data_plane.test_players import Live
from tests.support.nats import NatsServer, nats_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cluster import moving as module
from tricklecast.app.cluster.moving import AT_ONCE, RATE, Moved, Outcome
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.publisher import Publisher
from tricklecast.subscriber import Subscriber


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


@pytest.fixture(scope="module")
def trio(nats: NatsServer) -> Iterator[list[NatsNode]]:
    """Three nodes."""
    with nodes(nats, "abc", cluster_name="trio") as found:
        yield found


def test_neither_readers_nor_the_publisher_see_a_move(trio: list[NatsNode]) -> None:
    """The publisher has its next segment open at the old owner; readers wait at all nodes, and one is in the middle."""
    a, b, c = trio
    at_a, at_c = a.target.channel("unseen"), c.target.channel("unseen")
    at_a.publish(0, b"zero")
    for one in (b, c):
        knows(one, "a", "unseen")
    upload, reader = at_a.started(1, b"one, ")
    next_one, from_c = at_a.preconnect(2), at_c.preconnect(3)
    eventually(lambda: len(a.server.plane.registry.channels["unseen"].unclosed) == 3, what="both are connected")
    waiting = [one.target.channel("unseen").waiting(2) for one in (a, b, c)]
    middle = [one.target.channel("unseen").arrived(1, b"one, ") for one in (b, c)]
    moving = asyncio.run_coroutine_threadsafe(a.member.moving.move("unseen", "b"), a.server.loop)
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
        one.target.channel("unseen").has(3, b"three", epoch=1).has(0, b"zero", epoch=1)
    assert (b.directory.owns("unseen"), a.directory.owns("unseen")) == (True, False)
    assert "unseen" in a.member.replicas.held, "it holds it now"
    assert (a.member.peers.loops, a.member.moving.under_way, a.member.moving.counters["moved"]) == (0, {}, 1)


def test_a_channel_that_moves_back_and_forth(trio: list[NatsNode], caplog: pytest.LogCaptureFixture) -> None:
    """Each byte arrives once and in order, in one epoch, at both nodes; no client has to try anything again."""
    a, b, _ = trio
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
        async with Subscriber(one.target_url("fro"), start=0) as subscriber:
            found = [(segment.seq, segment.epoch, await segment.read()) async for segment in subscriber]
            seen = subscriber.statistics()
            retries = 0 if "out of reach" in caplog.text else seen.retries  # of each other, on a busy machine
            assert (retries, seen.gaps, seen.truncated) == (0, 0, 0), seen
        return found

    async def move_all() -> None:
        owner, other, moves = a, b, 0
        while moves < 12:
            moving = owner.member.moving.move("fro", other.directory.me.name)
            moved = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(moving, owner.server.loop))
            if moved.outcome is Outcome.UNDECIDED:  # on a busy machine the lease is in doubt now and then
                continue
            assert moved == Moved(Outcome.MOVED)
            owner, other, moves = other, owner, moves + 1
        ended.set()

    async def run() -> None:
        async with Publisher(a.target_url("fro")) as publisher:
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


def test_what_cannot_move_stays(trio: list[NatsNode]) -> None:
    """The answer says why; publishers that have waited go on where they are."""
    a, b, _ = trio
    channel = a.target.channel("still")
    assert move(a, "b", "still").outcome is Outcome.NOT_OWNER
    upload, reader = channel.started(0, b"one, ")
    waiting = channel.preconnect(1)
    for to in ("a", "z"):
        assert move(a, to, "still").outcome is Outcome.NO_NODE
    knows(b, "a", "still")
    assert move(b, "a", "still").outcome is Outcome.NOT_OWNER
    moving = asyncio.run_coroutine_threadsafe(a.member.moving.move("still", "b", within_s=0.3), a.server.loop)
    eventually(lambda: a.server.plane.parked[ParkedFor.REPLICA], what="the publisher waits")
    again = move(a, "c", "still")
    assert (again.outcome, "to 'b' already" in again.detail) == (Outcome.BUSY, True)
    assert channel.next_seq() == 1, "who asks does not wait"
    moved = moving.result(WITHIN_S)
    assert (moved.outcome, "being written" in moved.detail) == (Outcome.BUSY, True)
    upload.chunk(b"all").end()
    assert upload.answer().status == 200
    reader.ends(b"all")
    waiting.chunk(b"two").end()
    assert waiting.answer().status == 200
    b.server.inside(lambda: setattr(b.member.replicas, "_most", 0))
    b.server.inside(b.member.replicas.end)
    refused = move(a, "b", "still")
    b.server.inside(lambda: setattr(b.member.replicas, "_most", 1000))
    assert refused.outcome is Outcome.REFUSED
    channel.publish(2, b"three").has(2, b"three", epoch=1)
    assert a.directory.owns("still")


def test_a_node_that_lacks_something_is_no_heir(trio: list[NatsNode], monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner waits until the other node has every byte, and keeps the channel if that takes too long."""
    a, b, _ = trio
    channel = a.target.channel("lacks")
    channel.publish(0, b"zero")
    knows(b, "a", "lacks")
    b.target.channel("lacks").has(0, b"zero")

    def pause(paused: bool) -> None:
        connection = b.member.replicas.held["lacks"].connection
        assert connection is not None
        (connection.transport.pause_reading if paused else connection.transport.resume_reading)()  # type: ignore[attr-defined]

    b.server.inside(partial(pause, True))
    channel.publish(1, b"one")
    with monkeypatch.context() as patch:
        patch.setattr(module, "STEP_S", 0.1)
        refused = move(a, "b", "lacks")
    assert (refused.outcome, "'whole' in time" in refused.detail) == (Outcome.REFUSED, True)
    assert a.directory.owns("lacks")
    b.server.inside(partial(pause, False))
    assert move(a, "b", "lacks") == Moved(Outcome.MOVED)
    channel.publish(2, b"two")
    for one in trio:
        one.target.channel("lacks").has(0, b"zero", epoch=1).has(1, b"one", epoch=1).has(2, b"two", epoch=1)


def test_a_segment_that_does_not_end_is_cut_off(trio: list[NatsNode]) -> None:
    """If the move must be: its publisher is sent away, and brings the rest to the new owner. Others read on."""
    a, _, c = trio
    channel = a.target.channel("long")
    upload, reader = channel.started(0, b"begun", headers={"Idempotency-Key": "k"})
    knows(c, "a", "long")
    away = c.target.channel("long").arrived(0, b"begun")
    assert move(a, "b", "long", within_s=0.0, force=True) == Moved(Outcome.MOVED)
    assert upload.answer().status == 503
    reader.closed()
    again = channel.upload(0, b"begun", b" and ended", headers={"Idempotency-Key": "k", "Trickle-Attempt": "2"}).end()
    assert again.answer().status == 200
    away.ends(b" and ended")
    for one in trio:
        one.target.channel("long").has(0, b"begun and ended", epoch=1)


def test_a_stream_and_a_player_go_on(trio: list[NatsNode]) -> None:
    """One endless answer over all segments, and a playlist that waits for the next one; at both nodes."""
    a, b, _ = trio
    live = Live(a.target.channel("tv"), "video/mp2t")
    sent = b"".join(live.publish(seq) for seq in range(4))
    knows(b, "a", "tv")
    streams = [one.target.channel("tv").read("stream?start=0") for one in (a, b)]
    for stream in streams:
        assert stream.head().status == 200
        stream.gets(sent)
    streams.append(b.target.channel("tv").waiting("stream?start=4"))  # which b answers itself
    msn = live.playlist().whole[-1].msn + 1
    player = a.target.channel("tv").read(f"media.m3u8?_HLS_msn={msn}")
    eventually(lambda: a.server.plane.parked[ParkedFor.PLAYLIST], what="it waits")
    assert move(a, "b", "tv") == Moved(Outcome.MOVED)
    further = live.publish(4) + live.publish(5)
    assert streams[2].head().status == 200
    for stream in streams:
        stream.gets(further)
    assert live.watcher.see(player.response().body.decode()).whole[-1].msn >= msn
    assert live.until(5).whole[-1].msn == msn + 1, "its numbers go on"


def test_a_new_channel_begins_where_there_is_least_to_do(trio: list[NatsNode]) -> None:
    """If its node has much more to do than the others; one that drains takes none, and nobody moves one there."""
    a, b, c = trio
    a.target.channel("first").publish(0, b"x")
    assert a.directory.owns("first"), "a few channels are no reason"

    def tell(one: NatsNode, load: float) -> None:
        one.server.inside(lambda: setattr(one.member.moving, "_rate", load * RATE))
        one.server.inside(lambda: setattr(one.member.moving, "_told_at", one.server.plane.clock() + 1000))
        one.directory.me.load = load

    def have_heard(*loads: float) -> bool:
        return all([one.directory.nodes[name].load for name in "abc"] == list(loads) for one in (a, b))

    for one, load in ((a, 100.0), (b, 20.0), (c, 0.0)):
        tell(one, load)
    eventually(lambda: have_heard(100.0, 20.0, 0.0), what="they have heard of the loads")
    channel = a.target.channel("placed")
    channel.publish(0, b"one").has(0, b"one", epoch=1)
    assert (c.directory.owns("placed"), a.member.moving.placed) == (True, 1)
    b.target.channel("stays").publish(0, b"x")
    assert b.directory.owns("stays")
    for one in trio:
        one.server.inside(partial(setattr, one.member.moving, "_told_at", 0.0))  # as usual from now on
    eventually(lambda: all(node.load < 20 for one in trio for node in one.directory.nodes.values()))


def test_a_node_that_stops_gives_its_channels_away(
    nats: NatsServer, trio: list[NatsNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers at another node and readers there see nothing of it; the last node ends as a single server does."""
    monkeypatch.setattr(module, "LEAST", 1000.0)  # a new channel stays where it is published
    a, b, _ = trio
    with node("d", nats, cluster_name="trio") as d:
        names = [f"ch{number}" for number in range(AT_ONCE + 1)]
        for name in names:
            d.target.channel(name).publish(0, b"zero")
            knows(a, "d", name)
            knows(b, "d", name)
        waiting = {name: a.target.channel(name).waiting(1) for name in names}
        uploads = {name: b.target.channel(name).preconnect(1) for name in names}
        eventually(lambda: all(len(d.server.plane.registry.channels[name].unclosed) == 1 for name in names))
        d.server.stop()
        for name, upload in uploads.items():
            upload.chunk(b"one").end()
            assert upload.answer().status == 200
            assert waiting[name].response().body == b"one"
        eventually(d.server.over, what="it has ended")
        owners = [one for one in trio for name in names if one.directory.owns(name)]
        assert len(owners) == AT_ONCE + 1
        assert max(map(owners.count, trio)) < AT_ONCE, "they are shared"
        for name in names:
            b.target.channel(name).has(0, b"zero", epoch=1).has(1, b"one", epoch=1)


def test_with_a_quorum_the_new_owner_goes_on_behind_a_fence(nats: NatsServer) -> None:
    """It answers its publishers when the history has all of it: a third node goes on with that after its death."""
    with nodes(nats, "abc", cluster_name="fence", ack="quorum") as (a, b, c):
        for seq in range(3):
            film(a).publish(seq, b"%d" % seq)
        assert move(a, "b") == Moved(Outcome.MOVED)
        film(a).publish(3, b"3")
        assert move(b, "a") == Moved(Outcome.MOVED)
        film(b).publish(4, b"4")
        knows(c, "a")
        a.run(a.die())
        eventually(lambda: film(c).get(4).status == 200 and c.directory.owns("film"), what="c goes on with it")
        for seq in range(5):
            film(c).has(seq, b"%d" % seq, epoch=1)


def test_while_nats_gives_no_answer_nobody_knows(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher waits, and is refused after a while. When NATS is there again, one node has the channel."""
    monkeypatch.setattr(module, "STEP_S", 0.2)
    with nats_server() as own, nodes(own, "ab") as (a, b):
        film(a).publish(0, b"zero")
        knows(b, "a")
        film(b).has(0, b"zero")
        upload, reader = film(a).started(1, b"one")
        moving = asyncio.run_coroutine_threadsafe(a.member.moving.move("film", "b"), a.server.loop)
        next_one = film(a).preconnect(2)
        eventually(lambda: a.server.plane.parked[ParkedFor.REPLICA], what="the publisher waits")
        own.freeze()
        upload.end()
        assert upload.answer().status in (200, 503)
        reader.ends(b"")
        own.thaw()
        outcome = moving.result(WITHIN_S).outcome
        assert outcome in (Outcome.MOVED, Outcome.UNDECIDED)
        next_one.chunk(b"two").end()
        if next_one.answer().status != 200:
            eventually(lambda: film(a).post(2, b"two").status == 200, what="it is known who has it")
        film(a).has(2, b"two", epoch=1)
        film(b).has(2, b"two", epoch=1)
        assert (a.directory.owns("film"), b.directory.owns("film")) in ((True, False), (False, True))


def test_a_channel_with_a_data_directory_moves_away_and_back(
    nats: NatsServer, trio: list[NatsNode], tmp_path: Path
) -> None:
    """A stream from storage goes on with what the window has; when the channel is back, all can be read again."""
    a, _, _ = trio
    with node("e", nats, cluster_name="trio", data_dir=tmp_path / "data", ack="journal", window_segments=2) as e:
        channel, large = e.target.channel("kept"), b"x" * (8 << 20)
        channel.publish(0, large, b"one", b"two", b"three")
        knows(a, "e", "kept")
        stream = channel.read("stream?start=0")
        assert stream.head().status == 200  # it takes no more for now
        assert move(e, "a", "kept") == Moved(Outcome.MOVED)
        channel.publish(4, b"four")
        stream.gets(large + b"twothreefour")
        assert channel.get(1).status == 470
        assert move(a, "e", "kept") == Moved(Outcome.MOVED)
        channel.publish(5, b"five")
        stream.gets(b"five")
        for seq, body in enumerate((large, b"one", b"two", b"three", b"four", b"five")):
            channel.has(seq, body, epoch=1)
