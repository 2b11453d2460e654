"""A POST of a segment: the body goes into the core through a writer token.

The core may take the token away at any moment: another publisher takes over, the segment is closed, a limit is reached.
Then it calls :meth:`Upload.preempted` with the outcome, and the publisher is answered at once, in the middle of its
body. The same call ends an upload whose body is complete. A publisher that disconnects leaves its segment open for a
while, so that it can resume.
"""

from __future__ import annotations

from typing import ClassVar

from tricklecast.app.core.results import Outcome
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Writer
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.pacing import SEGMENT_BYTES, Pace
from tricklecast.app.data_plane.request import EPOCH, Request
from tricklecast.app.data_plane.responses import Reply, named, unconfirmed_reply, writer_reply
from tricklecast.trickle import wire
from tricklecast.trickle.wire import Status


def store_half_chunks(channel: OwnedChannel | None, seq: int | None = None) -> None:
    """Store the bytes that have arrived of unfinished chunks, since their segments are about to be closed from outside.

    Args:
        seq: of one segment; ``None``: all open segments of the channel.
    """
    for segment in () if channel is None else channel.unclosed:
        if seq in (None, segment.seq) and segment.writer is not None and isinstance(segment.writer.owner, Upload):
            segment.writer.owner.connection.deliver_rest()


class Upload(Exchange):
    """The exchange of a publisher that may write a segment.

    Until the first byte of its body arrives it is a preconnect.
    """

    __slots__ = ("pace", "pinned", "received", "request", "writer")

    pace: Pace | None  # of its channel, from the token on; None if publishers wait for no readers

    takes_body: ClassVar[bool] = True

    def __init__(self, connection: Caller, request: Request) -> None:
        super().__init__(connection, request)
        self.request = request
        self.received = 0  # body bytes that have arrived
        self.pinned = EPOCH in request.headers  # the publisher has named the channel's epoch
        self.writer: Writer[OwnedChannel] | None = None  # the token; None before it is given and after it is taken

    @property
    def idle(self) -> bool:
        """Whether it is a preconnect: no byte of its body has arrived, and the body has not ended."""
        return self.writer is not None and not self.received and self.ending is None

    @property
    def channel_name(self) -> str | None:
        return None if self.writer is None else self.writer.channel.name

    def begin(self, writer: Writer[OwnedChannel]) -> None:
        """Take the token that the core gives."""
        self.writer = writer
        record = self.record
        record.epoch = writer.channel.epoch
        record.rseq = writer.segment.seq
        self.pace = self.plane.pacing.of(writer.channel)

    def data(self, chunks: list[bytes]) -> None:
        """Store chunks of the body."""
        writer = self.writer
        if writer is None or self._fenced():
            return
        self._count(chunks)
        channel = writer.channel
        outcome = channel.append(writer, chunks, self.plane.clock())
        if outcome is not None:
            self.preempted(outcome)
        self._yield(channel)

    def body_ended(self, chunks: list[bytes]) -> None:
        """Store the last chunks, and close the segment."""
        writer = self.writer
        if writer is None or self._fenced():
            return
        self._count(chunks)
        channel = writer.channel
        self.preempted(channel.finish(writer, chunks, self.plane.clock()))
        if self.pace is not None:
            self.pace.ended += SEGMENT_BYTES
        self._yield(channel)

    def _fenced(self) -> bool:
        """Whether nothing may be published now; then the publisher is sent away."""
        durability = self.plane.durability
        if durability is None or not durability.fenced:
            return False
        self.send_away(unconfirmed_reply(self.plane.jitter))
        return True

    def preempted(self, outcome: Outcome) -> None:
        """Called by the core: the token is taken back, for this reason. Answer the publisher at once."""
        writer = self.writer
        if writer is None:
            return
        reply = writer_reply(outcome, writer.segment.seq, self.plane.jitter)
        if reply is not None:
            self._leave(writer)
            if reply.status == Status.OK:
                self.answer_when_stored(self._named(reply, writer), writer.channel)
            else:
                if (witness := self.plane.witness) is not None:
                    witness.note("refused", reply.reason, writer.channel.name, ip=self.connection.peer)
                self.answer(reply)

    def _named(self, reply: Reply, writer: Writer[OwnedChannel]) -> Reply:
        """Add the channel's numbering and epoch to a response, if the publisher named another numbering or no epoch."""
        claim, channel = writer.claim, writer.channel
        if claim is None:
            return reply
        if claim != channel.life:  # the publisher has to use this name from now on
            reply = named(reply, channel.life)
        if not self.pinned:
            reply = reply._replace(headers=(*reply.headers, (wire.EPOCH, channel.epoch)))
        return reply

    def withdraw(self) -> None:
        """Stop writing. The segment stays open for a while, so that the publisher can resume it."""
        writer = self.writer
        if writer is not None:
            self._leave(writer)
            writer.channel.abort(writer, self.plane.clock())

    def cut_short(self, reply: Reply) -> None:
        """Answer the upload from outside. Its segment, if it has bytes, closes as truncated."""
        writer = self.writer if self.received else None
        self.send_away(reply)
        if writer is not None:
            registry = self.plane.registry
            registry.close_segment(writer.channel.name, writer.segment.seq, self.plane.clock(), truncate=True)

    def _yield(self, channel: object) -> None:
        """Let readers of the channel come first, after bytes were published."""
        plane = self.plane
        flows = plane.turns.flows
        if flows and (flow := flows.get(channel)) is not None:
            flow.hold(self.connection)
        pace = self.pace
        if pace is not None and pace.channel.bytes_in + pace.ended >= pace.look_at:
            plane.pacing.published(pace, self.connection)

    def _count(self, chunks: list[bytes]) -> None:
        self.received += len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))

    def _leave(self, writer: Writer[OwnedChannel]) -> None:
        # The token knows this exchange, too: without this, the cycle would keep the segment's bytes in memory after
        # its eviction until the garbage collector finds it.
        self.writer = None
        self.record.bytes_in = self.received
        self.record.next_seq = writer.channel.next_seq
