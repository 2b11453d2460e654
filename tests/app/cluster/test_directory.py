"""The directory on a real NATS server."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import orjson
import pytest

from tests.support.certificates import make_certificate
from tests.support.nats import NatsServer, Relay, nats_cluster, nats_server, relay
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.cluster import directory as directories
from tricklecast.app.cluster import view as views
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.directory import (
    Claimed,
    Directory,
    NameInUse,
    NodeFacts,
    Taken,
    Unavailable,
)
from tricklecast.app.cluster.jetstream import Conflict, NatsOptions, Unreachable
from tricklecast.app.cluster.lease import LeaseState
from tricklecast.app.cluster.view import Place

pytestmark = pytest.mark.anyio

LEASE_S = 0.5


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shared() -> Iterator[NatsServer]:
    """A server for all tests here; see :func:`nats`."""
    with nats_server() as server:
        yield server


@pytest.fixture
async def nats(shared: NatsServer) -> NatsServer:
    """A server whose bucket has neither nodes nor channels. It is not new, so nodes need not wait for others."""
    bucket = await Bucket.open(NatsOptions((shared.url,)), "cleaner")
    for kind in ("node", "channel"):
        await bucket._client.jetstream().purge_stream("KV_trickle", subject=f"$KV.trickle.{kind}.>")
    await bucket.close()
    return shared


class Heard:
    """What a directory has told."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, Place | None]] = []
        self.losses: list[tuple[str, int]] = []
        self.gifts: list[tuple[str, int]] = []
        self.takes = True

    def moved(self, channel: str, place: Place | None) -> None:
        self.moves.append((channel, place))

    def lost(self, channel: str, epoch: int) -> None:
        self.losses.append((channel, epoch))

    def given(self, channel: str, epoch: int) -> bool:
        self.gifts.append((channel, epoch))
        return self.takes


def make(
    name: str,
    at: str | NatsServer | Relay | NatsOptions,
    heard: Heard | None = None,
    *,
    lease_s: float = LEASE_S,
    tombstone_s: float = 300.0,
) -> Directory:
    options = at if isinstance(at, NatsOptions) else NatsOptions((at if isinstance(at, str) else at.url,))
    facts = NodeFacts(name, f"http://{name}:2939/trickle", "1.0")
    told = heard or Heard()
    return Directory(lambda: Bucket.open(options, name), facts, told, lease_s=lease_s, tombstone_s=tombstone_s)


@asynccontextmanager
async def running(*made: Directory, owned: dict[str, int] | None = None) -> AsyncIterator[None]:
    """Start directories, and wait until they decide; stop them at the end."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(one.start(owned or {}, WITHIN_S) for one in made))
            await until(lambda: not any(one.degraded for one in made))
            yield
    finally:
        await asyncio.gather(*(one.stop() for one in made))


async def claimed(directory: Directory, channel: str, at_least: int = 0) -> int:
    """Claim until it succeeds; returns the epoch."""
    while True:
        if isinstance(result := await directory.claim(channel, at_least), Claimed):
            return result.epoch
        await asyncio.sleep(0.02)


def crash(directory: Directory) -> None:
    """As a process that is killed: its connection ends, and nothing more is said."""
    for task in (directory._running, directory._writing):
        if task is not None:
            task.cancel()


async def test_a_claim_is_known_everywhere(nats: NatsServer) -> None:
    """The claimer owns the channel; other nodes know where it is, and cannot claim it."""
    heard = Heard()
    a, b = make("a", nats), make("b", nats, heard)
    async with running(a, b):
        assert await a.claim("café.1") == Claimed(1)
        await until(lambda: b.place("café.1") is not None)
        there = Place("a", "http://a:2939/trickle", 1, True)
        assert (a.owns("café.1"), b.owns("café.1")) == (True, False)
        assert a.place("café.1") == b.place("café.1") == there
        assert await b.claim("café.1") == Taken(there)
        assert await a.claim("café.1") == Claimed(1)
        assert await a.confirmed("café.1", 1)
        assert not await a.confirmed("café.1", 2)
        assert not await b.confirmed("café.1", 1)
        assert heard.moves == [("café.1", there)]
        assert a.secret == b.secret != ""


async def test_of_two_claims_one_wins(nats: NatsServer) -> None:
    """Many channels that two nodes claim at the same time: each has one owner, whom both name."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        names = [f"c{number}" for number in range(50)]
        results = await asyncio.gather(*(one.claim(name) for name in names for one in (a, b)))
        for name, first, second in zip(names, results[::2], results[1::2], strict=True):
            assert sorted(map(type, (first, second)), key=str) == [Claimed, Taken]
            assert a.owns(name) == isinstance(first, Claimed)
            winner = "a" if isinstance(first, Claimed) else "b"
            loser = second if isinstance(second, Taken) else first
            assert isinstance(loser, Taken)
            assert loser.place.node == winner


