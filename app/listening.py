"""Where a server listens: its sockets, and how their addresses are said."""

from __future__ import annotations

import errno
import socket
from typing import Any

from tricklecast.app.settings import Settings
from tricklecast.trickle.errors import TrickleError


class CannotServe(TrickleError):
    """The server cannot start as it is configured."""


def listen(host: str, port: int, *, settings: tuple[str, str] = ("host", "port")) -> socket.socket:
    """A socket that listens there.

    Args:
        host: an address or a name; ``0.0.0.0`` is every IPv4 address of the machine, ``::`` every one of either kind.
        port: 0 for any that is free.
        settings: what to change where it cannot: the names of the settings that say host and port.

    Raises:
        CannotServe: the address is in use, or is none of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        every = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=every)
    except OSError as error:
        hint = "; is another server running?" if error.errno == errno.EADDRINUSE else ";"
        name = settings[error.errno in (errno.EADDRINUSE, errno.EACCES)]
        where = f"{host}:{port}"
        # What Python adds to the reason in parentheses is the address once more.
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise CannotServe(f"cannot listen on {where}: {reason}{hint} {_how_to_set(name)} says where") from None


def _how_to_set(name: str) -> str:
    """A setting as it is given on the command line and in the environment."""
    return f"--{name.replace('_', '-')} (TRICKLECAST_{name.upper()})"


def address_of(settings: Settings, listener: Any) -> str:
    """The URL of a socket's root."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
