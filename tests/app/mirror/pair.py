"""Two servers, one of which holds copies of the other one's channels, over feeds that a test may break."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.app.data_plane.support import pattern
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.clock import to_us
from tricklecast.app.core.segment import State
from tricklecast.app.core.state import Channel
from tricklecast.app.mirror.destination import HeldChannel, ServerDestination
from tricklecast.app.mirror.sides import HeldCopy, SourceSegment
from tricklecast.app.replication.transport import send_feed
from tricklecast.app.tools.conformance.target import RemoteChannel, Target
from tricklecast.trickle.errors import TrickleError


def destination_of(server: LocalServer) -> ServerDestination:
    """What a mirror sees of a server."""
    assert server.node.destination is not None
    return server.node.destination


@contextmanager
def durable(folder: Path | None, **settings: Any) -> Iterator[LocalServer]:
    """A server with a small window, and storage for the rest if it has a folder."""
    known: dict[str, Any] = {"window_segments": 3, "channel_drain_s": 20} | settings
    with local_server(data_dir=folder, **known) as running:
        yield running
        assert running.plane.faults == 0


class Pair:
    """Copies of a source's channels at a destination.

    Attributes:
        source, target: the servers; a test may put others in their place.
        closed: by name, what the destination has told of segments that have closed. problems: why feeds were given up.
    """

    def __init__(self, source: LocalServer, target: LocalServer) -> None:
        self.source, self.target = source, target
        self.closed: dict[str, list[HeldCopy]] = {}
        self.problems: list[str] = []
        self._following: dict[str, asyncio.Task[None]] = {}

    def channel(self, server: LocalServer, name: str) -> Channel | None:
        """A channel as a server has it."""
        return server.plane.registry.channels.get(name)

    def follow(self, name: str = "film", *, arrives: bool = True) -> None:
        """Begin to follow a channel, and wait until it is as it is at the source."""

        def begin() -> None:
            there = self.channel(self.source, name)
            assert there is not None
            told = self.closed.setdefault(name, [])
            held = destination_of(self.target).hold(name, there.epoch, told.append)
            self._following[name] = self.target.loop.create_task(self._run(name, held))

        self.target.inside(begin)
        if arrives:
            self.same(name)

    def same(self, name: str = "film") -> None:
        """Wait until the copy is as the channel at the source."""

        def look(server: LocalServer) -> object:
            channel = self.channel(server, name)
            return None if channel is None else (channel.epoch, channel.facts, channel.bytes_in, channel.ended)

        eventually(
            lambda: self.target.inside(lambda: look(self.target)) == self.source.inside(lambda: look(self.source))
        )

    def stop(self, name: str = "film") -> None:
        """Break the feed, and follow no more; what is here stays."""
        task = self._following.pop(name)
        self.target.inside(task.cancel)
        eventually(task.done)

    def stop_all(self) -> None:
        """Break all feeds."""
        for name in list(self._following):
            self.stop(name)

    def insert(self, name: str, seq: int, body: bytes, *, epoch: int = 1, **about: Any) -> bool:
        """Bring a segment from behind the window."""
        now = to_us(self.target.plane.clock())
        known = {"state": State.COMPLETE, "crc": None, "opened_us": now - 2, "closed_us": now - 1} | about
        segment = SourceSegment(seq=seq, size=len(body), **known)
        return self.target.inside(
            lambda: destination_of(self.target).insert(name, epoch, segment, [body[:3], b"", body[3:]])
        )

    def copies(self, name: str = "film", epoch: int = 1) -> dict[int, int]:
        """The sizes of the closed segments that are here."""
        found = self.target.inside(lambda: list(destination_of(self.target).copies(name, epoch)))
        return {one.seq: one.size for one in sorted(found)}

    async def _run(self, name: str, held: HeldChannel) -> None:
        here, there = socket.socketpair()
        sending = asyncio.run_coroutine_threadsafe(self._send(name, there), self.source.loop)
        reader, writer = await asyncio.open_connection(sock=here)
        try:
            writer.write(held.hello())
            while data := await reader.read(1000):
                if held.receive(data) is not None:
                    break
        except TrickleError as error:
            self.problems.append(str(error))
        finally:
            writer.transport.abort()
            with suppress(Exception, asyncio.CancelledError):
                await asyncio.wrap_future(sending)

    async def _send(self, name: str, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        registry = self.source.plane.registry
        with suppress(OSError):
            await send_feed(registry.channels[name], reader, writer, registry, to_us)


def settled(server: LocalServer) -> None:
    """Wait until everything is written, and what holds nothing is removed."""
    archive = server.archive
    assert archive is not None

    def idle() -> bool:
        taps = any(one.taps for one in archive._all())
        return not (taps or archive.dirty or archive._busy or archive._timer or archive._batch.files)

    eventually(lambda: server.inside(idle), what="everything is written")


def body(seq: int, size: int = 1000) -> bytes:
    """Bytes that no other segment has."""
    return pattern(size, seq * 7919)


CLIENTS: dict[int, Target] = {}
"""By port; the fixture of this folder closes them."""


def client(server: LocalServer) -> Target:
    """A client of a server, whose connections are closed at the end of the test."""
    return CLIENTS.setdefault(server.port, server.target())


def film(server: LocalServer, name: str = "film") -> RemoteChannel:
    """The channel, as a client of this server sees it."""
    return client(server).channel(name)


class Site:
    """A source and a destination, each of which can be started again.

    Attributes:
        source, target: the servers. pair: the feeds between them.
    """

    def __init__(self, source: Path | None, target: Path | None, **settings: Any) -> None:
        self._folders, self._settings = (source, target), settings
        self._stacks = [ExitStack(), ExitStack()]
        self.source, self.target = self._start(0), self._start(1)
        self.pair = Pair(self.source, self.target)

    def _start(self, which: int) -> LocalServer:
        return self._stacks[which].enter_context(durable(self._folders[which], **self._settings))

    def restart_source(self) -> None:
        """All feeds end with it."""
        self.pair.stop_all()
        self._stacks[0].close()
        self.source = self.pair.source = self._start(0)

    def stop_source(self) -> None:
        """It is away."""
        self.pair.stop_all()
        self._stacks[0].close()

    def restart_target(self) -> None:
        """All feeds end with it."""
        self.pair.stop_all()
        self._stacks[1].close()
        self.target = self.pair.target = self._start(1)

    def close(self) -> None:
        """Stop both."""
        self.pair.stop_all()
        for stack in self._stacks:
            stack.close()


def run(server: LocalServer, work: Any) -> Any:
    """Await something in the server's loop."""
    return asyncio.run_coroutine_threadsafe(work, server.loop).result(WITHIN_S)
