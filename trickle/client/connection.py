"""One HTTP/1.1 connection whose two directions are independent of each other.

h11 knows the grammar; this module moves the bytes. The request's body is written while the response comes in. The
response's body is handed on in the chunks that the server sent, and the trailers behind it are kept.
"""

from __future__ import annotations

import ssl
from typing import Final

import anyio
import anyio.lowlevel
import h11
import httpx
from anyio.abc import ByteStream

from tricklecast.trickle.client.sockets import SocketStream

MAX_HEADER_BYTES: Final = 65536
"""Longest head of a response (nginx's limit is 32 KiB, uvicorn's 64 KiB)."""

MAX_CHUNK: Final = 64 * 1024
"""Chunks of up to this many bytes are handed on in one piece; of longer ones, pieces of at least this size."""

MAX_EVENTS: Final = 256
"""After this many events in a row without a pause, other tasks get their turn."""

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
        trailers: what followed the response's body.
    """

    def __init__(self, origin: Origin, stream: ByteStream, tcp: SocketStream) -> None:
        self.origin = origin
        self.reused = False
        self.trailers: list[tuple[bytes, bytes]] = []
        self._stream = stream
        self._tcp = tcp
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._unsent: bytes | memoryview = b""
        self._flushing = False
        self._cut_short = False
        self._answered = False
        self._chunked = False
        self._over = False
        self._partial = bytearray()
        self._failure: httpx.TransportError | None = None
        self._events = 0
        self._expires_at = 0.0

    @property
    def unacknowledged(self) -> int:
        """Bytes written that the peer has not received yet."""
        return self._tcp.unacknowledged

    def is_usable(self) -> bool:
        """Whether this idle connection may carry another request."""
        return anyio.current_time() < self._expires_at and self._tcp.is_silent()

    def start_next(self, keepalive_s: float) -> bool:
        """Prepare for another request; ``False`` where the last exchange does not allow one."""
        over = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not over or self._unsent or self._flushing or self._cut_short or self._http.trailing_data[0]:
            return False
        self._http.start_next_cycle()
        self.reused, self._answered, self._over, self.trailers = True, False, False, []
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
        while not isinstance(event := await self._next_event(), h11.Response):
            assert isinstance(event, h11.InformationalResponse), "an end before the answer is raised"
        self._chunked = b"transfer-encoding" in dict(event.headers)
        return event

    async def receive_chunk(self) -> bytes:
        """The next chunk of the body as the server sent it; ``b""`` at the end.

        A chunk of more than :data:`MAX_CHUNK` bytes comes in pieces. The bytes of a chunk that was cut are returned
        before the error is raised. A call that is cancelled loses nothing: the next one goes on.

        Raises:
            httpx.ReadError: the connection ended before the body did, or was closed here.
            InvalidAnswer: what came is not HTTP.
        """
        while not self._over:
            try:
                event = await self._next_event()
            except httpx.TransportError:
                if self._partial:
                    return self._take_partial()
                raise
            if chunk := self._chunk_of(event):
                return chunk
        return b""

    async def receive(self) -> bytes:
        """The bytes of the body that are here, of one chunk or several, about :data:`MAX_CHUNK`; ``b""`` at the end.

        Like :meth:`receive_chunk`, but chunks that came together are joined.
        """
        first = await self.receive_chunk()
        if not first or len(first) >= MAX_CHUNK:
            return first
        parts, size = [first], len(first)
        while size < MAX_CHUNK and len(parts) < MAX_EVENTS and not self._over:
            try:
                event = self._poll()
            except httpx.TransportError:
                break  # raised by the next call
            if event is h11.NEED_DATA:
                break
            if chunk := self._chunk_of(event):
                parts.append(chunk)
                size += len(chunk)
        self._events += len(parts)
        return b"".join(parts)

    def _chunk_of(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> bytes:
        """The chunk that an event completes, if it does."""
        if isinstance(event, h11.Data):
            whole = event.chunk_end or not self._chunked
            if whole and not self._partial:
                return bytes(event.data)
            self._partial += event.data
            return self._take_partial() if whole or len(self._partial) >= MAX_CHUNK else b""
        assert isinstance(event, h11.EndOfMessage)
        self.trailers, self._over = event.headers.raw_items(), True
        return b""

    def _take_partial(self) -> bytes:
        data = bytes(self._partial)
        self._partial.clear()
        return data

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        self._events += 1
        if self._events >= MAX_EVENTS:
            self._events = 0
            await anyio.lowlevel.checkpoint()
        while (event := self._poll()) is h11.NEED_DATA:
            try:
                data = await self._stream.receive()
            except anyio.EndOfStream:
                if self._ends_early:
                    raise self._lost("the server closed the connection without an answer") from None
                data = b""
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
                raise self._lost("the connection broke") from error
            self._events = 0
            self._answered = True
            self._http.receive_data(data)
        return event

    def _poll(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What has come already."""
        if self._failure is not None:
            raise self._failure
        within_body = self._http.their_state is not h11.SEND_RESPONSE
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            if self._http.trailing_data[1] and within_body:
                self._failure = httpx.ReadError("the connection was closed in the middle of an answer")
            else:
                self._failure = InvalidAnswer(str(error))
            raise self._failure from error

    @property
    def _ends_early(self) -> bool:
        """Whether a stream that ends now ends before its answer has begun, or in the middle of an HTTP head."""
        head = self._http.trailing_data[0]
        return self._http.their_state is h11.SEND_RESPONSE and _HTTP.startswith(head[: len(_HTTP)])

    def _lost(self, why: str) -> httpx.ReadError:
        return httpx.ReadError(why) if self._answered else NoAnswer(why)
