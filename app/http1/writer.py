"""The response writer: the bytes of responses that the data plane has decided (:mod:`app.data_plane.responses`).

Theory of operation. A response leaves in one of three shapes:

- *whole* (:func:`whole`): head and body, with a length;
- *framed*: :func:`begin`, frames, :func:`end`. The size of a segment is not known when its head leaves, so its body
  comes in chunks, and trailers follow. A frame is one write of the publisher in this very form. The core encodes it
  once, when it arrives, and the segment keeps it for all readers: so nothing here touches a body byte, and a chunk
  costs each reader one system call (:meth:`.Reader.wake`);
- *plain*: :func:`begin` with a length, then the bytes (a range of a segment, media of HLS).

The lines that many responses share are encoded once: those of the date, of a content type, of a ``Cache-Control``, of a
page's permission, and whole refusals, since a flood of them must be cheap. All other lines are made for each response:
for a GET of a small segment this takes 2 µs of about 100. (Templates of the lines of a segment's head, ``b"...: %d"``,
took 1 µs less, and were a second description of that head beside the one for HEAD and ranges.)

A client of HTTP/1.0 knows no chunks. It gets the bytes alone, and the end of the connection is the end of the body.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tricklecast.app.data_plane.responses import Headers, Reply, ResponseHead, type_fields
from tricklecast.trickle import __version__
from tricklecast.trickle.wire import PHRASES, Status

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES: Final = {status: f"HTTP/1.1 {int(status)} {phrase}\r\n" for status, phrase in PHRASES.items()}
_BODILESS: Final = (Status.NO_CONTENT, Status.NOT_MODIFIED)
_CLOSE: Final = "connection: close\r\n"
_CHUNKED: Final = "transfer-encoding: chunked\r\n"


def whole(reply: Reply, date: str, cors: Headers, *, keep_alive: bool, head_only: bool = False) -> bytes:
    """A whole response.

    Args:
        date: the value of ``Date``.
        cors: the header fields that let a page of another origin read the response.
        keep_alive: whether the client wants the connection to stay open.
        head_only: leave the body out (HEAD).
    """
    repeats = reply.retry_after_s is not None and not reply.headers
    return (_whole_again if repeats else _whole)(reply, date, cors, keep_alive, head_only)


def _whole(reply: Reply, date: str, cors: Headers, keep_alive: bool, head_only: bool) -> bytes:
    status, body = reply.status, reply.body
    close = "" if keep_alive and not reply.close else _CLOSE
    length = content_type = ""
    if status not in _BODILESS:
        if body or not head_only:
            length = f"content-length: {len(body)}\r\n"
        if reply.content_type:
            content_type = _content_type(reply.content_type)
    shared, own = _common(date, reply.caching), _lines(reply.fields)
    head = f"{_STATUS_LINES[status]}{shared}{own}{length}{content_type}{close}{_shared(cors)}\r\n".encode("latin-1")
    return head if head_only else head + body


_whole_again: Final = lru_cache(maxsize=256)(_whole)


def begin(head: ResponseHead, date: str, cors: Headers, *, keep_alive: bool, http10: bool) -> bytes:
    """The head of a response whose body follows: frames, or plain bytes if the head has a length."""
    status, fields, content_type, length, caching = head
    framing = f"content-length: {length}\r\n" if length is not None else "" if http10 else _CHUNKED
    close = "" if keep_alive else _CLOSE
    shared = f"{_STATUS_LINES[status]}{_common(date, caching)}{_content_type(content_type)}"
    return f"{shared}{_lines(fields)}{framing}{close}{_shared(cors)}\r\n".encode("latin-1")


def end(trailers: Headers) -> bytes:
    """The last chunk, with trailers."""
    return f"0\r\n{_lines(trailers)}\r\n".encode("latin-1")


def _lines(fields: Headers) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in fields])


_shared: Final = lru_cache(maxsize=256)(_lines)


@lru_cache(maxsize=16)
def _common(date: str, caching: str) -> str:
    return _lines((("date", date), ("server", f"tricklecast/{__version__}"), ("cache-control", caching)))


@lru_cache(maxsize=1024)
def _content_type(content_type: str) -> str:
    return _lines(type_fields(content_type))
