"""Response heads as bytes: what every answer of a segment route looks like on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from tricklecast.trickle import wire
from tricklecast.trickle.wire import PHRASES, Status

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
TEXT: Final = "text/plain; charset=utf-8"

_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {int(status)} {phrase}\r\n".encode("ascii") for status, phrase in PHRASES.items()
}
_OK: Final = _STATUS_LINES[Status.OK]
_NO_CONTENT: Final = Status.NO_CONTENT
_NO_STORE: Final = b"cache-control: no-store\r\n"
_CLOSE: Final = b"connection: close\r\n"
_ENDED: Final = f"{wire.CLOSED}: {wire.TERMINATED}\r\n".encode("ascii")
_RETRY_AFTER: Final = f"{wire.RETRY_AFTER}: %d\r\n".encode("ascii")
_AT_HEAD, _BEHIND = (
    "".join([f"{name}: %d\r\n" for name in names]).encode("ascii")
    for names in ((wire.SEQ, wire.SIZE, wire.EPOCH), (wire.SEQ, wire.LATEST, wire.SIZE, wire.EPOCH))
)
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


class Reply(NamedTuple):
    """A whole answer that needs nothing but itself.

    Attributes:
        status: the HTTP status.
        reason: how the exchange ended, for the access log.
        headers: name and value pairs beside those that every answer carries.
        body: the body; for a HEAD its length is announced and it is left out.
        content_type: of the body, or of the channel.
        close: whether the connection closes after it.
        eos: whether it says that the channel has ended.
        retry_after_s: how long the client is told to wait.
    """

    status: int
    reason: str
    headers: tuple[tuple[str, str | int], ...] = ()
    body: bytes = b""
    content_type: str = TEXT
    close: bool = False
    eos: bool = False
    retry_after_s: int | None = None

    def encode(self, common: bytes, *, keep_alive: bool, cors: bytes = b"", head_only: bool = False) -> bytes:
        """The answer on the wire.

        Args:
            common: ``date`` and ``server``, as header lines.
            keep_alive: whether the client wants the connection to stay.
            cors: header lines for a page of another origin (:mod:`tricklecast.app.data_plane.cors`).
            head_only: leave the body out (HEAD).
        """
        status, _, headers, body, content_type, close, eos, retry_after_s = self
        lines = [_STATUS_LINES[status], common, _NO_STORE, header_lines(headers)]
        if eos:
            lines.append(_ENDED)
        if retry_after_s is not None:
            lines.append(_RETRY_AFTER % retry_after_s)
        if status != _NO_CONTENT:
            if body or not head_only:
                lines.append(b"content-length: %d\r\n" % len(body))
            if content_type:
                lines.append(_content_type(content_type))
        if close or not keep_alive:
            lines.append(_CLOSE)
        lines += (cors, b"\r\n")
        if not head_only:
            lines.append(body)
        return b"".join(lines)


@lru_cache(maxsize=256)
def encoded(reply: Reply, common: bytes, *, keep_alive: bool, cors: bytes = b"", head_only: bool = False) -> bytes:
    """A reply as :meth:`Reply.encode` has it, for those that are sent again and again; they change with the date."""
    return reply.encode(common, keep_alive=keep_alive, cors=cors, head_only=head_only)


def header_lines(headers: Iterable[tuple[str, str | int]]) -> bytes:
    """Header lines as they go on the wire."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("latin-1")


def segment_head(
    common: bytes,
    content_type: str,
    seq: int,
    latest: int | None,
    epoch: int,
    size: int,
    truncated: str,
    *,
    keep_alive: bool,
    cors: bytes,
    http10: bool,
) -> bytes:
    """The head of a 200 that carries a segment.

    Args:
        latest: the head as it was when the request came; ``None`` where it equals ``seq``.
        size: bytes available now.
        truncated: why the segment is not whole, if that is known already.
        cors: header lines for a page of another origin.
        http10: the client knows no chunks: the end of the connection is the end of the body.
    """
    place = _AT_HEAD % (seq, size, epoch) if latest is None else _BEHIND % (seq, latest, size, epoch)
    lines = [_OK, common, _NO_STORE, _content_type(content_type), place]
    if truncated:
        lines.append(header_lines([(wire.TRUNCATED, truncated)]))
    if not http10:
        lines.append(_CHUNKED)
    if http10 or not keep_alive:
        lines.append(_CLOSE)
    lines += (cors, b"\r\n")
    return b"".join(lines)


@lru_cache(maxsize=1024)
def _content_type(content_type: str) -> bytes:
    return header_lines([("content-type", content_type)])


def truncated_end(why: str) -> bytes:
    """The last chunk of a segment that was cut short while it was being read, which says so in a trailer."""
    return b"0\r\n" + header_lines([(wire.TRUNCATED, why)]) + b"\r\n"
