"""Responses as values: the status, the header fields, the body and the trailers that each result of the core becomes.

The functions here are pure. :class:`Reply` is a whole response; stages return it, and tests compare it. A response
whose body comes in pieces has a :class:`Head`, and, if its size is not known then, trailers at its end.
:mod:`app.http1.writer` makes the bytes of both.

Two rules hold for every response. A refusal says what to do next, with ``Retry-After`` if it is worth another attempt;
the time is drawn evenly, so that clients that were refused together come back apart. And a response before the end of a
request's body closes the connection, since the rest of the body would be read as the next request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, assert_never

from tricklecast.app.clock import to_us
from tricklecast.app.core.limits import SERVER_WIDE, Limit
from tricklecast.app.core.results import Ahead, AlreadyStored, Cause, Ended, Ending, Gone, Outcome, Refusal
from tricklecast.app.core.segment import COMPLETE, EMPTY, SKIPPED, TERMINATED, TRUNCATED, Segment
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.routing import Route
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import DEFAULT_CONTENT_TYPE, Life, Status

SEQ_RETRY_S: Final = (1, 2)
OVERLOAD_RETRY_S: Final = (1, 5)
"""Shortest and longest ``Retry-After`` in seconds, drawn evenly, so that clients refused together come back apart."""

ENDS_CONNECTION: Final = frozenset({Limit.CONNECTIONS, Limit.CLIENT_CONNECTIONS})
"""A client that is refused by one of these limits is disconnected, since connections are short."""

REASON_OF_STATE: Final = {
    COMPLETE: Reason.COMPLETE,
    EMPTY: Reason.EMPTY,
    TRUNCATED: Reason.TRUNCATED,
    SKIPPED: Reason.SKIPPED,
    TERMINATED: Reason.TERMINATED,
}

TEXT: Final = "text/plain; charset=utf-8"
MEDIA_AGE_S: Final = 3600
"""Media of HLS may be cached for this time, in seconds; their URLs never name other bytes."""

BLOCKING_AGE_TARGETS: Final = 6
"""Target durations for which a playlist may be cached that was waited for; any other for half a target duration."""

NO_STORE: Final = "no-store"
_MEDIA: Final = re.compile(r"(?:audio|video)/[\w.+-]+")
"""Content types that no browser takes for a page. After a comma, a browser would use the second type."""

_INERT: Final = (("x-content-type-options", "nosniff"), ("content-security-policy", "sandbox"))
_ENDED: Final = (wire.CLOSED, wire.TERMINATED)


def _line(name: str, form: str) -> bytes:
    """A header field, to be filled in: as bytes, since it is part of every response to a segment's request."""
    return f"{name}: {form}\r\n".encode()


_SEQ: Final = _line(wire.SEQ, "%d")
_SIZE: Final = _line(wire.SIZE, "%d")
_EPOCH: Final = _line(wire.EPOCH, "%d")
_LATEST: Final = _line(wire.LATEST, "%d")
_NEXT: Final = _line(wire.NEXT, "%d")
_GAPS: Final = _line(wire.GAPS, "%d")
_TRUNCATED: Final = _line(wire.TRUNCATED, "%b")
_ETAG: Final = _line(wire.ETAG, "%b")
_ATTACHMENT: Final = _line("Content-Disposition", "attachment; filename*=UTF-8''%b")
_RANGES: Final = _line(wire.ACCEPT_RANGES, "bytes")
_NO_RANGES: Final = _line(wire.ACCEPT_RANGES, "none")
_CLOSED: Final = _line(*_ENDED)
_SEQ_SIZE: Final = _SEQ + _SIZE
_SEQ_SIZE_EPOCH: Final = _SEQ + _SIZE + _EPOCH

Headers = tuple[tuple[str, str | int], ...]

Jitter = Callable[[int, int], int]
"""Draws a whole number between two bounds, both included."""