async def test_an_epoch_is_above_all_that_is_remembered(nats: NatsServer) -> None:
    """The directory's tombstone counts, and what the claimer has elsewhere."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        assert await a.claim("x", 6) == Claimed(7)
        a.ended("x", 7)
        await until(lambda: "x" in b.channels and b.channels["x"].ended)
        assert (a.place("x"), b.place("x")) == (None, None)
        assert b.former("x") == Place("a", "http://a:2939/trickle", 7, True)
        assert await claimed(b, "x") == 8
        await until(lambda: a.place("x") is not None)
        b.ended("x", 7)  # another epoch: it is not this node's any more
        assert b.owns("x")


async def test_a_tombstone_is_removed_after_its_time(nats: NatsServer) -> None:
    """By the server, and by each node: the name begins again."""
    a = make("a", nats, tombstone_s=1)
    async with running(a):
        await a.claim("x")
        a.ended("x", 1)
        await until(lambda: "x" not in a.channels)
        bucket = await Bucket.open(NatsOptions((nats.url,)), "test")
        while (await bucket.get("channel.x"))[1]:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)
        await bucket.close()
        assert await a.claim("x") == Claimed(1)


async def test_tombstones_that_a_node_knows_are_bounded(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It forgets the oldest ones; the bucket does not, and tells their epochs to a claim."""
    monkeypatch.setattr(views, "MAX_TOMBSTONES", 3)
    a = make("a", nats)
    async with running(a):
        for number in range(6):
            assert await a.claim(f"c{number}", 4) == Claimed(5)
            a.ended(f"c{number}", 5)
        await until(lambda: len(a.channels) == 3 and not a.view.due)
        assert "c0" not in a.channels
        assert await claimed(a, "c0") == 6


async def test_channels_of_a_dead_node_are_free(nats: NatsServer) -> None:
    """After the time of a lease, in the next epoch. The dead node is deposed once, however many channels it had."""
    a, b, c = make("a", nats), make("b", nats), make("c", nats)
    async with running(b, c):
        await a.start({})
        names = [f"c{number}" for number in range(10)]
        await asyncio.gather(*(claimed(a, name) for name in names))
        await until(lambda: all(b.place(name) and c.place(name) for name in names))
        crash(a)
        died = time.monotonic()
        epochs = await asyncio.gather(*(claimed(b if number % 2 else c, name) for number, name in enumerate(names)))
        assert time.monotonic() - died > LEASE_S * 0.7  # a renewal may have been underway
        assert epochs == [2] * 10
        assert b.counters.deposed + c.counters.deposed == 1
        assert b.counters.takeovers + c.counters.takeovers == 10


async def test_a_node_that_leaves_is_not_waited_for(nats: NatsServer) -> None:
    """Its channels are free at once."""
    a, b = make("a", nats), make("b", nats)
    async with running(b):
        async with running(a):
            await claimed(a, "x")
        await until(lambda: not b.reachable("a"))
        assert await b.claim("x") == Claimed(2)
        assert b.counters.deposed == 0


async def test_a_name_is_used_once(nats: NatsServer) -> None:
    """A second process with the name of a live one is told so; it gets the name when that is gone."""
    a, other = make("a", nats), make("a", nats)
    async with running(a):
        with pytest.raises(NameInUse, match=r"'a' is in use by http://a:2939/trickle: give this one another name"):
            await other.start({}, WITHIN_S)
        await other.stop()
        assert not a.degraded
    again = make("a", nats)
    async with running(again):
        assert again.view.term > a.view.term


