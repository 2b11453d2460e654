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
- Interim ``1xx`` responses are skipped; a flood of them is an error.
- No cookie is kept: a server could set any number of them, and each later request would carry them all.
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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, NamedTuple, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import httpx
from anyio.streams.tls import TLSStream

from tricklecast.trickle.client.connection import Connection, InvalidAnswer, NoAnswer, Origin
from tricklecast.trickle.client.heads import Fields, InvalidHead, ResponseHead, request_head
from tricklecast.trickle.client.sockets import SocketStream, connect_tcp, reason
from tricklecast.trickle.client.tasks import Changes

__all__ = ["BodyWriter", "InvalidAnswer", "LiveBody", "ResponseBody", "TrickleClient", "TrickleTransport"]

KEEPALIVE_S: Final = 30.0
"""An idle connection is not reused after this long: below the server's 75 s and the usual 60 s of load balancers."""

MAX_IDLE: Final = 4
"""Idle connections kept per origin: a client has a segment, one or two preconnects, and a question."""

_PORTS: Final = {"http": 80, "https": 443}


class BodyWriter(Protocol):
    """Where a :class:`LiveBody` writes its chunks. Nothing here waits."""

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        """Send one chunk as far as there is room; returns whether it has left. If not, :meth:`LiveBody.resume` will be
        called once it has, and nothing is written before that.

        Args:
            chunk: at least one byte.
            last: the body's end follows at once, in the same packet if possible.
        """

    def end(self) -> None:
        """Send the body's end; not after a last chunk."""

    def pause(self) -> None:
        """Let other tasks have their turn: :meth:`LiveBody.resume` is called after that."""


class LiveBody(httpx.AsyncByteStream):
    """A request's body that is written, not read. Assign it to ``request.stream``."""

    @abstractmethod
    def start(self, writer: BodyWriter) -> None:
        """The request's head has left: write what is there. Any task may use the writer until :meth:`detach`.

        May be called again after :meth:`detach`, if nothing was written: the connection is another one.
        """

    @abstractmethod
    def resume(self) -> None:
        """What was written last has left: go on."""

    @abstractmethod
    def detach(self) -> None:
        """The writer takes nothing more: the answer has come, or the connection broke."""


class Limits(NamedTuple):
    """Timeouts of one request, in seconds: a tuple that httpx takes for its own object, which costs much more."""

    connect: float | None
    read: float | None
    write: float | None = None
    pool: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request, ready to be sent.

    Attributes:
        origin: to whom.
        method: ``GET`` and so on.
        head: request line and headers.
        body: its body; ``None`` if there is none, or it is empty.
        body_bytes: the body's length; ``None`` if it is sent in chunks.
        connect_s, write_s, read_s: see the module's timeouts, in seconds.
    """

    origin: Origin
    method: str
    head: bytes
    body: httpx.AsyncByteStream | None = None
    body_bytes: int | None = 0
    connect_s: float | None = None
    write_s: float | None = None
    read_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: its head, and the body that has yet to be read."""

    head: ResponseHead
    body: ResponseBody


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
        headers = request.headers.raw
        lengths = {name.lower(): value for name, value in headers}
        chunked = b"transfer-encoding" in lengths
        stream = request.stream
        body = stream if isinstance(stream, httpx.AsyncByteStream) else None
        if isinstance(stream, httpx.ByteStream):
            body = stream if b"".join(stream) else None
        timeout: Mapping[str, float | None] = request.extensions.get("timeout", {})
        try:
            head = request_head(request.method.encode(), request.url.raw_path, headers)
        except InvalidHead as error:
            raise httpx.LocalProtocolError(str(error)) from error
        reply = await self.send(
            Call(
                origin_of(request.url),
                request.method,
                head,
                body,
                None if chunked else int(lengths.get(b"content-length", b"0")),
                timeout.get("connect"),
                timeout.get("write"),
                timeout.get("read"),
            )
        )
        extensions = {
            "http_version": b"HTTP/" + reply.head.http_version,
            "reason_phrase": reply.head.reason,
            "trailers": reply.body.show_trailers(),
            "body": reply.body,
        }
        return httpx.Response(
            reply.head.status_code, headers=reply.head.headers, stream=reply.body, extensions=extensions
        )

    async def send(self, call: Call) -> Reply:
        """The same without httpx's objects."""
        exchange = _Exchange(self, call)
        try:
            head = await exchange.run()
            return Reply(head, ResponseBody(self, exchange.connection, call.read_s))
        except BaseException:
            exchange.abandon()
            raise

    async def acquire(self, origin: Origin, connect_s: float | None, *, fresh: bool) -> Connection:
        """A connection: a pooled one that is still silent, unless ``fresh``, or a new one."""
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
            raise httpx.ConnectTimeout(f"{origin[1]} did not answer in time") from error
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


