"""One HTTP/1.1 connection whose two directions are independent of each other.

Theory of operation
===================

*The problem.* A publisher holds a POST open for minutes, and the server may refuse it at any moment. A reader needs
the chunks that the server sent, and must be able to give up a wait and read on later.

*The idea.* Two halves share a socket, and neither waits for the other. ``heads`` and ``decoder`` know the grammar; this
module moves bytes.

- Request: ``write_head``, then ``write_body`` and ``end_body``. They write as far as the kernel has room and never
  wait; bytes for which there is no room stay in ``_unsent`` until :meth:`Connection.flush`. A server that no longer
  reads (``_cut_short``) is no error: it may have sent its response before.
- Response: :meth:`Connection.answer` for the head, then :meth:`Connection.receive_chunk` or
  :meth:`Connection.receive`. Bytes leave the state only when they are returned, so a cancelled call loses nothing.

*The invariant.* Another request may follow (:meth:`Connection.start_next`) only if both halves are finished: the
request is written, the response is read, and no byte is left in either direction. In any other state the connection is
closed.

*Bounds.* A head has at most ``MAX_HEAD`` bytes, and interim responses are limited in number. Of the body, one read of
the socket is held, and up to ``MAX_CHUNK`` bytes of an incomplete chunk.
"""

from __future__ import annotations

import ssl
from collections.abc import Container
from time import monotonic
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from tricklecast.trickle.client import faults
from tricklecast.trickle.client.decoder import MAX_CHUNK, BodyDecoder, InvalidBody
from tricklecast.trickle.client.faults import InvalidAnswer, NoAnswer
from tricklecast.trickle.client.heads import InvalidHead, ResponseHead, parse_response
from tricklecast.trickle.client.sockets import Silence, SocketStream

MAX_INTERIM: Final = 100
"""Interim responses that may come at once, and one more for each second since the request. A server that sends more
keeps its client busy without an answer. (Servers that report progress send one every few seconds.)"""

MAX_CHUNKS: Final = 256
"""After this many chunks in a row without a pause, a read lets other tasks run."""

Origin = tuple[str, str, int]
"""Scheme, host, port."""