async def test_a_replaced_node_ends_its_channels(nats: NatsServer) -> None:
    """A process that stood still while another one took its name has nothing any more."""
    heard = Heard()
    a = make("a", nats, heard)
    async with running(a):
        await claimed(a, "x")
        bucket = await Bucket.open(NatsOptions((nats.url,)), "test")
        node = orjson.dumps({"url": "http://new", "term": a.view.term + 1, "state": "serving"})
        while True:
            try:
                await bucket.put("node.a", node, a._revision)
                break
            except Conflict:
                await asyncio.sleep(0)
        await until(lambda: heard.losses)
        await bucket.close()
        assert heard.losses == [("x", 1)]
        assert "in use by http://new" in a.degraded
        assert isinstance(await a.claim("y"), Unavailable)
        assert a.lease.state is LeaseState.CUT_OFF


async def test_a_restarted_node_goes_on_with_what_it_stored(nats: NatsServer) -> None:
    """Channels of its data directory go on in their epochs; others of its former life end."""
    a, b = make("a", nats), make("b", nats)
    async with running(b):
        await a.start({})
        await claimed(a, "stored")
        await claimed(a, "gone")
        crash(a)
        again = make("a", nats)
        async with running(again, owned={"stored": 1}):
            await until(lambda: again.lease.fresh)
            assert await again.confirmed("stored", 1)
            await until(lambda: b.place("stored") == Place("a", "http://a:2939/trickle", 1, True))
            await until(lambda: b.place("gone") is None)
            assert b.channels["gone"].epoch == 1


async def test_a_channel_is_handed_over_in_its_epoch(nats: NatsServer) -> None:
    """The other node goes on with it, if it can; both know, and a third one, too."""
    heard = [Heard(), Heard(), Heard()]
    a, b, c = (make(name, nats, one) for name, one in zip("abc", heard, strict=True))
    async with running(a, b, c):
        await claimed(a, "x")
        assert await a.hand_over("x", 1, "b") is True
        assert not a.owns("x")
        await until(lambda: b.owns("x") and c.place("x") == Place("b", "http://b:2939/trickle", 1, True))
        assert heard[1].gifts == [("x", 1)]
        assert heard[0].losses == []
        assert await b.confirmed("x", 1)
        assert await a.hand_over("x", 1, "b") is False  # not its own
        assert await b.hand_over("x", 1, "nobody") is False
        assert b.owns("x")


async def test_who_has_given_a_channel_away_never_goes_on_with_it(nats: NatsServer) -> None:
    """Not after a crash with a data directory that still has it, and not when the other node has ended it meanwhile."""
    heard = Heard()
    a, b = make("a", nats), make("b", nats)
    async with running(b):
        await a.start({})
        await claimed(a, "x")
        assert await a.hand_over("x", 1, "b") is True
        crash(a)
        await until(lambda: b.owns("x"))
        b.ended("x", 1)
        await until(lambda: b.former("x") and not b.view.due)
        again = make("a", nats, heard)
        async with running(again, owned={"x": 1}):
            await until(lambda: heard.losses == [("x", 1)])
            assert again.place("x") is None


async def test_a_gift_that_cannot_be_taken_is_claimed_in_the_next_epoch(nats: NatsServer) -> None:
    """Nobody goes on with the epoch; the next claim of it, by any node, begins another."""
    heard = Heard()
    heard.takes = False
    a, b = make("a", nats), make("b", nats, heard)
    async with running(a, b):
        await claimed(a, "x")
        assert await a.hand_over("x", 1, "b") is True
        await until(lambda: heard.gifts)
        assert not b.owns("x")
        assert await claimed(b, "x") == 2


