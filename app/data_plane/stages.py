"""Steps that all stages of a request use: go on, wait, be delayed by the storm guard, be noted in the record.

The stages of segment routes are in :mod:`app.data_plane.handler`, those of HLS in :mod:`app.data_plane.players`. A
stage returns a reply or an exchange, and :func:`proceed` begins it: only there does a request get its exchange on the
connection, and only there is an exception of a stage handled.

The storm guard hears of each result that has no news for its client: the same segment again, a seq ahead of the head, a
refusal (:func:`delay`). A request is delayed at most once (``Request.held``). :mod:`app.core.storm_guard` has the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Cause, Refusal
from tricklecast.app.core.storm_guard import ReplyKind
from tricklecast.app.data_plane.client_address import CLIENT, guarded_client, has_name
from tricklecast.app.data_plane.context import ParkedFor
from tricklecast.app.data_plane.exchange import AwaitsStorage, Caller, Exchange, Parked
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.trickle.records import Op
from tricklecast.trickle.wire import Status

MAX_GUARDED: Final = 20_000
"""Requests that the storm guard delays at a time; each takes 1 kB more than a waiting reader. Further requests are
answered at once. One process answers fewer requests in the second that the longest delay takes, so a loop of clients
cannot reach this number."""

_MANY: Final = frozenset({Op.READ, Op.STREAM, Op.PLAYLIST, Op.HLS, Op.CLIP, Op.FEED, Op.CHANGES, Op.NEXT, None})
"""Operations that many clients behind one address make on one channel, wrong paths and methods included. All others are
those of a channel's one publisher or owner."""

Stage = Callable[[Caller, Request, Route], Reply | Exchange]
"""Answers a request, parks it, or hands it to the next stage."""


def proceed(connection: Caller, request: Request, route: Route, stage: Stage) -> None:
    """Take a request through the stages, from this one on, until one answers or parks it."""
    try:
        _respond(connection, request, stage(connection, request, route))
    except Exception as error:
        exchange = connection.exchange
        if exchange is None or exchange.record is not request.record:
            exchange = connection.exchange = Exchange(connection, request)
        exchange.failed(error)


def _respond(connection: Caller, request: Request, decision: Reply | Exchange) -> None:
    """Begin the exchange that a stage has decided on, or answer with its reply."""
    if isinstance(decision, Reply):
        if decision.status >= Status.BAD_REQUEST:
            tell("refused", decision.reason, connection, request)
        exchange = connection.exchange = Exchange(connection, request)
        exchange.answer(decision)
    else:
        connection.exchange = decision
        if type(decision) is Reader or isinstance(decision, (Reader, AwaitsStorage)):
            decision.begin()


def _resume(connection: Caller, request: Request, route: Route, stage: Stage) -> None:
    """Take a parked request on, at this stage."""
    parked = connection.exchange
    assert isinstance(parked, Parked), "the request was parked"
    parked.withdraw()
    proceed(connection, request, route, stage)
    if request.chunks or request.complete:
        connection.deliver(request)


def park(connection: Caller, request: Request, route: Route, why: ParkedFor, stage: Stage) -> Parked:
    """Let a request wait. When the wait is over, it goes on at this stage."""
    return Parked(connection, request, why, partial(_resume, connection, request, route, stage))


# The storm guard.


def delay(
    connection: Caller, request: Request, route: Route, kind: ReplyKind, about: int, stage: Stage
) -> Parked | None:
    """Tell the storm guard of a response that may have no news for its client; park the request if the guard says so.

    Args:
        about: the seq, head or epoch of the response.
        stage: the stage at which the request goes on after the delay.
    """
    plane = connection.plane
    guard = plane.guard
    if guard is None or request.held or plane.registry.shutting_down:
        return None
    connection.watched = True
    client = guarded_client(route.op, request.headers, request.ip)
    many = route.op in _MANY and not has_name(request.headers)
    subject = route.channel or plane.router.subject(request.target)
    delay_s = guard.hold(client, subject, kind, about, plane.clock(), many=many)
    if not delay_s:
        return None
    if len(plane.parked[ParkedFor.GUARD]) >= MAX_GUARDED:
        plane.unheld += 1
        return None
    plane.holds += 1
    tell("held", kind.name.lower(), connection, request)
    request.held = True
    parked = park(connection, request, route, ParkedFor.GUARD, stage)
    request.shrink(credentials=plane.authorizer is not None, forwards=plane.cluster is not None)
    parked.wait(delay_s)
    return parked


def progress(connection: Caller, request: Request, route: Route) -> None:
    """Tell the storm guard that a client of which it may know has made progress."""
    guard = connection.plane.guard
    if guard is not None:
        guard.progress(guarded_client(route.op, request.headers, request.ip), route.channel)
    connection.watched = False


def kind_of(refusal: Refusal) -> ReplyKind:
    """The storm guard's kind of a refusal."""
    match refusal.why:
        case Cause.NOT_FOUND | Cause.ENDED:
            return ReplyKind.MISSING
        case Cause.AHEAD:
            return ReplyKind.AHEAD
        case Cause.CLOSED:
            return ReplyKind.CLOSED
        case _:
            return ReplyKind.REFUSED


# The access record, and the witness.


def tell(kind: str, why: str, connection: Caller, request: Request) -> None:
    """Tell the plane's witness, if any, of a refused or delayed request."""
    if (witness := connection.plane.witness) is not None:
        channel = request.route.channel if request.route is not None else ""
        witness.note(kind, why, channel, request.headers.get(CLIENT, b""), request.ip)


def noted(request: Request, registry: Registry, route: Route, reply: Reply) -> Reply:
    """Answer with this reply, and note the channel's epoch and head."""
    note_head(request, registry, route)
    return reply


def when_stored(connection: Caller, request: Request, route: Route, reply: Reply) -> Reply | Exchange:
    """Answer a publisher whose request is done, as soon as storage has it."""
    registry = connection.plane.registry
    note_head(request, registry, route)
    if connection.plane.durability is None:
        return reply
    return AwaitsStorage(connection, request, reply, registry.channels.get(route.channel))


def note_head(request: Request, registry: Registry, route: Route) -> None:
    """Note the channel's epoch and head in the access record."""
    channel = registry.channels.get(route.channel)
    if channel is not None:
        request.record.epoch = channel.epoch
        request.record.next_seq = channel.next_seq
