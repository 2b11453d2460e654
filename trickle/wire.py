"""Names and numbers of the trickle protocol, and how messages show its URLs.

docs/reference/protocol.md is normative and explains each of them. Every name of a header, status and reserved seq
stands here once, so that server, clients, conformance suite and analytics cannot disagree.
"""

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
WEBVTT: Final = "text/vtt"

MESSAGE_LIMIT: Final = 1024 * 1024
"""The longest JSON document, in bytes: longer than any control message, and short enough to be held in memory. A
publisher sends no longer one, and a reader with the usual limit reads none."""

CHANGEFEED: Final = "_changes"
"""The server's own channel: one JSON object ``{"added": [...]}`` or ``{"removed": [...]}`` per segment."""

NEXT_ROUTE: Final = "next"
"""``GET /{channel}/next`` returns the head as text."""

STREAM_ROUTE: Final = "stream"
"""``GET /{channel}/stream`` returns all segments, one after the other, in one response."""

PLAYLIST_ROUTE: Final = "index.m3u8"
MEDIA_PLAYLIST_ROUTE: Final = "media.m3u8"
PICTURE_PLAYLIST_ROUTE: Final = "iframes.m3u8"
HLS_ROUTE: Final = "hls"
"""``GET /{channel}/index.m3u8`` returns an HLS playlist, as ``media.m3u8`` does. Its media are at
``/{channel}/hls/...``."""

CUT: Final = "#LP-TRICKLE-TRUNCATED"
LEFT_OUT: Final = "#LP-TRICKLE-LEFT-OUT"
"""Comments in the playlist of a recording: why the next segment is not whole, and segments that it does not name."""

CLIP_MP4_ROUTE: Final = "clip.mp4"
CLIP_TS_ROUTE: Final = "clip.ts"
"""``GET /{channel}/clip.mp4?since=90s&until=60s`` returns one file with the media of a channel between two moments."""

LADDER_PARAMETER: Final = "ladder"
"""``GET /{channel}/index.m3u8?ladder=1080p,360p`` also names the channels of lower rungs (``trickle.media.ladder``)."""

FEED_PROTOCOL: Final = "trickle-feed"
"""``GET /{channel}`` with ``Upgrade: trickle-feed`` switches the connection to the feed of the channel."""

SEQ_NEXT: Final = -1
"""In a GET: the head. In a POST: the first free seq at or after the head."""

SEQ_CURRENT: Final = -2
"""In a GET: the newest segment that has begun."""

LAST_SEQ: Final = 10**15 - 1
"""The largest seq. Its 15 digits fit into the numbers of every language, JavaScript's floating-point ones included."""

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
"""Trailer of a stream: the number of segments that were left out or truncated."""
LIFE: Final = "Lp-Trickle-Life"
DURABILITY: Final = "Lp-Trickle-Durability"
PUBLISHER: Final = "Lp-Trickle-Publisher"
"""In a 409 to ``Lp-Trickle-If-Idle``: the name of the client that publishes, if it gave one (``Trickle-Client``)."""
PUBLISHING_FOR: Final = "Lp-Trickle-Publishing-For"
"""In a 409 to ``Lp-Trickle-If-Idle``: the seconds for which that client has published."""
NODE: Final = "Lp-Trickle-Node"
"""The URL of the node of a cluster that owns the channel, base path included, in a response that another node passes
on. A client saves the detour if it asks there the next time. In a 421: where the feed of the channel is."""
DEGRADED: Final = "Lp-Trickle-Degraded"
"""In a response to a publisher: why another node of the cluster may take the channel for its own, too."""
ELSEWHERE: Final = "Lp-Trickle-Elsewhere"
"""In a 503 to a publisher, with the value 1: another server takes this channel's publishers, and the body names it."""
RETRY_AFTER: Final = "Retry-After"
ETAG: Final = "ETag"
ACCEPT_RANGES: Final = "Accept-Ranges"
CONTENT_RANGE: Final = "Content-Range"
"""Only responses about finished segments have these three: the bytes of such a segment never change."""
WWW_AUTHENTICATE: Final = "WWW-Authenticate"

