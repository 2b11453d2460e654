"""Connections: requests that are reused, pipelined, malformed, too large or unread; turns of reading; faults."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.app.data_plane.support import connections
from tests.app.hostile.support import exchange, statuses
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.scheduling import (
    CHANNEL,
    COST,
    DEAR_S,
    LEAST_TURN_BYTES,
    QUEUE,
    TURN,
    TURN_BYTES,
)
from tricklecast.app.data_plane.upload import Upload
from tricklecast.app.http1 import connection as module
from tricklecast.app.http1.connection import (
    QUEUE_BYTES,
    QUEUE_REQUESTS,
    UNREAD_BYTES,
    Connection,
    Endpoint,
)
from tricklecast.app.tools.conformance.connection import encode_chunk
from tricklecast.app.tools.conformance.response import ConnectionCut
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle.records import AccessRecord
from tricklecast.trickle.wire import Status

# One request after the other, and several at once.


def test_a_connection_serves_one_request_after_the_other(channel: RemoteChannel, target: Target) -> None:
    """Keep-alive: publish, read, ask for the head, ask the control plane, and publish again, on one connection."""
    connection = target.open()
    connection.request("POST", channel.at(0), body=b"first")
    assert connection.response().status == 200
    connection.request("GET", channel.at(0))
    assert connection.response().body == b"first"
    connection.request("GET", channel.at("next"))
    assert connection.response().body == b"1"
    connection.request("GET", "/healthz")
    assert connection.response().status == 200
    connection.request("POST", channel.at(1), body=b"second")
    assert connection.response().status == 200
    connection.request("HEAD", channel.at(1))
    assert connection.response().get("Lp-Trickle-Size") == "6"


def test_any_bytes_may_come_while_a_read_waits(channel: RemoteChannel, target: Target) -> None:
    """Requests that come meanwhile are answered in order, at any cut of the packets and with any bytes after them."""
    channel.create()
    connection = channel.waiting(0)
    head = connection.render("GET", channel.at("next"))
    for part in (b"\r\n", head[:2], head[2:-2], head[-2:]):
        connection.send(part)
        target.settle()
    connection.send(connection.render("GET", channel.at("next"), {"Connection": "close"}) + head)
    for _ in range(2):
        connection.expects("GET")
    target.settle()
    connection.silent()
    channel.publish(0, b"now")
    assert [connection.response().body for _ in range(3)] == [b"now", b"1", b"1"]
    connection.closed()


def test_a_large_publish_behind_a_waiting_read_arrives_whole(channel: RemoteChannel, target: Target) -> None:
    """Reading pauses while much is queued, and goes on when its turn comes."""
    other = target.channel()
    channel.create()
    connection = channel.read(0)
    body = b"".join(b"%08d" % number for number in range(QUEUE_BYTES // 2))
    connection.send(connection.render("POST", other.at(0), {"Content-Length": str(len(body))}) + body[:-8])
    connection.expects("POST")
    target.settle()
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    connection.send(body[-8:])
    assert connection.response().status == 200
    assert other.get(0).body == body


def test_many_pipelined_requests_are_all_answered(channel: RemoteChannel, target: Target) -> None:
    """More requests than may be queued are held back, and lost is none."""
    count = 3 * QUEUE_REQUESTS
    channel.publish(0, *[b"%d" % seq for seq in range(count)])
    connection = target.open()
    connection.send(b"".join([connection.render("GET", channel.at(seq)) for seq in range(count)]))
    assert [connection.response().body for _ in range(count)] == [b"%d" % seq for seq in range(count)]


def test_two_large_publishes_behind_a_waiting_read(channel: RemoteChannel, target: Target) -> None:
    """The queue's byte count goes down with the queue: the second of two large bodies does not stall."""
    other = target.channel()
    channel.create()
    connection = channel.read(0)
    body = bytes(QUEUE_BYTES)
    for seq in (0, 1):
        connection.send(connection.render("POST", other.at(seq), {"Transfer-Encoding": "chunked"}))
        connection.expects("POST")
        for start in range(0, len(body), 1 << 14):
            connection.send(encode_chunk(body[start : start + (1 << 14)]))
        connection.send(b"0\r\n\r\n")
    target.settle()
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    assert [connection.response().status for _ in range(2)] == [200, 200]
    assert other.get(0).body == other.get(1).body == body


def test_a_segment_request_waits_behind_the_control_plane(channel: RemoteChannel, target: Target) -> None:
    """A segment route pipelined behind a FastAPI route is answered after it."""
    channel.publish(0, b"abc")
    connection = target.open()
    connection.send(connection.render("GET", "/readyz") + connection.render("GET", channel.at(0)))
    assert connection.response().body == b'{"status":"ready"}'
    assert connection.response().body == b"abc"


