"""One HTTP/1.1 connection whose two directions are independent of each other.

h11 knows the grammar of requests and of heads, ``decoder`` that of a response's body; this module moves the bytes. The
request's body is written while the response comes in. The response's body is handed on in the chunks that the server
sent, and the trailers behind it are kept.
"""

from __future__ import annotations

import ssl
from typing import Final

import anyio
import anyio.lowlevel
import h11
import httpx
from anyio.abc import ByteStream

from tricklecast.trickle.client.decoder import MAX_CHUNK, BodyDecoder, InvalidBody
from tricklecast.trickle.client.sockets import Silence, SocketStream

MAX_HEADER_BYTES: Final = 65536
"""Longest head of a response (nginx's limit is 32 KiB, uvicorn's 64 KiB)."""

MAX_CHUNKS: Final = 256
"""After this many chunks in a row without a pause, other tasks get their turn."""

_HTTP: Final = b"HTTP/"
"""How each answer of an HTTP server begins."""

Origin = tuple[str, str, int]
"""Scheme, host, port."""


class NoAnswer(httpx.ReadError):
    """The connection broke, or was closed, before the first byte of an answer."""


class InvalidAnswer(httpx.RemoteProtocolError):
    """The answer is not HTTP, or a cut of its body could not be told from its end. Asking again does not help."""


