"""Names and numbers of the trickle wire protocol (docs/reference/protocol.md), and how messages show its URLs."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

DEFAULT_BASE_PATH: Final = "/trickle"
DEFAULT_PORT: Final = 2939
DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
MPEG_TS: Final = "video/mp2t"
MP4: Final = "video/mp4"
MP4_AUDIO: Final = "audio/mp4"

MESSAGE_LIMIT: Final = 1024 * 1024
"""The longest JSON document, in bytes: far more than a control message has, and little enough to be held. A publisher
writes none that readers with the usual limit refuse."""

CHANGEFEED: Final = "_changes"
"""The server's own channel: one JSON object ``{"added": [...]}`` or ``{"removed": [...]}`` per segment."""

NEXT_ROUTE: Final = "next"
"""``GET /{channel}/next`` answers the head as text."""

STREAM_ROUTE: Final = "stream"
"""``GET /{channel}/stream`` answers all segments, one after the other, in one response."""

PLAYLIST_ROUTE: Final = "index.m3u8"
HLS_ROUTE: Final = "hls"
"""``GET /{channel}/index.m3u8`` answers an HLS playlist, whose media are at ``/{channel}/hls/...``."""

SEQ_NEXT: Final = -1
"""Asked of a GET: the head. Asked of a POST: the first free seq at or after the head."""

SEQ_CURRENT: Final = -2
"""Asked of a GET: the newest segment that was started."""

LAST_SEQ: Final = 10**15 - 1
"""None can follow it: a seq has 15 digits, which every language can hold in a number, floating-point ones included."""

# Response headers.
SEQ: Final = "Lp-Trickle-Seq"
LATEST: Final = "Lp-Trickle-Latest"
EARLIEST: Final = "Lp-Trickle-Earliest"
NEXT: Final = "Lp-Trickle-Next"
SIZE: Final = "Lp-Trickle-Size"
EPOCH: Final = "Lp-Trickle-Epoch"
CLOSED: Final = "Lp-Trickle-Closed"
TRUNCATED: Final = "Lp-Trickle-Truncated"
GAPS: Final = "Lp-Trickle-Gaps"
"""Of a stream: how many segments were left out or cut short."""
LIFE: Final = "Lp-Trickle-Life"
DURABILITY: Final = "Lp-Trickle-Durability"
PUBLISHER: Final = "Lp-Trickle-Publisher"
"""The name of the client that publishes already, if it gave one (``Trickle-Client``)."""
PUBLISHING_FOR: Final = "Lp-Trickle-Publishing-For"
"""For how many seconds it has. Only the refusal that ``Lp-Trickle-If-Idle`` asks for has this header."""
RETRY_AFTER: Final = "Retry-After"
ETAG: Final = "ETag"
ACCEPT_RANGES: Final = "Accept-Ranges"
CONTENT_RANGE: Final = "Content-Range"
"""Only answers about finished segments, which never change, have these three."""
WWW_AUTHENTICATE: Final = "WWW-Authenticate"

# Request headers; a publisher sends LIFE and EPOCH, too.
RESET: Final = "Lp-Trickle-Reset"
IF_IDLE: Final = "Lp-Trickle-If-Idle"
"""Of a POST of a segment and of the DELETE of a channel: refuse it if another client publishes to the channel."""
LEAVE: Final = "Lp-Trickle-Leave"
"""Of the DELETE of a segment: the client publishes no more to the channel, so another one need not wait for it."""
EXPECT_CONTENT: Final = "Expect-Content"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
ATTEMPT: Final = "Trickle-Attempt"
CLIENT: Final = "Trickle-Client"
TRACEPARENT: Final = "traceparent"
SIGNATURE: Final = "Trickle-Signature"
"""Of a question to a webhook."""

TERMINATED: Final = "terminated"
"""The one value of ``Lp-Trickle-Closed``: the channel has ended."""

EXPOSED_HEADERS: Final = (
    SEQ,
    LATEST,
    EARLIEST,
    NEXT,
    SIZE,
    EPOCH,
    CLOSED,
    TRUNCATED,
    LIFE,
    DURABILITY,
    PUBLISHER,
    PUBLISHING_FOR,
    RETRY_AFTER,
    ETAG,
    ACCEPT_RANGES,
    CONTENT_RANGE,
)
"""What a browser script may read (CORS)."""

ALLOWED_REQUEST_HEADERS: Final = (
    EXPECT_CONTENT,
    "Content-Type",
    RESET,
    EPOCH,
    IF_IDLE,
    LEAVE,
    "Authorization",
    IDEMPOTENCY_KEY,
    ATTEMPT,
    CLIENT,
    "Range",
    "If-Range",
    "If-None-Match",
)
"""What a browser script may send (CORS)."""


