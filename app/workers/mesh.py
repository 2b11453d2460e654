"""The mesh: datagrams between the workers of a server. A datagram may carry a file descriptor.

**The problem.** A worker sends connections and questions to any other one. No message may be lost when a worker dies,
and a worker that hangs must not make the others wait or fill their memory.

**The idea.** Each worker has a pair of sockets (``AF_UNIX``, ``SOCK_DGRAM``): it reads from one end, and all others
write to the other end. The supervisor makes the pairs before it forks, and keeps both ends open. So no file system has
a name for them, no other program reaches them, and a message that a dead worker has not read waits for its successor.

A datagram arrives whole or not at all, so a sender that dies leaves no half message. Those of one sender arrive in
order. Anything long goes over a stream: the answer to a question (:mod:`~tricklecast.app.workers.questions`).

Messages wait in the kernel only; :meth:`Mesh.send` refuses one that the kernel does not take (:class:`MeshFull`).
Connections stop earlier, when a quarter of the buffer is used (:meth:`Mesh.has_room`; on Linux some 160 connections).
So questions and news still get through when thousands of connections move at once. Those connections wait in the worker
that has accepted them.
"""

from __future__ import annotations

import array
import asyncio
import errno
import logging
import os
import select
import socket
import sys
from collections.abc import Callable
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple

_LOGGER = logging.getLogger(__name__)

PAYLOAD_BYTES: Final = 60 << 10
"""The longest message. The longest ones go with a connection that moves between two requests: one read of it (48 KiB),
and the part of a head that came before (9 KiB)."""

BUFFER_BYTES: Final = 4 * PAYLOAD_BYTES
"""The kernel's buffer for each worker. Linux doubles it, and a short message takes 768 bytes of it. macOS sends no
message that is longer."""

READS_PER_TURN: Final = 16
"""Messages that a worker reads in one turn of the event loop, so that its connections have their turns, too."""

PAUSE_S: Final = 1.0
"""A worker that has no file descriptor left reads no message for this time, as it accepts no connection."""

_FULL: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
"""The buffer is full (Linux, macOS), or too many descriptors of this user are on their way."""

_HEAD_BYTES: Final = 2  # kind and sender
_DESCRIPTOR_BYTES: Final = socket.CMSG_SPACE(array.array("i").itemsize)


class Kind(IntEnum):
    """The kinds of messages."""

    CONNECTION = 1
    """The descriptor is a client's connection; the payload is an :class:`~.handover.Arrival`."""
    QUESTION = 2
    """The answer goes to the descriptor; the payload is JSON: the name of the question, and its arguments."""
    NEWS = 3
    """JSON about a busy channel; nobody answers."""


class Message(NamedTuple):
    """A message that has arrived.

    Attributes:
        sender: the worker that sent it. descriptor: the receiver closes it; -1: none.
    """

    kind: Kind
    sender: int
    payload: bytes
    descriptor: int


class MeshFull(Exception):
    """Too many messages wait for a worker, which may hang: this one was not sent."""


def socket_pairs(workers: int) -> list[tuple[socket.socket, socket.socket]]:
    """The sockets of each worker: the end that it reads from, and the end that others write to."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers)]
    for end in chain.from_iterable(pairs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return pairs


class Mesh:
    """One worker's end of the mesh.

    Args:
        sockets: of all workers (:func:`socket_pairs`). me: this worker's number.

    Attributes:
        me: this worker's number. workers: how many there are.
    """

    def __init__(self, sockets: list[tuple[socket.socket, socket.socket]], me: int) -> None:
        self.me, self.workers = me, len(sockets)
        self._in = sockets[me][0]
        self._out = [to for _, to in sockets]  # by the number of the worker that reads
        self._polls = [select.poll() for _ in sockets]  # of each of these, for has_room()
        for to, poll in zip(self._out, self._polls, strict=True):
            poll.register(to, select.POLLOUT)
        self._restart: asyncio.TimerHandle | None = None  # while it pauses for want of a descriptor

    def start(self, receive: Callable[[Message], None]) -> None:
        """Read messages from now on, in the running event loop. ``receive`` owns the descriptor of each."""
        asyncio.get_running_loop().add_reader(self._in, self._read, receive)

    def stop(self) -> None:
        """Read nothing more."""
        asyncio.get_running_loop().remove_reader(self._in)
        if self._restart is not None:
            self._restart.cancel()

    # Out.

    def has_room(self, worker: int) -> bool:
        """Whether so few messages wait for a worker that it may get connections, too."""
        return bool(self._polls[worker].poll(0))

    def send(self, worker: int, kind: Kind, payload: bytes, descriptor: int = -1) -> None:
        """Send a message. The receiver gets a copy of the descriptor; the caller closes its own.

        Raises:
            MeshFull: too many messages wait for this worker.
            OSError: the message is too long.
        """
        if len(payload) > PAYLOAD_BYTES:
            raise OSError(errno.EMSGSIZE, f"a message of {len(payload)} bytes")
        rights = [] if descriptor < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            self._out[worker].sendmsg([bytes((kind, self.me)), payload], rights)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise MeshFull(f"worker {worker} takes no message: {error.strerror}") from None

    # In.

    def _read(self, receive: Callable[[Message], None]) -> None:
        for _ in range(READS_PER_TURN):
            try:
                os.close(os.dup(self._in.fileno()))
            except OSError as error:
                # No descriptor is free. The kernel would drop the next message's, and so break a client's connection.
                _LOGGER.error("cannot take messages of other workers: %s", error.strerror)
                self.stop()
                self._restart = asyncio.get_running_loop().call_later(PAUSE_S, self.start, receive)
                return
            try:
                data, rights, flags, _ = self._in.recvmsg(_HEAD_BYTES + PAYLOAD_BYTES, _DESCRIPTOR_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            kind, sender = data[:_HEAD_BYTES]
            if flags & socket.MSG_CTRUNC:
                _LOGGER.error("a connection of worker %d is lost: this process has no descriptor left", sender)
                continue
            descriptor = int.from_bytes(rights[0][2], sys.byteorder) if rights else -1
            receive(Message(Kind(kind), sender, data[_HEAD_BYTES:], descriptor))
