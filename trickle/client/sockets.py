"""A TCP stream whose reading side survives a failed write, and how a task waits for it.

Theory of operation
===================

*The problem.* A server that refuses a segment early answers and closes. That resets the connection under the body that
the client is still writing. The answer already lies in the client's kernel. But asyncio's stream transports drop their
reading side as soon as one write fails, and the answer with it.

*The idea.* :class:`SocketStream` works on the socket itself. Reading and writing are independent, as they are in the
kernel: a failed write sets ``peer_stopped_reading``, drops later writes, and changes nothing for reads.

*Cost.* Data for which the kernel has room is written at once. Under asyncio the event loop watches the socket as long
as it is open: when bytes come, the loop reads them, and runs the task that waits in the same turn. Registering the
socket for each wait would cost two more system calls per read. Under trio each wait goes through anyio. Whether the
present loop is still the one that watches is asked once per request (:meth:`SocketStream.is_silent`).

*Bound.* While bytes wait that no task has taken, the loop does not watch the socket. So one read of :data:`READ_BYTES`
is held; the rest stays in the kernel, and the server waits.

How a task of asyncio is woken
------------------------------

*The problem.* When a socket has bytes, asyncio runs a callback, which completes a future. That only schedules the task:
it runs in the next turn, which has its own look at all sockets. A chunk or an answer takes two turns so, and a turn
costs as much as the rest of a small read.

*The idea.* asyncio lets a task wait for any object that behaves as a future (``asyncio.isfuture``): the task leaves a
callback with it, which runs the task. A :class:`Waiter` keeps that callback, and :meth:`Waiter.wake_now` calls it at
once, in the task's own context. A future of asyncio's own does more than that, and takes three times as long.

That task most often wakes another one: the request's task has the answer, and its program waits for that.
:meth:`Waiter.wake_soon` runs that one right after it, in the same callback, and so on for :data:`MAX_STEPS` tasks.

*Invariant.* No task may run within another one. So only the event loop itself may call :meth:`Waiter.wake_now`, in a
callback. All others wake, fail or cancel a waiter as any future: its task runs in the next turn.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
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
    from asyncio import AbstractEventLoop, TimerHandle

READ_BYTES: Final = 120 * 1024
"""A read takes a chunk of 64 KiB with its framing in one system call. Python allocates all of these bytes each time:
from 128 KiB on, the C library maps new pages for each read (``M_MMAP_THRESHOLD``), at three times the CPU."""

MAX_STEPS: Final = 16
"""At most this many tasks run in one callback, one after the other. Then others get their turn."""

_DUE: Final[dict[AbstractEventLoop, list[Waiter]]] = {}
"""Of each loop that runs tasks in :meth:`Waiter.wake_now` at this moment: the waiters whose tasks follow."""


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
        # Reading.
        self.receive_s: float | None = None
        self._received = b""  # bytes that no task has taken
        self._end: type[Exception] | None = None  # the error that receive() raises behind them: no others come
        self._failure: OSError | None = None  # the cause of it
        # Waiting.
        self._scope: anyio.CancelScope | None = None  # of the present wait under trio
        # Waiting under asyncio.
        self._waiter: Waiter | None = None  # for the task in receive(); its loop watches the socket
        self._now: Callable[[], float] = monotonic  # the clock of that loop
        self._due_at = 0.0  # when the present wait becomes a Silence
        # One timer serves many waits: only when it fires, at or before _due_at, it is set again.
        self._timer: TimerHandle | None = None
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
            if self._end is not None:
                raise self._end from self._failure
            if (waiter := self._waiter) is None:
                if in_trio():
                    await self._wait_for_anyio()
                    continue
                waiter = self._watch()
            if (limit_s := self.receive_s) is not None:
                self._due_at = due_at = self._now() + limit_s
                if due_at < self._fires_at:
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
        if not (self._received or self._end):
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
        self._waiter = waiter = Waiter()
        self._now = clock_of(waiter.loop)
        waiter.loop.add_reader(self._socket, self._read)
        self._set_timer(None)
        return waiter

    def _read(self) -> None:
        """The socket has something to read, most likely; the event loop calls this, too."""
        if self._received or self._end:  # no task has taken it: the rest stays in the kernel
            self._unwatch()
            return
        try:
            self._received = data = self._socket.recv(READ_BYTES)
            if not data:
                self._end = anyio.EndOfStream
        except BlockingIOError:
            pass
        except OSError as error:
            self._end, self._failure = anyio.BrokenResourceError, error
        if self._waiter is not None:
            self._waiter.wake_now()

    def _unwatch(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.loop.is_closed():
            waiter.loop.remove_reader(self._socket)

    def _set_timer(self, loop: AbstractEventLoop | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._fires_at = None, inf
        if loop is not None:
            self._timer, self._fires_at = loop.call_at(self._due_at, self._on_timer, loop), self._due_at

    def _on_timer(self, loop: AbstractEventLoop) -> None:
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
        if self._received or self._end:
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
            self._end, self._failure = anyio.ClosedResourceError, None
            if waiter is not None:
                waiter.wake_soon()


# How a task waits.


class Waiter:
    """An object that one task of the present event loop of asyncio waits for, as often as it likes.

    A wake that comes while it does not wait is nothing.
    """

    __slots__ = ("_asyncio_future_blocking", "_error", "_in", "_loop", "_wake")

    def __init__(self) -> None:
        self._loop: Final = running_loop()()  # asyncio asks for it under this name, where there is no get_loop()
        self._asyncio_future_blocking = False  # how asyncio sees that it is awaited
        self._wake: Callable[[Waiter], object] | None = None  # runs the task; None: no task waits
        self._in: Context  # which it runs in
        self._error: BaseException | None = None  # that the task gets

    @property
    def loop(self) -> AbstractEventLoop:
        """The event loop whose tasks may wait for it."""
        return self._loop

    def __await__(self) -> Generator[Waiter, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def wake_now(self) -> None:
        """Run the task before this returns.

        Only for callbacks of the event loop: a task must not run another one.
        """
        loop = self._loop
        _DUE[loop] = due = [self]
        try:
            for waiter in due:  # which grows meanwhile
                wake, waiter._wake = waiter._wake, None
                if wake is not None:
                    waiter._in.run(wake, waiter)
        except BaseException:  # the program was told to end
            del _DUE[loop]
            for waiter in due:
                waiter.wake_soon()
            raise
        del _DUE[loop]

    def wake_soon(self) -> None:
        """Let the task run after the present one, in this turn or the next one."""
        due = _DUE.get(self._loop)
        if due is not None and len(due) < MAX_STEPS:
            due.append(self)
        else:
            self._schedule(None)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the task, in the next turn."""
        self._schedule(error)

    def _schedule(self, error: BaseException | None) -> bool:
        wake, self._wake = self._wake, None
        if wake is not None:
            self._error = error
            self._loop.call_soon(wake, self, context=self._in)
        return wake is not None

    # Methods that asyncio's tasks and anyio call; see asyncio.Future.

    def add_done_callback(self, fn: Callable[[Waiter], object], /, *, context: Context) -> None:
        """A task waits."""
        self._wake, self._in = fn, context

    def done(self) -> bool:
        """Whether no task waits."""
        return self._wake is None

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled; ``False``: it did not wait any more."""
        from asyncio import CancelledError

        return self._schedule(CancelledError() if msg is None else CancelledError(msg))

    def result(self) -> None:
        """Raise in the task the error that it gets, if it gets one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


@cache
def running_loop() -> Callable[[], AbstractEventLoop]:
    """asyncio's function that returns the running loop. It is imported late, since programs of trio load no asyncio,
    and once, since a statement that imports takes as long as the rest of a wait."""
    from asyncio import get_running_loop

    return get_running_loop


def clock_of(loop: AbstractEventLoop) -> Callable[[], float]:
    """The clock of an event loop: asyncio's own loops have a method that does nothing but call another clock."""
    from asyncio import BaseEventLoop

    return monotonic if getattr(loop.time, "__func__", None) is BaseEventLoop.time else loop.time


def in_trio() -> bool:
    """Whether the current task belongs to trio."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_task())
