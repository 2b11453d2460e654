"""Conditions and ranges of a GET or HEAD of what never changes: a finished segment, a file of HLS (RFC 9110, sections
13 and 14).

It has a strong entity tag, its ranges can be read, and a client that has it gets 304. An open segment has no tag and no
ranges: it is sent whole, as it comes.

- ``If-None-Match`` names the tag, or ``*``: 304.
- ``Range: bytes=2-5``, ``bytes=2-`` or ``bytes=-4``: 206 with these bytes; 416 if there are none of them. The server
  sends all for any other range (several at once, another unit), and if ``If-Range`` is not the tag.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import ClassVar, Final, NamedTuple

from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Channel, Ready
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.reader import DIRECT_BYTES, Reader
from tricklecast.app.data_plane.request import IF_NONE_MATCH, IF_RANGE, RANGE, Request
from tricklecast.app.data_plane.responses import (
    REASON_OF_STATE,
    Reply,
    ResponseHead,
    range_head,
    segment_lines,
    tag_of,
)
from tricklecast.app.data_plane.scheduling import TURN_BYTES
from tricklecast.trickle import wire
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

_RANGE: Final = re.compile(r"bytes=\s*(\d{0,32})\s*-\s*(\d{0,32})\s*", re.ASCII | re.IGNORECASE)
_TAG: Final = re.compile(r'(?:W/)?("[^"]*")')


class Span(NamedTuple):
    """The bytes that a request is for: from ``begin`` on and before ``end``; none if the range has none."""

    begin: int
    end: int


def has_it(request: Request, tag: bytes) -> bool:
    """Whether the client has what it asks for: 304.

    Args:
        tag: the entity tag; empty if there is none.
    """
    known = request.text(IF_NONE_MATCH)
    return bool(known) and (known == "*" or (bool(tag) and tag.decode() in _TAG.findall(known)))


def range_of(request: Request, size: int, tag: bytes) -> Span | None:
    """The range of a request; ``None``: all bytes are sent.

    Args:
        size: of all bytes. tag: the entity tag; empty if there is none.
    """
    match = _RANGE.fullmatch(request.text(RANGE))
    if match is None or request.method == b"HEAD":
        return None
    if IF_RANGE in request.headers and not (tag and request.text(IF_RANGE) == tag.decode()):
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    begin = int(first) if first else max(0, size - int(last))
    end = size if not (first and last) else min(size, int(last) + 1)
    if first and last and int(last) < int(first):
        return None  # an invalid range is ignored
    return Span(begin, end) if begin < end else Span(0, 0)


def unsatisfiable_reply(size: int, what: str, lines: bytes = b"") -> Reply:
    """416: the range has no byte.

    Args:
        size: of all bytes. what: has them. lines: header fields of it, as they go over the wire.
    """
    place, body = ((wire.CONTENT_RANGE, f"bytes */{size}"),), f"The {what} has {size} bytes".encode()
    return Reply(Status.RANGE_NOT_SATISFIABLE, Reason.BAD_REQUEST, place, body, lines=lines)


def span_of(connection: Caller, request: Request, channel: Channel, segment: Segment) -> Reply | SpanReader | None:
    """Apply a condition or a range to a request for a finished segment; ``None``: send the whole segment."""
    headers = request.headers
    if RANGE not in headers and IF_NONE_MATCH not in headers:
        return None
    tag = tag_of(channel, segment)
    if has_it(request, tag):
        lines = segment_lines(channel, segment, None, tag)
        return Reply(Status.NOT_MODIFIED, REASON_OF_STATE[segment.state], content_type="", lines=lines)
    span = range_of(request, segment.size, tag)
    if span is None:
        return None
    if not span.end:
        return unsatisfiable_reply(segment.size, "segment", segment_lines(channel, segment, None, b""))
    head = range_head(channel, segment, *span, tag)
    return SpanReader(connection, request, channel, segment, *span, head)


class SpanReader(Reader):
    """The exchange of a client that is sent a span of a segment, all bytes of which are in memory or in storage.

    It writes by turns, as every reader does, and holds no copy. It never lags, since it waits for no publisher.

    Args:
        begin, end: the first byte, and one past the last byte.
        head: of the response.
    """

    __slots__ = ("_begin", "_end", "_response_head")

    paces = False

    counted_elsewhere: ClassVar[bool] = False
    """The request of a player, which is counted as a reader elsewhere, as long as it makes requests."""

    def __init__(
        self,
        connection: Caller,
        request: Request,
        channel: Channel,
        segment: Segment,
        begin: int,
        end: int,
        head: ResponseHead,
    ) -> None:
        super().__init__(connection, request, Ready(channel, segment, channel.next_seq))
        self._begin, self._end = begin, end
        self._response_head = head

    def begin(self) -> None:
        """Attach to the segment, and send the first bytes."""
        self.record.epoch = self.channel.epoch
        self.record.rseq = self.segment.seq
        self.plane.registry.attach(self, self.channel, self.segment)
        self.channel.players_beside -= self.counted_elsewhere
        if self.segment.source is not None:
            self.segment.source.more()
        elif self._end - self._begin > DIRECT_BYTES:
            self.plane.turns.add_reader(self)
        else:
            self.take_turn()

    def wake(self) -> None:
        """Go on if storage has loaded more. Bytes that a publisher adds are not in the span."""
        if self.segment.source is not None and not self.queued:
            self.take_turn()

    def lag(self) -> int:
        return 0

    def has(self) -> int:
        return self.segment.size

    def take_turn(self) -> None:
        connection = self.connection
        if self.done or connection.write_paused:
            return
        segment = self.segment
        if segment.offsets[-1] <= self._begin + self.sent and segment.source is not None:
            segment.source.more()  # storage loads the bytes before the span, too
            return
        head = None if self.started else self._start()
        connection.send_span(self, head, b"" if self.head_only else self._take_span())
        if self.head_only or self._begin + self.sent == self._end:
            self.finish(Reason.COMPLETE, close=not self.keep_alive)
        elif not connection.write_paused:
            self.plane.turns.add_reader(self)

    def withdraw(self) -> None:
        self.channel.players_beside += self.counted_elsewhere and not self.done
        super().withdraw()

    def conclude(self, reason: str, *, close: bool) -> None:
        """End it. Publishers do not wait for it, as they do for a reader between two requests."""
        Exchange.conclude(self, reason, close=close)

    def _take_span(self) -> bytes:
        """The bytes of one turn, which count as sent."""
        segment, at = self.segment, self._begin + self.sent
        end = min(self._end, at + TURN_BYTES, segment.offsets[-1])
        place = bisect_right(segment.offsets, at) - 1
        begin = segment.offsets[place]
        data = b"".join(segment.payload(place, bisect_left(segment.offsets, end)))[at - begin : end - begin]
        self.sent += len(data)
        return data

    def _start(self) -> ResponseHead:
        self.started = True
        self.record.status = self._response_head.status
        self.record.wait_us = self.elapsed_us()
        return self._response_head
