"""Two servers that look like one: publishers reach the owner, readers a server that holds the same channels by feeds.

A reader's connection is let through when its channel is at the other server as it is at the owner, so that a test sees
no other difference than one that lasts.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Final

from tests.support.local import LocalServer
from tests.support.waiting import eventually
from tricklecast.app.clock import to_time, to_us
from tricklecast.app.replication.replica import Replica
from tricklecast.app.replication.transport import follow, send_feed

_GET: Final = re.compile(rb"(?:GET|HEAD) /trickle/([^/? ]+)/[^/ ]+ ")


class Bridge:
    """Holds the owner's channels at another server, from the moment when somebody reads them there.

    Attributes:
        replicas: by name; the newest one.
    """

    def __init__(self, owner: LocalServer, holder: LocalServer) -> None:
        self._owner, self._holder = owner, holder
        self.replicas: dict[str, Replica] = {}
        # An event loop keeps no task alive by itself.
        self._following: dict[str, asyncio.Task[None]] = {}
        self._sending: list[Future[None]] = []
        self._lock = threading.Lock()

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        here, there = socket.socketpair()

        async def send() -> None:
            reader, writer = await asyncio.open_connection(sock=there)
            registry = self._owner.plane.registry
            try:
                with suppress(OSError):
                    if (channel := registry.channels.get(name)) is not None:
                        await send_feed(channel, reader, writer, registry, to_us)
            finally:
                writer.close()

        self._sending.append(asyncio.run_coroutine_threadsafe(send(), self._owner.loop))
        return await asyncio.open_connection(sock=here)

    def hold(self, name: str) -> None:
        """Follow a channel, if the owner has it, and wait until it is as it is there."""
        with self._lock:
            if self._stands(self._owner, name) is not None:
                self._holder.inside(lambda: self._follow(name))
                eventually(lambda: self._stands(self._holder, name) == self._stands(self._owner, name), what=name)

    def _follow(self, name: str) -> None:
        if name in self._following and not self._following[name].done():
            return
        plane = self._holder.plane
        replica = self.replicas[name] = Replica(name, plane.registry, plane.clock, to_time)
        self._following[name] = self._holder.loop.create_task(follow(replica, lambda: self._connect(name), lost_s=5.0))

    def _stands(self, server: LocalServer, name: str) -> object:
        def look() -> object:
            channel = server.plane.registry.channels.get(name)
            return None if channel is None else (channel.epoch, channel.facts, channel.bytes_in, channel.ended)

        return server.inside(look)

    def close(self) -> None:
        """Let go of all channels."""
        self._holder.inside(lambda: [task.cancel() for task in self._following.values()])
        eventually(
            lambda: (
                all(task.done() for task in self._following.values()) and all(sent.done() for sent in self._sending)
            ),
            what="nobody follows",
        )


@contextmanager
def one_address(bridge: Bridge, owner: LocalServer, holder: LocalServer) -> Iterator[int]:
    """A port at which readers reach the holder, and all others the owner."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=200)
    threading.Thread(target=_accept, args=(listener, bridge, owner, holder), daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, bridge: Bridge, owner: LocalServer, holder: LocalServer) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_carry, args=(client, bridge, owner, holder), daemon=True).start()


def _carry(client: socket.socket, bridge: Bridge, owner: LocalServer, holder: LocalServer) -> None:
    """Carry one connection: its first request says where it belongs."""
    with suppress(OSError), client:
        first = client.recv(65536)
        match = _GET.match(first)
        if match is not None:
            bridge.hold(match[1].decode())
        with socket.create_connection(("127.0.0.1", (owner if match is None else holder).port)) as server:
            server.sendall(first)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
