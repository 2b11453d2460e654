"""The framing of requests: checks of a head that the parser does not make, and a limit of the bytes around a body.

The parser accepts heads that another server would read differently (:func:`objection`), and it reads on for ever where
no payload comes: a header that never ends, chunks of one byte each with a long extension, trailer fields without end.
Nothing of that is stored, but it costs as much time as payload does. So each request
has a :class:`FramingGuard`, which counts the bytes beside the payload by what the parser tells it and how many bytes it
was fed:

- *Header and trailer fields* have ``header_bytes`` in all, :data:`FIELD_BYTES` for each field included. The parser
  keeps a field to itself until it is whole, so the bytes of the packets that fields take are counted, too: twice as
  many are too many. The packet in which the fields begin may hold the end of a body before them, and is not counted.
- *Chunks* may cost :data:`CHUNK_OVERHEAD` bytes each and twice their payload. What goes beyond that may be
  :data:`EXCESS_BYTES` in all. Go's net/http has the same rule. The packet in which the head ends is not counted, since
  the parser does not say how much of it is head.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tricklecast.trickle.wire import Status

FIELD_BYTES: Final = 32
"""The cost of a header field beside its name and value, as HTTP/2 counts it (RFC 9113, section 6.5.2)."""

CHUNK_OVERHEAD: Final = 16
EXCESS_BYTES: Final = 16 << 10

_HEAD_CREDIT: Final = -(1 << 20)
"""More bytes than a packet has: the packet in which the head ends is not counted."""

_NO_HEAD: Final = -1
"""In place of a number of packets: no header fields are being parsed."""

HOST_TEXT: Final = (string.ascii_letters + string.digits + "-._~%!$&'()*+,;=:[]").encode()
"""The characters of a URL's host and port, either of which may be empty (RFC 3986, sections 3.2.2 and 3.2.3). A text
without any other is empty when these are stripped."""


class Objection(NamedTuple):
    """The refusal of a head before its route is read: the status, and one line."""

    status: Status
    text: str


_VERSION: Final = Objection(Status.VERSION_NOT_SUPPORTED, "Neither HTTP/1.1 nor HTTP/1.0")
_HOST: Final = Objection(Status.BAD_REQUEST, "Not exactly one Host")
_INVALID_HOST: Final = Objection(Status.BAD_REQUEST, "Invalid Host")
_OTHER_HOST: Final = Objection(Status.BAD_REQUEST, "Host is not that of the URL")
_CODING: Final = Objection(Status.NOT_IMPLEMENTED, "Unknown Transfer-Encoding")
_CODING_1_0: Final = Objection(Status.BAD_REQUEST, "Transfer-Encoding in HTTP/1.0")


def objection(
    version: str, target: bytes, fields: Sequence[tuple[bytes, bytes]], headers: Mapping[bytes, bytes]
) -> Objection | None:
    """The objection to a head that the parser accepts; ``None`` without one (docs/explanation/hostile-input.md).

    A proxy and this server could read such a head differently: one of them would take a part of the body for a request
    of another client. The parser itself refuses two lengths, and a length beside a transfer coding.

    Args:
        version: of HTTP, as ``1.1``.
        target: of the request, as on the wire.
        fields: all header fields, their names in lower case.
        headers: the same by name.
    """
    if version not in ("1.1", "1.0"):
        return _VERSION
    hosts = sum(name == b"host" for name, _ in fields)
    # HTTP/1.0 has no Host (RFC 9112, section 3.2).
    if hosts > 1 or (not hosts and version == "1.1"):
        return _HOST
    host = headers.get(b"host", b"")
    if host.strip(HOST_TEXT):
        return _INVALID_HOST
    # A proxy's form of the target, http://host/path, names the host once more (RFC 9112, section 3.2.2).
    if b"://" in (form := target.partition(b"?")[0]) and not form.startswith(b"/"):
        named = form.partition(b"://")[2].partition(b"/")[0]
        if hosts and named.lower() != host.lower():
            return _OTHER_HOST
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if codings and version == "1.0":
        # RFC 9112, section 6.1: such a message's framing is faulty.
        return _CODING_1_0
    # A body that is compressed as well as chunked would be stored compressed (RFC 9112, section 6.1: 501).
    return _CODING if any(coding != b"chunked" for coding in codings) else None


def joined(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Header fields by name. Different lines of a field are joined (RFC 9110, section 5.3), equal ones are one line.

    With the last line alone, ``Content-Encoding: gzip`` could hide before ``Content-Encoding: identity``.
    """
    lines: dict[bytes, dict[bytes, None]] = {}
    for name, value in fields:
        lines.setdefault(name, {})[value] = None
    return {name: b", ".join(values) for name, values in lines.items()}


_TOO_LARGE: Final = Objection(Status.HEADERS_TOO_LARGE, "Request headers too large")
_EXCESS: Final = Objection(Status.BAD_REQUEST, "Too many bytes around the chunks")


class FramingGuard:
    """Counts the bytes of one request that are no payload.

    Args:
        header_bytes: the limit of its header and trailer fields.

    Attributes:
        chunked: whether the body of the request comes in chunks.
    """

    __slots__ = ("_excess", "_head_bytes", "_header_bytes", "_packets", "_room", "chunked")

    def __init__(self, header_bytes: int) -> None:
        self.chunked = False
        self._header_bytes = header_bytes
        self._room = header_bytes  # for further fields
        self._packets = 0  # that the fields being parsed have taken
        self._head_bytes = 0  # of these packets, without the first one
        self._excess = _HEAD_CREDIT  # bytes of the body that are no payload, beyond what is allowed for each chunk

    @property
    def head_bytes(self) -> int:
        """The cost of the fields so far."""
        return self._header_bytes - self._room

    # What the parser tells.

    def field(self, size: int) -> Objection | None:
        """Count a header or trailer field, whose name and value have this size."""
        self._room -= size + FIELD_BYTES
        return _TOO_LARGE if self._room < 0 else None

    def head_ended(self) -> None:
        """Note that the head is whole, or the trailer."""
        self._packets = _NO_HEAD

    def chunk(self) -> None:
        """Count a chunk that begins. Trailer fields may follow the last one, which has no bytes."""
        self._excess -= CHUNK_OVERHEAD
        self._packets = self._head_bytes = 0

    def payload(self, size: int) -> None:
        """Count bytes of the body."""
        self._packets = _NO_HEAD
        if self.chunked:
            self._excess -= 3 * size

    # What the connection tells.

    def fed(self, size: int) -> Objection | None:
        """Count bytes that the parser was fed. Returns an objection if too many are no payload."""
        if self._packets != _NO_HEAD:
            self._head_bytes += size if self._packets else 0
            self._packets += 1
            if self._head_bytes > 2 * self._header_bytes:
                return _TOO_LARGE
        if self.chunked:
            # What of it was payload is subtracted already.
            self._excess = max(0, self._excess + size)
            if self._excess > EXCESS_BYTES:
                return _EXCESS if self._packets == _NO_HEAD else _TOO_LARGE
        return None


NO_REQUEST: Final = FramingGuard(0)
"""The guard of every connection that is between requests: it counts nothing, and takes no memory of its own."""

NO_REQUEST.head_ended()
