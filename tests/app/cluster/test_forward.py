"""Forwarding between two servers, over sockets: what passes, what does not, and how the end of each side shows."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.app.access.signing import SECRET, bearer, token
from tests.app.cluster.nodes import SECRET as CLUSTER_SECRET
from tests.app.cluster.nodes import Nodes, Place, join, node, place_of, two_nodes
from tests.app.data_plane.support import PATIENT, SlowPeer, pattern
from tests.app.hostile.support import clock_of, exchange, received, statuses
from tests.support.certificates import make_certificate
from tests.support.compiled import needs_interpreter
from tests.support.local import LocalServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.analytics.lines import find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.app.cluster import forward
from tricklecast.app.cluster.peers import verify
from tricklecast.app.data_plane import exchange as exchanges
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.request import Via
from tricklecast.app.data_plane.scheduling import NODE, TURN_BYTES
from tricklecast.app.data_plane.upload import Upload
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle.records import Reason


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes that hold nobody back."""
    with two_nodes(storm_guard="off") as running:
        yield running


@pytest.fixture
def server(nodes: Nodes) -> LocalServer:
    """The node that clients come to."""
    return nodes.edge


def writers(server: LocalServer) -> list[Upload]:
    """The publishers that a server has."""
    return [
        connection.exchange for connection in list(server.plane.connections) if isinstance(connection.exchange, Upload)
    ]


# What passes.


def test_a_segment_streams_through(nodes: Nodes, channel: RemoteChannel) -> None:
    """A preconnect is one at the owner; each chunk reaches a reader before the next one is sent, with its bounds."""
    post = channel.preconnect(0)
    eventually(lambda: [one.idle for one in writers(nodes.owner)] == [True], what="the owner has a preconnect")
    reader = channel.waiting(0)
    post.chunk(b"one")
    head = reader.head().expect(200)
    assert head.get("Lp-Trickle-Node") == place_of(nodes.owner).url
    assert [head.get(name) for name in ("Transfer-Encoding", "Lp-Trickle-Seq")] == ["chunked", "0"]
    assert reader.chunk() == b"one"
    post.chunk(b"two" * 5000)
    assert reader.chunk() == b"two" * 5000
    post.stored(seq=0)
    reader.ends()
    nodes.settled()


def test_both_records_tell_of_the_other_node(nodes: Nodes, target: Target) -> None:
    """The edge's has all that the owner knows, and the owner's has the client's address."""
    channel = target.channel()
    channel.publish(0, b"hello", b"x")
    channel.get(0)
    channel.get(7)
    channel.close(9)
    other = {"Trickle-Client": "nobody; else=", "Lp-Trickle-If-Idle": "1"}
    assert channel.post(2, b"x", other).status == 409
    fields = ("op", "channel", "seq", "rseq", "status", "reason", "bytes_in", "bytes_out", "next_seq", "epoch",
              "retry_after_ms", "ip", "client", "method", "path", "eos", "detail")  # fmt: skip
    for wanted in ({"op": "publish", "seq": 0}, {"op": "read", "seq": 0}, {"op": "read", "seq": 7},
                   {"op": "close_segment"}, {"status": 409}):  # fmt: skip
        at_edge, at_owner = (one.record(channel=channel.name, **wanted) for one in (nodes.edge, nodes.owner))
        if at_edge.status == 409:  # the edge has read the body that the owner has refused
            assert (at_edge.bytes_in, at_owner.bytes_in) == (1, None)
            at_owner.bytes_in = 1
        assert [getattr(at_edge, name) for name in fields] == [getattr(at_owner, name) for name in fields]
        assert (at_edge.node, at_edge.answered_by, at_edge.via) == ("edge", "owner", None)
        assert (at_owner.node, at_owner.answered_by, at_owner.via) == ("owner", None, "edge")


def test_the_storm_report_counts_a_request_once(nodes: Nodes, target: Target, tmp_path: Path) -> None:
    """The lines of the node that the client came to are counted, and with them the requests that nobody passed on."""
    channel = target.channel()
    channel.publish(0, b"x", b"y")
    for _ in range(5):
        channel.get(9)
    with closing(nodes.owner.target()) as directly:
        directly.channel(channel.name).get(1)
    nodes.settled()
    mine = [[one for one in server.records if one.channel == channel.name] for server in (nodes.edge, nodes.owner)]
    assert [len(records) for records in mine] == [7, 8]
    for name, records in zip(("edge", "owner"), mine, strict=True):
        lines = [json.dumps(record.as_dict()) for record in records]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, ""]))
    with duckdb.connect() as con:
        read_lines(con, find_logs([str(tmp_path)]))
        found = con.sql("SELECT op, node, count(*) FROM line GROUP BY ALL ORDER BY ALL").fetchall()
    assert found == [("publish", "edge", 2), ("read", "edge", 5), ("read", "owner", 1)]


