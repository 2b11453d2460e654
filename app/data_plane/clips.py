"""A GET of a clip: what a channel carried between two moments, as one file (:mod:`~tricklecast.app.hls.clips`).

The request waits while the clip is made, and is then sent spans of segments, as a player is sent media: no bytes are
copied, and it goes on by turns with all other readers. Its size is known, so a client sees when something is missing: a
segment that is evicted, or removed by retention, before its turn breaks the connection.

**Ranges** (:mod:`~tricklecast.app.data_plane.ranges`). A player that seeks, and a download that goes on, ask again for
a part. They need the same bytes under the same URL. *The last minute* is another one a second later, so only a clip
between two moments that are over has a tag and ranges; all others say ``Accept-Ranges: none``. The clip is made again
for each request, and its tag tells whether it is still the same.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import quote

from tricklecast.app.core.results import Refusal
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Channel
from tricklecast.app.core.storm_guard import ReplyKind
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.ranges import SpanReader, has_it, range_of, unsatisfiable_reply
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import Reply, ResponseHead, clip_lines, refusal_reply, shutdown_reply
from tricklecast.app.data_plane.routing import Route, parameter, parse_moment
from tricklecast.app.data_plane.stages import delay, kind_of, noted, park
from tricklecast.app.hls.clips import MAX_CLIPS, MAX_SEGMENTS, Clip, Making, between
from tricklecast.trickle.media.containers import Container
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import CLIP_MP4_ROUTE, MP4, MPEG_TS, Status

MADE_WITHIN_S: Final = 10.0
"""A request waits this long for its clip to be made."""

_CACHING: Final = "private, no-store"

_BUSY: Final = Reply(
    Status.UNAVAILABLE, Reason.TIMEOUT, body=f"{MAX_CLIPS} clips are being sent".encode(), retry_after_s=5
)
_LATE: Final = Reply(Status.UNAVAILABLE, Reason.TIMEOUT, body=b"The clip is being made: ask again", retry_after_s=2)


def answer_clip(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """The stage of a request for a clip."""
    plane, target = connection.plane, request.target
    if plane.registry.shutting_down:
        return shutdown_reply(plane.jitter, plane.registry.come_back_s)
    path, _, query = target.partition(b"?")
    moments = _moments(query, plane.wall_us())
    if isinstance(moments, str):
        return _refused(connection, request, route, moments)
    channel = _channel(plane, route.channel)
    if isinstance(channel, Refusal):
        reply = refusal_reply(channel, route.op, plane.jitter)
        return delay(connection, request, route, kind_of(channel), 0, answer_clip) or reply
    since_us, until_us = moments.since_us, moments.until_us
    summaries = list(islice(between(channel, since_us, until_us), MAX_SEGMENTS + 1))
    if not summaries:
        reply = Reply(
            Status.NOT_FOUND, Reason.NOT_FOUND, body=b"No segment has ended since then: ask for an earlier time"
        )
        delayed = delay(connection, request, route, ReplyKind.MISSING, 0, answer_clip)
        return delayed or noted(request, plane.registry, route, reply)
    if len(summaries) > MAX_SEGMENTS:
        last = datetime.fromtimestamp(summaries[-2].opened_us / 1e6, UTC)
        why = f"A clip has {MAX_SEGMENTS} segments at most: ask for one until={last:%Y-%m-%dT%H:%M:%SZ} or earlier"
        return _refused(connection, request, route, why)
    if plane.clips >= MAX_CLIPS:
        return _BUSY
    wanted = Container.FMP4 if path.endswith(CLIP_MP4_ROUTE.encode()) else Container.MPEGTS
    making = Making(channel, summaries, wanted)
    # Nothing comes to it any more: it has what was being written at its end, or the channel is over.
    is_lasting = moments.are_fixed and (channel.ended or (summaries[-1].closed_us or 0) >= until_us)
    parked = park(connection, request, route, ParkedFor.PLAYLIST, partial(_made, making, is_lasting))
    plane.clips += 1
    parked.wait(MADE_WITHIN_S)
    timer = parked.cancel

    def cancel() -> None:
        timer()
        making.cancel()
        making.waiting.pop(parked, None)
        plane.clips -= 1

    parked.cancel = cancel
    making.waiting[parked] = None
    return parked


class _Moments(NamedTuple):
    """The moments between which a clip lies, microseconds since 1970.

    Attributes:
        are_fixed: they are the same whenever somebody asks.
    """

    since_us: int
    until_us: int
    are_fixed: bool


def _moments(query: bytes, now_us: int) -> _Moments | str:
    """The moments that a query names; or what is wrong with them."""
    found, are_fixed = [], True
    for name in (b"since", b"until"):
        value = parameter(query, name).decode(errors="replace")
        if not value and name == b"since":
            return "since is missing: how long ago the clip begins (90s, 10min), or when (2026-11-28T18:00:00Z)"
        try:
            moment = parse_moment(value or "0")
        except ValueError:
            return f"Invalid {name.decode()}: it is a time before now (10min), or one with its date"
        back_us = round((moment.back_s or 0.0) * 1e6)
        found.append(now_us - back_us if moment.at_us is None else moment.at_us)
        are_fixed = are_fixed and moment.at_us is not None
    since_us, until_us = found
    if since_us >= until_us:
        return "The clip would end before it begins: until is before since"
    return _Moments(since_us, until_us, are_fixed)


def _channel(plane: DataPlane, name: str) -> Channel | Refusal:
    """The channel, or the last one of that name in storage."""
    found = plane.registry.find(name)
    past = None if isinstance(found, Channel) or plane.recordings is None else plane.recordings.channel_of(name)
    return past or found


def _refused(connection: Caller, request: Request, route: Route, why: str) -> Reply | Exchange:
    reply = Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=why.encode())
    return delay(connection, request, route, ReplyKind.REFUSED, 0, answer_clip) or reply


def _made(making: Making, is_lasting: bool, connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """The stage of a request whose clip is made, or cannot be; or that has waited too long.

    Args:
        is_lasting: its URL names the same clip from now on.
    """
    if (error := making.error) is not None:
        if not error.is_other:
            return Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=str(error).encode())
        reply = Reply(Status.UNSUPPORTED, Reason.BAD_REQUEST, body=str(error).encode())
        return delay(connection, request, route, ReplyKind.REFUSED, 0, answer_clip) or reply
    clip, channel = making.clip, making.channel
    if clip is None:
        return _LATE
    kind, ending = (MP4, "mp4") if clip.container is Container.FMP4 else (MPEG_TS, "ts")
    at = datetime.fromtimestamp(clip.opened_us / 1e6, UTC)
    name = quote(f"{channel.name}-{at:%Y%m%dT%H%M%SZ}.{ending}", safe="")
    tag, size = clip.tag if is_lasting else b"", clip.size
    span = range_of(request, size, tag) if tag else None
    lines = clip_lines(clip.pieces[0].seq, clip.gaps, name, tag, span, size)
    if tag and has_it(request, tag):
        return Reply(Status.NOT_MODIFIED, Reason.COMPLETE, content_type="", caching=_CACHING, lines=lines)
    if span is not None and not span.end:
        return unsatisfiable_reply(size, "clip")
    status, part = (Status.OK, clip) if span is None else (Status.PARTIAL_CONTENT, clip.part(*span))
    if not part.pieces:
        return Reply(status, Reason.COMPLETE, (), part.init, kind, caching=_CACHING, lines=lines)
    segment = _held(channel, part.pieces[0].seq)
    if segment is None:
        return Reply(Status.NOT_FOUND, Reason.NOT_FOUND, body=b"The first segment is gone: ask for a later one")
    head = ResponseHead(status, lines, kind, part.size, _CACHING)
    return ClipReader(connection, request, channel, segment, part, head)


def _held(channel: Channel, seq: int) -> Segment | None:
    """A segment of the window or of storage."""
    return channel.segments.get(seq) or (None if channel.retained is None else channel.retained.find(seq))


class ClipReader(SpanReader):
    """The exchange of a client that is sent a clip, or a part of one.

    Args:
        segment: of the first piece. head: of the response.
    """

    __slots__ = ("_before", "_clip", "_place")

    def __init__(
        self, connection: Caller, request: Request, channel: Channel, segment: Segment, clip: Clip, head: ResponseHead
    ) -> None:
        first = clip.pieces[0]
        super().__init__(connection, request, channel, segment, first.begin, first.end, head)
        self._clip, self._place = clip, 0
        self._before = 0  # bytes of the init segment, and of the segments that it has left
        self.plane.clips += 1

    @property
    def sent_in_all(self) -> int:
        """Body bytes of the response so far."""
        return self._before + self.sent

    def take_turn(self) -> None:
        connection, segment = self.connection, self.segment
        if self.done or connection.write_paused:
            return
        if segment.offsets[-1] <= self._begin + self.sent and segment.source is not None:
            segment.source.more()
            return
        head = None if self.started else self._start()
        data = b"" if self.head_only else self._take_span()
        if head is not None and not self.head_only:
            data, self._before = self._clip.init + data, len(self._clip.init)
        connection.send_span(self, head, data)
        if self.head_only:
            self.finish(Reason.COMPLETE, close=not self.keep_alive)
        elif self._begin + self.sent < self._end:
            if not connection.write_paused:
                self.plane.turns.add_reader(self)
        elif self._place + 1 == len(self._clip.pieces):
            self.finish(Reason.COMPLETE, close=not self.keep_alive)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Go on to the next segment."""
        self._place += 1
        seq, begin, end = self._clip.pieces[self._place]
        segment = _held(self.channel, seq)
        if segment is None:
            self.connection.abort(Reason.EVICTED)  # its length is promised
            return
        self._leave()
        self.segment, self._begin, self._end = segment, begin, end
        self.backlog = segment.size
        self.plane.registry.attach(self, self.channel, segment)
        if segment.source is not None:
            segment.source.more()
        elif not self.connection.write_paused:
            self.plane.turns.add_reader(self)

    def _leave(self) -> None:
        """Leave the segment, all of whose bytes are sent."""
        segment = self.segment
        self._before += self.sent
        self.channel.bytes_out += self.sent
        self.sent = 0
        self.plane.registry.detach(self, self.channel, segment)
        if segment.source is not None:
            segment.source.more()

    def withdraw(self) -> None:
        if self.done:
            return
        self.plane.clips -= 1
        super().withdraw()
        record, clip = self.record, self._clip
        record.bytes_out = self._before + self.sent
        record.detail = f"{len(clip.pieces)} segments to {clip.pieces[-1].seq}, {clip.gaps} gaps"
