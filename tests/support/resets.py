"""Connections that break as they do when a program crashes: with a TCP reset."""

from __future__ import annotations

import asyncio
import socket
import struct


def reset_when_closed(sock: socket.socket) -> None:
    """Whatever the socket still has to say, its end is a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection now, unless it has ended already."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0 and not writer.is_closing():
        reset_when_closed(sock)
    writer.transport.abort()
