"""A request about which somebody outside has to be asked: it waits, unread, for the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.data_plane.exchange import Exchange
from app.data_plane.head import content_length
from app.data_plane.tally import Record

if TYPE_CHECKING:
    from app.data_plane.connection import Connection
    from app.data_plane.request import Request


class Asking(Exchange):
    """The exchange that stands for a request until it is known whether it may begin.

    Attributes:
        over: it is no longer waited for: answered, or the client has gone, or the server goes.
    """

    __slots__ = ("_paused", "over", "request")

    def __init__(self, connection: Connection, request: Request, record: Record) -> None:
        super().__init__(connection, request, record)
        self.request = request
        self.over = False
        request.held = True
        # No more of a body than came with its head is held. Without one reading goes on, so that a client that leaves
        # is noticed.
        self._paused = b"transfer-encoding" in request.headers or bool(content_length(request.headers))
        if self._paused:
            connection.flow.pause_reading()
        connection.exchange = self

    @property
    def idle(self) -> bool:
        """It only waits."""
        return True

    def withdraw(self) -> None:
        """Wait no longer, and let the body come."""
        if self.over:
            return
        self.over = True
        self.request.held = False
        if self._paused and not self.connection.transport.is_closing():
            self.connection.flow.resume_reading()
