"""A GET of a segment: a cursor on it, bound to a connection."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from app.core.resolution import Serve, Wait
from app.core.segment import decode_frame
from app.data_plane.answers import REASON_OF_STATE, content_type_of, empty_reply, truncation_of
from app.data_plane.exchange import Exchange
from app.data_plane.replies import LAST_CHUNK, segment_head, truncated_end
from trickle.records import AccessRecord, Reason
from trickle.wire import Status

if TYPE_CHECKING:
    from app.data_plane.connection import Connection
    from app.data_plane.request import Request

TURN_BYTES: Final = 256 << 10
TURN_FRAMES: Final = 512
"""What a reader that catches up writes before it lets others run; frames below IOV_MAX (1024) of one writev."""


class Reader(Exchange):
    """The exchange of a subscriber that is relayed a segment.

    It pulls from the segment's frames whenever it is woken and its transport takes data. A reader whose transport
    is full does nothing until that has drained, and then goes on from its own position.

    Attributes:
        at: index of the next frame to send. sent: body bytes sent so far.
        started: whether the head of the response is out. fast: whether a single new frame may be written straight
            to the socket.
    """

    __slots__ = ("at", "backlog", "channel", "done", "fast", "fd", "head", "segment", "sent", "started")

    def __init__(self, connection: Connection, request: Request, record: AccessRecord, found: Serve | Wait) -> None:
        super().__init__(connection, request, record)
        self.channel = found.channel
        self.segment = found.segment
        self.head = found.head
        self.at = 0
        self.sent = 0
        self.backlog = found.segment.size
        self.started = False
        self.done = False
        self.fast = False
        self.fd = connection.fd

    @property
    def idle(self) -> bool:
        """Whether it still waits for the first byte."""
        return not self.started

    @property
    def answerable(self) -> bool:
        """Whether the head of the response is not out yet."""
        return not self.started

    def begin(self) -> None:
        """Attach to the segment; what is there is sent at once."""
        record = self.record
        record.epoch = self.channel.epoch
        record.rseq = self.segment.seq
        self.plane.registry.attach(self, self.channel, self.segment)
        if self.segment.frames:
            self._pull()

    def wake(self) -> None:
        """There is more, or the segment has closed."""
        segment = self.segment
        if self.fast and not segment.closed and not self.connection.write_paused:
            frames = segment.frames
            at = self.at
            if len(frames) - at == 1:
                frame = frames[at]
                self.at = at + 1
                self.sent = segment.size
                try:
                    written = os.write(self.fd, frame)
                except OSError as error:
                    written = self.connection.write_failed(error)
                if written != len(frame):
                    self.connection.transport.write(memoryview(frame)[written:])
                return
        self._pull()

    def evict(self) -> None:
        """The memory of the segment is needed."""
        self.connection.abort(Reason.EVICTED)

    def lag(self) -> int:
        """Body bytes published but not sent yet, beyond what was there when the reader came."""
        return self.segment.size - max(self.sent, self.backlog)

    def _pull(self) -> None:
        """Send what was not sent yet, as much as one turn allows."""
        if self.done or self.connection.write_paused:
            return
        segment = self.segment
        frames = segment.frames
        buffers: list[bytes] = []
        if not self.started:
            if not frames:
                if segment.closed:
                    self.withdraw()
                    self.answer(empty_reply(self.channel, segment))
                return
            buffers.append(self._start())
        stop = self._end_of_turn(frames)
        turn = frames[self.at : stop]
        if self.http10:
            turn = [chunk for frame in turn for chunk in decode_frame(frame)]
        buffers += turn
        caught_up = stop == len(frames)
        self.sent = segment.size if caught_up else self.sent + _payload(frames[self.at : stop])
        self.at = stop
        finished = caught_up and segment.closed
        if finished and not self.http10:
            why = truncation_of(segment)
            buffers.append(truncated_end(why) if why else LAST_CHUNK)
        if buffers:
            self.connection.send_many(buffers)
        if finished:
            self.withdraw()
            self.end(REASON_OF_STATE[segment.state])
            self.plane.latencies.relayed(segment, self.record, self.arrived)
            self.connection.complete(close=not self.keep_alive)
        elif not caught_up and not self.connection.write_paused:
            self.connection.loop.call_soon(self._pull)

    def _start(self) -> bytes:
        """The head of the response. It goes out with the first byte, never before (section 4)."""
        segment, record = self.segment, self.record
        self.started = True
        self.fast = self.fd >= 0 and not self.http10
        if self.http10:
            self.keep_alive = False
        record.status = Status.OK
        record.wait_us = self.elapsed_us()
        return segment_head(
            self.plane.common(self.connection.server_state.default_headers),
            content_type_of(self.channel),
            segment.seq,
            None if self.head == segment.seq else self.head,
            self.channel.epoch,
            segment.size,
            truncation_of(segment),
            keep_alive=self.keep_alive,
            cors=self.cors,
            http10=self.http10,
        )

    def _end_of_turn(self, frames: list[bytes]) -> int:
        stop, size = self.at, 0
        last = min(len(frames), self.at + TURN_FRAMES)
        while stop < last and size < TURN_BYTES:
            size += len(frames[stop])
            stop += 1
        return stop

    def withdraw(self) -> None:
        """Detach from the segment."""
        self.done = True
        self.fast = False
        self.record.bytes_out = self.sent
        self.record.next_seq = self.channel.next_seq
        self.channel.bytes_out += self.sent
        self.plane.registry.detach(self, self.channel, self.segment)


def _payload(frames: list[bytes]) -> int:
    return sum(len(chunk) for frame in frames for chunk in decode_frame(frame))
