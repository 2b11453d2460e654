"""One HTTP/1.1 connection that GETs: h11 for the grammar, anyio for the bytes.

h11 says where a chunk ends, so that chunks can be put together again as they were sent; and its end-of-message event
carries the trailers.
"""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from typing import Final, TypeAlias

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute

MAX_CHUNK: Final = 64 * 1024
"""Chunks up to this size, in bytes, are handed on in one piece; of longer ones, pieces of at least this size."""

READ_SIZE: Final = 64 * 1024
MAX_HEAD: Final = 64 * 1024
"""Longest head of a response, in bytes (uvicorn and nginx limit theirs to 64 KiB and 32 KiB)."""

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
"""A peer that vanished without a word is noticed within 40 s, without any limit on how long a segment may be silent."""

Trailers: TypeAlias = list[tuple[bytes, bytes]]


class Broken(Exception):
    """The connection ended before the message did."""


class Garbage(Exception):
    """What came is not HTTP/1.1, or not usable."""


async def connect(host: str, port: int, ssl_context: ssl.SSLContext | None) -> Connection:
    """Open a connection, with TLS if a context is given.

    Raises:
        OSError: it cannot be opened; ``ssl.SSLError`` is one.
    """
    if ssl_context is None:
        stream: ByteStream = await anyio.connect_tcp(host, port)
    else:
        try:
            # HTTP's own framing tells a cut from an end, so TLS's closing alert is not insisted on.
            stream = await anyio.connect_tcp(host, port, ssl_context=ssl_context, tls_standard_compatible=False)
        except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise ConnectionResetError("the connection broke during the TLS handshake") from error
    _keep_alive(stream)
    return Connection(stream)


class Connection:
    """A connection on which one GET runs at a time."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._chunked = False
        self._buffer = bytearray()
        self.idle_since = 0.0

    async def request(self, target: bytes, headers: list[tuple[bytes, bytes]]) -> h11.Response:
        """Send a GET and wait for the head of its answer; interim answers are passed over.

        Raises:
            Broken: the connection ended first.
            Garbage: not HTTP, or a body whose end cannot be told from a cut.
        """
        try:
            data = self._http.send(h11.Request(method=b"GET", target=target, headers=headers))
            await self._stream.send(data + self._http.send(h11.EndOfMessage()))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise Broken("connection broke while sending the request") from error
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        if not isinstance(event, h11.Response):
            raise Broken("connection closed without an answer")
        self._chunked = _is_chunked(event)
        return event

    async def chunk(self) -> bytes | Trailers:
        """The next chunk of the body as the server sent it, or, at its end, the trailers.

        What had come of a chunk that broke is returned first.

        Raises:
            Broken: the connection ended before the body did.
            Garbage: not the grammar of HTTP.
        """
        while True:
            try:
                event = await self._event()
            except (Broken, Garbage):
                if self._buffer:
                    return self._flush()
                raise
            match event:
                case h11.Data():
                    self._buffer += event.data
                    if event.chunk_end or not self._chunked or len(self._buffer) >= MAX_CHUNK:
                        return self._flush()
                case h11.EndOfMessage():
                    return event.headers.raw_items()
                case _:
                    raise Broken("connection closed in the middle of a body")

    def next_cycle(self, now: float) -> bool:
        """Make the connection ready for another GET; ``False`` if it cannot be used again."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        if self._http.trailing_data[0]:
            return False
        self._http.start_next_cycle()
        self.idle_since = now
        return True

    def is_quiet(self) -> bool:
        """Whether nothing has come while the connection was idle: neither its end nor bytes nobody asked for."""
        raw = self._stream.extra(SocketAttribute.raw_socket, None)
        return raw is None or not _is_readable(raw)

    async def aclose(self) -> None:
        """Close the socket, also while being cancelled. Closing twice is fine."""
        with anyio.CancelScope(shield=True):
            # A TLS peer may make closing wait for its alert; nothing that it could say matters any more.
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await anyio.aclose_forcefully(self._stream)

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if self._http.trailing_data[1]:
                    raise Broken("connection closed in the middle of an answer") from error
                raise Garbage(str(error)) from error
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._stream.receive(READ_SIZE)
            except anyio.EndOfStream:
                data = b""
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                raise Broken("connection broke") from error
            self._http.receive_data(data)

    def _flush(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


def _is_chunked(head: h11.Response) -> bool:
    names = dict(head.headers)
    chunked = b"transfer-encoding" in names
    if head.status_code == 200 and not chunked and b"content-length" not in names:
        raise Garbage("the answer has neither a length nor chunks: its end could not be told from a cut")
    return chunked


def _is_readable(raw: socket.socket) -> bool:
    if not hasattr(select, "poll"):  # Windows; there select() has no limit on the number of the descriptor
        return bool(select.select([raw], [], [], 0)[0])
    poll = select.poll()
    poll.register(raw, select.POLLIN)
    return bool(poll.poll(0))


def _keep_alive(stream: ByteStream) -> None:
    raw = stream.extra(SocketAttribute.raw_socket, None)
    if raw is None:
        return
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):  # the names differ between systems
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
