"""How a client's connection to a server is made: TCP, TLS, TLS through a proxy, or a Unix socket.

*TCP.* The addresses of a host are tried in turn, and beside each other if one does not answer (happy eyeballs, RFC
8305). TCP notices a host that has vanished (:data:`PEER_TIMEOUT_S`).

*Proxies* pass a TLS connection on (CONNECT, RFC 9110, section 9.3.6). The environment names the proxy, as for curl:
``HTTPS_PROXY``, else ``ALL_PROXY``, in capitals or not; the client connects directly to hosts and networks in
``NO_PROXY``. Only ``https://`` goes through the proxy: it passes bytes on, and cannot hold a live segment back, as it
could where it reads HTTP.

*Unix sockets.* The URL is ``http+unix://%2Frun%2Ftricklecast.sock/...``.
"""

from __future__ import annotations

import os
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import anyio
from anyio.abc import ByteStream

from tricklecast.trickle.client import faults
from tricklecast.trickle.client.grammar import InvalidHead, parse_response
from tricklecast.trickle.client.sockets import SocketStream, in_trio
from tricklecast.trickle.paths import UNIX, socket_path
from tricklecast.trickle.wire import printable, redacted

Origin = tuple[str, str, int]
"""Scheme, host, port. The host of a Unix socket is its path."""

PORTS: Final = {"http": 80, "https": 443, UNIX: 0}

LOCAL_HOST: Final = (b"Host", b"localhost")
"""A Unix socket has no name that the server could know."""

STAGGER_S: Final = 0.25
"""If an address of a host has not answered after this time, the next one is tried beside it (RFC 8305, section 5)."""

PEER_TIMEOUT_S: Final = 10
"""A server that acknowledges nothing for this long has vanished. On a quiet connection, probes begin after this time.
TCP itself would wait for a quarter of an hour, or for ever."""

QUEUE_FULL_S: Final = 0.02
"""A Unix socket whose server has too many connections waiting is tried again after this time."""

_OPTIONS: Final = {
    # A chunk is a frame of live media or a small message: it leaves at once, not after the last one is acknowledged.
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": PEER_TIMEOUT_S,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": PEER_TIMEOUT_S // 2,
    "TCP_USER_TIMEOUT": PEER_TIMEOUT_S * 1000,
}
"""Options of TCP. Systems differ: an option that this system does not know is left out."""

_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""Versions of OpenSSL have these reasons for a peer that does not speak TLS."""

_CERTIFICATE_ALERTS: Final = frozenset(
    {"UNKNOWN_CA", "BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED"}
    | {"CERTIFICATE_UNKNOWN", "ACCESS_DENIED"}
)
"""Alerts of a server that does not accept the certificate that it was shown (RFC 8446, section 6.2)."""

_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's numbers (X509_V_ERR_…) for a server's certificate that no trusted authority has signed."""

PROXY_PORT: Final = 8080
"""Port of a proxy whose URL has none."""

_VARIABLES: Final = ("https_proxy", "all_proxy")


def origin_of(root: str) -> tuple[Origin, bytes]:
    """Return scheme, host and port of a URL's ``scheme://host:port``, and the value of the header ``Host``.

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


async def connect(origin: Origin, tls: ssl.SSLContext | None) -> tuple[ByteStream, SocketStream]:
    """Connect to a server. The caller limits the time.

    Args:
        tls: the client checks the server's certificate against this, for https.

    Returns:
        The stream for requests, and the socket below it: the same one without TLS.

    Raises:
        OSError: no connection could be made.
        anyio.BrokenResourceError, anyio.EndOfStream: it was closed during the TLS handshake.
        UnicodeError: that is not a host name.
    """
    scheme, host, port = origin
    if tls is None:
        tcp = await (connect_unix(host) if scheme == UNIX else connect_tcp(host, port))
        return tcp, tcp
    proxy = proxy_for(host)
    tcp = await (connect_tcp(host, port) if proxy is None else open_tunnel(proxy, host, port))
    try:
        from anyio.streams.tls import TLSStream  # with https alone

        # Not standard_compatible: HTTP has its own framing, and servers often leave TLS' closing handshake out.
        return await TLSStream.wrap(tcp, hostname=host, ssl_context=tls, standard_compatible=False), tcp
    except BaseException:
        tcp.close()
        raise


async def connect_tcp(host: str, port: int) -> SocketStream:
    """Connect to the first of a host's addresses that answers (happy eyeballs, RFC 8305).

    Raises:
        OSError: the host has no address, or no address could be connected to.
    """
    sock = await (_connect_trio if in_trio() else _connect_asyncio)(host, port)
    with suppress(OSError):  # the peer has reset the connection already: the first read raises that
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return SocketStream(sock)


async def connect_unix(path: str) -> SocketStream:
    """Connect to a Unix socket. The caller limits the time: where the server's queue is full, this waits for it.

    Raises:
        OSError: there is no such socket, or nobody listens on it.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(path)
                return SocketStream(sock)
            except BlockingIOError:  # the kernel tells nobody when the queue has room
                await anyio.sleep(QUEUE_FULL_S)
    except BaseException:
        sock.close()
        raise


async def _connect_asyncio(host: str, port: int) -> socket.socket:
    import aiohappyeyeballs  # under asyncio alone, and it loads more of it

    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        return await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=STAGGER_S)
    except RuntimeError as error:  # uvloop raises it for some failures
        raise OSError(str(error)) from error


async def _connect_trio(host: str, port: int) -> socket.socket:
    import trio

    stream = await trio.open_tcp_stream(host, port, happy_eyeballs_delay=STAGGER_S)
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


