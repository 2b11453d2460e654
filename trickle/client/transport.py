"""How the requests of one client reach a server: past httpx if they can, and the connections that are kept for them.

httpx makes objects for URLs and headers, and generators for redirects and authentication. They cost more CPU than the
rest of a small segment, and httpx takes longer to load than both clients. So :class:`TrickleClient` gives a plain
request straight to its :class:`Pool` of connections, with a token as a header. httpx does what it alone can do: other
kinds of authentication, a program's own transport, URLs with a password, and names of hosts beyond ASCII. It is loaded
when one of these is used (:mod:`.bridge`).

*Ways to a server.* TCP; TLS; TLS through a proxy (:mod:`.proxies`); and the Unix socket of a URL
``http+unix://%2Frun%2Ftricklecast.sock/...``.

*Left out on purpose.* Cookies: a server could set any number of them, and each later request would carry them all.
Proxies for ``http://``: one that collects request bodies would hold a live segment back until its end.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Coroutine, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import anyio
import anyio.abc

from tricklecast.trickle import wire
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connection import Connection, LiveBody, Origin, RawRequest, ResponseBody
from tricklecast.trickle.client.faults import NoAnswer
from tricklecast.trickle.client.heads import InvalidHead, header_line, request_line
from tricklecast.trickle.client.proxies import open_tunnel, proxy_for
from tricklecast.trickle.client.sockets import SocketStream, connect_tcp, connect_unix, reason
from tricklecast.trickle.paths import UNIX, socket_path

if TYPE_CHECKING:
    import httpx

    from tricklecast.trickle.client.arguments import HttpxAuth

KEEPALIVE_S: Final = 30.0
"""An idle connection is reused for this long: less than the server's 75 s and the usual 60 s of load balancers."""

MAX_IDLE: Final = 4
"""Idle connections per origin: a client needs one for its segment, two for preconnects, and one for a question."""

PORTS: Final = {"http": 80, "https": 443, UNIX: 0}

LOCAL_HOST: Final = (b"Host", b"localhost")
"""A Unix socket has no name that the server could know."""

_KEY: Final = wire.IDEMPOTENCY_KEY.encode()
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


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
                stream, tcp = await self._connect(*origin)
        except TimeoutError as error:
            raise faults.ConnectTimeout(f"{origin[1]} did not answer in time") from error
        except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise faults.ConnectError("the connection was closed during the TLS handshake") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
            raise faults.ConnectError(reason(error)) from error
        return Connection(origin, stream, tcp, self._answering, self.release)

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
    """Sends the requests of one client that need no httpx; the others go by :func:`.bridge.client_of`.

    Args:
        verify: whether and how the server's certificate is checked, as in httpx.
        transport: of the program, instead of a :class:`Pool`.
        headers: sent with every request.
        auth: a token, or any authentication that httpx knows.
        timeout: of each request that has none of its own.

    Attributes:
        pool: has the connections; ``None``: the transport has other ones, or changes requests.
        httpx: the client of httpx, once a request has needed it.
        is_closed: it sends nothing any more.
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
        self.transport = transport
        self.headers = headers
        self.auth = auth
        pool = Pool(verify) if transport is None else getattr(transport, "plain", None)
        self.pool = pool if isinstance(pool, Pool) else None
        # Most lines of a head are those of the request before. (Kept by the client, since a token is among them.)
        self._lines = lru_cache(maxsize=32)(partial(_lines, headers))
        self.httpx: httpx.AsyncClient | None = None
        self.is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that are not in use."""
        self.is_closed = True
        if self.httpx is not None:
            await self.httpx.aclose()
        elif self.transport is not None:
            await self.transport.aclose()
        if self.pool is not None:
            await self.pool.aclose()

    def send_plain(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: LiveBody | None,
        timeouts: httpx.Timeout | RequestTimeouts | None,
        auth: HttpxAuth | None = None,
        key: str = "",
    ) -> Coroutine[Any, Any, ResponseBody] | None:
        """Send a request without httpx.

        Args:
            method, url, headers: as in httpx.
            body: sent in chunks.
            timeouts, auth: instead of the client's.
            key: the value of ``Idempotency-Key``, the header that no other request has; empty: none.

        Returns:
            What sends it, and returns the response's body, which has its head: :meth:`Pool.send`. ``None``: only httpx
            can send it.

        Raises:
            TransportError: HTTP does not allow the request, or its URL has another scheme.
        """
        auth, pool = auth or self.auth, self.pool
        if pool is None or not (auth is None or isinstance(auth, Bearer)):
            return None
        if self.is_closed or "@" in url or not url.isascii():
            return None
        root = url.find("/", url.find("//") + 2)
        token = None if auth is None else auth.token
        try:
            origin, lines = self._lines(url[:root], tuple(headers.items()), token, body is not None, key != "")
            line = request_line(method.encode(), url[root:].encode())
            if key:
                line += header_line(_KEY, key.encode())
        except InvalidHead as error:
            raise faults.LocalProtocolError(str(error)) from error
        timeouts = timeouts or self.timeout
        head = b"%b%b\r\n" % (line, lines)
        length = 0 if body is None else None
        return pool.send(RawRequest(origin, head, body, length, timeouts.connect, timeouts.write, timeouts.read))


def _lines(
    usual: Mapping[str, str],
    root: str,
    headers: tuple[tuple[str, str], ...],
    token: str | None,
    has_body: bool,
    has_key: bool,
) -> tuple[Origin, bytes]:
    """The server of a request, and the lines of its head that a later request may have, too.

    Args:
        usual: headers of all requests. headers: of this one, which replace them.
        root: ``scheme://host:port``.
        has_key: ``Idempotency-Key`` is none of them, since the request has its own.
    """
    origin, host = origin_of(root)
    fields = {b"host": header_line(b"Host", host)}
    for name, value in (*usual.items(), *headers, *([] if token is None else [("Authorization", f"Bearer {token}")])):
        fields[name.lower().encode()] = header_line(name.encode(), value.encode())
    if has_body:
        fields[b"transfer-encoding"] = b"Transfer-Encoding: chunked\r\n"
    if has_key:
        fields.pop(_KEY.lower(), None)
    return origin, b"".join(fields.values())
