"""A POST of a segment: body in, through a writer token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.app.core.results import Outcome
from tricklecast.app.core.segment import Writer
from tricklecast.app.data_plane.answers import writer_reply
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.data_plane.tally import Record

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.request import Request


class Publish(Exchange):
    """The exchange of a publisher that has been given the right to write a segment.

    While no byte of the body has arrived it is a preconnect, which is sent ``100 Continue`` now and then.
    """

    __slots__ = ("received", "writer")

    writer: Writer

    def __init__(self, connection: Connection, request: Request, record: Record) -> None:
        super().__init__(connection, request, record)
        self.received = 0

    @property
    def idle(self) -> bool:
        """Whether it is a preconnect: no byte of its body has arrived."""
        return not self.received

    def begin(self, writer: Writer) -> None:
        """The core gave the token."""
        self.writer = writer
        record, channel = self.record, writer.channel
        record.epoch = channel.epoch
        record.rseq = writer.segment.seq
        if not self.http10:
            self.plane.preconnects[self] = self.arrived + self.plane.options.interim_interval_s

    def data(self, chunks: list[bytes]) -> None:
        """Chunks of the body arrived."""
        self._count(chunks)
        if (outcome := self.writer.channel.append(self.writer, chunks, self.plane.clock())) is not None:
            self.preempted(outcome)

    def body_ended(self, chunks: list[bytes]) -> None:
        """The body ended, after these last chunks."""
        self._count(chunks)
        self.preempted(self.writer.channel.finish(self.writer, chunks, self.plane.clock()))

    def preempted(self, outcome: Outcome) -> None:
        """The writer's part is over, by its own end or by somebody else: answer at once."""
        reply = writer_reply(outcome, self.writer.segment.seq, self.plane.jitter)
        if reply is not None:
            self._leave()
            self.answer(reply)

    def withdraw(self) -> None:
        """Stop writing: the segment stays open for a while, so that the publisher can resume it."""
        writer = self._leave()
        writer.channel.abort(writer, self.plane.clock())

    def _count(self, chunks: list[bytes]) -> None:
        if not self.received:
            self.plane.preconnects.pop(self, None)
        self.received += sum(map(len, chunks))

    def _leave(self) -> Writer:
        """Let go of the token: it knows this exchange, too, and the cycle would keep the segment's bytes in memory
        after it was evicted, until the garbage collector comes by.
        """
        writer = self.writer
        del self.writer
        if not self.received:
            self.plane.preconnects.pop(self, None)
        self.record.bytes_in = self.received
        self.record.next_seq = writer.channel.next_seq
        return writer
