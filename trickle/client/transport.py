"""The httpx transport of both clients: HTTP/1.1, full duplex, with chunks and trailers as they were sent.

httpx's own transport reads nothing before the request's body has ended, joins and splits the chunks of a response, and
drops its trailers. But a publisher that holds a POST open has to learn of a 404, 409 or 503 at once, a message is one
chunk, and a segment that is not whole says so in a trailer (docs/reference/protocol.md, sections 3 and 4). Here:

- The request's head leaves as soon as there is a connection, before the body's first chunk exists (a preconnect).
- One chunk of a body is one HTTP chunk and one write to the socket, with Nagle's algorithm off. A :class:`LiveBody`
  writes its chunks itself, in the task of whoever has them.
- An answer ends the request at once, also in the middle of its body.
- ``timeout.read`` limits the wait for the answer once the body has ended and arrived, and each pause of the response's
  body; never the time for which a request's body stays open. ``timeout.write`` limits how long the peer may take
  nothing of it.
- Interim ``1xx`` responses are skipped.
- ``response.extensions["trailers"]`` is an ``httpx.Headers``, filled at the end of the body.
  ``response.extensions["body"]`` is the :class:`ResponseBody`, whose reads can be cancelled without loss.
- A GET's answer whose body could end with the connection (neither length nor chunks) is refused: a part of a segment
  would look like the whole.

It connects directly: proxies from the environment are not used, since a proxy that collects request bodies would hold
a live segment back until its end.
"""

from __future__ import annotations

import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final, Protocol

import anyio
import anyio.abc
import anyio.to_thread
import h11
import httpx
from anyio.streams.tls import TLSStream

from tricklecast.trickle.client.connection import Connection, InvalidAnswer, NoAnswer, Origin
from tricklecast.trickle.client.sockets import SocketStream, connect_tcp, reason

__all__ = ["BodyWriter", "InvalidAnswer", "LiveBody", "ResponseBody", "TrickleClient", "TrickleTransport"]

KEEPALIVE_S: Final = 30.0
"""An idle connection is not reused after this long: below the server's 75 s and the usual 60 s of load balancers."""

MAX_IDLE: Final = 4
"""Idle connections kept per origin: a client has a segment, one or two preconnects, and a question."""

_PORTS: Final = {"http": 80, "https": 443}


class BodyWriter(Protocol):
    """Where a :class:`LiveBody` writes its chunks."""

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        """Send one chunk as far as there is room; returns whether it has left. If not, :meth:`flush` waits for it.

        Args:
            chunk: at least one byte.
            last: the body's end follows at once, in the same packet if possible.
        """

    async def flush(self) -> bool:
        """Wait until all has left; ``False`` if the server no longer reads."""


class LiveBody(httpx.AsyncByteStream):
    """A request's body that is written, not read. Assign it to ``request.stream``."""

    @abstractmethod
    async def write_to(self, writer: BodyWriter) -> None:
        """Write the body from its start, and return at its end. Any task may use the writer until then.

        The call is cancelled when the answer comes first.
        """


