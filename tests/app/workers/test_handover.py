"""The door of a worker: which connections it hands over, which it keeps, and what it does when it cannot accept."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.app.workers.test_limits import names
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.data_plane.routing import Router
from tricklecast.app.workers import handover as module
from tricklecast.app.workers.handover import MAX_ACCEPTED, MAX_SILENT, Arrival, Door, HandOver
from tricklecast.app.workers.mesh import MAX_WAITING, Kind, Mesh, Message, pairs
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
    """The door of worker 0 of two, the mesh, and its clients."""

    def __init__(self) -> None:
        self.kept: list[asyncio.BaseTransport] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.sockets = pairs(2)
        self.mesh = Mesh(self.sockets, 0)
        self.mesh.start(lambda message: None)
        self.handover = HandOver(self.mesh, Placement(2, 0, Router("/trickle")))
        self.handover.start([lambda: Kept(self.kept)])  # type: ignore[list-item,return-value]
        self.door = Door(self.listener, 0, self.handover)
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


async def test_who_is_kept_and_who_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for this worker, or for nobody, is kept; one for another goes, whole, when it begins to show."""
    monkeypatch.setattr(module, "SILENT_S", 0.01)
    async with entry() as at:
        for number, data in enumerate((FRONT, b"\x16\x03", OTHER[:9], b""), 1):
            at.connect(data)
            await until(partial(at.keeps, number))  # the last one when it has been silent for long
        client = at.connect()
        client.sendall(OTHER)
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


async def test_silent_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more, and the oldest becomes a connection of this worker, whose limits and time-outs then hold. At the end
    all of them do."""
    monkeypatch.setattr(module, "SILENT_S", WITHIN_S)
    async with entry() as at:
        for number in range(1, MAX_SILENT + 4):
            at.connect()
            if number > MAX_SILENT:
                await until(partial(at.keeps, number - MAX_SILENT))
        oldest = {transport.get_extra_info("peername") for transport in at.kept}
        assert oldest == {client.getsockname() for client in at.clients[:3]}
        at.clients[10].close()  # a client that leaves is not silent any more
        await until(lambda: len(at.kept) == 4)
        at.door.close()
        await until(lambda: len(at.kept) == MAX_SILENT + 3)


async def test_a_door_without_descriptors_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It tells why, does not spin meanwhile, and accepts nothing after its end."""
    monkeypatch.setattr(module, "ACCEPT_RETRY_S", 0.01)
    refusals = 2

    class Refusing(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async with entry() as at:
        at.door.close()
        with Refusing(fileno=os.dup(at.listener.fileno())) as listener:
            door = Door(listener, 0, at.handover)
            at.connect(FRONT)
            await until(lambda: at.kept)
            assert caplog.text.count("cannot accept a connection: Too many open files") == 2
            refusals = 1
            at.connect(FRONT)
            await until(lambda: not refusals)
            door.close()
            for _ in range(5):
                await asyncio.sleep(0.01)
            assert len(at.kept) == 1


async def test_a_door_is_slow_while_much_waits_for_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts some at a time, so a burst does not reach the bound; also a worker that hangs does not close it."""
    monkeypatch.setattr(module, "CROWDED_S", 0.001)
    async with entry() as at:
        while not at.mesh.is_crowded():
            at.mesh.send(1, Kind.NEWS, b"x")
        for _ in range(MAX_ACCEPTED):
            at.connect(FRONT)
        await until(lambda: len(at.kept) == MAX_ACCEPTED)
        for _ in range(MAX_WAITING):
            at.connect(OTHER)
        await until(lambda: len(at.kept) > MAX_ACCEPTED)  # as a connection it is tried once more, and refused
