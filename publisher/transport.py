"""An httpx transport that writes a request's body and reads its response at the same time.

httpx's own transport reads nothing before the body has ended, so a publisher that holds a POST open would learn of a
404, 409, 413, 470 or 503, or of the end of its channel, only after it had written the whole segment. Here the body is
written by one task while another one waits for the answer; an early answer stops the body at once. Also:

- The request's headers leave as soon as there is a connection, before the body's first chunk exists (a preconnect).
- One chunk of the body is one HTTP chunk and one write to the socket, with Nagle's algorithm off.
- ``timeout.read`` limits the wait for the answer once the body has ended and arrived, never the time for which a body
  stays open; ``timeout.write``, how long the peer may take nothing of it.
- Interim ``1xx`` responses are skipped.

HTTP/1.1 only, TLS as ``verify`` says. It connects directly: proxies from the environment are not used, since a proxy
that collects request bodies would hold a live segment back until it is over.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final

import anyio
import anyio.abc
import h11
import httpx
from anyio.streams.tls import TLSStream

from tricklecast.publisher.connection import Connection, NoAnswer, Origin
from tricklecast.publisher.sockets import SocketStream, connect_tcp

KEEPALIVE_S: Final = 50.0
"""An idle connection is not reused after this long: below the server's 75 s and the usual 60 s of load balancers."""

MAX_IDLE: Final = 4
_PORTS: Final = {"http": 80, "https": 443}


