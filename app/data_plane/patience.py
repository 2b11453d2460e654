"""What a peer is not waited for: room for its connection, the rest of a request, or one that makes sense."""

from __future__ import annotations

import asyncio
from typing import Any

from tricklecast.app.core.limits import Limit
from tricklecast.app.data_plane.answers import limit_reply
from tricklecast.app.data_plane.connection import Connection
from tricklecast.app.data_plane.door import arrive, leave
from tricklecast.app.data_plane.replies import Reply
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status


class Patience(Connection):
    """A connection with an end in sight: it rests, owes the rest of a request, serves one, or is about to close.

    Attributes:
        handshake: of TLS, while it is not over: there is no transport yet.
        owing: the peer must send the rest of what it has begun within a time, since nobody waits for it
            (``DataPlane.unfinished``).
    """

    __slots__ = ("handshake", "owing")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.owing = False
        self.handshake: asyncio.Task[Any] | None = None

    def accepted(self, handshake: asyncio.Task[Any], address: Any) -> None:
        """It has come from this address, and has its place; when its TLS handshake is over it is made."""
        self.handshake = handshake
        arrive(self, address[0])

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.handshake is None:
            arrive(self, self.client[0] if self.client else None)
        self.handshake = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.plane.unfinished.pop(self, None)
        super().connection_lost(exc)
        leave(self)

    def busy(self) -> bool:
        """Whether something is being answered here, or nothing will be any more."""
        return self.exchange is not None or self.deaf or self.asgi_in_progress()

    def stay(self) -> None:
        """Something has begun: the connection rests no longer."""
        self.plane.resting.pop(self, None)
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()

    def owe_nothing(self) -> None:
        """What the peer had begun has arrived."""
        self.owing = False
        del self.plane.unfinished[self]

    def too_slow(self) -> None:
        """The peer has had the time that it may take for the rest of its request."""
        self.owe_nothing()
        self.reject(Status.REQUEST_TIMEOUT, "Request not complete in time", Reason.TIMEOUT)

    def rest_again(self) -> None:
        """Let the connection rest where a body that came after its answer has disturbed it."""
        resting = self.plane.resting
        if self not in resting and not self.busy():
            resting[self] = self.plane.clock() + self.timeout_keep_alive

    def expect_rest(self) -> None:
        """Bound the time for the rest of a request, if its beginning came and nothing else goes on here."""
        plane = self.plane
        if not self.mid_message and (self in plane.resting or self.timeout_keep_alive_task is not None):
            return
        if not (self.owing or self.busy()):
            self.stay()
            self.owing = True
            plane.unfinished[self] = plane.clock() + plane.options.head_timeout_s

    def reject(self, status: Status, text: str, reason: str = Reason.BAD_REQUEST) -> None:
        """What came in is no request that can be answered otherwise: say so, and close."""
        if self.deaf:
            return
        self.deaf = True
        reply = Reply(status, reason, body=text.encode("ascii"), close=True)
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            exchange = self.without_route()
            if self.asgi_in_progress():
                # The answer under way is another request's, and the connection's last.
                exchange.end(reason)
                self.cycle.keep_alive = False
            else:
                exchange.answer(reply)
        elif exchange.answerable:
            exchange.send_away(reply)
        else:
            exchange.lost(reason)
            self.transport.abort()

    def turn_away(self, limit: Limit) -> None:
        """Answer a connection that has not asked, and close it."""
        self.deaf = True
        self.without_route().answer(limit_reply(limit, self.plane.jitter, close=True))

    def failed(self, error: Exception) -> None:
        """Something of ours went wrong while a request was being parsed: that is no fault of the client's."""
        self.loop.call_exception_handler(
            {"message": "a request could not be served", "exception": error.__context__ or error}
        )
        if self.exchange is None:
            self.without_route().end(Reason.ERROR)
        self.abort(Reason.ERROR)