async def test_without_nats_channels_stay_and_decisions_wait(nats: NatsServer) -> None:
    """A server that is gone: the lease is cut off, all that was known stays, and a new connection mends all."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        await claimed(a, "x")
        await until(lambda: b.place("x") is not None)
        nats.stop(signal.SIGKILL)
        try:
            await until(lambda: a.lease.state is LeaseState.CUT_OFF and b.lease.state is LeaseState.CUT_OFF)
            assert "NATS is out of reach" in a.degraded
            assert a.owns("x")
            assert b.place("x") == Place("a", "http://a:2939/trickle", 1, True)
            assert not await a.confirmed("x", 1)
            assert isinstance(await b.claim("y"), Unavailable)
        finally:
            nats.start()
        await until(lambda: not a.degraded and not b.degraded)
        assert await a.confirmed("x", 1)
        assert b.place("x") == Place("a", "http://a:2939/trickle", 1, True)
        assert await claimed(b, "y") == 1


async def test_a_server_that_stands_still_is_noticed(nats: NatsServer) -> None:
    """Its connections stay open and bring nothing: the renewal that has no answer tells. A stop has a deadline."""
    a = make("a", nats)
    async with running(a):
        nats.freeze()
        try:
            await until(lambda: a.lease.state is LeaseState.CUT_OFF)
            assert a.counters.renewals_failed
            began = time.monotonic()
            await a.stop()
            assert time.monotonic() - began < 2 * (WITHIN_S / 60)  # 2 s, and as much for a machine that is busy
        finally:
            nats.thaw()


async def test_a_cut_way_ends_the_lease_of_its_node_only(nats: NatsServer) -> None:
    """Cut off from NATS, the owner stops being sure before another node can take its channel; back, it ends its own."""
    heard = Heard()
    async with relay(nats.port) as way:
        a, b = make("a", way, heard), make("b", nats)
        async with running(a, b):
            await claimed(a, "x")
            await claimed(a, "y")
            await until(lambda: b.place("x") and b.place("y"))
            way.cut()
            epoch = await claimed(b, "x")
            assert not a.lease.fresh
            assert epoch == 2
            await until(lambda: a.lease.state is LeaseState.CUT_OFF)
            way.heal()
            way.break_all()
            await until(lambda: not a.degraded and a.lease.fresh)
            assert heard.losses == [("x", 1)]
            assert await a.confirmed("y", 1)  # nobody wanted it: it goes on in its epoch
            assert a.place("x") == Place("b", "http://b:2939/trickle", 2, True)
            assert a.counters.terms_lost == 1


@pytest.mark.parametrize("how", ["emptied", "deleted", "rolled back"])
async def test_a_lost_bucket_is_made_again(nats: NatsServer, how: str) -> None:
    """From what nodes own and remember: epochs, owners, a dead node's channels, tombstones and the secret."""
    a, b, dead = make("a", nats), make("b", nats), make("dead", nats)
    async with running(a, b):
        await dead.start({})
        await claimed(a, "old")
        copy = nats.save() if how == "rolled back" else None
        await until(lambda: not a.degraded and not b.degraded and not dead.degraded)
        await claimed(a, "x", 4)
        await claimed(b, "y", 5)
        await claimed(dead, "z", 6)
        await claimed(b, "ended", 7)
        b.ended("ended", 8)
        await until(lambda: all(b.channels.get(name) for name in ("old", "x", "y", "z")))
        await until(lambda: "ended" in a.channels and a.channels["ended"].ended)
        crash(dead)
        secret = a.secret
        if copy is not None:
            nats.roll_back(copy)
        else:
            admin = await Bucket.open(NatsOptions((nats.url,)), "admin")
            stream = admin._client.jetstream()
            await (stream.purge_stream("KV_trickle") if how == "emptied" else stream.delete_stream("KV_trickle"))
            await admin.close()
        await until(lambda: a.counters.terms_lost and b.counters.terms_lost)
        await until(lambda: not a.degraded and not b.degraded and not a.view.restoring and not b.view.restoring)
        new = make("new", nats)
        async with running(new):
            found = {name: (entry.epoch, entry.owner.node, entry.ended) for name, entry in new.channels.items()}
            assert found == {
                "old": (1, "a", False),
                "x": (5, "a", False),
                "y": (6, "b", False),
                "z": (7, "dead", False),
                "ended": (8, "b", True),
            }
            assert new.secret == a.secret == secret
            assert await a.confirmed("x", 5)
            assert await claimed(new, "z") == 8