@lru_cache(maxsize=4)  # a program with many clients reads the certificates once
def tls_context(files: tuple[str | None, str | None] | None) -> ssl.SSLContext:
    """Return the context against which the client checks a server's certificate.

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


# Proxies.


class Proxy(NamedTuple):
    """A proxy, as the environment names it."""

    host: str
    port: int
    authorization: bytes  # the header, with its line end; empty if the URL has no user
    shown: str  # for errors, without the password


def proxy_for(host: str) -> Proxy | None:
    """Choose the proxy for the TLS connection to a host; ``None`` if the client connects to it directly.

    Raises:
        OSError: the environment names a proxy of a kind that is not supported.
    """
    name = next((name for name in _VARIABLES if os.environ.get(name) or os.environ.get(name.upper())), None)
    if name is None:
        return None
    from urllib import request  # slow to import, and needed here only

    if request.proxy_bypass_environment(host):  # type: ignore[attr-defined]  # typeshed leaves it out
        return None
    if _is_in(host, request.getproxies_environment().get("no", "")):
        return None
    url = os.environ.get(name) or os.environ[name.upper()]
    parts = urlsplit(url if "://" in url else f"http://{url}")
    shown = redacted(f"{parts.scheme}://{parts.netloc}")
    try:
        port = parts.port or PROXY_PORT
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        advice = "only http://HOST:PORT is supported; NO_PROXY names the hosts that need none"
        raise OSError(f"{name.upper()} is {shown}: {advice}")
    authorization = b""
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = b"Proxy-Authorization: Basic %b\r\n" % b64encode(pair.encode())
    return Proxy(parts.hostname, port, authorization, shown)


def _is_in(host: str, networks: str) -> bool:
    """Whether a host is an address in one of the networks (``10.0.0.0/8``) among these words.

    Python's own rules for ``NO_PROXY`` are for names; curl takes networks, too.
    """
    from ipaddress import ip_address, ip_network

    with suppress(ValueError):  # it is a name
        address = ip_address(host)
        for word in networks.replace(",", " ").split():
            with suppress(ValueError):
                if address in ip_network(word, strict=False):
                    return True
    return False


async def open_tunnel(proxy: Proxy, host: str, port: int) -> SocketStream:
    """Connect to a host through a proxy. The caller limits the time.

    Raises:
        OSError: the proxy cannot be reached, refuses, or does not speak HTTP.
    """
    try:
        tcp = await connect_tcp(proxy.host, proxy.port)
    except OSError as error:
        raise OSError(f"the proxy {proxy.shown} cannot be reached: {reason(error)}") from None
    try:
        await _tunnel(tcp, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException as error:
        tcp.close()
        if isinstance(error, anyio.EndOfStream | anyio.BrokenResourceError):
            raise OSError(f"the proxy {proxy.shown} closed the connection") from error
        if isinstance(error, InvalidHead):
            raise OSError(f"the proxy {proxy.shown} does not speak HTTP: {error}") from error
        raise
    return tcp


async def _tunnel(tcp: SocketStream, proxy: Proxy, target: str) -> None:
    line = target.encode("idna")
    await tcp.send(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (line, line, proxy.authorization))
    head, searched = bytearray(), 0
    while (found := parse_response(head, searched)) is None:
        searched = len(head)
        head += await tcp.receive()
    answer, size = found
    if not 200 <= answer.status_code < 300:
        why = printable(answer.reason.decode("latin-1"))
        raise OSError(f"the proxy {proxy.shown} refuses {target}: HTTP {answer.status_code} {why}".rstrip())
    if len(head) > size:  # the server speaks first in no version of TLS
        raise OSError(f"the proxy {proxy.shown} sent more than its answer")


def certificate_refusal(error: BaseException) -> str | None:
    """Say in words what a server finds wrong with the client's certificate; ``None``: the error is another one.

    With TLS 1.3 the client is through with its handshake by then, and its first read raises the error.
    """
    if not isinstance(error, ssl.SSLError):
        return None
    alert = _name(error).partition("_ALERT_")[2]  # its name: TLSV13_ALERT_CERTIFICATE_REQUIRED
    if alert == "CERTIFICATE_REQUIRED":
        return "the server wants a client certificate (--cert and --key; in a program, verify=)"
    if alert in _CERTIFICATE_ALERTS:
        why = alert.lower().replace("_", " ")
        return f"the server does not accept the client certificate: {why} (show another one: --cert and --key)"
    return None


def _name(error: ssl.SSLError) -> str:
    """OpenSSL's name of an error; empty if it has none."""
    return getattr(error, "reason", None) or ""


def reason(error: BaseException) -> str:
    """Say in words why no connection could be made. anyio and aiohappyeyeballs hide the first cause in a group."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    name = _name(first) if isinstance(first, ssl.SSLError) else ""
    if name in _NOT_TLS:
        return "the server does not speak TLS: the URL may have to begin with http://"
    if name.endswith("_ALERT_HANDSHAKE_FAILURE"):
        return "the server refuses the TLS handshake: it may want a client certificate (--cert and --key)"
    if isinstance(first, ssl.SSLCertVerificationError):
        trust = " (--ca-file, or the variable SSL_CERT_FILE, names an authority to trust)"
        hint = trust if first.verify_code in _UNKNOWN_AUTHORITY else ""
        return f"certificate verify failed: {first.verify_message.rstrip('.')}{hint}"
    if isinstance(first, OSError) and not isinstance(first, ssl.SSLError | socket.gaierror) and (first.errno or 0) > 0:
        return os.strerror(first.errno or 0)
    return getattr(first, "strerror", None) or str(first) or type(first).__name__
