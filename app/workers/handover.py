"""Hand-over: a connection moves to the worker that owns what it asks for. The bytes do not.

**The problem.** A channel is in one worker, and the kernel gives a new connection to any. To pass each byte on would
cost more than the second core brings.

**The idea.** The descriptor moves (``SCM_RIGHTS``), and the owner serves the connection as if it had accepted it: from
then on a request costs what it costs in a server of one process. There are three moments:

1. *When it is accepted* (:class:`Door`). The first bytes are looked at without being read (``MSG_PEEK``).
2. *Between two requests*, when the next one is for somebody else, as on connections of a proxy, which asks for many
   channels on each. The beginning of the request, which was read already, goes with the descriptor.
3. *Under TLS* the descriptor is of no use without the session, which cannot move. So the worker that has the session
   makes a pair of sockets, hands one end over as the connection, and copies between the session and the other end
   (:class:`Half`). It is this worker's part in the work; the owner does all the rest.

A connection moves only at the beginning of a request, with nothing owed to it. One that pipelines waits until then. It
gives its place among the limits back before it goes, and takes one where it arrives, so it is counted once. If the
owner is so busy that even the mesh is full, the client is told to come back, as by any server that is overloaded.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import orjson

from tricklecast.app.http1.connection import Connection
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull, Message
from tricklecast.app.workers.placement import LOOK_BYTES, Placement

_LOGGER = logging.getLogger(__name__)

MAX_ACCEPTED: Final = 16
"""Connections that are accepted in one turn of the event loop."""

MAX_SILENT: Final = 128
"""Connections that have not sent a byte yet, and are not counted. If there is one more, the oldest becomes a connection
of this worker at once, and moves later."""

SILENT_S: Final = 1.0
"""A connection that sends nothing for so long becomes one of this worker, whose limits and time-outs then hold."""

ACCEPT_RETRY_S: Final = 1.0
"""Accepting pauses for this time when the process has no descriptor left, as asyncio does."""

CROWDED_S: Final = 0.005
"""It pauses for this time while much waits for another worker, which may just be busy."""

PAIR_BYTES: Final = 64 << 10
"""The kernel's buffer of a :class:`Half`'s socket, in each direction (Linux doubles it)."""


class Arrival(NamedTuple):
    """What goes with a connection that is handed over.

    Attributes:
        endpoint: the number of the address at which it was accepted.
        ip: of its peer; ``None``: the descriptor tells it.
        certified: the name in its client's certificate. tls: whether the client speaks TLS.
        data: what was read from it.
    """

    endpoint: int
    ip: str | None
    certified: str | None
    tls: bool
    data: bytes

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
        me, ours, beginning: of the placement. handed_over, taken: connections, so far.
        halves: of TLS sessions whose requests another worker answers.
    """

    def __init__(self, mesh: Mesh, placement: Placement) -> None:
        self.mesh, self.placement = mesh, placement
        self.me, self.ours, self.beginning = placement.me, placement.ours, placement.beginning
        self.is_crowded = mesh.is_crowded
        self.halves: set[Half] = set()
        self.handed_over = self.taken = 0
        self._makers: Sequence[Callable[[], Connection]] = ()  # of connections, one for each address
        self._busy: set[int] = set()  # workers that did not take the last connection that was for them
        self._coming: set[asyncio.Task[Any]] = set()  # connections that are being made

    def start(self, makers: Sequence[Callable[[], Connection]]) -> None:
        """The server listens: take connections from now on.

        Args:
            makers: make a connection, one for each address at which the server listens.
        """
        self._makers = makers

    # Away.

    def owner(self, head: bytes | memoryview, chance: int) -> int | None:
        """The worker to which a request belongs, by the beginning of its head; ``None``: more of it is needed."""
        return self.placement.of_head(head, chance)

    def move(self, connection: Connection, worker: int, data: bytes) -> bool:
        """Hand a connection over that has just begun a request; ``False`` if it has to be refused here.

        Args:
            connection: nothing is owed to it.
            worker: owns what it asks for.
            data: what was read of the request.
        """
        connection.leave()
        arrival = Arrival(connection.endpoint.number, connection.peer, connection.certified, connection.tls, data)
        try:
            if connection.fd >= 0:
                self.mesh.send(worker, Kind.CONNECTION, arrival.encoded(), connection.fd)
                connection.moved()
            else:
                self._bridge(connection, worker, arrival)
        except (MeshFull, OSError) as error:
            if worker not in self._busy:
                _LOGGER.warning("connections cannot be handed over to worker %d: %s", worker, error)
            self._busy.add(worker)
            return False
        self._busy.discard(worker)
        self.handed_over += 1
        return True

    def _bridge(self, connection: Connection, worker: int, arrival: Arrival) -> None:
        """Keep the TLS session here, and hand one end of a pair of sockets over in its place."""
        mine, theirs = socket.socketpair()
        try:
            for end in (mine, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
            self.mesh.send(worker, Kind.CONNECTION, arrival.encoded(), theirs.fileno())
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        session, inner = Half(self.halves), Half(self.halves)
        session.other, inner.other = inner, session
        connection.moved(to=session)
        self._begin(lambda: inner, mine, session.transport.abort)

    def send(self, sock: socket.socket, worker: int, endpoint: int) -> None:
        """Hand an accepted socket over of which nothing was read; it is closed here.

        Raises:
            MeshFull, OSError: it could not be sent, and is still open.
        """
        self.mesh.send(worker, Kind.CONNECTION, Arrival(endpoint, None, None, False, b"").encoded(), sock.fileno())
        sock.close()
        self.handed_over += 1

    # Here.

    def take(self, message: Message) -> None:
        """Serve a connection that another worker hands over."""
        sock = socket.socket(fileno=message.descriptor)
        arrival = Arrival.decoded(message.payload)
        self.taken += 1
        self.serve(sock, arrival.endpoint, arrival)

    def serve(self, sock: socket.socket, endpoint: int, arrival: Arrival | None = None) -> None:
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


class Door:
    """Accepts connections, and looks at their first bytes to see whose they are; in place of :class:`asyncio.Server`.

    Args:
        listener: its owner closes it. number: of the address.
        handover: moves connections.

    Attributes:
        sockets: the listener.
    """

    def __init__(self, listener: socket.socket, number: int, handover: HandOver) -> None:
        listener.setblocking(False)
        self.sockets = (listener,)
        self._number, self._handover = number, handover
        self._loop = asyncio.get_running_loop()
        # Accepted ones that have not sent a byte, and when they become connections of this worker, oldest first.
        self._silent: dict[socket.socket, float] = {}
        self._accepted = count(0, handover.placement.workers)
        self._timer: asyncio.TimerHandle | None = None  # for the first of the silent ones
        self._pause: asyncio.TimerHandle | None = None  # until connections are accepted again
        self._listen()

    def close(self) -> None:
        """Accept no more; those that have sent nothing become connections of this worker, which ends them."""
        self._loop.remove_reader(self.sockets[0])
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        for sock in list(self._silent):
            self._keep(sock)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self.sockets[0], self._accept)

    def _wait(self, seconds: float) -> None:
        """Accept nothing for a time."""
        self._loop.remove_reader(self.sockets[0])
        self._pause = self._loop.call_later(seconds, self._listen)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                sock, _ = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                _LOGGER.error("cannot accept a connection: %s", error.strerror or error)
                self._wait(ACCEPT_RETRY_S)
                return
            sock.setblocking(False)
            if not self._look(sock):
                self._silent[sock] = self._loop.time() + SILENT_S
                self._loop.add_reader(sock, self._speaks, sock)
                if len(self._silent) > MAX_SILENT:
                    self._keep(next(iter(self._silent)))
                if self._timer is None:
                    self._timer = self._loop.call_later(SILENT_S, self._look_at_silent)
        if self._handover.mesh.is_crowded():
            self._wait(CROWDED_S)

    def _look(self, sock: socket.socket) -> bool:
        """Bring a connection to its owner; ``False`` if it has not sent anything yet."""
        handover = self._handover
        try:
            head = sock.recv(LOOK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            sock.close()  # its peer has reset it
            return True
        owner = handover.placement.of_head(head, next(self._accepted)) if head else None
        if owner is not None and owner != handover.me:
            try:
                handover.send(sock, owner, self._number)
                return True
            except (MeshFull, OSError):
                pass  # it is tried again when the connection has read the request, and refused if need be
        handover.serve(sock, self._number)
        return True

    def _speaks(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        del self._silent[sock]
        if not self._look(sock):
            self._handover.serve(sock, self._number)

    def _keep(self, sock: socket.socket) -> None:
        """Make it a connection of this worker, although it is not known yet whose it is."""
        del self._silent[sock]
        self._loop.remove_reader(sock)
        self._handover.serve(sock, self._number)

    def _look_at_silent(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._silent:
            sock, until = next(iter(self._silent.items()))
            if until > now:
                self._timer = self._loop.call_later(until - now, self._look_at_silent)
                return
            self._keep(sock)
