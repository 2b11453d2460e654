"""Sends the requests of one client: without httpx if it can be, and by httpx if it must be.

httpx makes objects for URLs and headers, and generators for redirects and authentication. They cost more CPU than the
rest of a small segment, and httpx takes longer to load than both clients. So a plain request goes straight to the
connections, with a token as a header. httpx does what it alone can do: other kinds of authentication, a program's own
transport, URLs with a password, and names of hosts beyond ASCII. It is loaded when one of these is used.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connection import Origin
from tricklecast.trickle.client.heads import InvalidHead, request_head
from tricklecast.trickle.client.transport import (
    LOCAL_HOST,
    PORTS,
    LiveBody,
    Pool,
    RawRequest,
    RequestTimeouts,
    ResponseBody,
)
from tricklecast.trickle.paths import UNIX, socket_path

if TYPE_CHECKING:
    import httpx

    from tricklecast.trickle.client.arguments import HttpxAuth

NO_TIMEOUTS: Final = RequestTimeouts()

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def origin_of(root: str) -> tuple[Origin, bytes]:
    """Return scheme, host and port of a URL's ``scheme://host:port``, and the value of the header ``Host``.

    The host of a Unix socket is its path.

    Raises:
        UnsupportedProtocol: no connection of this kind can be made.
        InvalidURL: the port is no number.
    """
    scheme, _, authority = root.partition("://")
    scheme = scheme.lower()
    if scheme not in PORTS:
        raise faults.UnsupportedProtocol(f"not http or https: {root}")
    if scheme == UNIX:
        return (UNIX, socket_path(authority), 0), LOCAL_HOST[1]
    parts = urlsplit(root)
    host, port = parts.hostname or "", parts.port or PORTS[scheme]
    shown = f"[{host}]" if ":" in host else host
    return (scheme, host, port), (shown if port == PORTS[scheme] else f"{shown}:{port}").encode()


class TrickleClient:
    """Sends the requests of one client: :meth:`send_plain` those that need no httpx, :meth:`by_httpx` the others.

    Args:
        verify: whether and how the server's certificate is checked, as in httpx.
        transport: of the program, instead of a :class:`Pool`.
        headers: sent with every request.
        auth: a token, or any authentication that httpx knows.
        timeout: of each request that has none of its own.
    """

    def __init__(
        self,
        verify: ssl.SSLContext | bool = True,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        auth: HttpxAuth | None = None,
        timeout: RequestTimeouts | httpx.Timeout = NO_TIMEOUTS,
    ) -> None:
        self.timeout = timeout
        self._transport = transport
        self.headers = headers
        self._auth = auth
        self._pool = Pool(verify) if transport is None else _pool_of(transport)
        self._usual = {name.lower().encode(): (name.encode(), value.encode()) for name, value in headers.items()}
        self._origins: dict[str, tuple[Origin, bytes]] = {}  # origin and Host header, by "http://host:port"
        self._httpx: httpx.AsyncClient | None = None  # made when a request needs it
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that are not in use."""
        self._is_closed = True
        if self._httpx is not None:
            await self._httpx.aclose()
        elif self._transport is not None:
            await self._transport.aclose()
        if self._pool is not None:
            await self._pool.aclose()

    def by_httpx(self) -> httpx.AsyncClient:
        """The client of httpx for what :meth:`send_plain` does not send; it shares the connections.

        Raises:
            RuntimeError: this client is closed.
        """
        if self._is_closed:
            raise RuntimeError("the client is closed")
        if self._httpx is None:
            from tricklecast.trickle.client import bridge

            transport = self._transport
            if transport is None:
                assert self._pool is not None, "there is no transport"
                transport = bridge.TrickleTransport(self._pool)
            self._httpx = bridge.httpx_client(transport, self.headers, self._auth, self.timeout)
        return self._httpx

    async def send_plain(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: LiveBody | None,
        timeouts: httpx.Timeout | RequestTimeouts | None,
        auth: HttpxAuth | None = None,
    ) -> ResponseBody | None:
        """Send a request without httpx.

        Args:
            method, url, headers: as in httpx.
            body: sent in chunks.
            timeouts, auth: instead of the client's.

        Returns:
            The response's body, which has its head. ``None``: nothing was sent, and the caller must use
            :meth:`by_httpx`.

        Raises:
            TransportError: see :meth:`Pool.send`.
        """
        auth = auth or self._auth
        pool = self._pool
        if pool is None or not (auth is None or isinstance(auth, Bearer)):
            return None
        if self._is_closed or "@" in url or not url.isascii():
            return None
        root = url.find("/", url.find("//") + 2)
        if (known := self._origins.get(url[:root])) is None:
            known = self._origins[url[:root]] = origin_of(url[:root])
        origin, host = known
        fields = {b"host": (b"Host", host), **self._usual}
        for name, value in headers.items():
            raw = name.encode()
            fields[raw.lower()] = (raw, value.encode())
        if isinstance(auth, Bearer):
            fields[b"authorization"] = (b"Authorization", f"Bearer {auth.token}".encode())
        if body is not None:
            fields[b"transfer-encoding"] = (b"Transfer-Encoding", b"chunked")
        try:
            head = request_head(method.encode(), url[root:].encode(), fields.values())
        except InvalidHead as error:
            raise faults.LocalProtocolError(str(error)) from error
        timeouts = timeouts or self.timeout
        length = 0 if body is None else None
        return await pool.send(
            RawRequest(origin, method, head, body, length, timeouts.connect, timeouts.write, timeouts.read)
        )


def _pool_of(transport: httpx.AsyncBaseTransport) -> Pool | None:
    from tricklecast.trickle.client import bridge  # httpx is loaded: somebody has made a transport

    return bridge.pool_of(transport)
