"""Any node answers any request: replicas on demand, what is forwarded, claims, and an owner that goes away."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

import pytest

from tests.app.cluster.nodes import SECRET
from tests.app.cluster.table import Member, Table, View, members
from tests.app.data_plane.test_players import Live
from tests.support.compiled import needs_interpreter
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cluster import forward
from tricklecast.app.cluster import replicas as module
from tricklecast.app.cluster.forward import WAKE_BATCH
from tricklecast.app.cluster.peers import sign
from tricklecast.app.cluster.replicas import KEEP_S, MAX_HELD, UNUSED_S
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.app.data_plane.request import Via
from tricklecast.app.replication import transport
from tricklecast.app.replication.records import FeedEnd
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.app.tools.conformance.target import RemoteChannel

NOWHERE: Final = "http://127.0.0.1:1/trickle"
"""The URL of a node that cannot be reached."""


def film(member: Member) -> RemoteChannel:
    """The channel, as a client of this node sees it."""
    return member.target.channel("film")


def reading(member: Member, count: int) -> None:
    """Wait until so many readers are served by a node itself."""
    eventually(lambda: member.server.plane.registry.readers == count, what=f"{count} readers")


# Reads.


def test_readers_at_another_node_read_one_replica() -> None:
    """One feed, however many readers; each gets what the owner's would. The owner has no reader but the feed."""
    with members("a", "b") as (a, b):
        upload, _ = film(a).started(0, b"one ")
        readers = [film(b).arrived(0, b"one ") for _ in range(2)]
        readers += [film(b).waiting(1)]
        upload.chunk(b"two").end()
        for reader in readers[:2]:
            reader.ends(b"two")
        film(a).publish(1, b"three")
        assert readers[2].response().body == b"three"
        assert (a.cluster.feeds.sending.sent, b.forwarding.forwarded) == (1, 0)


def test_what_a_replica_cannot_know_is_forwarded() -> None:
    """The head, a segment that has left the window, one that is not there yet, and streams of closed segments."""
    with members("a", "b", window_segments=2) as (a, b):
        film(a).publish(0, b"0", b"1", b"2", b"3")
        film(b).has(3, b"3")
        b.holds("film")
        assert b.forwarding.forwarded == 0
        assert film(b).next_seq() == 4
        assert film(b).get(0).status == film(a).get(0).status == 470
        assert film(b).get(9).status == 470
        stream = film(b).read("stream?start=2")
        assert stream.head().status == 200
        stream.gets(b"23")
        assert b.forwarding.forwarded == 4
        assert b.server.plane.registry.channels["film"].next_seq == 4


def test_a_channel_that_has_just_begun_elsewhere_is_found() -> None:
    """Its publisher was answered before this node has heard of it. Readers who ask together ask NATS once."""
    table = Table()
    with members("a", "b", table=table) as (a, b):
        film(a).publish(0, b"one")
        table.late["film"] = table.owners.pop("film")
        b.server.inside(lambda: setattr(b.server.plane.registry, "shutting_down", True))
        assert film(b).get(0).status == 404
        b.server.inside(lambda: setattr(b.server.plane.registry, "shutting_down", False))
        assert table.asked == 0
        readers = b.server.inside(lambda: [film(b).read(0) for _ in range(3)])
        assert [reader.response().body for reader in readers] == [b"one"] * 3
        assert table.asked == 1


