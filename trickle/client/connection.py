"""One HTTP/1.1 connection whose two directions are independent of each other.

``heads`` knows the grammar of heads, ``decoder`` that of a response's body; this module moves the bytes. The request's
body is written while the response comes in. The response's body is handed on in the chunks that the server sent, and
the trailers behind it are kept.
"""

from __future__ import annotations

import ssl
from time import monotonic
from typing import Final

import anyio
import anyio.lowlevel
import httpx
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from tricklecast.trickle.client.decoder import MAX_CHUNK, BodyDecoder, InvalidBody
from tricklecast.trickle.client.heads import InvalidHead, ResponseHead, parse_response
from tricklecast.trickle.client.sockets import Silence, SocketStream

MAX_INTERIM: Final = 100
"""Interim answers that may come at once; from then on, one each second. A server that sends more keeps its client busy
without an answer. (One that works with interim answers sends one every few seconds.)"""

MAX_CHUNKS: Final = 256
"""After this many chunks in a row without a pause, other tasks get their turn."""

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
        self._unsent: bytes | memoryview = b""
        self._flushing = False
        self._cut_short = False
        self._is_head_request = False
        self._body_left: int | None = 0
        self._request_over = False
        self._answered = False
        self._early: bytes | bytearray = b""  # of the response's head
        self._searched = 0  # number of these that were searched for the end of the head, in vain
        self._interims = 0  # interim answers to this request
        self._asked_at = 0.0  # when this request began
        self._head: ResponseHead | None = None
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
        return monotonic() < self._expires_at and self._tcp.is_silent()

    def start_next(self, keepalive_s: float) -> bool:
        """Prepare for another request; ``False`` where the last exchange does not allow one."""
        head, body = self._head, self._body
        over = head is not None and head.keeps_alive and body is not None and body.over and not body.has_rest
        if not (over and self._request_over) or self._unsent or self._flushing or self._cut_short:
            return False
        self._head = self._body = None
        self.reused, self._answered, self._request_over = True, False, False
        self._expires_at = monotonic() + keepalive_s
        return True

    def close(self) -> None:
        """Close the connection at once; a task that waits for it gets an error."""
        self._tcp.close()

    # The request.

    # Each of the following three writes as far as the kernel has room, without waiting and without copying a body's
    # bytes. It returns whether all of it has left; otherwise call flush().

    def write_head(self, head: bytes, body_bytes: int | None) -> bool:
        """Begin a request.

        Args:
            head: its head.
            body_bytes: how long its body is, in bytes; ``None`` if it comes in chunks.
        """
        self._is_head_request = head.startswith(b"HEAD ")
        self._interims, self._asked_at = 0, monotonic()
        self._body_left = body_bytes
        self._request_over = body_bytes == 0
        return self._write([head])

    def write_body(self, data: bytes, *, last: bool = False) -> bool:
        """Write a part of the request's body, as one chunk if it comes in chunks.

        Args:
            data: at least one byte.
            last: the body ends with it.

        Raises:
            httpx.LocalProtocolError: the body has not the length that was announced; nothing was written.
        """
        if self._body_left is None:
            self._request_over = last
            return self._write([b"%x\r\n" % len(data), data, b"\r\n0\r\n\r\n" if last else b"\r\n"])
        left = self._body_left - len(data)
        if left < 0 or (last and left):
            raise httpx.LocalProtocolError("the body does not have the length that its head announces")
        self._body_left = left
        self._request_over |= last
        return self._write([data])

    def end_body(self) -> bool:
        """End the request's body, if that has not been done yet.

        Raises:
            httpx.LocalProtocolError: a part of the length that was announced is missing.
        """
        if self._body_left:
            raise httpx.LocalProtocolError("the body does not have the length that its head announces")
        is_written = self._request_over or self._body_left == 0
        self._request_over = True
        return self._write([] if is_written else [b"0\r\n\r\n"])

    def _write(self, parts: list[bytes]) -> bool:
        if self._unsent or self._flushing or self._stream is not self._tcp:
            self._unsent = b"".join([self._unsent, *parts])
        elif parts:
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

    async def answer(self, within_s: float | None = None) -> ResponseHead:
        """Wait for the final response's head; interim answers are passed over.

        Args:
            within_s: how long all of it may take, in seconds; ``None``: for ever.

        Raises:
            NoAnswer: the connection ended before an answer began.
            httpx.ReadError: the connection ended within the head.
            httpx.ReadTimeout: it did not come in time.
            InvalidAnswer: what came is not HTTP, or is a flood of interim answers.
        """
        due_at = None if within_s is None else monotonic() + within_s
        while True:
            try:
                found = parse_response(self._early, self._searched) if self._early else None
            except InvalidHead as error:
                raise InvalidAnswer(str(error)) from error
            if found is None:
                self._searched = len(self._early)
                if due_at is not None:
                    self.receive_s = max(0.0, due_at - monotonic())
                try:
                    data = await self._receive_some()
                except httpx.ReadTimeout:
                    raise httpx.ReadTimeout(f"no answer within {within_s:g} s") from None
                if isinstance(self._early, bytearray):
                    self._early += data
                else:  # most heads come in one piece, which is not copied
                    self._early = bytearray(self._early + data) if self._early else data
                continue
            head, size = found
            self._early = self._early[size:]
            self._searched = 0
            if head.status_code == 101:
                raise InvalidAnswer("the server wants to talk another protocol")
            if head.status_code >= 200:
                self._head = head
                self._body = BodyDecoder(head, bytes(self._early), is_empty=self._is_head_request)
                self._early = b""
                return head
            self._interims += 1
            if self._interims > MAX_INTERIM + monotonic() - self._asked_at:
                raise InvalidAnswer(f"{self._interims} interim answers ({head.status_code}) and no final one")

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
            if self._body is None:  # before an answer, or in the middle of its head
                plain = not (self._answered or isinstance(self._stream, TLSStream))
                hint = " (a port for TLS does so: then the URL has to begin with https://)" if plain else ""
                raise self._lost(f"the server closed the connection without an answer{hint}") from None
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
            raise self._lost("the connection broke") from error
        except Silence:
            what = "no byte for" if self._answered else "no answer within"
            raise httpx.ReadTimeout(f"{what} {self.receive_s:g} s") from None
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

    def _failed(self, error: httpx.TransportError) -> httpx.TransportError:
        self._failure = error
        return error

    def _lost(self, why: str) -> httpx.ReadError:
        return httpx.ReadError(why) if self._answered else NoAnswer(why)
