"""A client's connection that keeps what it gets, byte by byte, also of an answer that breaks off."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

import httptools


@dataclass(slots=True)
class Answer:
    """What came of a request.

    Attributes:
        status: 0 if there was no answer. fields: its headers and trailers, in small letters. body: what came of it.
        whole: it has come to its end. at: when that was, or when the connection broke.
    """

    status: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    at: float = 0.0

    def number(self, name: str) -> int | None:
        """A field that is a number."""
        text = self.fields.get(name)
        return int(text) if text is not None and text.isdigit() else None


class Wire(asyncio.Protocol):
    """One connection, and one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer = Answer()
        self._done: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)

    @classmethod
    async def open(cls, port: int, within_s: float) -> Wire:
        """Connect; a connection that cannot be made is of no use, and says so by its answers."""
        wire = cls()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.get_running_loop().create_connection(lambda: wire, "127.0.0.1", port)
        return wire

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return self._transport is not None and not self._transport.is_closing() and self._done is None

    def begin(self, line: str, *fields: str) -> asyncio.Future[Answer]:
        """Send a request's head; returns what will be its answer."""
        done = self._done = asyncio.get_running_loop().create_future()
        self._answer = Answer()
        if self._transport is None or self._transport.is_closing():
            self._finish()
        else:
            head = "\r\n".join((f"{line} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""))
            self._transport.write(head.encode())
        return done

    async def ask(self, line: str, *fields: str, within_s: float) -> Answer:
        """A whole exchange; its request has no body. It is given up after a time."""
        return await self.end(self.begin(line, *fields), within_s)

    async def end(self, answer: asyncio.Future[Answer], within_s: float) -> Answer:
        """Wait for an answer; break the connection if that takes too long, or the connection is good for nothing."""
        await asyncio.wait((answer,), timeout=within_s)
        if not answer.done():
            self.close()
        found = await answer
        if not found.whole or found.fields.get("connection") == "close":
            self.close()
        return found

    def write(self, data: bytes) -> None:
        """Send a chunk of the request's body; an empty one ends it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def close(self) -> None:
        """Break it."""
        if self._transport is not None:
            self._transport.abort()
        self._finish()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._finish()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._answer.body += body

    def on_message_complete(self) -> None:
        self._answer.whole = True
        self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            self._answer.at = time.monotonic()
            done.set_result(self._answer)
