"""Writes heads of HTTP/1.1 requests and reads those of responses. No I/O.

Strict on purpose. Each line ends with CR LF, each header is ``Name: value`` of allowed characters, and a head that
allows two ends of its body is refused: a client and a proxy that disagree about the end take a part of one response for
the next one (response smuggling). So is a request whose header holds a line break.

A head is most of the bytes of a small segment, and most of its lines are those of the head before: so a line that was
read lately is looked up. Few lines are kept, and those of short heads only (:data:`KEPT_BYTES`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

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