# Request headers. A publisher sends LIFE and EPOCH, too.
RESET: Final = "Lp-Trickle-Reset"
IF_IDLE: Final = "Lp-Trickle-If-Idle"
"""In the POST of a segment or the DELETE of a channel: refuse it if another client publishes to the channel."""
LEAVE: Final = "Lp-Trickle-Leave"
"""In the DELETE of a segment: this client publishes no more to the channel, so another one need not wait for it."""
EXPECT_CONTENT: Final = "Expect-Content"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
ATTEMPT: Final = "Trickle-Attempt"
CLIENT: Final = "Trickle-Client"
TRACEPARENT: Final = "traceparent"
CLUSTER: Final = "Trickle-Cluster"
"""Between nodes of a cluster only (:mod:`app.cluster.peers`). In a request: the nodes that it has passed and the client
that has made it, signed. In the response to it: facts for the access record of the node that has forwarded it."""
SIGNATURE: Final = "Trickle-Signature"
"""In a request to a webhook."""

TERMINATED: Final = "terminated"
"""The only value of ``Lp-Trickle-Closed``: the channel has ended."""

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
    NODE,
    DEGRADED,
    ELSEWHERE,
    RETRY_AFTER,
    ETAG,
    ACCEPT_RANGES,
    CONTENT_RANGE,
)
"""Response headers that a script in a browser may read (CORS)."""

ALLOWED_REQUEST_HEADERS: Final[tuple[str, ...]] = (
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
"""Request headers that a script in a browser may send (CORS)."""


_LIFE = re.compile(r"([0-9A-Za-z.-]{1,64})(?::([0-9]{1,15}))?", re.ASCII)


class Life(NamedTuple):
    """The numbering of a channel's segments, the value of ``Lp-Trickle-Life``: for example ``9f86d081884c7d65:0``.

    A restarted server may number a channel anew, or go on. The numbering tells the two apart (protocol.md, section 5).

    Attributes:
        name: unique: 1 to 64 letters, digits, dots and hyphens.
        first: all segments from this seq on belong to the numbering; ``None`` if none has been written yet.
    """

    name: str
    first: int | None = None

    def __str__(self) -> str:
        return self.name if self.first is None else f"{self.name}:{self.first}"


NO_LIFE: Final = Life("")
"""The numbering of a server that sends no ``Lp-Trickle-Life``."""


@lru_cache(maxsize=1024)
def parse_life(text: str) -> Life | None:
    """Read the value of ``Lp-Trickle-Life``; ``None`` if it is not one."""
    match = _LIFE.fullmatch(text)
    if match is None:
        return None
    name, first = match.groups()
    return Life(name, None if first is None else int(first))


class Status(IntEnum):
    """The statuses of segment routes."""

    SWITCHING = 101
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
    """The channel exists, the segment does not. ``Lp-Trickle-Latest`` names the head."""
    SERVER_ERROR = 500
    NOT_IMPLEMENTED = 501
    UNAVAILABLE = 503
    VERSION_NOT_SUPPORTED = 505
    LOOP = 508


PHRASES: Final[dict[int, str]] = {
    Status.SWITCHING: "Switching Protocols",
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
    Status.LOOP: "Loop Detected",
}
"""Reason phrases. HTTP itself has none for 470."""

# Up to the last @ before the path, since a password may contain an @. The scheme may be missing.
_USER = re.compile(r"^(\s*[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")
_QUERY_VALUE = re.compile(r"(?<==)[^&#]+")


def redacted(url: str) -> str:
    """Hide the secrets of a URL: user, password and all values of the query.

    Each value of the query may be an access token, also one under another name than ``token``. For example,
    ``https://me:secret@host/trickle/cam?token=abc`` becomes ``https://***@host/trickle/cam?token=***``.

    Args:
        url: any text; it need not be a valid URL.
    """
    address, mark, query = _USER.sub(r"\1***@", url).partition("?")
    return address + mark + _QUERY_VALUE.sub("***", query)


_BETWEEN_URLS = re.compile(r"\s*,\s*(?=https?://)", re.IGNORECASE)


def split_urls(text: str) -> list[str]:
    """Take a list of URLs apart: a comma before ``http://`` or ``https://`` ends a URL, any other one belongs to it."""
    return _BETWEEN_URLS.split(text)


def printable(text: str) -> str:
    """Put question marks for control characters, which a terminal would obey: another machine has sent the text."""
    return "".join(char if char.isprintable() else "?" for char in text)


def redacted_urls(text: str) -> str:
    """Do as :func:`redacted` to each URL of a list."""
    return ", ".join(map(redacted, split_urls(text)))
