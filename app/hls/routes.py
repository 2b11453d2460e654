"""The media of HLS: a GET of a segment, or of a part of one, that a playlist names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import ClassVar, Final

from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Channel, Serve
from tricklecast.app.data_plane.exchange import Line
from tricklecast.app.data_plane.reader import DIRECT_BYTES, Reader
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import media_head
from tricklecast.app.data_plane.scheduling import WRITE_BYTES
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import MP4, MP4_AUDIO, MPEG_TS, Status

CONTENT_TYPES: Final = {"ts": MPEG_TS, "m4s": MP4, "m4a": MP4_AUDIO, "mp4": MP4}


class MediaReader(Reader):
    """The exchange of a client that is sent some bytes of a segment that are there, or that storage has.

    It writes by turns, as every reader does, and its memory is that of the segment. It lags behind nothing.

    Args:
        begin, end: which bytes of the segment.
        content_type: of them.
    """

    __slots__ = ("_begin", "_content_type", "_end")

    paces = False

    counted_elsewhere: ClassVar[bool] = True
    """Whether it is a request of a player, which is counted as a reader as long as it asks."""

    def __init__(
        self,
        connection: Line,
        request: Request,
        channel: Channel,
        segment: Segment,
        begin: int,
        end: int,
        content_type: str,
    ) -> None:
        super().__init__(connection, request, Serve(channel, segment, channel.next_seq))
        self._begin, self._end = begin, end
        self._content_type = content_type

    def begin(self) -> None:
        """Attach to the segment, and send."""
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
        """Storage has loaded more; what is written to the segment is none of this reader's."""
        if self.segment.source is not None and not self.queued:
            self.take_turn()

    def lag(self) -> int:
        """Nothing."""
        return 0

    def has(self) -> int:
        """All that there is: it lags behind nothing."""
        return self.segment.size

    def take_turn(self) -> None:
        """Send what was not sent yet, as much as one turn allows."""
        connection = self.connection
        if self.done or connection.write_paused:
            return
        segment = self.segment
        if segment.offsets[-1] <= self._begin + self.sent and segment.source is not None:
            segment.source.more()  # what comes before its bytes is loaded, too
            return
        buffers = [] if self.started else [self._start()]
        if not self.head_only:
            self._take(buffers)
        connection.send_many(buffers)
        if self.head_only or self._begin + self.sent == self._end:
            self.finish(Reason.COMPLETE, close=not self.keep_alive)
        elif not connection.write_paused:
            self.plane.turns.add_reader(self)

    def withdraw(self) -> None:
        """Detach from the segment."""
        self.channel.players_beside += self.counted_elsewhere and not self.done
        super().withdraw()

    def conclude(self, reason: str, *, close: bool) -> None:
        """The peer has taken all."""
        self.withdraw()
        self.end(reason)
        self.connection.complete(close=close)

    def _take(self, buffers: list[bytes]) -> bool:
        """Add the bytes of one turn."""
        segment, at = self.segment, self._begin + self.sent
        end = min(self._end, at + WRITE_BYTES, segment.offsets[-1])
        place = bisect_right(segment.offsets, at) - 1
        begin = segment.offsets[place]
        data = b"".join(segment.payload(place, bisect_left(segment.offsets, end)))[at - begin : end - begin]
        buffers.append(data)
        self.sent += len(data)
        return end == self._end

    def _start(self) -> bytes:
        self.started = True
        self.record.wait_us = self.elapsed_us()
        return self._head()

    def _head(self) -> bytes:
        self.record.status = Status.OK
        return media_head(
            self.plane.common,
            self._content_type,
            self._end - self._begin,
            private=self.plane.authorizer is not None,
            keep_alive=self.keep_alive,
            cors=self.cors,
        )
