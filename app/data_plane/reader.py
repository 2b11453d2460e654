"""A GET of a segment: a cursor on the segment, bound to a connection.

The segment wakes the reader, and the reader sends all frames of the segment that it has not sent yet. It keeps a
position and no copy: a frame is encoded once, in the segment, for all readers. A reader whose socket is full does
nothing until the transport is empty; then it goes on from its position, by turns with the other readers that are behind
(:mod:`app.data_plane.scheduling`). So a slow reader costs a position and at most one turn's bytes in its transport.

Nearly every wake-up is for one new frame and an empty transport: that frame goes to the socket with one ``os.write``.

The head of the response goes out with the first byte, never before: only then is the content type certain, and a client
that waits can still be answered otherwise.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import ClassVar, Final

from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.core.state import Found
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import (
    REASON_OF_STATE,
    ResponseHead,
    empty_reply,
    segment_head,
    segment_trailers,
    tag_of,
)
from tricklecast.app.data_plane.scheduling import TURN_BYTES, WRITE_FRAMES
from tricklecast.trickle.wire import Status

_OK: Final = Status.OK

DIRECT_BYTES: Final = 32 << 10
"""A segment up to this size is written at once; a larger one by turns."""


class Reader(Exchange):
    """The exchange of a subscriber that is sent one segment."""

    __slots__ = ("at", "backlog", "channel", "done", "fast", "fd", "head", "queued", "segment", "sent", "started")

    paces: ClassVar[bool] = True
    """Publishers may be read at its pace (:mod:`app.data_plane.pacing`)."""

    goes_on: ClassVar[bool] = False
    """It reads the next segment, too, and so leaves a closed segment in a turn of its own (``Stream``)."""

    def __init__(self, connection: Caller, request: Request, found: Found) -> None:
        super().__init__(connection, request)
        self.channel = found.channel
        self.segment = found.segment
        self.head = found.head
        self.at = 0  # index of the next frame to send
        self.sent = 0  # body bytes sent so far
        self.backlog = self.segment.size  # body bytes that were there when it came
        self.started = False  # the head of the response is out
        self.done = False  # it has left the segment
        self.queued = False  # it waits for its turn
        self.fast = False  # a single new frame may be written straight to the socket
        self.fd = connection.fd  # -1 with TLS

    @property
    def idle(self) -> bool:
        return not self.started and self.ending is None

    @property
    def answerable(self) -> bool:
        return self.idle

    @property
    def channel_name(self) -> str | None:
        return self.channel.name

    @property
    def sent_in_all(self) -> int:
        """Body bytes of the response so far."""
        return self.sent

    def begin(self) -> None:
        """Attach to the segment, and send the frames that are there."""
        record, segment = self.record, self.segment
        record.epoch = self.channel.epoch
        record.rseq = segment.seq
        self.plane.registry.attach(self, self.channel, segment)
        if segment.source is not None:
            segment.source.more()
        elif segment.size > DIRECT_BYTES:
            self.plane.turns.add_reader(self)
        elif segment.frames:
            self.take_turn()

    def wake(self) -> None:
        """Called by the segment: it has more frames, or it has closed."""
        segment = self.segment
        frames = segment.frames
        at = self.at
        if segment.closed:
            if at == len(frames) and (self.started or self.goes_on) and segment.is_loaded:
                # Only the end is missing. Bytes that other clients wait for go first, such as the next segment's.
                self.plane.turns.add_end(self)
                return
        elif self.fast and len(frames) - at == 1 and not self.connection.write_paused:
            # Written here, not by the connection: one more call per chunk and reader costs a fan-out 4 % more CPU.
            frame = frames[at]
            self.at = at + 1
            self.sent = segment.size
            try:
                written = os.write(self.fd, frame)
            except OSError as error:
                written = self.connection.write_failed(error)
            if written != len(frame):
                self.connection.keep(frame, written)
            return
        if not self.queued:
            self.take_turn()

    def evict(self) -> None:
        """Called by the segment: its memory is needed."""
        source = self.segment.source
        why = Cut.STORAGE if source is not None and source.unreadable else Cut.MEMORY
        self.plane.slow_peers.cut_offs[why] += 1
        self.connection.cut_off(why)

    def lag(self) -> int:
        """Body bytes published while it was there and not sent yet."""
        return self.segment.size - max(self.sent, self.backlog)

    def has(self) -> int:
        """Body bytes that its peer has taken, or that were there when it came."""
        return max(self.sent - self.connection.unsent(), self.backlog)

    def take_turn(self) -> None:
        """Send frames that were not sent yet, as many as one turn allows."""
        connection = self.connection
        if self.done or connection.write_paused:
            return
        segment = self.segment
        head = None
        if not self.started:
            if not segment.frames:
                if segment.closed and not segment.size:
                    self.withdraw()
                    self.answer(empty_reply(self.channel, segment))
                return
            head = self._start()
        frames = self._take()
        caught_up = self.at == len(segment.frames)
        finished = caught_up and segment.closed and segment.is_loaded
        if frames or finished:
            connection.send_frames(self, head, frames, segment_trailers(segment) if finished else None)
        if finished:
            self.finish(REASON_OF_STATE[segment.state], close=not self.keep_alive)
        elif not connection.write_paused:
            if not caught_up:
                self.plane.turns.add_reader(self)
            elif segment.source is not None:
                segment.source.more()

    def _take(self) -> list[bytes]:
        """The frames of one turn, which count as sent."""
        segment = self.segment
        frames = segment.frames
        at, count = self.at, len(frames)
        stop = count
        if count - at > 1 and (count - at > WRITE_FRAMES or segment.size - self.sent > TURN_BYTES):
            stop = bisect_right(segment.offsets, self.sent + TURN_BYTES, at + 1) - 1
            stop = min(at + WRITE_FRAMES, max(at + 1, stop))
        self.sent = segment.offsets[stop]
        self.at = stop
        if (pacing := self.plane.pacing).holding:
            pacing.advanced(self.channel)
        return frames[at:stop] if at or stop < count else frames

    def writable(self) -> None:
        """Go on, or conclude, since the transport is empty again."""
        if self.ending is not None:
            super().writable()
        elif not self.done:
            self.plane.turns.add_reader(self)

    def conclude(self, reason: str, *, close: bool) -> None:
        self.withdraw()
        self.end(reason)
        segment, channel, turns = self.segment, self.channel, self.plane.turns
        record = self.record
        if segment.size:
            self.plane.latencies.relayed(segment, self.arrived, wait_us=record.wait_us or 0, dur_us=record.dur_us or 0)
        live = segment.source is None  # publishers wait for no reader that replays
        if live and self.backlog == segment.size and segment.seq + 1 < channel.next_seq and not close:
            # The client reads segments that are older than the newest, and its next request is on its way.
            turns.expect_request(channel)
        if live and not close:
            self.plane.pacing.finished(channel, self.connection, segment.seq)
        self.connection.complete(close=close)

    def withdraw(self) -> None:
        """Leave the segment."""
        if self.done:
            return
        self.done = True
        self.fast = False
        self.record.bytes_out = self.sent
        self.record.next_seq = self.channel.next_seq
        self.channel.bytes_out += self.sent
        self.plane.registry.detach(self, self.channel, self.segment)
        if self.segment.source is not None:
            self.segment.source.more()

    def _start(self) -> ResponseHead:
        """The head of the response (docs/reference/protocol.md, section 4)."""
        segment, record = self.segment, self.record
        self.started = True
        self.fast = self.fd >= 0 and not self.http10 and segment.source is None
        record.status = _OK
        record.wait_us = self.elapsed_us()
        tag = tag_of(self.channel, segment) if segment.closed else b""
        return segment_head(self.channel, segment, self.head, tag)
