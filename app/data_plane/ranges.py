"""Conditions and ranges of a GET or HEAD of a finished segment (RFC 9110, sections 13 and 14).

A finished segment never changes. So it has a strong entity tag, its ranges can be read, and a client that has it is
told so. An open segment has no tag and no ranges: it is sent whole, as it comes.

- ``If-None-Match`` names the tag, or ``*``: 304.
- ``Range: bytes=2-5``, ``bytes=2-`` or ``bytes=-4``: 206 with these bytes; 416 if the segment has none of them. The
  server ignores any other range (several at once, another unit), and each one whose ``If-Range`` is not the tag, and
  sends the whole segment.
"""

from __future__ import annotations

import re
from typing import Final

from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.exchange import Line
from tricklecast.app.data_plane.request import IF_NONE_MATCH, IF_RANGE, RANGE, Request
from tricklecast.app.data_plane.responses import (
    REASON_OF_STATE,
    Reply,
    content_type_of,
    head_fields,
    range_head,
    tag_of,
    validators,
)
from tricklecast.app.hls.routes import MediaReader
from tricklecast.trickle import wire
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

_RANGE: Final = re.compile(r"bytes=\s*(\d{0,32})\s*-\s*(\d{0,32})\s*", re.ASCII | re.IGNORECASE)
_TAG: Final = re.compile(r'(?:W/)?("[^"]*")')


def part_of(connection: Line, request: Request, channel: Channel, segment: Segment) -> Reply | RangeReader | None:
    """The answer to a request for a finished segment that has a condition or a range; ``None``: all of the segment."""
    headers = request.headers
    if RANGE not in headers and IF_NONE_MATCH not in headers:
        return None
    size, reason = segment.size, REASON_OF_STATE[segment.state]
    tag = tag_of(channel, segment, connection.plane.registry.instance)
    known = request.text(IF_NONE_MATCH)
    if known and (known == "*" or (tag and tag in _TAG.findall(known))):
        return Reply(Status.NOT_MODIFIED, reason, (*head_fields(channel, segment), *validators(tag)), content_type="")
    match = _RANGE.fullmatch(request.text(RANGE))
    if match is None or request.method == b"HEAD" or (IF_RANGE in headers and request.text(IF_RANGE) != (tag or None)):
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    begin = int(first) if first else max(0, size - int(last))
    end = size if not (first and last) else min(size, int(last) + 1)
    if first and last and int(last) < int(first):
        return None  # invalid, so it is as if it were not there
    if begin >= size or end <= begin:
        fields = (*head_fields(channel, segment), (wire.CONTENT_RANGE, f"bytes */{size}"))
        body = f"The segment has {size} bytes".encode()
        return Reply(Status.RANGE_NOT_SATISFIABLE, Reason.BAD_REQUEST, fields, body)
    return RangeReader(connection, request, channel, segment, begin, end, tag)


class RangeReader(MediaReader):
    """The exchange of a client that is sent some bytes of a finished segment.

    Args:
        begin, end: which bytes.
        tag: the entity tag of the segment.
    """

    __slots__ = ("_tag",)

    counted_elsewhere = False

    def __init__(
        self, connection: Line, request: Request, channel: Channel, segment: Segment, begin: int, end: int, tag: str
    ) -> None:
        super().__init__(connection, request, channel, segment, begin, end, content_type_of(channel))
        self._tag = tag

    def _head(self) -> bytes:
        self.record.status = Status.PARTIAL_CONTENT
        return range_head(
            self.plane.common,
            self._content_type,
            (*head_fields(self.channel, self.segment), *validators(self._tag)),
            (self._begin, self._end, self.segment.size),
            keep_alive=self.keep_alive,
            cors=self.cors,
        )
