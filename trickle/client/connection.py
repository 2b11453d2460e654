"""HTTP/1.1 connections whose two directions are independent of each other, and how they are kept.

Theory of operation
===================

*The problem.* httpx's own transport reads nothing before the request's body has ended, joins and splits the chunks of a
response, and drops its trailers. But a publisher that holds a POST open for minutes must learn of a 404, 409 or 503 at
once, a message is one chunk, and a trailer says that a segment is truncated (docs/reference/protocol.md, sections 3 and
4). A reader must be able to give up a wait and read on later.

*The idea.* Two halves share a socket, and neither waits for the other. :mod:`.grammar` knows what bytes mean; this
module moves them. :meth:`Connection.exchange` sends a request's head, has the body written beside its own wait for the
response, and returns the response's body.

- Request: a :class:`LiveBody` writes each chunk in the task that has the chunk, straight to the socket: no queue, no
  task switch. While the kernel takes everything, the request needs one task. Bytes for which the kernel has no room
  stay in ``_unsent``. Then, or when the body pauses, a second task starts (``_write_on``). It waits for room, then
  calls ``LiveBody.resume()``, and so on until the response is there. If it fails, it closes the connection, which wakes
  the wait for the response. A server that no longer reads (``_cut_short``) is no error: it may have sent its response
  before.
- Response: :class:`ResponseBody`. Bytes leave the state only when they are returned, so a cancelled read loses nothing.

A :class:`Pool` makes connections (:mod:`.connecting`) and keeps those that another request may follow on.

*Invariants.*

- The head leaves at once, before the body's first chunk exists (a preconnect).
- One chunk of a body is one HTTP chunk and one write to the socket; Nagle's algorithm is off.
- A response ends the request at once, also in the middle of its body.
- A GET whose response has neither a length nor chunks fails: its body would end with the connection, so that a part of
  a segment would look like the whole.
- Another request may follow (:meth:`Connection.start_next`) only if both halves are finished: the request is written,
  the response is read, and no byte is left in either direction. In any other state the connection is closed.

*Bounds.* A head has at most ``MAX_HEAD`` bytes, and interim responses are limited in number. Of the body, one read of
the socket is held, and up to ``MAX_CHUNK`` bytes of an incomplete chunk.
"""

from __future__ import annotations

import os
import ssl
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connecting import Origin, certificate_refusal, connect, reason, tls_context
from tricklecast.trickle.client.faults import InvalidAnswer, NoAnswer
from tricklecast.trickle.client.grammar import (
    MAX_CHUNK,
    BodyDecoder,
    Fields,
    InvalidBody,
    InvalidHead,
    ResponseHead,
    parse_response,
)
from tricklecast.trickle.client.sockets import Silence, SocketStream
from tricklecast.trickle.client.tasks import BackgroundTask

MAX_INTERIM: Final = 100
"""Interim responses that may come at once, and one more for each second since the request. A server that sends more
keeps its client busy without an answer. (Servers that report progress send one every few seconds.)"""

SMALL: Final = 4096
"""A chunk of up to this many bytes is sent as one piece. The client does not ask the system how much of a body of this
size is still on its way: a network that needs ``read_s`` for it is as good as down."""

MAX_CHUNKS: Final = 256
"""After this many chunks in a row without a pause, a read lets other tasks run."""

KEEPALIVE_S: Final = 30.0
"""An idle connection is reused for this long: less than the server's 75 s and the usual 60 s of load balancers."""

MAX_IDLE: Final = 4
"""Idle connections per origin: a client needs one for its segment, two for preconnects, and one for a question."""

READ_ERRORS: Final = (
    *(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError),
    *(ssl.SSLError, Silence),
)
"""The errors that reading a stream raises; :meth:`Connection.fault` tells their meaning."""


_PLAIN_HINT: Final = " (a port for TLS does so: then the URL has to begin with https://)"
_TLS_HINT: Final = " (one that wants a client certificate may do so: --cert and --key)"
"""The likely mistake if a server that has never answered closes the connection in silence."""


