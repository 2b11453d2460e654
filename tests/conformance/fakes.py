"""Servers that break the rules on purpose, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tricklecast.app.tools.conformance.target import Address


@contextmanager
def scripted(answer: bytes, *, close: bool = False) -> Iterator[Address]:
    """A server that says the same to everyone, without reading further than the first bytes of each request.

    Args:
        answer: what it sends for each piece that it receives; nothing if empty.
        close: whether it closes the connection after that.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, answer, close), daemon=True).start()
        try:
            yield Address("127.0.0.1", listener.getsockname()[1])
        finally:
            # Closing alone would leave a thread in accept() on some systems.
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, answer: bytes, close: bool) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, answer, close), daemon=True).start()


def _serve(connection: socket.socket, answer: bytes, close: bool) -> None:
    with connection:
        try:
            while connection.recv(1 << 16):
                connection.sendall(answer)
                if close:
                    return
        except OSError:
            return


def unused_address() -> Address:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", listener.getsockname()[1])
