"""A GET of a stream: a reader that goes on to the next segment, as long as its channel lives.

All segments from the first one on are one response, for players that know of no segments. The reader is in one
segment at a time. When that has closed, and all of it is sent, the reader goes on to the next one, in a turn of its own
(:mod:`app.data_plane.scheduling`). Within a segment it is a reader like any other, and costs as much per chunk.

- Segments without bytes are passed over. Segments without a publisher, and those that left the window before they could
  be sent, are left out; truncated ones are cut short. Both are gaps: the access record, the metrics and the trailer
  count them.
- A stream ends at the end of a segment: with its channel, or because the server shuts down. It never goes on with
  another epoch of the name.
- A stream that has been at the live edge lags by all bytes that were published since and are not sent yet, of all
  segments. Before, it works on a backlog, which is no lag: such a stream need only not stand still.
"""

from __future__ import annotations

from typing import Final

from tricklecast.app.core.results import Ended
from tricklecast.app.core.segment import SKIPPED, WAITING, Segment
from tricklecast.app.core.state import Found
from tricklecast.app.data_plane.context import Streamed
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.reader import DIRECT_BYTES, Reader
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import (
    Reply,
    ResponseHead,
    ended_reply,
    shutdown_reply,
    stream_head,
    stream_trailers,
)
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

_OK: Final = Status.OK


