"""Connections that a worker accepts: which it hands over, and which it keeps."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.app.workers.test_limits import names
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.data_plane.routing import Router
from tricklecast.app.listener import Listener
from tricklecast.app.workers.handover import Arrival, HandOver
from tricklecast.app.workers.mesh import Kind, Mesh, Message, socket_pairs
from tricklecast.app.workers.placement import Placement

pytestmark = pytest.mark.anyio
FRONT, OTHER = (f"GET /trickle/{names(worker)[0]}/0 HTTP/1.1\r\n".encode() for worker in (0, 1))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Kept(asyncio.Protocol):
    """A connection that the worker keeps."""

    def __init__(self, transports: list[asyncio.BaseTransport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(transport)


class Entry:
    """The listener of worker 0 of two, the mesh, and its clients."""

    def __init__(self) -> None:
        self.kept: list[asyncio.BaseTransport] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.sockets = socket_pairs(2)
        self.mesh = Mesh(self.sockets, 0)
        self.mesh.start(lambda message: None)
        self.handover = HandOver(self.mesh, Placement(2, 0, Router("/trickle")))
        self.handover.start([lambda: Kept(self.kept)])  # type: ignore[list-item,return-value]
        self.door = Listener(self.listener, partial(self.handover.accepted, 0))
        self.clients: list[socket.socket] = []

    def connect(self, data: bytes = b"") -> socket.socket:
        """A client that says this."""
        client = socket.create_connection(self.listener.getsockname(), timeout=WITHIN_S)
        client.sendall(data)
        self.clients.append(client)
        return client

    def keeps(self, count: int) -> bool:
        """Whether this is the number of connections that the worker has kept."""
        return len(self.kept) == count

    def close(self) -> None:
        self.mesh.stop()
        for transport in self.kept:
            transport.close()
        for one in (*self.clients, self.listener, *(end for pair in self.sockets for end in pair)):
            one.close()


@asynccontextmanager
async def entry() -> AsyncIterator[Entry]:
    at = Entry()
    try:
        async with asyncio.timeout(WITHIN_S):
            yield at
        at.door.close()
    finally:
        at.close()
        await asyncio.sleep(0)


async def test_who_is_kept_and_who_goes() -> None:
    """A request for this worker, for nobody or for nobody yet is kept; one for another worker goes, whole."""
    async with entry() as at:
        for number, data in enumerate((FRONT, b"\x16\x03", OTHER[:9], b""), 1):
            at.connect(data)
            await until(partial(at.keeps, number))
        at.connect().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        at.clients.pop().close()  # resets
        client = at.connect(OTHER)
        await until(lambda: at.handover.handed_over)
        second = Mesh(at.sockets, 1)
        read: list[Message] = []
        second.start(read.append)
        await until(lambda: read)
        second.stop()
        [message] = read
        assert (message.kind, Arrival.decoded(message.payload)) == (Kind.CONNECTION, Arrival(0, None, None, False, b""))
        with socket.socket(fileno=message.descriptor) as there:
            assert there.getpeername() == client.getsockname()
            assert there.recv(100) == OTHER, "nothing was read"
        assert len(at.kept) == 4


async def test_a_worker_that_takes_no_more() -> None:
    """A connection for it is kept, and tries to move when it has read its request."""
    async with entry() as at:
        while at.mesh.has_room(1):
            at.mesh.send(1, Kind.NEWS, b"x")
        at.connect(OTHER)
        await until(lambda: at.kept)
