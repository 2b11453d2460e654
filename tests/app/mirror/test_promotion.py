"""A destination takes its source's place: what its clients see, what a crash leaves, and who is read-only."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.app.data_plane.test_players import FORMATS, Live, seqs
from tests.app.mirror.pair import Site, body, client, destination_of, durable, film, run, settled
from tests.support.local import LocalServer
from tests.support.waiting import eventually
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.app.data_plane.exchange import Parked
from tricklecast.app.hls import packager
from tricklecast.app.local import LocalPublisher
from tricklecast.app.mirror.read_only import DeposedUnreadable, ReadOnly
from tricklecast.publisher import Publisher
from tricklecast.subscriber import Subscriber
from tricklecast.trickle.errors import Refused

SOURCE = "https://source.example/trickle"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A source and a destination, both with storage; the destination mirrors all but names that begin with `own`."""
    found = Site(tmp_path / "source", tmp_path / "target")
    mirrors(found.target)
    yield found
    found.close()


def mirrors(server: LocalServer) -> None:
    """Set its mirror."""
    server.inside(lambda: destination_of(server).mirror(SOURCE, lambda name: not name.startswith("own")))


def url(server: LocalServer, name: str = "film") -> str:
    """Of a channel."""
    return f"http://127.0.0.1:{server.port}/trickle/{name}"


# Read-only.


def test_publishers_are_refused_where_a_mirror_is_set(site: Site) -> None:
    """Whatever they want to change, over both planes: 503, the reason, and what to do. Others go on."""
    film(site.source).publish(0, b"x")
    site.pair.follow()
    here, plain = film(site.target), client(site.target)
    answers = [
        here.post(1),
        here.post(0, headers={"Lp-Trickle-Reset": "1"}),
        here.ask("POST"),
        here.ask("DELETE"),
        here.close(0),
        film(site.target, "new").post(0),
        plain.ask("POST", "/api/v1/channels", {"Content-Type": "application/json"}, b'{"name": "new"}'),
        plain.ask("DELETE", "/api/v1/channels/film"),
        plain.ask("DELETE", "/api/v1/channels/film/segments/0"),
    ]
    assert [answer.status for answer in answers] == [503] * len(answers)
    for answer in answers:
        assert SOURCE.encode() in answer.body
        assert b"tricklecast mirror promote" in answer.body
    eventually(lambda: sum(one.reason == "mirror" for one in list(site.target.records)) == len(answers))
    film(site.target, "own").publish(0, b"y").has(0, b"y").end()
    here.has(0, b"x")
    assert site.target.plane.registry.channels.keys() >= {"film"}


def test_a_program_in_the_process_is_refused(site: Site) -> None:
    """With the same exception as a client over HTTP."""

    async def publish() -> None:
        with pytest.raises(Refused, match="This server mirrors"):
            await LocalPublisher(site.target.bus, "film").publish(b"x")

    run(site.target, publish())


def test_who_publishes_when_a_mirror_is_set_is_sent_away(site: Site) -> None:
    """Also one that has only connected; what has come stays, as after a broken connection."""
    site.target.inside(destination_of(site.target).read_only.stop)
    here = film(site.target)
    upload, _ = here.started(0, b"begun")
    waiting = here.preconnect(1)
    mirrors(site.target)
    for one in (upload, waiting):
        assert one.answer().status == 503
    segment = site.target.plane.registry.channels["film"].segments[0]
    assert (segment.written, segment.size) == (False, 5)


# Promotion.


def test_a_promoted_channel_takes_publishers(site: Site) -> None:
    """One epoch up, with its window, what is stored, and the rest of a segment that was on its way."""
    film(site.source).create("video/mp2t").publish(0, *map(body, range(6)))
    site.pair.follow()
    site.pair.insert("film", 0, body(0))
    upload, _ = film(site.source).started(6, b"half", headers={"Idempotency-Key": "k"})
    site.pair.same()
    site.stop_source()
    waiting = film(site.target).waiting(7)
    middle = film(site.target).arrived(6, b"half")
    upload.abort()
    assert run(site.target, destination_of(site.target).promote()) == 1
    here = film(site.target)
    retry = {"Idempotency-Key": "k", "Trickle-Attempt": "2"}
    here.upload(6, b"half", b" and half", headers=retry).end()
    middle.ends(b" and half")
    here.publish(7, body(7))
    assert waiting.response().body == body(7)
    for seq in (0, 3, 4, 5, 7):
        here.has(seq, body(seq), epoch=2, content_type="video/mp2t")
    film(site.target, "new").publish(0, b"x").has(0, b"x", epoch=1)
    settled(site.target)
    site.restart_target()
    assert site.target.inside(lambda: destination_of(site.target).own_channels()) == {"film": 2, "new": 1}
    here = film(site.target)
    for seq in (0, 3, 4, 5, 7):
        here.has(seq, body(seq), epoch=2)
    here.has(6, b"half and half").publish(8, body(8)).has(8, body(8), epoch=2).end()
    here.publish(0, b"next").has(0, b"next", epoch=3)


