"""The mesh: datagrams between the workers of a server, each with a file descriptor if need be.

Each worker has a pair of sockets (``AF_UNIX``, ``SOCK_DGRAM``): it reads from one end, all others write to the other
end. The supervisor makes the pairs before it forks, and keeps them. So no name in a file system is needed, nobody else
can reach a worker, a worker that dies loses no message that it has not read, and its successor reads them.

A message is one datagram: whole or not there, and in the order in which one sender sent them. It has no parts, so a
sender that dies leaves no half message behind. What does not fit goes another way: an answer over a stream
(:mod:`~tricklecast.app.workers.questions`), a long beginning of a request too (:mod:`~.handover`).

The kernel holds few datagrams (10, Linux, ``net.unix.max_dgram_qlen``), so the others wait here, :data:`MAX_WAITING` at
most for each worker: then the sender is told, and answers its client that the server is busy.
"""

from __future__ import annotations

import array
import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

_LOGGER = logging.getLogger(__name__)

PAYLOAD_BYTES: Final = 60 << 10
"""The longest message; Linux has room for 208 KiB in all (``net.core.wmem_default``)."""

BUFFER_BYTES: Final = 4 * PAYLOAD_BYTES
"""macOS sends no datagram that is longer than this buffer, and 2 KiB without it."""

MAX_WAITING: Final = 256
"""Messages that wait for one worker. Each may hold a descriptor, for which the server keeps as many free."""

READS_PER_TURN: Final = 16
"""Messages that are read in one turn of the event loop, so that connections at work have theirs, too."""

NO_FILE_S: Final = 1.0
"""A worker that has no descriptor left reads no message for this time, as it accepts no connection."""

FULL_S: Final = 0.005
"""A message is tried again after this time where the kernel does not tell when it has room."""

_NO_ROOM: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
"""The receiver's queue is full (Linux, macOS), or too many descriptors of this user are on their way."""

_HEAD_BYTES: Final = 2  # kind and sender


class Kind(IntEnum):
    """What a message is about."""

    CONNECTION = 1
    """A connection of a client, as the descriptor; :class:`~.handover.Arrival`."""
    QUESTION = 2
    """A question, whose answer goes to the descriptor; JSON: its name, and what it is about."""
    NEWS = 3
    """Something that needs no answer; JSON."""


class Message(NamedTuple):
    """A message that has arrived.

    Attributes:
        sender: the worker. descriptor: belongs to the receiver, which closes it; -1: none.
    """

    kind: Kind
    sender: int
    payload: bytes
    descriptor: int


class MeshFull(Exception):
    """Too much waits for a worker, which may hang: the message was not taken."""


def pairs(workers: int) -> list[tuple[socket.socket, socket.socket]]:
    """The sockets of each worker: the one that it reads, the one that others write."""
    made = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers)]
    for pair in made:
        for one in pair:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return made


class Mesh:
    """One worker's place in the mesh.

    Args:
        sockets: of all workers (:func:`pairs`). me: this one's number.
    """

    def __init__(self, sockets: list[tuple[socket.socket, socket.socket]], me: int) -> None:
        self.me = me
        self._in = sockets[me][0]
        self._out = [to for _, to in sockets]
        # For each worker: messages that the kernel did not take yet, with their descriptors.
        self._waiting: list[deque[tuple[bytes, int]]] = [deque() for _ in sockets]
        self._loop: asyncio.AbstractEventLoop | None = None  # None before the start and after the end
        self._receive: Callable[[Message], None] | None = None

    @property
    def workers(self) -> int:
        """Their number."""
        return len(self._out)

    @property
    def waiting(self) -> int:
        """Datagrams that wait until the kernel takes them."""
        return sum(map(len, self._waiting))

    def start(self, receive: Callable[[Message], None]) -> None:
        """Read messages from now on, in the running event loop. ``receive`` owns the descriptor of each."""
        self._loop, self._receive = asyncio.get_running_loop(), receive
        self._listen()

    def stop(self) -> None:
        """Read nothing more, and drop what waits."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.remove_reader(self._in)
        for to, waiting in zip(self._out, self._waiting, strict=True):
            loop.remove_writer(to)
            for _, descriptor in waiting:
                _close(descriptor)
            waiting.clear()

    # Out.

    def send(self, worker: int, kind: Kind, payload: bytes, descriptor: int = -1) -> None:
        """Send a message. The descriptor stays the caller's; the receiver gets a copy.

        Raises:
            MeshFull: too much waits for this worker already.
            OSError: there is no descriptor left for the copy, or the message is too long.
        """
        if len(payload) > PAYLOAD_BYTES:
            raise OSError(errno.EMSGSIZE, f"a message of {len(payload)} bytes")
        assert self._loop is not None, "it has started"
        waiting = self._waiting[worker]
        if len(waiting) >= MAX_WAITING:
            raise MeshFull(f"{len(waiting)} messages wait for worker {worker}")
        datagram = bytes((kind, self.me)) + payload
        why = None if waiting else self._try(worker, datagram, descriptor)
        if waiting or why is not None:
            waiting.append((datagram, -1 if descriptor < 0 else os.dup(descriptor)))
        if why is not None:
            self._await_room(worker, why)

    def is_crowded(self) -> bool:
        """Whether so much waits for a worker that fewer connections should be accepted."""
        return any(len(waiting) > MAX_WAITING // 2 for waiting in self._waiting)

    def _try(self, worker: int, datagram: bytes, descriptor: int) -> int | None:
        """Send a datagram; the error's number if the kernel has no room for it."""
        beside = [] if descriptor < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            self._out[worker].sendmsg([datagram], beside)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return error.errno
        return None

    def _await_room(self, worker: int, why: int) -> None:
        assert self._loop is not None, "it has started"
        if why == errno.EAGAIN:
            self._loop.add_writer(self._out[worker], self._flush, worker)
        else:
            # Such a socket may be called writable all the time.
            self._loop.call_later(FULL_S, self._flush, worker)

    def _flush(self, worker: int) -> None:
        """Send what waits, as far as the kernel takes it."""
        if self._loop is None:
            return
        self._loop.remove_writer(self._out[worker])
        waiting = self._waiting[worker]
        while waiting:
            if (why := self._try(worker, *waiting[0])) is not None:
                self._await_room(worker, why)
                return
            _close(waiting.popleft()[1])

    # In.

    def _listen(self) -> None:
        if self._loop is not None:
            self._loop.add_reader(self._in, self._read)

    def _read(self) -> None:
        loop, receive = self._loop, self._receive
        assert loop is not None, "it has started"
        assert receive is not None, "it has started"
        for _ in range(READS_PER_TURN):
            try:
                os.close(os.dup(self._in.fileno()))
            except OSError as error:
                # The kernel would drop the descriptor of the next message, and break a client's connection.
                _LOGGER.error("cannot take messages of other workers: %s", error.strerror)
                loop.remove_reader(self._in)
                loop.call_later(NO_FILE_S, self._listen)
                return
            try:
                data, descriptors, _, _ = socket.recv_fds(self._in, _HEAD_BYTES + PAYLOAD_BYTES, 1)
            except (BlockingIOError, InterruptedError):
                return
            kind, sender = data[:_HEAD_BYTES]
            receive(Message(Kind(kind), sender, data[_HEAD_BYTES:], descriptors[0] if descriptors else -1))


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
