"""The response writer: the bytes of responses that the data plane has decided (:mod:`app.data_plane.responses`).

Theory of operation. A response leaves in one of three shapes:

- *whole* (:func:`whole`): head and body, with a length;
- *framed*: :func:`begin`, frames, :func:`end`. The size of a segment is not known when its head leaves, so its body
  comes in chunks, and trailers follow. A frame is one write of the publisher in this very form. The core encodes it
  once, when it arrives, and the segment keeps it for all readers: so nothing here touches a body byte, and a chunk
  costs each reader one system call (:meth:`.Reader.wake`);
- *plain*: :func:`begin` with a length, then the bytes (a range of a segment, media of HLS).

The lines that many responses of one second share are encoded once: the status, the date, a content type, a
``Cache-Control``, a page's permission; and so are whole refusals, since a flood of them must be cheap. The lines of a
segment are bytes from the beginning (``Reply.lines``), filled into templates such as ``b"Lp-Trickle-Seq: %d"``. Rare
fields are pairs of name and value (``Reply.headers``), which take three times as long to encode.

A client of HTTP/1.0 knows no chunks. It gets the bytes alone, and the end of the connection is the end of the body.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tricklecast.app.data_plane.responses import Headers, Reply, ResponseHead, type_fields
from tricklecast.trickle import __version__
from tricklecast.trickle.wire import PHRASES, Status

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES: Final[dict[int, bytes]] = {
    status: f"HTTP/1.1 {int(status)} {phrase}\r\n".encode() for status, phrase in PHRASES.items()
}
_BODILESS: Final = (Status.NO_CONTENT, Status.NOT_MODIFIED)
_CLOSE: Final[Headers] = (("connection", "close"),)
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


def whole(reply: Reply, date: str, cors: Headers, *, keep_alive: bool, head_only: bool = False) -> bytes:
    """A whole response.

    Args:
        date: the value of ``Date``.
        cors: the header fields that let a page of another origin read the response.
        keep_alive: whether the client wants the connection to stay open.
        head_only: leave the body out (HEAD).
    """
    if reply.retry_after_s is not None and not (reply.headers or reply.lines):
        return _whole_again(reply, date, cors, keep_alive, head_only)
    return _whole(reply, date, cors, keep_alive, head_only)


def _whole(reply: Reply, date: str, cors: Headers, keep_alive: bool, head_only: bool) -> bytes:
    status, body, close = reply.status, reply.body, not keep_alive or reply.close
    has_body = status not in _BODILESS
    shared = _shared(status, date, reply.caching, reply.content_type if has_body else "", close, cors)
    fields = reply.fields
    head = b"%b%b%b" % (shared, reply.lines, _lines(fields) if fields else b"")
    if has_body and (body or not head_only):
        head += b"content-length: %d\r\n\r\n" % len(body)
    else:
        head += b"\r\n"
    return head if head_only else head + body


_whole_again: Final = lru_cache(maxsize=256)(_whole)


def begin(head: ResponseHead, date: str, cors: Headers, *, keep_alive: bool, http10: bool) -> bytes:
    """The head of a response whose body follows: frames, or plain bytes if the head has a length."""
    length = head.length
    framing = b"content-length: %d\r\n" % length if length is not None else b"" if http10 else _CHUNKED
    shared = _shared(head.status, date, head.caching, head.content_type, not keep_alive, cors)
    return b"%b%b%b\r\n" % (shared, head.lines, framing)


def end(trailers: bytes) -> bytes:
    """The last chunk, with trailers."""
    return b"0\r\n%b\r\n" % trailers


def _lines(fields: Headers) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in fields]).encode("latin-1")


@lru_cache(maxsize=256)
def _shared(status: int, date: str, caching: str, content_type: str, close: bool, cors: Headers) -> bytes:
    """The status line, and the lines that many responses of one second share."""
    fields = (("date", date), ("server", f"tricklecast/{__version__}"), ("cache-control", caching))
    types = type_fields(content_type) if content_type else ()
    return _STATUS_LINES[status] + _lines((*fields, *types, *(_CLOSE if close else ()), *cors))