def test_one_channel_is_promoted(site: Site) -> None:
    """The others stay copies, of which nobody may publish a byte."""
    for name in ("film", "other"):
        film(site.source, name).publish(0, b"x")
        site.pair.follow(name)
    destination = destination_of(site.target)
    site.target.inside(lambda: destination.mirror(SOURCE, lambda name: name == "other"))
    assert run(site.target, destination.promote(["film", "nobody"])) == 1
    film(site.target).publish(1, b"y").has(1, b"y", epoch=2)
    assert film(site.target, "other").post(1).status == 503
    film(site.source, "other").publish(1, b"z")
    site.pair.same("other")
    film(site.target, "other").has(1, b"z", epoch=1)


def test_a_promotion_that_ends_in_the_middle(site: Site, tmp_path: Path) -> None:
    """A crash leaves each channel promoted, or a copy; doing it again promotes the rest."""
    names = [f"film-{n}" for n in range(6)]
    for name in names:
        film(site.source, name).publish(0, b"x")
        site.pair.follow(name)
    settled(site.target)
    destination = destination_of(site.target)
    run(site.target, destination.promote(names[:3]))
    copied = tmp_path / "crashed"
    shutil.copytree(tmp_path / "target", copied)
    with durable(copied) as crashed:
        after = destination_of(crashed)
        assert crashed.inside(after.own_channels) == dict.fromkeys(names[:3], 2)
        assert crashed.inside(after.channels) == dict.fromkeys(names[3:], 1)
        assert run(crashed, after.promote()) == 3
        assert crashed.inside(after.own_channels) == dict.fromkeys(names, 2)


