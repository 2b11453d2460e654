"""The mesh: datagrams between the workers of a server, each with a file descriptor if need be.

Each worker has a pair of sockets (``AF_UNIX``, ``SOCK_DGRAM``): it reads from one end, all others write to the other
end. The supervisor makes the pairs before it forks, and keeps them. So no name in a file system is needed, nobody else
can reach a worker, a worker that dies loses no datagram that it has not read, and its successor reads them.

A datagram is whole or not there, and datagrams of one sender arrive in order. The kernel holds few of them (10, Linux,
``net.unix.max_dgram_qlen``), so the others wait here, :data:`MAX_WAITING` at most for each worker: then the sender is
told, and answers its client that the server is busy. Payload that is longer than a datagram goes as several.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

PAYLOAD_BYTES: Final = 60 << 10
"""Payload of one datagram; Linux has room for 208 KiB in all (``net.core.wmem_default``)."""

BUFFER_BYTES: Final = 4 * PAYLOAD_BYTES
"""macOS sends no datagram that is longer than this buffer, and 2 KiB without it."""

MAX_WAITING: Final = 1024
"""Datagrams that wait for one worker. Each may hold a descriptor, so many more would exhaust these."""

READS_PER_TURN: Final = 16
"""Datagrams that are read in one turn of the event loop, so that connections at work have theirs, too."""

_FULL: Final = (errno.ENOBUFS, errno.ETOOMANYREFS)
"""The kernel has no room for a datagram, or for one more descriptor on its way, at present."""

_HEAD: Final = Struct("!BBHI")  # kind, whether parts follow, sender, number of the message


class Kind(IntEnum):
    """What a message is about."""

    CONNECTION = 1
    """A connection of a client, as the descriptor; JSON with :class:`~.handover.Arrival`."""
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
        # For each worker: parts that the kernel did not take yet, with their descriptors.
        self._waiting: list[deque[tuple[bytes, int]]] = [deque() for _ in sockets]
        # First parts of messages that are not whole: payload, descriptor.
        self._begun: dict[tuple[int, int], tuple[list[bytes], int]] = {}
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive: Callable[[Message], None] | None = None

    @property
    def workers(self) -> int:
        """Their number."""
        return len(self._out)

    def start(self, receive: Callable[[Message], None]) -> None:
        """Read messages from now on, in the running event loop. ``receive`` owns the descriptor of each."""
        self._loop, self._receive = asyncio.get_running_loop(), receive
        self._loop.add_reader(self._in, self._read)

    def stop(self) -> None:
        """Read nothing more, and drop what waits."""
        if self._loop is None:
            return
        self._loop.remove_reader(self._in)
        for worker, waiting in enumerate(self._waiting):
            if waiting:
                self._loop.remove_writer(self._out[worker])
            for _, descriptor in waiting:
                _close(descriptor)
            waiting.clear()
        for _, descriptor in self._begun.values():
            _close(descriptor)
        self._begun.clear()
        self._loop = None

    def send(self, worker: int, kind: Kind, payload: bytes, descriptor: int = -1) -> None:
        """Send a message. The descriptor stays the caller's; the receiver gets a copy.

        Raises:
            MeshFull: too much waits for this worker already.
            OSError: there is no descriptor left for the copy.
        """
        assert self._loop is not None, "it has started"
        self._number = self._number + 1 & 0xFFFFFFFF
        waiting = self._waiting[worker]
        parts = [payload[at : at + PAYLOAD_BYTES] for at in range(0, len(payload), PAYLOAD_BYTES)] or [b""]
        if len(waiting) + len(parts) > MAX_WAITING:
            raise MeshFull(f"{len(waiting)} messages wait for worker {worker}")
        for number, part in enumerate(parts):
            datagram = _HEAD.pack(kind, number + 1 < len(parts), self.me, self._number) + part
            if waiting or not self._sent(worker, datagram, descriptor):
                waiting.append((datagram, -1 if descriptor < 0 else os.dup(descriptor)))
                if len(waiting) == 1:
                    self._loop.add_writer(self._out[worker], self._flush, worker)
            descriptor = -1

    def _sent(self, worker: int, datagram: bytes, descriptor: int) -> bool:
        beside = [] if descriptor < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            self._out[worker].sendmsg([datagram], beside)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno in _FULL:
                return False
            raise
        return True

    def _flush(self, worker: int) -> None:
        waiting = self._waiting[worker]
        while waiting:
            datagram, descriptor = waiting[0]
            if not self._sent(worker, datagram, descriptor):
                return
            waiting.popleft()
            _close(descriptor)
        assert self._loop is not None, "it has started"
        self._loop.remove_writer(self._out[worker])

    def _read(self) -> None:
        assert self._receive is not None, "it has started"
        for _ in range(READS_PER_TURN):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._in, PAYLOAD_BYTES + _HEAD.size, 1)
            except (BlockingIOError, InterruptedError):
                return
            message = self._whole(data, descriptors[0] if descriptors else -1)
            if message is not None:
                self._receive(message)

    def _whole(self, data: bytes, descriptor: int) -> Message | None:
        """The message whose last part this is, if it is one."""
        kind, more, sender, number = _HEAD.unpack_from(data)
        part = data[_HEAD.size :]
        key = sender, number
        if more or key in self._begun:
            parts, first = self._begun.setdefault(key, ([], descriptor))
            parts.append(part)
            if more:
                return None
            del self._begun[key]
            part, descriptor = b"".join(parts), first
        return Message(Kind(kind), sender, part, descriptor)


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