async def test_a_key_that_is_deleted_is_put_back(nats: NatsServer) -> None:
    """By its owner, who is alive; no other node can take the channel meanwhile."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        await claimed(a, "x")
        await until(lambda: b.place("x"))
        admin = await Bucket.open(NatsOptions((nats.url,)), "admin")
        for _ in range(2):
            before = a.channels["x"].revision
            kv = await admin._client.jetstream().key_value("trickle")
            await kv.delete("channel.x")
            assert isinstance(await b.claim("x"), Taken)
            await until(partial(lambda old: a.channels["x"].revision > old + 1 and not a.channels["x"].missing, before))
        await admin.close()
        await until(lambda: b.channels["x"].revision == a.channels["x"].revision)
        assert await a.confirmed("x", 1)


async def test_a_watch_that_brings_nothing_is_begun_again(nats: NatsServer) -> None:
    """Renewals succeed, and their echoes do not come: the server has lost what delivers them, and tells nobody."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        admin = await Bucket.open(NatsOptions((nats.url,)), "admin")
        stream = admin._client.jetstream()
        before = a.counters.connections, b.counters.connections
        for consumer in await stream.consumers_info("KV_trickle"):
            await stream.delete_consumer("KV_trickle", consumer.name)
        await admin.close()
        await until(lambda: a.counters.connections > before[0] and b.counters.connections > before[1])
        await until(lambda: not a.degraded and not b.degraded)
        assert (a.counters.deposed, b.counters.deposed) == (0, 0)
        assert await claimed(a, "x") == 1
        await until(lambda: b.place("x"))


async def test_an_epoch_outlives_its_key(nats: NatsServer) -> None:
    """A claim of a channel whose key has vanished without a word begins above the epoch that this node remembers."""
    a, b = make("a", nats), make("b", nats)
    async with running(b):
        async with running(a):
            await claimed(a, "x", 4)
            await until(lambda: b.place("x"))
        await until(lambda: not b.reachable("a"))
        admin = await Bucket.open(NatsOptions((nats.url,)), "admin")
        await admin._client.jetstream().purge_stream("KV_trickle", subject="$KV.trickle.channel.x")
        await admin.close()
        assert await b.claim("x") == Claimed(6)


async def test_values_that_make_no_sense_are_left_alone(nats: NatsServer) -> None:
    """A person may write anything into the bucket. It is counted, and harms no other key."""
    a = make("a", nats)
    async with running(a):
        await claimed(a, "x")
        admin = await Bucket.open(NatsOptions((nats.url,)), "admin")
        for key in ("channel.bad", "node.bad", "channel.=zz", "other", "channel.x"):
            for value in (b"", b"{", b"[]", b'{"node":1}'):
                with suppress(Conflict):  # the owner was quicker
                    await admin.put(key, value, (await admin.get(key))[1])
        await until(lambda: a.counters.bad_values >= 12 and a.channels["x"].revision > 16 and a.lease.fresh)
        assert await a.confirmed("x", 1)
        assert await claimed(a, "bad") == 1
        await admin.close()


async def test_claims_are_bounded(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many that wait for NATS are refused at once, so a flood of new channels takes bounded memory."""
    monkeypatch.setattr(directories, "MAX_CLAIMS", 3)
    monkeypatch.setattr(directories, "CLAIM_S", 0.2)
    a = make("a", nats)
    async with running(a):
        a._settled.clear()
        a._settle_at = a._clock() + 3600
        results = await asyncio.gather(*(a.claim(f"c{number}") for number in range(5)))
        assert [isinstance(result, Unavailable) for result in results] == [True] * 5
        assert [result.why for result in results if isinstance(result, Unavailable)].count(
            "too many claims wait for NATS"
        ) in (0, 2)
        assert a.counters.claims_unavailable == 5
        assert not a._claims


async def test_a_wrong_password_is_told(tmp_path: Path) -> None:
    """A node that NATS refuses says why, and goes on trying."""
    with nats_server("--user", "trickle", "--pass", "secret") as server:
        wrong, right = server.url.replace("//", "//trickle:wrong@"), server.url.replace("//", "//trickle:secret@")
        a = make("a", wrong)
        assert not await a.start({}, 1.0)
        assert "authorization" in a.degraded.lower()
        await a.stop()
        async with running(make("a", right)):
            pass
    with pytest.raises(Unreachable):
        await Bucket.open(NatsOptions((right,)), "test")


async def test_tls_is_what_its_url_says(tmp_path: Path, nats: NatsServer) -> None:
    """With `tls://` the server's certificate is verified, and a server that speaks no TLS is refused."""
    make_certificate(tmp_path)
    with pytest.raises(Unreachable, match="offers no TLS"):
        await Bucket.open(NatsOptions((nats.url.replace("nats:", "tls:"),)), "test")
    with nats_server("--tls", "--tlscert", f"{tmp_path}/cert.pem", "--tlskey", f"{tmp_path}/key.pem") as server:
        url = server.url.replace("nats:", "tls:")
        with pytest.raises(Unreachable, match="certificate"):
            await Bucket.open(NatsOptions((url,)), "test")
        trusted = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        bucket = await Bucket.open(NatsOptions((url,), tls=trusted), "test")
        assert await bucket.put("channel.x", b"{}", 0) == 1
        await bucket.close()


async def test_a_server_that_is_not_nats_is_told() -> None:
    """A wrong port in the URL is the likely cause."""

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unreachable, match="INFO"):
        await Bucket.open(NatsOptions((f"nats://127.0.0.1:{port}",)), "test")
    server.close()


