"""Control-plane requests: each is replayed, when it is whole, into uvicorn's own HTTP protocol, and so to FastAPI.

uvicorn's protocol gets a transport that writes through our connection. One protocol object serves one request. The
bridge uses its constructor, ``connection_made``, ``data_received``, ``connection_lost``, ``pause_writing``,
``resume_writing``, ``on_response_complete``, and ``cycle.keep_alive``; tests/app/http1/test_asgi_bridge.py pins them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple, cast

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.request import Request
from tricklecast.trickle.records import AccessRecord, Reason

CONNECTION: Final = "tricklecast.connection"
"""The key of a request's ASGI scope under which middleware finds its :class:`AsgiExchange`."""

_REPLACED: Final = frozenset({b"expect", b"transfer-encoding", b"content-length"})
"""Header fields about how the body arrives: it is whole when it is replayed."""


class Hosting(NamedTuple):
    """The arguments that uvicorn gives to the protocol of each connection."""

    config: Config
    server_state: ServerState
    app_state: dict[str, Any]


class AsgiExchange(Exchange):
    """One request of the control plane with its response.

    The ASGI middleware writes its access record (:mod:`app.control_plane.middleware`).

    Args:
        transport: of the connection. hosting: with which uvicorn's protocol is made.

    Attributes:
        gone: why its connection is no more; ``None`` while it is there.
        over: FastAPI has given all of the response.
        untaken: the access record while FastAPI has given all of the response, and the peer has not taken it.
    """

    __slots__ = ("_protocol", "_taken", "gone", "over", "untaken")
    __deletable__ = ("_protocol",)  # for the compiler

    def __init__(self, connection: Caller, request: Request, transport: asyncio.Transport, hosting: Hosting) -> None:
        super().__init__(connection, request)
        self._taken: asyncio.Event | None = None
        self.over = False
        self.gone: str | None = None
        self.untaken: AccessRecord | None = None
        self._protocol = _Replay(self, hosting)
        self._protocol.connection_made(cast(asyncio.Transport, _Transport(transport, self)))
        if connection.write_paused:
            self._protocol.pause_writing()
        self._protocol.data_received(_as_bytes(request))
        if not self.keep_alive:
            self.close_after()

    @property
    def answerable(self) -> bool:
        """FastAPI answers it."""
        return False

    def close_after(self) -> None:
        """Close the connection after this response, which says so if it has not begun."""
        self.keep_alive = False
        self._protocol.cycle.keep_alive = False

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def writable(self) -> None:
        self._protocol.resume_writing()
        if self._taken is not None:
            self._taken.set()
        if self.over:
            self._conclude()

    async def taken(self, record: AccessRecord) -> str | None:
        """FastAPI has given all of the response: wait until the peer has taken it.

        Returns:
            Why the peer has not taken it, if it is gone.
        """
        if self.gone is None and self.connection.write_paused:
            self.untaken = record
            self._taken = asyncio.Event()
            await self._taken.wait()
            self.untaken = None
        return self.gone

    def given(self) -> None:
        """FastAPI has given all of the response, or has failed in the middle of it."""
        if self.gone is None and not self.over:
            self.over = True
            if not self.connection.write_paused:
                self._conclude()

    def lost(self, reason: str = Reason.CLIENT_GONE) -> None:
        self.gone = reason
        if self._taken is not None:
            self._taken.set()
        self._leave()

    def failed(self, error: Exception) -> None:
        """A fault of the server met the connection: break it."""
        self.plane.fault("on a connection of the control plane", error)
        self.connection.abort(Reason.ERROR)

    def _conclude(self) -> None:
        self._leave()
        if self.connection.exchange is self:
            self.connection.complete(close=not self.keep_alive)

    def _leave(self) -> None:
        # The protocol knows this exchange: without this, the cycle would stay until a full garbage collection.
        protocol = self._protocol
        del self._protocol
        protocol.connection_lost(None)


class _Replay(HttpToolsProtocol):
    """uvicorn's protocol for one request."""

    def __init__(self, exchange: AsgiExchange, hosting: Hosting) -> None:
        super().__init__(*hosting)
        self._exchange = exchange
        self.app = cast(Any, _WithConnection(cast(ASGIApp, self.app), exchange))

    def on_response_complete(self) -> None:
        """Not followed by another request: our connection decides about that."""
        self.server_state.total_requests += 1
        self._exchange.keep_alive = self.cycle.keep_alive
        self._exchange.given()


class _WithConnection:
    """Puts the exchange into the request's scope."""

    def __init__(self, app: ASGIApp, exchange: AsgiExchange) -> None:
        self._app = app
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[CONNECTION] = self._exchange
        await self._app(scope, receive, send)


class _Transport:
    """A transport to uvicorn's protocol: it writes through our connection, and never closes it by itself."""

    __slots__ = ("_exchange", "_transport")

    def __init__(self, transport: asyncio.Transport, exchange: AsgiExchange) -> None:
        self._transport = transport
        self._exchange = exchange

    def write(self, data: bytes) -> None:
        if data and self._exchange.gone is None:
            self._exchange.connection.send(data)

    def close(self) -> None:
        """The response is the last one here, or FastAPI has failed in the middle of it."""
        if not self._exchange.over:
            self._exchange.keep_alive = False
            asyncio.get_running_loop().call_soon(self._exchange.given)

    def is_closing(self) -> bool:
        return self._exchange.gone is not None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":  # uvicorn asks for the scheme by it; the session may be in another worker
            return self._exchange.connection.scheme == "https"
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Its input is whole."""

    def resume_reading(self) -> None:
        """Its input is whole."""


def has_path(target: bytes) -> bool:
    """Whether uvicorn can take a request target apart and finds a path in it."""
    try:
        parts: Any = httptools.parse_url(target)  # its stubs say that every URL has a path
        return parts.path is not None
    except httptools.HttpParserInvalidURLError:
        return False


def _as_bytes(request: Request) -> bytes:
    """The request as it is replayed: its body whole, with one length."""
    body = b"".join(request.chunks)
    request.chunks = []
    lines = [b"%b %b HTTP/%b" % (request.method, request.target, b"1.0" if request.http10 else b"1.1")]
    lines += [b"%b: %b" % field for field in request.fields if field[0] not in _REPLACED]
    if body:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])