class DuplexTransport(httpx.AsyncBaseTransport):
    """Full-duplex HTTP/1.1 for httpx.

    Args:
        verify: ``True`` for the system's usual certificates, ``False`` for none, or an ``SSLContext``.
        keepalive_s: how long an idle connection may be reused, in seconds.
    """

    def __init__(self, *, verify: ssl.SSLContext | bool = True, keepalive_s: float = KEEPALIVE_S) -> None:
        self._verify = verify
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, list[Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; return when the final response's headers are there and the body is over or stopped.

        Raises:
            httpx.ConnectError: no connection could be made (``ConnectTimeout``: not in time).
            httpx.RemoteProtocolError: the answer is not HTTP.
            httpx.ReadError: the connection broke before the answer (``ReadTimeout``: it did not come in time).
            httpx.WriteTimeout: the server has stopped reading without answering.

        An exception of the request's own body stream comes through as it is.
        """
        exchange = _Exchange(self, request)
        try:
            head = await exchange.run()
        except BaseException:
            exchange.abandon()
            raise
        return httpx.Response(
            head.status_code,
            headers=list(head.headers.raw_items()),
            stream=_ResponseBody(exchange),
            extensions={"http_version": b"HTTP/" + head.http_version, "reason_phrase": head.reason},
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
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise httpx.ConnectError(str(error) or "the connection was closed during the TLS handshake") from error
        return Connection(origin, stream, tcp)

    def release(self, connection: Connection) -> None:
        """Take a connection back after an exchange: keep it if both sides finished and it may be kept."""
        idle = self._idle.setdefault(connection.origin, [])
        if len(idle) >= MAX_IDLE or not connection.start_next(self._keepalive_s):
            connection.close()
        else:
            idle.append(connection)

    async def aclose(self) -> None:
        """Close the idle connections."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    async def _connect(self, scheme: str, host: str, port: int) -> tuple[anyio.abc.ByteStream, SocketStream]:
        tcp = await connect_tcp(host, port)
        if scheme == "http":
            return tcp, tcp
        try:
            context = self._context()
            # Not standard-compatible: HTTP has its own framing, and servers often leave TLS' closing handshake out.
            return await TLSStream.wrap(tcp, hostname=host, ssl_context=context, standard_compatible=False), tcp
        except BaseException:
            tcp.close()
            raise

    def _context(self) -> ssl.SSLContext:
        """Built at the first TLS connection: reading the certificates takes tens of milliseconds."""
        if not isinstance(self._verify, ssl.SSLContext):
            self._verify = httpx.create_ssl_context(verify=self._verify)
            self._verify.set_alpn_protocols(["http/1.1"])
        return self._verify


class _Exchange:
    """One request with its response."""

    def __init__(self, transport: DuplexTransport, request: httpx.Request) -> None:
        self._transport = transport
        self._request = request
        timeout: Mapping[str, float | None] = request.extensions.get("timeout", {})
        self._connect_s = timeout.get("connect")
        self._read_s = timeout.get("read")
        self._write_s = timeout.get("write")
        self._connection: Connection | None = None
        self._head_sent = anyio.Event()
        self._body_begun = False
        self._body_over = False
        self._unacknowledged = 0
        self._waiting = anyio.CancelScope()

    async def run(self) -> h11.Response:
        """Send the request and wait for the final response's head."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_body)
                head = await self._answer()
                tasks.cancel_scope.cancel()  # an early answer: what is left of the body is not wanted
        except BaseExceptionGroup as group:
            first = group.exceptions[0]
            raise first from first.__cause__
        return head

    async def body(self) -> AsyncIterator[bytes]:
        """The response's body."""
        assert self._connection is not None
        while True:
            try:
                with anyio.fail_after(self._read_s):
                    event = await self._connection.next_event()
            except TimeoutError as error:
                raise httpx.ReadTimeout("the answer stopped half-way") from error
            except h11.RemoteProtocolError as error:
                raise httpx.RemoteProtocolError(str(error)) from error
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)

    def finish(self) -> None:
        """The response is no longer needed: keep the connection if it is clean."""
        if self._connection is not None:
            self._transport.release(self._connection)
            self._connection = None

    def abandon(self) -> None:
        """The exchange failed or was cancelled: its connection is of no use any more."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _answer(self) -> h11.Response:
        """Send the head and wait for the answer; once more, if a pooled connection turns out to be dead."""
        try:
            return await self._attempt(fresh=False)
        except NoAnswer:
            connection = self._connection
            if connection is None or not connection.reused or self._body_begun:
                raise
            self._head_sent = anyio.Event()
            connection.close()
            return await self._attempt(fresh=True)

    async def _attempt(self, *, fresh: bool) -> h11.Response:
        url = self._request.url
        connection = self._connection = await self._transport.acquire(url, self._connect_s, fresh=fresh)
        head = h11.Request(method=self._request.method, target=url.raw_path, headers=self._request.headers.raw)
        await self._send(head)
        if self._body_over:  # an empty body that ended on the connection before this one
            await self._send(h11.EndOfMessage())
        self._head_sent.set()
        while True:
            with anyio.CancelScope() as self._waiting:
                self._limit_wait()
                return await self._final_response(connection)
            if not 0 < connection.tcp.unacknowledged < self._unacknowledged:
                raise httpx.ReadTimeout(f"no answer within {self._read_s:g} s")

    async def _final_response(self, connection: Connection) -> h11.Response:
        try:
            while not isinstance(event := await connection.next_event(), h11.Response):
                if not isinstance(event, h11.InformationalResponse):
                    raise httpx.RemoteProtocolError("the server closed the connection without an answer")
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        return event

    async def _write_body(self) -> None:
        """Write the body, chunk by chunk, until it ends or nobody reads it."""
        assert isinstance(self._request.stream, httpx.AsyncByteStream)
        chunks = aiter(self._request.stream)
        try:
            async for chunk in chunks:
                if chunk:
                    await self._wait_for_head()
                    self._body_begun = True
                    if not await self._send(h11.Data(data=chunk)):
                        return
            await self._wait_for_head()
            self._body_over = True
            self._limit_wait()
            await self._send(h11.EndOfMessage())
        finally:
            await _close(chunks)

    async def _wait_for_head(self) -> None:
        """Wait until the head has left on the connection that there is when this returns: it may be replaced."""
        while not self._head_sent.is_set():
            await self._head_sent.wait()

    def _limit_wait(self) -> None:
        """Once the body is over, the answer is due within ``timeout.read``, or while the peer still receives it."""
        if self._body_over and self._read_s is not None and self._connection is not None:
            self._unacknowledged = self._connection.tcp.unacknowledged
            self._waiting.deadline = anyio.current_time() + self._read_s

    async def _send(self, event: h11.Event) -> bool:
        assert self._connection is not None
        try:
            return await self._connection.send(event, self._write_s)
        except TimeoutError as error:
            raise httpx.WriteTimeout(f"the server has read nothing for {self._write_s:g} s") from error
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error


class _ResponseBody(httpx.AsyncByteStream):
    """The body of a response, which gives its connection back when it is closed."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._exchange.body()

    async def aclose(self) -> None:
        self._exchange.finish()


async def _close(iterator: AsyncIterator[bytes]) -> None:
    """Close a generator now, in the task that ran it, rather than whenever it is collected."""
    if isinstance(iterator, AsyncGenerator):
        with anyio.CancelScope(shield=True):
            await iterator.aclose()
