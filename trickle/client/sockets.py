"""A plain TCP stream whose reading side survives a failed write, and how it is connected.

The stream transports of asyncio drop their reading side as soon as one write fails. A server that refuses a segment
early and closes then resets the connection under the body that is still being written. The answer already lies in the
kernel's buffer, and would be lost with the write. Here reading and writing are independent, as they are in the kernel.

Each call makes at most one task switch. Data for which the kernel has room is written at once. Under asyncio the event
loop watches the socket for as long as it is open: data is read as soon as it comes, and the task that waits for it is
woken with it. Data that nobody takes stops that, so that no more than one read of :data:`READ_BYTES` is held.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import aiohappyeyeballs
import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

with suppress(ImportError):  # Windows has neither
    from fcntl import ioctl
    from termios import TIOCOUTQ

STAGGER_S: Final = 0.25
"""After this time without an answer, the next address of a host is tried as well (RFC 8305, section 5)."""

PEER_TIMEOUT_S: Final = 10
"""A peer that acknowledges nothing for this long has vanished. On a quiet connection, probes begin after this time.
TCP itself would wait for a quarter of an hour, or for ever."""

READ_BYTES: Final = 120 * 1024
"""A chunk of 64 KiB with its framing in one system call. Python allocates all of it each time: from 128 KiB on, the C
library maps new pages for each read (``M_MMAP_THRESHOLD``), and a read costs three times as much CPU."""

CHECKED_RECEIVES: Final = 16
"""Every 16th read checks that its task was not cancelled. A check costs as much as the rest of a small read."""

_WINDOWS: Final = sys.platform == "win32"
"""Its usual event loop cannot watch sockets."""

_OPTIONS: Final = {
    # A chunk is a frame of live media or a small message: it leaves at once, not after the last one is acknowledged.
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": PEER_TIMEOUT_S,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": PEER_TIMEOUT_S // 2,
    "TCP_USER_TIMEOUT": PEER_TIMEOUT_S * 1000,
}
"""The names differ between systems: an option that this system does not know is left out."""


class Silence(Exception):
    """No byte came for ``receive_s`` seconds. Not an ``OSError``: that would end a TLS stream above this one."""


class SocketStream(ByteStream):
    """A connected, non-blocking TCP socket as an anyio byte stream.

    Attributes:
        peer_stopped_reading: a write was rejected. Later writes are dropped; reading still works.
        stall_s: how long to write to a peer that receives nothing, in seconds; ``None``: for ever.
        receive_s: how long to wait for bytes from the peer, in seconds; ``None``: for ever.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = anyio.Lock()
        self.peer_stopped_reading = False
        self.stall_s: float | None = None
        self.receive_s: float | None = None
        self._received = b""
        self._receives = 0  # calls of receive()
        self._ended = False
        self._failure: OSError | None = None
        self._watcher: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send_now(self, parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
        """Write what the kernel has room for, without waiting; the parts are not joined first.

        Returns:
            The rest, to be passed to :meth:`send`; nothing where the peer no longer reads.
        """
        if self.peer_stopped_reading:
            return b""
        try:
            count = self._socket.sendmsg(parts)
        except BlockingIOError:
            count = 0
        except OSError:
            self.peer_stopped_reading = True
            return b""
        return b"" if count == sum(map(len, parts)) else memoryview(b"".join(parts))[count:]

    async def send(self, item: bytes | memoryview) -> None:
        """Write all of ``item``.

        A peer that no longer reads is not an error here, since its answer may be waiting to be read.

        Raises:
            TimeoutError: the peer has received nothing for ``stall_s`` seconds.
        """
        async with self._sending:
            while rest := self.send_now([item]):
                item = rest
                try:
                    await self._wait_for_room()
                except anyio.ClosedResourceError:
                    self.peer_stopped_reading = True

    @property
    def unacknowledged(self) -> int:
        """Bytes written that the peer has not received yet; 0 where the system does not tell."""
        try:
            return int.from_bytes(ioctl(self._socket, TIOCOUTQ, bytes(4)), sys.byteorder)
        except (NameError, OSError, ValueError):  # not on Windows; ValueError: the socket is closed
            return 0

    async def _wait_for_room(self) -> None:
        """Wait until something can be written, as long as the peer receives earlier bytes."""
        while True:
            before = self.unacknowledged
            with anyio.move_on_after(self.stall_s):
                return await anyio.wait_writable(self._socket)
            if self.unacknowledged >= before:
                raise TimeoutError

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Bytes from the peer; waits for at least one. A call that is cancelled loses nothing: the next one has them.

        Raises:
            anyio.EndOfStream: the peer closed its side.
            anyio.BrokenResourceError: the connection is broken.
            anyio.ClosedResourceError: it was closed here.
            Silence: nothing came for ``receive_s`` seconds.
        """
        # anyio cancels no task that is about to run anyway, as one is whose peer always has bytes ready.
        self._receives += 1
        if self._receives % CHECKED_RECEIVES == 0:
            await anyio.lowlevel.checkpoint_if_cancelled()
        while not (data := self._received):
            if self._socket.fileno() < 0:
                raise anyio.ClosedResourceError
            if self._failure is not None:
                raise anyio.BrokenResourceError from self._failure
            if self._ended:
                raise anyio.EndOfStream
            await (self._wait_for_anyio() if _WINDOWS or in_trio() else self._wait())
        self._received = data[max_bytes:]
        return data if len(data) <= max_bytes else data[:max_bytes]

    async def _wait_for_anyio(self) -> None:
        await anyio.lowlevel.checkpoint()  # other tasks run even if this connection always has data
        self._read()
        if not (self._received or self._ended or self._failure):
            with anyio.move_on_after(self.receive_s) as scope:
                await anyio.wait_readable(self._socket)
            if scope.cancelled_caught:
                raise Silence
            self._read()

    async def _wait(self) -> None:
        """Let the event loop watch the socket, and wait until it has read something."""
        loop = asyncio.get_running_loop()
        if self._watcher is not loop:  # not watched, or by the loop of an earlier asyncio.run()
            loop.add_reader(self._socket, self._on_readable)
            self._watcher = loop
            self._set_timer(None)
        self._waiter = loop.create_future()
        if self.receive_s is not None:
            self._due_at = loop.time() + self.receive_s
            # One timer for many waits: it is set again only when it fires.
            if self._timer is None or self._timer.when() > self._due_at:
                self._set_timer(loop)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _on_readable(self) -> None:
        if self._received or self._ended or self._failure:  # not taken yet: the rest stays in the kernel
            self._unwatch()
        else:
            self._read()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def _read(self) -> None:
        """Take what the kernel has."""
        try:
            self._received = self._socket.recv(READ_BYTES)
            self._ended = not self._received
        except BlockingIOError:
            pass
        except OSError as error:
            self._failure = error

    def _unwatch(self) -> None:
        loop, self._watcher = self._watcher, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket)

    def _set_timer(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if loop is None else loop.call_at(self._due_at, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done() or self.receive_s is None:
            return
        if loop.time() < self._due_at:
            self._set_timer(loop)
        else:
            self._waiter.set_exception(Silence())

    def is_silent(self) -> bool:
        """Whether the peer has neither closed nor sent anything, as is expected of an idle connection."""
        if self._received or self._ended or self._failure:
            return False
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
        """Close the socket, waking each task that waits for it."""
        self.close()

    def close(self) -> None:
        """Close the socket, for callers that cannot wait."""
        if self._socket.fileno() >= 0:
            self._unwatch()
            self._set_timer(None)
            anyio.notify_closing(self._socket)
            self._socket.close()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)


async def connect_tcp(host: str, port: int) -> SocketStream:
    """Connect to the first of a host's addresses that answers (happy eyeballs, RFC 8305).

    Raises:
        OSError: the host has no address, or no address could be connected to.
    """
    sock = await (_connect_trio if in_trio() else _connect_asyncio)(host, port)
    with suppress(OSError):  # a peer that has reset the connection already: reading tells
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return SocketStream(sock)


def in_trio() -> bool:
    """Whether the current task is one of trio's."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_task())


async def _connect_asyncio(host: str, port: int) -> socket.socket:
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        return await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=STAGGER_S)
    except RuntimeError as error:  # uvloop's word for some failures
        raise OSError(str(error)) from error


async def _connect_trio(host: str, port: int) -> socket.socket:
    import trio

    stream = await trio.open_tcp_stream(host, port, happy_eyeballs_delay=STAGGER_S)
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's words, in its versions, for an answer that is no TLS."""


def reason(error: BaseException) -> str:
    """Why no connection could be made, in words; libraries hide the first cause in a group."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    if isinstance(first, ssl.SSLError) and getattr(first, "reason", None) in _NOT_TLS:
        return "the server does not speak TLS: the URL may have to begin with http://"
    if isinstance(first, OSError) and not isinstance(first, ssl.SSLError | socket.gaierror) and (first.errno or 0) > 0:
        return os.strerror(first.errno or 0)
    return getattr(first, "strerror", None) or str(first) or type(first).__name__
