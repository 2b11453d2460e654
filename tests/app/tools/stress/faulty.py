"""A small trickle server that keeps whole segments, and delivers some of them as a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from tests.support.streams import serve_streams
from tricklecast.trickle import wire

BodyOf = Callable[[int], Awaitable[bytes]]


@dataclass
class Answer:
    """The delivery of a segment.

    Attributes:
        body: its bytes.
        trailer: the value of ``Lp-Trickle-Truncated`` after it; empty for none.
        cut: the server cuts the connection instead of ending the body.
        moved_to: the server answers a 470 with this head instead.
    """

    body: bytes = b""
    trailer: str = ""
    cut: bool = False
    moved_to: int | None = None


Spoil = Callable[[int, BodyOf], Awaitable[Answer]]
"""Makes the answer to a GET of a seq from the published segments of one channel."""


@dataclass
class _Channel:
    stored: dict[int, bytes] = field(default_factory=dict)
    ended: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def change(self, seq: int | None = None, body: bytes = b"") -> None:
        async with self.changed:
            if seq is None:
                self.ended = True
            else:
                self.stored[seq] = body
            self.changed.notify_all()

    async def body_of(self, seq: int) -> bytes:
        """Wait for the segment; empty beyond the end of the channel."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.ended or seq in self.stored)
        return self.stored.get(seq, b"")


class FaultyServer:
    """Speaks the part of the protocol that the clients need, without epochs or trickling.

    Args:
        spoil: makes the answers of a channel, by the number at the end of its name. Other channels are sound.
    """

    def __init__(self, spoil: dict[int, Spoil]) -> None:
        self._spoil = spoil
        self._channels: dict[str, _Channel] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._exchange(reader, writer)
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.partition("\r\n")[0].split(" ")
        _, _, name, *rest = path.split("/")
        channel = self._channels.setdefault(name, _Channel())
        match method, rest:
            case "POST", []:
                _reply(writer, 200, {})
            case "POST", [seq]:
                body = await _body(reader)
                if body:
                    await channel.change(int(seq), body)
                _reply(writer, 200, {wire.SEQ: seq, wire.SIZE: len(body)})
            case "DELETE", []:
                await channel.change()
                _reply(writer, 200, {})
            case "GET", ["next"]:
                _reply(writer, 200, {wire.LATEST: len(channel.stored)})
            case _:
                await self._read(writer, channel, int(name.rpartition("-")[2]), int(rest[0]))
        await writer.drain()

    async def _read(self, writer: asyncio.StreamWriter, channel: _Channel, number: int, seq: int) -> None:
        await channel.body_of(seq)
        if seq not in channel.stored:
            _reply(writer, 200, {wire.SEQ: seq, wire.LATEST: len(channel.stored), wire.CLOSED: "terminated"})
            return
        spoil = self._spoil.get(number)
        answer = await spoil(seq, channel.body_of) if spoil else Answer(channel.stored[seq])
        if answer.moved_to is not None:
            await channel.body_of(answer.moved_to - 1)
            _reply(writer, 470, {wire.SEQ: seq, wire.LATEST: answer.moved_to})
        elif not answer.body:
            _reply(writer, 200, {wire.SEQ: seq})
        else:
            _reply_in_chunks(writer, seq, answer)


async def _body(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


def _reply(writer: asyncio.StreamWriter, status: int, headers: dict[str, object]) -> None:
    lines = [f"HTTP/1.1 {status} Whatever", "Content-Length: 0", *(f"{name}: {it}" for name, it in headers.items())]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")


def _reply_in_chunks(writer: asyncio.StreamWriter, seq: int, answer: Answer) -> None:
    writer.write(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{wire.SEQ}: {seq}\r\n\r\n".encode())
    writer.write(f"{len(answer.body):x}\r\n".encode() + answer.body + b"\r\n")
    if answer.cut:
        writer.close()
        return
    trailer = f"{wire.TRUNCATED}: {answer.trailer}\r\n" if answer.trailer else ""
    writer.write(f"0\r\n{trailer}\r\n".encode())


@contextlib.asynccontextmanager
async def faulty_server(spoil: dict[int, Spoil]) -> AsyncIterator[str]:
    """Run a faulty server until the block ends; yields the URL of its base path."""
    server = await serve_streams(FaultyServer(spoil).serve)
    try:
        yield f"http://127.0.0.1:{server.port}/trickle"
    finally:
        await server.cancel()
