"""An httpx transport that shows what httpx's own one hides: trailers, and chunks as they were sent.

httpcore (1.0) reads ``h11.EndOfMessage`` and drops its headers, and yields what one ``recv`` brought; neither can be
had by any option. But a segment that turns out not to be whole says so in a trailer (docs/reference/protocol.md,
section 4), and control channels send one message per chunk. So this transport speaks HTTP/1.1 itself, on h11 and anyio:
GET only, keep-alive, TLS, no proxies, no HTTP/2. Auth, headers, cookies and URLs stay httpx's.

- A chunk of at most :data:`MAX_CHUNK` bytes is yielded in one piece, however the network cut it.
- ``response.extensions["trailers"]`` is an ``httpx.Headers``, filled when the body has ended.
- A body that could end with the connection (neither length nor chunked) is refused: a part of it would look whole.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import chain
from typing import Final, TypeAlias

import anyio
import anyio.to_thread
import httpx

from tricklecast.subscriber.connection import Broken, Connection, Garbage, connect

MAX_IDLE: Final = 4
"""Idle connections kept per origin: a subscriber has one segment and one preconnect at a time."""

IDLE_S: Final = 30.0
"""Idle connections older than this are not used again; below every server's keep-alive that is known (60 s, 75 s)."""

_Origin: TypeAlias = tuple[str, str, int]
_PORTS: Final = {"http": 80, "https": 443}


class GarbageAnswer(httpx.RemoteProtocolError):
    """What came back is not HTTP, or not usable: asking again will not help."""


class TrailerTransport(httpx.AsyncBaseTransport):
    """Sends GETs over HTTP/1.1 and hands on chunks and trailers.

    Args:
        ssl_context: for ``https``; by default the one that httpx would use.
    """

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl_context = ssl_context
        self._idle: dict[_Origin, list[Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one GET and wait for the head of its answer.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: there is no connection to be had.
            httpx.ReadError, httpx.WriteError: the connection broke before the head was there.
            GarbageAnswer: what came is not HTTP, or a body whose end could not be told from a cut.
            httpx.LocalProtocolError: the request is not a GET.
            httpx.UnsupportedProtocol: the URL is neither http nor https.
        """
        if request.method != "GET":
            raise httpx.LocalProtocolError(f"this transport sends GET only, not {request.method}", request=request)
        origin = _origin_of(request)
        connection = await self._take(origin) or await self._connect(origin, request)
        return await self._exchange(connection, origin, request)

    async def aclose(self) -> None:
        """Close the idle connections; those in use are closed by their responses."""
        idle, self._idle = self._idle, {}
        async with AsyncExitStack() as stack:  # all of them, also if closing one is cancelled
            for connection in chain.from_iterable(idle.values()):
                stack.push_async_callback(connection.aclose)

    async def _take(self, origin: _Origin) -> Connection | None:
        """The idle connection that was used last and still works, if there is one; those that do not are closed."""
        oldest = anyio.current_time() - IDLE_S
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.idle_since >= oldest and connection.is_quiet():
                return connection
            await connection.aclose()
        return None

    async def _give_back(self, origin: _Origin, connection: Connection) -> None:
        idle = self._idle.setdefault(origin, [])
        if len(idle) < MAX_IDLE and connection.next_cycle(anyio.current_time()):
            idle.append(connection)
        else:
            await connection.aclose()

    async def _connect(self, origin: _Origin, request: httpx.Request) -> Connection:
        scheme, host, port = origin
        if scheme == "https" and self._ssl_context is None:
            # Reads all of the certificates that this host trusts: too long for the event loop.
            self._ssl_context = await anyio.to_thread.run_sync(httpx.create_ssl_context)
        context = self._ssl_context if scheme == "https" else None
        timeout = request.extensions.get("timeout", {}).get("connect")
        try:
            with anyio.fail_after(timeout):
                return await connect(host, port, context)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {timeout} s", request=request) from error
        except OSError as error:
            raise httpx.ConnectError(_reason(error), request=request) from error

    async def _exchange(self, connection: Connection, origin: _Origin, request: httpx.Request) -> httpx.Response:
        try:
            head = await connection.request(request.url.raw_path, request.headers.raw)
        except Broken as error:
            await connection.aclose()
            raise httpx.ReadError(str(error), request=request) from error
        except Garbage as error:
            await connection.aclose()
            raise GarbageAnswer(str(error), request=request) from error
        except BaseException:
            await connection.aclose()
            raise
        # Response copies the dict, so that what is filled in later has to be there already.
        trailers = httpx.Headers()
        extensions = {
            "http_version": b"HTTP/" + head.http_version,
            "reason_phrase": head.reason,
            "trailers": trailers,
        }
        stream = _Body(self, origin, connection, request, trailers)
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=stream, extensions=extensions)


class _Body(httpx.AsyncByteStream):
    """A response's body: gives the connection back at the end, and closes it if left before."""

    def __init__(
        self,
        transport: TrailerTransport,
        origin: _Origin,
        connection: Connection,
        request: httpx.Request,
        trailers: httpx.Headers,
    ) -> None:
        self._transport = transport
        self._origin = origin
        self._connection: Connection | None = connection
        self._request = request
        self._trailers = trailers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None:
            try:
                part = await self._connection.chunk()
            except Broken as error:
                raise httpx.ReadError(str(error), request=self._request) from error
            except Garbage as error:
                raise GarbageAnswer(str(error), request=self._request) from error
            if isinstance(part, bytes):
                yield part
            else:
                self._trailers.update(httpx.Headers(part))
                connection, self._connection = self._connection, None
                await self._transport._give_back(self._origin, connection)

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()


def _origin_of(request: httpx.Request) -> _Origin:
    scheme, host = request.url.scheme, request.url.host
    if scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"not http or https: {request.url}", request=request)
    return scheme, host, request.url.port or _PORTS[scheme]


def _reason(error: OSError) -> str:
    """What went wrong, for people: anyio puts the attempts that failed into the cause."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    if first.errno is not None and first.errno > 0 and not isinstance(first, ssl.SSLError):
        return os.strerror(first.errno)
    return first.strerror or str(first)
