"""Peers that read slowly or not at all, and a server that cuts nobody off until its clock is moved."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from tests.support.local import LocalServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.http1.connection import Connection

LAG_S: Final = 1000.0
"""No test takes this long: the server's clock goes on when a test says so."""

FOR_EVER_S: Final = 10.0**6
PATIENT: Final[dict[str, Any]] = {
    "reader_lag_s": LAG_S,
    "reader_lag_bytes": "1GiB",
    "idle_timeout_s": FOR_EVER_S,
    "window_age_s": FOR_EVER_S,
    "head_timeout_s": FOR_EVER_S,
    "keep_alive_s": 10**6,
    "storm_guard": "off",
}


@lru_cache(8)
def pattern(size: int, start: int = 0) -> bytes:
    """Bytes that tell where they are."""
    return b"".join(b"%08x" % number for number in range(start // 8, (start + size) // 8))


class SlowPeer:
    """A client whose kernel takes little for it, and that reads only when a test says so."""

    def __init__(self, port: int, request: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(WITHIN_S)
        self.socket.connect(("127.0.0.1", port))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.socket.sendall(request)

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        taken = bytearray()
        while len(taken) < size:
            taken += (more := self.socket.recv(size - len(taken)))
            assert more, f"cut off after {len(taken)} of {size} bytes"
        return bytes(taken)

    def rest(self) -> bytes:
        """Read until the connection ends, one way or another."""
        taken = []
        try:
            while more := self.socket.recv(1 << 16):
                taken.append(more)
        except ConnectionResetError:
            pass
        return b"".join(taken)


@contextmanager
def slow_peer(server: LocalServer, request: bytes, tls: ssl.SSLContext | None = None) -> Iterator[SlowPeer]:
    """A client that asks, and is stuck; its connection closes with the block."""
    peer = SlowPeer(server.port, request, tls)
    try:
        eventually(lambda: server.plane.slow_peers.stalled, what="the peer is stuck")
        yield peer
    finally:
        peer.socket.close()
        eventually(lambda: not server.plane.slow_peers.stalled)


def later(server: LocalServer, seconds: float) -> None:
    """Let so many seconds pass for the server, and do what is due then."""

    def pass_time() -> None:
        plane = server.plane
        clock = plane.clock
        plane.clock = lambda: clock() + seconds
        plane.tick(plane.clock())

    server.inside(pass_time)


def connections(server: LocalServer) -> list[Connection]:
    """The connections of a server."""
    return [connection for connection in list(server.plane.connections) if isinstance(connection, Connection)]


def stuck(server: LocalServer) -> Connection:
    """The one connection whose peer does not read; for moments the kernel may take some more for it."""
    (connection,) = eventually(lambda: list(server.plane.slow_peers.stalled), what="a peer is stuck")
    assert isinstance(connection, Connection)
    return connection