class TrickleTransport(httpx.AsyncBaseTransport):
    """Full-duplex HTTP/1.1 for httpx.

    Args:
        verify: ``True`` for the system's usual certificates, ``False`` for none, or an ``SSLContext``.
        keepalive_s: how long an idle connection may be reused, in seconds.
    """

    def __init__(self, verify: ssl.SSLContext | bool = True, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._verify = verify
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, list[Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; return when the final response's head is there and the body is over or stopped.

        Raises:
            httpx.ConnectError: no connection could be made (``ConnectTimeout``: not in time).
            httpx.ReadError: the connection broke before the answer (``ReadTimeout``: it did not come in time).
            httpx.WriteTimeout: the server has stopped reading without answering.
            InvalidAnswer: the answer is not HTTP, or a GET's body has no visible end.
            httpx.UnsupportedProtocol: the URL is neither http nor https.

        An exception of the request's own body stream comes through as it is.
        """
        exchange = _Exchange(self, request)
        try:
            head = await exchange.run()
            body = ResponseBody(self, exchange.connection, exchange.read_s)
        except BaseException:
            exchange.abandon()
            raise
        extensions = {
            "http_version": b"HTTP/" + head.http_version,
            "reason_phrase": head.reason,
            "trailers": body.trailers,
            "body": body,
        }
        return httpx.Response(
            head.status_code, headers=list(head.headers.raw_items()), stream=body, extensions=extensions
        )

    async def acquire(self, url: httpx.URL, connect_s: float | None, *, fresh: bool) -> Connection:
        """A connection to the URL's origin: a pooled one that is still silent, unless ``fresh``, or a new one."""
        if url.scheme not in _PORTS:
            raise httpx.UnsupportedProtocol(f"not http or https: {url}")
        origin = (url.scheme, url.host, url.port or _PORTS[url.scheme])
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
            raise httpx.ConnectTimeout(f"{url.host} did not answer in time") from error
        except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise httpx.ConnectError("the connection was closed during the TLS handshake") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
            raise httpx.ConnectError(reason(error)) from error
        return Connection(origin, stream, tcp)

    def release(self, connection: Connection) -> None:
        """Take a connection back after an exchange: keep it if both sides finished and it may be kept."""
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
        context = await self._context() if scheme == "https" else None
        tcp = await connect_tcp(host, port)
        if context is None:
            return tcp, tcp
        try:
            # Not standard-compatible: HTTP has its own framing, and servers often leave TLS' closing handshake out.
            return await TLSStream.wrap(tcp, hostname=host, ssl_context=context, standard_compatible=False), tcp
        except BaseException:
            tcp.close()
            raise

    async def _context(self) -> ssl.SSLContext:
        """Built at the first TLS connection, in a thread: reading the certificates takes tens of milliseconds."""
        if not isinstance(self._verify, ssl.SSLContext):
            verify = self._verify
            context = await anyio.to_thread.run_sync(lambda: httpx.create_ssl_context(verify=verify))
            context.set_alpn_protocols(["http/1.1"])
            self._verify = context
        return self._verify


class TrickleClient(httpx.AsyncClient):
    """An httpx client that hands a plain request to its :class:`TrickleTransport` at once.

    httpx's own way, with its generators for redirects and authentication, costs as much as the rest of a small
    segment. It is taken where there is something for it to do: authentication, or another transport.
    """

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request; see ``httpx.AsyncClient.send``."""
        auth = self.auth or request.url.userinfo or options.get("auth", httpx.USE_CLIENT_DEFAULT)
        transport = self._transport
        plain = stream and auth is httpx.USE_CLIENT_DEFAULT and not self.is_closed
        if not plain or not isinstance(transport, TrickleTransport):
            return await super().send(request, stream=stream, **options)
        response = await transport.handle_async_request(request)
        response.request = request
        if "set-cookie" in response.headers:  # a load balancer's, so that all requests get to one server
            self.cookies.extract_cookies(response)
        return response


class ResponseBody(httpx.AsyncByteStream):
    """The body of a response. At its end, or when it is closed, it gives its connection back.

    Args:
        transport: takes the connection back.
        connection: carries the body.
        read_s: the longest silence within the body, in seconds; ``None``: no limit.

    Attributes:
        trailers: what followed the body; filled at its end.
        keeps_cancelled: a read that is cancelled loses nothing.
    """

    keeps_cancelled: Final = True

    def __init__(self, transport: TrickleTransport, connection: Connection, read_s: float | None) -> None:
        self.trailers = httpx.Headers()
        self._transport = transport
        self._connection: Connection | None = connection
        self.limit_silence(read_s)

    def limit_silence(self, read_s: float | None) -> None:
        """From now on a read raises ``httpx.ReadTimeout`` if nothing comes for ``read_s`` seconds."""
        if self._connection is not None:
            self._connection.receive_s = read_s

    async def receive_chunk(self) -> bytes:
        """The next chunk as the server sent it (a long one in pieces); ``b""`` at the end or once closed.

        Raises:
            httpx.ReadError: the connection ended before the body did, or was closed by another task.
            httpx.ReadTimeout: nothing came in time.
            InvalidAnswer: what came is not HTTP.
        """
        connection = self._connection
        if connection is None:
            return b""
        return await connection.receive_chunk() or self._end(connection)

    async def receive(self) -> bytes:
        """The bytes that are here, about 64 KiB at most: chunks that came together are joined. Else the same."""
        connection = self._connection
        if connection is None:
            return b""
        return await connection.receive() or self._end(connection)

    def _end(self, connection: Connection) -> bytes:
        self.trailers.update(httpx.Headers(connection.trailers))
        self.close()
        return b""

    def __aiter__(self) -> ResponseBody:
        return self

    async def __anext__(self) -> bytes:
        if chunk := await self.receive_chunk():
            return chunk
        raise StopAsyncIteration

    def close(self) -> None:
        """Leave the body; a task that waits for it gets ``httpx.ReadError``. Twice is fine."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.receive_s = None
            self._transport.release(connection)

    async def aclose(self) -> None:
        """The same."""
        self.close()


class _Exchange:
    """One request, up to the head of its response. It is the writer of the request's body."""

    def __init__(self, transport: TrickleTransport, request: httpx.Request) -> None:
        self._transport = transport
        self._request = request
        timeout: Mapping[str, float | None] = request.extensions.get("timeout", {})
        self.read_s = timeout.get("read")
        self._connect_s = timeout.get("connect")
        self._write_s = timeout.get("write")
        self._connection: Connection | None = None
        self._head_sent = anyio.Event()
        self._early_chunks: deque[bytes] = deque()
        self._body_begun = False
        self._body_over = False
        self._unacknowledged = 0
        self._waiting = anyio.CancelScope()

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "there is a response"
        return self._connection

    def abandon(self) -> None:
        """The exchange failed or was cancelled: its connection is of no use any more."""
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> h11.Response:
        """Send the request and wait for the final response's head."""
        stream = self._request.stream
        if isinstance(stream, httpx.ByteStream) and not b"".join(stream):
            self._body_over = True
            return await self._exchange()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_body)
                head = await self._exchange()
                tasks.cancel_scope.cancel()  # an early answer: the rest of the body is not wanted
        except BaseExceptionGroup as group:
            first = group.exceptions[0]
            raise first from first.__cause__
        return head

    async def _exchange(self) -> h11.Response:
        """Send the head and wait for the answer; once more, if a pooled connection turns out to be dead.

        Not for a GET: its answer may be long in coming, so a connection that ends meanwhile is a lost server, which the
        client has to know.
        """
        try:
            return await self._attempt(fresh=False)
        except NoAnswer:
            if self._request.method == "GET" or not self.connection.reused or self._body_begun:
                raise
            self._head_sent = anyio.Event()
            self.connection.close()
            return await self._attempt(fresh=True)

    async def _attempt(self, *, fresh: bool) -> h11.Response:
        url = self._request.url
        connection = self._connection = await self._transport.acquire(url, self._connect_s, fresh=fresh)
        head = h11.Request(method=self._request.method, target=url.raw_path, headers=self._request.headers.raw)
        # An empty body, perhaps one that ended on the connection before this one, ends with its head.
        self._write(head, *([h11.EndOfMessage()] if self._body_over else []))
        await self._flush()
        self._head_sent.set()
        while True:
            with anyio.CancelScope() as self._waiting:
                self._limit_wait()
                answer = await connection.answer()
                self._check_end(answer)
                return answer
            if not 0 < connection.unacknowledged < self._unacknowledged:
                raise httpx.ReadTimeout(f"no answer within {self.read_s:g} s")

    def _check_end(self, head: h11.Response) -> None:
        names = dict(head.headers)
        ends = b"transfer-encoding" in names or b"content-length" in names
        if self._request.method == "GET" and head.status_code == 200 and not ends:
            raise InvalidAnswer("the answer has neither a length nor chunks: its end could not be told from a cut")

    def _limit_wait(self) -> None:
        """Once the body is over, the answer is due within ``timeout.read``, or while the peer still receives it."""
        if self._body_over and self.read_s is not None and self._connection is not None:
            self._unacknowledged = self._connection.unacknowledged
            self._waiting.deadline = anyio.current_time() + self.read_s

    # The request's body.

    async def _write_body(self) -> None:
        """Write the body until it ends or nobody reads it."""
        stream = self._request.stream
        if isinstance(stream, LiveBody):
            await self._wait_for_head()
            await stream.write_to(self)
        else:
            assert isinstance(stream, httpx.AsyncByteStream)
            chunks = aiter(stream)
            try:
                async for chunk in chunks:
                    if chunk and not self.write(chunk) and not await self.flush():
                        return
            finally:
                await _close(chunks)
        await self._wait_for_head()
        if not self._body_over:
            self._body_over = True
            self._limit_wait()
            if not self._write(h11.EndOfMessage()):
                await self._flush()

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        """Send one chunk as far as there is room; see :class:`BodyWriter`."""
        if not self._head_sent.is_set() or self._early_chunks:  # the connection may be about to be replaced
            self._early_chunks.append(chunk)
            return False
        self._body_begun = True
        if not last:
            return self._write(h11.Data(data=chunk))
        self._body_over = True
        self._limit_wait()
        return self._write(h11.Data(data=chunk), h11.EndOfMessage())

    async def flush(self) -> bool:
        """Wait until all chunks have left; see :class:`BodyWriter`."""
        while True:
            await self._wait_for_head()
            if not self._early_chunks:
                return await self._flush()
            self._body_begun = True
            self._write(h11.Data(data=self._early_chunks.popleft()))

    async def _wait_for_head(self) -> None:
        """Wait until the head has left on the connection that there is when this returns: it may be replaced."""
        while not self._head_sent.is_set():
            await self._head_sent.wait()

    def _write(self, *events: h11.Event) -> bool:
        try:
            return self.connection.write(*events)
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error

    async def _flush(self) -> bool:
        try:
            return await self.connection.flush(self._write_s)
        except TimeoutError as error:
            raise httpx.WriteTimeout(f"the server has read nothing for {self._write_s:g} s") from error


async def _close(iterator: AsyncIterator[bytes]) -> None:
    """Close a generator now, in the task that ran it, rather than whenever it is collected."""
    if isinstance(iterator, AsyncGenerator):
        with anyio.CancelScope(shield=True):
            await iterator.aclose()
