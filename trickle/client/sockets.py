"""A TCP stream whose reading side survives a failed write, and how it is connected.

Theory of operation
===================

*The problem.* A server that refuses a segment early answers and closes. That resets the connection under the body that
the client is still writing. The answer already lies in the client's kernel. But asyncio's stream transports drop their
reading side as soon as one write fails, and the answer with it.

*The idea.* :class:`SocketStream` works on the socket itself. Reading and writing are independent, as they are in the
kernel: a failed write sets ``peer_stopped_reading``, drops later writes, and changes nothing for reads.

*Cost.* Data for which the kernel has room is written at once. Under asyncio the event loop watches the socket as long
as it is open: when bytes come, the loop reads them, and runs the task that waits in the same turn (:mod:`.waking`).
Registering the socket for each wait would cost two more system calls per read. Under trio each wait goes through anyio.
Whether the present loop is still the one that watches is asked once per request (:meth:`SocketStream.is_silent`).

*Bound.* While bytes wait that no task has taken, the loop does not watch the socket. So one read of :data:`READ_BYTES`
is held; the rest stays in the kernel, and the server waits.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import ioctl
from functools import cache
from math import inf
from termios import TIOCOUTQ
from time import monotonic
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

if TYPE_CHECKING:
    import asyncio

    from tricklecast.trickle.client.waking import Waiter

STAGGER_S: Final = 0.25
"""If an address of a host has not answered after this time, the next one is tried beside it (RFC 8305, section 5)."""

PEER_TIMEOUT_S: Final = 10
"""A server that acknowledges nothing for this long has vanished. On a quiet connection, probes begin after this time.
TCP itself would wait for a quarter of an hour, or for ever."""

READ_BYTES: Final = 120 * 1024
"""A read takes a chunk of 64 KiB with its framing in one system call. Python allocates all of these bytes each time:
from 128 KiB on, the C library maps new pages for each read (``M_MMAP_THRESHOLD``), at three times the CPU."""

QUEUE_FULL_S: Final = 0.02
"""A Unix socket whose server has too many connections waiting is tried again after this time."""

_OPTIONS: Final = {
    # A chunk is a frame of live media or a small message: it leaves at once, not after the last one is acknowledged.
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": PEER_TIMEOUT_S,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": PEER_TIMEOUT_S // 2,
    "TCP_USER_TIMEOUT": PEER_TIMEOUT_S * 1000,
}
"""Options of TCP. Systems differ: an option that this system does not know is left out."""


class Silence(Exception):
    """No byte came for ``receive_s`` seconds."""

    # Not an OSError, which would end a TLS stream above this one.


class SocketStream(ByteStream):
    """A connected, non-blocking TCP socket as an anyio byte stream.

    Attributes:
        peer_stopped_reading: a write was rejected. Later writes are dropped; reading still works.
        stall_s: how long a write waits for a peer that receives nothing, in seconds; ``None``: for ever.
        receive_s: how long a read waits for bytes, in seconds; ``None``: for ever.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._readable = select.poll()  # a read that finds nothing raises an error, which takes three times as long
        self._readable.register(sock, select.POLLIN)
        # Writing.
        self._sending = anyio.Lock()  # one send() at a time
        self.peer_stopped_reading = False
        self.stall_s: float | None = None
        # Reading. At most one of the next three is set; receive() takes or raises it.
        self.receive_s: float | None = None
        self._received = b""  # bytes that no task has taken
        self._ended = False  # the peer has closed its side
        self._failure: OSError | None = None
        # Waiting.
        self._scope: anyio.CancelScope | None = None  # of the present wait under trio
        # Waiting under asyncio.
        self._waiter: Waiter | None = None  # for the task in receive(); its loop watches the socket
        self._now: Callable[[], float] = monotonic  # the clock of that loop
        self._due_at = 0.0  # when the present wait becomes a Silence
        # One timer serves many waits: only when it fires, at or before _due_at, it is set again.
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = inf

    def send_now(self, parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
        """Write as much as the kernel has room for, without waiting and without joining the parts.

        Returns:
            The rest, which the caller passes to :meth:`send`; nothing if the peer no longer reads.
        """
        if self.peer_stopped_reading:
            return b""
        whole = parts[0] if len(parts) == 1 else None
        try:
            count = self._socket.sendmsg(parts) if whole is None else self._socket.send(whole)
        except BlockingIOError:
            count = 0
        except OSError:
            self.peer_stopped_reading = True
            return b""
        if whole is None:
            if count == sum(map(len, parts)):
                return b""
            whole = b"".join(parts)
        return b"" if count == len(whole) else memoryview(whole)[count:]

    async def send(self, item: bytes | memoryview) -> None:
        """Write all of ``item``. A peer that no longer reads is no error, since its answer may be waiting to be read.

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
        """Bytes written that the peer has not received yet; 0 if the system does not tell."""
        try:
            return int.from_bytes(ioctl(self._socket, TIOCOUTQ, bytes(4)), sys.byteorder)
        except (OSError, ValueError):  # ValueError: the socket is closed
            return 0

    async def _wait_for_room(self) -> None:
        # A slow peer is not a stalled one: the time counts anew while earlier bytes get through.
        while True:
            before = self.unacknowledged
            with anyio.move_on_after(self.stall_s):
                return await anyio.wait_writable(self._socket)
            if self.unacknowledged >= before:
                raise TimeoutError

    def limit_wait(self, seconds: float | None) -> None:
        """Set ``receive_s``, and begin a present wait anew."""
        self.receive_s = seconds
        if self._waiter is not None and seconds is not None:
            self._due_at = self._now() + seconds
            if self._due_at < self._fires_at:
                self._set_timer(self._waiter.loop)
        if self._scope is not None:
            self._scope.deadline = inf if seconds is None else anyio.current_time() + seconds

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Wait for at least one byte of the peer. A cancelled call loses nothing: the next one returns the bytes.

        Raises:
            anyio.EndOfStream: the peer closed its side.
            anyio.BrokenResourceError: the connection is broken.
            anyio.ClosedResourceError: it was closed here.
            Silence: no byte came for ``receive_s`` seconds.
        """
        while not (data := self._received):
            if self._socket.fileno() < 0:
                raise anyio.ClosedResourceError
            if self._failure is not None:
                raise anyio.BrokenResourceError from self._failure
            if self._ended:
                raise anyio.EndOfStream
            if (waiter := self._waiter) is None:
                if in_trio():
                    await self._wait_for_anyio()
                    continue
                waiter = self._watch()
            if self.receive_s is not None:
                self._due_at = self._now() + self.receive_s
                if self._due_at < self._fires_at:
                    self._set_timer(waiter.loop)
            await waiter
        if len(data) <= max_bytes:
            self._received = b""
            return data
        self._received = data[max_bytes:]
        return data[:max_bytes]

    async def _wait_for_anyio(self) -> None:
        await anyio.lowlevel.checkpoint()  # other tasks run, even if this peer always has bytes
        self._read()
        if not (self._received or self._ended or self._failure):
            try:
                with anyio.move_on_after(self.receive_s) as self._scope:
                    await anyio.wait_readable(self._socket)
                if self._scope.cancelled_caught:
                    raise Silence
            finally:
                self._scope = None
            self._read()

    def _watch(self) -> Waiter:
        """Let the present event loop watch the socket."""
        from tricklecast.trickle.client.waking import clock_of

        self._waiter = waiter = waiter_type()()
        self._now = clock_of(waiter.loop)
        waiter.loop.add_reader(self._socket, self._read)
        self._set_timer(None)
        return waiter

    def _read(self) -> None:
        """The socket has something to read, most likely; the event loop calls this, too."""
        if self._received or self._ended or self._failure:  # no task has taken it: the rest stays in the kernel
            self._unwatch()
            return
        try:
            self._received = self._socket.recv(READ_BYTES)
            self._ended = not self._received
        except BlockingIOError:
            pass
        except OSError as error:
            self._failure = error
        if self._waiter is not None:
            self._waiter.wake_now()

    def _unwatch(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.loop.is_closed():
            waiter.loop.remove_reader(self._socket)

    def _set_timer(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._fires_at = None, inf
        if loop is not None:
            self._timer, self._fires_at = loop.call_at(self._due_at, self._on_timer, loop), self._due_at

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._fires_at = None, inf
        if self._waiter is None or self._waiter.done() or self.receive_s is None:
            return
        if self._now() < self._due_at:
            self._set_timer(loop)
        else:
            self._waiter.fail(Silence())

    def is_silent(self) -> bool:
        """Whether the peer has neither closed nor sent anything: only then an idle connection may be reused.

        It may be reused in another event loop: a client may keep its connections from one ``asyncio.run()`` to the
        next.
        """
        if self._waiter is not None and not self._waiter.loop.is_running():
            self._unwatch()
        if self._received or self._ended or self._failure or self._socket.fileno() < 0:
            return False
        return not self._readable.poll(0)

    async def send_eof(self) -> None:
        """Close the writing side."""
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Do the same as :meth:`close`."""
        self.close()

    def close(self) -> None:
        """Close the socket and wake each task that waits for it."""
        if self._socket.fileno() >= 0:
            waiter = self._waiter
            self._unwatch()
            self._set_timer(None)
            anyio.notify_closing(self._socket)
            self._socket.close()
            if waiter is not None:
                waiter.wake_soon()


async def connect_tcp(host: str, port: int) -> SocketStream:
    """Connect to the first of a host's addresses that answers (happy eyeballs, RFC 8305).

    Raises:
        OSError: the host has no address, or no address could be connected to.
    """
    sock = await (_connect_trio if in_trio() else _connect_asyncio)(host, port)
    with suppress(OSError):  # the peer has reset the connection already: the first read raises that
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return SocketStream(sock)


async def connect_unix(path: str) -> SocketStream:
    """Connect to a Unix socket. The caller limits the time: where the server's queue is full, this waits for it.

    Raises:
        OSError: there is no such socket, or nobody listens on it.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(path)
                return SocketStream(sock)
            except BlockingIOError:  # the kernel tells nobody when the queue has room
                await anyio.sleep(QUEUE_FULL_S)
    except BaseException:
        sock.close()
        raise


@cache
def waiter_type() -> type[Waiter]:
    """What tasks of asyncio wait for. It is imported late, since programs of trio load no asyncio, and once, since a
    statement that imports takes as long as the rest of a wait."""
    from tricklecast.trickle.client.waking import Waiter

    return Waiter


def in_trio() -> bool:
    """Whether the current task belongs to trio."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_task())


async def _connect_asyncio(host: str, port: int) -> socket.socket:
    import aiohappyeyeballs  # under asyncio alone, and it loads more of it

    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        return await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=STAGGER_S)
    except RuntimeError as error:  # uvloop raises it for some failures
        raise OSError(str(error)) from error


async def _connect_trio(host: str, port: int) -> socket.socket:
    import trio

    stream = await trio.open_tcp_stream(host, port, happy_eyeballs_delay=STAGGER_S)
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""Versions of OpenSSL have these reasons for a peer that does not speak TLS."""


def reason(error: BaseException) -> str:
    """Say in words why no connection could be made. anyio and aiohappyeyeballs hide the first cause in a group."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    if isinstance(first, ssl.SSLError) and getattr(first, "reason", None) in _NOT_TLS:
        return "the server does not speak TLS: the URL may have to begin with http://"
    if isinstance(first, OSError) and not isinstance(first, ssl.SSLError | socket.gaierror) and (first.errno or 0) > 0:
        return os.strerror(first.errno or 0)
    return getattr(first, "strerror", None) or str(first) or type(first).__name__
