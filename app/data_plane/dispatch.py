"""A request on a segment route: ask the core, and answer or begin to relay."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tricklecast.app.core.channel import Serve, Wait
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import AlreadyStored, Ended, Refusal
from tricklecast.app.core.segment import Writer
from tricklecast.app.core.storm_guard import Answer
from tricklecast.app.data_plane.answers import (
    ENDS_CONNECTION,
    head_reply,
    limit_reply,
    next_reply,
    path_reply,
    read_reply,
    refusal_reply,
    stored_reply,
)
from tricklecast.app.data_plane.door import ask
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.app.data_plane.guarded import done_in_vain, fruitless, gets_on, held_back, reads_again
from tricklecast.app.data_plane.head import content_length, expects_continue
from tricklecast.app.data_plane.identity import FORWARDED_FOR, MAX_TEXT
from tricklecast.app.data_plane.overtaking import MAX_OVERTAKING, Overtaking
from tricklecast.app.data_plane.publish import Publish
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.replies import CONTINUE, PREFLIGHT, Reply
from tricklecast.app.data_plane.request import CONTENT_TYPE, EXPECT_CONTENT, IDEMPOTENCY_KEY, RESET, TRUNCATED, Request
from tricklecast.app.data_plane.routes import Route
from tricklecast.app.data_plane.tally import Record, Tally
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection

_READ, _CHANGES, _PUBLISH = Op.READ, Op.CHANGES, Op.PUBLISH
_PRINTABLE: Final = re.compile(rb"[\x20-\x7e\t]*")


def begin(connection: Connection, request: Request) -> None:
    """Begin the exchange of a request whose head has arrived; its body may follow."""
    plane = connection.plane
    route = request.route
    ip = connection.peer
    if connection.proxied and ip is not None:
        ip = plane.proxies.client(ip, request.text(FORWARDED_FOR))
    request.ip = ip
    if plane.sink is None:
        record: Record = Tally(route.op)
    else:
        record = request.record(ts_us=plane.wall_us(), node=plane.node, ip=ip, conn=connection.number)
    if connection.surplus is not None or plane.admission.clients is not None:
        _ask(connection, request, route, record)
    elif plane.access is None or plane.access.admits(connection, request, route, record, _begin_late):
        _begin(connection, request, route, record)


def _ask(connection: Connection, request: Request, route: Route, record: Record, held: bool = False) -> None:
    """Begin an exchange if there is room for one more of this client.

    Args:
        held: the storm guard has held it back until now.
    """
    plane = connection.plane
    limit = ask(connection, request.ip)
    if limit is None:
        if plane.access is None or plane.access.admits(connection, request, route, record, _begin_late):
            _begin(connection, request, route, record)
        if held:
            _deliver_late(connection, request)
        return
    wait_s = plane.admission.wait_s(limit)
    reply = limit_reply(limit, plane.jitter, close=route.op is Op.PUBLISH, wait_s=wait_s)
    if held or limit in ENDS_CONNECTION or not held_back(connection, request, route, record, Answer.REFUSED, _ask):
        exchange = connection.exchange = Exchange(connection, request, record)
        exchange.answer(reply)


def _begin(connection: Connection, request: Request, route: Route, record: Record) -> None:
    """Begin an exchange that may be."""
    if not route.error and (route.op is _READ or route.op is _CHANGES):
        _read(connection, request, route, record)
    elif not route.error and route.op is _PUBLISH:
        _publish(connection, request, route, record)
    else:
        _do(connection, request, route, record)


def _begin_late(connection: Connection, request: Request, route: Route, record: Record, waited: Exchange) -> None:
    """Begin an exchange that had to wait; its body, or a part of it, may be there."""
    request.arrived = waited.arrived
    _begin(connection, request, route, record)
    _deliver_late(connection, request)


def _deliver_late(connection: Connection, request: Request) -> None:
    """What has arrived of a body goes to whom it is for, if it is taken at all."""
    publish = request.publish
    if publish is not None and connection.exchange is publish:
        _deliver(publish, request)
    elif not request.held:
        request.chunks.clear()


def _deliver(publish: Publish, request: Request) -> None:
    """Give a publish what has arrived of its body while it could not take it."""
    if request.complete:
        publish.body_ended(request.take())
    elif request.chunks:
        publish.data(request.take())


def _read(connection: Connection, request: Request, route: Route, record: Record, held: bool = False) -> None:
    """Serve a segment, or say why not.

    Args:
        held: the storm guard has held it back until now.
    """
    plane = connection.plane
    assert route.seq is not None, "a read names a seq"
    resolution = plane.registry.resolve(route.channel, route.seq)
    answer = read_reply(resolution, route, plane.jitter)
    first = not held and plane.guard is not None
    kind = None
    if isinstance(answer, Serve | Wait):
        closed = answer.segment.closed
        relayed = request.method != b"HEAD"
        heard = first and (closed or (connection.watched and relayed))
        if heard and reads_again(connection, request, route, record, answer, _read):
            return
        if relayed:
            reader = Reader(connection, request, record, answer)
            connection.exchange = reader
            reader.begin()
            return
        answer.channel.release(answer.segment)
        # It never waits, so that nobody is paced by it; what is closed the guard has heard of.
        answer, first, kind = head_reply(answer), first and not closed, Answer.KNOWN
    about = None
    match resolution:
        case Serve() | Wait():
            record.rseq = resolution.segment.seq
        case Ended():
            record.rseq, about = resolution.seq, resolution.head
    if first and held_back(connection, request, route, record, kind or fruitless(answer), _read, about):
        return
    exchange = Exchange(connection, request, record)
    connection.exchange = exchange
    _place(exchange, plane.registry, route)
    exchange.answer(answer)


def _publish(connection: Connection, request: Request, route: Route, record: Record, held: bool = False) -> None:
    """Take a segment in, or say why not.

    Args:
        held: the storm guard has held it back until now.
    """
    publish = Publish(connection, request, record)
    connection.exchange = publish
    reply = _unacceptable(request, route, connection.plane.registry)
    if reply is None:
        reserved = _reserve(publish, request, route)
        overtaking = isinstance(reserved, Refusal) and reserved.overtaking and not held
        if overtaking and len(connection.plane.overtaking) < MAX_OVERTAKING:
            connection.exchange = Overtaking(connection, request, record, lambda waited: _publish_again(waited, route))
            return
        reply = _begin_writing(publish, request, reserved, route)
    if reply is not None:
        _refuse(publish, request, route, reply, held)
    elif held:
        _deliver(publish, request)


def _publish_again(waited: Overtaking, route: Route) -> None:
    """Try once more to publish what has overtaken others."""
    connection, request = waited.connection, waited.request
    publish = Publish(connection, request, waited.record)
    publish.arrived = waited.arrived
    reserved = _reserve(publish, request, route)
    if isinstance(reserved, Refusal) and reserved.overtaking and waited.wait_longer():
        return
    waited.withdraw()
    connection.exchange = publish
    reply = _begin_writing(publish, request, reserved, route)
    if reply is not None:
        _refuse(publish, request, route, reply)
    else:
        _deliver(publish, request)


def _refuse(publish: Publish, request: Request, route: Route, reply: Reply, held: bool = False) -> None:
    """Answer a POST whose body is not taken, now or later."""
    connection, record = publish.connection, publish.record
    if not held and held_back(connection, request, route, record, fruitless(reply), _publish):
        return
    _place(publish, connection.plane.registry, route)
    publish.answer(reply)


def _do(connection: Connection, request: Request, route: Route, record: Record, held: bool = False) -> None:
    """Whatever is done at once and has no segment's body.

    Args:
        held: the storm guard has held it back until now.
    """
    exchange = Exchange(connection, request, record)
    connection.exchange = exchange
    reply = PREFLIGHT if request.method == b"OPTIONS" else path_reply(route)
    reply = reply or _manage(connection.plane.registry, exchange, request, route)
    if held or not done_in_vain(exchange, request, route, reply, _do):
        exchange.answer(reply)


def _reserve(publish: Publish, request: Request, route: Route) -> Writer | AlreadyStored | Refusal:
    plane = publish.plane
    assert route.seq is not None, "a publish names a seq"
    key = request.text(IDEMPOTENCY_KEY) or None
    return plane.registry.reserve(
        route.channel,
        route.seq,
        publish,
        plane.clock(),
        content_type=request.text(CONTENT_TYPE),
        reset=RESET in request.headers and bool(request.text(RESET)),
        key=key,
        attempt=1 if key is None else request.attempt(),
    )


def _begin_writing(
    publish: Publish, request: Request, reserved: Writer | AlreadyStored | Refusal, route: Route
) -> Reply | None:
    """Take the body in, if the core gave a token; otherwise the answer."""
    match reserved:
        case Refusal():
            return refusal_reply(reserved, route, publish.plane.jitter)
        case AlreadyStored():
            return stored_reply(reserved)
    request.publish = publish
    publish.begin(reserved)
    if publish.connection.watched:
        gets_on(publish.connection, request, route)
    if expects_continue(request.headers) and not request.http10:
        publish.connection.send(CONTINUE)
    return None


def _unacceptable(request: Request, route: Route, registry: Registry) -> Reply | None:
    """The answer to a POST whose head is already wrong; ``None`` if it may go to the core."""
    for name, what in ((CONTENT_TYPE, "Content-Type"), (IDEMPOTENCY_KEY, "Idempotency-Key")):
        if name in request.headers and not _is_plain(request.headers[name]):
            return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=f"Invalid {what}".encode(), close=True)
    assert route.seq is not None, "a publish names a seq"
    size = content_length(request.headers)
    if size is not None and size > registry.limits.segment_bytes:
        headers = ((wire.SEQ, registry.would_write(route.channel, route.seq)),)
        return Reply(Status.TOO_LARGE, Reason.TOO_LARGE, headers, b"Segment too large", close=True)
    return None


def _is_plain(value: bytes) -> bool:
    """Whether a header's value can be stored, and sent on to readers."""
    return len(value) <= MAX_TEXT and _PRINTABLE.fullmatch(value) is not None


