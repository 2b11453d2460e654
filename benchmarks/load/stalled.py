"""Readers that ask for a segment and never read what they are sent."""

from __future__ import annotations

import socket

RECEIVE_BYTES = 4096
"""Of their receive buffers, so that little of what they are sent vanishes in the kernel."""

SEGMENT_BYTES = 1448
"""Of a TCP segment, as on Ethernet. The kernel sizes a send buffer by it (``tcp_sndbuf_expand``): loopback's 64 KiB
would let it take in megabytes for each of these readers, as no network does."""

ESTABLISHED = 1
"""The state of a connection that nobody has ended (Linux, ``include/net/tcp_states.h``)."""


class Stalled:
    """So many of them, connected.

    Args:
        port: of the server. path: what they ask for.
    """

    def __init__(self, port: int, path: str, count: int) -> None:
        self._sockets = [connect_slow(port, path) for _ in range(count)]

    def connected(self) -> int:
        """How many the server has not cut off."""
        return sum(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED for sock in self._sockets)


def connect_slow(port: int, path: str) -> socket.socket:
    """Connect a reader with small buffers, and send its GET."""
    sock = socket.socket()
    # Before connecting: later it no longer bounds the window that the server is told of.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    sock.connect(("127.0.0.1", port))
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: slow/1\r\n\r\n".encode())
    return sock