def test_a_connection_that_breaks_takes_its_queue_along(
    channel: RemoteChannel, target: Target, server: LocalServer
) -> None:
    """Requests that were never begun change nothing when their connection is gone."""
    channel.create()
    connection = channel.read(0)
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "3"}) + b"abc")
    target.settle()
    connection.abort()
    record = server.record(channel=channel.name, op="read")
    assert record.reason == "client_gone"
    assert channel.next_seq() == 0
    eventually(lambda: not _waiting(target, channel))


def _waiting(target: Target, channel: RemoteChannel) -> bool:
    connection = target.send("GET", f"/api/v1/channels/{channel.name}")
    return b'"readers":0' not in connection.response().body


# However a client's bytes are cut, and however many requests come at once, the answers are the same.

STRANGE_TARGETS = (
    b"/trickle/c/-1", b"/trickle/c/next", b"/trickle/c", b"/trickle/c/1?a=/2", b"/trickle/c?a=/2", b"/trickle/%2e%2e/1",
    b"http://x/trickle/c/1",
    b"/trickle//c/1", b"/trickle/c/1 ", b"/trickle/c\x01/1", b"/trickle/\xc3\xbc/1", b"/other/c/1",
    b"/" + b"u" * 9000,
)  # fmt: skip
STRANGE_FIELDS = (
    b"Content-Length: 0\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", b"Host: y\r\n",
    b"A: 1\r\n folded\r\n", b"A: 1\nB: 2\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n", b"Origin: http://a\r\n",
    b"Lp-Trickle-Reset: 1\r\n", b"A: \r\n", b"A : 1\r\n", b"A: " + b"a" * 40_000 + b"\r\n",
)  # fmt: skip
CHUNKED = b"Transfer-Encoding: chunked\r\n"
ONE_CHUNK = b"3\r\nabc\r\n0\r\n\r\n"
OTHER_HEAD = b"GET /trickle/c/0 HTTP/1.1\r\nHost: z\r\nB: 1\r\n\r\n"
BODIES = st.sampled_from(
    [
        b"",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"0\r\nA: b\r\n\r\n",
        ONE_CHUNK,
        ONE_CHUNK + OTHER_HEAD,
        OTHER_HEAD,
        b"abc",
        b"abc",
        b"3\r\na",
        b"bc\r\n0\r\n\r\n",
        b"1;" + b"e" * 20_000,
    ]
)


