"""What every exchange has in common: its connection, its record, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.app.data_plane.door import asked
from tricklecast.app.data_plane.replies import Reply, encoded
from tricklecast.app.data_plane.tally import Record
from tricklecast.trickle.records import Reason

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.plane import DataPlane
    from tricklecast.app.data_plane.request import Request


class Exchange:
    """One request with its response, on one connection.

    Attributes:
        record: the access record, filled in as the exchange goes on.
        arrived: when the request's head was complete, on the plane's clock.
        keep_alive, http10, head_only: of the request. cors: header lines for a page of another origin.
    """

    __slots__ = ("arrived", "connection", "cors", "head_only", "http10", "keep_alive", "plane", "record")

    def __init__(self, connection: Connection, request: Request, record: Record) -> None:
        plane: DataPlane = connection.plane
        self.connection = connection
        self.plane = plane
        self.record = record
        self.arrived = request.arrived or plane.clock()
        self.keep_alive = request.keep_alive and not plane.registry.shutting_down
        self.http10 = request.http10
        self.cors = request.cors.lines
        self.head_only = request.method == b"HEAD"

    @property
    def idle(self) -> bool:
        """Whether it only waits: nothing was sent, and nothing of a body received."""
        return False

    @property
    def answerable(self) -> bool:
        """Whether nothing of the response is out yet."""
        return True

    def answer(self, reply: Reply) -> None:
        """Send a whole answer, and be done."""
        connection = self.connection
        record = self.record
        common = self.plane.common(connection.server_state.default_headers)
        # Refusals for want of room are alike, and a flood of them is to cost little.
        encode = Reply.encode if reply.retry_after_s is None or reply.headers else encoded
        connection.send(encode(reply, common, keep_alive=self.keep_alive, cors=self.cors, head_only=self.head_only))
        record.status = reply.status
        record.eos = reply.eos or None
        if reply.retry_after_s is not None:
            record.retry_after_ms = reply.retry_after_s * 1000
        if record.wait_us is None:
            record.wait_us = self.elapsed_us()
        if record.bytes_out is None:
            record.bytes_out = 0 if self.head_only else len(reply.body)
        self.finish(reply.reason, close=reply.close or not self.keep_alive)

    def finish(self, reason: str, *, close: bool) -> None:
        """All of the answer is handed over: the exchange is over as soon as the peer has taken it."""
        if self.connection.write_paused:
            self.connection.exchange = Unsent(self, reason, close=close)
        else:
            self.conclude(reason, close=close)

    def conclude(self, reason: str, *, close: bool) -> None:
        """The peer has taken all."""
        self.end(reason)
        self.connection.complete(close=close)

    def broken(self, reason: str) -> None:
        """The connection broke when all of the answer was handed over, and not all of it taken."""
        self.end(reason)

    def withdraw(self) -> None:
        """Leave the core: what this exchange read or wrote is no longer its business."""

    def send_away(self, reply: Reply) -> None:
        """End an exchange that has not sent anything yet with an answer from outside."""
        self.withdraw()
        self.answer(reply)

    def end(self, reason: str) -> None:
        """Finish the access record: the exchange is over, one way or another."""
        record = self.record
        record.reason = reason
        record.dur_us = int((self.plane.clock() - self.arrived) * 1_000_000)
        if self.connection.asking is not None:
            asked(self.connection)
        self.plane.ended(record)

    def lost(self, reason: str = Reason.CLIENT_GONE) -> None:
        """The connection broke before the exchange was over."""
        self.withdraw()
        self.end(reason)

    def elapsed_us(self) -> int:
        """Microseconds since the request arrived."""
        return int((self.plane.clock() - self.arrived) * 1_000_000)


class Unsent(Exchange):
    """Takes the place of an exchange that has handed over all of its answer, until the peer has taken the rest.

    The end is told as it was. Nothing of the next request is answered before, so that a peer that does not read cannot
    make answers pile up.

    Args:
        exchange: of which only the end is missing.
        reason: how it ended, if the peer takes the rest.
        close: whether the connection closes then.
    """

    __slots__ = ("_reason", "exchange")

    def __init__(self, exchange: Exchange, reason: str, *, close: bool) -> None:
        self.exchange = exchange
        self.connection = exchange.connection
        self.plane = exchange.plane
        self.record = exchange.record
        self.keep_alive = not close
        self._reason = reason

    @property
    def answerable(self) -> bool:
        """It is answered."""
        return False

    def taken(self) -> None:
        """The peer has taken all."""
        self.exchange.conclude(self._reason, close=not self.keep_alive)

    def lost(self, reason: str = Reason.CLIENT_GONE) -> None:
        """The connection broke before."""
        self.exchange.broken(reason)