def test_a_streamed_segment_has_the_owners_reason(nodes: Nodes, channel: RemoteChannel) -> None:
    """The trailers tell the edge how it ended."""
    post, reader = channel.started(0, b"cut")
    post.abort()
    channel.close(0, {"Lp-Trickle-Truncated": "1"}).expect(200)
    reader.ends()
    channel.publish(1, b"x")
    stream = channel.target.open()
    stream.request("GET", f"{channel.path}/stream?start=1")
    stream.head()
    stream.gets(b"x")
    channel.end()
    stream.ends()
    assert nodes.edge.record(channel=channel.name, op="read", status=200).reason == Reason.TRUNCATED
    streamed = nodes.edge.record(channel=channel.name, op="stream")
    assert (streamed.reason, streamed.eos) == (Reason.TERMINATED, True)


def test_a_client_of_http_1_0_gets_the_bytes_alone(nodes: Nodes, channel: RemoteChannel) -> None:
    """As they come; the end of the connection is the end of the segment."""
    post = channel.upload(0, b"hello")
    with asked(nodes.edge, b"GET %b HTTP/1.0\r\n\r\n" % channel.at(0).encode()) as client:
        head, _, body = head_of(client).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        while body != b"hello":
            body += client.recv(4096)
        post.chunk(b"again").stored()
        assert received(client) == b"again"


def test_a_client_is_invited_to_send_its_body_when_the_owner_takes_it(nodes: Nodes, channel: RemoteChannel) -> None:
    """And refused without its body, if the owner does not."""
    connection = channel.target.open()
    connection.request("POST", channel.at(0), {"Expect": "100-continue", "Content-Length": "5"})
    assert connection.interim().status == 100
    connection.send(b"hello")
    connection.expect(200)
    connection.request("POST", channel.at(0), {"Expect": "100-continue", "Content-Length": "5"})
    assert connection.response().status == 409


def test_answers_have_each_field_once(nodes: Nodes, channel: RemoteChannel) -> None:
    """A page of another origin may read, and learns the node; nothing of the talk between nodes comes out."""
    channel.publish(0, b"x")
    for seq, origin in ((0, {"Origin": "http://page"}), (0, {}), ("next", {"Origin": "http://page"}), (9, {})):
        response = channel.get(seq, origin)
        names = [name.lower().decode() for name, _ in response.head.headers]
        assert len(names) == len(set(names))
        assert {"date", "server", "lp-trickle-node"} <= set(names)
        assert "trickle-cluster" not in names
        assert ("access-control-allow-origin" in names) == bool(origin)


def test_a_client_with_the_segment_is_told_so(channel: RemoteChannel) -> None:
    """Conditions and ranges reach the owner: 304 and 206, with the owner's tag; HEAD has no body."""
    channel.publish(0, b"0123456789")
    tag = channel.get(0).get("ETag")
    assert tag
    connection = channel.target.open()
    for headers, status in ({"If-None-Match": tag}, 304), ({"Range": "bytes=2-5"}, 206):
        connection.request("GET", channel.at(0), headers)
        response = connection.response()
        assert (response.status, response.body) == (status, b"2345" if status == 206 else b"")
    connection.request("HEAD", channel.at(0))
    assert connection.response().get("Lp-Trickle-Size") == "10"
    connection.request("GET", channel.at(0))
    assert connection.response().body == b"0123456789"


