"""Between httpx and these clients: the only module of theirs that imports httpx.

It is imported when a program passes something of httpx, or asks for :class:`TrickleTransport`; no other program waits
until httpx is loaded (:mod:`.exchange`). Both directions are here:

- A program's ``httpx.AsyncClient`` sends through our connections: :class:`TrickleTransport`.
- A client of ours sends through httpx: :func:`send`, with a program's own client, transport or authentication.

Errors change their kind on the way, under the same name (:mod:`.faults`). One that comes back from our own transport is
recognised by its cause.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import anyio
import httpx

from tricklecast.trickle.client import faults
from tricklecast.trickle.client.arguments import HttpxAuth
from tricklecast.trickle.client.connecting import LOCAL_HOST, PORTS, Origin
from tricklecast.trickle.client.connection import (
    BodyWriter,
    LiveBody,
    Pool,
    RawRequest,
    RequestTimeouts,
    ResponseBody,
)
from tricklecast.trickle.client.grammar import InvalidHead, request_head
from tricklecast.trickle.client.tasks import Notifier, beside
from tricklecast.trickle.paths import UNIX, socket_path

_NONE: Final[Mapping[str, str]] = {}


class Streamed(httpx.AsyncByteStream):
    """A :class:`LiveBody` for httpx. Assign it to ``request.stream``."""

    def __init__(self, body: LiveBody) -> None:
        self.body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self.body)


class _Pulled(LiveBody):
    """The body of a program's request: :meth:`run`, in a task of its own, asks for the next chunk once the last one
    has left.
    """

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream
        self._writer: BodyWriter | None = None
        self._has_room = False
        self._is_over = False
        self._changes = Notifier()

    def start(self, writer: BodyWriter) -> None:
        self._writer, self._has_room = writer, True
        if self._is_over:  # the connection before was dead, and the body is empty
            writer.end()
        self._changes.notify()

    def resume(self) -> None:
        self._has_room = True
        self._changes.notify()

    def detach(self) -> None:
        self._writer = None

    async def run(self) -> None:
        """Write the body until it ends; the caller cancels it when the response is there."""
        chunks = aiter(self._stream)
        try:
            async for chunk in chunks:
                if chunk:
                    self._has_room = (await self._room()).write(chunk)
                await self._room()
        finally:
            # Now, in the task that ran it: the garbage collector would close it later, in any task.
            if isinstance(chunks, AsyncGenerator):
                with anyio.CancelScope(shield=True):
                    await chunks.aclose()
        writer = await self._room()
        self._is_over = True
        writer.end()

    async def _room(self) -> BodyWriter:
        while self._writer is None or not self._has_room:
            await self._changes.wait()
        return self._writer


class TrickleTransport(httpx.AsyncBaseTransport):
    """Full-duplex HTTP/1.1 for httpx.

    A response has its trailers in ``response.extensions["trailers"]`` (an ``httpx.Headers``, filled at the end of the
    body), and its :class:`~tricklecast.trickle.client.connection.ResponseBody`, which raises the errors of
    :mod:`.faults`, in ``response.extensions["body"]``.

    Args:
        verify: ``True`` for the usual certificates, ``False`` for none, or an ``SSLContext``; or a pool to use.
    """

    def __init__(self, verify: Pool | ssl.SSLContext | bool = True) -> None:
        self.pool = verify if isinstance(verify, Pool) else Pool(verify)

    @property
    def plain(self) -> Pool | None:
        """The pool to which a request may go past httpx; ``None``: a subclass changes requests."""
        is_same = type(self).handle_async_request is TrickleTransport.handle_async_request
        return self.pool if is_same else None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and wait for the final response's head. By then the body is over, or is written no more.

        Raises:
            httpx.ConnectError: no connection could be made (``ConnectTimeout``: not in time).
            httpx.ReadError: the connection broke before the response (``ReadTimeout``: no response came in time).
            httpx.WriteTimeout: the server has stopped reading, and did not respond.
            httpx.RemoteProtocolError: the response is not HTTP, or a GET's body has no visible end.
            httpx.UnsupportedProtocol: the URL is neither http nor https, nor that of a Unix socket.
            Exception: the request's own body stream raised it.
        """
        headers = request.headers.raw
        if request.url.scheme == UNIX:
            headers = [LOCAL_HOST, *(field for field in headers if field[0].lower() != b"host")]
        lengths = {name.lower(): value for name, value in headers}
        chunked = b"transfer-encoding" in lengths
        stream = request.stream
        pulled: _Pulled | None = None
        if isinstance(stream, httpx.AsyncByteStream) and not isinstance(stream, Streamed):
            pulled = _Pulled(stream) if not isinstance(stream, httpx.ByteStream) or b"".join(stream) else None
        timeout: Mapping[str, float | None] = request.extensions.get("timeout", {})
        try:
            head = request_head(request.method.encode(), request.url.raw_path, headers)
        except InvalidHead as error:
            raise httpx.LocalProtocolError(str(error)) from error
        raw = RawRequest(
            _origin_of(request.url),
            head,
            stream.body if isinstance(stream, Streamed) else pulled,
            None if chunked else int(lengths.get(b"content-length", b"0")),
            timeout.get("connect"),
            timeout.get("write"),
            timeout.get("read"),
        )
        try:
            response = await (
                self.pool.send(raw) if pulled is None else beside(pulled.run, lambda: self.pool.send(raw))
            )
        except faults.TransportError as fault:
            raise _error_of_httpx(fault) from fault
        trailers = httpx.Headers()
        response.on_trailers = lambda fields: trailers.update(httpx.Headers(fields))
        extensions = {
            "http_version": b"HTTP/" + response.head.http_version,
            "reason_phrase": response.head.reason,
            "trailers": trailers,
            "body": response,
        }
        return httpx.Response(
            response.head.status_code, headers=response.head.headers, stream=_Received(response), extensions=extensions
        )

    async def aclose(self) -> None:
        """Close the idle connections; each one in use is closed with its response."""
        await self.pool.aclose()


