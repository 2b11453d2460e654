"""Temporary: the present data plane's `Gate` on top of an `Authorizer`. It goes with the rewrite of the data plane.

It owns what the authorizer leaves to the data plane: a request that waits for a decision, refusals that the storm
guard delays, and the end of an exchange whose permission has expired.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tricklecast.app.core.guard import Answer
from tricklecast.app.data_plane.authorization import Authorizer, Granted, Pending, Refused
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.data_plane.guarded import held_back
from tricklecast.app.data_plane.publish import Publish
from tricklecast.app.data_plane.replies import EXPIRED
from tricklecast.app.data_plane.tally import Record
from tricklecast.app.data_plane.waiting import Waiting
from tricklecast.trickle.records import Reason

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.gate import Begin
    from tricklecast.app.data_plane.request import Request
    from tricklecast.app.data_plane.routes import Route


@dataclass(slots=True)
class _Attempt:
    """One request, and how it begins once it is granted. ``held``: the storm guard has delayed it already."""

    connection: Connection
    request: Request
    route: Route
    record: Record
    begin: Begin
    held: bool = False


class _Undecided(Waiting):
    """Stands for a request while the decision about it is pending."""

    __slots__ = ("_pending",)

    def __init__(self, attempt: _Attempt, pending: Pending) -> None:
        super().__init__(attempt.connection, attempt.request, attempt.record)
        self._pending = pending

    def withdraw(self) -> None:
        """Wait no longer: there is a decision, or the client or the server has gone."""
        super().withdraw()
        self._pending.cancel()


class AuthorizeAdapter:
    """Admits the requests that an authorizer grants.

    Args:
        authorizer: decides.
        wall: seconds since the epoch.
    """

    def __init__(self, authorizer: Authorizer, wall: Callable[[], float] = time.time) -> None:
        self._authorizer = authorizer
        self._wall = wall
        self._expires_at: dict[Connection, float] = {}

    def admits(self, connection: Connection, request: Request, route: Route, record: Record, begin: Begin) -> bool:
        """Whether a request may begin now. If not, it was refused, or waits and will be begun by ``begin``."""
        if route.op is None or route.error:
            return True  # the answer says what is wrong with the request
        # The token of the running request counts, not that of an earlier one on the connection.
        self._expires_at.pop(connection, None)
        return self._decide(_Attempt(connection, request, route, record, begin))

    def left(self, connection: Connection) -> None:
        """A connection is closed."""
        self._expires_at.pop(connection, None)

    def tick(self) -> None:
        """End the exchanges whose permission has expired."""
        now = self._wall()
        for connection in [connection for connection, at in self._expires_at.items() if at <= now]:
            del self._expires_at[connection]
            if connection.exchange is not None:
                _expire(connection.exchange)

    def _decide(self, attempt: _Attempt) -> bool:
        decision = self._authorizer.authorize(attempt.request)
        match decision:
            case Pending():
                waiting = attempt.connection.exchange = _Undecided(attempt, decision)
                decision.then(lambda decision: self._decided(attempt, waiting, decision))
                return False
            case Granted():
                self._note(attempt, decision)
                return True
            case Refused(reply):
                self._note(attempt, decision)
                connection, request, record = attempt.connection, attempt.request, attempt.record
                if attempt.held or not held_back(
                    connection, request, attempt.route, record, Answer.REFUSED,
                    lambda *_: self._decide_again(attempt),
                ):  # fmt: skip
                    connection.exchange = Exchange(connection, request, record)
                    connection.exchange.answer(reply)
                return False

    def _decided(self, attempt: _Attempt, waiting: Waiting, decision: Granted | Refused) -> None:
        """A decision was pending, and is there."""
        self._note(attempt, decision)
        match decision:
            case Granted():
                waiting.withdraw()
                attempt.begin(attempt.connection, attempt.request, attempt.route, attempt.record, waiting)
            case Refused(reply):
                waiting.send_away(reply)

    def _decide_again(self, attempt: _Attempt) -> None:
        """The storm guard has delayed a refusal; meanwhile something may have changed."""
        attempt.held = True
        waited = attempt.connection.exchange
        assert waited is not None, "the storm guard has held it until now"
        if self._decide(attempt):
            attempt.begin(attempt.connection, attempt.request, attempt.route, attempt.record, waited)

    def _note(self, attempt: _Attempt, decision: Granted | Refused) -> None:
        attempt.record.client = decision.subject or attempt.record.client
        if isinstance(decision, Granted) and decision.expires_at < math.inf:
            self._expires_at[attempt.connection] = decision.expires_at


def _expire(exchange: Exchange) -> None:
    """End an exchange whose permission has expired.

    A client that has not been sent anything gets an answer. A reader in the middle of a segment is cut off without a
    final chunk, so that it does not take the part for the whole. A segment that was being written closes as truncated.
    """
    if not exchange.answerable:
        exchange.connection.abort(Reason.EXPIRED)
        return
    written = exchange.writer if isinstance(exchange, Publish) and exchange.received else None
    exchange.send_away(EXPIRED)
    if written is not None:
        written.channel.close_segment(written.segment.seq, exchange.plane.clock(), truncate=True)
