"""Hand-over: a connection moves to the worker that owns what it asks for. The bytes do not.

**The problem.** A channel is in one worker, and the kernel gives a new connection to any. To pass each byte on would
cost more than the second core brings.

**The idea.** The descriptor moves (``SCM_RIGHTS``), and the owner serves the connection as if it had accepted it: from
then on a request costs what it costs in a server of one process. There are three moments:

1. *When it is accepted* (:meth:`HandOver.accepted`). The first bytes are looked at without being read (``MSG_PEEK``).
   On Linux the kernel keeps a connection until they are there (:func:`~tricklecast.app.listener.tune`).
2. *Between two requests*, when the next one is for somebody else, as on connections of a proxy, which asks for many
   channels on each. The beginning of the request, which was read already, goes with the descriptor.
3. *Under TLS* the descriptor is of no use without the session, which cannot move. So the worker that has the session
   makes a pair of sockets, hands one end over as the connection, and copies between the session and the other end
   (:class:`Half`). It is this worker's part in the work; the owner does all the rest.

A connection moves only at the beginning of a request, with nothing owed to it. One that pipelines waits until then. It
gives its place among the limits back before it goes, and takes one where it arrives, so it is counted once.

A worker that is busy, or stands still, takes connections late. Some 160 are on their way to it then, and all others
stay where they are. Each is tried again for 3 s; then its client is told to come back, as by any overloaded server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple

import orjson

from tricklecast.app.http1.connection import Connection
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull, Message
from tricklecast.app.workers.placement import LOOK_BYTES, Placement

_LOGGER = logging.getLogger(__name__)

TELL_S: Final = 60.0
"""The log says at most once in this time that a worker takes no connection."""

PAIR_BYTES: Final = 64 << 10
"""The kernel's buffer of a :class:`Half`'s socket, in each direction (Linux doubles it)."""


class Arrival(NamedTuple):
    """The message that goes with a connection that is handed over.

    Attributes:
        endpoint: the number of the address at which it was accepted.
        ip: of its peer; ``None``: the descriptor tells it.
        certified: the name in its client's certificate. tls: whether the client speaks TLS.
        data: what was read from it.
    """

    endpoint: int
    ip: str | None = None
    certified: str | None = None
    tls: bool = False
    data: bytes = b""

    def encoded(self) -> bytes:
        """A line of JSON, then the data."""
        return orjson.dumps(self[:-1]) + b"\n" + self.data

    @classmethod
    def decoded(cls, payload: bytes) -> Arrival:
        line, _, data = payload.partition(b"\n")
        endpoint, ip, certified, tls = orjson.loads(line)
        return cls(endpoint, ip, certified, tls, data)


class HandOver:
    """Moves connections to other workers, and takes theirs.

    Args:
        mesh: the way to them. placement: knows the owner.

    Attributes:
        me, is_ours, owner: of the placement. handed_over, taken: connections, so far.
        halves: of TLS sessions whose requests another worker answers.
    """

    def __init__(self, mesh: Mesh, placement: Placement) -> None:
        self._mesh = mesh
        self.me, self.is_ours, self.owner = placement.me, placement.is_ours, placement.of_head
        self.halves: set[Half] = set()
        self.handed_over = self.taken = 0
        self._makers: Sequence[Callable[[], Connection]] = ()  # of connections, one for each address
        self._told_at: dict[int, float] = {}  # when the log said last that a worker takes no connection
        self._coming: set[asyncio.Task[Any]] = set()  # connections that are being made
        self._chances = count(0, placement.workers)  # numbers of those that are accepted

    def start(self, makers: Sequence[Callable[[], Connection]]) -> None:
        """The server listens: take connections from now on.

        Args:
            makers: make a connection, one for each address at which the server listens.
        """
        self._makers = makers

    # Away.

    def accepted(self, endpoint: int, sock: socket.socket, address: Any) -> None:
        """Bring a connection to its worker. Its first bytes are looked at, and stay where they are.

        One that has sent nothing yet, or whose worker takes no more, begins here, and moves when its request is read.

        Args:
            endpoint: where it was accepted. address: of its peer.
        """
        del address
        try:
            head = sock.recv(LOOK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            head = b""
        except OSError:
            sock.close()  # its peer has reset it
            return
        worker = self.owner(head, next(self._chances)) if head else None
        if worker is not None and worker != self.me and self._mesh.has_room(worker):
            with suppress(MeshFull, OSError):
                self._send(worker, Arrival(endpoint), sock.fileno())
                sock.close()
                return
        self._serve(sock, endpoint)

    def move(self, connection: Connection, worker: int, data: bytes, *, last: bool) -> bool:
        """Hand a connection over that has just begun a request; ``False`` if that is not possible now.

        Args:
            connection: nothing is owed to it.
            worker: owns what it asks for.
            data: what was read of the request.
            last: if it is not possible now, the request is refused.
        """
        try:
            if not self._mesh.has_room(worker):
                raise MeshFull("it is slow to take those before, or stands still")
            connection.leave()
            arrival = Arrival(connection.endpoint.number, connection.peer, connection.certified, connection.tls, data)
            if connection.fd >= 0:
                self._send(worker, arrival, connection.fd)
                connection.moved()
            else:
                self._bridge(connection, worker, arrival)
        except (MeshFull, OSError) as error:
            now = asyncio.get_running_loop().time()
            if last and now - self._told_at.get(worker, -inf) > TELL_S:
                self._told_at[worker] = now
                _LOGGER.warning("connections cannot be handed over to worker %d: %s", worker, error)
            return False
        return True

    def _send(self, worker: int, arrival: Arrival, descriptor: int) -> None:
        self._mesh.send(worker, Kind.CONNECTION, arrival.encoded(), descriptor)
        self.handed_over += 1

    def _bridge(self, connection: Connection, worker: int, arrival: Arrival) -> None:
        """Keep the TLS session here, and hand one end of a pair of sockets over in its place."""
        mine, theirs = socket.socketpair()
        try:
            for end in (mine, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
            self._send(worker, arrival, theirs.fileno())
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        session, inner = Half(self.halves), Half(self.halves)
        session.other, inner.other = inner, session
        connection.moved(to=session)
        self._begin(lambda: inner, mine, session.transport.abort)

    # Here.

    def take(self, message: Message) -> None:
        """Serve a connection that another worker hands over."""
        sock = socket.socket(fileno=message.descriptor)
        arrival = Arrival.decoded(message.payload)
        self.taken += 1
        self._serve(sock, arrival.endpoint, arrival)

    def _serve(self, sock: socket.socket, endpoint: int, arrival: Arrival | None = None) -> None:
        """Make a connection of an accepted socket."""
        connection = self._makers[endpoint]()
        if arrival is not None:
            connection.arrives(arrival.ip, arrival.certified, tls=arrival.tls, data=arrival.data)
        self._begin(lambda: connection, sock)

    def _begin(
        self, make: Callable[[], asyncio.BaseProtocol], sock: socket.socket, failed: Callable[[], None] | None = None
    ) -> None:
        """Connect a socket with its protocol; ``failed`` is called if that does not succeed."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        task = loop.create_task(loop.connect_accepted_socket(make, sock))
        self._coming.add(task)

        def begun(task: asyncio.Task[Any]) -> None:
            self._coming.discard(task)
            if task.cancelled() or task.exception() is not None:
                sock.close()  # its peer is gone already
                if failed is not None:
                    failed()

        task.add_done_callback(begun)

    def end(self) -> None:
        """Break what is left of connections for others, and of those that are being made."""
        for task in list(self._coming):
            task.cancel()
        for half in list(self.halves):
            half.transport.abort()


class Half(asyncio.Protocol):
    """One side of a TLS session whose requests another worker answers: the session, or the pair of sockets.

    What one half reads the other one writes. A half whose other side does not take more is not read from, so in each
    direction at most 64 KiB wait (asyncio's high-water mark) and one read more, beside the kernel's buffers.

    Args:
        all_: of this process; the half belongs to it while it is connected.
    """

    other: Half
    transport: asyncio.Transport

    def __init__(self, all_: set[Half]) -> None:
        self._all = all_
        self._gone = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It can be used. The session's half comes first, and is not read from until the other one is here."""
        self.transport = transport
        self._all.add(self)
        if self.other._gone:
            transport.abort()
        elif self.other in self._all:
            self.other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        self._gone = True
        if self.other in self._all:
            self.other.transport.close()