class _Received(httpx.AsyncByteStream):
    """A response's body, as httpx reads it."""

    def __init__(self, body: ResponseBody) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            if chunk := await self._body.receive_chunk():
                return chunk
        except faults.TransportError as fault:
            raise _error_of_httpx(fault) from fault
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._body.close()


def httpx_client(
    transport: httpx.AsyncBaseTransport,
    headers: Mapping[str, str] = _NONE,
    auth: HttpxAuth | None = None,
    timeout: RequestTimeouts | httpx.Timeout | float | None = 5.0,
) -> httpx.AsyncClient:
    """Make a client of httpx that keeps no cookies: a server could set any number, and each request would carry them.

    Args:
        transport: sends the requests.
        headers, auth, timeout: as in httpx.
    """
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx.AsyncClient(transport=transport, cookies=no_cookies, headers=headers, auth=auth, timeout=timeout)


async def send(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: LiveBody | None,
    timeouts: httpx.Timeout | RequestTimeouts | None,
    auth: HttpxAuth | None,
) -> tuple[httpx.Response, ResponseBody | HttpxBody]:
    """Send a request with httpx.

    Args:
        http: sends it.
        method, url, headers: as in httpx.
        body: sent in chunks.
        timeouts, auth: instead of those of ``http``.

    Raises:
        TransportError: there is no response.
    """
    if body is not None:
        headers = {**headers, "Transfer-Encoding": "chunked"}
    try:
        request = http.build_request(
            method, url, headers=headers, timeout=httpx.USE_CLIENT_DEFAULT if timeouts is None else timeouts
        )
        if body is not None:
            request.stream = Streamed(body)
        response: httpx.Response | None = None
        # A transport that ignores timeouts (a program's own, or one for tests) must not wait for ever.
        with anyio.move_on_after(None if timeouts is None or body is not None else timeouts.read):
            response = await http.send(request, stream=True, auth=httpx.USE_CLIENT_DEFAULT if auth is None else auth)
    except httpx.TransportError as error:
        raise _fault_of(error) from error
    if response is None:
        raise faults.ReadTimeout("no answer")
    return response, response.extensions.get("body") or HttpxBody(response)


class HttpxBody:
    """The body of a response that httpx received through another transport, with the methods of :class:`ResponseBody`.

    The chunks are those of that transport, not the server's. After a cancelled read the body cannot be read on.
    """

    keeps_cancelled: Final = False

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        # A mock's response has been read already: then only its decoded bytes are there.
        self._parts = response.aiter_bytes() if response.is_stream_consumed else response.aiter_raw()
        self._read_s: float | None = None  # the longest silence, in seconds
        self._scope: anyio.CancelScope | None = None  # of the task that reads now

    def trailer(self, name: str) -> str | None:
        """Return the value of a trailer, if the transport has kept the trailers."""
        trailers: Mapping[str, str] = self._response.extensions.get("trailers") or _NONE
        return trailers.get(name)

    def limit_silence(self, read_s: float | None) -> None:
        """Make later reads raise ``ReadTimeout`` when no byte comes for ``read_s`` seconds."""
        self._read_s = read_s

    async def receive_chunk(self) -> bytes:
        """Return the next chunk; ``b""`` at the end.

        Raises:
            TransportError: the body broke off, was silent for too long, or was closed by another task.
        """
        part: bytes | None = None
        try:
            with anyio.move_on_after(self._read_s) as self._scope:
                part = await anext(self._parts, b"")
        except httpx.TransportError as error:
            raise _fault_of(error) from error
        finally:
            self._scope = None
        if part is None:
            raise faults.ReadTimeout("the body was silent for too long, or was closed")
        return part

    async def receive(self) -> bytes:
        """Do the same as :meth:`receive_chunk`."""
        return await self.receive_chunk()

    async def aclose(self) -> None:
        """Close the body, also in a cancelled scope. A task that waits for it gets an error."""
        if self._scope is not None:
            self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._response.aclose()


def _origin_of(url: httpx.URL) -> Origin:
    if url.scheme not in PORTS:
        raise httpx.UnsupportedProtocol(f"not http or https: {url}")
    host = socket_path(url.host) if url.scheme == UNIX else url.host
    return url.scheme, host, url.port or PORTS[url.scheme]


def _error_of_httpx(fault: faults.TransportError) -> httpx.TransportError:
    # NoAnswer is a ReadError, InvalidAnswer a RemoteProtocolError.
    names = (kind.__name__ for kind in type(fault).__mro__)
    error: type[httpx.TransportError] = next(getattr(httpx, name) for name in names if hasattr(httpx, name))
    return error(str(fault))


def _fault_of(error: httpx.TransportError) -> faults.TransportError:
    if isinstance(error.__cause__, faults.TransportError):
        return error.__cause__
    names = (kind.__name__ for kind in type(error).__mro__)
    fault: type[faults.TransportError] = next(getattr(faults, name) for name in names if hasattr(faults, name))
    return fault(str(error) or type(error).__name__)