class BodyWriter(Protocol):
    """A :class:`LiveBody` writes its chunks to this, which is a :class:`Connection`. No method waits."""

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        """Send one chunk.

        Args:
            chunk: at least one byte.
            last: the body ends with this chunk. Its end leaves in the same packet if possible.

        Returns:
            Whether the kernel has taken all of it. If not, the body must write nothing until its ``resume()`` is
            called.
        """

    def end(self) -> bool:
        """Send the body's end, unless a last chunk has sent it. Returns the same as :meth:`write`."""

    def pause(self) -> None:
        """Let other tasks run first: :meth:`LiveBody.resume` is called afterwards."""


class LiveBody:
    """A request's body that writes itself.

    Iterating over it gives its chunks to a foreign transport, which reads bodies.
    """

    @abstractmethod
    def start(self, writer: BodyWriter) -> None:
        """The request's head has left: write the chunks that are there. Any task may use the writer until
        :meth:`detach`.

        It is called a second time, with another connection behind the writer, if the first connection turned out to be
        dead before a chunk was written.
        """

    @abstractmethod
    def resume(self) -> None:
        """The kernel has taken the last chunk: write the next ones."""

    @abstractmethod
    def detach(self) -> None:
        """The response has come, or the connection broke: use the writer no more."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The chunks, from the first one."""
        raise NotImplementedError("this body cannot be read")


@dataclass(slots=True)
class RawRequest:
    """A request, ready to be sent.

    Attributes:
        origin: the server.
        head: request line and headers, as bytes.
        body: ``None`` if there is no body, or it is empty.
        body_bytes: the body's length; ``None`` if it is sent in chunks.
        connect_s: how long making a connection may take, in seconds.
        write_s: how long the server may read nothing of the body, in seconds.
        read_s: how long the response may take once the body has ended and the server has received it, and each pause of
            the response's body, in seconds. It never limits the time for which a request's body stays open.
    """

    origin: Origin
    head: bytes
    body: LiveBody | None = None
    body_bytes: int | None = 0
    connect_s: float | None = None
    write_s: float | None = None
    read_s: float | None = None


class RequestTimeouts(NamedTuple):
    """Timeouts of one request, in seconds; ``None``: for ever. httpx accepts this tuple for its ``Timeout``."""

    connect: float | None = None
    read: float | None = None
    write: float | None = None
    pool: float | None = None

    @classmethod
    def each(cls, seconds: float) -> RequestTimeouts:
        """The same time for each of connecting, reading and writing."""
        return cls(seconds, seconds, seconds)


NO_TIMEOUTS: Final = RequestTimeouts()