NODE = """
import asyncio, sys, time
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.directory import Claimed, Directory, NodeFacts
from tests.app.cluster.test_directory import Heard

async def main(url):
    a = Directory(lambda: Bucket.open(NatsOptions((url,)), "a"), NodeFacts("a", "http://a"), Heard(), lease_s=1.0)
    await a.start({})
    while not isinstance(await a.claim("x"), Claimed):
        await asyncio.sleep(0.05)
    while True:
        now = time.monotonic()
        sure = a.lease.fresh and a.owns("x")
        print(now, sure, await a.confirmed("x", 1), flush=True)
        await asyncio.sleep(0.01)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_process_that_stood_still_refuses_before_it_does_harm(nats: NatsServer) -> None:
    """Stopped for longer than a lease, and continued: it is not sure of its channel from its first instruction on."""
    b = make("b", nats, lease_s=1.0)
    command = [sys.executable, "-c", NODE, nats.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - it is quick
    assert process.stdout is not None
    lines = asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())

    reading = loop.run_in_executor(None, read)
    try:
        async with running(b):
            while not (await lines.get()).endswith("True True"):
                pass
            await until(lambda: b.place("x"))
            os.kill(process.pid, signal.SIGSTOP)
            assert await claimed(b, "x") == 2
            taken_at = time.monotonic()
            os.kill(process.pid, signal.SIGCONT)
            afterwards = 0
            while afterwards < 50:
                at, *answers = (await lines.get()).split()
                if float(at) > taken_at:
                    afterwards += 1
                    assert answers == ["False", "False"]
    finally:
        process.kill()
        process.wait()
        await reading
        process.stdout.close()


@pytest.mark.long
async def test_a_cluster_loses_its_leader() -> None:
    """Three servers: the bucket has three replicas. The one that leads it is killed, and nothing is lost."""
    with nats_cluster() as servers:
        options = NatsOptions(tuple(server.url for server in servers))
        a, b = make("a", options, lease_s=2.0), make("b", options, lease_s=2.0)
        async with running(a, b):
            await claimed(a, "x")
            admin = await Bucket.open(options, "admin")
            info = await admin.ask("STREAM.INFO", "KV_trickle")
            assert info is not None
            assert info["config"]["num_replicas"] == 3
            await admin.close()
            leader = eventually(lambda: [server for server in servers if server.leads("KV_trickle")])[0]
            leader.stop(signal.SIGKILL)
            renewals = a.counters.renewals, b.counters.renewals
            await until(lambda: a.counters.renewals > renewals[0] + 2 and b.counters.renewals > renewals[1] + 2)
            await until(lambda: not a.degraded and not b.degraded and a.lease.fresh)
            assert await a.confirmed("x", 1)
            assert await claimed(b, "y") == 1
            await until(lambda: a.place("y"))


async def test_a_node_with_a_longer_lease_is_given_its_time(nats: NatsServer) -> None:
    """A node with a short lease does not take another one's channels while that one trusts its lease."""
    slow, quick = make("slow", nats, lease_s=1.5), make("quick", nats, lease_s=0.2)
    async with running(slow, quick):
        await claimed(slow, "film")
        await until(lambda: quick.place("film") is not None)
        assert slow._running is not None
        slow._running.cancel()
        renewals = quick.counters.renewals
        await until(lambda: quick.counters.renewals > renewals + 8)  # two leases of its own
        assert isinstance(await quick.claim("film"), Taken) or not slow.lease.fresh
