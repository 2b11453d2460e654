"""A server that is attacked, and whether it is as it was afterwards."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.app.core.support import check_registry
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.http1.connection import Connection
from tricklecast.app.tools.conformance.target import RemoteChannel

CONTROL: Final = "control"
CONTROL_BODIES: Final = (b"first", b"second")


class Clock:
    """A plane's clock that only a test moves."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.now = plane.clock()
        plane.clock = lambda: self.now

    def advance(self, seconds: float) -> None:
        """Move it, and let happen what is due."""
        self.now += seconds
        self._plane.tick(self.now)


def clock_of(server: LocalServer) -> Clock:
    """Stop a server's clock; from now on it stands still unless it is moved: ``server.inside(clock.advance...)``."""
    return server.inside(lambda: Clock(server.plane))


@dataclass(frozen=True)
class Watched:
    """A server with a channel that nobody may change.

    Attributes:
        server: the server. picture: what that channel looked like at the beginning.
        descriptors: how many files and sockets the process had open then.
    """

    server: LocalServer
    picture: tuple[object, ...]
    descriptors: int

    def check(self, *, channels: frozenset[str] | set[str] = frozenset()) -> None:
        """Check that nothing is left of what clients have done, once they are gone.

        Args:
            channels: that they may have made.

        Raises:
            AssertionError: something is left, or changed, or the server does not answer.
        """
        server = self.server
        assert healthy(server), "the server answers"
        eventually(lambda: not server.inside(lambda: left_over(server.plane)), what="nothing is left over")
        eventually(lambda: descriptors() <= self.descriptors, what="all descriptors are closed again")
        server.inside(lambda: check_registry(server.plane.registry))
        server.inside(lambda: check_plane(server.plane))
        assert server.inside(lambda: picture(server.plane)) == self.picture, "the control channel is as it was"
        assert server.problems == [], "the event loop has nothing to complain about"


@contextmanager
def watched(**settings: Any) -> Iterator[Watched]:
    """A server with a control channel, which must be as it was when the block ends."""
    # The control channel does not age, and who repeats itself is not held back: these tests do little else.
    defaults: dict[str, Any] = {"idle_timeout_s": 1e6, "window_age_s": 1e6, "storm_guard": "off"}
    with local_server(**{**defaults, **settings}) as server:
        channel = RemoteChannel(server.target(), CONTROL)
        channel.publish(0, *CONTROL_BODIES)
        assert healthy(server)
        eventually(lambda: not server.plane.connections)
        attacked = Watched(server, server.inside(lambda: picture(server.plane)), descriptors())
        yield attacked
        attacked.check()


def exchange(server: LocalServer, data: bytes, *, half_close: bool = True) -> bytes:
    """Send bytes on a connection of their own; all that comes back until the server closes it.

    Args:
        half_close: say that nothing more will come; without it the server must close by itself.
    """
    with server.target().address.connect(WITHIN_S) as sock:
        try:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The server has closed already: what it said before can still be read.
        return received(sock)


def received(sock: socket.socket) -> bytes:
    """All that comes until the end of the connection, however it ends."""
    data = b""
    try:
        while piece := sock.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return data


def statuses(answers: bytes) -> list[int]:
    """The statuses of final responses, in order; bodies of segments must not look like status lines."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([2-9]\d\d) ", answers)]


def healthy(server: LocalServer) -> bool:
    """Whether the server answers a health check."""
    answer = exchange(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", half_close=False)
    return answer.startswith(b"HTTP/1.1 200 ")


def descriptors() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


def picture(plane: DataPlane) -> tuple[object, ...]:
    """The control channel, as far as clients could change it."""
    channel = plane.registry.channels[CONTROL]
    segments = [(seq, segment.state, bytes(b"".join(segment.frames))) for seq, segment in channel.segments.items()]
    return channel.epoch, channel.next_seq, channel.content_type, channel.ended, segments


def left_over(plane: DataPlane) -> dict[str, int]:
    """The counts of connections and exchanges that are not zero."""
    timeouts, turns = plane.timeouts, plane.turns
    counts = {
        "connections": len(plane.connections),
        "handshakes": len(plane.handshakes),
        "places": plane.registry.capacities.connections.used,
        "surplus": len(plane.surplus),
        "half closed": len(timeouts.half_closed),
        "parked": sum(map(len, plane.parked.values())),
        "stalled": len(plane.slow_peers.stalled),
        "resting": len(timeouts.resting),
        "owing": len(timeouts.owing),
        "pipelined": len(plane.pipelined),
        "turns": len(list(turns)),
        "flows": len(turns.flows),
        "readers": plane.registry.readers,
        "publishers": plane.registry.capacities.publishers.used,
        "faults": plane.faults,
    }
    return {name: count for name, count in counts.items() if count}


def check_plane(plane: DataPlane) -> None:
    """Check that every connection has an end in sight.

    Raises:
        AssertionError: nothing would ever close a connection.
    """
    timeouts = plane.timeouts
    for connection in plane.connections:
        assert isinstance(connection, Connection)
        bounded = (
            connection.exchange is not None
            or connection in timeouts.resting
            or connection in timeouts.owing
            or connection.deaf
        )
        assert bounded, "a connection rests, owes the rest of a request, serves one, or is about to close"
    for times in (timeouts.resting, timeouts.owing):
        assert list(times.values()) == sorted(times.values()), "what is due first stands first"
