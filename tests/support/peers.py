"""Fake servers, for the faults that a correct one never shows: a script per connection, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.support.resets import reset
from tests.support.streams import serve_streams
from tests.support.waiting import WITHIN_S

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run one test's coroutine, within the time limit."""

    async def limited() -> T:
        async with asyncio.timeout(WITHIN_S):
            return await (main() if callable(main) else main)

    return asyncio.run(limited())


@dataclass
class Head:
    """A request's head as it was read."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Peer:
    """The server's end of one connection."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> Head:
        """Read one request's head."""
        raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        pairs = (line.split(": ", 1) for line in lines)
        return Head(method, path, {name.lower(): value for name, value in pairs})

    async def chunk(self) -> bytes | None:
        """Read one HTTP chunk of the request's body; ``None`` at its end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data or None

    async def body(self) -> list[bytes]:
        """Read the rest of the request's body, as its chunks."""
        chunks = []
        while (data := await self.chunk()) is not None:
            chunks.append(data)
        return chunks

    async def closed(self) -> None:
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    async def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, headers: dict[str, object] | None = None, body: bytes = b"") -> None:
        """Write a whole response."""
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        reset(self.writer)


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class FakeServer:
    """What a test sees of its fake server."""

    base: str = ""
    peers: list[Peer] = field(default_factory=list)
    scripts: list[asyncio.Task[None]] = field(default_factory=list)


@contextlib.asynccontextmanager
async def fake_server(*scripts: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeServer]:
    """Serve each connection with the next script, the last one for all that follow; a script's error fails the test."""
    fake = FakeServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(len(fake.peers), reader, writer)
        fake.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        fake.scripts.append(task)
        try:
            await scripts[min(peer.number, len(scripts) - 1)](peer)
        finally:
            writer.close()

    server = await serve_streams(serve, tls)
    fake.base = f"{'https' if tls else 'http'}://127.0.0.1:{server.port}/trickle"
    try:
        yield fake
    finally:
        await server.close()
    await asyncio.gather(*fake.scripts)