def origin_of(url: httpx.URL) -> Origin:
    """Whom to connect to for a URL.

    Raises:
        httpx.UnsupportedProtocol: it is neither http nor https.
    """
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"not http or https: {url}")
    return url.scheme, url.host, url.port or _PORTS[url.scheme]


class TrickleClient(httpx.AsyncClient):
    """An httpx client whose plain requests can be sent without httpx's objects.

    httpx's own way, with its generators for redirects and authentication and its objects for URLs and headers, costs
    more than the rest of a small segment. It is taken where there is something for it to do: authentication, or another
    transport.
    """

    def __init__(self, *, transport: httpx.AsyncBaseTransport, **options: Any) -> None:
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        super().__init__(transport=transport, cookies=no_cookies, **options)
        self._is_plain = (
            self.auth is None
            and isinstance(transport, TrickleTransport)
            and type(transport).handle_async_request is TrickleTransport.handle_async_request
        )
        self._usual = {name.lower(): (name, value) for name, value in self.headers.raw}
        self._urls: dict[str, tuple[Origin, bytes]] = {}

    async def send_plain(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: LiveBody | None,
        limits: httpx.Timeout | Limits | None,
    ) -> Reply | None:
        """Send a request; ``None``, and nothing is sent, if it has to go httpx's way.

        Args:
            method, url, headers: as in httpx.
            body: sent in chunks.
            limits: timeouts instead of the client's.

        Raises:
            httpx.TransportError: see :meth:`TrickleTransport.handle_async_request`.
        """
        if not self._is_plain or self.is_closed or "@" in url or not url.isascii():
            return None
        root = url.find("/", url.find("//") + 2)
        if (known := self._urls.get(url[:root])) is None:
            parsed = httpx.URL(url[:root])
            known = self._urls[url[:root]] = (origin_of(parsed), parsed.netloc)
        origin, host = known
        fields = {b"host": (b"Host", host), **self._usual}
        for name, value in headers.items():
            raw = name.encode()
            fields[raw.lower()] = (raw, value.encode())
        if body is not None:
            fields[b"transfer-encoding"] = (b"Transfer-Encoding", b"chunked")
        try:
            head = request_head(method.encode(), url[root:].encode(), fields.values())
        except InvalidHead as error:
            raise httpx.LocalProtocolError(str(error)) from error
        limits = limits or self.timeout
        length = 0 if body is None else None
        call = Call(origin, method, head, body, length, limits.connect, limits.write, limits.read)
        transport = self._transport
        assert isinstance(transport, TrickleTransport)
        return await transport.send(call)


