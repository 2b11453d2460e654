"""A server that does what a test says, byte by byte: for faults that a correct server never makes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

from tests.support.peers import Peer
from tests.support.peers import run as run
from tests.support.streams import serve_streams
from tricklecast.subscriber.segment import Runtime

T = TypeVar("T")


def timed(runtime: Runtime, make: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Make a subscriber, or what reads with one, that has this clock, these delays and random numbers."""
    with patch("tricklecast.subscriber.client.Runtime", lambda: runtime):
        return make(*arguments, **options)


@dataclass
class Exchange:
    """One request, and the means to answer it."""

    target: str
    headers: dict[str, str]
    connection: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    method: str = "GET"

    @property
    def tail(self) -> str:
        """The last part of the path: a seq, or ``next``."""
        return self.target.partition("?")[0].rpartition("/")[2]

    async def raw(self, data: bytes) -> None:
        """Send these bytes."""
        await Peer(self.connection, self.reader, self.writer).send(data)

    async def head(self, status: int = 200, **headers: object) -> None:
        """Send a head; ``seq=1`` is ``Lp-Trickle-Seq: 1``, other names are told from these by their capital."""
        lines = [f"HTTP/1.1 {status} Whatever"]
        for name, value in headers.items():
            name = name.replace("_", "-")
            lines.append(f"{name if name[0].isupper() else 'Lp-Trickle-' + name.capitalize()}: {value}")
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def begin(self, seq: int, **headers: object) -> None:
        """Send the head of a segment in chunks."""
        await self.head(200, Transfer_Encoding="chunked", seq=seq, **headers)

    async def chunk(self, data: bytes) -> None:
        """Send one chunk."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self, **trailers: str) -> None:
        """Send the last chunk."""
        lines = "".join(f"Lp-Trickle-{name.capitalize()}: {value}\r\n" for name, value in trailers.items())
        await self.raw(b"0\r\n" + lines.encode() + b"\r\n")

    async def segment(self, seq: int, *chunks: bytes, **headers: object) -> None:
        """Send a whole segment."""
        await self.begin(seq, **headers)
        for chunk in chunks:
            await self.chunk(chunk)
        await self.end()

    async def empty(self, status: int = 200, **headers: object) -> None:
        """Send an answer without a body."""
        await self.head(status, **headers, Content_Length=0)

    async def text(self, status: int, body: str, **headers: object) -> None:
        """Send an answer with a line of text."""
        await self.head(status, **headers, Content_Length=len(body.encode()))
        await self.raw(body.encode())

    async def closed_by_client(self) -> None:
        """Wait until the client has closed its connection."""
        await Peer(self.connection, self.reader, self.writer).closed()

    def abort(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


Handler = Callable[[Exchange], Awaitable[None]]


@dataclass
class FakeServer:
    """What a test sees of it."""

    port: int = 0
    scheme: str = "http"
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def root(self) -> str:
        """Scheme and authority."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """A channel."""
        return f"{self.root}/trickle/cam"

    @property
    def tails(self) -> list[str]:
        """What was asked for, in order."""
        return [exchange.tail for exchange in self.exchanges]

    async def all_closed(self) -> None:
        """Wait until every connection has ended."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.open_connections == 0)

    async def asked(self, times: int = 1) -> None:
        """Wait until so many requests have come."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.exchanges) >= times)


@asynccontextmanager
async def fake(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeServer]:
    """Serve with that handler on a free port of this host."""
    fake_server = FakeServer(scheme="https" if tls else "http")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake_server.connections += 1
        fake_server.open_connections += 1
        number = fake_server.connections
        try:
            while (exchange := await _read_request(reader, writer, number)) is not None:
                async with fake_server.changed:
                    fake_server.exchanges.append(exchange)
                    fake_server.changed.notify_all()
                await handler(exchange)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            if tls is not None:
                writer.transport.abort()  # else it would wait for an alert that the client does not send
            with suppress(ConnectionError, asyncio.CancelledError, ssl.SSLError):
                await writer.wait_closed()
            async with fake_server.changed:
                fake_server.open_connections -= 1
                fake_server.changed.notify_all()

    server = await serve_streams(serve, tls)
    fake_server.port = server.port
    try:
        yield fake_server
    finally:
        await server.cancel()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> Exchange | None:
    try:
        head = await Peer(connection, reader, writer).head()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    assert head.method in ("GET", "HEAD")
    return Exchange(head.path, head.headers, connection, reader, writer, head.method)
