"""The mesh: datagrams between the workers of a server, each with a file descriptor if need be.

Each worker has a pair of sockets (``AF_UNIX``, ``SOCK_DGRAM``): it reads from one end, all others write to the other
end. The supervisor makes the pairs before it forks, and keeps them. So no name in a file system is needed, nobody else
can reach a worker, a worker that dies loses no message that it has not read, and its successor reads them.

A message is one datagram: whole or not there, and in the order in which one sender sent them. It has no parts, so a
sender that dies leaves no half message behind. What may be long goes over a stream: the answer to a question
(:mod:`~tricklecast.app.workers.questions`).

Messages wait in the kernel only; one that it does not take is refused (:class:`MeshFull`). A connection is sent only
while the worker :meth:`has room <Mesh.has_room>`, which is while at most a quarter of its buffer is used (Linux: some
160 connections). So questions and news get through when thousands of connections move at once, and these wait at the
worker to which they have come.
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
from typing import Final, NamedTuple

_LOGGER = logging.getLogger(__name__)

PAYLOAD_BYTES: Final = 60 << 10
"""The longest message. It has room for what a connection that moves has read: one read (48 KiB), and a part of a head
that came before (9 KiB)."""

BUFFER_BYTES: Final = 4 * PAYLOAD_BYTES
"""The kernel's buffer of each worker. Linux doubles it, and a short message takes 768 bytes of it; macOS sends no
message that is longer."""

READS_PER_TURN: Final = 16
"""Messages that are read in one turn of the event loop, so that connections at work have theirs, too."""

NO_FILE_S: Final = 1.0
"""A worker that has no descriptor left reads no message for this time, as it accepts no connection."""

_NO_ROOM: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
"""The buffer is full (Linux, macOS), or too many descriptors of this user are on their way."""

_HEAD_BYTES: Final = 2  # kind and sender
_DESCRIPTOR_BYTES: Final = socket.CMSG_SPACE(array.array("i").itemsize)


class Kind(IntEnum):
    """The kinds of messages."""

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
    """Too much is on its way to a worker, which may hang: the message was not sent."""


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
        self._room = [select.poll() for _ in sockets]
        for to, room in zip(self._out, self._room, strict=True):
            room.register(to, select.POLLOUT)
        self._pause: asyncio.TimerHandle | None = None  # while there is no descriptor

    @property
    def workers(self) -> int:
        """Their number."""
        return len(self._out)

    def start(self, receive: Callable[[Message], None]) -> None:
        """Read messages from now on, in the running event loop. ``receive`` owns the descriptor of each."""
        asyncio.get_running_loop().add_reader(self._in, self._read, receive)

    def stop(self) -> None:
        """Read nothing more."""
        asyncio.get_running_loop().remove_reader(self._in)
        if self._pause is not None:
            self._pause.cancel()

    # Out.

    def has_room(self, worker: int) -> bool:
        """Whether so little is on its way to a worker that connections may be sent to it."""
        return bool(self._room[worker].poll(0))

    def send(self, worker: int, kind: Kind, payload: bytes, descriptor: int = -1) -> None:
        """Send a message. The descriptor stays the caller's; the receiver gets a copy.

        Raises:
            MeshFull: too much is on its way to this worker.
            OSError: the message is too long.
        """
        if len(payload) > PAYLOAD_BYTES:
            raise OSError(errno.EMSGSIZE, f"a message of {len(payload)} bytes")
        beside = [] if descriptor < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            self._out[worker].sendmsg([bytes((kind, self.me)), payload], beside)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise MeshFull(f"worker {worker} takes no message: {error.strerror}") from None

    # In.

    def _read(self, receive: Callable[[Message], None]) -> None:
        for _ in range(READS_PER_TURN):
            try:
                os.close(os.dup(self._in.fileno()))
            except OSError as error:
                # The kernel would drop the descriptor of the next message, and break a client's connection.
                _LOGGER.error("cannot take messages of other workers: %s", error.strerror)
                self.stop()
                self._pause = asyncio.get_running_loop().call_later(NO_FILE_S, self.start, receive)
                return
            try:
                data, beside, flags, _ = self._in.recvmsg(_HEAD_BYTES + PAYLOAD_BYTES, _DESCRIPTOR_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            kind, sender = data[:_HEAD_BYTES]
            if flags & socket.MSG_CTRUNC:
                _LOGGER.error("a connection of worker %d is lost: this process has no descriptor left", sender)
                continue
            descriptor = int.from_bytes(beside[0][2], sys.byteorder) if beside else -1
            receive(Message(Kind(kind), sender, data[_HEAD_BYTES:], descriptor))
