"""A request that waits before it begins: for others, for an answer from outside, or since it is held back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.data_plane.head import has_body
from tricklecast.app.data_plane.tally import Record
from tricklecast.trickle.records import Op

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.request import Request


class Waiting(Exchange):
    """The exchange that stands for a request until that may begin.

    A segment's body is held back: what came with its head is kept, and no more is read. In all other cases reading
    goes on, so that a client that leaves is noticed.

    Attributes:
        request: what waits.
        over: nobody waits any more: it begins or is answered, the client has gone, or the server goes.
    """

    __slots__ = ("over", "request")

    def __init__(self, connection: Connection, request: Request, record: Record) -> None:
        super().__init__(connection, request, record)
        self.request = request
        self.over = False
        if request.route.op is Op.PUBLISH and has_body(request.headers):
            request.held = True
            connection.flow.pause_reading()

    @property
    def idle(self) -> bool:
        """It only waits."""
        return True

    def withdraw(self) -> None:
        """Wait no longer, and let the body come."""
        self.over = True
        if self.request.held:
            self.request.held = False
            if not self.connection.transport.is_closing():
                self.connection.flow.resume_reading()