class Reply(NamedTuple):
    """A whole response.

    Attributes:
        reason: how the exchange ended, for the access log.
        headers: name and value pairs beside those that every response has.
        body: the body; a response to a HEAD has its length and not the body.
        content_type: of the body, or of the channel.
        close: the connection closes after it.
        eos: it tells the client that the channel has ended.
        retry_after_s: the value of ``Retry-After``, seconds.
        caching: the value of ``Cache-Control``.
        lines: further header fields, as they go over the wire: those of a segment.
    """

    status: int
    reason: str
    headers: Headers = ()
    body: bytes = b""
    content_type: str = TEXT
    close: bool = False
    eos: bool = False
    retry_after_s: int | None = None
    caching: str = NO_STORE
    lines: bytes = b""

    @property
    def fields(self) -> Headers:
        """Its header fields, with those of ``eos`` and ``retry_after_s``."""
        fields = (*self.headers, _ENDED) if self.eos else self.headers
        return fields if self.retry_after_s is None else (*fields, (wire.RETRY_AFTER, self.retry_after_s))


class ResponseHead:
    """The head of a response whose body follows in pieces.

    (No named tuple, which takes twice as long to make, and twelve times as long in compiled code.)

    Attributes:
        lines: its header fields, as they go over the wire.
        length: bytes of the body; ``None``: not known, so that trailers may follow the body.
        caching: the value of ``Cache-Control``.
    """

    __slots__ = ("caching", "content_type", "length", "lines", "status")

    def __init__(
        self, status: Status, lines: bytes, content_type: str, length: int | None = None, caching: str = NO_STORE
    ) -> None:
        self.status = status
        self.lines = lines
        self.content_type = content_type
        self.length = length
        self.caching = caching


def announced(reply: Reply, durability: str, degraded: str = "") -> Reply:
    """Add to a publisher's response where its bytes are now: in memory, in the kernel, or on the disk.

    Args:
        degraded: why the promise is weaker than usual; empty if it is not.
    """
    more = ((wire.DURABILITY, durability), (wire.DEGRADED, degraded)) if degraded else ((wire.DURABILITY, durability),)
    return reply._replace(headers=(*reply.headers, *more))


def named(reply: Reply, life: Life) -> Reply:
    """Add the channel's numbering to a response, if it has a name."""
    return reply._replace(headers=(*reply.headers, *_life(life)))


def type_fields(content_type: str) -> Headers:
    """The header fields of a content type. A page is made inert, since its scripts would run in the server's origin."""
    field = ("content-type", content_type)
    return (field,) if content_type == TEXT or _MEDIA.fullmatch(content_type) else (field, *_INERT)


# Reading (docs/reference/protocol.md, section 4).


def segment_head(channel: Channel, segment: Segment, head: int, tag: bytes) -> ResponseHead:
    """The head of a 200 that carries a segment.

    Args:
        head: of the channel, when the request came. tag: the entity tag; empty if the segment has none yet.
    """
    return ResponseHead(Status.OK, segment_lines(channel, segment, head, tag), content_type_of(channel))


def stream_head(channel: Channel, seq: int, head: int) -> ResponseHead:
    """The head of a 200 that carries all segments from ``seq`` on."""
    lines = (_SEQ + _LATEST + _EPOCH) % (seq, head, channel.epoch) + _life_line(channel.life)
    return ResponseHead(Status.OK, lines, content_type_of(channel))


def range_head(channel: Channel, segment: Segment, begin: int, end: int, tag: bytes) -> ResponseHead:
    """The head of a 206 that carries the bytes from ``begin`` on and before ``end`` of a finished segment."""
    place = _line(wire.CONTENT_RANGE, f"bytes {begin}-{end - 1}/{segment.size}")
    lines = segment_lines(channel, segment, None, tag) + place
    return ResponseHead(Status.PARTIAL_CONTENT, lines, content_type_of(channel), end - begin)


def media_caching(*, private: bool) -> str:
    """``Cache-Control`` of media of HLS, which never change; ``private``: only the client that asked may cache them."""
    return f"{_for_whom(private)}, max-age={MEDIA_AGE_S}, immutable"


