"""The transport of both clients: HTTP/1.1, full duplex, with chunks and trailers as the server sent them.

Theory of operation
===================

*The problem.* httpx's own transport reads nothing before the request's body has ended, joins and splits the chunks of a
response, and drops its trailers. But a publisher that holds a POST open must learn of a 404, 409 or 503 at once, a
message is one chunk, and a trailer says that a segment is truncated (docs/reference/protocol.md, sections 3 and 4).

*The idea.* The task that makes the request waits for the response, from the moment the request's head has left. The
body is written beside it. There are two kinds of bodies:

- A :class:`LiveBody` (the publisher's) writes each chunk in the task that has the chunk, straight to the socket: no
  queue, no task switch. While the kernel takes everything, the request needs one task. The first time that the kernel
  is full, or that the body pauses, a second task starts (``_Exchange._write_on``). It waits for room, then calls
  ``LiveBody.resume()``, and so on until the response is there.
- Any other body is an iterator, which a second task reads and writes from the start.

*Invariants.*

- The head leaves as soon as there is a connection, before the body's first chunk exists (a preconnect).
- One chunk of a body is one HTTP chunk and one write to the socket; Nagle's algorithm is off.
- A response ends the request at once, also in the middle of its body.
- A read of a :class:`ResponseBody` can be cancelled without loss.
- ``timeout.read`` limits the wait for the response once the body has ended and the server has received it, and each
  pause of the response's body. It never limits the time for which a request's body stays open. ``timeout.write`` limits
  the time in which the server reads nothing of the body.
- A GET whose response has neither a length nor chunks fails: its body would end with the connection, so that a part of
  a segment would look like the whole.

*httpx* is not imported here: it takes longer to load than both clients, and a request with a token does not need it.
:mod:`.bridge` knows httpx. It is imported where a request needs httpx (:mod:`.sender` says which do).

*Ways to a server.* TCP; TLS; TLS through a proxy (:mod:`.proxies`); and the Unix socket of a URL
``http+unix://%2Frun%2Ftricklecast.sock/...``.

*Left out on purpose.* Cookies: a server could set any number of them, and each later request would carry them all.
Proxies for ``http://``: one that collects request bodies would hold a live segment back until its end.
"""

from __future__ import annotations

import os
import ssl
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connection import Connection, Origin
from tricklecast.trickle.client.faults import InvalidAnswer, NoAnswer
from tricklecast.trickle.client.heads import Fields, ResponseHead
from tricklecast.trickle.client.proxies import open_tunnel, proxy_for
from tricklecast.trickle.client.sockets import SocketStream, connect_tcp, connect_unix, reason
from tricklecast.trickle.client.tasks import Notifier
from tricklecast.trickle.paths import UNIX

KEEPALIVE_S: Final = 30.0
"""An idle connection is reused for this long: less than the server's 75 s and the usual 60 s of load balancers."""

MAX_IDLE: Final = 4
"""Idle connections per origin: a client needs one for its segment, two for preconnects, and one for a question."""

PORTS: Final = {"http": 80, "https": 443, UNIX: 0}

LOCAL_HOST: Final = (b"Host", b"localhost")
"""A Unix socket has no name that the server could know."""


class BodyWriter(Protocol):
    """A :class:`LiveBody` writes its chunks to this. No method waits."""

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        """Send one chunk.

        Args:
            chunk: at least one byte.
            last: the body ends with this chunk. Its end leaves in the same packet if possible.

        Returns:
            Whether the kernel has taken all of it. If not, the body must write nothing until its ``resume()`` is
            called.
        """

    def end(self) -> None:
        """Send the body's end. Do not call it after a last chunk, which has sent it."""

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


class RawRequest(NamedTuple):
    """A request, ready to be sent.

    Attributes:
        origin: the server.
        method: for example ``GET``.
        head: request line and headers, as bytes.
        body: ``None`` if there is no body, or it is empty.
        body_bytes: the body's length; ``None`` if it is sent in chunks.
        connect_s: how long making a connection may take, in seconds.
        write_s, read_s: the module's head explains both timeouts, in seconds.
    """

    origin: Origin
    method: str
    head: bytes
    body: LiveBody | AsyncIterable[bytes] | None = None
    body_bytes: int | None = 0
    connect_s: float | None = None
    write_s: float | None = None
    read_s: float | None = None