def test_a_name_that_nobody_has_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS is asked, for some names at a time; also when it cannot answer, the answer is 404."""
    table = Table()
    with members("a", table=table) as (a,):
        assert (film(a).get(0).status, film(a).get("next").status, table.asked) == (404, 404, 2)
        table.faulty = True
        assert film(a).get(0).status == 404
        assert a.server.plane.faults == 1
        monkeypatch.setattr(module, "MAX_ASKED", 0)
        assert (film(a).get(0).status, table.asked) == (404, 3)
        a.server.plane.faults = 0


def test_a_replica_is_kept_for_a_while() -> None:
    """As long as it has a reader, and five seconds more; then nothing of it is left at either node."""
    with members("a", "b") as (a, b):
        film(a).create()
        reader = film(b).waiting(0)
        b.holds("film")
        reading(b, 1)
        b.look(1000.0)
        assert list(b.held) == ["film"]
        reader.abort()
        reading(b, 0)
        b.server.inside(lambda: setattr(b.held["film"], "read_at", b.server.plane.clock()))
        b.look(KEEP_S - 1)
        assert list(b.held) == ["film"]
        b.look(KEEP_S)
        assert b.held == {}
        assert "film" not in b.server.plane.registry.channels
        eventually(lambda: not a.cluster.feeds.sending.tasks, what="the owner has noticed")
        film(a).publish(0, b"again")
        film(b).has(0, b"again")
        assert a.cluster.feeds.sending.sent == 2


def test_a_node_holds_so_many_channels_and_no_more() -> None:
    """Reads of others are forwarded, and counted, until one of them ends."""
    assert MAX_HELD == 1000
    with members("a", "b", most=1) as (a, b):
        for name in ("one", "two"):
            a.target.channel(name).publish(0, name.encode())
            b.target.channel(name).has(0, name.encode())
        assert (list(b.held), b.cluster.replicas.refused, b.forwarding.forwarded) == (["one"], 1, 1)
        b.look(1000.0)
        b.target.channel("two").has(0, b"two")
        assert (list(b.held), b.forwarding.forwarded) == (["two"], 1)


def test_a_request_that_was_passed_on_begins_no_replica() -> None:
    """The node that passed it on may follow the owner itself."""
    with members("a", "b") as (a, b):
        film(a).publish(0, b"x")
        path = "/trickle/film/0"
        signature = sign(SECRET, b"GET", path.encode(), Via(("c",))).decode()
        assert b.target.ask("GET", path, {"Trickle-Cluster": signature}).body == b"x"
        assert (b.held, b.forwarding.forwarded) == ({}, 1)


def test_a_player_at_another_node_gets_the_owners_playlist() -> None:
    """Its first request is the owner's; then the node answers itself, also requests that wait, and all media."""
    with members("a", "b", table=Table(rest="a")) as (a, b):
        live = Live(film(a), "video/mp2t")
        for seq in range(4):
            live.publish(seq)
        assert film(b).get("media.m3u8").expect(200).body == live.channel.get("media.m3u8").expect(200).body
        found = live.playlist()

        def answers_itself() -> bool:
            before = b.forwarding.forwarded
            assert film(b).get("media.m3u8").expect(200).body == live.channel.get("media.m3u8").expect(200).body
            return b.forwarding.forwarded == before

        live.publish(4)  # the owner marks its playlist
        eventually(answers_itself, what="the two agree")
        forwarded = b.forwarding.forwarded
        waiting = film(b).read(f"media.m3u8?_HLS_msn={live.playlist().whole[-1].msn + 1}")
        eventually(lambda: b.server.plane.parked[ParkedFor.PLAYLIST] or b.forwarding.forwarded > forwarded)
        live.publish(5)
        live.publish(6)
        assert waiting.response().status == 200
        for one in found.whole:
            assert film(b).get(one.uri).expect(200).body == live.media(one.uri)
        assert b.forwarding.forwarded == forwarded