_LIFE = re.compile(r"([0-9A-Za-z.-]{1,64})(?::([0-9]{1,15}))?", re.ASCII)


class Life(NamedTuple):
    """The numbering that a channel's segments have: what ``Lp-Trickle-Life`` says, for example ``9f86d081884c7d65:0``.

    Attributes:
        name: no other numbering has it; of letters, digits, dots and hyphens, at most 64.
        first: from this seq on all segments are of this numbering; ``None`` if none of it has been written yet, so
            that nobody can say whether it goes on with an earlier one.
    """

    name: str
    first: int | None = None

    def __str__(self) -> str:
        return self.name if self.first is None else f"{self.name}:{self.first}"


NO_LIFE: Final = Life("")
"""Of a server that does not name itself."""


@lru_cache(maxsize=1024)
def parse_life(text: str) -> Life | None:
    """Read the value of ``Lp-Trickle-Life``; ``None`` if it is not one."""
    match = _LIFE.fullmatch(text)
    if match is None:
        return None
    name, first = match.groups()
    return Life(name, None if first is None else int(first))


class Status(IntEnum):
    """Every status that a segment route answers with."""

    OK = 200
    NO_CONTENT = 204
    PARTIAL_CONTENT = 206
    NOT_MODIFIED = 304
    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    NOT_FOUND = 404
    METHOD_NOT_ALLOWED = 405
    REQUEST_TIMEOUT = 408
    CONFLICT = 409
    TOO_LARGE = 413
    URI_TOO_LONG = 414
    UNSUPPORTED = 415
    RANGE_NOT_SATISFIABLE = 416
    MISDIRECTED = 421
    TOO_MANY_REQUESTS = 429
    HEADERS_TOO_LARGE = 431
    SEQ_MISSING = 470
    """The channel exists, the segment does not: ``Lp-Trickle-Latest`` says where the head is."""
    SERVER_ERROR = 500
    NOT_IMPLEMENTED = 501
    UNAVAILABLE = 503
    VERSION_NOT_SUPPORTED = 505


PHRASES: Final[dict[int, str]] = {
    Status.OK: "OK",
    Status.NO_CONTENT: "No Content",
    Status.PARTIAL_CONTENT: "Partial Content",
    Status.NOT_MODIFIED: "Not Modified",
    Status.BAD_REQUEST: "Bad Request",
    Status.UNAUTHORIZED: "Unauthorized",
    Status.FORBIDDEN: "Forbidden",
    Status.NOT_FOUND: "Not Found",
    Status.METHOD_NOT_ALLOWED: "Method Not Allowed",
    Status.REQUEST_TIMEOUT: "Request Timeout",
    Status.CONFLICT: "Conflict",
    Status.TOO_LARGE: "Content Too Large",
    Status.URI_TOO_LONG: "URI Too Long",
    Status.UNSUPPORTED: "Unsupported Media Type",
    Status.RANGE_NOT_SATISFIABLE: "Range Not Satisfiable",
    Status.MISDIRECTED: "Misdirected Request",
    Status.TOO_MANY_REQUESTS: "Too Many Requests",
    Status.HEADERS_TOO_LARGE: "Request Header Fields Too Large",
    Status.SEQ_MISSING: "Segment Not Found",
    Status.SERVER_ERROR: "Internal Server Error",
    Status.NOT_IMPLEMENTED: "Not Implemented",
    Status.UNAVAILABLE: "Service Unavailable",
    Status.VERSION_NOT_SUPPORTED: "HTTP Version Not Supported",
}
"""Reason phrases, including the one for 470, which HTTP itself does not know."""

# Up to the last @ before the path: a password may contain one that is not encoded. The scheme may be missing.
_USER = re.compile(r"^(\s*[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")
_QUERY_VALUE = re.compile(r"(?<==)[^&#]+")


def redacted(url: str) -> str:
    """Return a URL as messages, reports and logs may show it: without user, password and the values of its query.

    A channel's URL has a query for one purpose, an access token, whatever the parameter is called. For example,
    ``https://me:secret@host/trickle/cam?token=abc`` becomes ``https://***@host/trickle/cam?token=***``.

    Args:
        url: any text; it need not be a valid URL.
    """
    address, mark, query = _USER.sub(r"\1***@", url).partition("?")
    return address + mark + _QUERY_VALUE.sub("***", query)