class Connection:
    """A byte stream and the HTTP/1.1 state of both directions.

    Args:
        origin: the server that the stream leads to.
        stream: carries the bytes: ``tcp`` itself, or TLS above it.
        tcp: the socket.
        answering: servers that have answered before, over this connection or another one.
        release: takes the connection back after an exchange, or closes it.

    Attributes:
        tcp: the socket.
        reused: the connection has carried an exchange before this one.
        body_begun: a chunk of the request's body was written: the request must not be sent once more.
    """

    def __init__(
        self,
        origin: Origin,
        stream: ByteStream,
        tcp: SocketStream,
        answering: Container[Origin] = (),
        release: Callable[[Connection], None] | None = None,
    ) -> None:
        self.origin = origin
        self.release = release or Connection.close
        self._answering = answering
        self.reused = False
        self.stream = stream
        self.tcp = tcp
        # The request.
        self._unsent: bytes | memoryview = b""  # written by the caller, not yet taken by the kernel
        self._flushing = False  # flush() is sending; stays true if it was cancelled, as bytes are lost then
        self._cut_short = False  # the server no longer reads: a part of the request was thrown away
        self._method = b""  # the head's first four bytes
        self._body_left: int | None = 0  # bytes of the body still to be written; None: it is sent in chunks
        self._request_over = False  # the end of the body has been written: read_s counts from now on
        self.body_begun = False
        self._write_s: float | None = None  # of the present request, as the next one
        self._read_s: float | None = None
        self._live: LiveBody | None = None  # the body, while it may be written
        self._second: BackgroundTask | None = None  # of the present request, once the body has paused
        self._pause_event: anyio.Event | None = None  # the second task waits for a pause; None: not yet
        self._written = 0  # bytes of the body
        self._unacknowledged = 0  # bytes on their way to the server when the present wait for the response began
        self._due_at: float | None = None  # the response's head has to be here by then; None: no matter when
        self._asked_at = 0.0  # when the request began
        # The response.
        self._answered = False  # its first byte has come
        self._head_bytes: bytes | bytearray = b""  # the beginning of a head whose end has not come
        self._searched = 0  # number of these bytes that were searched for the end
        self._interims = 0  # interim responses to this request
        self._head: ResponseHead | None = None
        self._body: BodyDecoder | None = None
        # Between two exchanges.
        self._expires_at = 0.0  # the connection may be reused until then

    @property
    def unacknowledged(self) -> int:
        """Bytes written that the server has not received yet."""
        return self.tcp.unacknowledged

    def is_usable(self) -> bool:
        """Whether this idle connection may carry another request."""
        return monotonic() < self._expires_at and self.tcp.is_silent()

    def start_next(self) -> bool:
        """Prepare for another request; ``False`` if the last exchange does not allow one: close the connection then."""
        head, body = self._head, self._body
        over = head is not None and head.keeps_alive and body is not None and body.over and not body.data
        if not (over and self._request_over) or self._unsent or self._flushing or self._cut_short:
            return False
        self._head = self._body = None
        self.reused, self._answered, self._request_over = True, False, False
        self._expires_at = monotonic() + KEEPALIVE_S
        return True

    def close(self) -> None:
        """Close the connection at once. A task that waits for it gets an error."""
        self.tcp.close()

    async def exchange(self, request: RawRequest) -> ResponseBody:
        """Send a request and wait for the final response's head. By then its body is over, or is written no more.

        Raises:
            NoAnswer: the connection ended before a response began.
            faults.ReadError: the connection ended within the head.
            faults.ReadTimeout: no response came in time.
            faults.WriteTimeout: the server has stopped reading, and did not respond.
            InvalidAnswer: the response is not HTTP, or a GET's body has no visible end.
            faults.CertificateRefused: the server wants another certificate of this client.
            Exception: the request's own body raised it.
        """
        body = self._live = request.body
        self._write_s, self._read_s = request.write_s, request.read_s
        self.tcp.receive_s = None if body is not None else self._read_s
        has_left = self.write_head(request.head, request.body_bytes)
        if body is None and not self._request_over:
            has_left = self.end()  # an empty body
        if not has_left:
            await self.flush(self._write_s)
        if body is None:  # the common GET: one wait, with a deadline for all of it
            self._due_at = None if self._read_s is None else monotonic() + self._read_s
            response = await self.answer()
        else:
            try:
                body.start(self)
                response = await self.answer()
            except faults.TransportError:
                if self._second is not None:
                    await self._second.stop()
                    self._second.check()  # it has closed the connection
                raise
            finally:
                self._live = None
                body.detach()
                if self._second is not None:
                    await self._second.stop()
        self.tcp.receive_s = self._read_s
        return response

    async def _write_on(self, body: LiveBody) -> None:
        """The second task: whenever the body has paused, wait for room, then let it go on."""
        try:
            while await self.flush(self._write_s):
                await anyio.lowlevel.checkpoint()
                self._pause_event = anyio.Event()
                body.resume()
                await self._pause_event.wait()
        except Exception:
            self.close()
            raise

    def _limit_wait(self) -> None:
        """Set the deadline of the wait for the response, once the body is over."""
        if self._request_over and self._live is not None and self._read_s is not None:
            self._unacknowledged = 0 if self._written <= SMALL else self.unacknowledged
            self._due_at = monotonic() + self._read_s
            self.tcp.limit_wait(self._read_s)  # of the present wait, too

    # The request. Each write goes as far as the kernel has room, without waiting and without copying a body's bytes. It
    # returns whether the kernel has taken everything.

    def write_head(self, head: bytes, body_bytes: int | None) -> bool:
        """Begin a request.

        Args:
            head: request line and headers.
            body_bytes: the body's length in bytes; ``None`` if the body is sent in chunks.
        """
        self._method = head[:4]
        self._interims, self._asked_at = 0, monotonic()
        self._body_left, self._written = body_bytes, 0
        self._request_over = body_bytes == 0
        self.body_begun, self._second, self._pause_event, self._due_at = False, None, None, None
        return self._write([head])

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        """See :class:`BodyWriter`. A body with a length is written without chunks.

        Raises:
            faults.LocalProtocolError: the body does not have the announced length; nothing was written.
        """
        size = len(chunk)
        self._written += size
        if self._body_left is None and size <= SMALL:  # to copy it costs less than to name three parts
            parts = [b"%x\r\n%b\r\n0\r\n\r\n" % (size, chunk) if last else b"%x\r\n%b\r\n" % (size, chunk)]
        elif self._body_left is None:
            parts = [b"%x\r\n" % size, chunk, b"\r\n0\r\n\r\n" if last else b"\r\n"]
        else:
            left = self._body_left - size
            if left < 0 or (last and left):
                raise faults.LocalProtocolError("the body does not have the length that its head announces")
            self._body_left = left
            parts = [chunk]
        self.body_begun = True
        has_left = self._write(parts)
        if last:
            self._request_over = True
            self._limit_wait()
        if not has_left:
            self.pause()
        return has_left

    def end(self) -> bool:
        """See :class:`BodyWriter`.

        Raises:
            faults.LocalProtocolError: the body is shorter than announced.
        """
        if self._body_left:
            raise faults.LocalProtocolError("the body does not have the length that its head announces")
        is_written = self._request_over or self._body_left == 0
        self._request_over = True
        self._limit_wait()
        has_left = self._write([] if is_written else [b"0\r\n\r\n"])
        if not has_left:
            self.pause()
        return has_left

    def pause(self) -> None:
        """See :class:`BodyWriter`."""
        if self._pause_event is not None:
            self._pause_event.set()
        elif (body := self._live) is not None:
            self._second = BackgroundTask(lambda: self._write_on(body))

    def _write(self, parts: list[bytes]) -> bool:
        tcp = self.tcp
        if self._unsent or self._flushing or self.stream is not tcp:
            self._unsent = b"".join([self._unsent, *parts])
        elif parts:
            rest = tcp.send_now(parts)
            if not (rest or tcp.peer_stopped_reading):
                return True
            self._unsent = rest
        self._cut_short |= tcp.peer_stopped_reading
        return not (self._unsent or self._flushing or self._cut_short)

    async def flush(self, write_s: float | None) -> bool:
        """Wait until the kernel has taken everything; ``False`` if the server no longer reads.

        After a cancelled flush the connection can carry no further request.

        Raises:
            faults.WriteTimeout: the server has received nothing for ``write_s`` seconds.
        """
        self.tcp.stall_s = write_s
        while self._unsent:
            unsent, self._unsent = self._unsent, b""
            self._flushing = True
            try:
                await self.stream.send(unsent)  # type: ignore[arg-type]  # a memoryview will do
            except TimeoutError as error:
                raise faults.WriteTimeout(f"the server has read nothing for {write_s:g} s") from error
            self._flushing = False
        self._cut_short |= self.tcp.peer_stopped_reading
        return not self._cut_short

    # The response.

    async def answer(self) -> ResponseBody:
        """Wait for the final response's head; interim responses are skipped.

        Raises:
            NoAnswer: the connection ended before a response began.
            faults.ReadError: the connection ended within the head.
            faults.ReadTimeout: the head did not come in time.
            InvalidAnswer: the server's bytes are not HTTP, it sent too many interim responses, or the body of a GET has
                no visible end.
        """
        while True:
            try:
                found = parse_response(self._head_bytes, self._searched) if self._head_bytes else None
            except InvalidHead as error:
                raise InvalidAnswer(str(error)) from error
            if found is None:
                self._searched = len(self._head_bytes)
                if self._due_at is not None:
                    self.tcp.receive_s = max(0.0, self._due_at - monotonic())
                try:
                    data = await self.stream.receive()
                except READ_ERRORS as error:
                    if isinstance(error, Silence) and self._is_sending():
                        continue
                    raise self.fault(error) from error
                self._answered = True
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
                if self._method == b"GET " and head.status_code == 200 and not head.chunked and head.length is None:
                    raise InvalidAnswer("the answer has neither a length nor chunks: a cut would look like its end")
                self._head = head
                self._body = BodyDecoder(head, bytes(self._head_bytes), is_empty=self._method == b"HEAD")
                self._head_bytes = b""
                return ResponseBody(self, head, self._body)
            self._interims += 1
            if self._interims > MAX_INTERIM + monotonic() - self._asked_at:
                raise InvalidAnswer(f"{self._interims} interim answers ({head.status_code}) and no final one")

    def _is_sending(self) -> bool:
        """Whether the server still acknowledges bytes of a body that has ended: then it gets another ``read_s``."""
        if self._live is None or not 0 < self.unacknowledged < self._unacknowledged:
            return False
        self._limit_wait()
        return True

    def fault(self, error: Exception) -> faults.TransportError:
        """The fault of the response that one of :data:`READ_ERRORS` means."""
        if isinstance(error, Silence):
            return faults.ReadTimeout(
                f"no answer within {self._read_s:g} s"
                if self._body is None
                else f"no byte for {self.tcp.receive_s:g} s"
            )
        if refusal := certificate_refusal(error):
            return faults.CertificateRefused(refusal)
        if not isinstance(error, anyio.EndOfStream):
            why = "the connection broke"
        elif self._body is not None:
            why = "the connection was closed in the middle of an answer"
        else:
            known = self._answered or self.origin in self._answering
            hint = "" if known else (_PLAIN_HINT if self.stream is self.tcp else _TLS_HINT)
            why = f"the server closed the connection without an answer{hint}"
        return faults.ReadError(why) if self._answered else NoAnswer(why)


