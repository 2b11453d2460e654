"""What nodes decide together, in virtual time: NATS is a model (:mod:`.test_directory_on_nats` has the real one)."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from random import Random
from typing import Any

import orjson
import pytest

from tests.app.cluster.directories import LEASE_S, Heard, claimed, crash, make, open_way, running
from tests.app.cluster.model import ModelNats, Way
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.cluster import directory as directories
from tricklecast.app.cluster import view as views
from tricklecast.app.cluster.bucket import AnyBucket
from tricklecast.app.cluster.directory import Claimed, Directory, NameInUse, Taken, Unavailable
from tricklecast.app.cluster.jetstream import Unreachable
from tricklecast.app.cluster.lease import LeaseState
from tricklecast.app.cluster.view import Entry, Owner, Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
async def nats() -> ModelNats:
    return ModelNats(Random(1), asyncio.get_running_loop())


async def test_of_two_claims_one_wins(nats: ModelNats) -> None:
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


async def test_an_epoch_is_above_all_that_is_remembered(nats: ModelNats) -> None:
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


async def test_a_channel_is_looked_up_that_the_watch_has_not_brought_yet(nats: ModelNats) -> None:
    """A name that nobody has leaves nothing behind, and neither does a question without NATS."""
    a, b = make("a", nats), make("b", nats)
    await b.look_up("x")
    async with running(a, b):
        for number in range(50):
            await claimed(a, f"c{number}")
            await b.look_up(f"c{number}")
            assert b.place(f"c{number}") == Place("a", "http://a:2939/trickle", 1, True)
        await b.look_up("nobody")
        assert "nobody" not in b.channels


async def test_tombstones_that_a_node_knows_are_bounded(nats: ModelNats, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_channels_of_a_dead_node_are_free(nats: ModelNats) -> None:
    """After the time of a lease, in the next epoch. The dead node is deposed once, however many channels it had."""
    a, b, c = make("a", nats), make("b", nats), make("c", nats)
    async with running(b, c):
        await a.start({})
        names = [f"c{number}" for number in range(10)]
        await asyncio.gather(*(claimed(a, name) for name in names))
        await until(lambda: all(b.place(name) and c.place(name) for name in names))
        crash(a)
        died = asyncio.get_running_loop().time()
        epochs = await asyncio.gather(*(claimed(b if number % 2 else c, name) for number, name in enumerate(names)))
        assert asyncio.get_running_loop().time() - died > LEASE_S * 0.7  # a renewal may have been underway
        assert epochs == [2] * 10
        assert b.counters.deposed + c.counters.deposed == 1
        assert b.counters.takeovers + c.counters.takeovers == 10


async def test_a_channel_that_is_taken_while_its_owner_is_deposed(
    nats: ModelNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was faster has it: the other one writes behind no revision of which it has not seen the epoch."""
    a, b, c = make("a", nats), make("b", nats), make("c", nats)
    async with running(b, c):
        await a.start({})
        await claimed(a, "x")
        await until(lambda: b.place("x") is not None and c.place("x") is not None)
        crash(a)
        await until(lambda: not (b.reachable("a") or c.reachable("a")))
        is_free = Directory._is_free

        async def slow(directory: Directory, *about: Any) -> bool:
            free = await is_free(directory, *about)
            if directory is c and free:
                assert await claimed(b, "x") == 2
                await until(lambda: c.channels["x"].epoch == 2)
            return free

        monkeypatch.setattr(Directory, "_is_free", slow)
        assert isinstance(await c.claim("x"), Taken)
        assert b.owns("x")


async def test_a_node_that_leaves_is_not_waited_for(nats: ModelNats) -> None:
    """Its channels are free at once."""
    a, b = make("a", nats), make("b", nats)
    async with running(b):
        async with running(a):
            await claimed(a, "x")
        await until(lambda: not b.reachable("a"))
        assert await b.claim("x") == Claimed(2)
        assert b.counters.deposed == 0


