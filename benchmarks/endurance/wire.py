"""A connection of the crowd: one request at a time, answers counted and not kept."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from dataclasses import dataclass

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_SEQ = re.compile(rb"(?i)\r\nlp-trickle-seq: *(\d+)")
_RETRY = re.compile(rb"(?i)\r\nretry-after: *(\d+)")
_CLOSE = re.compile(rb"(?i)\r\nconnection: *close")
_CLOSED = re.compile(rb"(?i)\r\nlp-trickle-closed:")

FILLER = b"\xff"
"""What is published consists of this: an empty line in an answer is then the end of a head or of a body."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request.

    Attributes:
        status: 0 if the connection broke before the answer was whole. seq: which segment it is about.
        size: bytes received after the head. retry_after_s: how long to wait before asking again.
        ended: the channel has. close: the connection is over.
    """

    status: int
    seq: int | None = None
    size: int = 0
    retry_after_s: int = 0
    ended: bool = False
    close: bool = True


BROKEN = Answer(0)


class Wire(asyncio.Protocol):
    """One connection.

    Attributes:
        received: bytes, in all.
    """

    def __init__(self) -> None:
        self.received = 0
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._head = b""
        self._in_body = False
        self._length: int | None = None
        self._size = 0
        self._tail = b""

    @classmethod
    async def open(cls, port: int) -> Wire:
        """Connect.

        Raises:
            OSError: nobody listens.
        """
        _, wire = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return wire

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._finish(BROKEN)

    @property
    def usable(self) -> bool:
        """Whether it can take another request."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, line: str, fields: str = "") -> asyncio.Future[Answer]:
        """Send a request's head; returns what will be its answer."""
        self._answer = answer = asyncio.get_running_loop().create_future()
        self._head, self._in_body, self._length, self._size, self._tail = b"", False, None, 0, b""
        if self.usable:
            self.write(f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: crowd/1\r\n{fields}\r\n".encode())
        else:
            self._finish(BROKEN)
        return answer

    async def ask(self, line: str, fields: str = "") -> Answer:
        """A whole exchange; its request has no body."""
        return await self.begin(line, fields)

    def write(self, data: bytes) -> None:
        """Send more of the request."""
        if self._transport is not None:
            self._transport.write(data)

    def stall(self) -> None:
        """Read no more."""
        if self._transport is not None:
            self._transport.pause_reading()

    def close(self, *, reset: bool = False) -> None:
        """End it, orderly or with a reset."""
        if self._transport is None:
            return
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self._answer is None:
            return
        if not self._in_body:
            data = self._take_head(data)
        if self._in_body:
            self._size += len(data)
            self._tail = (self._tail + data[-4:])[-4:]
            if self._size == self._length or (self._length is None and self._tail == b"\r\n\r\n"):
                self._finish(_answer(self._head, self._size))

    def _take_head(self, data: bytes) -> bytes:
        """Gather the head; returns what came after it."""
        self._head += data
        while (end := self._head.find(b"\r\n\r\n")) >= 0:
            head, rest = self._head[: end + 2], self._head[end + 4 :]
            if not head.startswith(b"HTTP/1.1 1"):  # else it is an interim answer
                self._head, self._in_body = head, True
                length = _LENGTH.search(head)
                self._length = int(length[1]) if length else None
                return rest
            self._head = rest
        return b""

    def _finish(self, answer: Answer) -> None:
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


def _answer(head: bytes, size: int) -> Answer:
    seq, retry = _SEQ.search(head), _RETRY.search(head)
    return Answer(
        status=int(head[9:12]),
        seq=int(seq[1]) if seq else None,
        size=size,
        retry_after_s=int(retry[1]) if retry else 0,
        ended=_CLOSED.search(head) is not None,
        close=_CLOSE.search(head) is not None,
    )
