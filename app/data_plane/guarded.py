"""An answer that the storm guard holds back: the client has heard the like too often (docs/explanation/storm-guard.md).

What is held is the request, not its answer: when the hold is over the core is asked again, so that a client that
repeats itself until something changes is told of the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tricklecast.app.core.channel import Serve, Wait
from tricklecast.app.core.storm_guard import Answer
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.data_plane.identity import guarded_client, has_name
from tricklecast.app.data_plane.replies import Reply
from tricklecast.app.data_plane.routes import Route
from tricklecast.app.data_plane.tally import Record
from tricklecast.app.data_plane.waiting import Waiting
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.request import Request

MAX_GUARDED: Final = 20_000
"""Held at a time, 1 kB more each than a reader that waits; more are answered at once. One process answers no more
requests in the second that the longest hold takes, so that a loop cannot get there by asking."""


_READING: Final = frozenset({Op.READ, Op.CHANGES, Op.NEXT})
"""Many may do that to one channel. A channel has one publisher, and one who manages it."""

Again = Callable[["Connection", "Request", Route, Record, bool], None]
"""Asks the core once more, and answers; the last argument says that it was held."""


class Guarded(Waiting):
    """A request that is answered later, as any other is then.

    Args:
        hold_s: how much later, in seconds.
        again: called when the time is over.
    """

    __slots__ = ("_again", "_since", "_timer", "route")

    def __init__(
        self,
        connection: Connection,
        request: Request,
        route: Route,
        record: Record,
        hold_s: float,
        again: Again,
    ) -> None:
        super().__init__(connection, request, record)
        request.shrink(credentials=self.plane.access is not None)
        self.route = route
        self._since = self.plane.clock()
        self._again = again
        self.plane.guarded.add(self)
        self.plane.holds += 1
        self._timer = connection.loop.call_later(hold_s, self.release)

    def withdraw(self) -> None:
        """Wait no longer."""
        super().withdraw()
        self._timer.cancel()
        plane, now = self.plane, self.plane.clock()
        held_us = int((now - self._since) * 1_000_000)
        # How long the server takes is counted from here; the time before has a field of its own.
        self.arrived = self.request.arrived = now
        plane.guarded.discard(self)
        plane.held_us += held_us
        self.record.guard_ms = held_us // 1000

    def release(self) -> None:
        """The hold is over."""
        self.withdraw()
        self._again(self.connection, self.request, self.route, self.record, True)


def held_back(
    connection: Connection,
    request: Request,
    route: Route,
    record: Record,
    answer: Answer,
    again: Again,
    seq: int | None = None,
) -> bool:
    """Tell the guard of an answer that may bring its client nothing new.

    Args:
        again: see :class:`Guarded`.
        seq: what the answer is about; otherwise the seq that was asked for, as it was resolved.

    Returns:
        Whether the exchange is held now; otherwise it is to be answered at once.
    """
    plane = connection.plane
    if plane.guard is None or plane.registry.shutting_down:
        return False
    connection.watched = True
    if seq is None:
        seq = record.rseq if record.rseq is not None else route.seq or 0
    client = guarded_client(route.op, request.headers, request.ip)
    many = route.op in _READING and not has_name(request.headers)
    hold_s = plane.guard.hold(client, route.channel, answer, seq, plane.clock(), many=many)
    if not hold_s:
        return False
    if len(plane.guarded) >= MAX_GUARDED:
        plane.unheld += 1
        return False
    connection.exchange = Guarded(connection, request, route, record, hold_s, again)
    return True


def reads_again(
    connection: Connection,
    request: Request,
    route: Route,
    record: Record,
    found: Serve | Wait,
    again: Again,
) -> bool:
    """Tell the guard of a segment that is about to be served, as far as it must know.

    It need not know of readers that get on, request after request: only of the first one of a connection, of one after
    a fruitless answer, and of a closed segment that does not follow what this connection read last. (Whoever reads one
    that is still being written is paced by it.)

    Returns:
        Whether the exchange is held now; otherwise the segment is to be served.
    """
    segment = found.segment
    if segment.closed:
        seq = segment.seq
        where = hash((route.channel, found.channel.epoch))
        last = connection.last_read
        connection.last_read = (where, seq)
        if last is None or last[0] != where or last[1] >= seq:
            record.rseq = seq
            return held_back(connection, request, route, record, Answer.SAME, again)
    if connection.watched:
        gets_on(connection, request, route)
    return False


def done_in_vain(exchange: Exchange, request: Request, route: Route, reply: Reply, again: Again) -> bool:
    """Tell the guard of the answer to what is done at once, as far as it may bring its client nothing new.

    Returns:
        Whether the exchange is held now; otherwise it is to be answered at once.
    """
    record = exchange.record
    if reply.status >= Status.BAD_REQUEST:
        answer, about = fruitless(reply), None
    elif route.op is Op.NEXT:
        answer, about = Answer.KNOWN, record.next_seq
    elif route.op is Op.CREATE:
        answer, about = Answer.KNOWN, record.epoch
    else:
        return False
    return held_back(exchange.connection, request, route, record, answer, again, about)


def gets_on(connection: Connection, request: Request, route: Route) -> None:
    """A client of which the guard may know gets what it asks for."""
    guard = connection.plane.guard
    assert guard is not None, "nobody is watched without a guard"
    guard.progress(guarded_client(route.op, request.headers, request.ip), route.channel)
    connection.watched = False


def fruitless(reply: Reply) -> Answer:
    """Which kind of answer a reply is that brings its client nothing new."""
    match reply.status:
        case Status.NOT_FOUND:
            return Answer.MISSING
        case Status.SEQ_MISSING:
            return Answer.GONE if reply.reason == Reason.GONE else Answer.AHEAD
        case Status.CONFLICT:
            return Answer.CLOSED
        case Status.OK if reply.reason == Reason.TERMINATED:
            return Answer.ENDED
        case Status.OK if reply.reason == Reason.COMPLETE:
            return Answer.CLOSED
        case Status.OK:
            return Answer.EMPTY
        case _:
            return Answer.REFUSED
