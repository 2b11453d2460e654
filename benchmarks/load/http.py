"""A client's connection: requests out, responses in, parsed no further than a benchmark needs.

A published chunk begins with the time at which it was sent. Where its bytes end is known by counting, not by HTTP
chunks: a server may split or join those.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Final

from benchmarks.load.loop import Loop

RECEIVE: Final = 256 << 10
STAMP: Final = struct.Struct("<q")
_CONTENT_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_BUFFER: Final = bytearray(RECEIVE)
_VIEW: Final = memoryview(_BUFFER)
"""Every receive of this single-threaded process goes here and is taken out of it before the next."""


class Connection:
    """One keep-alive connection.

    Args:
        loop: the loop. chunk_size: bytes of a published chunk; 0 if payload is passed over.
        on_chunk: told of every chunk that has arrived whole, with the nanoseconds since it was published.
        expected: the statuses that an answer may have.
        source: the client's own address; ``None``: any.

    Attributes:
        on_head, on_end: called when a response's head has arrived, and when its end has.
        on_payload: called with payload that is passed over; the view is valid during the call only.
        on_close: called when the server has closed the connection. A client without it regards a closed connection
            as an error, and a segment that ends in the middle of a chunk, too.
        busy: whether a response is still to come, or to end.
        status, head: of the latest response.
    """

    __slots__ = (
        "_chunk_size",
        "_expected",
        "_left",
        "_loop",
        "_on_chunk",
        "_partial",
        "_position",
        "_socket",
        "_stamp",
        "_state",
        "_unsent",
        "busy",
        "head",
        "on_close",
        "on_end",
        "on_head",
        "on_payload",
        "status",
    )

    def __init__(
        self,
        loop: Loop,
        chunk_size: int,
        on_chunk: Callable[[int], None] = lambda _: None,
        *,
        expected: Collection[int] = (200,),
        source: str | None = None,
    ) -> None:
        self._loop = loop
        self._expected = expected
        self._chunk_size = chunk_size
        self._on_chunk = on_chunk
        self._socket: socket.socket = loop.connect(self._ready, source)
        self._unsent = b""
        self._state = _State.HEAD
        self._partial = b""
        self._left = 0
        self._position = 0
        self._stamp = b""
        self.status = 0
        self.head = b""
        self.busy = False
        self.on_head: Callable[[], None] | None = None
        self.on_payload: Callable[[memoryview], object] | None = None
        self.on_end: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None

    def request(self, method: str, path: str, fields: str = "", body: bytes = b"") -> None:
        """Send a request's head and, if given, the beginning of its body."""
        self.busy = True
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: benchmark/1\r\nAccept: */*\r\n{fields}\r\n"
        self.send(head.encode() + body)

    def send(self, data: bytes | bytearray) -> None:
        """Send, or keep what the socket does not take now; the caller may change ``data`` afterwards."""
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            if self.on_close is None:
                raise
            return  # The closed connection will be reported by the loop.
        if sent < len(data):
            self._unsent = bytes(data[sent:])
            self._loop.want_write(self._socket, True)

    @property
    def address(self) -> tuple[str, int]:
        """Of this side."""
        host, port = self._socket.getsockname()
        return host, port

    @property
    def blocked(self) -> bool:
        """Whether the server does not take more now."""
        return bool(self._unsent)

    @property
    def receiving(self) -> bool:
        """Whether a response has begun and not ended."""
        return self._state is not _State.HEAD

    def close(self) -> None:
        """Close the connection."""
        self._loop.forget(self._socket)

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            data, self._unsent = self._unsent, b""
            self._loop.want_write(self._socket, False)
            self.send(data)
        if events & ~select.EPOLLOUT:
            # What is left of a head or a line from last time goes first.
            kept = len(self._partial)
            _VIEW[:kept] = self._partial
            try:
                received = self._socket.recv_into(_VIEW[kept:])
            except BlockingIOError:
                return
            except ConnectionError:
                if self.on_close is None:
                    raise
                received = 0
            if not received:
                if self.on_close is None:
                    raise ConnectionError(f"the server closed a connection (last status {self.status})")
                self.on_close()
                return
            self._partial = b""
            self._feed(kept + received)

    def _feed(self, size: int) -> None:
        at = 0
        while at < size:
            if self._left:
                take = min(self._left, size - at)
                self._payload(at, take)
                at += take
                self._left -= take
                if not self._left and self._state is _State.BODY:
                    self._end()
                continue
            mark = b"\r\n\r\n" if self._state is _State.HEAD else b"\r\n"
            end = _BUFFER.find(mark, at, size)
            if end < 0:
                self._partial = bytes(_VIEW[at:size])
                return
            piece = bytes(_VIEW[at:end])
            at = end + len(mark)
            self._piece(piece)

    def _piece(self, piece: bytes) -> None:
        """A head, or a line between chunks."""
        match self._state:
            case _State.HEAD:
                self._head(piece)
            case _State.SIZE:
                self._left = int(piece.partition(b";")[0], 16)
                self._state = _State.AFTER_CHUNK if self._left else _State.TRAILER
            case _State.AFTER_CHUNK:
                self._state = _State.SIZE
            case _State.TRAILER:
                if not piece:
                    self._end()
            case _State.BODY:
                raise AssertionError("a body is counted, not searched")

    def _head(self, head: bytes) -> None:
        self.status = int(head[9:12])
        self.head = head
        if self.status < 200:
            return
        length = _CONTENT_LENGTH.search(head)
        self._left = int(length[1]) if length else 0
        self._state = _State.BODY if length else _State.SIZE
        if self.status not in self._expected:
            raise ConnectionError(f"unexpected answer: {head.decode('latin-1')!r}")
        if self.on_head is not None:
            self.on_head()
        if self._state is _State.BODY and not self._left:
            self._end()

    def _payload(self, at: int, size: int) -> None:
        """Count payload; a chunk that is whole is reported."""
        chunk_size = self._chunk_size
        if not chunk_size:
            if self.on_payload is not None:
                self.on_payload(_VIEW[at : at + size])
            return
        position = self._position
        end = at + size
        while at < end:
            if position < STAMP.size:
                self._stamp += _VIEW[at : min(at + STAMP.size - position, end)]
            step = min(chunk_size - position, end - at)
            position += step
            at += step
            if position == chunk_size:
                self._on_chunk(time.monotonic_ns() - STAMP.unpack(self._stamp)[0])
                self._stamp = b""
                position = 0
        self._position = position

    def _end(self) -> None:
        self._state = _State.HEAD
        self.busy = False
        if self._position:
            if self.on_close is None:
                raise ConnectionError("a segment ended in the middle of a chunk")
            self._position, self._stamp = 0, b""
        if self.on_end is not None:
            self.on_end()


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    SIZE = auto()
    AFTER_CHUNK = auto()
    TRAILER = auto()


def stamped(filler: bytes) -> bytes:
    """A chunk that says when it was published: now."""
    return STAMP.pack(time.monotonic_ns()) + filler


class StampedChunk:
    """A published chunk as it goes on the wire, in one buffer, so that publishing it copies nothing.

    Args:
        size: bytes of the chunk, its stamp included.
    """

    def __init__(self, size: int) -> None:
        head = b"%x\r\n" % size
        self._at = len(head)
        self._wire = bytearray(head + bytes(size) + b"\r\n")

    def stamped(self, stamp_ns: int) -> bytearray:
        """The bytes to send for a chunk that was due at this time (``time.monotonic_ns``)."""
        STAMP.pack_into(self._wire, self._at, stamp_ns)
        return self._wire


def http_chunk(chunk: bytes) -> bytes:
    """A chunk as it goes on the wire (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(chunk), chunk)
