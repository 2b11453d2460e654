"""One request at the gate: what it is about, and how it goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tricklecast.app.core.storm_guard import Answer
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.data_plane.guarded import held_back
from tricklecast.app.data_plane.tally import Record
from tricklecast.app.data_plane.waiting import Waiting
from tricklecast.trickle.records import Op

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.gate import Begin
    from tricklecast.app.data_plane.replies import Reply
    from tricklecast.app.data_plane.request import Request
    from tricklecast.app.data_plane.routes import Route


class Entry:
    """A request that wants to begin.

    Args:
        check: decides; whether it may begin now.

    Attributes:
        connection, request, record, channel, op: of the request.
        subject: whom its token was given to, as soon as that is known.
    """

    __slots__ = (
        "_begin",
        "_check",
        "_held",
        "_route",
        "_waiting",
        "channel",
        "connection",
        "op",
        "record",
        "request",
        "subject",
    )

    def __init__(
        self,
        connection: Connection,
        request: Request,
        route: Route,
        record: Record,
        begin: Begin,
        check: Callable[[Entry], bool],
    ) -> None:
        assert route.op is not None, "what asks for nothing is not asked for its rights"
        self.connection = connection
        self.request = request
        self.record = record
        self.op: Op = route.op
        self.channel = route.channel
        self.subject: str | None = None
        self._route = route
        self._begin = begin
        self._check = check
        self._held = False
        self._waiting: Waiting | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits, or has waited, for an answer from outside."""
        return self._waiting is not None

    @property
    def over(self) -> bool:
        """Whether nobody waits any more: the client has gone, or the server goes."""
        return self._waiting is not None and self._waiting.over

    def wait(self) -> None:
        """Let it wait; :meth:`begin` or :meth:`refuse` ends that."""
        if self._waiting is None:
            self._waiting = self.connection.exchange = Waiting(self.connection, self.request, self.record)

    def begin(self) -> None:
        """Begin what has waited."""
        assert self._waiting is not None, "it has waited"
        self._waiting.withdraw()
        self._begin(self.connection, self.request, self._route, self.record, self._waiting)

    def refuse(self, reply: Reply) -> bool:
        """Answer that it may not, at once or, if the client has heard it too often, later; always ``False``."""
        if self._waiting is not None:
            self._waiting.send_away(reply)
        elif self._held or not held_back(
            self.connection, self.request, self._route, self.record, Answer.REFUSED, self._again
        ):
            exchange = Exchange(self.connection, self.request, self.record)
            self.connection.exchange = exchange
            exchange.answer(reply)
        return False

    def _again(self, connection: Connection, request: Request, route: Route, record: Record, held: bool) -> None:
        """The storm guard has held it back; it is decided anew, as something may have changed."""
        self._held = held
        waited = connection.exchange
        assert waited is not None, "it was held until now"
        if self._check(self):
            self._begin(connection, request, route, record, waited)