# The owner is not there, or another one.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that waits for its owner as long as for the first few attempts."""
    monkeypatch.setattr(module, "KEEP_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_an_owner_that_cannot_be_reached() -> None:
    """A read is forwarded as soon as the first attempt has failed, and is told so; later ones do not wait at all."""
    table = Table(urls={"gone": "http://127.0.0.1:1/trickle"}, rest="gone")
    with members("b", table=table) as (b,):
        answer = film(b).get(0)
        assert (answer.status, answer.get("Retry-After") is not None) == (503, True)
        assert b.forwarding.failed == 1
        assert not b.server.plane.parked[ParkedFor.REPLICA]
        eventually(lambda: not b.held, what="the replica gives up")
        assert "film" not in b.server.plane.registry.channels


@pytest.mark.usefixtures("impatient")
def test_a_node_that_is_not_the_owner_is_asked_a_few_times_only() -> None:
    """However many readers come: each of them hears from that node how things are."""
    with members("a", "b", table=Table(rest="a")) as (a, b):
        for _ in range(20):
            assert film(b).get(0).status == 404
        assert b.forwarding.forwarded == 20
        eventually(lambda: not b.held)
        assert 1 <= a.cluster.feeds.refused < 40  # one replica tries at 0, 0.05 and 0.15 s; 20 may have begun
        film(a).publish(0, b"now")
        film(b).has(0, b"now")


def test_readers_ask_again_when_the_owner_changes() -> None:
    """503 for who waits; who is in the middle of a segment loses the connection. The next read is of the next epoch."""
    table = Table()
    with members("a", "b", "c", table=table) as (a, b, c):
        film(a).started(0, b"old")
        middle, waiting = film(c).arrived(0, b"old"), film(c).waiting(1)
        c.holds("film")
        reading(c, 2)
        table.gone.add("a")
        upload, _ = film(b).started(0, b"new")
        assert table.owners["film"] == ("b", 2)
        c.server.inside(lambda: c.cluster.moved("film", None))
        assert list(c.held) == ["film"], "its end comes by the feed"
        c.server.inside(lambda: c.cluster.moved("film", View(table, "c").place("film")))
        answer = waiting.response()
        assert (answer.status, answer.get("Retry-After")) == (503, "1")
        middle.closed()
        assert film(c).arrived(0, b"new")
        upload.end()
        film(c).has(0, b"new", epoch=2)
        assert c.server.plane.faults == 0


def test_no_epoch_is_answered_that_the_directory_knows_to_be_over() -> None:
    """Though the feed of its former owner is still there: the request is forwarded to the new one."""
    table = Table()
    with members("a", "b", "c", table=table) as (a, b, c):
        film(a).publish(0, b"old")
        film(c).has(0, b"old")
        table.gone.add("a")
        film(b).publish(0, b"new")
        film(c).has(0, b"new", epoch=2)
        assert c.forwarding.forwarded == 1


@pytest.mark.usefixtures("impatient")
def test_the_end_of_a_channel_comes_by_the_feed() -> None:
    """Readers at another node are told as the owner's are."""
    with members("a", "b", table=Table(rest="a"), channel_drain_s=100) as (a, b):
        film(a).publish(0, b"x")
        reader = film(b).waiting(1)
        b.holds("film")
        reading(b, 1)
        assert film(b).end().status == 200
        assert reader.response().get("Lp-Trickle-Closed") == "terminated"
        film(b).has(0, b"x")
        assert film(b).get(1).get("Lp-Trickle-Closed") == "terminated"
        eventually(lambda: not b.held)


def test_a_connection_to_the_owner_that_breaks_keeps_the_readers() -> None:
    """They wait, and so do new ones, until the replica is back; each byte comes once."""
    with members("a", "b") as (a, b):
        upload, _ = film(a).started(0, b"one ")
        reader = film(b).arrived(0, b"one ")
        feeds = a.cluster.feeds
        a.server.inside(lambda: [task.cancel() for task in feeds.sending.tasks])
        eventually(lambda: feeds.sending.sent == 2, what="the replica comes back")
        upload.chunk(b"two").end()
        reader.ends(b"two")
        film(b).has(0, b"one two")
        assert b.forwarding.forwarded == 0


def test_thousands_of_readers_may_wait_for_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on some at a time; all of them are answered by it."""
    monkeypatch.setattr(module, "WAKE_BATCH", 2)
    assert WAKE_BATCH == 64
    with members("a", "b") as (a, b):
        film(a).create()
        readers: list[RawConnection] = [film(b).waiting(0) for _ in range(9)]
        reading(b, 9)
        film(a).publish(0, b"x")
        assert [reader.response().body for reader in readers] == [b"x"] * 9
        assert a.cluster.feeds.sending.sent == 1


def test_a_channel_that_its_owner_has_given_up_is_adopted() -> None:
    """It goes on in its epoch: readers stay and get the rest, and its publisher resumes what it had begun."""
    table = Table()
    with members("a", "b", table=table) as (a, b):
        film(a).publish(0, b"whole")
        key = {"Idempotency-Key": "k"}
        upload, _ = film(a).started(1, b"begun", headers=key)
        reader, waiting = film(b).arrived(1, b"begun"), film(b).waiting(2)
        b.holds("film")
        assert not b.server.inside(lambda: b.cluster.given("film", 2)), "this epoch is not here"
        assert not b.server.inside(lambda: b.cluster.given("other", 1))
        table.owners["film"] = "b", 1
        assert b.server.inside(lambda: b.cluster.given("film", 1))
        upload.abort()
        again = film(b).upload(1, b"begun", b" and ended", headers={**key, "Trickle-Attempt": "2"}).end()
        assert again.answer().status == 200
        reader.ends(b" and ended")
        film(b).has(0, b"whole", epoch=1).has(1, b"begun and ended", epoch=1).publish(2, b"next")
        assert waiting.response().body == b"next"
        assert (b.held, b.server.plane.faults, b.forwarding.forwarded) == ({}, 0, 0)


def test_a_channel_is_given_to_the_node_that_holds_it() -> None:
    """Its publisher gets 503 and resumes there. Readers of the other nodes stay, and those of the node that had it ask
    again, since a segment was not whole. Nobody is told that it has ended."""
    table = Table()
    with members("a", "b", "c", table=table) as (a, b, c):
        upload, reader = film(a).started(0, b"begun", headers={"Idempotency-Key": "k"})
        waiting = [film(a).waiting(1), film(b).waiting(1), film(c).waiting(1)]
        for one in (b, c):
            one.holds("film")
            reading(one, 1)
        table.owners["film"] = "b", 1
        assert b.server.inside(lambda: b.cluster.given("film", 1))
        a.server.inside(lambda: a.cluster.gave("other"))
        a.server.inside(lambda: a.cluster.gave("film"))
        c.server.inside(lambda: c.cluster.moved("film", View(table, "c").place("film")))
        assert upload.answer().status == 503
        reader.closed()
        assert waiting[0].response().status == 503
        again = film(a).upload(0, b"begun", b" and ended", headers={"Idempotency-Key": "k", "Trickle-Attempt": "2"})
        assert again.end().answer().status == 200
        for one in (a, b, c):
            film(one).has(0, b"begun and ended", epoch=1)
        film(c).publish(1, b"next")
        assert [one.response().body for one in waiting[1:]] == [b"next"] * 2
        eventually(lambda: not a.cluster.feeds.sending.tasks)
        assert [one.server.plane.faults for one in (a, b, c)] == [0] * 3


@pytest.mark.parametrize("how", ["moved", "stayed", "undecided"])
def test_what_would_change_a_channel_that_is_being_handed_over_waits(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is clear who has the channel; its readers do not. If that takes too long, it is refused."""
    if how == "undecided":
        monkeypatch.setattr(module, "MOVING_S", 0.001)
    table = Table()
    with members("a", "b", table=table) as (a, b):
        film(a).publish(0, b"x")
        film(b).has(0, b"x")
        table.moving.add("film")
        upload = film(a).upload(1, b"y").end()
        if how != "undecided":
            eventually(lambda: a.server.plane.parked[ParkedFor.REPLICA])
        film(a).has(0, b"x")
        if how == "moved":
            table.owners["film"] = "b", 1
            assert b.server.inside(lambda: b.cluster.given("film", 1))
            a.server.inside(lambda: a.cluster.gave("film"))
        if how != "undecided":
            table.moving.clear()
        assert upload.answer().status == (503 if how == "undecided" else 200)
        table.moving.clear()
        assert (b if how == "moved" else a).server.plane.registry.channels["film"].next_seq == 1 + (how != "undecided")


def test_a_node_that_has_lost_its_channel_ends_it() -> None:
    """Its publisher and its readers ask again, and are answered by the new owner: the channel goes on."""
    table = Table()
    with members("a", "b", table=table) as (a, b):
        upload, reader = film(a).started(0, b"old")
        waiting = film(a).waiting(1)
        table.gone.add("a")
        film(b).publish(0, b"new")
        table.gone.clear()
        a.server.inside(lambda: a.cluster.lost("film", 7))
        a.server.inside(lambda: a.cluster.lost("other", 1))
        reader.silent()
        a.server.inside(lambda: a.cluster.lost("film", 1))
        answer = waiting.response()
        assert (answer.status, answer.get("Lp-Trickle-Closed")) == (503, None)
        reader.closed()
        assert upload.answer().status == 503
        film(a).has(0, b"new", epoch=2)
        assert table.owners["film"] == ("b", 2)
        assert a.server.plane.faults == 0


def test_a_feed_that_is_wrong_lets_no_read_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second attempt on reads are forwarded, as where the owner sends none."""
    with members("a", "b") as (a, b):
        film(a).publish(0, b"x")
        monkeypatch.setattr(transport, "_send", wrong)
        for _ in range(3):
            film(b).has(0, b"x")
        assert b.forwarding.forwarded == 3
        assert b.held["film"].failed


async def wrong(*_: object) -> FeedEnd:
    """Send no feed."""
    return FeedEnd.SHUTDOWN


# Claims.


def test_a_name_that_nobody_has_belongs_to_the_node_that_is_asked_first() -> None:
    """A POST claims it, once for all that come meanwhile; its epoch is the directory's. A GET claims nothing."""
    table = Table(epochs={"film": 6})
    with members("a", "b", table=table) as (a, b):
        assert film(b).get(0).status == 404
        assert table.claims == 0
        uploads = [film(b).upload(seq, b"x") for seq in range(3)]
        for upload in uploads:
            assert upload.end().answer().status == 200
        assert (table.owners["film"], table.claims) == (("b", 7), 1)
        film(a).has(0, b"x", epoch=7)
        assert film(a).create().next_seq() == 3
        assert b.server.plane.registry.channels["film"].epoch == 7


def test_an_epoch_ends_in_the_directory_and_the_next_is_claimed() -> None:
    """Only by what begins one: a latecomer is refused as ever."""
    table = Table()
    with members("a", table=table, channel_drain_s=100) as (a,):
        film(a).publish(0, b"x")
        film(a).end()
        assert table.owners == {}
        assert film(a).post(1).status == 404
        assert table.claims == 1
        film(a).publish(0, b"y")
        assert (table.owners["film"], table.claims) == (("a", 2), 2)
        film(a).end()
        film(a).create()
        film(a).end()
        assert film(a).post(5, headers={"Lp-Trickle-Reset": "1"}).status == 200
        assert table.epochs["film"] == 4
        a.target.ask("GET", "/trickle/_changes/next")
        assert "_changes" not in table.epochs


def test_the_last_owner_answers_for_a_channel_that_has_ended() -> None:
    """What can still be read, a latecomer, and the next epoch; if it is gone, any node may begin that."""
    table = Table()
    with members("a", "b", table=table, channel_drain_s=100) as (a, b):
        film(a).publish(0, b"x")
        film(a).end()
        film(b).has(0, b"x", epoch=1)
        assert film(b).get(1).get("Lp-Trickle-Closed") == "terminated"
        assert film(b).post(1).status == 404
        assert table.owners == {}
        film(b).publish(0, b"y")
        assert table.owners["film"] == ("a", 2)
        film(a).end()
        table.gone.add("a")
        film(b).publish(0, b"z")
        assert table.owners["film"] == ("b", 3)
        film(b).has(0, b"z", epoch=3)


@pytest.mark.parametrize("known", [False, True], ids=["nobody has it", "its owner is gone"])
def test_what_cannot_be_decided_is_refused(known: bool) -> None:
    """503, and the client asks again; a POST for a channel whose owner is gone is tried there all the same."""
    table = Table(urls={"gone": "http://127.0.0.1:1/trickle"}, gone={"gone"}, undecided=True)
    if known:
        table.owners["film"] = "gone", 3
    with members("a", table=table) as (a,):
        answer = film(a).post(0)
        assert (answer.status, answer.get("Retry-After") is not None) == (503, True)
        assert table.claims == 2
        assert "film" not in a.server.plane.registry.channels
        table.undecided = False
        assert film(a).post(0).status == 200
        assert table.owners["film"][0] == "a"


def test_an_owner_that_nobody_knows_is_no_fault() -> None:
    """Its key in the directory was lost: readers ask again, until somebody knows where it is."""
    table = Table(owners={"film": ("lost", 1)}, undecided=True)
    with members("a", table=table) as (a,):
        for answer in (film(a).get(0), film(a).get("next"), film(a).get("stream")):
            assert (answer.status, answer.get("Retry-After")) == (503, "1")
        assert a.server.plane.faults == 0


def test_a_channel_whose_owner_is_gone_is_taken_over() -> None:
    """In the next epoch; the replica of the former one ends, and its readers ask again."""
    table = Table()
    with members("a", "b", table=table) as (a, b):
        film(a).publish(0, b"old")
        reader = film(b).waiting(1)
        b.holds("film")
        reading(b, 1)
        table.gone.add("a")
        assert film(b).post(1, b"new").status == 200
        assert table.owners["film"] == ("b", 2)
        assert reader.response().status == 503
        film(b).has(1, b"new", epoch=2)
        assert b.held == {}


def test_a_request_waits_until_the_lease_of_a_dead_owner_is_over() -> None:
    """Nobody may take its channel before. Then a POST goes on here, with what has come of its body, and all readers."""
    table = Table(urls={"dead": NOWHERE}, owners={"film": ("dead", 3)}, epochs={"film": 3})
    with members("a", table=table, waits_s=WITHIN_S) as (a,):
        post = film(a).upload(0, b"one")
        eventually(lambda: a.forwarding.failed, what="it has found no way")
        post.silent()
        table.gone.add("dead")
        assert post.end().answer().status == 200
        film(a).has(0, b"one", epoch=4)
        assert not a.server.plane.parked[ParkedFor.NODE]


def test_a_request_does_not_wait_for_ever_for_an_owner_out_of_reach() -> None:
    """503 after the limit, and at once when the node stops."""
    table = Table(urls={"dead": NOWHERE}, owners={"film": ("dead", 3)})
    with members("a", table=table, waits_s=0.1) as (a,):
        assert film(a).post(0).status == 503
        a.forwarding.waits_s = WITHIN_S
        waiting = film(a).read("next")
        eventually(lambda: a.forwarding.failed == 2, what="it has found no way")
        a.server.inside(a.forwarding.end)
        assert waiting.response().status == 503


def test_requests_that_wait_go_on_when_one_has_reached_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was out of reach for a moment, and its lease goes on. They go on some at a time."""
    needs_interpreter()
    monkeypatch.setattr(forward, "WAKE_BATCH", 1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/trickle"
        table = Table(urls={"away": url}, owners={"film": ("away", 3)})
        with members("a", table=table, waits_s=WITHIN_S) as (a,), ExitStack() as taken:
            waiting = [film(a).read("next") for _ in range(2)]
            eventually(lambda: a.forwarding.failed == 2, what="they have found no way")
            listener.listen()
            waiting.append(film(a).read("next"))
            for _ in waiting:
                sock = taken.enter_context(listener.accept()[0])
                assert sock.recv(4096)
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7")
            assert [one.response().body for one in waiting] == [b"7"] * 3


def test_a_publisher_whose_node_is_gone_asks_another_one_where_to_go_on() -> None:
    """Ours does so before it sends a segment again. The channel is gone, too: the publisher may begin it there."""
    table = Table()
    with members("a", "b", table=table) as (a, b):
        film(a).publish(0, b"old")
        table.gone.add("a")
        assert film(b).get("next").status == 404
        assert table.owners["film"] == ("b", 2)
        film(b).publish(1, b"new").has(1, b"new", epoch=2)


def test_what_the_directory_takes_for_this_nodes_own_is_claimed_again() -> None:
    """A claim had no answer, or the node was restarted: the next publisher begins the next epoch, at once."""
    table = Table(owners={"film": ("a", 3)}, epochs={"film": 3}, moving={"film"})
    with members("a", table=table) as (a,):
        assert film(a).post(-1, b"x").status == 200
        film(a).has(0, b"x", epoch=4)


def test_a_claim_that_nothing_comes_of_is_given_back() -> None:
    """The POST was refused after all. One of which a channel came is not."""
    table = Table()
    with members("a", table=table) as (a,):
        assert film(a).post(0, headers={"Content-Encoding": "gzip"}).status == 415
        a.target.channel("other").publish(0, b"x")
        assert sorted(table.owners) == ["film", "other"]
        a.look(UNUSED_S - 1)
        assert sorted(table.owners) == ["film", "other"]
        a.look(UNUSED_S + 1)
        assert sorted(table.owners) == ["other"]


def test_a_server_that_creates_no_channels_claims_none() -> None:
    """The request is refused as at one server."""
    table = Table()
    with members("a", table=table, autocreate=False) as (a,):
        assert film(a).post(0).status == 404
        table.urls["gone"], table.owners["film"] = "http://127.0.0.1:1/trickle", ("gone", 1)
        table.gone.add("gone")
        assert film(a).post(0).status == 503
        assert table.claims == 0


def test_a_fault_while_a_channel_is_claimed_refuses_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is logged."""
    with members("a") as (a,):
        monkeypatch.setattr(a.cluster._directory, "claim", lambda *_: 1 // 0)
        assert film(a).post(0).status == 503
        assert a.server.plane.faults == 2
        monkeypatch.undo()
        assert film(a).post(0).status == 200


def test_a_fault_of_a_replica_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged; the read is forwarded."""
    with members("a", "b") as (a, b):
        film(a).publish(0, b"x")
        monkeypatch.setattr(b.cluster.replicas, "_connect", lambda name: 1 // 0)
        film(b).has(0, b"x")
        assert (b.held, b.server.plane.faults, b.forwarding.forwarded) == ({}, 1, 1)


def test_a_server_that_stops_lets_no_read_wait_for_a_replica() -> None:
    """It is forwarded at once."""
    with members("a", "b") as (a, b):
        film(a).publish(0, b"x")
        b.server.inside(lambda: b.server.plane.registry.shut_down((1, 2)))
        film(b).has(0, b"x")
        assert b.forwarding.forwarded == 1
        b.server.inside(lambda: setattr(b.server.plane.registry, "shutting_down", False))