def test_a_promotion_that_the_disk_does_not_take(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in force, and whoever asked for it hears that a restart would undo it."""
    film(site.source).publish(0, b"x")
    site.pair.follow()
    settled(site.target)
    archive = site.target.archive
    assert archive is not None
    commit = archive.database.commit

    def full(batch: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.database, "commit", full)
    with pytest.raises(OSError, match="No space left"):
        run(site.target, destination_of(site.target).promote())
    film(site.target).publish(1, b"y")
    monkeypatch.setattr(archive.database, "commit", commit)
    site.target.inside(archive._retry)
    eventually(lambda: site.target.inside(lambda: archive.failed) is None)
    settled(site.target)
    site.restart_target()
    film(site.target).has(0, b"x", epoch=2).has(1, b"y")


def test_our_clients_go_on(site: Site) -> None:
    """A subscriber that reads at the destination misses nothing; a publisher that comes goes on at the head."""

    async def go() -> list[tuple[int, int | None, bytes]]:
        found = []
        async with Publisher(url(site.source)) as publisher:
            for n in range(3):
                await publisher.publish(b"source %d" % n)
            await asyncio.to_thread(site.pair.follow)
            async with Subscriber(url(site.target), start=0) as subscriber:
                segments = aiter(subscriber)
                for _ in range(3):
                    segment = await anext(segments)
                    found.append((segment.seq, segment.epoch, await segment.read()))
                await publisher.publish(b"source 3")
                segment = await anext(segments)
                found.append((segment.seq, segment.epoch, await segment.read()))
                reading = asyncio.ensure_future(anext(segments))
                await asyncio.to_thread(
                    eventually, lambda: site.target.plane.registry.channels["film"].reading.used, what="it waits"
                )
                await asyncio.to_thread(site.pair.stop)
                await asyncio.to_thread(run, site.target, destination_of(site.target).promote())
                async with Publisher(url(site.target)) as successor:
                    for n in range(4, 7):
                        await successor.publish(b"target %d" % n)
                    for n in range(4, 7):
                        segment = await (reading if n == 4 else anext(segments))
                        found.append((segment.seq, segment.epoch, await segment.read()))
                seen = subscriber.statistics()
                assert (seen.gaps, seen.truncated) == (0, 0), seen
        return found

    epochs = [1, 1, 1, 1, 2, 2, 2]
    texts = [b"source 0", b"source 1", b"source 2", b"source 3", b"target 4", b"target 5", b"target 6"]
    assert asyncio.run(go()) == list(zip(range(7), epochs, texts, strict=True))


# Players.


@pytest.mark.parametrize("content_type", FORMATS)
def test_a_player_goes_on_after_a_promotion(site: Site, content_type: str) -> None:
    """Numbers and names go on; where another publisher's times begin is a discontinuity, and only there."""
    there, here = Live(film(site.source), content_type), Live(film(site.target), content_type)
    for seq in range(5):
        there.publish(seq)
    site.pair.follow()
    first = here.playlist().msn
    media = {one.uri: here.media(one.uri) for one in here.playlist().whole}
    there.publish(5)
    here.until(5)
    site.pair.same()
    site.stop_source()
    waiting = here.channel.read("media.m3u8" + here.next_query())
    eventually(lambda: site.target.plane.parked[ParkedFor.PLAYLIST], what="it waits")
    assert run(site.target, destination_of(site.target).promote()) == 1
    here.publish(6, 1000.0)
    here.watcher.see(waiting.response().expect(200).body.decode())
    here.until(6)
    here.publish(7, 1001.0)
    found = here.until(7)
    assert seqs(found) == ["2", "3", "4", "5", "|", "6", "7"], "from the window on"
    assert (found.msn, [one.msn for one in found.whole]) == (first, [first + n for n in range(6)])
    assert {uri: here.media(uri) for uri in media} == media
    assert all(here.media(one.uri) for one in found.whole)


def test_the_numbers_of_a_copy_do_not_jump(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody plays at the source, which then knows of no playlist, or has played there before."""
    there, here = Live(film(site.source)), Live(film(site.target))
    for seq in range(4):
        there.publish(seq)
    site.pair.follow()
    first = here.playlist().msn
    monkeypatch.setattr(packager, "IDLE_S", -1.0)
    for seq, plays_there in ((4, False), (5, True), (6, False)):
        there.publish(seq)
        if plays_there:
            there.until(seq)
        here.until(seq)
        site.pair.same()
        for server in (site.source, site.target):
            server.inside(partial(server.plane.packagers.expire, server.plane.clock()))
        found = here.playlist()
        assert (found.msn, seqs(found)) == (first, [str(one) for one in range(1, seq + 1)])
    settled(site.target)
    site.restart_target()
    site.pair.follow()
    assert Live(film(site.target)).playlist().msn == first


# Deposed.


def test_a_server_whose_place_is_taken_is_read_only(tmp_path: Path) -> None:
    """Its channels stay readable, also after a restart, until it is released."""
    folder = tmp_path / "data"
    with durable(folder) as server:
        here = film(server).publish(0, b"x")
        upload, waiting = here.preconnect(1), here.waiting(1)
        server.inside(lambda: destination_of(server).depose("https://new.example", ["fi*"]))
        assert upload.answer().status == 503
        assert waiting.response().status == 503, "another server has what it waits for"
        refused = here.post(1)
        assert (refused.status, refused.body) == (
            503,
            b"https://new.example has taken this server's place: publish there",
        )
        here.has(0, b"x")
        film(server, "other").publish(0, b"y")
    assert json.loads((folder / "deposed.json").read_bytes()) == {"by": "https://new.example", "channels": ["fi*"]}
    with durable(folder) as server:
        assert film(server).has(0, b"x").post(1).status == 503
        server.inside(destination_of(server).read_only.release)
        film(server).publish(1, b"y")
    with durable(folder) as server:
        film(server).has(1, b"y").publish(2, b"z")


def test_players_that_wait_are_told_to_ask_again() -> None:
    """Those of all channels whose place is taken; others wait on."""
    with durable(None) as server:
        waiting = {}
        for name in ("film", "fish", "other"):
            waiting[name] = film(server, name).create("video/mp2t").read("media.m3u8")
        parked = server.plane.parked[ParkedFor.PLAYLIST]
        eventually(lambda: len(parked) == 3, what="all wait for a first segment")
        server.inside(lambda: destination_of(server).depose("https://new.example", ["fi*"]))
        for name in ("film", "fish"):
            assert waiting[name].response().status == 503
        (left,) = parked
        assert isinstance(left, Parked)
        assert left.request.route is not None
        assert left.request.route.channel == "other"


def test_a_server_without_a_directory_is_deposed_until_it_ends() -> None:
    """It has no channels after that."""
    with durable(None) as server:
        here = film(server).publish(0, b"x")
        server.inside(partial(destination_of(server).depose, "https://new.example"))
        assert here.post(1).status == 503
        server.inside(destination_of(server).read_only.release)
        here.publish(1, b"y")


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A server that does not know whether its place is taken does not start."""
    (tmp_path / "deposed.json").write_bytes(b"{")
    with pytest.raises(DeposedUnreadable, match="whose channels these are"):
        ReadOnly(Registry(Limits(), autocreate=True), tmp_path)