async def test_a_name_is_used_once(nats: ModelNats) -> None:
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


async def test_a_replaced_node_ends_its_channels(nats: ModelNats) -> None:
    """A process that stood still while another one took its name has nothing any more."""
    heard = Heard()
    a = make("a", nats, heard)
    async with running(a):
        await claimed(a, "x")
        node = orjson.dumps({"url": "http://new", "term": a.view.term + 1, "state": "serving"})
        nats.put("node.a", node, None, 0)
        await until(lambda: heard.losses)
        assert heard.losses == [("x", 1)]
        assert "in use by http://new" in a.degraded
        assert isinstance(await a.claim("y"), Unavailable)
        assert a.lease.state is LeaseState.CUT_OFF


async def test_a_restarted_node_goes_on_with_what_it_stored(nats: ModelNats) -> None:
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


async def test_a_channel_is_handed_over_in_its_epoch(nats: ModelNats) -> None:
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


async def test_who_has_given_a_channel_away_never_goes_on_with_it(nats: ModelNats) -> None:
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


async def test_a_gift_that_cannot_be_taken_is_claimed_in_the_next_epoch(nats: ModelNats) -> None:
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


async def test_a_cut_way_ends_the_lease_of_its_node_only(nats: ModelNats) -> None:
    """Cut off from NATS, the owner stops being sure before another node can take its channel; back, it ends its own."""
    heard = Heard()
    way = open_way(nats)
    a, b = make("a", nats, heard, way=way), make("b", nats)
    async with running(a, b):
        await claimed(a, "x")
        await claimed(a, "y")
        await until(lambda: b.place("x") and b.place("y"))
        way.open.clear()
        epoch = await claimed(b, "x")
        assert not a.lease.fresh
        assert epoch == 2
        await until(lambda: a.lease.state is LeaseState.CUT_OFF)
        way.open.set()
        await until(lambda: a.lease.valid)
        assert not a.lease.fresh  # it has a new term, and its channels may be another node's
        way.open.clear()
        assert not await a.confirmed("x", 1)  # nobody can tell
        way.open.set()
        await until(lambda: not a.degraded and a.lease.fresh)
        assert heard.losses == [("x", 1)]
        assert await a.confirmed("y", 1)  # nobody wanted it: it goes on in its epoch
        assert a.place("x") == Place("b", "http://b:2939/trickle", 2, True)
        assert a.counters.terms_lost >= 1


async def test_a_lease_counts_from_when_its_renewal_was_sent(nats: ModelNats) -> None:
    """Not from the answer, which may take long."""

    class LongWay(Way):
        async def travel(self) -> None:
            await asyncio.sleep(0.2)
            await self.open.wait()

    way = LongWay(nats.dice)
    way.open.set()
    a = make("a", nats, way=way, lease_s=1.0)
    async with running(a):
        renewals = a.counters.renewals
        await until(lambda: a.counters.renewals > renewals)  # it was sent 0.4 s ago, and is good for 0.8 s
        way.open.clear()
        await asyncio.sleep(0.3)
        assert a.lease.fresh
        await asyncio.sleep(0.15)
        assert not a.lease.fresh
        way.open.set()


async def test_after_a_break_of_nats_all_have_time_to_come_back(nats: ModelNats) -> None:
    """Nobody is taken for dead by the first one that is back."""
    way = open_way(nats)
    a, b = make("a", nats, way=way), make("b", nats)
    async with running(a, b):
        await claimed(a, "x")
        await until(lambda: b.place("x"))
        nats.up = False
        nats.break_all()
        await asyncio.sleep(3 * LEASE_S)
        way.open.clear()
        nats.up = True
        await until(lambda: b.lease.valid)
        assert isinstance(await b.claim("x"), Taken)
        way.open.set()
        await until(lambda: not a.degraded)
        assert await a.confirmed("x", 1)


