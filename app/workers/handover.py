"""Hand-over: a connection moves to the worker that owns the channel which it asks for.

**The problem.** One worker has all of a channel, and the kernel gives a new connection to any worker. If that worker
copied each byte to and from the owner, it would spend as much as the owner does on a reader: a second core would bring
little.

**The idea.** The connection moves, as a descriptor (``SCM_RIGHTS``), and the owner serves it as if it had accepted it.
From then on a request costs what it costs in a server of one process. A connection moves at one of two moments:

1. *When it is accepted* (:meth:`HandOver.accepted`). The worker reads a copy of the first bytes (``MSG_PEEK``), and the
   owner reads them again. On Linux the kernel keeps a connection until its first bytes are there
   (:func:`~tricklecast.app.listener.tune`).
2. *Between two requests* (:meth:`HandOver.move`), if the next one is for another worker. A proxy sends requests for
   many channels on each connection. The bytes of the next request that were read already go with the descriptor.

*TLS.* The descriptor is of no use without the TLS session, and a session cannot move. So the worker with the session
makes a pair of sockets, hands one end over as if it were the connection, and copies between the session and the other
end (:class:`Half`). It encrypts and decrypts; the owner does all the rest.

A connection moves only when nothing is owed to the client: one that pipelines waits until its requests are answered. It
gives its place among the limits back before it moves, and the owner counts it again.

A worker that is busy or hangs takes connections late. Some 160 wait in the mesh then, and all others stay in the worker
that has accepted them. It tries to move each of them for 3 s (:data:`~app.http1.connection.WAITS_S`), and then answers
503, as any overloaded server does.
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

WARN_S: Final = 60.0
"""The log says at most once in this time that a worker takes no connection."""

PAIR_BYTES: Final = 64 << 10
"""The kernel's buffer, in each direction, of the pair of sockets under TLS. Linux doubles it."""


class Arrival(NamedTuple):
    """The message that goes with the descriptor of a connection.

    Attributes:
        endpoint: the number of the address at which the connection was accepted.
        ip: of the client; ``None``: the socket tells it.
        certified: the name in the client's certificate. tls: whether the client speaks TLS.
        data: bytes of the next request that were read already.
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
    """Moves connections to other workers, and takes theirs (:class:`~app.http1.connection.Neighbours`).

    Args:
        mesh: the way to the other workers. placement: knows which worker a request is for.

    Attributes:
        me, is_ours, worker_for: of the placement.
        handed_over, taken: connections that have moved from here, and to here.
        halves: of TLS sessions whose requests another worker answers.
    """

    def __init__(self, mesh: Mesh, placement: Placement) -> None:
        self._mesh = mesh
        self.me, self.is_ours, self.worker_for = placement.me, placement.is_ours, placement.worker_for
        self.halves: set[Half] = set()
        self.handed_over = self.taken = 0
        self._makers: Sequence[Callable[[], Connection]] = ()  # by the number of the address; none before start()
        self._warned_at: dict[int, float] = {}  # when the log last said that a worker takes no connection
        self._connecting: set[asyncio.Task[Any]] = set()  # while the event loop makes transports of sockets
        self._numbers = count(0, placement.workers)  # of connections, until they have an object with a number

    def start(self, makers: Sequence[Callable[[], Connection]]) -> None:
        """Take connections from now on, since the server listens.

        Args:
            makers: each makes a connection for one address at which the server listens.
        """
        self._makers = makers

    # To another worker.

    def accepted(self, endpoint: int, sock: socket.socket, address: Any) -> None:
        """Bring a new connection to its worker, without reading from it.

        If it has sent too little yet, or its worker takes no more, it begins here, and :meth:`move` comes later.

        Args:
            endpoint: the number of the address at which it was accepted. address: of the client.
        """
        del address
        try:
            head = sock.recv(LOOK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            head = b""
        except OSError:
            sock.close()  # the client has reset it
            return
        worker = self.worker_for(head, next(self._numbers)) if head else None
        if worker is not None and worker != self.me and self._mesh.has_room(worker):
            with suppress(MeshFull, OSError):
                self._send(worker, Arrival(endpoint), sock.fileno())
                sock.close()
                return
        self._serve(sock, endpoint)

    def move(self, connection: Connection, worker: int, data: bytes, *, last: bool) -> bool:
        """Hand over a connection that begins a request; ``False`` if the worker does not take it now.

        Args:
            connection: nothing is owed to its client.
            worker: the request is for this one.
            data: bytes of the request that were read already.
            last: there is no further try: if this one fails, the request is refused.
        """
        try:
            if not self._mesh.has_room(worker):
                raise MeshFull("it is busy, or hangs")
            connection.leave()
            arrival = Arrival(connection.endpoint.number, connection.peer, connection.certified, connection.tls, data)
            if connection.fd >= 0:
                self._send(worker, arrival, connection.fd)
                connection.moved()
            else:
                self._bridge(connection, worker, arrival)
        except (MeshFull, OSError) as error:
            now = asyncio.get_running_loop().time()
            if last and now - self._warned_at.get(worker, -inf) > WARN_S:
                self._warned_at[worker] = now
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
        session = Half(self.halves)
        inner = Half(self.halves, session)
        connection.moved(to=session)
        self._connect(inner, mine, session.transport.abort)

    # From another worker, or from a listener.

    def take(self, message: Message) -> None:
        """Serve a connection that another worker hands over."""
        sock = socket.socket(fileno=message.descriptor)
        arrival = Arrival.decoded(message.payload)
        self.taken += 1
        self._serve(sock, arrival.endpoint, arrival)

    def _serve(self, sock: socket.socket, endpoint: int, arrival: Arrival | None = None) -> None:
        """Make a connection of a socket."""
        connection = self._makers[endpoint]()
        if arrival is not None:
            connection.arrives(arrival.ip, arrival.certified, tls=arrival.tls, data=arrival.data)
        self._connect(connection, sock)

    def _connect(
        self, protocol: asyncio.BaseProtocol, sock: socket.socket, failed: Callable[[], None] | None = None
    ) -> None:
        """Connect a socket with its protocol; ``failed`` is called if that does not succeed."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        task = loop.create_task(loop.connect_accepted_socket(lambda: protocol, sock))
        self._connecting.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._connecting.discard(task)
            if task.cancelled() or task.exception() is not None:
                sock.close()  # the client is gone already
                if failed is not None:
                    failed()

        task.add_done_callback(done)

    def end(self) -> None:
        """Break connections that are being made, and TLS sessions whose requests others answer."""
        for task in list(self._connecting):
            task.cancel()
        for half in list(self.halves):
            half.transport.abort()


class Half(asyncio.Protocol):
    """One of the two protocols that copy between a TLS session and the socket towards the owner of its channel.

    Each writes what the other one reads. A half that cannot write stops the other one from reading, so in each
    direction at most 64 KiB (asyncio's high-water mark) and one more read wait here, beside the kernel's buffers.

    Args:
        connected: the half is in this set while it is connected.
        other: the other one, if it was made first.
    """

    other: Half
    transport: asyncio.Transport

    def __init__(self, connected: set[Half], other: Half | None = None) -> None:
        self._connected = connected
        self._is_lost = False  # its connection is over
        if other is not None:
            self.other, other.other = other, self

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The session's half is connected first, and is not read from before the other one is connected, too."""
        self.transport = transport
        self._connected.add(self)
        if self.other._is_lost:
            transport.abort()
        elif self.other in self._connected:
            self.other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connected.discard(self)
        self._is_lost = True
        if self.other in self._connected:
            self.other.transport.close()
