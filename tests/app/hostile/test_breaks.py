"""Connections that end at every possible place: nothing hangs, nothing leaks, and no part is taken for a whole."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tests.app.hostile.support import left_over, received
from tests.support.local import LocalServer
from tests.support.resets import reset_when_closed
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.core.segment import State
from tricklecast.app.tools.conformance.target import RemoteChannel

COUNTED = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nABCDEFGH"
CHUNKED = (
    b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\nABCD\r\n4\r\nEFGH\r\n0\r\nT: u\r\n\r\n"
)
GET = b"GET %b HTTP/1.1\r\nHost: x\r\nUser-Agent: y\r\n\r\n"


def reset(sock: socket.socket) -> None:
    """As a client that crashes."""
    reset_when_closed(sock)
    sock.close()


def close(sock: socket.socket) -> None:
    """As a client that has no more interest."""
    sock.close()


def half_close(sock: socket.socket) -> None:
    """As a client that has said all, and listens; the server closes when it has answered."""
    sock.shutdown(socket.SHUT_WR)
    received(sock)
    sock.close()


ENDS = pytest.mark.parametrize("end", [reset, close, half_close], ids=lambda end: end.__name__)


def begin(server: LocalServer, data: bytes) -> socket.socket:
    """Open a connection and send this."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(data)
    return sock


def gone(server: LocalServer) -> None:
    """Wait until nothing is left of the connections so far."""
    eventually(lambda: not server.inside(lambda: left_over(server.plane)), what="nothing is left over")


@ENDS
@pytest.mark.parametrize("wire", [COUNTED, CHUNKED], ids=["counted", "chunked"])
def test_a_publish_that_ends_at_any_byte(
    server: LocalServer, channel: RemoteChannel, wire: bytes, end: Callable[[socket.socket], None]
) -> None:
    """It never completes a segment before its last byte; what has arrived of it stays for one that goes on."""
    channel.create()
    data = wire % channel.at(0).encode()
    for stop in range(len(data)):
        end(begin(server, data[:stop]))
    gone(server)
    segment = server.plane.registry.channels[channel.name].segments.get(0)
    assert segment is not None
    assert segment.state is State.OPEN
    held = b"".join(segment.frames)
    assert b"ABCDEFG" in held.replace(b"\r\n", b"").replace(b"4", b"")
    size = segment.size
    channel.upload(0, b"!").end().answer()
    body = channel.get(0).body
    assert len(body) == size + 1
    assert body.endswith(b"!")


@ENDS
@pytest.mark.parametrize("seq", [0, 1], ids=["served", "waiting"])
def test_a_read_that_ends_at_any_byte(
    server: LocalServer, channel: RemoteChannel, seq: int, end: Callable[[socket.socket], None]
) -> None:
    """Waiting or served: the reader is forgotten, and the channel is as it was."""
    channel.publish(0, b"data")
    data = GET % channel.at(seq).encode()
    for stop in range(len(data) + 1):
        end(begin(server, data[:stop]))
    gone(server)
    assert channel.next_seq() == 1
    assert channel.get(0).body == b"data"


@pytest.mark.parametrize("end", [reset, close])
def test_a_read_whose_client_stops_anywhere_in_the_answer(
    server: LocalServer, channel: RemoteChannel, end: Callable[[socket.socket], None]
) -> None:
    """While a segment is being written: others receive it whole, and the publisher notices nothing."""
    upload, reader = channel.started(0, b"first")
    data = GET % channel.at(0).encode()
    for count in range(0, 400, 7):
        sock = begin(server, data)
        while count > 0 and (piece := sock.recv(count)):
            count -= len(piece)
            if b"first" in piece:
                break
        end(sock)
    upload.chunk(b"second").end()
    assert upload.answer().get("Lp-Trickle-Size") == "11"
    assert reader.rest() == b"second"
    reader.close()
    upload.connection.close()
    gone(server)


@ENDS
@pytest.mark.parametrize("wire", [COUNTED, CHUNKED], ids=["counted", "chunked"])
def test_a_refused_publish_that_ends_at_any_byte(
    server: LocalServer, channel: RemoteChannel, wire: bytes, end: Callable[[socket.socket], None]
) -> None:
    """One that is answered before its body is there, too: 409, and the segment stays as it is."""
    channel.publish(0, b"data")
    data = wire % channel.at(0).encode()
    for stop in range(len(data) + 1):
        end(begin(server, data[:stop]))
    gone(server)
    assert channel.get(0).body == b"data"


@ENDS
def test_a_request_to_the_control_plane_that_ends_at_any_byte(
    server: LocalServer, end: Callable[[socket.socket], None]
) -> None:
    """A part of a body creates nothing."""
    body = b'{"name": "cut-off"}'
    data = b"POST /api/v1/channels HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    for stop in range(len(data)):
        end(begin(server, data[:stop]))
    gone(server)
    assert "cut-off" not in server.plane.registry.channels


def only_listen(sock: socket.socket) -> None:
    """As a client that has said all; the test closes the socket in the end."""
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("end", [reset, close, only_listen])
def test_a_pipeline_that_ends_at_any_byte(
    server: LocalServer, channel: RemoteChannel, end: Callable[[socket.socket], None]
) -> None:
    """Behind a request that waits, one that publishes and one to the control plane: none of them is begun by half."""
    channel.create()
    other = channel.target.channel()
    data = GET % channel.at(0).encode() + CHUNKED % other.at(0).encode() + GET % b"/healthz"
    opened = []
    for stop in range(len(data) + 1):
        opened.append(begin(server, data[:stop]))
        end(opened[-1])
    gone(server)
    for sock in opened:
        sock.close()
    assert other.name not in server.plane.registry.channels
    assert channel.next_seq() == 0


def test_packets_of_one_byte(server: LocalServer, channel: RemoteChannel) -> None:
    """The same requests, whole, in as many packets as they have bytes, are served as in one."""
    data = CHUNKED % channel.at(0).encode() + GET % channel.at(0).encode() + GET % b"/healthz"
    connection = channel.target.open()
    for byte in data:
        connection.send(bytes([byte]))
    for method in ("POST", "GET", "GET"):
        connection.expects(method)
    assert connection.response().get("Lp-Trickle-Size") == "8"
    assert connection.response().body == b"ABCDEFGH"
    assert connection.response().status == 200
