"""Listeners: sockets and their options, TLS, and the number of connections that the process can have.

A server of one process without TLS accepts with the event loop's own :class:`asyncio.Server` (:func:`accept_on`). TLS,
and a server of several workers, need a :class:`Listener`.

Three limits make a slow or silent peer cheap:

- *Descriptors.* The process raises its limit as far as it may, and lowers ``max_connections`` to it, with some to
  spare: without a free descriptor asyncio could not even accept a connection in order to refuse it.
- *Kernel memory.* Without ``TCP_NOTSENT_LOWAT`` the kernel takes up to 4 MiB for a peer that does not read, and the
  server would see its lag too late.
- *TLS handshakes.* asyncio counts a connection after its handshake. :class:`TlsListener` counts it when it is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import resource
import socket
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tricklecast.app.access.secrets import warn_of_readers
from tricklecast.app.core.limits import Limits
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.http1.connection import Connection
from tricklecast.app.settings import Settings
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.records import Reason

_LOGGER = logging.getLogger(__name__)
_CERTIFICATE = logging.getLogger("tricklecast.certificate")

UNSENT_BYTES: Final = 128 << 10
"""Bytes of a connection that the kernel holds at most, beside those on their way to the peer. Without this limit a peer
that does not read fills up to 4 MiB of kernel memory (``tcp_wmem``) before the server notices that it lags."""

KEEP_ALIVE_PROBES: Final = 3
"""The kernel gives a peer up after this number of unanswered probes, sent in the last half of ``peer_timeout_s``."""

SILENT_S: Final = 7
"""Where several workers accept, Linux keeps a connection until its first bytes are there, but no longer than this:
1 + 2 + 4 s, since it repeats its part of the TCP handshake twice. Then a worker accepts the silent connection."""

SPARE_FILES: Final = 256
"""File descriptors that ordinary connections leave free: for 64 connections beyond the limit, as many that are just
being closed, listeners, the access log, the event loop, and requests to webhooks and key servers."""

WORKER_FILES: Final = 512
"""Each of several workers leaves this number free in addition: for the sockets of the mesh (two for each of at most 64
workers), the listeners of all workers, and questions of other workers."""

LEAST_CONNECTIONS: Final = 64
"""The server does not start with fewer possible connections, unless ``max_connections`` asks for fewer."""

MAX_ACCEPTED: Final = 16
"""Connections that a :class:`Listener` accepts per turn of the event loop, which takes about 5 ms with TLS."""

ACCEPT_RETRY_S: Final = 1.0
"""A :class:`Listener` pauses for this time when the process has no file descriptor left; asyncio pauses as long."""


LAST_SHARE: Final = 0.2
LAST_DAYS: Final = 30
"""The server warns of a certificate that has less than this share of its time left, and less than this many days. As a
rule, one of 90 days is renewed 30 days before its end, and one of 6 days 3 days before."""

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


class CannotServe(TrickleError):
    """The server cannot start as it is configured."""


# The process's limit of file descriptors.


def attainable_limits(settings: Settings, workers: int = 1) -> Limits:
    """The limits that the settings ask for, with no more connections than the process can open.

    Raises the process's soft limit of file descriptors as far as the hard limit allows, and logs a warning if a
    configured ``max_connections`` had to be lowered. All connections may come to one of several workers. For a TLS
    session it needs two descriptors, if another worker answers the requests, and a third one when they come back to it.

    Raises:
        CannotServe: the process can open fewer than 64 connections (or ``max_connections``, if that is less).
    """
    limits = settings.limits()
    each = 3 if workers > 1 and settings.tls_cert else 1
    spare = SPARE_FILES + (WORKER_FILES if workers > 1 else 0)
    files = _raise_file_limit(None if limits.connections is None else each * limits.connections + spare)
    if files is None:
        return limits
    possible = (files - spare) // each
    wanted = possible if limits.connections is None else limits.connections
    least = LEAST_CONNECTIONS if limits.connections is None else min(LEAST_CONNECTIONS, limits.connections)
    if possible < least:
        raise CannotServe(
            f"this process may open only {files} files, which leaves {max(0, possible)} for connections; "
            f"allow at least {each * least + spare} (ulimit -n, LimitNOFILE=, docker run --ulimit nofile=)"
        )
    if wanted > possible and "max_connections" in settings.model_fields_set:  # the default is only an upper bound
        _LOGGER.warning(
            "max_connections is lowered from %d to %d: the process may open only %d files (ulimit -n)",
            wanted,
            possible,
            files,
        )
    return replace(limits, connections=min(wanted, possible))


def _raise_file_limit(wanted: int | None) -> int | None:
    """Raise the soft limit of file descriptors to ``wanted``, or to the hard limit if that is less.

    Args:
        wanted: number of descriptors; ``None`` for as many as possible.

    Returns:
        The limit that then holds; ``None`` if there is none.
    """
    unlimited = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == unlimited:
        return None
    target = hard if wanted is None else wanted if hard == unlimited else min(wanted, hard)
    if target == unlimited or target > soft:
        # Where a process has no hard limit, the kernel may still have one, which shows only in this call.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return None if soft == unlimited else soft


# Sockets.


BACKLOG: Final = 2048
"""Connections that wait to be accepted: more than come while the event loop is busy for its longest turn."""


def listen(host: str, port: int, *, sockets: int = 1, names: tuple[str, str] = ("host", "port")) -> list[socket.socket]:
    """Open sockets that listen for TCP connections at one address.

    Args:
        host: an address or a name; ``0.0.0.0`` is every IPv4 address of the machine, ``::`` every address.
        port: 0 for any free port.
        sockets: their number; the kernel spreads new connections over them (``SO_REUSEPORT``, Linux).
        names: of the settings that hold host and port, for the error's text.

    Raises:
        CannotServe: the address is in use, or does not belong to this machine.
    """
    opened: list[socket.socket] = []
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        every = host == "::" and socket.has_dualstack_ipv6()
        first = socket.socket(family)
        opened.append(first)
        if family == socket.AF_INET6:
            first.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not every)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Without SO_REUSEPORT: else a second server at this address would not be refused, and share the connections.
        first.bind((host, port))
        if sockets > 1:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.listen(BACKLOG)
        for _ in range(sockets - 1):
            address = first.getsockname()[:2]
            more = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=True, dualstack_ipv6=every)
            opened.append(more)
        return opened
    except OSError as error:
        for one in opened:
            one.close()
        hint = "; is another server running?" if error.errno == errno.EADDRINUSE else ";"
        if error.errno == errno.EINVAL and host.lower().startswith("fe80:") and "%" not in host:
            hint = f"; a link-local address needs the name of its network interface ({host}%eth0);"
        name = names[error.errno in (errno.EADDRINUSE, errno.EACCES)]
        # Python appends the address to the reason, in parentheses.
        reason = (error.strerror or str(error)).partition(" (")[0]
        option = f"--{name.replace('_', '-')} (TRICKLECAST_{name.upper()})"
        raise CannotServe(f"cannot listen on {host}:{port}: {reason}{hint} choose another with {option}") from None


def warn_of_open_access(settings: Settings, main: socket.socket, control: socket.socket | None) -> None:
    """Log a warning for each socket that other machines can reach and that has no access control.

    Args:
        main: serves the channels. control: the control plane, if that has a socket of its own.
    """
    certified = settings.has_tokens or settings.tls_client_ca is not None
    if not (certified or settings.webhook_url) and _is_reachable(main):
        _LOGGER.warning(
            "every client that reaches %s:%d may publish to, read and end every channel: there is no access control "
            "(--jwt-secret-file, --webhook-url; docs/how-to/control-access.md)",
            *main.getsockname()[:2],
        )
    if control is not None and not (certified or settings.control_token_file) and _is_reachable(control):
        _LOGGER.warning(
            "every client that reaches %s:%d may list, create and end every channel: the control plane has no access "
            "control (--control-token-file; docs/how-to/control-access.md)",
            *control.getsockname()[:2],
        )


def _is_reachable(listener: socket.socket) -> bool:
    return listener.family != socket.AF_UNIX and not is_loopback(listener)


def is_loopback(listener: socket.socket) -> bool:
    """Whether only clients on this machine can reach a listening socket."""
    if listener.family == socket.AF_UNIX:
        return False  # a proxy uses it, for clients elsewhere
    return ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def tune(listener: socket.socket, *, peer_timeout_s: int, workers: int = 1) -> None:
    """Set TCP options, which every accepted connection inherits.

    They bound the bytes that the kernel keeps of a connection, and the time after which it gives up a peer that has
    vanished without closing. Where several workers accept, the kernel also keeps each connection until its first bytes
    are there (:data:`SILENT_S`). They show which worker it is for; and if a worker dies, connections that have sent
    nothing yet are still in the kernel.
    An option that the operating system does not know is left out.

    Args:
        listener: a TCP socket.
        peer_timeout_s: the time for which a peer may acknowledge nothing, in seconds.
        workers: their number.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause_s = max(1, peer_timeout_s // (2 * KEEP_ALIVE_PROBES))
    options = {
        "TCP_NOTSENT_LOWAT": UNSENT_BYTES,
        "TCP_KEEPIDLE": max(1, peer_timeout_s - KEEP_ALIVE_PROBES * pause_s),
        "TCP_KEEPINTVL": pause_s,
        "TCP_KEEPCNT": KEEP_ALIVE_PROBES,
        "TCP_USER_TIMEOUT": peer_timeout_s * 1000,
    }
    if workers > 1:
        options["TCP_DEFER_ACCEPT"] = SILENT_S
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def address_of(settings: Settings, listener: Any) -> str:
    """The URL of a listening socket's root; of a Unix socket ``http+unix://`` and its percent-encoded path."""
    scheme = "https" if settings.tls_cert else "http"
    if listener.family == socket.AF_UNIX:
        return f"{scheme}+unix://{quote(listener.getsockname(), safe='')}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def maker(server: uvicorn.Server, config: uvicorn.Config) -> Callable[[], Connection]:
    """A function that makes a connection.

    Args:
        server: has started.
        config: names the protocol class and the application; loaded.
    """
    return partial(
        cast(Any, config.http_protocol_class),
        config=config,
        server_state=server.server_state,
        app_state=server.lifespan.state,
    )


async def accept_on(make: Callable[[], Connection], listener: socket.socket, plane: DataPlane, tls: Tls | None) -> Any:
    """Accept connections on a socket until what this returns is closed.

    Args:
        make: makes a connection.
        listener: bound.
        plane: the part that all connections share.
        tls: certificate and key; ``None`` for plain connections.
    """
    loop = asyncio.get_running_loop()
    if tls is not None:
        return TlsListener(listener, tls, plane, make)
    if listener.family == socket.AF_UNIX:
        return await loop.create_unix_server(make, sock=listener, backlog=BACKLOG)
    return await loop.create_server(make, sock=listener, backlog=BACKLOG)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The application at the data plane's address where the control plane has an address of its own."""
    await PlainTextResponse("Not found", 404)(scope, receive, send)


# TLS.


class Tls:
    """The server's certificate and key, and the authorities of clients' certificates. They may be replaced at any time.

    Args:
        settings: name the files.

    Attributes:
        context: for the handshakes that begin from now on.
        valid: the first and the last time at which the certificate is valid, in seconds since 1970.

    Raises:
        CannotServe: as :meth:`load`.
    """

    def __init__(self, settings: Settings) -> None:
        self.load(settings)

    def load(self, settings: Settings) -> None:
        """Read the files. Running connections keep the certificate that they began with.

        Raises:
            CannotServe: a file cannot be read or is not in PEM form, or certificate and key do not belong together.
                The former ones stay in use.
        """
        assert settings.tls_cert, "TLS is on"
        assert settings.tls_key, "certificate and key go together"
        chain = _read("tls_cert", settings.tls_cert)
        context = _tls_context(settings, settings.tls_cert, settings.tls_key, chain)
        self.valid = validity(chain)
        self.context = context
        self.warn(time.time())

    def warn(self, now: float) -> None:
        """Log a warning if the certificate is not valid now, or soon will not be."""
        begins, ends = self.valid
        if now < begins:
            _CERTIFICATE.warning("the certificate (--tls-cert) is not valid before %s", _moment(begins))
        elif now >= ends:
            _CERTIFICATE.warning("the certificate (--tls-cert) has expired at %s; clients refuse it", _moment(ends))
        elif ends - now < min(LAST_SHARE * (ends - begins), LAST_DAYS * 86_400):
            days = (ends - now) / 86_400
            _CERTIFICATE.warning(
                "the certificate (--tls-cert) expires in %.1f days, at %s; renew it, and reload the server (SIGHUP)",
                days,
                _moment(ends),
            )

    async def watch(self) -> None:
        """Warn every day, until cancelled."""
        while True:
            await asyncio.sleep(86_400)
            self.warn(time.time())


_PEER: Final[ContextVar[socket.socket]] = ContextVar("_PEER")
"""The connection whose TLS handshake is under way."""


class _ServerSide(ssl.SSLObject):
    """TLS of one connection. A client whose handshake fails is told why.

    The event loops leave that out: they close the connection with the alert unsent. Without it, a client that lacks a
    certificate could not know what is wrong.
    """

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            with contextlib.suppress(OSError):  # the client has left, or reads nothing
                _PEER.get().send(self.outgoing.read())
            raise


class _ServerContext(ssl.SSLContext):
    """Makes :class:`_ServerSide`."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(made, _ServerSide)
        made.outgoing = outgoing
        return made


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _tls_context(settings: Settings, certificate: Path, key: Path, chain: bytes) -> ssl.SSLContext:
    if not _PEM.search(chain):
        raise CannotServe(f"tls_cert: {certificate} does not contain a certificate (PEM)")
    secret = _read("tls_key", key)
    if b"PRIVATE KEY-----" not in secret:
        raise CannotServe(f"tls_key: {key} does not contain a private key (PEM)")
    if b"ENCRYPTED" in secret:
        # OpenSSL would ask for the password at the terminal, and a server in the background would wait for ever.
        raise CannotServe(f"tls_key: {key} is encrypted; give a key without a password, readable by the server only")
    warn_of_readers(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.__class__ = _ServerContext  # create_default_context() makes no other class
    context.sslobject_class = _ServerSide
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise CannotServe(f"tls_key: {key} does not belong to {certificate}") from None
        raise CannotServe(f"tls_cert, tls_key: cannot use {certificate} with {key}: {error}") from None
    if (authorities := settings.tls_client_ca) is not None:
        try:
            context.load_verify_locations(cadata=_read("tls_client_ca", authorities).decode("ascii", "replace"))
        except ssl.SSLError as error:
            raise CannotServe(f"tls_client_ca: {authorities} does not contain certificates (PEM): {error}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def validity(chain: bytes) -> tuple[float, float]:
    """The first and the last time at which a chain of certificates (PEM) is valid, in seconds since 1970.

    The ssl module has this for a peer's certificate only. A certificate begins with nested lengths (RFC 5280, section
    4.1, in DER), of which six lead to the two times.

    Raises:
        CannotServe: the chain cannot be read.
    """
    begins, ends = 0.0, float("inf")
    try:
        for found in _PEM.finditer(chain):
            der = ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))
            _, at, _ = _element(der, 0)  # the certificate
            _, at, _ = _element(der, at)  # its signed part
            kind, _, end = _element(der, at)
            if kind == 0xA0:  # its version, which old ones lack
                at = end
            for _ in ("serial number", "algorithm", "issuer"):
                _, _, at = _element(der, at)
            _, at, _ = _element(der, at)
            _, first, at = _element(der, at)
            _, last, after = _element(der, at)
            begins = max(begins, _seconds(der[first:at]))
            ends = min(ends, _seconds(der[last:after]))
    except (IndexError, ValueError) as error:
        raise CannotServe(f"tls_cert: a certificate that cannot be read: {error}") from None
    return begins, ends


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The kind of a DER element, where its content begins, and where that ends."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(der[at + 2 : begin])
    return der[at], begin, begin + length


def _seconds(text: bytes) -> float:
    """A time as certificates have it: ``491127093000Z``, whose years begin at 1950, or ``20501127093000Z``."""
    digits = text.decode("ascii")
    if len(digits) == 13:
        digits = ("19" if digits >= "5" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _read(setting: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CannotServe(f"{setting}: cannot read {file}: {error.strerror or error}") from None


class Listener:
    """Accepts connections, some at a time.

    An :class:`asyncio.Server` begins to read from a connection as soon as it has accepted it. This class gives the bare
    socket away first: to begin a TLS handshake (:class:`TlsListener`), or to hand the connection over to another worker
    (:meth:`HandOver.accepted() <tricklecast.app.workers.handover.HandOver.accepted>`).

    Args:
        listener: bound; its owner closes it.
        accepted: gets the socket of each connection, and the address of its peer.

    Attributes:
        sockets: the listener.
    """

    def __init__(self, listener: socket.socket, accepted: Callable[[socket.socket, Any], None]) -> None:
        listener.setblocking(False)
        self.sockets = (listener,)
        self._loop = asyncio.get_running_loop()
        self._accepted = accepted
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept no more connections."""
        self._loop.remove_reader(self.sockets[0])
        if self._retry is not None:
            self._retry.cancel()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self.sockets[0], self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                sock, address = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _LOGGER.error("cannot accept a connection: %s", error.strerror or error)
                self._loop.remove_reader(self.sockets[0])
                self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._listen)
                return
            sock.setblocking(False)
            self._accepted(sock, address)