def playlist_caching(target_s: int, *, blocking: bool, private: bool) -> str:
    """``Cache-Control`` of a playlist (draft-pantos-hls-rfc8216bis, appendix B.1).

    Args:
        target_s: its target duration. blocking: it was asked for with ``_HLS_msn``: what was waited for stays in it.
        private: only the client that asked may cache it.
    """
    age_s = BLOCKING_AGE_TARGETS * target_s if blocking else max(1, target_s // 2)
    return f"{_for_whom(private)}, max-age={age_s}"


def _for_whom(private: bool) -> str:
    return "private" if private else "public"


def media_lines(tag: bytes, span: tuple[int, int] | None, size: int) -> bytes:
    """The header fields of a file of HLS: its tag, and where a range lies in it.

    Args:
        span: the first byte of the range, and one past the last; ``None``: all bytes are sent. size: of the file.
    """
    place = b"" if span is None else _line(wire.CONTENT_RANGE, f"bytes {span[0]}-{span[1] - 1}/{size}")
    return _ETAG % tag + _RANGES + place


def clip_lines(seq: int, gaps: int, name: str, tag: bytes, span: tuple[int, int] | None, size: int) -> bytes:
    """The header fields of a clip.

    Args:
        seq: of its first segment. gaps: segments that are missing in it, or are cut short.
        name: of the file, percent-encoded (RFC 8187).
        tag: empty if its URL names another clip a moment later. span: the range that is sent, as in ``media_lines``.
        size: of all bytes.
    """
    ranges = media_lines(tag, span, size) if tag else _NO_RANGES
    return _SEQ % seq + _GAPS % gaps + _ATTACHMENT % name.encode() + ranges


def segment_lines(channel: Channel, segment: Segment, head: int | None, tag: bytes) -> bytes:
    """The header fields that describe a segment as it is now.

    Args:
        head: of the channel, which is left out if it equals the seq; ``None``: it is not told.
        tag: the entity tag of a finished segment; empty if it has none yet.
    """
    lines = _SEQ_SIZE_EPOCH % (segment.seq, segment.size, channel.epoch) + _life_line(channel.life_of(segment.seq))
    if head is not None and head != segment.seq:
        lines += _LATEST % head
    if segment.closed:
        if why := truncation_of(segment):
            lines += _TRUNCATED % why.encode()
        if tag:
            lines += _ETAG % tag
        lines += _RANGES
    return lines


def segment_trailers(segment: Segment) -> bytes:
    """The trailers of a segment: its size, and the reason if it is not whole.

    A reader without trailers knows that a proxy has dropped them.
    """
    size = _SIZE % segment.size
    return size if segment.complete else size + _TRUNCATED % truncation_of(segment).encode()


def stream_trailers(following: int, gaps: int, *, ended: bool) -> bytes:
    """The trailers of a stream.

    Args:
        following: the seq at which a client goes on.
        gaps: the number of segments that were left out or cut short.
        ended: whether the channel has ended.
    """
    lines = (_NEXT + _GAPS) % (following, gaps)
    return lines + _CLOSED if ended else lines


@lru_cache(maxsize=1024)
def _life_line(life: Life) -> bytes:
    return _line(wire.LIFE, str(life)) if life.name else b""


def _life(life: Life) -> Headers:
    return ((wire.LIFE, str(life)),) if life.name else ()


def tag_of(channel: Channel, segment: Segment) -> bytes:
    """The entity tag of a segment, the same at every holder of the channel and after a restart; empty if it has none.

    It names the microsecond in which the segment got its first byte, the epoch, the seq and the size. So one that a
    crash has lost, and that is published again with other bytes, has another tag.
    """
    if not segment.closed or not segment.size:
        return b""
    return b'"%x.%d.%d.%x"' % (to_us(segment.opened_at), channel.epoch, segment.seq, segment.size)


def content_type_of(channel: Channel) -> str:
    """The ``Content-Type`` for readers: that of the channel, or of plain bytes."""
    return channel.content_type or DEFAULT_CONTENT_TYPE


def truncation_of(segment: Segment) -> str:
    """The value of ``Lp-Trickle-Truncated``: why a segment is not whole; ``""`` if it is whole or open."""
    state = segment.state
    cut = state is TRUNCATED or state is SKIPPED or (state is TERMINATED and segment.size > 0)
    return str(state) if cut else ""


def missing_reply(missing: Ahead | Gone, asked: int | None, jitter: Jitter) -> Reply:
    """470: the channel exists and the segment does not.

    Args:
        asked: the seq in the request, for example -3.
    """
    gone = isinstance(missing, Gone)
    headers: Headers = (
        (wire.LATEST, missing.head),
        (wire.SEQ, missing.seq if asked is None else asked),
        (wire.EARLIEST, missing.earliest),
        (wire.EPOCH, missing.epoch),
    )
    if isinstance(missing, Gone):
        headers = (*headers, (wire.NEXT, missing.following))
    reason = Reason.GONE if gone else Reason.AHEAD
    reply = Reply(Status.SEQ_MISSING, reason, headers, b"Entry not found", retry_after_s=jitter(*SEQ_RETRY_S))
    return named(reply, missing.life)


def ended_reply(ended: Ended) -> Reply:
    """200 without a body: the channel has ended, and the seq lies at or past its head."""
    headers = ((wire.SEQ, ended.seq), (wire.LATEST, ended.head), (wire.EPOCH, ended.epoch))
    content_type = ended.content_type or DEFAULT_CONTENT_TYPE
    return named(Reply(Status.OK, Reason.TERMINATED, headers, content_type=content_type, eos=True), ended.life)


def empty_reply(channel: Channel, segment: Segment) -> Reply:
    """200 without a body: the segment closed without a byte, which is not the end of the channel.

    A segment that its publisher ended without a byte is whole. One without a publisher is skipped, and has that reason.
    """
    headers: Headers = ((wire.SEQ, segment.seq), (wire.LATEST, channel.next_seq), (wire.EPOCH, channel.epoch))
    if why := truncation_of(segment):
        headers = (*headers, (wire.TRUNCATED, why))
    reason = REASON_OF_STATE[segment.state]
    reply = Reply(Status.OK, reason, headers, content_type=content_type_of(channel), eos=channel.ended)
    return named(reply, channel.life_of(segment.seq))


def head_reply(channel: Channel, segment: Segment, head: int, tag: bytes = b"") -> Reply:
    """The response to a HEAD: the headers of the segment as it is now."""
    lines = segment_lines(channel, segment, head, tag)
    reason = REASON_OF_STATE.get(segment.state, Reason.COMPLETE)
    return Reply(Status.OK, reason, content_type=content_type_of(channel), lines=lines)


def next_reply(channel: Channel) -> Reply:
    """The channel's head, as text and as a header."""
    headers = ((wire.LATEST, channel.next_seq), (wire.EPOCH, channel.epoch))
    reply = Reply(Status.OK, Reason.COMPLETE, headers, str(channel.next_seq).encode(), eos=channel.ended)
    return named(reply, channel.life)


# Publishing (section 3).


def writer_reply(outcome: Outcome, seq: int, jitter: Jitter) -> Reply | None:
    """The response to a publisher whose writing has ended; ``None`` if its connection is gone.

    Every response but that to a complete segment closes the connection: the publisher may still be sending.
    """
    lines = _SEQ_SIZE % (seq, outcome.size)
    match outcome.ending:
        case Ending.COMPLETE:
            return Reply(Status.OK, Reason.COMPLETE, lines=lines)
        case Ending.EMPTY:
            return Reply(Status.OK, Reason.EMPTY, close=True, lines=lines)
        case Ending.CLOSED_BY_OTHER:
            reason = Reason.TRUNCATED if outcome.size else Reason.SKIPPED
            return Reply(Status.OK, reason, close=True, lines=lines)
        case Ending.TERMINATED:
            return Reply(Status.OK, Reason.TERMINATED, close=True, eos=True, lines=lines)
        case Ending.SUPERSEDED:
            return Reply(
                Status.CONFLICT, Reason.SUPERSEDED, body=b"Another publisher took over", close=True, lines=lines
            )
        case Ending.NOT_THE_SAME:
            return Reply(Status.CONFLICT, Reason.CONFLICT, body=b"Not the body of this key", close=True, lines=lines)
        case Ending.TOO_LARGE:
            return Reply(Status.TOO_LARGE, Reason.TOO_LARGE, body=too_large(outcome.size), close=True, lines=lines)
        case Ending.OVER_BUDGET:
            return limit_reply(Limit.TOTAL_BYTES, jitter, close=True)._replace(lines=lines)
        case Ending.OVER_CHANNEL_QUOTA:
            return limit_reply(Limit.CHANNEL_BYTES, jitter, close=True)._replace(lines=lines)
        case Ending.OVER_PUBLISHER_QUOTA:
            return limit_reply(Limit.PUBLISHER_BYTES, jitter, close=True)._replace(lines=lines)
        case Ending.ABORTED:
            return None
        case _:
            assert_never(outcome.ending)


def too_large(limit: int) -> bytes:
    """The body of a 413."""
    return f"Segment too large: the limit is {limit} bytes (max_segment_bytes)".encode()


def stored_reply(stored: AlreadyStored) -> Reply:
    """The response to a retry of a body that is stored already."""
    return Reply(Status.OK, Reason.COMPLETE, close=True, lines=_SEQ_SIZE % (stored.seq, stored.size))


# Refusals (sections 2 and 6).


def refusal_reply(refusal: Refusal, op: Op | None, jitter: Jitter) -> Reply:
    """The response to a request that the core refuses. A refused publisher's connection closes, its body unread."""
    publishing = op is Op.PUBLISH
    latest = (wire.LATEST, refusal.head)
    match refusal.why:
        case Cause.LIMIT:  # first, since a flood of these must be cheap
            assert refusal.limit is not None, "a refusal by a limit names it"
            return limit_reply(refusal.limit, jitter, close=publishing)
        case Cause.NOT_FOUND if op is Op.DELETE:
            return Reply(Status.BAD_REQUEST, Reason.NOT_FOUND, body=b"Invalid stream")
        case Cause.NOT_FOUND | Cause.ENDED:
            eos = refusal.recently_ended
            headers: Headers = (latest, (wire.EPOCH, refusal.epoch)) if eos else ()
            return Reply(Status.NOT_FOUND, Reason.NOT_FOUND, headers, b"Stream not found", close=publishing, eos=eos)
        case Cause.AHEAD:
            headers = (latest, (wire.SEQ, refusal.seq or 0))
            reply = Reply(Status.SEQ_MISSING, Reason.AHEAD, headers, b"Segment is ahead of the channel", close=True)
            return named(reply, refusal.life)
        case Cause.CLOSED:
            headers = (latest, (wire.SEQ, refusal.seq or 0))
            return Reply(Status.CONFLICT, Reason.CONFLICT, headers, b"Segment is closed", close=True)
        case Cause.OCCUPIED:
            return _occupied_reply(refusal)
        case Cause.EPOCH:
            headers = (latest, (wire.EPOCH, refusal.epoch), *_life(refusal.life))
            body = f"The channel is in epoch {refusal.epoch}".encode()
            return Reply(Status.CONFLICT, Reason.CONFLICT, headers, body, close=publishing)
        case Cause.NO_SEGMENT:
            return Reply(Status.BAD_REQUEST, Reason.NOT_FOUND, (latest,), b"Nonexistent segment")
        case Cause.RESERVED:
            body = b"Names that begin with _ belong to the server"
            return Reply(Status.FORBIDDEN, Reason.FORBIDDEN, body=body, close=publishing)
        case Cause.STORAGE:
            return storage_reply(jitter)
        case Cause.REPLICA:
            return replica_reply(jitter)
        case Cause.MIRROR:
            return mirror_reply(refusal, jitter)
        case Cause.SHUTDOWN:
            return shutdown_reply(jitter, refusal.come_back_s)
        case _:
            assert_never(refusal.why)


def _occupied_reply(refusal: Refusal) -> Reply:
    """The response to a publisher that asked not to take over from another one.

    It has the other one's own name, and never its address.
    """
    occupied = refusal.occupied
    assert occupied is not None, "a refusal beside another client names it"
    headers: Headers = ((wire.LATEST, refusal.head), (wire.PUBLISHING_FOR, int(occupied.for_s)))
    name = occupied.client.name
    if name.isascii() and name.isprintable() and name:
        headers = (*headers, (wire.PUBLISHER, name))
    else:
        name = "Another client"
    body = f"{name} has published to this channel for {int(occupied.for_s)} s".encode()
    left_s = occupied.grace_left_s
    wait_s = None if left_s is None else math.ceil(left_s)
    return Reply(Status.CONFLICT, Reason.OCCUPIED, headers, body, close=True, retry_after_s=wait_s)


def limit_reply(limit: Limit, jitter: Jitter, *, close: bool, wait_s: int = 1) -> Reply:
    """The response to a client that would exceed a limit.

    Args:
        wait_s: a request within this time would be refused again, seconds.
    """
    return _limit_reply(limit, close or limit in ENDS_CONNECTION, wait_s - 1 + jitter(*OVERLOAD_RETRY_S))


@lru_cache(maxsize=256)
def _limit_reply(limit: Limit, close: bool, retry_after_s: int) -> Reply:
    status = Status.UNAVAILABLE if limit in SERVER_WIDE else Status.TOO_MANY_REQUESTS
    body = f"Limit reached: {limit}".encode()
    return Reply(status, Reason.limit(limit), body=body, close=close, retry_after_s=retry_after_s)


MEMORY: Final = "memory"
"""The name of the limit in the refusal of a request for which the process could not get memory."""


def memory_reply(jitter: Jitter) -> Reply:
    """The response to a request for which the process could not get memory."""
    return _unavailable(Reason.limit(MEMORY), b"The server is out of memory", jitter(*OVERLOAD_RETRY_S))


def shutdown_reply(jitter: Jitter, come_back_s: tuple[int, int]) -> Reply:
    """The response to every client that waits, or sends a request, while the server shuts down.

    Args:
        come_back_s: shortest and longest time, in seconds, after which the client is to come back.
    """
    return _unavailable(Reason.SHUTDOWN, b"Server is shutting down", jitter(*come_back_s))


def half_closed_reply(jitter: Jitter) -> Reply:
    """The response to a client that has closed its half of the connection, and has waited in vain.

    The client may be gone: the server cannot tell before it sends a byte.
    """
    body = b"Nothing came since the connection was half-closed: ask again, and keep it open"
    return _unavailable(Reason.TIMEOUT, body, jitter(*SEQ_RETRY_S))


def storage_reply(jitter: Jitter) -> Reply:
    """The response to a publisher while storage has failed (``--on-disk-full refuse``)."""
    body = b"Storage has failed: nothing can be published now"
    return _unavailable(Reason.STORAGE, body, jitter(*OVERLOAD_RETRY_S))


def unconfirmed_reply(jitter: Jitter) -> Reply:
    """The response to a publisher whose bytes are here, on a node that may have lost the channel to another one."""
    body = b"This node cannot confirm that the channel is its own: send it again"
    return _unavailable(Reason.UNREACHABLE, body, jitter(*SEQ_RETRY_S))


def replica_reply(jitter: Jitter) -> Reply:
    """The response to a publisher of a channel that another server owns."""
    body = b"Another server owns this channel: publish there"
    return _unavailable(Reason.REPLICA, body, jitter(*OVERLOAD_RETRY_S))


def elsewhere_reply(url: str = "") -> Reply:
    """The response to a client that asks for the feed of a channel that another server owns.

    Args:
        url: of that server, base path included; empty if it is not known.
    """
    headers: Headers = ((wire.NODE, url),) if url else ()
    body = f"Another server owns this channel: ask {url or 'there'}".encode()
    return Reply(Status.MISDIRECTED, Reason.REPLICA, headers, body, close=True)


def mirror_reply(refusal: Refusal, jitter: Jitter) -> Reply:
    """The response to a client that would change a channel of the server that this one mirrors, or of its successor.

    It is no final one: a publisher that knows both servers asks the other one, and comes back after a promotion. One
    that knows this server only, and has published nothing yet, is told by ``Lp-Trickle-Elsewhere`` that it need not
    wait.
    """
    headers: Headers = ((wire.ELSEWHERE, 1),)
    if refusal.epoch:
        headers = (*headers, (wire.LATEST, refusal.head), (wire.EPOCH, refusal.epoch))
    body, wait_s = refusal.detail.encode(), jitter(*OVERLOAD_RETRY_S)
    return Reply(Status.UNAVAILABLE, Reason.MIRROR, headers, body, close=True, retry_after_s=wait_s)


def busy_reply(jitter: Jitter) -> Reply:
    """The response to a request for a channel of another worker of this server, for which too many wait already."""
    return _unavailable(Reason.REPLICA, b"The owner of this channel is busy: ask again", jitter(*OVERLOAD_RETRY_S))


def unreachable_reply(jitter: Jitter) -> Reply:
    """The response to a request for a channel of another node of the cluster that cannot be reached, or has gone."""
    body = b"The node of this channel cannot be reached: ask again"
    return _unavailable(Reason.UNREACHABLE, body, jitter(*SEQ_RETRY_S))


LOOP: Final = Reply(
    Status.LOOP,
    Reason.LOOP,
    body=b"The nodes of the cluster do not agree where this channel is: ask again",
    close=True,
    retry_after_s=1,
)
"""The response to a request that has been passed on from node to node, too often or in a circle."""

FORGED: Final = Reply(
    Status.FORBIDDEN, Reason.FORBIDDEN, body=b"Only nodes of this cluster send Trickle-Cluster", close=True
)
"""The response to a request with ``Trickle-Cluster`` that no node of the cluster has signed."""


def _unavailable(reason: str, body: bytes, retry_after_s: int) -> Reply:
    return Reply(Status.UNAVAILABLE, reason, body=body, close=True, retry_after_s=retry_after_s)


def path_reply(route: Route) -> Reply | None:
    """The response to a wrong path or method; ``None`` if both are right."""
    if route.not_found:
        return Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=route.error.encode(), close=True)
    if route.error and (route.op or not route.allow):
        return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=route.error.encode(), close=True)
    if route.op is None:
        headers = (("allow", route.allow),)
        hint = ": publish with POST" if "POST" in route.allow else ""  # curl -T and GStreamer's sink send PUT
        body = route.error.encode() or f"Method not allowed{hint}".encode()
        return Reply(Status.METHOD_NOT_ALLOWED, Reason.BAD_REQUEST, headers, body, close=True)
    return None