def _manage(registry: Registry, exchange: Exchange, request: Request, route: Route) -> Reply:
    """Create, end, close, and tell the head."""
    plane = exchange.plane
    now = plane.clock()
    outcome: object
    match route.op:
        case Op.CREATE:
            if not _is_plain(request.headers.get(EXPECT_CONTENT, b"")):
                return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=b"Invalid Expect-Content")
            outcome = registry.create(route.channel, request.text(EXPECT_CONTENT), now)
        case Op.DELETE:
            outcome = registry.end(route.channel, now)
        case Op.CLOSE_SEGMENT:
            assert route.seq is not None, "closing names a seq"
            truncate = bool(request.text(TRUNCATED))
            outcome = registry.close_segment(route.channel, route.seq, now, truncate=truncate)
        case _:
            found = registry.find(route.channel)
            outcome = found if isinstance(found, Refusal) else next_reply(found)
    _place(exchange, registry, route)
    if isinstance(outcome, Refusal):
        return refusal_reply(outcome, route, plane.jitter)
    return outcome if isinstance(outcome, Reply) else Reply(Status.OK, Reason.COMPLETE)


def _place(exchange: Exchange, registry: Registry, route: Route) -> None:
    """Note in the record which life of the channel it was about, and where its head stood."""
    channel = registry.channels.get(route.channel)
    if channel is not None:
        exchange.record.epoch = channel.epoch
        exchange.record.next_seq = channel.next_seq
