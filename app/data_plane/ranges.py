"""Conditions and ranges of a GET or HEAD of a finished segment (RFC 9110, sections 13 and 14).

A finished segment never changes. So it has a strong entity tag, its ranges can be read, and a client that has it gets
304. An open segment has no tag and no ranges: it is sent whole, as it comes.

- ``If-None-Match`` names the tag, or ``*``: 304.
- ``Range: bytes=2-5``, ``bytes=2-`` or ``bytes=-4``: 206 with these bytes; 416 if the segment has none of them. The
  server sends the whole segment for any other range (several at once, another unit), and if ``If-Range`` is not the
  tag.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import ClassVar, Final

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


def span_of(connection: Caller, request: Request, channel: Channel, segment: Segment) -> Reply | SpanReader | None:
    """Apply a condition or a range to a request for a finished segment; ``None``: send the whole segment."""
    headers = request.headers
    if RANGE not in headers and IF_NONE_MATCH not in headers:
        return None
    size, reason = segment.size, REASON_OF_STATE[segment.state]
    tag = tag_of(channel, segment)
    known = request.text(IF_NONE_MATCH)
    if known and (known == "*" or (tag and tag.decode() in _TAG.findall(known))):
        return Reply(Status.NOT_MODIFIED, reason, content_type="", lines=segment_lines(channel, segment, None, tag))
    match = _RANGE.fullmatch(request.text(RANGE))
    if match is None or request.method == b"HEAD":
        return None
    if IF_RANGE in headers and not (tag and request.text(IF_RANGE) == tag.decode()):
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    begin = int(first) if first else max(0, size - int(last))
    end = size if not (first and last) else min(size, int(last) + 1)
    if first and last and int(last) < int(first):
        return None  # an invalid range is ignored
    if begin >= size or end <= begin:
        place, body = ((wire.CONTENT_RANGE, f"bytes */{size}"),), f"The segment has {size} bytes".encode()
        lines = segment_lines(channel, segment, None, b"")
        return Reply(Status.RANGE_NOT_SATISFIABLE, Reason.BAD_REQUEST, place, body, lines=lines)
    head = range_head(channel, segment, begin, end, tag)
    return SpanReader(connection, request, channel, segment, begin, end, head)


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