def test_connections_to_the_owner_are_used_again(nodes: Nodes, channel: RemoteChannel) -> None:
    """Many clients one after the other need one. The kernel asks whether its other end is there."""
    channel.publish(0, b"x")
    nodes.settled()
    before = next_number(nodes.owner)
    for _ in range(10):
        channel.get(0)
    nodes.settled()
    assert next_number(nodes.owner) - before <= 2
    pool = nodes.at_edge.forwarding._pools[place_of(nodes.owner).url]
    sock = next(iter(pool.idle)).transport.get_extra_info("socket")
    assert nodes.edge.inside(lambda: sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


def next_number(server: LocalServer) -> int:
    """The number of the next connection, which is lost."""
    return server.inside(lambda: next(server.plane.connection_numbers))


# What the owner gets.


class FakeNode:
    """A node that answers as a test says, and shows what it got."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WITHIN_S)
        self.place = Place("fake", f"http://127.0.0.1:{self._listener.getsockname()[1]}/below/here")

    def accept(self) -> socket.socket:
        """The next connection."""
        sock, _ = self._listener.accept()
        sock.settimeout(WITHIN_S)
        return sock

    def close(self) -> None:
        """Take no connection any more."""
        self._listener.close()


def head_of(sock: socket.socket) -> bytes:
    """A request's head, and what came with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := sock.recv(65536))
        assert more, "the connection ended in the head"
    return data


@contextmanager
def fake(nodes: Nodes, name: str) -> Iterator[FakeNode]:
    """A node that has one channel."""
    with closing(FakeNode()) as there:
        nodes.at_edge.places[name] = there.place
        yield there
        del nodes.at_edge.places[name]
        nodes.edge.inside(lambda: nodes.at_edge.forwarding.lost("fake"))


def asked(server: LocalServer, data: bytes) -> socket.socket:
    """A connection on which this was sent."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S)
    sock.sendall(data)
    return sock


OK = b"HTTP/1.1 200 OK\r\nTrickle-Cluster: reason=complete\r\nContent-Length: 2\r\n\r\nok"


def test_a_request_is_written_anew(nodes: Nodes) -> None:
    """With the owner's base path and host; without what is good for one connection, or decided here."""
    with (
        fake(nodes, "rewritten") as there,
        asked(
            nodes.edge,
            b"POST //trickle//rewritten/5?a=b HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nConnection: keep-alive, X-Mine\r\n"
            b"X-Mine: 1\r\nKeep-Alive: 5\r\nProxy-Authorization: p\r\nAuthorization: Bearer t\r\nOrigin: http://x\r\n"
            b"X-Forwarded-For: 192.0.2.9\r\nIdempotency-Key: k\r\nX-Other:  kept \r\nTransfer-Encoding: chunked\r\n"
            b"Expect: 100-continue\r\nContent-Type: video/mp2t\r\nTrickle-Client: me\r\n\r\n"
            b"3\r\nabc\r\n0\r\nT: u\r\n\r\n",
        ) as client,
        there.accept() as owner,
    ):
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += owner.recv(65536)
        owner.sendall(OK)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    by_name = dict(field.split(b": ", 1) for field in fields)
    assert line == b"POST /below/here/rewritten/5?a=b HTTP/1.1"
    value = by_name.pop(b"trickle-cluster")
    assert verify(CLUSTER_SECRET, b"POST", b"/below/here/rewritten/5?a=b", value) == Via(("edge",), "127.0.0.1")
    assert by_name == {
        b"host": there.place.url[7:].partition("/")[0].encode(), b"idempotency-key": b"k", b"x-other": b"kept",
        b"transfer-encoding": b"chunked", b"expect": b"100-continue", b"content-type": b"video/mp2t",
        b"trickle-client": b"me",
    }  # fmt: skip
    assert body == b"3\r\nabc\r\n0\r\n\r\n"


def test_a_body_goes_with_its_request_whatever_that_is(nodes: Nodes) -> None:
    """Also one that came before there was a connection to the owner, which would take the next request for it."""
    head = b"DELETE /trickle/bodies/%d HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    both = head % 1 + b"hello" + head % 2 + b"world"
    with fake(nodes, "bodies") as there, asked(nodes.edge, both) as client, there.accept() as owner:
        for body in (b"hello", b"world"):
            got = head_of(owner)
            while not got.endswith(body):
                got += owner.recv(65536)
            owner.sendall(OK)
            assert client.recv(4096).endswith(b"ok")


@pytest.mark.parametrize(
    ("framing", "more"),
    [("Content-Length: 9\r\n\r\nhell", b"GET /"), ("Transfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n", b"0\r\n\r\n")],
)
def test_an_answer_before_the_end_of_the_body(nodes: Nodes, framing: str, more: bytes) -> None:
    """The rest of the body is thrown away, here and there; the next request of the client is its own again."""
    head = f"DELETE /trickle/early/1 HTTP/1.1\r\nHost: x\r\n{framing}"
    with fake(nodes, "early") as there, asked(nodes.edge, head.encode()) as client:
        with there.accept() as owner:
            head_of(owner)
            owner.sendall(OK)
            assert client.recv(4096).endswith(b"ok")
            client.sendall(more)
            assert received(owner).strip(b"4\r\nhel") == b""  # and no other request comes on this connection
        client.sendall(b"GET /trickle/early/2 HTTP/1.1\r\nHost: x\r\n\r\n")
        with there.accept() as owner:
            assert head_of(owner).startswith(b"GET /below/here/early/2 HTTP/1.1\r\n")
            owner.sendall(OK)
            assert client.recv(4096).endswith(b"ok")


def test_an_owner_that_still_waits_for_a_body_is_asked_nothing_else(nodes: Nodes) -> None:
    """Whatever loses bytes of a body here: their connection ends with the request."""
    head = b"DELETE /trickle/short/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    with fake(nodes, "short") as there, asked(nodes.edge, head) as client, there.accept() as owner:
        head_of(owner)
        [upstream] = nodes.edge.inside(lambda: list(nodes.at_edge.forwarding._pools[there.place.url].serving))
        exchange = upstream.exchange
        assert exchange is not None
        nodes.edge.inside(lambda: exchange.body_ended([]))
        owner.sendall(OK)
        assert client.recv(4096).endswith(b"ok")
        assert received(owner) == b""


def test_a_client_cannot_speak_for_others(nodes: Nodes, channel: RemoteChannel) -> None:
    """Neither at the edge nor at the owner, nor by a name among those that Connection drops; each try is counted."""
    before = nodes.at_edge.peers.forged, nodes.at_owner.peers.forged
    channel.publish(0, b"x")
    for server in (nodes.edge, nodes.owner):
        for value in (b"", b"x", b"reason=complete"):
            line = b"GET %b HTTP/1.1\r\nHost: x\r\nTrickle-Cluster: %b\r\n" % (channel.at(0).encode(), value)
            assert statuses(exchange(server, line + b"\r\n")) == [403]
        assert statuses(exchange(server, line + b"Connection: Trickle-Cluster\r\n\r\n")) == [403]
    assert (nodes.at_edge.peers.forged, nodes.at_owner.peers.forged) == (before[0] + 4, before[1] + 4)
    assert {one.reason for one in nodes.owner.records if one.status == 403} == {Reason.FORBIDDEN}


def test_the_owner_asks_for_no_token(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The edge does, and tells the owner the subject; the token itself stays at the edge. Its end ends the request."""
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_bytes(SECRET + b"\n")
    with two_nodes(jwt_secret_file=secret, jwt_leeway_s=0) as nodes, nodes.edge.client() as target:
        channel = target.channel("cam-1")
        assert channel.get("next").status == 401
        rights = bearer(token(trickle={"publish": ["cam-*"], "subscribe": ["cam-*"]}, sub="studio"))
        post = channel.upload(0, b"some", headers=rights)
        eventually(lambda: writers(nodes.owner) and writers(nodes.owner)[0].received, what="the owner has some")
        nodes.edge.inside(lambda: expire(nodes.edge))
        assert post.answer().status == 401
        eventually(lambda: not writers(nodes.owner), what="the owner's publisher is gone")
        record = nodes.owner.record(op="publish", channel="cam-1")
        assert (record.client, record.via, record.reason) == ("studio", "edge", Reason.CLIENT_GONE)
        assert nodes.edge.record(op="publish", channel="cam-1").reason == Reason.EXPIRED


def expire(server: LocalServer) -> None:
    """Let all permissions end."""
    plane = server.plane
    plane.wall_us = lambda: 2**52
    plane.tick(plane.clock())


def test_limits_per_client_are_the_clients(nodes: Nodes) -> None:
    """An owner with one connection per address counts no node, and limits requests of the client that a node names."""
    settings: dict[str, Any] = {"per_ip_connections": 1, "per_ip_limit": 2}
    none: dict[str, Any] = {"per_ip_connections": 0, "per_ip_limit": 0}
    with two_nodes(at_edge=none, **settings) as few, closing(few.edge.target()) as target:
        channel = target.channel().create()
        channel.publish(0, b"x")
        waiting = [channel.waiting(1) for _ in range(2)]
        assert channel.get(0).status == 429
        assert few.edge.record(channel=channel.name, status=429).reason == "limit:per_ip_limit"
        waiting[0].abort()
        eventually(lambda: channel.get(0).status == 200, what="the owner has noticed")


# Back-pressure.


def test_a_stuck_owner_holds_its_publisher(nodes: Nodes) -> None:
    """The edge reads no more than one turn's bytes beyond what the kernel takes; all of it arrives in the end."""
    size = 64 << 20
    with fake(nodes, "stuck") as there:
        head = b"POST /trickle/stuck/0 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        with asked(nodes.edge, head) as client, there.accept() as owner:
            head_of(owner)
            sent = threading.Thread(target=client.sendall, args=(bytes(size),), daemon=True)
            sent.start()
            held = eventually(lambda: held_for(nodes), what="the publisher is not read")
            assert held <= TURN_BYTES
            rest = size
            while rest:
                rest -= len(owner.recv(1 << 20))
            sent.join(WITHIN_S)
            assert not held_for(nodes)
            owner.sendall(OK)
            assert client.recv(4096).endswith(b"ok")


def held_for(nodes: Nodes) -> int:
    """Bytes that the edge holds for an owner that takes none, whose publisher it does not read."""

    def look() -> int:
        pools = nodes.at_edge.forwarding._pools.values()
        [upstream] = [one for pool in pools for one in pool.serving]
        assert upstream.exchange is not None
        pauses = getattr(upstream.exchange.connection, "pauses", 0)
        return upstream.transport.get_write_buffer_size() if pauses & NODE else 0

    return nodes.edge.inside(look)


def test_a_stuck_reader_holds_the_owner() -> None:
    """The edge holds one read for it, the rest waits at the owner; when the reader goes on, it gets every byte."""
    body = pattern(24 << 20)
    with two_nodes(**PATIENT) as nodes, closing(nodes.edge.target()) as target:
        channel = target.channel()
        channel.publish(0, body)
        nodes.settled()
        with asked(nodes.edge, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % channel.at(0).encode()) as peer:
            eventually(lambda: nodes.owner.plane.slow_peers.stalled, what="the owner is held")
            [stuck] = nodes.edge.inside(lambda: list(nodes.edge.plane.slow_peers.stalled))
            assert nodes.edge.inside(stuck.unsent) <= forward.RELAY_BYTES + 1024
            got = b""
            while not got.endswith(b"\r\n\r\n") or b"\r\n0\r\n" not in got[-200:]:
                got += peer.recv(1 << 20)
        nodes.settled()
        assert nodes.edge.record(op="read", status=200).bytes_out == len(body)


def test_a_reader_that_does_not_read_is_cut_off_at_the_edge() -> None:
    """The owner's reader is gone, too, and the record says how much the client took."""
    with two_nodes(**PATIENT) as nodes, closing(nodes.edge.target()) as target:
        channel = target.channel()
        channel.publish(0, bytes(24 << 20))
        clock = clock_of(nodes.edge)
        peer = SlowPeer(nodes.edge.port, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % channel.at(0).encode())
        eventually(lambda: nodes.owner.plane.slow_peers.stalled, what="the owner is held")
        for _ in range(3):
            nodes.edge.inside(lambda: clock.advance(1001))
        assert len(peer.rest()) < 20 << 20
        peer.socket.close()
        nodes.settled()
        record = nodes.edge.record(op="read", status=200)
        assert (record.reason, record.detail, record.answered_by) == (Reason.EVICTED, "standing_still", "owner")
        assert nodes.owner.record(op="read", status=200).reason == Reason.CLIENT_GONE


# The client's end.


def test_a_client_that_leaves_is_gone_at_the_owner(nodes: Nodes, channel: RemoteChannel) -> None:
    """A reader that waits, at once; and a publisher, with every byte of its that had come."""
    channel.publish(0, b"x")
    reader = channel.waiting(1)
    eventually(lambda: nodes.owner.plane.registry.readers, what="the owner has a reader")
    reader.abort()
    eventually(lambda: not nodes.owner.plane.registry.readers, what="the reader is gone")
    post = channel.upload(1, b"abc")
    post.connection.send(b"5\r\nde")
    channel.arrived(1, b"abc").abort()
    post.abort()
    eventually(lambda: not writers(nodes.owner), what="the publisher is gone")
    segment = nodes.owner.plane.registry.channels[channel.name].segments[1]
    assert (segment.size, segment.closed) == (5, False)
    for op, seq in (("read", 1), ("publish", 1)):
        matching = [one for one in nodes.owner.records if (one.channel, one.op, one.seq) == (channel.name, op, seq)]
        assert {one.reason for one in matching} == {Reason.CLIENT_GONE}
    nodes.settled()


# The owner's end.


def test_a_node_that_is_not_there(nodes: Nodes, target: Target) -> None:
    """503 with Retry-After, and the record has no node that answered."""
    with closing(FakeNode()) as there:
        there.close()
        nodes.at_edge.places["nowhere"] = there.place
        before = nodes.at_edge.forwarding.failed
        for method, tail in (("GET", "/0"), ("POST", "/0"), ("DELETE", ""), ("POST", "")):
            response = target.ask(
                method, f"{target.base}/nowhere{tail}", {}, b"x" if tail and method == "POST" else None
            )
            assert response.status == 503
            assert response.number("Retry-After") >= 1
        assert nodes.at_edge.forwarding.failed == before + 4
        record = nodes.edge.record(channel="nowhere", op="read")
        assert (record.reason, record.answered_by) == (Reason.UNREACHABLE, None)


def test_a_node_that_closes_a_new_connection(nodes: Nodes, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the request is sent: 503, as if there had been no connection."""
    needs_interpreter()
    connect = forward._Pool._connect

    async def too_short(self: forward._Pool, plane: DataPlane) -> forward.Upstream:
        upstream = await connect(self, plane)
        upstream.transport.abort()
        await asyncio.sleep(0)  # until it is lost
        await asyncio.sleep(0)
        return upstream

    nodes.edge.inside(nodes.at_edge.forwarding.end)
    monkeypatch.setattr(forward._Pool, "_connect", too_short)
    faults = nodes.edge.plane.faults
    answer = target.channel("closed").post(0, b"x")
    assert (answer.status, answer.get("Retry-After") is not None) == (503, True)
    assert nodes.edge.plane.faults == faults


def test_a_node_that_takes_no_connection_in_time(nodes: Nodes, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel does not answer: 503 after the limit; a client that leaves meanwhile leaves nothing behind.

    Bodies that wait for a connection have a limit, too.
    """
    needs_interpreter()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    full = []
    for _ in range(3):  # the kernel takes one more than it was told to
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        full.append(sock)
    nodes.at_edge.places["busy"] = Place("busy", f"http://127.0.0.1:{port}/trickle")
    monkeypatch.setattr(forward, "CONNECT_S", 0.2)
    assert target.ask("GET", f"{target.base}/busy/0").status == 503
    monkeypatch.setattr(forward, "CONNECT_S", 100.0)
    waiting = target.send("GET", f"{target.base}/busy/0")
    eventually(lambda: nodes.edge.plane.parked[ParkedFor.NODE], what="it waits for a connection")
    waiting.abort()
    eventually(lambda: not nodes.at_edge.forwarding.connecting, what="nobody connects")
    monkeypatch.setattr(exchanges, "PARKED_BYTES", 1000)
    response = target.ask("POST", f"{target.base}/busy/0", {}, b"x" * 2000)
    assert (response.status, response.body) == (503, b"Limit reached: total_bytes")
    assert nodes.edge.plane.parked_bytes == 0
    for sock in (*full, listener):
        sock.close()


def answering(nodes: Nodes, name: str, script: Callable[[FakeNode], None], request: bytes) -> bytes:
    """What a client gets from an owner that follows a script."""
    with fake(nodes, name) as there:
        thread = threading.Thread(target=script, args=(there,), daemon=True)
        thread.start()
        with asked(nodes.edge, request) as client:
            got = received(client)
        thread.join(WITHIN_S)
        return got


GET = b"GET /trickle/%b/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", 503),
        (b"HTTP/1.1 200 OK\r\nContent-", 503),
        (b"nonsense\r\n\r\n", 503),
        (b"HTTP/1.1 200 OK\r\n\r\nno framing", 503),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * (70 << 10), 503),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", 503),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n", 503),
        (b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, 200),
        (b"HTTP/1.1 502 Bad Gateway\r\nConnection: X-Proxy\r\nX-Proxy: 1\r\nContent-Length: 0\r\n\r\n", 502),
    ],
    ids=["nothing", "half a head", "no head", "no framing", "an endless head", "disbelief", "two answers", "interim",
         "of a proxy"],
)  # fmt: skip
def test_an_owner_that_answers_badly(
    nodes: Nodes, answer: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as nothing is out, the client is told to come back, and nobody else's answer reaches it."""

    def script(there: FakeNode) -> None:
        with there.accept() as owner:
            head_of(owner)
            owner.sendall(answer)

    with caplog.at_level(logging.WARNING, "tricklecast.cluster"):
        got = answering(nodes, "bad", script, GET % b"bad")
    assert len(caplog.records) <= 1
    assert statuses(got)[-1:] == [status]
    assert got.count(b"HTTP/1.1 2") == (status == 200)
    assert b"X-Proxy" not in got


@pytest.mark.parametrize("framing", [b"Content-Length: 10", b"Transfer-Encoding: chunked"])
def test_an_owner_that_goes_in_the_middle_of_its_answer(nodes: Nodes, framing: bytes) -> None:
    """The client cannot take the part for the whole: its connection ends without the end of the body."""

    def script(there: FakeNode) -> None:
        with there.accept() as owner:
            head_of(owner)
            owner.sendall(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n5\r\nhel" % framing)

    got = answering(nodes, "half", script, GET % b"half")
    assert got.endswith(b"5\r\nhel")
    record = next(one for one in reversed(nodes.edge.records) if one.channel == "half")
    assert (record.status, record.reason) == (200, Reason.UNREACHABLE)


def test_an_owner_that_goes_in_the_middle_of_a_body(nodes: Nodes) -> None:
    """The publisher gets 503, and may send the segment again."""

    def script(there: FakeNode) -> None:
        with there.accept() as owner:
            while b"hello" not in owner.recv(65536):
                pass

    request = b"POST /trickle/mid/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    assert statuses(answering(nodes, "mid", script, request)) == [503]


def test_a_node_that_has_lost_its_lease(nodes: Nodes) -> None:
    """It stands still: those that wait for it are told when it is taken for dead, and a publisher, too."""
    with fake(nodes, "still") as there:
        post = b"POST /trickle/still/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhello"
        with asked(nodes.edge, GET % b"still") as waiting, there.accept() as first:
            head_of(first)
            with asked(nodes.edge, post) as publishing, there.accept() as second:
                head_of(second)
                nodes.edge.inside(lambda: nodes.at_edge.forwarding.lost("fake"))
                assert [statuses(received(sock)) for sock in (waiting, publishing)] == [[503], [503]]


@contextmanager
def owner_process() -> Iterator[tuple[subprocess.Popen[str], Place]]:
    """An owner in a process of its own."""
    command = [sys.executable, "-m", "tests.app.cluster.nodes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Place("owner", f"http://127.0.0.1:{int(process.stdout.readline())}/trickle")
        finally:
            process.kill()


def test_an_owner_whose_process_stops_and_dies() -> None:
    """After a short stop all goes on. After a long one, and a death, each client is told, or its connection ends."""
    with owner_process() as (process, place), node("edge", storm_guard="off") as edge, closing(edge.target()) as target:
        table = join(edge, place)
        channel = target.channel()
        post, reader = channel.started(0, b"before")
        process.send_signal(signal.SIGSTOP)
        before = table.forwarding.forwarded
        asking = channel.read("next")
        post.chunk(b"meanwhile")
        eventually(lambda: table.forwarding.forwarded > before, what="the edge has passed it on")
        process.send_signal(signal.SIGCONT)
        reader.gets(b"meanwhile")
        assert asking.response().body == b"1"
        waiting = channel.waiting(1)
        process.send_signal(signal.SIGSTOP)
        edge.inside(lambda: table.forwarding.lost("owner"))
        assert post.answer().status == 503
        assert waiting.response().status == 503
        reader.closed()
        process.send_signal(signal.SIGCONT)
        resumed, reader = channel.started(1, b"again")
        process.kill()
        assert resumed.answer().status == 503
        reader.closed()
        assert channel.get(0).status == 503
        assert {one.reason for one in edge.records if one.status == 503} == {Reason.UNREACHABLE}


# Connections that rest.


def rested(nodes: Nodes, there: FakeNode, name: bytes) -> socket.socket:
    """The owner's side of a connection that rests, after one answer."""
    with asked(nodes.edge, GET % name) as client:
        owner = there.accept()
        head_of(owner)
        owner.sendall(OK)
        assert received(client).endswith(b"ok")
    return owner


def test_a_connection_that_closes_when_it_is_used_again(nodes: Nodes) -> None:
    """The request is sent once more over another one, if nothing of its body was sent; the client does not notice."""
    with fake(nodes, "race") as there:
        for request, status in (
            (GET % b"race", 200),
            (b"POST /trickle/race/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", 200),
            (b"POST /trickle/race/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 503),
            (b"POST /trickle/race/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 503),
        ):
            owner = rested(nodes, there, b"race")
            client = asked(nodes.edge, request)
            head_of(owner)
            owner.close()
            if status == 200:
                again = there.accept()
                head_of(again)
                again.sendall(OK.replace(b"\r\nC", b"\r\nConnection: close\r\nC", 1))
                again.close()
            assert statuses(client.recv(4096)) == [status]
            client.close()
        assert nodes.at_edge.forwarding.retried == 2


def test_a_request_is_sent_twice_at_most(nodes: Nodes) -> None:
    """An owner that closes each connection is not asked for ever."""
    with fake(nodes, "twice") as there:
        owner = rested(nodes, there, b"twice")
        with asked(nodes.edge, GET % b"twice") as client:
            head_of(owner)
            owner.close()
            with there.accept() as again:
                head_of(again)
            assert statuses(received(client)) == [503]


def test_bytes_that_nobody_asked_for_end_a_connection(nodes: Nodes) -> None:
    """They cannot become the answer to the next request."""
    with fake(nodes, "chatty") as there:
        with rested(nodes, there, b"chatty") as owner:
            owner.sendall(OK)
            assert received(owner) == b""
        rested(nodes, there, b"chatty").close()


def test_few_connections_rest_and_not_for_long(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit they are closed when their request is over, and all of them after a while."""
    needs_interpreter()
    monkeypatch.setattr(forward, "MAX_IDLE", 2)
    monkeypatch.setattr(forward, "IDLE_S", 0.3)
    with fake(nodes, "many") as there:
        clients = [asked(nodes.edge, GET % b"many") for _ in range(5)]
        owners = [there.accept() for _ in clients]
        for owner in owners:
            head_of(owner)
            owner.sendall(OK)
        assert all(received(client).endswith(b"ok") for client in clients)
        pool = nodes.at_edge.forwarding._pools[there.place.url]
        assert len(pool.idle) <= 2
        assert [received(owner) for owner in owners] == [b""] * 5
        assert not pool.idle
        for sock in (*clients, *owners):
            sock.close()


# Loops.


def test_a_request_does_not_go_in_a_circle() -> None:
    """Nodes that each take another one for the owner answer 508, at whichever of them a client asks."""
    with node("a") as first, node("b") as second, node("c") as third:
        tables = [join(server) for server in (first, second, third)]
        places = [place_of(server) for server in (first, second, third)]
        for table, place in zip(tables, [*places[1:], places[0]], strict=True):
            table.rest = place
        with closing(first.target()) as target:
            response = target.channel().get(0)
            assert (response.status, response.get("Retry-After")) == (508, "1")
            tables[1].rest = places[0]  # back to where it came from
            assert target.channel().get(0).status == 508
            tables[1].rest, tables[2].rest = places[2], None  # the channel has moved twice, and is there
            channel = target.channel().create()
            channel.publish(0, b"x")
            response = channel.get(0)
            assert (response.body, response.get("Lp-Trickle-Node")) == (b"x", places[2].url)
        records = [server.record(channel=channel.name, op="publish") for server in (first, second, third)]
        assert [(one.via, one.answered_by) for one in records] == [(None, "b"), ("a", "c"), ("b", None)]
        assert {one.reason for one in records} == {Reason.COMPLETE}
        assert [one.ip for one in records] == ["127.0.0.1"] * 3


# TLS, the storm guard, and the end of a server.


def test_nodes_speak_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Requests of both kinds pass, and a client that leaves is noticed."""
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"))
    with node("owner", tls_cert=certificate, tls_key=key, storm_guard="off") as owner, node("edge") as edge:
        join(owner)
        join(edge, place_of(owner, "https"), owner.tls)
        with closing(edge.target()) as target:
            channel = target.channel()
            channel.publish(0, b"hello" * 100_000)
            assert channel.get(0).body == b"hello" * 100_000
            reader = channel.waiting(1)
            eventually(lambda: owner.plane.registry.readers, what="the owner has a reader")
            reader.abort()
            eventually(lambda: not owner.plane.registry.readers, what="the reader is gone")
            edge.inside(lambda: join_again(edge))
            assert channel.get(0).status == 503  # nobody else trusts this certificate


def join_again(server: LocalServer) -> None:
    """Forget the certificate that was trusted."""
    table: Any = server.plane.cluster
    table.forwarding.end()
    table.forwarding = forward.Forwarding(table.peers)


def test_the_owner_holds_back_a_client_that_repeats_itself() -> None:
    """The storm guard goes by the client's own address and name, not by the node's connection; both records say so."""
    with two_nodes() as nodes, closing(nodes.edge.target()) as target:
        channel = target.channel().create()
        channel.publish(0, b"x")
        eventually(
            lambda: channel.get(9, {"Trickle-Client": "looper"}) and nodes.owner.plane.holds, what="the guard delays it"
        )
        nodes.settled()
        held = [[one.guard_ms for one in node.records if one.guard_ms] for node in (nodes.edge, nodes.owner)]
        assert held[0]
        assert held[0] == held[1]
        assert not nodes.edge.plane.holds


def test_a_request_that_was_held_back_and_is_then_passed_on() -> None:
    """A client that was refused too often waits at the edge; its request then has all that the owner needs."""
    client = {"Trickle-Client": "me", "X-Other": "x" * 1000, "traceparent": f"00-{'7' * 32}-b7ad6b7169203331-01"}
    with two_nodes(at_edge={"per_ip_limit": 1}) as few, closing(few.edge.target()) as target:
        channel = target.channel()
        channel.publish(0, b"0123456789")
        waiting = channel.waiting(1)
        asks, plane = channel.target.open(), few.edge.plane
        for asked_before in count():
            asks.request("GET", f"{channel.at(0)}?q=1", {**client, "Range": "bytes=2-3"})
            limited = ("read", 429, "limit:per_ip_limit")
            parked = plane.parked[ParkedFor.GUARD]
            eventually(partial(is_refused_or, parked, plane.exchanges, limited, asked_before), what="it is refused")
            if parked:
                break
            assert asks.response().status == 429
        waiting.abort()
        assert asks.response().body == b"23"
        record = few.owner.record(channel=channel.name, op="read", status=206)
        assert (record.client, record.trace) == ("me", "7" * 32)


def is_refused_or(parked: set[object], ended: Counter[Any], kind: tuple[str, int, str], before: int) -> bool:
    """Whether a request waits, or more of this kind have ended than before."""
    return bool(parked) or ended[kind] > before


def test_a_server_that_ends_lets_its_clients_go(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One that waits at the owner gets 503; the owner is left without a reader."""
    with node("owner") as owner:
        join(owner)
        with node("edge") as edge, closing(edge.target()) as target:
            join(edge, place_of(owner))
            channel = target.channel()
            channel.publish(0, b"x")
            reader = channel.waiting(1)
            eventually(lambda: owner.plane.registry.readers, what="the owner has a reader")
            edge.stop()
            assert reader.response().status == 503
        eventually(lambda: not owner.plane.registry.readers, what="the reader is gone")
