"""The grammar of HTTP/1.1: writes heads of requests, reads those of responses, and takes their bodies apart. No I/O.

Theory of operation
===================

*Heads.* Strict on purpose. Each line ends with CR LF, each header is ``Name: value`` of allowed characters, and a head
that allows two ends of its body is refused: a client and a proxy that disagree about the end take a part of one
response for the next one (response smuggling). So is a request whose header holds a line break.

A head is most of the bytes of a small segment, and most of its lines are those of the head before: so a line that was
read lately is looked up. Few lines are kept, and those of short heads only (:data:`KEPT_BYTES`).

*Bodies.* A chunk is a message or a frame of live media, so its borders matter and are kept. :class:`BodyDecoder` is a
state machine:

    _read_size → _read_bytes → _read_end → _read_size → … → _read_trailers     chunked; at once, if a chunk is whole
    _read_bytes                                                                length, or up to the connection's end

Each state is a method that takes bytes from ``data`` at ``_at``. It returns a chunk, ``b""`` (another state follows)
or ``None`` (more bytes are needed, or the body is over).

*Invariant.* The caller brings bytes only after ``next_chunk()`` has returned ``None``. So the decoder holds one read of
the connection and at most ``MAX_CHUNK`` bytes of an incomplete chunk. A byte of payload is copied once, out of
``data``; a chunk that came over several reads is joined once more.

*Tried before.* h11 parses chunked bodies, too, but copies each byte three times and makes several objects per chunk.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# Heads.

MAX_HEAD: Final = 65536
"""Longest head of a response, in bytes (nginx's limit is 32 KiB, uvicorn's 64 KiB)."""

MAX_FIELDS: Final = 256
"""Most headers of a response, or trailers (Python's ``http.client`` takes 100)."""

KEPT_BYTES: Final = 4096
"""Longest head whose lines are kept, in bytes."""

Fields = list[tuple[bytes, bytes]]
"""Headers in the order of the head: names in lower case, values without white space around them."""

_HTTP: Final = b"HTTP/"
"""Each response begins with these five bytes."""

_NAME: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_FIELD: Final = re.compile(rb"(%b):([\t\x20-\x7e\x80-\xff]*)" % _NAME)
_REQUEST_LINE: Final = re.compile(rb"[A-Z]+ [\x21-\x7e]+ HTTP/1\.1\r\n")
_LINE: Final = re.compile(rb"%b: [\t\x20-\x7e\x80-\xff]*\r\n" % _NAME)
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")


class InvalidHead(Exception):
    """The head breaks the rules of HTTP."""


@dataclass(slots=True)
class ResponseHead:
    """The status line and the headers of a response.

    Attributes:
        http_version: ``b"1.1"`` or ``b"1.0"``.
        status_code: the HTTP status.
        reason: the phrase behind the status.
        headers: all headers.
        chunked: the body is sent in chunks.
        length: the body's length in bytes; ``None`` if it is sent in chunks, or ends with the connection.
        keeps_alive: the server keeps the connection open for another request.
    """

    http_version: bytes
    status_code: int
    reason: bytes
    headers: Fields
    chunked: bool
    length: int | None
    keeps_alive: bool


def request_head(method: bytes, target: bytes, headers: Collection[tuple[bytes, bytes]]) -> bytes:
    """Write the head of a request.

    Raises:
        InvalidHead: HTTP does not allow the method, the target or a header.
    """
    lines = [header_line(name, value) for name, value in headers]
    return b"%b%b\r\n" % (request_line(method, target), b"".join(lines))


def request_line(method: bytes, target: bytes) -> bytes:
    """Write the first line of a request; raises as :func:`request_head`."""
    line = b"%b %b HTTP/1.1\r\n" % (method, target)
    if not _REQUEST_LINE.fullmatch(line):
        raise InvalidHead("the request's target is not allowed in HTTP")
    return line


def header_line(name: bytes, value: bytes) -> bytes:
    """Write one header of a request; raises as :func:`request_head`."""
    line = b"%b: %b\r\n" % (name, value)
    if not _LINE.fullmatch(line):
        raise InvalidHead("a header of the request is not allowed in HTTP")
    return line


def parse_response(data: bytes | bytearray, searched: int = 0) -> tuple[ResponseHead, int] | None:
    """Read the head of a response.

    Args:
        data: the response's first bytes.
        searched: number of these bytes in which an earlier call has not found the head's end. They are not searched
            again, so that no byte is read twice.

    Returns:
        The head and its size in bytes; ``None`` if its end has not come yet.

    Raises:
        InvalidHead: the head breaks the rules of HTTP, or is longer than :data:`MAX_HEAD`.
    """
    if not _HTTP.startswith(data[:5]):
        raise InvalidHead(f"it begins with {bytes(data[:20])!r}")
    end = data.find(b"\r\n\r\n", searched - 3 if searched > 3 else 0, MAX_HEAD)
    if end < 0:
        if len(data) >= MAX_HEAD:
            raise InvalidHead(f"its head is longer than {MAX_HEAD} bytes")
        return None
    lines = bytes(data[:end]).split(b"\r\n")
    version, code, reason = (_status if end <= KEPT_BYTES else _status.__wrapped__)(lines[0])
    headers = _fields(lines[1:], end)
    lengths, codings, connection = [], [], b""
    for name, value in headers:
        if name not in _FRAMING:
            continue
        if name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            codings.append(value.lower())
        else:
            connection += b"," + value.lower()
    if codings not in ([], [b"chunked"]):
        raise InvalidHead(f"unknown transfer coding: {b', '.join(codings)[:40]!r}")
    if len(lengths) + len(codings) > 1:
        raise InvalidHead("its body could end in two places: it has more than one length or transfer coding")
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise InvalidHead(f"not a length: {lengths[0][:40]!r}")
    if codings and version == b"1.0":
        raise InvalidHead("HTTP/1.0 has no transfer coding")
    closes = version == b"1.0" or (connection != b"" and b"close" in map(bytes.strip, connection.split(b",")))
    length = int(lengths[0]) if lengths else None
    head = ResponseHead(version, code, reason, headers, bool(codings), length, not closes)
    return head, end + 4


def parse_fields(text: bytes) -> Fields:
    """Read headers or trailers.

    Args:
        text: at least one line, with CR LF between the lines.

    Raises:
        InvalidHead: a line is not ``Name: value``, or there are more than :data:`MAX_FIELDS`.
    """
    return _fields(text.split(b"\r\n"), len(text))


def _fields(lines: list[bytes], size: int) -> Fields:
    if len(lines) > MAX_FIELDS:
        raise InvalidHead(f"more than {MAX_FIELDS} headers")
    return list(map(_field if size <= KEPT_BYTES else _field.__wrapped__, lines))


@lru_cache(maxsize=256)
def _field(line: bytes) -> tuple[bytes, bytes]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise InvalidHead(f"not a header: {line[:40]!r}")
    return found[1].lower(), found[2].strip(b" \t")


@lru_cache(maxsize=32)
def _status(line: bytes) -> tuple[bytes, int, bytes]:
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise InvalidHead(f"not a status line: {line[:40]!r}")
    return found[1], int(found[2]), found[3] or b""


# Bodies.

MAX_CHUNK: Final = 64 * 1024
"""A chunk of up to this many bytes is returned in one piece, a longer one in pieces of this size."""

MAX_SIZE_LINE: Final = 4096
"""Longest line with the size of a chunk, in bytes. Extensions may follow the size; they are skipped."""

MAX_EXCESS: Final = 16 * 1024
"""Bytes of chunk extensions that a body may have beyond 16 bytes for each chunk and twice its payload (Go's limit). A
body of one-byte chunks is fine; one that is mostly extensions would keep its reader busy with nothing."""

MAX_TRAILERS: Final = 16 * 1024
"""Longest trailers, in bytes."""

_USUAL_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class InvalidBody(Exception):
    """The bytes break the rules of HTTP."""


class BodyDecoder:
    """The body of one response.

    Call :meth:`next_chunk` until it returns ``None``, then with the connection's next read, and so on until
    :attr:`over`.

    Args:
        head: the response's head. It says how the body ends: with the last chunk, after ``Content-Length`` bytes, or
            with the connection.
        data: bytes of the body that came with the head.
        is_empty: the response has no body, also if its head announces one (a response to HEAD).

    Attributes:
        data: the last read of the connection, and the rest of the one before; empty once all bytes were taken.
        over: the body has ended.
        trailers: the headers behind the last chunk.
    """

    __slots__ = (
        *("_at", "_chunked", "_excess", "_left", "_part_bytes", "_parts", "_state", "_usual", "_usual_size"),
        *("data", "over", "trailers"),
    )

    def __init__(self, head: ResponseHead, data: bytes = b"", *, is_empty: bool = False) -> None:
        self.trailers: Fields = []
        self._chunked = head.chunked
        self._left = head.length  # bytes left of the body, or of the present chunk; None: up to the connection's end
        self.over = is_empty or head.status_code in (204, 304) or self._left == 0
        self._state = BodyDecoder._read_size if self._chunked else BodyDecoder._read_bytes
        self.data = data
        self._at = 0  # the first byte of it that no state has taken
        # The last size that was read, with its line: most chunks are as long as the one before.
        self._usual, self._usual_size = b"0\r\n", 0
        self._excess = 0  # bytes of extensions, see MAX_EXCESS
        self._parts: list[bytes] = []  # pieces of the present chunk
        self._part_bytes = 0  # their length

    @property
    def rest(self) -> bytes:
        """The bytes that no state has taken; behind the body, they belong to the next response."""
        return self.data[self._at :]

    def end(self) -> bool:
        """The connection has ended: return whether that is the body's end, too. If not, the body was cut."""
        self.over = self.over or (self._left is None and not self._chunked)
        return self.over

    def next_chunk(self, data: bytes = b"") -> bytes | None:
        """Return the next chunk, or a piece of a long one; ``None`` if more bytes are needed, or the body is over.

        Args:
            data: the connection's next read, if the last call returned ``None``.

        Raises:
            InvalidBody: the bytes are not HTTP. :meth:`take_partial` still returns those before the fault.
        """
        if data:
            self.data = self.data[self._at :] + data if self.data else data
            self._at = 0
        chunk: bytes | None = None
        while not self.over:
            chunk = self._state(self)
            if chunk or chunk is None:
                break
        if self._at == len(self.data):
            self.data, self._at = b"", 0  # the next read may have their place in memory
        return chunk or None

    def take_partial(self) -> bytes:
        """Return the bytes of a chunk whose end has not come."""
        chunk = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._part_bytes = 0
        return chunk

    # The states.

    def _read_size(self) -> bytes | None:
        # "1a3;extension CRLF"; a size of 0 is the last chunk, behind which trailers stand.
        if self.data.startswith(self._usual, self._at):
            self._at += len(self._usual)
            size = self._usual_size
        elif (found := _USUAL_SIZE.match(self.data, self._at)) is not None:
            self._at = found.end()
            self._usual, self._usual_size = found[0], int(found[1], 16)
            size = self._usual_size
        else:
            line = self._take_until(b"\r\n", MAX_SIZE_LINE)
            if line is None:
                return None
            found = _SIZE_LINE.fullmatch(line)
            if found is None:
                raise InvalidBody(f"not the size of a chunk: {line[:40]!r}")
            size = int(found[1], 16)
            if len(line) > 16:
                self._excess = max(0, self._excess + len(line) - 16 - 2 * size)
                if self._excess > MAX_EXCESS:
                    raise InvalidBody("its chunks consist of extensions")
        self._left = size
        end = self._at + size
        if 0 < size <= MAX_CHUNK and self.data.startswith(b"\r\n", end):  # most chunks have come whole
            chunk = self.data[self._at : end]
            self._at = end + 2
            return chunk
        self._state = BodyDecoder._read_bytes if size else BodyDecoder._read_trailers
        return b""

    def _read_bytes(self) -> bytes | None:
        # A chunk is collected up to MAX_CHUNK bytes; a body without chunks is returned as it comes.
        most = MAX_CHUNK - self._part_bytes
        if self._left is not None and self._left < most:
            most = self._left
        piece = self.data[self._at : self._at + most]
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
        end = self.data[self._at : self._at + 2]
        if not b"\r\n".startswith(end):
            raise InvalidBody(f"a chunk does not end where its size says: {end!r}")
        if len(end) < 2:
            return None
        self._at += 2
        self._state = BodyDecoder._read_size
        return b""

    def _read_trailers(self) -> bytes | None:
        if self.data.startswith(b"\r\n", self._at):  # there are none
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
        found = self.data.find(end, self._at, self._at + limit)
        if found < 0:
            if len(self.data) - self._at >= limit:
                raise InvalidBody(f"more than {limit} bytes without an end of line")
            return None
        taken = self.data[self._at : found]
        self._at = found + len(end)
        return taken