class Connection:
    """A byte stream and the HTTP/1.1 state of both directions.

    Attributes:
        reused: the connection has carried an exchange before this one.
    """

    def __init__(self, origin: Origin, stream: ByteStream, tcp: SocketStream) -> None:
        self.origin = origin
        self.reused = False
        self._stream = stream
        self._tcp = tcp
        self._http = _grammar()
        self._unsent: bytes | memoryview = b""
        self._flushing = False
        self._cut_short = False
        self._answered = False
        self._method = b""
        self._body: BodyDecoder | None = None
        self._failure: httpx.TransportError | None = None
        self._chunks = 0
        self._expires_at = 0.0

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """What followed the response's body."""
        return self._body.trailers if self._body is not None else []

    @property
    def unacknowledged(self) -> int:
        """Bytes written that the peer has not received yet."""
        return self._tcp.unacknowledged

    @property
    def receive_s(self) -> float | None:
        """How long to wait for bytes of the response, in seconds; ``None``: for ever."""
        return self._tcp.receive_s

    @receive_s.setter
    def receive_s(self, seconds: float | None) -> None:
        self._tcp.receive_s = seconds

    def is_usable(self) -> bool:
        """Whether this idle connection may carry another request."""
        return anyio.current_time() < self._expires_at and self._tcp.is_silent()

    def start_next(self, keepalive_s: float) -> bool:
        """Prepare for another request; ``False`` where the last exchange does not allow one."""
        body = self._body
        over = self._http.our_state is h11.DONE and body is not None and body.over and not body.has_rest
        if not over or self._unsent or self._flushing or self._cut_short:
            return False
        self._http = _grammar()
        self._body = None
        self.reused, self._answered = True, False
        self._expires_at = anyio.current_time() + keepalive_s
        return True

    def close(self) -> None:
        """Close the connection at once; a task that waits for it gets an error."""
        self._tcp.close()

    # The request.

    def write(self, *events: h11.Event) -> bool:
        """Write events in one piece as far as the kernel has room, without waiting and without copying their bytes.

        Returns:
            Whether all of it has left. Otherwise call :meth:`flush`.

        Raises:
            h11.LocalProtocolError: an event does not fit the request's head.
        """
        if isinstance(events[0], h11.Request):
            self._method = events[0].method
        parts = [part for event in events for part in self._http.send_with_data_passthrough(event) or []]
        if self._unsent or self._flushing or self._stream is not self._tcp:
            self._unsent = b"".join([self._unsent, *parts])
        else:
            self._unsent = self._tcp.send_now(parts)
        self._cut_short |= self._tcp.peer_stopped_reading
        return not (self._unsent or self._flushing or self._cut_short)

    async def flush(self, stall_s: float | None) -> bool:
        """Write the rest; ``False`` if the peer no longer reads. A flush that is cancelled cannot be repeated.

        Raises:
            TimeoutError: the peer has received nothing for ``stall_s`` seconds.
        """
        self._tcp.stall_s = stall_s
        while self._unsent:
            unsent, self._unsent = self._unsent, b""
            self._flushing = True
            await self._stream.send(unsent)  # type: ignore[arg-type]  # a memoryview will do
            self._flushing = False
        self._cut_short |= self._tcp.peer_stopped_reading
        return not self._cut_short

    # The response.

    async def answer(self) -> h11.Response:
        """Wait for the final response's head; interim answers are passed over.

        Raises:
            NoAnswer: the connection ended before an answer began.
            httpx.ReadError: the connection ended within the head.
            InvalidAnswer: what came is not HTTP.
        """
        while not isinstance(head := self._next_head(), h11.Response):
            if head is h11.NEED_DATA:
                self._http.receive_data(await self._receive_some())
        self._body = BodyDecoder(head, self._http.trailing_data[0], is_empty=self._method == b"HEAD")
        return head

    async def receive_chunk(self) -> bytes:
        """The next chunk of the body as the server sent it; ``b""`` at the end.

        A chunk of more than :data:`MAX_CHUNK` bytes comes in pieces. The bytes of a chunk that was cut are returned
        before the error is raised. A call that is cancelled loses nothing: the next one goes on.

        Raises:
            httpx.ReadError: the connection ended before the body did, or was closed here.
            httpx.ReadTimeout: nothing came for ``receive_s`` seconds. The next call goes on.
            InvalidAnswer: what came is not HTTP.
        """
        body = self._body
        assert body is not None, "the head was read"
        self._chunks += 1
        if self._chunks >= MAX_CHUNKS:
            self._chunks = 0
            await anyio.lowlevel.checkpoint()
        try:
            while (chunk := self._poll(body)) is None and not body.over:
                if data := await self._receive_some():
                    body.feed(data)
                elif not body.end():
                    raise self._failed(httpx.ReadError("the connection was closed in the middle of an answer"))
        except httpx.ReadTimeout:
            raise
        except httpx.TransportError:
            if partial := body.take_partial():
                return partial
            raise
        return chunk or b""

    async def receive(self) -> bytes:
        """The bytes of the body that are here, of one chunk or several, about :data:`MAX_CHUNK`; ``b""`` at the end.

        Like :meth:`receive_chunk`, but chunks that came together are joined.
        """
        first = await self.receive_chunk()
        if not first or len(first) >= MAX_CHUNK or self._body is None or not self._body.has_rest:
            return first
        parts, size = [first], len(first)
        while size < MAX_CHUNK and len(parts) < MAX_CHUNKS:
            try:
                chunk = self._poll(self._body)
            except httpx.TransportError:
                break  # raised by the next call
            if chunk is None:
                break
            parts.append(chunk)
            size += len(chunk)
        self._chunks += len(parts)
        return b"".join(parts)

    async def _receive_some(self) -> bytes:
        """Bytes from the peer; ``b""`` once it has closed its side."""
        try:
            data = await self._stream.receive()
        except anyio.EndOfStream:
            if self._ends_early:
                raise self._lost("the server closed the connection without an answer") from None
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
            raise self._lost("the connection broke") from error
        except Silence:
            raise httpx.ReadTimeout(f"no byte for {self.receive_s:g} s") from None
        self._chunks = 0
        self._answered = True
        return data

    def _poll(self, body: BodyDecoder) -> bytes | None:
        """A chunk that has come already."""
        if self._failure is not None:
            raise self._failure
        try:
            return body.next_chunk()
        except InvalidBody as error:
            raise self._failed(InvalidAnswer(str(error))) from error

    def _next_head(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise InvalidAnswer(str(error)) from error

    def _failed(self, error: httpx.TransportError) -> httpx.TransportError:
        self._failure = error
        return error

    @property
    def _ends_early(self) -> bool:
        """Whether a stream that ends now ends before its answer has begun, or in the middle of an HTTP head."""
        head = self._http.trailing_data[0]
        return self._body is None and _HTTP.startswith(head[: len(_HTTP)])

    def _lost(self, why: str) -> httpx.ReadError:
        return httpx.ReadError(why) if self._answered else NoAnswer(why)


def _grammar() -> h11.Connection:
    return h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