class Pool:
    """Sends requests in full-duplex HTTP/1.1, and keeps connections for the next ones.

    Args:
        verify: ``True`` for the certificates that ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` name, else certifi's; ``False``
            for none; or an ``SSLContext``.
        keepalive_s: how long an idle connection may be reused, in seconds.
    """

    def __init__(self, verify: ssl.SSLContext | bool = True, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._verify = verify  # replaced by an SSLContext at the first https request
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, list[Connection]] = {}  # the newest connection is last, and is used first
        self._answering: set[Origin] = set()  # servers that have answered

    async def send(self, request: RawRequest) -> ResponseBody:
        """Send the request and wait for the final response's head. By then the body is over, or is written no more.

        Raises:
            ConnectError: no connection could be made (``ConnectTimeout``: not in time).
            ReadError: the connection broke before the response (``ReadTimeout``: no response came in time).
            WriteTimeout: the server has stopped reading, and did not respond.
            InvalidAnswer: the response is not HTTP, or a GET's body has no visible end.
            Exception: the request's own body raised it.
        """
        exchange = _Exchange(self, request)
        try:
            head = await exchange.run()
            self._answering.add(request.origin)
            return ResponseBody(self, exchange.connection, head, request.read_s)
        except BaseException:
            exchange.abandon()
            raise

    async def acquire(self, origin: Origin, connect_s: float | None, *, fresh: bool) -> Connection:
        """Return a connection: an idle one that is still usable, or a new one.

        Args:
            origin: the server.
            connect_s: how long making a connection may take, in seconds.
            fresh: make a new one in any case.
        """
        idle = self._idle.get(origin, [])
        while idle and not fresh:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        try:
            with anyio.fail_after(connect_s):
                stream, tcp = await self._connect(*origin)
        except TimeoutError as error:
            raise faults.ConnectTimeout(f"{origin[1]} did not answer in time") from error
        except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise faults.ConnectError("the connection was closed during the TLS handshake") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
            raise faults.ConnectError(reason(error)) from error
        return Connection(origin, stream, tcp, self._answering)

    def release(self, connection: Connection) -> None:
        """Take a connection back after an exchange: keep it if another request may follow, else close it."""
        idle = self._idle.setdefault(connection.origin, [])
        if len(idle) >= MAX_IDLE or not connection.start_next(self._keepalive_s):
            connection.close()
        else:
            idle.append(connection)

    async def aclose(self) -> None:
        """Close the idle connections; each one in use is closed with its response."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    async def _connect(self, scheme: str, host: str, port: int) -> tuple[anyio.abc.ByteStream, SocketStream]:
        if scheme != "https":
            tcp = await (connect_unix(host) if scheme == UNIX else connect_tcp(host, port))
            return tcp, tcp
        context = await self._context()
        proxy = proxy_for(host)
        tcp = await (connect_tcp(host, port) if proxy is None else open_tunnel(proxy, host, port))
        try:
            from anyio.streams.tls import TLSStream  # with https alone

            # Not standard_compatible: HTTP has its own framing, and servers often leave TLS' closing handshake out.
            return await TLSStream.wrap(tcp, hostname=host, ssl_context=context, standard_compatible=False), tcp
        except BaseException:
            tcp.close()
            raise

    async def _context(self) -> ssl.SSLContext:
        if not isinstance(self._verify, ssl.SSLContext):
            files = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if self._verify else None
            # In a thread: reading certificates takes tens of milliseconds.
            self._verify = await anyio.to_thread.run_sync(_tls_context, files)
        return self._verify


@lru_cache(maxsize=4)  # a program with many clients reads the certificates once
def _tls_context(files: tuple[str | None, str | None] | None) -> ssl.SSLContext:
    """Return what a server's certificate is checked against.

    Args:
        files: a file and a folder of certificates, instead of certifi's, of which the first one that is named counts:
            as in httpx. ``None``: nothing is checked.
    """
    if files is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif any(files):
        file, folder = files
        context = ssl.create_default_context(cafile=file or None, capath=None if file else folder)
    else:
        import certifi  # with https alone

        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


class ResponseBody:
    """The body of a response. At its end, or when it is closed, it gives its connection back to the pool.

    Args:
        pool: takes the connection back.
        connection: carries the body.
        head: the response's head.
        read_s: the longest silence within the body, in seconds; ``None``: no limit.

    Attributes:
        head: the response's head.
        keeps_cancelled: a cancelled read loses nothing; the next read goes on.
        on_trailers: called with the trailers at the body's end.
    """

    keeps_cancelled: Final = True

    def __init__(self, pool: Pool, connection: Connection, head: ResponseHead, read_s: float | None) -> None:
        self.head = head
        self.on_trailers: Callable[[Fields], None] | None = None
        self._trailers: Fields = []  # filled at the body's end
        self._pool = pool
        self._connection: Connection | None = connection  # None once it was given back
        self.limit_silence(read_s)

    def limit_silence(self, read_s: float | None) -> None:
        """Make later reads raise ``ReadTimeout`` when no byte comes for ``read_s`` seconds."""
        if self._connection is not None:
            self._connection.receive_s = read_s

    def trailer(self, name: str) -> str | None:
        """Return the value of a trailer; ``None`` if the server sent no such trailer, or the body has not ended."""
        if self._trailers:
            lower = name.lower().encode()
            for key, value in self._trailers:
                if key == lower:
                    return value.decode("utf-8", "replace")
        return None

    async def receive_chunk(self) -> bytes:
        """Return the next chunk as the server sent it (a long one in pieces); ``b""`` at the end, or once closed.

        Raises:
            ReadError: the connection ended before the body did, or another task closed it.
            ReadTimeout: the body was silent for too long.
            InvalidAnswer: the server's bytes are not HTTP.
        """
        connection = self._connection
        if connection is None:
            return b""
        return await connection.receive_chunk() or self._end(connection)

    async def receive(self) -> bytes:
        """Do the same as :meth:`receive_chunk`, but join chunks that came together, up to about 64 KiB."""
        connection = self._connection
        if connection is None:
            return b""
        return await connection.receive() or self._end(connection)

    def _end(self, connection: Connection) -> bytes:
        self._trailers = connection.trailers
        if self.on_trailers is not None:
            self.on_trailers(self._trailers)
        self.close()
        return b""

    def close(self) -> None:
        """Give the connection back. A task that waits for the body gets ``ReadError``. May be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.receive_s = None
            self._pool.release(connection)

    async def aclose(self) -> None:
        """Do the same as :meth:`close`."""
        self.close()


