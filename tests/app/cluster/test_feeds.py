"""Feeds between nodes: who gets one, that it is a connection like any other, and its end."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.app.cluster.nodes import SECRET
from tests.app.cluster.table import Member, Table, members
from tests.support.certificates import make_certificate
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.cluster.feeds import NoFeed
from tricklecast.app.cluster.forward import PEER_TIMEOUT_S
from tricklecast.app.cluster.peers import sign
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.data_plane.request import Via
from tricklecast.app.replication.records import Hello, record
from tricklecast.app.tools.conformance.connection import RawConnection

PATH = "/trickle/_cluster/feed/film"
FORGED: dict[str, Any] = {"Trickle-Cluster": "e30.00"}
BODY: dict[str, Any] = {"Content-Length": "3"}


def ask(member: Member, path: str = PATH, *, method: str = "GET", hops: tuple[str, ...] = ("b",), **more: Any) -> Any:
    """Ask a node for a feed, as the node that comes last among these hops."""
    signature = sign(SECRET, method.encode(), path.encode(), Via(hops)).decode() if hops else ""
    fields = {"Connection": "upgrade", "Upgrade": "Trickle-Feed", **more}
    if signature:
        fields["Trickle-Cluster"] = signature
    return member.target.send(method, path, fields)


def test_only_a_node_gets_a_feed() -> None:
    """A client without a signature is refused, also on a path that is none, and so is a request in a circle."""
    table = Table(urls={"b": "http://127.0.0.1:1/trickle"})
    with members("a", table=table) as (a,), a.server.client() as target:
        target.channel("film").create()
        target.channel("lost").create()
        table.owners["lost"] = "b", 2
        for method, path, hops, status in (
            ("GET", PATH, (), 403),
            ("GET", "/trickle/film/0", (), 403),
            ("POST", PATH, ("b",), 404),
            ("GET", "/trickle/film/0", ("b",), 404),
            ("GET", "/other", ("b",), 404),
            ("GET", "/trickle/_cluster/feed/..", ("b",), 404),
            ("GET", PATH, ("c", "a", "b"), 508),
            ("GET", "/trickle/_cluster/feed/other", ("b",), 421),
            ("GET", "/trickle/_cluster/feed/lost", ("b",), 421),
            ("GET", "/trickle/_cluster/adopt/film", ("b",), 404),
        ):
            answer = ask(a, path, method=method, hops=hops).response()
            assert (answer.status, answer.closes) == (status, True), (method, path, hops)
        forged = ask(a, hops=(), **FORGED).response()
        assert forged.status == 403
        assert a.cluster.feeds.refused == 2
        assert a.cluster.feeds.sending.sent == 0
        assert target.ask("GET", PATH).status == 404, "without Upgrade there is no such path"


def test_a_server_without_a_cluster_sends_no_feed() -> None:
    """The offer is ignored, as any other."""
    with local_server() as server, server.client() as target:
        assert target.ask("GET", PATH, {"Connection": "upgrade", "Upgrade": "trickle-feed"}).status == 404


def switched(member: Member) -> RawConnection:
    """A connection that was switched, on which nothing has come yet."""
    connection: RawConnection = ask(member)
    assert connection.interim().status == 101
    eventually(lambda: member.cluster.feeds.sending.tasks, what="the feed begins")
    return connection


def ended(member: Member) -> None:
    """Wait until no feed is sent, and the place of its connection is free."""
    eventually(lambda: not member.cluster.feeds.sending.tasks, what="the feed is over")
    eventually(lambda: not member.server.plane.connections, what="its connection is gone")
    assert member.server.plane.faults == 0


def test_a_feed_is_a_connection() -> None:
    """It has a place among them, is in no access log, and leaves when its node does."""
    with members("a") as (a,), a.server.client() as target:
        target.channel("film").create()
        target.close()
        eventually(lambda: not a.server.plane.connections)
        connection = switched(a)
        (peer,) = a.server.plane.connections
        assert (peer.unfinished, peer.waiting) == (True, False)
        assert a.server.plane.registry.capacities.connections.used == 1
        connection.abort()
        ended(a)
        assert a.server.plane.registry.capacities.connections.used == 0
        assert not [one for one in a.server.records if one.channel != "film"]


def test_a_node_that_sends_no_feed_is_cut_off() -> None:
    """Whatever it sends instead, and if it does not wait until its connection is switched."""
    with members("a") as (a,), a.server.client() as target:
        target.channel("film").create()
        target.close()
        connection = switched(a)
        connection.try_send(b"GET / HTTP/1.1\r\n\r\n")
        connection.closed()
        ended(a)
        hasty = a.target.open()
        head = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: trickle-feed\r\n" % PATH.encode()
        signature = sign(SECRET, b"GET", PATH.encode(), Via(("b",)))
        hello = record(Hello("film", "", 0, ()))
        hasty.try_send(head + b"trickle-cluster: " + signature + b"\r\n\r\n" + hello)
        ended(a)


def test_a_feed_is_asked_for_alone() -> None:
    """Not with a body, and not behind another request that is not answered."""
    with members("a") as (a,), a.server.client() as target:
        target.channel("film").create()
        assert ask(a, **BODY).response().status == 400
        waiting = target.channel("film").waiting(0)
        signature = sign(SECRET, b"GET", PATH.encode(), Via(("b",))).decode()
        fields = {"Connection": "upgrade", "Upgrade": "trickle-feed", "Trickle-Cluster": signature}
        waiting.request("GET", PATH, fields)
        target.channel("film").publish(0, b"x")
        assert waiting.response().body == b"x"
        assert waiting.response().status == 400


def test_there_may_be_no_place_for_a_feed() -> None:
    """503: the limit of connections counts it as any other."""
    with members("a", max_connections=2) as (a,), a.server.client() as target:
        target.channel("film").create()
        target.channel("film").waiting(0)
        target.channel("film").waiting(0)
        assert ask(a).response().status == 503
        assert a.server.plane.faults == 0


def test_a_feed_ends_with_the_publishers_when_its_server_stops() -> None:
    """It lasts as long as somebody publishes; then nothing more will come. New ones are refused meanwhile."""
    with members("a", "b", table=Table(rest="a"), shutdown_deadline_s=WITHIN_S) as (a, b):
        at_a, at_b = a.target, b.target
        upload, _ = at_a.channel("film").started(0, b"one ")
        there = at_b.channel("film").arrived(0, b"one ")
        b.holds("film")
        a.server.stop()
        eventually(lambda: a.server.plane.registry.shutting_down)
        assert ask(a).response().status == 503
        a.look()
        assert a.cluster.feeds.sending.tasks
        upload.chunk(b"two").end()
        there.ends(b"two")
        assert upload.answer().status == 200
        a.look()
        eventually(a.server.over, what="it does not wait for the feed")


def test_a_feed_ends_at_the_deadline_when_its_server_stops() -> None:
    """Also if a publisher goes on."""
    with members("a", "b", table=Table(rest="a"), shutdown_deadline_s=0.2) as (a, b):
        at_a, at_b = a.target, b.target
        at_a.channel("film").started(0, b"one ")
        at_b.channel("film").arrived(0, b"one ")
        a.server.stop()
        eventually(a.server.over, what="the server ends")


def test_nodes_send_feeds_over_tls(tmp_path: Path) -> None:
    """As their clients' requests."""
    with members("a", "b", tls=make_certificate(tmp_path)) as (a, b):
        upload, _ = a.target.channel("film").started(0, b"one ")
        there = b.target.channel("film").arrived(0, b"one ")
        b.holds("film")
        upload.chunk(b"two" * 100_000).end()
        there.ends(b"two" * 100_000)
        assert len(a.cluster.feeds.sending.tasks) == 1
        assert b.forwarding.forwarded == 0