def mostly(usual: list[bytes], strange: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the usual values in three cases of four, else a strange one."""
    return st.integers(0, 3).flatmap(lambda case: st.sampled_from(usual if case else strange))


REQUESTS = st.tuples(
    mostly([b"GET", b"POST"], [b"HEAD", b"DELETE", b"OPTIONS", b"CONNECT", b"get", b"\r\nGET"]),
    mostly([b" /trickle/c/%d" % seq for seq in range(6)], [b" " + target for target in STRANGE_TARGETS]),
    mostly([b" HTTP/1.1\r\n"] * 8, [b" HTTP/1.1\r\n"] * 4 + [b" HTTP/1.0\r\n", b" HTTP/1.1 \r\n", b" http/1.1\r\n"]),
    mostly([b"Host: x\r\n"], [b"Host: x\r\n", b"", b"\r\n", b"Host: x y\r\n"]),
    mostly([b"", CHUNKED, CHUNKED, b"Content-Length: 3\r\n"], STRANGE_FIELDS),
    st.just(b"\r\n"),
).map(b"".join)
POST_OF_ABC: Final = b"POST /trickle/c/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
QUICK = (
    b"OPTIONS /trickle/c/0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS /trickle/c/0 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    b"POST /trickle/c/-1 HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /trickle/c/-1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET /trickle/c/-2 HTTP/1.1\r\nHost: x\r\n\r\n",
)
MESSAGES = REQUESTS | st.tuples(REQUESTS, BODIES).map(b"".join) | BODIES.filter(len)


def transcript(packets: list[bytes], *, together: bool) -> tuple[bytes, bool, list[tuple[Any, ...]]]:
    """The answers of a server to these packets on one connection, whether it closes it, and its records.

    Args:
        together: all packets arrive at once; else each arrives when the server has nothing to do any more.
    """

    async def main() -> tuple[bytes, bool, list[tuple[Any, ...]]]:
        records: list[AccessRecord] = []
        plane = DataPlane(
            # A grace that ends by the clock would make the answers depend on how fast the machine is.
            Registry(Limits(overtaking_grace_s=1000.0), autocreate=True),
            Options(storm_guard=False),
            sink=records.append,
        )
        plane.rng.seed(1)
        plane.date, plane.clock = "", lambda: 0.0  # the time at which a segment begins stands in its tag
        connection, wire = Connection(Endpoint(plane)), Wire()
        connection.connection_made(wire)
        for packet in packets:
            while packet and not (wire.closing or connection.deaf):
                if not wire.reading:
                    await settle(connection)
                if not wire.reading:
                    break  # too much waits behind a read
                size = min(room(connection), len(packet))
                receive(connection, packet[:size])
                packet = packet[size:]
                if not together:
                    await settle(connection)
        await settle(connection)
        written, closing = joined(wire.written), wire.closing or connection.deaf
        wire.closing = True
        connection.connection_lost(None)
        fields = ("op", "path", "status", "reason", "rseq", "bytes_in", "bytes_out", "next_seq")
        return written, closing, [tuple(getattr(one, name) for name in fields) for one in records]

    return asyncio.run(main())


def joined(written: bytes) -> bytes:
    """With one chunk for each body: the chunks of a segment are those in which its publisher's bytes arrived."""
    return re.sub(rb"(?<=\r\n\r\n)(?:[1-9a-f][0-9a-f]*\r\n[a-z]+\r\n){2,}(?=0\r\n)", one_chunk, written)


def one_chunk(chunks: re.Match[bytes]) -> bytes:
    """The bytes of these chunks in one."""
    data = b"".join(chunks[0].split(b"\r\n")[1::2])
    return b"%x\r\n%b\r\n" % (len(data), data)


async def settle(connection: Connection) -> None:
    """Let the event loop turn until this connection has done all that it can do without more input."""
    for _ in range(4):
        await turn()
    while not connection.deaf and (connection._more or (connection._queue and connection.exchange is None)):
        await turn()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut at these places, as far as they are inside."""
    places = sorted({place % len(data) for place in places}) if data else []
    return [data[start:stop] for start, stop in pairwise([0, *places, len(data)])]


@patch("tricklecast.app.http1.connection.perf_counter", lambda: 0.0)  # no read counts as a dear one
@patch.object(Connection, "_begin_asgi", lambda connection, _: connection.reject(Status.NOT_FOUND, "No such route"))
@given(
    st.lists(MESSAGES, max_size=4),
    st.lists(st.sampled_from(QUICK), max_size=4),
    st.integers(0, 30),
    st.lists(MESSAGES, max_size=8),
    st.lists(st.integers(0, 1 << 20), max_size=8),
)
@example([], [], 0, [b"GET /trickle/c\x01/1 HTTP/1.1\r\nHost: x\r\n\r\n"], [5])
@example([], [], 0, [POST_OF_ABC, b"GET /trickle/c/0 HTTP/1.1\r\nHost: x\r\n\r\n"], [len(POST_OF_ABC) - 2])
@settings(max_examples=150)
def test_no_cut_and_no_pipelining_changes_an_answer(
    before: list[bytes], quick: list[bytes], times: int, after: list[bytes], places: list[int]
) -> None:
    """Valid or not: one after the other, cut anywhere, or all in one packet, the answers and records are the same."""
    messages = [*before, *quick * times, *after]
    wanted = transcript(messages, together=False)
    data = b"".join(messages)
    assert transcript([data], together=True) == wanted
    assert transcript(cut(data, places), together=True) == wanted


@pytest.mark.parametrize("field", [b"", b"Connection: keep-alive\r\n", b"Proxy-Connection: keep-alive\r\n"])
@pytest.mark.parametrize(("version", "stays"), [(b"1.0", False), (b"1.1", True)])
def test_the_version_is_that_of_the_request_line(version: bytes, stays: bool, field: bytes) -> None:
    """A connection of HTTP/1.0 is closed, whatever its client says about it; one of HTTP/1.1 stays."""
    head = b"GET /trickle/c/next HTTP/%b\r\nHost: x\r\n%b\r\n" % (version, field)
    answers, closed, _ = transcript([head], together=True)
    assert answers.startswith(b"HTTP/1.1 404 ")
    assert closed != stays


def test_a_head_that_is_refused_in_its_turn_gets_no_body() -> None:
    """A client would take the body for the beginning of the next response, also where others were before the HEAD."""
    head = b"HEAD /trickle/c/-1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    for before in (0, 40):
        answers, closed, _ = transcript([QUICK[0] * before + head], together=True)
        assert b"\r\nconnection: close\r\n" in answers[-200:]
        assert answers.endswith(b"\r\n\r\n")
        assert closed


# Offers of another protocol are ignored: the request is served as plain HTTP/1.1, body included.

OFFER = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}


def test_a_chunked_body_behind_an_offer_trickles(channel: RemoteChannel, target: Target) -> None:
    """Also piece by piece, with the head in a packet of its own."""
    connection = target.open()
    connection.send(connection.render("POST", channel.at(0), {**OFFER, "Transfer-Encoding": "chunked"}))
    connection.expects("POST")
    reader = channel.waiting(0)
    connection.send(encode_chunk(b"one"))
    assert reader.head().status == 200
    assert reader.chunk() == b"one"
    connection.send(encode_chunk(b"two") + b"0\r\n\r\n")
    assert connection.response().status == 200
    assert reader.rest() == b"two"


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_a_read_with_an_offer(channel: RemoteChannel, target: Target, upgrade: str) -> None:
    """A GET that offers an upgrade is just read."""
    channel.publish(0, b"body")
    connection = target.open()
    connection.request("GET", channel.at(0), {"Connection": "Upgrade", "Upgrade": upgrade})
    assert connection.response().body == b"body"
    connection.request("GET", channel.at("next"))
    assert connection.response().body == b"1"


def test_an_offer_to_the_control_plane(target: Target) -> None:
    """The control plane answers such a request, too."""
    connection = target.open()
    connection.request("GET", "/healthz", {"Connection": "Upgrade", "Upgrade": "websocket"})
    assert connection.response().status == 200


# Input that is no request, or too much.


def test_an_endless_trailer_is_refused(channel: RemoteChannel) -> None:
    """The same holds for what may follow a chunked body."""
    upload = channel.upload(0, b"data")
    upload.connection.send(b"0\r\nendless: ")
    for _ in range(64):
        if not upload.connection.try_send(b"a" * (1 << 14)):
            break
    assert upload.answer().status == 431


def test_a_large_body_before_a_head_is_not_taken_for_headers(channel: RemoteChannel, target: Target) -> None:
    """The limit of the headers counts headers, and not the body in the same packet."""
    size = 200_000
    connection = target.open()
    first = connection.render("POST", channel.at(0), {"Content-Length": str(size)}) + bytes(size)
    second = connection.render("GET", channel.at("next"))
    connection.send(first[:100])
    target.settle()
    connection.send(first[100:] + second[:10])
    connection.expects("POST")
    assert connection.response().status == 200
    connection.send(second[10:])
    assert connection.response().body == b"1"


FOR_EVER_S = 10**6


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("headers", [{}, {"Content-Length": "0"}], ids=["none", "empty"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_who_has_no_body_to_send_is_not_waited_for(
    tls: bool, headers: dict[str, str], method: str, certificate: tuple[Path, Path]
) -> None:
    """An answer that closes the connection closes it at once, under TLS, too."""
    ways = {"tls_cert": certificate[0], "tls_key": certificate[1]} if tls else {}
    with local_server(**ways) as server, server.client() as target:
        server.plane.options = replace(server.plane.options, linger_s=FOR_EVER_S)
        connection = target.open()
        connection.request(method, f"{target.base}/one/two/three", headers)
        assert connection.response().status == 404
        connection.closed()
        connection.close()
        eventually(lambda: not server.plane.connections)


@pytest.mark.parametrize(
    "headers", [{"Content-Length": "5"}, {"Transfer-Encoding": "chunked"}], ids=["length", "chunks"]
)
def test_who_has_more_to_send_is_read_from_for_a_moment(headers: dict[str, str]) -> None:
    """Or the kernel would reset the connection, and the answer might be lost."""
    with local_server() as server, server.client() as target:
        server.plane.options = replace(server.plane.options, linger_s=FOR_EVER_S)
        connection = target.open()
        connection.send(connection.render("GET", f"{target.base}/one/two/three", headers))
        connection.expects("GET")
        assert connection.response().status == 404
        connection.closed()  # for the server's part
        connection.send(b"abc")
        assert server.inside(lambda: len(server.plane.connections)) == 1
        connection.close()
        eventually(lambda: not server.plane.connections)


@pytest.mark.parametrize("chunked", [False, True], ids=["counted", "chunked"])
@pytest.mark.parametrize("waits", [False, True], ids=["answered", "waiting"])
def test_a_body_that_nobody_reads_is_bounded(
    waits: bool, chunked: bool, channel: RemoteChannel, server: LocalServer
) -> None:
    """A GET with a body of 1 MiB is answered once: 413, or the segment if that was there; the connection closes."""
    channel.publish(0, b"x")
    connection = channel.target.open()
    size = 1 << 20
    headers = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(size)}
    connection.send(connection.render("GET", channel.at(int(waits)), headers))
    connection.expects("GET")
    if not waits:
        assert connection.response().body == b"x"
        connection.expects("GET")
    for _ in range(16):
        piece = bytes(size // 16)
        if not connection.try_send(encode_chunk(piece) if chunked else piece):
            break
    if waits:
        answer = connection.response()
        assert (answer.status, answer.body) == (413, b"Request body too large")
    connection.half_close()
    connection.closed()
    record = server.record(reason="too_large", conn=max(record.conn or 0 for record in server.records))
    assert record.status == (413 if waits else None)


@pytest.mark.parametrize("rest", [b"zz\r\n", b"1" + b"0" * (1 << 15)], ids=["malformed", "endless size"])
def test_a_request_that_was_answered_is_not_answered_again(
    rest: bytes, channel: RemoteChannel, server: LocalServer
) -> None:
    """A wrong body ends the connection without a response."""
    channel.publish(0, b"x")
    head = b"GET %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % channel.at(0).encode()
    assert statuses(exchange(server, head + rest, half_close=False)) == [200]


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["answered", "being answered"])
def test_the_last_byte_of_such_a_body_makes_no_second_answer(
    size: int, channel: RemoteChannel, server: LocalServer
) -> None:
    """The client, or a proxy, would take it for that to its next request."""
    channel.publish(0, bytes(size))
    head = b"GET %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (channel.at(0).encode(), UNREAD_BYTES + 1)
    got = exchange(server, head + bytes(UNREAD_BYTES + 1), half_close=False)
    assert len(statuses(got)) == 1
    assert server.record(reason="too_large", conn=max(record.conn or 0 for record in server.records))


def test_a_body_that_nobody_reads_may_be_small(channel: RemoteChannel) -> None:
    """A body of UNREAD_BYTES is thrown away, and the connection goes on."""
    channel.publish(0, b"x")
    connection = channel.target.open()
    for _ in range(2):
        connection.send(
            connection.render("GET", channel.at(0), {"Content-Length": str(UNREAD_BYTES)}) + bytes(UNREAD_BYTES)
        )
        connection.expects("GET")
        assert connection.response().body == b"x"


# The end of a connection.


@contextmanager
def lingering() -> Iterator[LocalServer]:
    """A server that reads from refused clients for ever."""
    with local_server() as server:
        server.plane.options = replace(server.plane.options, linger_s=FOR_EVER_S)
        yield server


def test_a_refused_publisher_that_still_sends_hears_why() -> None:
    """The server reads on for a while, so that the kernel does not reset the connection before the client has read."""
    with lingering() as server, server.client() as target:
        channel = target.channel()
        channel.publish(0)
        connection = target.open()
        connection.send(connection.render("POST", channel.at(0), {"Content-Length": str(8 << 20)}))
        connection.expects("POST")
        for _ in range(8):
            connection.send(bytes(1 << 20))
        response = connection.response()
        assert (response.status, response.get("Lp-Trickle-Latest"), response.closes) == (409, "1", True)
        connection.closed()


def test_a_refused_publisher_is_read_by_turns() -> None:
    """A connection that is about to close gets no more of the loop than one whose input is parsed."""

    async def main() -> None:
        with connected() as (connection, wire):
            connection.deaf = True
            receive(connection, bytes(TURN_BYTES))
            assert (connection.pauses, wire.reading) == (TURN, False)
            await asyncio.sleep(0)
            assert (connection.pauses, wire.reading) == (0, True)
            receive(connection, b"x")
            assert connection.pauses == 0

    asyncio.run(main())


def test_an_unused_connection_is_closed_after_the_keep_alive() -> None:
    """Also one whose last request had a body that came after its answer."""
    with local_server(keep_alive_s=1) as server, server.client() as target:
        early, plain = target.open(), target.open()
        early.send(early.render("GET", "/trickle/_changes/next", {"Content-Length": "5"}))
        early.expects("GET")
        assert early.response().status == 200
        early.send(b"12345")
        plain.request("GET", "/trickle/_changes/next")
        assert plain.response().status == 200
        early.closed()
        plain.closed()


def test_a_wait_is_not_taken_for_an_unused_connection() -> None:
    """The keep-alive counts from the answer, not while something is in progress."""
    with local_server(keep_alive_s=1) as server, server.client() as target:
        channel = target.channel()
        channel.create()
        reader, upload, unused = channel.read(0), channel.upload(0), target.open()
        unused.request("GET", channel.at("next"))
        assert unused.response().status == 200
        unused.closed()
        upload.chunk(b"late").end()
        assert reader.response().body == b"late"
        assert upload.answer().status == 200


# Turns of reading: a connection over a transport that only notes what is done to it.


class Wire(asyncio.Transport):
    """The transport of a connection; as under TLS, there is no socket to write to."""

    def __init__(self) -> None:
        super().__init__({"sslcontext": True, "peername": ("192.0.2.1", 4711)})
        self.reading = True
        self.closing = False
        self.written = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        assert self.reading, "a transport may be paused once"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.closing
        assert not self.reading, "a transport may be resumed once"
        self.reading = True


class Price:
    """A clock that moves while input is parsed, and while a publisher's chunks are handed on to readers."""

    def __init__(self) -> None:
        self.cost_s = self.readers_s = 0.0
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def charge(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let both take their time, as both clocks of a connection tell it."""

        def feed(connection: Connection, data: memoryview, old: Any = Connection._feed) -> None:
            self._now += self.cost_s
            old(connection, data)

        def hand_on(upload: Upload, chunks: list[bytes], old: Any = Upload.data) -> None:
            self._now += self.readers_s
            old(upload, chunks)

        monkeypatch.setattr(Connection, "_feed", feed)
        monkeypatch.setattr(Upload, "data", hand_on)
        monkeypatch.setattr(module, "thread_time", self)
        monkeypatch.setattr(module, "perf_counter", self)


@pytest.fixture(autouse=True)
def free_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads cost nothing, however busy the machine is, unless a test says otherwise."""
    monkeypatch.setattr(module, "perf_counter", Price())


def test_a_lost_connection_frees_its_segment_whatever_its_body_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault while the last bytes are handed on is counted; the publisher's place is free all the same."""

    async def main() -> None:
        with connected() as (connection, _):
            upload = connection.exchange
            assert isinstance(upload, Upload)
            monkeypatch.setattr(Connection, "deliver_rest", lambda _: 1 // 0)
        assert (upload.writer, connection.plane.faults) == (None, 1)

    asyncio.run(main())


@contextmanager
def connected() -> Iterator[tuple[Connection, Wire]]:
    """A connection that publishes to ``c/0``, and its transport."""
    plane = DataPlane(Registry(Limits(), autocreate=True), Options())
    connection, wire = Connection(Endpoint(plane)), Wire()
    connection.connection_made(wire)
    receive(connection, b"POST /trickle/c/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n")
    yield connection, wire
    wire.closing = True
    connection.connection_lost(None)
    assert connection.pauses == 0
    left = (plane.connections, plane.turns.flows, plane.timeouts.resting, plane.timeouts.half_closed)
    assert not any(left)


def receive(connection: Connection, data: bytes) -> None:
    """Let input arrive, as the event loop does it."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


async def turn() -> None:
    """Let the event loop turn once."""
    await asyncio.sleep(0)


def room(connection: Connection) -> int:
    """How much the connection may be read at once."""
    return len(connection.get_buffer(-1))


def test_a_connection_that_fills_its_buffer_waits_for_the_next_turn() -> None:
    """It is read once per turn of the loop; less than a full buffer pauses nothing."""

    async def main() -> None:
        with connected() as (connection, wire):
            receive(connection, bytes(TURN_BYTES - 1))
            assert (connection.pauses, wire.reading) == (0, True)
            for _ in range(3):
                receive(connection, bytes(TURN_BYTES))
                assert (connection.pauses, wire.reading) == (TURN, False)
                await turn()
                assert (connection.pauses, wire.reading) == (0, True)

    asyncio.run(main())


@pytest.mark.interpreted
def test_input_that_is_dear_to_parse_is_read_in_smaller_pieces_with_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dear read halves the next one, down to a least size; from the second on the connection rests, too."""
    price = Price()
    price.charge(monkeypatch)
    rests: list[float] = []

    async def main() -> None:
        with connected() as (connection, wire):
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_later", lambda delay_s, *_: rests.append(delay_s), raising=False)
            price.cost_s = 2 * DEAR_S
            receive(connection, b"x")
            assert (room(connection), connection.pauses, rests) == (TURN_BYTES // 2, 0, [])
            receive(connection, b"x")
            assert (room(connection), connection.pauses, wire.reading) == (TURN_BYTES // 4, COST, False)
            assert rests == [pytest.approx(8 * DEAR_S)]
            connection.resume(COST)
            assert wire.reading
            for _ in range(9):
                receive(connection, b"x")
            assert room(connection) == LEAST_TURN_BYTES
            price.cost_s = 0.0
            connection.resume(COST)
            for _ in range(9):
                receive(connection, b"x")
            assert (room(connection), connection.pauses) == (TURN_BYTES, 0)

    asyncio.run(main())


@pytest.mark.interpreted
def test_a_publisher_does_not_rest_for_the_time_that_its_readers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that is, its next but one read is whole again; what its own input costs decides whether it rests."""
    price = Price()
    price.charge(monkeypatch)
    rests: list[float] = []

    async def main() -> None:
        with connected() as (connection, _):
            monkeypatch.setattr(
                asyncio.get_running_loop(), "call_later", lambda delay_s, *_: rests.append(delay_s), raising=False
            )
            price.readers_s = 50 * DEAR_S
            for smaller in (True, False) * 3:
                receive(connection, b"x")
                assert (room(connection) < TURN_BYTES, connection.pauses, rests) == (smaller, 0, [])
            price.cost_s = 2 * DEAR_S
            receive(connection, b"x")
            receive(connection, b"x")
            assert connection.pauses == COST
            assert rests == [pytest.approx(8 * DEAR_S)]
            connection.resume(COST)

    asyncio.run(main())


@pytest.mark.interpreted
def test_a_read_during_which_another_process_ran_is_not_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input that takes long by the clock makes one next read smaller; without processor time no connection rests."""
    price, nothing = Price(), Price()
    price.charge(monkeypatch)
    monkeypatch.setattr(module, "thread_time", nothing)

    async def main() -> None:
        with connected() as (connection, _):
            price.cost_s = 1.0
            for smaller in (True, False) * 3:
                receive(connection, b"x")
                assert (room(connection) < TURN_BYTES, connection.pauses) == (smaller, 0)

    asyncio.run(main())


def test_each_reason_to_pause_is_set_and_cleared_by_itself() -> None:
    """A connection is read again when no reason is left; a reason that is not set ends nothing."""

    async def main() -> None:
        with connected() as (connection, wire):
            for reason in (TURN, CHANNEL, CHANNEL):
                connection.pause(reason)
            for reason in (QUEUE, TURN, TURN):
                connection.resume(reason)
                assert (connection.pauses & CHANNEL, wire.reading) == (CHANNEL, False)
            connection.resume(CHANNEL)
            assert (connection.pauses, wire.reading) == (0, True)

    asyncio.run(main())


def test_no_reason_to_pause_outlives_its_connection() -> None:
    """A connection that breaks while it is paused is not read from again, whoever resumes it."""

    async def main() -> None:
        with connected() as (connection, wire):
            receive(connection, bytes(TURN_BYTES))
            connection.pause(CHANNEL)
        await turn()
        for reason in (TURN, CHANNEL):
            connection.resume(reason)
        assert (connection.pauses, wire.reading) == (0, False)

    asyncio.run(main())


# Faults of the server: each costs one exchange, or one connection, and is logged with a stack trace.


def check_one_fault(server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    """One fault was counted, and logged once, with its stack trace."""
    assert server.plane.faults == 1
    (logged,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert logged.exc_info is not None
    assert logged.exc_info[0] is ZeroDivisionError


def faulty(original: Callable[..., Any], victims: list[object]) -> Callable[..., Any]:
    """A method that raises for the victims."""

    def method(self: object, *arguments: Any) -> Any:
        if self in victims:
            raise ZeroDivisionError
        return original(self, *arguments)

    return method


@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "served"])
def test_a_fault_in_a_readers_wake_costs_that_reader_only(
    begun: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is answered 500, or cut off in the middle of its segment; the publisher and the other readers go on."""
    victims: list[object] = []
    monkeypatch.setattr(Reader, "wake", faulty(Reader.wake, victims))
    with local_server() as server, server.client() as target:
        channel = target.channel()
        channel.create()
        victim = channel.waiting(0)
        (connection,) = [found for found in connections(server) if found.reader()]
        others = [channel.waiting(0) for _ in range(3)]
        upload = channel.upload(0)
        if begun:
            upload.chunk(b"one")
            assert victim.head().status == 200
            assert victim.chunk() == b"one"
        server.inside(lambda: victims.append(connection.exchange))
        upload.chunk(b"two").end()
        assert upload.answer().status == 200
        body = b"onetwo" if begun else b"two"
        assert [reader.response().body for reader in others] == [body] * 3
        if begun:
            with pytest.raises(ConnectionCut):
                victim.rest()
        else:
            answer = victim.response()
            assert (answer.status, answer.closes) == (500, True)
        assert server.record(op="read", reason="error").channel == channel.name
        eventually(lambda: server.plane.registry.readers == 0)
        check_one_fault(server, caplog)
        assert channel.get(0).body == body


@pytest.mark.interpreted
def test_a_fault_in_a_readers_turn_costs_that_reader_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers behind it in the queue are served."""
    victims: list[object] = []
    monkeypatch.setattr(Reader, "take_turn", faulty(Reader.take_turn, victims))
    begin = Reader.begin

    def choose(self: Reader) -> None:
        if not victims:
            victims.append(self)
        begin(self)

    monkeypatch.setattr(Reader, "begin", choose)
    with local_server() as server, server.client() as target:
        channel = target.channel()
        body = bytes(1 << 20)
        channel.publish(0, body)
        readers = [channel.read(0), channel.read(0)]
        statuses = [reader.head().status for reader in readers]
        assert sorted(statuses) == [200, 500]
        assert readers[statuses.index(200)].rest() == body
        check_one_fault(server, caplog)


@pytest.mark.interpreted
def test_a_fault_in_a_publishers_body_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The publisher is told 500; its segment stays open for a while, and another publisher goes on with it."""
    with local_server() as server, server.client() as target:
        channel = target.channel()
        upload, reader = channel.started(0, b"one,")
        with monkeypatch.context() as patched:
            patched.setattr(Upload, "data", lambda *_: 1 // 0)
            upload.chunk(b"lost")
            answer = upload.answer()
        assert (answer.status, answer.closes) == (500, True)
        channel.upload(0, b"two").end().answer()
        assert reader.rest() == b"two"
        check_one_fault(server, caplog)


@pytest.mark.interpreted
def test_a_fault_while_a_request_is_begun_breaks_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody knows how far the request came, the connection breaks, and others are served."""
    with local_server() as server, server.client() as target:
        with monkeypatch.context() as patched:
            patched.setattr(module, "begin", lambda *_: 1 // 0)
            target.send("GET", "/trickle/c/next").closed()
        assert server.record(reason="error").status is None
        assert target.ask("GET", "/trickle/c/next").status == 404
        check_one_fault(server, caplog)


# The parser's own ways, on which parsing relies.

CALLBACKS = (
    "on_message_begin",
    "on_url",
    "on_header",
    "on_headers_complete",
    "on_chunk_header",
    "on_body",
    "on_chunk_complete",
    "on_message_complete",
)


class Recorder:
    """Notes the parser's callbacks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in CALLBACKS:
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, arguments))


def test_the_parser_calls_back_chunk_by_chunk() -> None:
    """Each chunk is reported with its begin, its parts as they arrive, and its end; so is the last, empty one."""
    recorder = Recorder()
    parser = httptools.HttpRequestParser(recorder)
    for part in (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nab", b"cd", b"ef\r\n0\r\n\r\n"):
        parser.feed_data(part)
    assert recorder.calls == [
        ("on_message_begin", ()),
        ("on_url", (b"/a",)),
        ("on_header", (b"Transfer-Encoding", b"chunked")),
        ("on_headers_complete", ()),
        ("on_chunk_header", ()),
        ("on_body", (b"ab",)),
        ("on_body", (b"cd",)),
        ("on_body", (b"ef",)),
        ("on_chunk_complete", ()),
        ("on_chunk_header", ()),
        ("on_chunk_complete", ()),
        ("on_message_complete", ()),
    ]


def test_an_upgrade_is_raised_with_the_offset_of_what_follows() -> None:
    """A request that offers another protocol ends parsing; it is no error, and its exception says where it ended."""
    parser = httptools.HttpRequestParser(Recorder())
    head = b"POST /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as upgrade:
        parser.feed_data(head + b"abc")
    assert upgrade.value.args[0] == len(head)
    assert not isinstance(upgrade.value, httptools.HttpParserError)
    assert parser.should_upgrade()


def test_an_exception_in_a_callback_is_the_context_of_the_parsers() -> None:
    """The fault itself is logged, not only that it interrupted the parser."""
    recorder = Recorder()
    recorder.__dict__["on_url"] = lambda _: 1 // 0
    with pytest.raises(httptools.HttpParserCallbackError) as error:
        httptools.HttpRequestParser(recorder).feed_data(b"GET / HTTP/1.1\r\n\r\n")
    assert isinstance(error.value.__context__, ZeroDivisionError)
