"""A GET of a segment: a cursor on it, bound to a connection."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tricklecast.app.core.channel import Serve, Wait
from tricklecast.app.core.segment import decode_frame
from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.data_plane.answers import REASON_OF_STATE, content_type_of, empty_reply, truncation_of
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.data_plane.replies import LAST_CHUNK, segment_head, truncated_end
from tricklecast.app.data_plane.tally import Record
from tricklecast.trickle.wire import Status

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.request import Request

_OK: Final = Status.OK

TURN_BYTES: Final = 128 << 10
TURN_FRAMES: Final = 512
"""What a reader that is behind is written before others have their turn, or one frame if that is more; frames below
IOV_MAX (1024) of one writev."""

DIRECT_BYTES: Final = 32 << 10
"""A segment up to this size is answered at once; of a larger one a reader takes its turns."""


class Reader(Exchange):
    """The exchange of a subscriber that is relayed a segment.

    It pulls from the segment's frames whenever it is woken and its transport takes data. A reader whose transport
    is full does nothing until that has drained, and then goes on from its own position, in turns with others.

    Attributes:
        at: index of the next frame to send. sent: body bytes sent so far.
        backlog: body bytes that were there when it came.
        started: whether the head of the response is out. fast: whether a single new frame may be written straight
            to the socket. queued: whether it waits for its turn. done: whether it has left the segment.
    """

    __slots__ = ("at", "backlog", "channel", "done", "fast", "fd", "head", "queued", "segment", "sent", "started")

    def __init__(self, connection: Connection, request: Request, record: Record, found: Serve | Wait) -> None:
        super().__init__(connection, request, record)
        self.channel = found.channel
        self.segment = found.segment
        self.head = found.head
        self.at = 0
        self.sent = 0
        self.backlog = found.segment.size
        self.started = False
        self.done = False
        self.queued = False
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
        if self.segment.size > DIRECT_BYTES:
            self.plane.catching_up.add(self)
        elif self.segment.frames:
            self.take_turn()

    def wake(self) -> None:
        """There is more, or the segment has closed."""
        segment = self.segment
        frames = segment.frames
        at = self.at
        if segment.closed:
            if self.started and at == len(frames):
                # Only the end is missing: what somebody else waits for goes first, such as the next segment.
                self.plane.ending.add(self)
                return
        elif self.fast and len(frames) - at == 1 and not self.connection.write_paused:
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
        if not self.queued:
            self.take_turn()

    def evict(self) -> None:
        """The memory of the segment is needed."""
        self.connection.cut_off(Cut.MEMORY)

    def lag(self) -> int:
        """Body bytes published but not sent yet, beyond what was there when the reader came."""
        return self.segment.size - max(self.sent, self.backlog)

    def lag_s(self) -> float:
        """For how many seconds it has lacked what it has not been sent, or has not taken."""
        plane = self.plane
        unsent = self.connection.transport.get_write_buffer_size()
        return plane.timelines.age_s(self.segment, max(self.sent - unsent, self.backlog), plane.clock())

    def is_overdue(self, overdue: int, unsent: int) -> bool:
        """Whether it lacks bytes that are too old.

        Args:
            overdue: so many bytes of the segment are.
            unsent: bytes that its connection holds for it.
        """
        return max(self.sent - unsent, self.backlog) < overdue

    def take_turn(self) -> int:
        """Send what was not sent yet, as much as one turn allows; returns how many bytes that were."""
        connection = self.connection
        if self.done or connection.write_paused:
            return 0
        segment = self.segment
        frames = segment.frames
        buffers: list[bytes] = []
        if not self.started:
            if not frames:
                if segment.closed:
                    self.withdraw()
                    self.answer(empty_reply(self.channel, segment))
                return 0
            buffers.append(self._start())
        stop, size = self._end_of_turn(frames)
        turn = frames[self.at : stop]
        if self.http10:
            turn = [b"".join([chunk for frame in turn for chunk in decode_frame(frame)])]
        buffers += turn
        caught_up = stop == len(frames)
        self.sent = segment.size if caught_up else self.sent + segment.payload(self.at, stop)
        self.at = stop
        finished = caught_up and segment.closed
        if finished and not self.http10:
            why = "" if segment.complete else truncation_of(segment)
            buffers.append(truncated_end(why) if why else LAST_CHUNK)
        if buffers:
            connection.send_many(buffers)
        if finished:
            done = self.finish if connection.write_paused else self.conclude
            done(REASON_OF_STATE[segment.state], close=not self.keep_alive)
        elif not caught_up and not connection.write_paused:
            self.plane.catching_up.add(self)
        return size

    def conclude(self, reason: str, *, close: bool) -> None:
        """The peer has taken all."""
        if not self.done:
            self.withdraw()
        self.end(reason)
        if self.segment.size:
            self.plane.latencies.relayed(self.segment, self.record, self.arrived)
        self.connection.complete(close=close)

    def broken(self, reason: str) -> None:
        """The connection broke when all of the answer was handed over, and not all of it taken."""
        if not self.done:
            self.withdraw()
        super().broken(reason)

    def _start(self) -> bytes:
        """The head of the response. It goes out with the first byte, never before (section 4)."""
        segment, record = self.segment, self.record
        self.started = True
        self.fast = self.fd >= 0 and not self.http10
        if self.http10:
            self.keep_alive = False
        record.status = _OK
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

    def _end_of_turn(self, frames: list[bytes]) -> tuple[int, int]:
        """Up to which frame one turn goes, and how many bytes that are."""
        at = self.at
        stop, size = at, 0
        last = min(len(frames), at + TURN_FRAMES)
        while stop < last and ((more := size + len(frames[stop])) <= TURN_BYTES or stop == at):
            stop, size = stop + 1, more
        return stop, size

    def withdraw(self) -> None:
        """Detach from the segment."""
        self.done = True
        self.fast = False
        self.record.bytes_out = self.sent
        self.record.next_seq = self.channel.next_seq
        self.channel.bytes_out += self.sent
        self.plane.registry.detach(self, self.channel, self.segment)
