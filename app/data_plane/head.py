"""What is wrong with a request's head that the parser lets pass (docs/explanation/hostile-input.md)."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tricklecast.trickle.wire import Status

_CHUNKED: Final = b"chunked"
_DIGITS: Final = 20
"""Of the largest length that the parser accepts, 2**64 - 1; leading zeros not counted."""


class Objection(NamedTuple):
    """Why a request is refused before anybody looks at what it asks for: the status, and one line."""

    status: Status
    text: str


HOST_TEXT: Final = (string.ascii_letters + string.digits + "-._~%!$&'()*+,;=:[]").encode()
"""What the host and port of a URL are made of, either of which may be empty (RFC 3986, sections 3.2.2 and 3.2.3)."""

_VERSION: Final = Objection(Status.VERSION_NOT_SUPPORTED, "Neither HTTP/1.1 nor HTTP/1.0")
_HOST: Final = Objection(Status.BAD_REQUEST, "Not exactly one Host")
_NO_HOST: Final = Objection(Status.BAD_REQUEST, "Invalid Host")
_CODING: Final = Objection(Status.NOT_IMPLEMENTED, "Unknown Transfer-Encoding")
_CODING_1_0: Final = Objection(Status.BAD_REQUEST, "Transfer-Encoding in HTTP/1.0")


def objection(version: str, fields: Sequence[tuple[bytes, bytes]], headers: Mapping[bytes, bytes]) -> Objection | None:
    """What is wrong with a head; ``None`` if nothing is.

    Two parties that read such a head differently do not agree where its body ends, or for whom it is: what one of
    them takes for a body is a request to the other. Both lengths at once, a length twice and the like are refused by
    the parser.

    Args:
        version: of HTTP, as ``1.1``.
        fields: all header fields, their names in lower case.
        headers: the same by name.
    """
    if version not in ("1.1", "1.0"):
        return _VERSION
    hosts = sum(name == b"host" for name, _ in fields)
    # HTTP/1.0 knows no Host (RFC 9112, section 3.2).
    if hosts > 1 or (not hosts and version == "1.1"):
        return _HOST
    if headers.get(b"host", b"").translate(None, HOST_TEXT):
        return _NO_HOST
    if version == "1.0" and b"transfer-encoding" in headers:
        # RFC 9112, section 6.1: its framing is faulty.
        return _CODING_1_0
    return _coding(fields)


def _coding(fields: Sequence[tuple[bytes, bytes]]) -> Objection | None:
    """A body that is compressed on top of being chunked would be stored as it is (RFC 9112, section 6.1: 501)."""
    codings = [value.strip().lower() for name, value in fields if name == b"transfer-encoding"]
    return _CODING if any(coding != _CHUNKED for coding in codings) else None


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body follows, or may."""
    return b"transfer-encoding" in headers or bool(content_length(headers))


def content_length(headers: Mapping[bytes, bytes]) -> int | None:
    """The announced size of the body in bytes; ``None`` if it is not announced."""
    value = headers.get(b"content-length")
    if value is None or not value.isdigit():
        return None
    # Python refuses to read numbers of more than some thousand digits, zeros included.
    return int(value if len(value) <= _DIGITS else value.lstrip(b"0")[:_DIGITS] or b"0")


def expects_continue(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the client holds its body back until it is told to go on."""
    return b"expect" in headers and headers[b"expect"].lower() == b"100-continue"