class Connection:
    """A byte stream and the HTTP/1.1 state of both directions.

    Args:
        origin: the server that the stream leads to.
        stream: carries the bytes: ``tcp`` itself, or TLS above it.
        tcp: the socket.
        answering: servers that have answered before, over this connection or another one.

    Attributes:
        reused: the connection has carried an exchange before this one.
    """

    def __init__(
        self, origin: Origin, stream: ByteStream, tcp: SocketStream, answering: Container[Origin] = ()
    ) -> None:
        self.origin = origin
        self._answering = answering
        self.reused = False
        self._stream = stream
        self._tcp = tcp
        # The request.
        self._unsent: bytes | memoryview = b""  # written by the caller, not yet taken by the kernel
        self._flushing = False  # flush() is sending; stays true if it was cancelled, as bytes are lost then
        self._cut_short = False  # the server no longer reads: a part of the request was thrown away
        self._is_head_request = False  # it is a HEAD, whose response has no body
        self._body_left: int | None = 0  # bytes of the body still to be written; None: it is sent in chunks
        self._request_over = False  # the end of the body has been written
        self._asked_at = 0.0  # when the request began
        # The response.
        self._answered = False  # its first byte has come
        self._head_bytes: bytes | bytearray = b""  # the beginning of a head whose end has not come
        self._searched = 0  # number of these bytes that were searched for the end
        self._interims = 0  # interim responses to this request
        self._head: ResponseHead | None = None
        self._body: BodyDecoder | None = None
        self._failure: faults.TransportError | None = None  # each later read raises it again
        self._chunks = 0  # chunks since the last pause
        # Between two exchanges.
        self._expires_at = 0.0  # the connection may be reused until then

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """The trailers of the response; empty before its end."""
        return self._body.trailers if self._body is not None else []

    @property
    def unacknowledged(self) -> int:
        """Bytes written that the server has not received yet."""
        return self._tcp.unacknowledged

    @property
    def receive_s(self) -> float | None:
        """How long a read waits for bytes of the response, in seconds; ``None``: for ever."""
        return self._tcp.receive_s

    @receive_s.setter
    def receive_s(self, seconds: float | None) -> None:
        self._tcp.receive_s = seconds

    def is_usable(self) -> bool:
        """Whether this idle connection may carry another request."""
        return monotonic() < self._expires_at and self._tcp.is_silent()

    def start_next(self, keepalive_s: float) -> bool:
        """Prepare for another request; ``False`` if the last exchange does not allow one: close the connection then."""
        head, body = self._head, self._body
        over = head is not None and head.keeps_alive and body is not None and body.over and not body.has_rest
        if not (over and self._request_over) or self._unsent or self._flushing or self._cut_short:
            return False
        self._head = self._body = None
        self.reused, self._answered, self._request_over = True, False, False
        self._expires_at = monotonic() + keepalive_s
        return True

    def close(self) -> None:
        """Close the connection at once. A task that waits for it gets an error."""
        self._tcp.close()

    # The request.

    # Each of the following three writes as far as the kernel has room, without waiting and without copying a body's
    # bytes. It returns whether the kernel has taken everything; if not, the caller must await flush().

    def write_head(self, head: bytes, body_bytes: int | None) -> bool:
        """Begin a request.

        Args:
            head: request line and headers.
            body_bytes: the body's length in bytes; ``None`` if the body is sent in chunks.
        """
        self._is_head_request = head.startswith(b"HEAD ")
        self._interims, self._asked_at = 0, monotonic()
        self._body_left = body_bytes
        self._request_over = body_bytes == 0
        return self._write([head])

    def write_body(self, data: bytes, *, last: bool = False) -> bool:
        """Write a part of the request's body: as one HTTP chunk, if the body is sent in chunks.

        Args:
            data: at least one byte.
            last: the body ends with these bytes.

        Raises:
            faults.LocalProtocolError: the body does not have the announced length; nothing was written.
        """
        if self._body_left is None:
            self._request_over = last
            return self._write([b"%x\r\n" % len(data), data, b"\r\n0\r\n\r\n" if last else b"\r\n"])
        left = self._body_left - len(data)
        if left < 0 or (last and left):
            raise faults.LocalProtocolError("the body does not have the length that its head announces")
        self._body_left = left
        self._request_over |= last
        return self._write([data])

    def end_body(self) -> bool:
        """End the request's body, unless a last chunk has done so.

        Raises:
            faults.LocalProtocolError: the body is shorter than announced.
        """
        if self._body_left:
            raise faults.LocalProtocolError("the body does not have the length that its head announces")
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
        """Wait until the kernel has taken everything; ``False`` if the server no longer reads.

        After a cancelled flush the connection can carry no further request.

        Raises:
            TimeoutError: the server has received nothing for ``stall_s`` seconds.
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
        """Wait for the final response's head; interim responses are skipped.

        Args:
            within_s: the longest wait for the whole head, in seconds; ``None``: for ever.

        Raises:
            NoAnswer: the connection ended before a response began.
            faults.ReadError: the connection ended within the head.
            faults.ReadTimeout: the head did not come in time.
            InvalidAnswer: the server's bytes are not HTTP, or it sent too many interim responses.
        """
        due_at = None if within_s is None else monotonic() + within_s
        while True:
            try:
                found = parse_response(self._head_bytes, self._searched) if self._head_bytes else None
            except InvalidHead as error:
                raise InvalidAnswer(str(error)) from error
            if found is None:
                self._searched = len(self._head_bytes)
                if due_at is not None:
                    self.receive_s = max(0.0, due_at - monotonic())
                try:
                    data = await self._receive_some()
                except faults.ReadTimeout:
                    raise faults.ReadTimeout(f"no answer within {within_s:g} s") from None
                if isinstance(self._head_bytes, bytearray):
                    self._head_bytes += data
                else:  # most heads come in one piece, which is not copied
                    self._head_bytes = bytearray(self._head_bytes + data) if self._head_bytes else data
                continue
            head, size = found
            self._head_bytes = self._head_bytes[size:]
            self._searched = 0
            if head.status_code == 101:
                raise InvalidAnswer("the server wants to talk another protocol")
            if head.status_code >= 200:
                self._head = head
                self._body = BodyDecoder(head, bytes(self._head_bytes), is_empty=self._is_head_request)
                self._head_bytes = b""
                return head
            self._interims += 1
            if self._interims > MAX_INTERIM + monotonic() - self._asked_at:
                raise InvalidAnswer(f"{self._interims} interim answers ({head.status_code}) and no final one")

    async def receive_chunk(self) -> bytes:
        """Return the next chunk of the body as the server sent it; ``b""`` at the end.

        A chunk of more than :data:`MAX_CHUNK` bytes is returned in pieces. If a chunk was cut, this call returns the
        bytes that came, and the next call raises the error. A cancelled call loses nothing: the next one goes on.

        Raises:
            faults.ReadError: the connection ended before the body did, or was closed here.
            faults.ReadTimeout: no byte came for ``receive_s`` seconds. The next call goes on.
            InvalidAnswer: the server's bytes are not HTTP.
        """
        body = self._body
        assert body is not None, "the head was read"
        self._chunks += 1
        if self._chunks >= MAX_CHUNKS:
            self._chunks = 0
            await anyio.lowlevel.checkpoint()
        try:
            while (chunk := self._next_chunk(body)) is None and not body.over:
                if data := await self._receive_some():
                    body.feed(data)
                elif not body.end():
                    raise self._failed(faults.ReadError("the connection was closed in the middle of an answer"))
        except faults.ReadTimeout:
            raise
        except faults.TransportError:
            if partial := body.take_partial():
                return partial
            raise
        return chunk or b""

    async def receive(self) -> bytes:
        """Do the same as :meth:`receive_chunk`, but join chunks that came together, up to about :data:`MAX_CHUNK`."""
        first = await self.receive_chunk()
        if not first or len(first) >= MAX_CHUNK or self._body is None or not self._body.has_rest:
            return first
        parts, size = [first], len(first)
        while size < MAX_CHUNK and len(parts) < MAX_CHUNKS:
            try:
                chunk = self._next_chunk(self._body)
            except faults.TransportError:
                break  # the next call raises it
            if chunk is None:
                break
            parts.append(chunk)
            size += len(chunk)
        self._chunks += len(parts)
        return b"".join(parts)

    async def _receive_some(self) -> bytes:
        """Wait for bytes of the server; ``b""`` once it has closed its side."""
        try:
            data = await self._stream.receive()
        except anyio.EndOfStream:
            if self._body is None:  # before an answer, or in the middle of its head
                known = self._answered or self.origin in self._answering
                plain = self._stream is self._tcp and not known
                hint = " (a port for TLS does so: then the URL has to begin with https://)" if plain else ""
                raise self._lost(f"the server closed the connection without an answer{hint}") from None
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
            raise self._lost("the connection broke") from error
        except Silence:
            words = "no byte for" if self._answered else "no answer within"
            raise faults.ReadTimeout(f"{words} {self.receive_s:g} s") from None
        self._chunks = 0
        self._answered = True
        return data

    def _next_chunk(self, body: BodyDecoder) -> bytes | None:
        """Return a chunk that has come already; ``None`` if there is none."""
        if self._failure is not None:
            raise self._failure
        try:
            return body.next_chunk()
        except InvalidBody as error:
            raise self._failed(InvalidAnswer(str(error))) from error

    def _failed(self, error: faults.TransportError) -> faults.TransportError:
        self._failure = error
        return error

    def _lost(self, why: str) -> faults.ReadError:
        return faults.ReadError(why) if self._answered else NoAnswer(why)