def connect(member: Member, name: str = "film") -> BaseException | None:
    """Let a node ask for a feed; how that failed."""

    async def attempt() -> BaseException | None:
        try:
            _, writer = await member.cluster.feeds.connect(name)
        except Exception as error:
            return error
        sock = writer.get_extra_info("socket")
        if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
            assert sock.getsockopt(socket.IPPROTO_TCP, option) == PEER_TIMEOUT_S * 1000
        writer.transport.abort()
        return None

    return asyncio.run_coroutine_threadsafe(attempt(), member.server.loop).result(WITHIN_S)


def test_who_asks_for_a_feed_hears_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """No owner, no secret, another owner, nobody at the address, and no answer."""
    table = Table()
    with members("a", "b", table=table) as (a, b), a.server.client() as target:
        assert "no other node" in str(connect(b))
        target.channel("film").create()
        assert connect(b) is None
        assert "no other node" in str(connect(a))
        a.server.inside(lambda: a.server.plane.registry.channels.clear())
        assert isinstance(connect(b), NoFeed)
        assert "421" in str(connect(b))
        with monkeypatch.context() as patched:
            patched.setattr(b.peers, "_secret", lambda: b"")
            assert "secret" in str(connect(b))
        for answer in (b"", b"HTTP/1.1 101 " + b"x" * 200_000, b"HTTP/1.1 500 Oops\r\n\r\n"):
            with once(answer) as port:
                table.urls["a"] = f"http://127.0.0.1:{port}/trickle"
                assert isinstance(connect(b), NoFeed if b"500" in answer else ConnectionResetError)
        table.urls["a"] = "http://127.0.0.1:1/trickle"
        assert isinstance(connect(b), ConnectionRefusedError)
        table.owners.clear()


class once:
    """A server that answers one request with these bytes, and closes."""

    def __init__(self, answer: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer = answer

    def __enter__(self) -> int:
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(self._answer)

    def __exit__(self, *_: object) -> None:
        self._thread.join(WITHIN_S)
        self._listener.close()


def test_a_fault_while_a_feed_is_sent_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs this connection."""
    with members("a") as (a,), a.server.client() as target:
        target.channel("film").create()
        connection = switched(a)
        monkeypatch.setattr(OwnedChannel, "follow", lambda *_: 1 // 0)
        connection.send(record(Hello("film", "", 0, ())))
        connection.closed()
        eventually(lambda: a.server.plane.faults == 1)
        monkeypatch.undo()
        assert target.channel("film").next_seq() == 0
