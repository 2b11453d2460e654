"""Clients that take their time: every request has an end, and a publisher may pause.

The plane's clock stands still in these tests unless they move it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.hostile.support import Clock, Watched, clock_of, watched
from tests.support.local import LocalServer
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.target import Target

HEAD_S = 10.0
KEEP_ALIVE_S = 75.0
JUST = 1e-6

UNFINISHED = {
    "method": b"GE",
    "path": b"GET /trickle/c",
    "header": b"GET /trickle/c/0 HTTP/1.1\r\nHost: x\r\nslow: ",
    "headers": b"GET /trickle/c/0 HTTP/1.1\r\nHost: x\r\nslow: y\r\n",
    "end of the head": b"GET /trickle/c/0 HTTP/1.1\r\nHost: x\r\n\r",
    "empty lines": b"\r\n\r\n\r\n",
    "head of a publish": b"POST /trickle/c/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
    "head for the control plane": b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    "body for the control plane": b"POST /api/v1/channels HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
    "chunks for the control plane": (
        b"POST /api/v1/channels HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
    ),
}


@pytest.fixture(params=["plain", "TLS"])
def watched_server(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Iterator[Watched]:
    """A server of each test's own, since each moves its clock; all of it holds under TLS, too."""
    way = {} if request.param == "plain" else {"tls_cert": certificate[0], "tls_key": certificate[1]}
    with watched(**way) as server:
        yield server


@pytest.fixture
def server(watched_server: Watched) -> LocalServer:
    """The server itself."""
    return watched_server.server


@pytest.fixture
def clock(server: LocalServer) -> Clock:
    """The server's clock, which stands still."""
    return clock_of(server)


def advance(server: LocalServer, clock: Clock, seconds: float) -> None:
    """Move the clock in the server's thread."""
    server.inside(lambda: clock.advance(seconds))


def arrived(server: LocalServer) -> bool:
    """Whether what was sent has reached the server: it now waits for the rest."""
    return server.inside(lambda: len(server.plane.timeouts.owing)) == 1


def test_a_request_that_does_not_end_is_answered_408(server: LocalServer, clock: Clock, target: Target) -> None:
    """Wherever it stops: in its head, or in a body for the control plane. Not before its time, and not after it."""
    for name, data in UNFINISHED.items():
        connection = target.open()
        connection.send(data)
        eventually(lambda: arrived(server), what=f"{name}: the server waits for the rest")
        advance(server, clock, HEAD_S - JUST)
        connection.silent(0.01)
        advance(server, clock, 2 * JUST)
        response = connection.response()
        assert (response.status, response.body) == (408, b"Request not complete in time"), name
        connection.close()
        eventually(lambda: not server.plane.connections)
    assert {record.reason for record in server.records if record.status == 408} == {"timeout"}
    assert server.plane.exchanges["none", 408, "timeout"] == len(UNFINISHED)


def test_a_byte_now_and_then_gains_no_time(server: LocalServer, clock: Clock, target: Target) -> None:
    """The time runs from the first byte of the head, whatever comes after it."""
    connection = target.open()
    for byte in b"GET /tri":
        connection.send(bytes([byte]))
        eventually(lambda: arrived(server))
        target.settle()
        advance(server, clock, HEAD_S / 10)
    connection.send(b"ckle")
    target.settle()
    advance(server, clock, HEAD_S / 5)
    assert connection.response().status == 408


def test_each_request_has_its_own_time(server: LocalServer, clock: Clock, target: Target) -> None:
    """The time that a slow head has used is given back with the next head, also if both share a packet."""
    connection = target.open()
    head = b"GET /trickle/control/next HTTP/1.1\r\nHost: x\r\n\r\n"
    connection.send(head[:9])
    for _ in range(3):
        eventually(lambda: arrived(server))
        advance(server, clock, HEAD_S - JUST)
        connection.send(head[9:] + head[:9])
        assert connection.response().body == b"2"


def test_a_silent_connection_is_closed_after_the_keep_alive(server: LocalServer, clock: Clock, target: Target) -> None:
    """A new one, too. Not sooner: some clients open a connection for a segment that they have not begun yet."""
    connection = target.open()
    eventually(lambda: server.plane.connections)
    advance(server, clock, KEEP_ALIVE_S - JUST)
    connection.silent(0.01)
    advance(server, clock, 2 * JUST)
    connection.closed()


@pytest.mark.parametrize("beginning", [b"", b"x"])
def test_a_body_that_nobody_reads_does_not_trickle_for_ever(
    server: LocalServer, clock: Clock, target: Target, beginning: bytes
) -> None:
    """A GET with a body is answered at once; its body has the time of a head, whether it comes slowly or not at all."""
    connection = target.open()
    head = connection.render("GET", "/trickle/control/next", {"Content-Length": "1000000"})
    connection.send(head + beginning)
    assert connection.response().body == b"2"
    advance(server, clock, HEAD_S / 2)
    connection.send(beginning)
    target.settle()
    advance(server, clock, HEAD_S / 2 - JUST)
    connection.silent(0.01)
    advance(server, clock, 2 * JUST)
    connection.closed()
    assert server.record(reason="timeout").status is None


def test_a_publisher_may_pause(server: LocalServer, clock: Clock, target: Target) -> None:
    """Live media: before its first byte, within its body and within a chunk, as long as its channel lives."""
    channel = target.channel()
    channel.create()
    connection = target.open()
    head = connection.render("POST", channel.at(0), {"Transfer-Encoding": "chunked"})
    for piece in (head, b"4", b"\r\nli", b"ve\r\n5\r\nmedia\r\n", b"0\r", b"\n\r"):
        connection.send(piece)
        target.settle()
        advance(server, clock, 2 * HEAD_S)
    connection.send(b"\n")
    connection.expects("POST")
    assert connection.response().status == 200
    assert channel.get(0).body == b"livemedia"


def test_a_reader_may_wait_with_half_a_request_behind_it(server: LocalServer, clock: Clock, target: Target) -> None:
    """While an exchange is in progress nothing else is due; afterwards the half request is."""
    channel = target.channel()
    channel.create()
    connection = channel.waiting(0)
    connection.send(b"GET /trickle/con")
    target.settle()
    advance(server, clock, 3 * HEAD_S)
    connection.silent(0.01)
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    connection.send(b"trol")
    eventually(lambda: arrived(server))
    advance(server, clock, HEAD_S + JUST)
    assert connection.response().status == 408