class _Exchange:
    """One request, up to the head of its response. To a live body it is the :class:`BodyWriter`."""

    def __init__(self, pool: Pool, request: RawRequest) -> None:
        self._pool = pool
        self._request = request
        self._connection: Connection | None = None  # the one of the present attempt
        self._head_sent = False  # on the present connection
        self._head_changes = Notifier()  # wakes _wait_for_head()
        self._body_begun = False  # a chunk was written: the request must not be sent once more
        self._body_over = request.body is None  # read_s counts from now on
        self._is_paused = False  # the body must not write before the second task has called resume()
        self._pause_event: anyio.Event | None = None  # the second task waits for a pause; None: it has not started
        self._unacknowledged = 0  # bytes on their way to the server when the present wait for the response began
        self._waiting: anyio.CancelScope | None = None  # the first task's wait for the response

    @property
    def connection(self) -> Connection:
        """The connection of the present attempt."""
        assert self._connection is not None, "there is a response"
        return self._connection

    def abandon(self) -> None:
        """Close the connection: the exchange failed or was cancelled, so no other request can follow on it."""
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> ResponseHead:
        """Send the request and wait for the final response's head.

        If an idle connection turns out to be dead, the request is sent once more, on a new one. A GET is not: it may
        wait long for its response, so a connection that ends meanwhile means a lost server, which the client must know.
        """
        stream = self._request.body
        if stream is None or isinstance(stream, LiveBody):
            return await self._send()
        return await self._run_beside(lambda: self._write_stream(stream), self._send)

    async def _send(self) -> ResponseHead:
        try:
            return await self._attempt(fresh=False)
        except NoAnswer:
            if self._request.method == "GET" or not self.connection.reused or self._body_begun:
                raise
        self._head_sent, self._is_paused, self._pause_event = False, False, None
        self.connection.close()
        return await self._attempt(fresh=True)

    async def _attempt(self, *, fresh: bool) -> ResponseHead:
        request = self._request
        connection = self._connection = await self._pool.acquire(request.origin, request.connect_s, fresh=fresh)
        body = request.body
        has_left = connection.write_head(request.head, request.body_bytes)
        if self._body_over and not isinstance(body, LiveBody):
            has_left = connection.end_body()  # an empty body
        if not has_left:
            await self._flush()
        self._head_sent = True
        self._head_changes.notify()  # an iterated body may begin
        if body is None:  # the common GET: one wait, with a deadline for all of it
            return self._checked(await connection.answer(request.read_s))
        if not isinstance(body, LiveBody):  # _write_stream() writes it, in the second task
            return await self._answer()
        self._body_over = False
        try:
            body.start(self)
            return await self._answer()
        finally:
            body.detach()

    async def _answer(self) -> ResponseHead:
        """Wait for the response's head. Start the second task when the body needs room."""
        while True:
            if self._is_paused and self._pause_event is None:
                self._pause_event = anyio.Event()
                return await self._run_beside(self._write_on, self._answer)
            with anyio.CancelScope() as self._waiting:
                self._limit_wait()
                return self._checked(await self.connection.answer())
            # The wait was cancelled: by pause(), which needs the second task, or by its deadline.
            if self._is_paused and self._pause_event is None:
                continue
            # The server still acknowledges bytes of the body: wait for another read_s.
            if not 0 < self.connection.unacknowledged < self._unacknowledged:
                raise faults.ReadTimeout(f"no answer within {self._request.read_s:g} s")

    def _checked(self, head: ResponseHead) -> ResponseHead:
        if self._request.method == "GET" and head.status_code == 200 and not head.chunked and head.length is None:
            raise InvalidAnswer("the answer has neither a length nor chunks: a cut would look like its end")
        return head

    def _limit_wait(self) -> None:
        """Set the deadline of the wait for the response, once the body is over."""
        if self._body_over and self._waiting is not None and self._request.read_s is not None:
            self._unacknowledged = self.connection.unacknowledged
            self._waiting.deadline = anyio.current_time() + self._request.read_s

    async def _run_beside(
        self, write: Callable[[], Coroutine[Any, Any, None]], wait: Callable[[], Awaitable[ResponseHead]]
    ) -> ResponseHead:
        """Write the body in a second task until ``wait`` returns the response's head."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                head = await wait()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            cause = group.exceptions[0]
            raise cause from cause.__cause__
        return head

    # The writer of a live body.

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        """See :class:`BodyWriter`."""
        self._body_begun = True
        has_left = self.connection.write_body(chunk, last=last)
        if last:
            self._body_over = True
            self._limit_wait()
        if not has_left:
            self.pause()
        return has_left

    def end(self) -> None:
        """See :class:`BodyWriter`."""
        self._body_over = True
        self._limit_wait()
        if not self.connection.end_body():
            self.pause()

    def pause(self) -> None:
        """See :class:`BodyWriter`."""
        self._is_paused = True
        if self._pause_event is not None:
            self._pause_event.set()
        elif self._waiting is not None:
            self._waiting.cancel()  # begins the second task

    async def _write_on(self) -> None:
        """The second task: whenever the body has paused, wait for room, then let it go on."""
        body = self._request.body
        assert isinstance(body, LiveBody)
        while await self._flush():
            await anyio.lowlevel.checkpoint()
            self._is_paused, self._pause_event = False, anyio.Event()
            body.resume()
            await self._pause_event.wait()

    # A body that is an iterator.

    async def _write_stream(self, stream: AsyncIterable[bytes]) -> None:
        """Write a body until it ends or the server reads no more."""
        chunks = aiter(stream)
        try:
            async for chunk in chunks:
                await self._wait_for_head()
                self._body_begun = True
                if chunk and not self.connection.write_body(chunk) and not await self._flush():
                    return
        finally:
            await _close(chunks)
        await self._wait_for_head()
        self._body_over = True
        self._limit_wait()
        if not self.connection.end_body():
            await self._flush()

    async def _wait_for_head(self) -> None:
        # In a loop: a dead connection is replaced, and then the head has not left on the new one.
        while not self._head_sent:
            await self._head_changes.wait()

    async def _flush(self) -> bool:
        try:
            return await self.connection.flush(self._request.write_s)
        except TimeoutError as error:
            raise faults.WriteTimeout(f"the server has read nothing for {self._request.write_s:g} s") from error


async def _close(iterator: AsyncIterator[bytes]) -> None:
    """Close a generator now, in the task that ran it. The garbage collector would close it later, in any task."""
    if isinstance(iterator, AsyncGenerator):
        with anyio.CancelScope(shield=True):
            await iterator.aclose()