async def test_a_claim_without_an_answer_leaves_nothing(nats: ModelNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been written: the node that does not own the channel ends it, and nobody waits for it for ever."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        assert a._bucket is not None
        put = a._bucket.put

        async def unanswered(key: str, *about: Any, **more: Any) -> int:
            revision = await put(key, *about, **more)
            if key == "channel.x":
                monkeypatch.undo()
                await asyncio.Event().wait()
            return revision

        monkeypatch.setattr(a._bucket, "put", unanswered)
        assert isinstance(await a.claim("x"), Unavailable)
        await until(lambda: b.former("x"))
        assert await claimed(b, "x") == 2


async def test_a_node_whose_watch_lags_does_not_claim(nats: ModelNats) -> None:
    """It may not have heard of a channel, and if the bucket is lost then, nothing else would stop it."""
    way = open_way(nats)
    a, b = make("a", nats), make("b", nats, way=way)
    async with running(a, b):
        _stop_watching(nats, way)
        await asyncio.sleep(LEASE_S / 2)
        assert await a.claim("x") == Claimed(1)
        nats.purge()
        assert await b.claim("x") != Claimed(1)


async def test_a_watch_that_brings_nothing_ends_its_connection(nats: ModelNats) -> None:
    """This node's own renewals should come back by it."""
    way = open_way(nats)
    a = make("a", nats, way=way)
    async with running(a):
        _stop_watching(nats, way)
        await until(lambda: a.counters.connections == 2)


def _stop_watching(nats: ModelNats, way: Way) -> None:
    for connection in nats.connections:
        if connection.way is way:
            connection.stop_watching()


async def test_who_restores_a_bucket_is_waited_for(nats: ModelNats) -> None:
    """A node that has much to put back says so; until then others claim nothing that may be among it."""
    a, b = make("a", nats), make("b", nats)
    async with running(a):
        a.view.channels["x"] = Entry(Owner("dead", 1), 9, 0, False, missing=True)
        a.view.due["x"] = nats.now() + 5 * LEASE_S
        a.view.restoring = True
        await asyncio.sleep(LEASE_S)
        await b.start({})
        await asyncio.sleep(3 * LEASE_S)
        assert "put back" in b.degraded
        assert await claimed(b, "x") == 10
        await b.stop()


async def test_an_answer_that_the_watch_has_overtaken_is_ignored(nats: ModelNats) -> None:
    """What was asked after a conflict may be older than what was heard meanwhile."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        assert await a.claim("x", 4) == Claimed(5)
        await until(lambda: b.place("x"))
        tried, old = b.view.revision("x"), nats.get("channel.x")
        assert await a.hand_over("x", 5, "b") is True
        bucket = b._bucket
        assert bucket is not None

        async def get(key: str) -> tuple[bytes | None, int]:
            await until(lambda: b.owns("x"))
            return old

        bucket.get = get  # type: ignore[method-assign]
        await b._refresh(bucket, "x", tried)
        assert b.owns("x")


@pytest.mark.parametrize("how", ["emptied", "deleted", "rolled back"])
async def test_a_lost_bucket_is_made_again(nats: ModelNats, how: str) -> None:
    """From what nodes own and remember: epochs, owners, a dead node's channels, tombstones and the secret."""
    a, b, dead = make("a", nats), make("b", nats), make("dead", nats)
    async with running(a, b):
        await dead.start({})
        await claimed(a, "old")
        copy = dict(nats.messages), nats.last
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
        match how:
            case "emptied":
                nats.purge()
            case "deleted":
                nats.delete()
            case "rolled back":
                nats.roll_back(*copy)
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


async def test_a_lost_bucket_forgets_that_a_node_was_deposed(nats: ModelNats) -> None:
    """When that node comes back, it waits until the others have put back what they know: one node answers at a time."""
    heard, way, other = Heard(), open_way(nats), open_way(nats)
    a, b = make("a", nats, heard, way=way), make("b", nats, way=other)
    async with running(a, b):
        await claimed(a, "x")
        await claimed(a, "y")
        await until(lambda: b.place("x") and b.place("y"))
        way.open.clear()
        assert await claimed(b, "x") == 2
        await until(lambda: a.lease.state is LeaseState.CUT_OFF)
        renewals = b.counters.renewals
        await until(lambda: b.counters.renewals > renewals)
        nats.purge()
        way.open.set()
        other.open.clear()  # b notices later than a
        nats.loop.call_later(0.15, other.open.set)
        async with asyncio.timeout(WITHIN_S):
            while not heard.losses:
                assert not (a.lease.fresh and b.lease.fresh), "b has it"
                await asyncio.sleep(0.001)
        await until(lambda: not a.degraded and a.lease.fresh)
        assert await a.confirmed("y", 1)  # nobody has wanted it
        assert await b.confirmed("x", 2)


async def test_a_key_that_is_deleted_is_put_back(nats: ModelNats) -> None:
    """By its owner, who is alive; no other node can take the channel meanwhile."""
    a, b = make("a", nats), make("b", nats)
    async with running(a, b):
        await claimed(a, "x")
        await until(lambda: b.place("x"))
        for _ in range(2):
            before = a.channels["x"].revision
            nats.put("channel.x", None, None, 0)
            assert isinstance(await b.claim("x"), Taken)
            await until(partial(lambda old: a.channels["x"].revision > old + 1 and not a.channels["x"].missing, before))
        await until(lambda: b.channels["x"].revision == a.channels["x"].revision)
        assert await a.confirmed("x", 1)


async def test_a_read_that_ends_with_its_connection_is_no_fault(
    nats: ModelNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that is cancelled may fail instead, since the connection has ended: nobody has to ask why."""

    async def read(self: Directory, bucket: AnyBucket) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise Unreachable("the connection has ended") from None

    monkeypatch.setattr(Directory, "_read", read)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    directory = make("a", nats)
    await directory.start({}, 0.0)
    await until(lambda: directory.lease.valid)
    await directory.stop()
    gc.collect()
    assert faults == []


async def test_an_epoch_outlives_its_key(nats: ModelNats) -> None:
    """A claim of a channel whose key has vanished without a word begins above the epoch that this node remembers."""
    a, b = make("a", nats), make("b", nats)
    async with running(b):
        async with running(a):
            await claimed(a, "x", 4)
            await until(lambda: b.place("x"))
        await until(lambda: not b.reachable("a"))
        del nats.messages["channel.x"]
        assert await b.claim("x") == Claimed(6)


async def test_values_that_make_no_sense_are_left_alone(nats: ModelNats) -> None:
    """A person may write anything into the bucket. It is counted, and harms no other key."""
    a = make("a", nats)
    async with running(a):
        await claimed(a, "x")
        for key in ("channel.bad", "node.bad", "channel.=zz", "other", "channel.x"):
            for value in (b"", b"{", b"[]", b'{"node":1}'):
                nats.put(key, value, None, 0)
        await until(lambda: a.counters.bad_values >= 12 and a.channels["x"].revision > 16 and a.lease.fresh)
        assert await a.confirmed("x", 1)
        assert await claimed(a, "bad") == 1


async def test_claims_are_bounded(nats: ModelNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many that wait for NATS are refused at once, so a flood of new channels takes bounded memory."""
    monkeypatch.setattr(directories, "MAX_CLAIMS", 3)
    monkeypatch.setattr(directories, "CLAIM_S", 0.2)
    a = make("a", nats)
    async with running(a):
        a._settled.clear()
        a._settle_at = asyncio.get_running_loop().time() + 3600
        results = await asyncio.gather(*(a.claim(f"c{number}") for number in range(5)))
        assert [isinstance(result, Unavailable) for result in results] == [True] * 5
        assert [result.why for result in results if isinstance(result, Unavailable)].count(
            "too many claims wait for NATS"
        ) in (0, 2)
        assert a.counters.claims_unavailable == 5
        assert not a._claims


async def test_a_node_with_a_longer_lease_is_given_its_time(nats: ModelNats) -> None:
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