class ResponseBody(httpx.AsyncByteStream):
    """The body of a response. At its end, or when it is closed, it gives its connection back.

    Args:
        transport: takes the connection back.
        connection: carries the body.
        read_s: the longest silence within the body, in seconds; ``None``: no limit.

    Attributes:
        keeps_cancelled: a read that is cancelled loses nothing.
    """

    keeps_cancelled: Final = True

    def __init__(self, transport: TrickleTransport, connection: Connection, read_s: float | None) -> None:
        self._trailers: Fields = []  # what followed the body; filled at its end
        self._shown: httpx.Headers | None = None  # the same for httpx
        self._transport = transport
        self._connection: Connection | None = connection
        self.limit_silence(read_s)

    def limit_silence(self, read_s: float | None) -> None:
        """From now on a read raises ``httpx.ReadTimeout`` if nothing comes for ``read_s`` seconds."""
        if self._connection is not None:
            self._connection.receive_s = read_s

    def trailer(self, name: str) -> str | None:
        """A header that followed the body; ``None`` where it is missing, and before the body's end."""
        if self._trailers:
            lower = name.lower().encode()
            for key, value in self._trailers:
                if key == lower:
                    return value.decode("utf-8", "replace")
        return None

    def show_trailers(self) -> httpx.Headers:
        """Headers that are filled with the trailers at the body's end. (They cost as much as a small segment.)"""
        self._shown = httpx.Headers()
        return self._shown

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
        self._trailers = connection.trailers
        if self._shown is not None:
            self._shown.update(httpx.Headers(self._trailers))
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
    """One request, up to the head of its response. It is the writer of the request's body.

    A live body is written by the tasks that have its chunks, as long as there is room. Only when there is none, a
    second task is begun, which waits for room.
    """

    def __init__(self, transport: TrickleTransport, call: Call) -> None:
        self._transport = transport
        self._call = call
        self._connection: Connection | None = None
        self._head_sent = False
        self._head_changes = Changes()
        self._body_begun = False
        self._body_over = call.body is None
        self._pauses = False  # nothing is to be written before the second task has called resume()
        self._paused: anyio.Event | None = None  # wakes the second task
        self._unacknowledged = 0
        self._waiting: anyio.CancelScope | None = None

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "there is a response"
        return self._connection

    def abandon(self) -> None:
        """The exchange failed or was cancelled: its connection is of no use any more."""
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> ResponseHead:
        """Send the request and wait for the final response's head.

        The request is sent once more if a pooled connection turns out to be dead. Not a GET: its answer may be long in
        coming, so a connection that ends meanwhile is a lost server, which the client has to know.
        """
        stream = self._call.body
        if stream is None or isinstance(stream, LiveBody):
            return await self._send()
        return await self._beside(lambda: self._write_stream(stream), self._send)

    async def _send(self) -> ResponseHead:
        try:
            return await self._attempt(fresh=False)
        except NoAnswer:
            if self._call.method == "GET" or not self.connection.reused or self._body_begun:
                raise
        self._head_sent, self._pauses, self._paused = False, False, None
        self.connection.close()
        return await self._attempt(fresh=True)

    async def _attempt(self, *, fresh: bool) -> ResponseHead:
        call = self._call
        connection = self._connection = await self._transport.acquire(call.origin, call.connect_s, fresh=fresh)
        body = call.body
        has_left = connection.write_head(call.head, call.body_bytes)
        if self._body_over and not isinstance(body, LiveBody):
            has_left = connection.end_body()  # of a body that is empty
        if not has_left:
            await self._flush()
        self._head_sent = True
        self._head_changes.notify()
        if body is None:
            return self._checked(await connection.answer(call.read_s))
        if not isinstance(body, LiveBody):
            return await self._answer()
        self._body_over = False
        try:
            body.start(self)
            return await self._answer()
        finally:
            body.detach()

    async def _answer(self) -> ResponseHead:
        """Wait for the response's head, and for room for the body meanwhile."""
        while True:
            if self._pauses and self._paused is None:
                self._paused = anyio.Event()
                return await self._beside(self._resume, self._answer)
            with anyio.CancelScope() as self._waiting:
                self._limit_wait()
                return self._checked(await self.connection.answer())
            if self._pauses and self._paused is None:
                continue
            if not 0 < self.connection.unacknowledged < self._unacknowledged:
                raise httpx.ReadTimeout(f"no answer within {self._call.read_s:g} s")

    def _checked(self, head: ResponseHead) -> ResponseHead:
        if self._call.method == "GET" and head.status_code == 200 and not head.chunked and head.length is None:
            raise InvalidAnswer("the answer has neither a length nor chunks: a cut would look like its end")
        return head

    def _limit_wait(self) -> None:
        """Once the body is over, the answer is due within ``timeout.read``, or while the peer still receives it."""
        if self._body_over and self._waiting is not None and self._call.read_s is not None:
            self._unacknowledged = self.connection.unacknowledged
            self._waiting.deadline = anyio.current_time() + self._call.read_s

    async def _beside(
        self, second: Callable[[], Coroutine[Any, Any, None]], first: Callable[[], Awaitable[ResponseHead]]
    ) -> ResponseHead:
        """Wait for the head; ``second`` runs at the same time, and is cancelled with an early answer."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(second)
                head = await first()
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
        self._pauses = True
        if self._paused is not None:
            self._paused.set()
        elif self._waiting is not None:
            self._waiting.cancel()  # begins the second task

    async def _resume(self) -> None:
        """Wait for room whenever there is none, and then let the body go on."""
        body = self._call.body
        assert isinstance(body, LiveBody)
        while await self._flush():
            await anyio.lowlevel.checkpoint()
            self._pauses, self._paused = False, anyio.Event()
            body.resume()
            await self._paused.wait()

    # A body that is read.

    async def _write_stream(self, stream: httpx.AsyncByteStream) -> None:
        """Write a body until it ends or nobody reads it."""
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
        """Wait until the head has left on the connection that there is when this returns: it may be replaced."""
        while not self._head_sent:
            await self._head_changes.wait()

    async def _flush(self) -> bool:
        try:
            return await self.connection.flush(self._call.write_s)
        except TimeoutError as error:
            raise httpx.WriteTimeout(f"the server has read nothing for {self._call.write_s:g} s") from error


async def _close(iterator: AsyncIterator[bytes]) -> None:
    """Close a generator now, in the task that ran it, rather than whenever it is collected."""
    if isinstance(iterator, AsyncGenerator):
        with anyio.CancelScope(shield=True):
            await iterator.aclose()