FAULT: Final = Reply(Status.SERVER_ERROR, Reason.ERROR, body=b"Internal Server Error", close=True)
"""The response to a request that met a fault of the server before a byte of its response was sent."""

ORIGIN_REFUSED: Final = Reply(
    Status.FORBIDDEN, Reason.FORBIDDEN, body=b"Pages of this origin may not write (cors_write_origins)", close=True
)
"""The response to a write by a page of another origin that may not write (:mod:`app.data_plane.cors`)."""


MISDIRECTED: Final = Reply(
    Status.MISDIRECTED,
    Reason.FORBIDDEN,
    body=b"This server does not answer by the name in Host; it takes those of --allowed-hosts (allowed_hosts)",
    close=True,
)
"""The response to a request for a host that is not this one (:mod:`app.data_plane.hosts`)."""


def options_reply(route: Route) -> Reply:
    """The response to an OPTIONS, which may be a CORS preflight."""
    return Reply(Status.NO_CONTENT, Reason.COMPLETE, (("allow", route.allow),))


EXPIRED: Final = Reply(
    Status.UNAUTHORIZED,
    Reason.EXPIRED,
    ((wire.WWW_AUTHENTICATE, 'Bearer realm="tricklecast", error="invalid_token"'),),
    b"Token expired",
    close=True,
)
"""The response if a token has expired, before the request or while it waits."""

REVOKED: Final = EXPIRED._replace(reason=Reason.token("revoked"), body=b"Token revoked")
"""The response if a token was revoked, or its key removed, before the request or while it waits."""
