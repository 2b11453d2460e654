"""A plain TCP stream that can always read what the peer said last.

Event-loop transports drop their read side as soon as one write fails. A server that refuses a segment early and
closes then resets the connection under the body that is still being written, and the answer, already in the kernel's
buffer, would be lost with the write. Here reading and writing are independent, as they are in the kernel.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

STAGGER_S: Final = 0.25
"""How long one address may stay silent before the next one is tried beside it (RFC 8305, section 5)."""

PEER_TIMEOUT_S: Final = 10
"""A peer that acknowledges nothing for so long has vanished: bytes on their way to it, or the probes of a quiet
connection, which begin after the same time. TCP itself would go on for a quarter of an hour, or for ever."""

_OPTIONS: Final = {
    # A chunk is a frame of live media or a small message: it leaves now, not when the last one is acknowledged.
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": PEER_TIMEOUT_S,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": PEER_TIMEOUT_S // 2,
    "TCP_USER_TIMEOUT": PEER_TIMEOUT_S * 1000,
}
"""What a system does not know is left out."""

_IN_PROGRESS: Final = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN}


class SocketStream(ByteStream):
    """A connected, non-blocking TCP socket as an anyio byte stream.

    Attributes:
        peer_stopped_reading: a write was rejected. Later writes are dropped, and reading still works.
        stall_s: how long a peer that has received nothing is written to, in seconds; ``None``: without end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = anyio.Lock()
        self.peer_stopped_reading = False
        self.stall_s: float | None = None

    async def send(self, item: bytes) -> None:
        """Write all of ``item``; one call of ``send(2)`` when the kernel has room for it.

        A peer that no longer reads is not an error here, since its answer may be waiting to be read.

        Raises:
            TimeoutError: the peer has received nothing for ``stall_s`` seconds.
        """
        async with self._sending:
            view = memoryview(item)
            try:
                while view and not self.peer_stopped_reading:
                    try:
                        view = view[self._socket.send(view) :]
                    except BlockingIOError:
                        await self._room()
            except TimeoutError:
                raise
            except (OSError, anyio.ClosedResourceError):
                self.peer_stopped_reading = True

    @property
    def unacknowledged(self) -> int:
        """Bytes written that the peer has not received yet; 0 where the system does not tell."""
        if sys.platform == "win32":
            return 0
        from fcntl import ioctl
        from termios import TIOCOUTQ

        try:
            return int.from_bytes(ioctl(self._socket, TIOCOUTQ, bytes(4)), sys.byteorder)
        except (OSError, ValueError):  # ValueError: it is closed
            return 0

    async def _room(self) -> None:
        """Wait until something can be written, for as long as the peer receives what was."""
        while True:
            before = self.unacknowledged
            with anyio.move_on_after(self.stall_s):
                return await anyio.wait_writable(self._socket)
            if self.unacknowledged >= before:
                raise TimeoutError

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Read what is there, waiting for at least one byte.

        Raises:
            anyio.EndOfStream: the peer closed its side.
            anyio.BrokenResourceError: the connection is broken.
            anyio.ClosedResourceError: it was closed here.
        """
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                if self._socket.fileno() < 0:
                    raise anyio.ClosedResourceError from error
                raise anyio.BrokenResourceError from error
            else:
                if not data:
                    raise anyio.EndOfStream
                return data

    def is_silent(self) -> bool:
        """Whether the peer has neither closed nor sent anything: what a pooled connection must be."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def send_eof(self) -> None:
        """Close the writing side."""
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close the socket, waking whoever waits for it."""
        self.close()

    def close(self) -> None:
        """The same, for callers that cannot wait."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()


async def connect_tcp(host: str, port: int) -> SocketStream:
    """Connect to the first of a host's addresses that answers.

    Addresses are tried in the resolver's order, each one beside the earlier ones once those have been silent for
    :data:`STAGGER_S` or have failed, so that a dead address family costs a moment instead of a timeout.

    Raises:
        OSError: the host has no address, or every address failed.
    """
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connected: list[socket.socket] = []
    errors: list[OSError] = []

    async def attempt(family: int, address: tuple[str | int, ...], over: anyio.Event) -> None:
        try:
            sock = await _connect(family, address)
        except OSError as error:
            errors.append(error)
        else:
            connected.append(sock)
            attempts.cancel_scope.cancel()
        over.set()

    try:
        async with anyio.create_task_group() as attempts:
            for family, _, _, _, address in found:
                over = anyio.Event()
                attempts.start_soon(attempt, family, address, over)
                with anyio.move_on_after(STAGGER_S):
                    await over.wait()
    except BaseException:  # cancelled, perhaps after a connection was made
        for unwanted in connected:
            unwanted.close()
        raise
    for late in connected[1:]:
        late.close()
    if not connected:
        raise errors[0] if len(errors) == 1 else OSError("; ".join(dict.fromkeys(map(str, errors))))
    return SocketStream(connected[0])


async def _connect(family: int, address: tuple[str | int, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if (code := sock.connect_ex(address)) in _IN_PROGRESS:
            await anyio.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock
