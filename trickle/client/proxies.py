"""HTTP proxies that pass a TLS connection on (CONNECT, RFC 9110, section 9.3.6).

The environment names the proxy, as for curl: ``HTTPS_PROXY``, else ``ALL_PROXY``, in capitals or not; hosts in
``NO_PROXY`` are asked directly. Only ``https://`` goes through it: the proxy passes bytes on, and cannot hold a live
segment back, as it could where it reads HTTP.
"""

from __future__ import annotations

import os
from base64 import b64encode
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import anyio

from tricklecast.trickle.client.heads import InvalidHead, parse_response
from tricklecast.trickle.client.sockets import SocketStream, connect_tcp, reason
from tricklecast.trickle.wire import printable, redacted

PORT: Final = 8080
"""Of a proxy whose URL has none."""

_VARIABLES: Final = ("https_proxy", "all_proxy")


class Proxy(NamedTuple):
    """A proxy, as the environment names it."""

    host: str
    port: int
    authorization: bytes  # the header, with its line end; empty if the URL has no user
    shown: str  # for errors, without the password


def proxy_for(host: str) -> Proxy | None:
    """Choose the proxy for the TLS connection to a host; ``None`` if it is asked directly.

    Raises:
        OSError: the environment names a proxy of a kind that is not supported.
    """
    name = next((name for name in _VARIABLES if os.environ.get(name) or os.environ.get(name.upper())), None)
    if name is None:
        return None
    from urllib import request  # slow to import, and needed here only

    if request.proxy_bypass_environment(host):  # type: ignore[attr-defined]  # typeshed leaves it out
        return None
    url = os.environ.get(name) or os.environ[name.upper()]
    parts = urlsplit(url if "://" in url else f"http://{url}")
    shown = redacted(f"{parts.scheme}://{parts.netloc}")
    try:
        port = parts.port or PORT
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
