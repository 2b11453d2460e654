"""A TCP proxy between a publisher and a real server, which breaks connections where a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from tests.support.resets import reset
from tests.support.streams import serve_streams

WITHOUT_ANSWER: Final = -1
"""Everything gets through, but the answer does not."""


@dataclass
class Proxy:
    """What a test says to its proxy.

    Attributes:
        port: where it listens.
        cuts: by the target of a request, where its connections are cut, one after the other: so many bytes behind its
            head, or :data:`WITHOUT_ANSWER`.
        requests: the request lines that went through.
        down: nobody gets through any more.
    """

    port: int = 0
    cuts: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    down: bool = False
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def url(self, channel: str) -> str:
        """A channel of the server, through the proxy."""
        return f"http://127.0.0.1:{self.port}/trickle/{channel}"

    def cut_all(self) -> None:
        """Break every connection now."""
        for writer in list(self._writers):
            reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        if self.down:
            reset(writer)
            return
        # In the list before the server is dialled: cut_all() also breaks a connection that is only half made.
        ends = {writer}
        self._writers.add(writer)
        back = None
        try:
            upstream, towards = await asyncio.open_connection("127.0.0.1", port)
            ends.add(towards)
            self._writers.add(towards)
            if writer.is_closing():
                return
            back = asyncio.ensure_future(self._pass_on(upstream, writer))
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._requests(reader, towards, back)
        finally:
            if back is not None:
                back.cancel()
            self._writers -= ends
            for end in ends:
                reset(end)

    async def _requests(
        self, reader: asyncio.StreamReader, towards: asyncio.StreamWriter, back: asyncio.Future[None]
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.split(b" HTTP/")[0].decode())
            cuts = self.cuts.get(self.requests[-1], [])
            cut = cuts.pop(0) if cuts else None
            if cut == WITHOUT_ANSWER:
                back.cancel()
            towards.write(head)
            if cut is not None:
                await self._cut(reader, towards, cut)
                return
            if b"chunked" in head.lower():
                await self._body(reader, towards)

    async def _cut(self, reader: asyncio.StreamReader, towards: asyncio.StreamWriter, cut: int) -> None:
        """Pass on so many bytes, wait until they have arrived, and break the connection."""
        if cut == WITHOUT_ANSWER:
            await self._body(reader, towards)
        elif cut:
            towards.write(await reader.readexactly(cut))
        await towards.drain()
        # What was written has left: closing orderly delivers it, and the end behind it.
        towards.write_eof()
        await asyncio.sleep(0.01)

    async def _body(self, reader: asyncio.StreamReader, towards: asyncio.StreamWriter) -> None:
        """Pass on a chunked body."""
        size = -1
        while size:
            line = await reader.readuntil(b"\n")
            size = int(line, 16)
            towards.write(line + await reader.readexactly(size + 2))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()


@contextlib.asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    """Run a proxy to a server on this machine."""
    made = Proxy()

    server = await serve_streams(lambda reader, writer: made._serve(reader, writer, port))
    made.port = server.port
    try:
        yield made
    finally:
        await server.close()
        made.cut_all()
        await asyncio.gather(*server.serving)