class TlsListener(Listener):
    """Accepts connections and begins their TLS handshakes.

    A connection is counted when it is accepted. The event loop's own listener would count it after its handshake: a
    client that opens connections and sends nothing could then have as many as the process has file descriptors,
    in spite of ``max_connections`` (docs/adr/0011-an-own-listener-for-tls.md).

    Args:
        listener: bound; its owner closes it.
        tls: certificate and key.
        plane: the part that all connections share.
        make: makes the protocol of a connection.
    """

    def __init__(self, listener: socket.socket, tls: Tls, plane: DataPlane, make: Callable[[], Connection]) -> None:
        super().__init__(listener, self._begin)
        self._tls = tls
        self._plane = plane
        self._make = make

    def _begin(self, sock: socket.socket, address: Any) -> None:
        connection, options = self._make(), self._plane.options
        connecting = self._loop.connect_accepted_socket(
            lambda: connection,
            sock,
            ssl=self._tls.context,
            ssl_handshake_timeout=options.head_timeout_s,
            # Many clients never answer a close_notify: a drain would wait 30 s, the default, for each of them.
            ssl_shutdown_timeout=options.linger_s,
        )
        context = copy_context()
        context.run(_PEER.set, sock)
        handshake = self._loop.create_task(connecting, context=context)
        connection.accepted(handshake, address)
        self._plane.handshakes.add(handshake)
        handshake.add_done_callback(partial(self._over, connection, sock, connection.without_route()))

    def _over(
        self, connection: Connection, sock: socket.socket, attempt: Exchange, handshake: asyncio.Task[Any]
    ) -> None:
        """End a handshake. If it failed or was cancelled, count and log it, and give the connection's place back."""
        plane = self._plane
        plane.handshakes.discard(handshake)
        if connection.handshake is None:
            return  # it succeeded: connection_made has been called
        if handshake.cancelled():
            why = Reason.SHUTDOWN if connection.surplus is None else Reason.limit(connection.surplus)
        else:
            why = _failure(handshake.exception())
        plane.failed_handshakes += 1
        attempt.record.detail = why
        attempt.end(Reason.HANDSHAKE)
        connection.leave()
        sock.close()
        connection.handshake = None  # it refers to the connection, and would keep it until a full garbage collection


def _failure(error: BaseException | None) -> str:
    """The reason of a failed handshake in one word: OpenSSL's own (``http_request``), a timeout, or a gone client."""
    match error:
        case ssl.SSLError(reason=str(reason)):
            return reason.lower()
        case ConnectionAbortedError() | TimeoutError():
            return Reason.TIMEOUT
        case OSError():
            return Reason.CLIENT_GONE
        case _:
            _LOGGER.error("a TLS handshake failed", exc_info=error)
            return Reason.ERROR