class ResponseBody:
    """The body of a response. At its end, or when it is closed, it gives its connection back.

    Args:
        connection: carries the body; ``None``: there is nothing to read.
        head: the response's head.
        decoder: takes the bytes apart.

    Attributes:
        head: the response's head.
        keeps_cancelled: a cancelled read loses nothing; the next read goes on.
        on_trailers: called with the trailers at the body's end.
    """

    keeps_cancelled: Final = True

    def __init__(self, connection: Connection | None, head: ResponseHead, decoder: BodyDecoder) -> None:
        self.head = head
        self.on_trailers: Callable[[Fields], None] | None = None
        self._connection = connection  # None once it was given back
        self._decoder = decoder
        self._failure: faults.TransportError | None = None  # each later read raises it again
        self._chunks = 0  # chunks since the last pause

    def limit_silence(self, read_s: float | None) -> None:
        """Make reads, also a present one, raise ``ReadTimeout`` when no byte comes for ``read_s`` seconds; ``None``:
        never.
        """
        if self._connection is not None:
            self._connection.tcp.limit_wait(read_s)

    def trailer(self, name: str) -> str | None:
        """Return the value of a trailer; ``None`` if the server sent no such trailer, or its end has not come."""
        if self._decoder.trailers:
            lower = name.lower().encode()
            for key, value in self._decoder.trailers:
                if key == lower:
                    return value.decode("utf-8", "replace")
        return None

    async def receive_chunk(self) -> bytes:
        """Return the next chunk of the body as the server sent it; ``b""`` at the end, or once closed.

        A chunk of more than :data:`MAX_CHUNK` bytes is returned in pieces. If a chunk was cut, this call returns the
        bytes that came, and the next call raises the error. A cancelled call loses nothing: the next one goes on.

        Raises:
            faults.ReadError: the connection ended before the body did, or another task closed it.
            faults.ReadTimeout: the body was silent for too long. The next call goes on.
            InvalidAnswer: the server's bytes are not HTTP.
        """
        connection, decoder = self._connection, self._decoder
        if connection is None:
            return b""
        if self._failure is not None:
            raise self._failure
        chunk = None
        try:
            if decoder.data:
                self._chunks += 1
                if self._chunks >= MAX_CHUNKS:
                    self._chunks = 0
                    await anyio.lowlevel.checkpoint()
                chunk = decoder.next_chunk()
            while chunk is None and not decoder.over:
                chunk = decoder.next_chunk(await connection.stream.receive())
                self._chunks = 0
        except InvalidBody as error:
            raise self._failed(InvalidAnswer(str(error))) from error
        except READ_ERRORS as error:
            if isinstance(error, anyio.EndOfStream) and decoder.end():
                return self._end()
            if not isinstance(error, Silence) and (partial := decoder.take_partial()):
                return partial
            raise connection.fault(error) from error
        return chunk or self._end()

    async def receive(self) -> bytes:
        """Do the same as :meth:`receive_chunk`, but join chunks that came together, up to about :data:`MAX_CHUNK`."""
        first = await self.receive_chunk()
        if not first or len(first) >= MAX_CHUNK or not self._decoder.data:
            return first
        parts, size = [first], len(first)
        while self._decoder.data and size < MAX_CHUNK and len(parts) < MAX_CHUNKS:
            try:
                chunk = self._decoder.next_chunk()
            except InvalidBody as error:
                self._failed(InvalidAnswer(str(error)))
                break  # the next call raises it
            if chunk is None:
                break
            parts.append(chunk)
            size += len(chunk)
        self._chunks += len(parts)
        return b"".join(parts)

    def _failed(self, error: faults.TransportError) -> faults.TransportError:
        self._failure = error
        return error

    def _end(self) -> bytes:
        if self.on_trailers is not None:
            self.on_trailers(self._decoder.trailers)
        self.close()
        return b""

    def close(self) -> None:
        """Give the connection back. A task that waits for the body gets ``ReadError``. May be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(connection)

    async def aclose(self) -> None:
        """Do the same as :meth:`close`."""
        self.close()


_NOTHING: Final = ResponseHead(b"1.1", 200, b"", [], False, 0, True)

NO_BODY: Final = ResponseBody(None, _NOTHING, BodyDecoder(_NOTHING))
"""The body of a response that has none."""


class Pool:
    """Sends requests in full-duplex HTTP/1.1, and keeps connections for the next ones.

    Args:
        verify: ``True`` for the certificates that ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` name, else certifi's; ``False``
            for none; or an ``SSLContext``.
    """

    def __init__(self, verify: ssl.SSLContext | bool = True) -> None:
        self._verify = verify  # replaced by an SSLContext at the first https request
        self._idle: dict[Origin, list[Connection]] = {}  # the newest connection is last, and is used first
        self._answering: set[Origin] = set()  # servers that have answered

    async def send(self, request: RawRequest) -> ResponseBody:
        """Send the request and wait for the final response's head: :meth:`Connection.exchange`.

        If an idle connection turns out to be dead, the request is sent once more, on a new one.

        Raises:
            ConnectError: no connection could be made (``ConnectTimeout``: not in time).
            TransportError: see :meth:`Connection.exchange`.
        """
        connection = self._reusable(request.origin) or await self._connected(request)
        try:
            try:
                response = await connection.exchange(request)
            except NoAnswer:
                # A GET may wait long for its response: if its connection ends, a server is lost.
                if request.head.startswith(b"GET ") or not connection.reused or connection.body_begun:
                    raise
                connection.close()
                connection = await self._connected(request)
                response = await connection.exchange(request)
        except BaseException:
            connection.close()  # no other request can follow on it
            raise
        self._answering.add(request.origin)
        return response

    def _reusable(self, origin: Origin) -> Connection | None:
        """An idle connection that is still usable, if there is one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    async def _connected(self, request: RawRequest) -> Connection:
        """A new connection."""
        origin = request.origin
        try:
            with anyio.fail_after(request.connect_s):
                stream, tcp = await connect(origin, await self._context() if origin[0] == "https" else None)
        except TimeoutError as error:
            raise faults.ConnectTimeout(f"{origin[1]} did not answer in time") from error
        except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise faults.ConnectError("the connection was closed during the TLS handshake") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
            if why := certificate_refusal(error):
                raise faults.CertificateRefused(why) from error
            raise faults.ConnectError(reason(error)) from error
        return Connection(origin, stream, tcp, self._answering, self.release)

    def release(self, connection: Connection) -> None:
        """Take a connection back after an exchange: keep it if another request may follow, else close it."""
        idle = self._idle.setdefault(connection.origin, [])
        if len(idle) >= MAX_IDLE or not connection.start_next():
            connection.close()
        else:
            idle.append(connection)

    async def aclose(self) -> None:
        """Close the idle connections; each one in use is closed with its response."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    async def _context(self) -> ssl.SSLContext:
        if not isinstance(self._verify, ssl.SSLContext):
            files = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if self._verify else None
            # In a thread: reading certificates takes tens of milliseconds.
            self._verify = await anyio.to_thread.run_sync(tls_context, files)
        return self._verify