class Stream(Reader):
    """The exchange of a client that is sent one segment after the other.

    Args:
        left_out: the number of segments that the client asked for and that are gone, before the first one that is not.
    """

    __slots__ = ("before", "cut_short", "debt", "left_out", "segments")

    goes_on = True

    def __init__(self, connection: Caller, request: Request, found: Found, left_out: int) -> None:
        super().__init__(connection, request, found)
        self.before = 0  # body bytes of the segments that it has left
        self.segments = self.cut_short = self.left_out = 0  # segments that were sent whole, in part, and not at all
        # Bytes that the channel had received, less those that the stream was sent, when the stream was at the live
        # edge; None until then.
        self.debt: int | None = None
        self._miss(left_out)

    @property
    def idle(self) -> bool:
        """Whether it waits for the first byte of a segment."""
        return self.ending is None and self.segment.state is WAITING

    @property
    def answerable(self) -> bool:
        return self.ending is None and not self.started

    @property
    def sent_in_all(self) -> int:
        """Body bytes of all its segments so far."""
        return self.before + self.sent

    def lag(self) -> int:
        """Body bytes published since it was at the live edge, and not sent yet."""
        return 0 if self.debt is None else self.channel.bytes_in - self.before - self.sent - self.debt

    def has(self) -> int:
        """Body bytes of its segment that its peer has taken; all of them while it works on a backlog."""
        return self.segment.size if self.debt is None else max(0, self.sent - self.connection.unsent())

    def begin(self) -> None:
        """Attach to the first segment, and send the frames that are there."""
        self.record.epoch = self.channel.epoch
        self.record.rseq = self.segment.seq
        segment = self._attach()
        if segment.source is None and (segment.closed or segment.size > DIRECT_BYTES):
            self.plane.turns.add_reader(self)
        elif segment.frames:
            self.take_turn()

    def take_turn(self) -> None:
        """Send frames that were not sent yet, as many as one turn allows; or go on to the next segment."""
        connection, turns = self.connection, self.plane.turns
        if self.done or connection.write_paused:
            return
        if self.segment.closed and self.at == len(self.segment.frames) and self.segment.is_loaded and not self._go_on():
            return
        segment = self.segment
        head = self._start() if segment.frames and not self.started else None
        frames = self._take()
        caught_up = self.at == len(segment.frames)
        if frames:
            connection.send_frames(self, head, frames)
        if caught_up and not segment.closed:
            self.debt = self.channel.bytes_in - self.before - self.sent
        if connection.write_paused:
            return
        if caught_up and not segment.is_loaded:
            assert segment.source is not None, "only storage has more than is loaded"
            segment.source.more()
        elif not caught_up or (segment.closed and segment.seq + 1 < self.channel.next_seq):
            turns.add_reader(self)
        elif segment.closed:
            turns.add_end(self)

    def send_away(self, reply: Reply) -> None:
        """End the stream from outside, while it waits."""
        if self.started:
            self._end(reply.reason)
        else:
            super().send_away(reply)

    def conclude(self, reason: str, *, close: bool) -> None:
        """End it. Publishers do not wait for it, as they do for a reader between two requests."""
        Exchange.conclude(self, reason, close=close)

    def withdraw(self) -> None:
        """Leave the segment, and complete the access record."""
        if self.done:
            return
        self.done = True
        self.fast = False
        self._leave()
        record = self.record
        record.bytes_out = self.before
        record.next_seq = self.channel.next_seq
        self.plane.bytes_out -= self.before  # counted as the segments went by, and once more with the record
        found = f"{self.segments} whole segments, {self.left_out} left out, {self.cut_short} cut short"
        record.detail = f"{record.detail}; {found}" if getattr(record, "detail", None) else found

    def _start(self) -> ResponseHead:
        """The head of the response, which is that of its first segment."""
        self.started = True
        self.record.status = _OK
        self.record.wait_us = self.elapsed_us()
        self._quicken()
        return stream_head(self.channel, self.segment.seq, self.head)

    def _quicken(self) -> None:
        """Let a single new frame go straight to the socket, if possible."""
        self.fast = self.started and self.fd >= 0 and not self.http10 and self.segment.source is None

    def _go_on(self) -> bool:
        """Go on from a finished segment to the next one, or end if there is none. Returns whether it goes on."""
        self._count(self.segment)
        if self.plane.registry.shutting_down:
            self._end(Reason.SHUTDOWN)
            return False
        found, missed = self.channel.after(self.segment.seq)
        if not isinstance(found, Found):
            self._end(Reason.TERMINATED)
            return False
        self._leave()
        self._miss(missed)
        self.segment = found.segment
        self.at = self.sent = 0
        self._attach()
        return True

    def _attach(self) -> Segment:
        """Read the segment from its beginning."""
        segment = self.segment
        self.plane.registry.attach(self, self.channel, segment)
        self._quicken()
        if segment.source is not None:
            segment.source.more()
        return segment

    def _leave(self) -> None:
        """Leave the segment. Its sent bytes count at once, since a stream may last for days."""
        plane, channel, segment = self.plane, self.channel, self.segment
        self.before += self.sent
        channel.bytes_out += self.sent
        plane.bytes_out += self.sent
        plane.registry.detach(self, channel, segment)
        if segment.source is not None:
            segment.source.more()

    def _count(self, segment: Segment) -> None:
        """Count a segment that has closed, by its fate."""
        streamed = self.plane.streamed
        if segment.complete:
            self.segments += 1
            streamed[Streamed.WHOLE] += 1
        elif segment.state is SKIPPED:
            self._miss(1)
        elif segment.size:
            self.cut_short += 1
            streamed[Streamed.CUT_SHORT] += 1

    def _miss(self, segments: int) -> None:
        """Count segments that are left out."""
        self.left_out += segments
        self.plane.streamed[Streamed.LEFT_OUT] += segments

    def _end(self, reason: str) -> None:
        """End the response, since no segment follows."""
        plane, channel = self.plane, self.channel
        ended = channel.ended
        if not self.started:
            self.withdraw()
            over = Ended(self.segment.seq, channel.next_seq, channel.epoch, channel.content_type, channel.life)
            self.answer(ended_reply(over) if ended else shutdown_reply(plane.jitter, plane.registry.come_back_s))
            return
        following = min(self.segment.seq + self.segment.closed, channel.next_seq)
        trailers = stream_trailers(following, self.left_out + self.cut_short, ended=ended)
        self.connection.send_frames(self, None, [], trailers)
        self.finish(reason, close=not self.keep_alive)
