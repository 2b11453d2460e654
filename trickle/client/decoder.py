"""The body of a response, out of the bytes of its connection: no I/O.

h11 could do this, too, but copies each byte three times, and makes several objects of each chunk.
"""

from __future__ import annotations

import re
from typing import Final

from tricklecast.trickle.client.heads import Fields, InvalidHead, ResponseHead, parse_fields

MAX_CHUNK: Final = 64 * 1024
"""Chunks of up to this many bytes are handed on in one piece; of longer ones, pieces of this size."""

MAX_SIZE_LINE: Final = 4096
"""Longest line with the size of a chunk. Extensions may follow the size; they are passed over."""

MAX_EXCESS: Final = 16 * 1024
"""How many bytes of chunk extensions a body may have beyond 16 bytes for each chunk and twice its payload (Go's limit).
A body of one-byte chunks is fine; one that is mostly extensions keeps its reader busy with nothing."""

MAX_TRAILERS: Final = 16 * 1024
"""Longest trailers, in bytes."""

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class InvalidBody(Exception):
    """The bytes break the rules of HTTP."""


class BodyDecoder:
    """Takes a body apart into the chunks that the server sent.

    Call :meth:`feed` only after :meth:`next_chunk` has returned ``None``: so no more than that call is held.

    Args:
        head: the head of the response. The body ends as it says: with the last chunk, after ``Content-Length`` bytes,
            or with the connection.
        is_empty: the response has no body, whatever its head says.
        data: what has come of the body already.

    Attributes:
        over: the body has ended.
        trailers: what followed it.
    """

    __slots__ = ("_at", "_chunked", "_data", "_excess", "_left", "_part_bytes", "_parts", "_state", "over", "trailers")

    def __init__(self, head: ResponseHead, data: bytes = b"", *, is_empty: bool = False) -> None:
        self.trailers: Fields = []
        self._chunked = head.chunked
        self._left = head.length
        self.over = is_empty or head.status_code in (204, 304) or self._left == 0
        self._state = BodyDecoder._read_size if self._chunked else BodyDecoder._read_bytes
        self._data = data
        self._at = 0
        self._excess = 0  # bytes of extensions, see MAX_EXCESS
        self._parts: list[bytes] = []
        self._part_bytes = 0

    @property
    def has_rest(self) -> bool:
        """Whether there are bytes that have not been handed on."""
        return self._at < len(self._data)

    def feed(self, data: bytes) -> None:
        """More has come."""
        self._data = self._data[self._at :] + data if self.has_rest else data
        self._at = 0

    def end(self) -> bool:
        """The connection has ended; returns whether the body has ended with it, as it may."""
        self.over = self.over or (self._left is None and not self._chunked)
        return self.over

    def next_chunk(self) -> bytes | None:
        """The next chunk, or piece of a long one; ``None`` if more is needed, or the body is over.

        Raises:
            InvalidBody: what came is not HTTP. What came before it can still be had by :meth:`take_partial`.
        """
        chunk: bytes | None = b""
        while chunk == b"" and not self.over:
            chunk = self._state(self)
        return chunk or None

    def take_partial(self) -> bytes:
        """What has come of a chunk that is not complete."""
        chunk = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._part_bytes = 0
        return chunk

    # Each state returns a chunk; ``b""``: another state follows; ``None``: more bytes are needed.

    def _read_size(self) -> bytes | None:
        line = self._take_until(b"\r\n", MAX_SIZE_LINE)
        if line is None:
            return None
        found = _SIZE_LINE.fullmatch(line)
        if found is None:
            raise InvalidBody(f"not the size of a chunk: {line[:40]!r}")
        self._left = int(found[1], 16)
        if len(line) > 16:
            self._excess = max(0, self._excess + len(line) - 16 - 2 * self._left)
            if self._excess > MAX_EXCESS:
                raise InvalidBody("its chunks consist of extensions")
        self._state = BodyDecoder._read_bytes if self._left else BodyDecoder._read_trailers
        return b""

    def _read_bytes(self) -> bytes | None:
        most = MAX_CHUNK - self._part_bytes
        if self._left is not None and self._left < most:
            most = self._left
        piece = self._data[self._at : self._at + most]
        if not piece:
            return None
        self._at += len(piece)
        self._parts.append(piece)
        self._part_bytes += len(piece)
        if self._left is not None:
            self._left -= len(piece)
            if not self._left:
                self._state, self.over = BodyDecoder._read_end, not self._chunked
                return self.take_partial()
        return self.take_partial() if self._part_bytes == MAX_CHUNK or not self._chunked else b""

    def _read_end(self) -> bytes | None:
        end = self._data[self._at : self._at + 2]
        if not b"\r\n".startswith(end):
            raise InvalidBody(f"a chunk does not end where its size says: {end!r}")
        if len(end) < 2:
            return None
        self._at += 2
        self._state = BodyDecoder._read_size
        return b""

    def _read_trailers(self) -> bytes | None:
        if self._data.startswith(b"\r\n", self._at):
            self._at += 2
            self.over = True
            return None
        text = self._take_until(b"\r\n\r\n", MAX_TRAILERS)
        if text is None:
            return None
        try:
            self.trailers = parse_fields(text)
        except InvalidHead as error:
            raise InvalidBody(f"trailers: {error}") from error
        self.over = True
        return None

    def _take_until(self, end: bytes, limit: int) -> bytes | None:
        found = self._data.find(end, self._at, self._at + limit)
        if found < 0:
            if len(self._data) - self._at >= limit:
                raise InvalidBody(f"more than {limit} bytes without an end of line")
            return None
        taken = self._data[self._at : found]
        self._at = found + len(end)
        return taken
