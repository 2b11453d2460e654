"""A turn of the load generator: which sockets are ready, and whom that concerns."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

Handler = Callable[[int], None]


def address(number: int) -> str:
    """An address of a client of its own: each lies on the loopback interface (Linux)."""
    return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"


class Loop:
    """epoll, and who handles which socket.

    Attributes:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def connect(self, handler: Handler, source: str | None = None) -> socket.socket:
        """Open a connection to the server; ``handler`` is told when it is ready, with epoll's events.

        Args:
            source: the client's own address; ``None``: any.
        """
        sock = socket.create_connection(
            ("127.0.0.1", self.port), timeout=10, source_address=(source, 0) if source else None
        )
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._handlers[sock.fileno()] = handler
        self._epoll.register(sock, select.EPOLLIN)
        return sock

    def want_write(self, sock: socket.socket, wanted: bool) -> None:
        """Also report when the socket takes data again, or no longer."""
        self._epoll.modify(sock, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def forget(self, sock: socket.socket) -> None:
        """Close a connection."""
        self._epoll.unregister(sock)
        del self._handlers[sock.fileno()]
        sock.close()

    def turn(self, until: float) -> None:
        """Handle what is ready; wait for it until then (``time.monotonic``) at the latest."""
        handlers = self._handlers
        for fd, events in self._epoll.poll(max(0.0, until - time.monotonic())):
            if (handler := handlers.get(fd)) is not None:
                handler(events)
