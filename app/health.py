"""`tricklecast health`: asks the server on this machine whether it is alive.

Docker runs it every few seconds: it imports little.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

import typer

from tricklecast.trickle.errors import InvalidInput, TrickleError
from tricklecast.trickle.terminal import ClientCert, ClientKey, client_tls
from tricklecast.trickle.wire import DEFAULT_PORT

TIMEOUT_S: Final = 2.0
"""The deadline of each step: to connect, and to get the response."""

DEFAULT_ADDRESS: Final = f"http://127.0.0.1:{DEFAULT_PORT}"

_HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address of a server that listens on all addresses, for clients on its own machine."""


_ADDRESS: Final = re.compile(rb"(https?://[^\s/]+:\d+\n|https?\+unix://[^\s/]+\n)?")
"""The content of a health file."""


class Unhealthy(TrickleError):
    """The server does not answer, or does not answer 200."""


def write_address(file: Path, address: str) -> None:
    """Write the URL at which the server answers health checks, for :func:`health`.

    Raises:
        InvalidInput: the file cannot be written, or it exists and has another content.
    """
    try:
        if file.exists() and not file.is_dir() and not _is_ours(file):
            raise InvalidInput(f"health_file: {file} exists and was not written by a server; name another file")
        file.write_text(f"{address}\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"health_file: cannot write {file}: {error.strerror or error}") from None


def remove_address(file: Path, address: str) -> None:
    """Remove the file at the end of the server, unless another one has written its own address meanwhile."""
    with contextlib.suppress(OSError):  # it is gone, or its folder is read-only by now; the server ends all the same
        if file.read_bytes() == f"{address}\n".encode():
            file.unlink()


def _is_ours(file: Path) -> bool:
    """Whether a server wrote this file, and may overwrite and remove it. An empty one was torn by a crash."""
    if not file.is_file():
        return False  # a device or a pipe
    with file.open("rb") as opened:
        return _ADDRESS.fullmatch(opened.read(1024)) is not None


def _address_in(file: Path) -> str:
    """The address that a server has written.

    Raises:
        OSError: the file cannot be read.
        Unhealthy: the file has another content.
    """
    with file.open("rb") as opened:
        text = opened.read(1024)
    if not text or _ADDRESS.fullmatch(text.strip() + b"\n") is None:
        raise Unhealthy(f"{file} does not hold the address of a server; name the file that `serve --health-file` wrote")
    return text.decode("ascii").strip()


def ask(address: str, tls: ssl.SSLContext | None = None) -> None:
    """Ask a server on this machine whether it is alive. Its certificate is not checked: it is for another host name.

    Args:
        address: its URL.
        tls: has a certificate for a server that wants one of its clients; ``None``: there is none.

    Raises:
        Unhealthy: it does not answer with 200 in time.
    """
    try:
        parts = urlsplit(address)
        scheme, _, is_unix = parts.scheme.partition("+")
        if is_unix:
            host, port = "localhost", None
        else:
            host, port = _HERE.get(parts.hostname or "", parts.hostname or ""), parts.port
    except ValueError as error:
        raise Unhealthy(f"{address} is no address of a server: {error}") from None
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        if is_unix:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(TIMEOUT_S)
            connection.sock.connect(unquote(parts.netloc))
        else:
            connection.connect()
        if scheme == "https":
            context = tls or ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        # A server refuses a client without a certificate by closing the connection, after the client's handshake.
        closed = scheme == "https" and tls is None and isinstance(error, http.client.RemoteDisconnected | ssl.SSLError)
        hint = "; does it want a certificate of its clients (--cert, --key)?" if closed else ""
        raise Unhealthy(f"no answer from {address}: {getattr(error, 'strerror', None) or error}{hint}") from None
    finally:
        connection.close()
    if status != 200:
        raise Unhealthy(f"{address} answers {status}")


def health(
    file: Annotated[
        Path | None,
        typer.Option(
            "--health-file",
            envvar="TRICKLECAST_HEALTH_FILE",
            metavar="FILE",
            help=f"The file that the server was started with; without it, {DEFAULT_ADDRESS} is asked.",
        ),
    ] = None,
    cert: ClientCert = None,
    key: ClientKey = None,
) -> None:
    """Check the local server's health, for example in a container.

    A server on another port, or with TLS, is found by a file: a server that is started with --health-file writes its
    address to it.

    Exit codes: 0 the server answers; 1 it does not; 2 wrong usage.

    Examples:

    \b
      tricklecast health
      tricklecast serve --port 8443 --health-file /run/tricklecast.health
      tricklecast health --health-file /run/tricklecast.health
    """
    try:
        address = DEFAULT_ADDRESS if file is None else _address_in(file)
    except OSError as error:
        raise Unhealthy(f"no server has written its address: cannot read {file}: {error.strerror or error}") from None
    ask(address, tls=client_tls(None, cert, key))
    typer.echo("ok")
