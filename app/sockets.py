"""The sockets that a server listens on: a TCP port, a Unix socket, or the socket that systemd has opened for it.

systemd keeps its socket open while a service restarts: connections that come meanwhile wait in the kernel's queue, and
no client finds a closed port. A Unix socket belongs to the server: it is removed at the end, and one that a killed
server has left behind is replaced, but never one on which another server listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tricklecast.app import systemd
from tricklecast.app.listener import BACKLOG, CannotServe, listen, tune, warn_of_open_access
from tricklecast.app.settings import Settings

SOCKET_MODE: Final = 0o660
"""The owner and the group of a Unix socket may connect to it, such as the proxy in front (``www-data``)."""

_SPREADS: Final = sys.platform == "linux"
"""Whether the kernel spreads connections over the sockets of one address. On macOS the last one gets all of them."""

_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


class Sockets(NamedTuple):
    """The listening sockets of a server.

    Attributes:
        main: channels, and everything else where the control plane has no socket of its own.
        control: that of the control plane, if it has an address of its own.
    """

    main: socket.socket
    control: socket.socket | None

    @property
    def data_port(self) -> int | None:
        """The port of the channels, if the control plane has another one."""
        if self.control is None or self.main.family == socket.AF_UNIX:
            return None
        return int(self.main.getsockname()[1])


@contextlib.contextmanager
def opened(settings: Settings, workers: int = 1) -> Iterator[list[Sockets]]:
    """Open the sockets that the settings or systemd name, and close them at the end of the block.

    Returns:
        Those of each worker. Where the kernel spreads connections over several sockets of one address (Linux, TCP),
        each has its own; else all of them accept from the same.

    Raises:
        CannotServe: the address is in use or does not belong to this machine, or systemd's socket cannot be used.
    """
    with contextlib.ExitStack() as stack:
        if (given := _given()) is not None:
            main = [stack.enter_context(given)]
        elif settings.unix_socket is not None:
            main = [stack.enter_context(_unix(settings.unix_socket))]
        else:
            main = listen(settings.host, settings.port, sockets=workers if _SPREADS else 1)
        for one in main:
            stack.enter_context(one)
            if one.family != socket.AF_UNIX:
                tune(one, peer_timeout_s=settings.peer_timeout_s, workers=workers)
        control = None
        if settings.control_port is not None:
            where = settings.control_host or settings.host, settings.control_port
            control = stack.enter_context(listen(*where, names=("control_host", "control_port"))[0])
        warn_of_open_access(settings, main[0], control)
        yield [Sockets(main[number % len(main)], control) for number in range(workers)]


def _given() -> socket.socket | None:
    """The socket that systemd has opened for this process, if there is one."""
    try:
        given = systemd.sockets()
    except OSError as error:
        raise CannotServe(f"systemd passes sockets that are not there: {error.strerror}") from None
    if len(given) > 1:
        for one in given:
            one.close()
        raise CannotServe(f"systemd passes {len(given)} sockets; the server has a use for one (ListenStream=)")
    if given and (given[0].type != socket.SOCK_STREAM or given[0].family not in _FAMILIES):
        given[0].close()
        raise CannotServe("systemd's socket is no stream of TCP or of a Unix socket (ListenStream=)")
    return given[0] if given else None


@contextlib.contextmanager
def _unix(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket, and remove it at the end unless it is another one by then."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            _remove_left_behind(path)
            before = os.umask(0o777 & ~SOCKET_MODE)
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
            listener.listen(BACKLOG)
            mine = path.stat().st_ino
        except OSError as error:
            raise CannotServe(f"cannot listen on the Unix socket {path}: {error.strerror or error}") from None
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):  # its folder is gone or read-only by now
                if path.stat().st_ino == mine:
                    path.unlink()


def _remove_left_behind(path: Path) -> None:
    """Remove the socket of a server that was killed.

    Raises:
        CannotServe: it is no socket, or a server listens on it.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise CannotServe(f"cannot listen on the Unix socket {path}: a file of that name is there, and no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # the other server's queue of connections is full
        raise CannotServe(f"cannot listen on the Unix socket {path}: another server listens on it")
