"""A request on a segment route, from its head to its response: admit → authorize → resolve → respond.

:func:`begin` takes a request through the stages; each hands the request to the next one, or returns a :class:`Reply`
to answer it, or a :class:`Parked` exchange, with which it waits and later goes on at a stage that is named there.

- **admit**: the limits of connections and of each client.
- **authorize**: the origin of a web page, the token, the webhook. In a cluster the node that the client has come to
  authorizes; a node to which a request is passed on believes that node's signature.
- **resolve**: the core's result. If it has no news for the client, the storm guard may delay the request first; then
  the core is asked again, so that the response has the changes of that time. A node of a cluster forwards requests that
  only another node can answer, or lets them wait until it can answer them itself.
- **respond**: a whole reply, a :class:`~app.data_plane.reader.Reader`, or an :class:`~app.data_plane.upload.Upload`.

A stage has no side effect that a second call would repeat, since a parked request may come to it again: the core
reserves a segment only when it returns a writer, and a client's place is counted once.

How a request goes from one stage to the next, waits and is delayed is in :mod:`app.data_plane.stages`.
"""

from __future__ import annotations

import re
from typing import Final, assert_never

from tricklecast.app.core.limits import Limit
from tricklecast.app.core.registry import Registry, Resolution
from tricklecast.app.core.results import Ahead, AlreadyStored, Ended, Gone, Refusal
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Channel, Found
from tricklecast.app.core.storm_guard import ReplyKind
from tricklecast.app.data_plane.authorization import Granted, Refused
from tricklecast.app.data_plane.client_address import (
    FORWARDED_FOR,
    MAX_TEXT,
    client_of,
    identity,
)
from tricklecast.app.data_plane.clips import answer_clip
from tricklecast.app.data_plane.context import Elsewhere, ParkedFor
from tricklecast.app.data_plane.exchange import Caller, Exchange, Parked
from tricklecast.app.data_plane.feeds import send_feed
from tricklecast.app.data_plane.players import answer_player
from tricklecast.app.data_plane.ranges import span_of
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.request import (
    CLUSTER,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    EPOCH,
    EXPECT_CONTENT,
    IDEMPOTENCY_KEY,
    IF_IDLE,
    LEAVE,
    LIFE,
    RANGE,
    RESET,
    TRUNCATED,
    Request,
    expects_continue,
    has_body,
)
from tricklecast.app.data_plane.responses import (
    ENDS_CONNECTION,
    MISDIRECTED,
    ORIGIN_REFUSED,
    Reply,
    empty_reply,
    ended_reply,
    head_reply,
    limit_reply,
    missing_reply,
    next_reply,
    options_reply,
    path_reply,
    refusal_reply,
    stored_reply,
    tag_of,
    too_large,
)
from tricklecast.app.data_plane.routing import Route, hint_for
from tricklecast.app.data_plane.stages import (
    Stage,
    delay,
    kind_of,
    note_head,
    noted,
    park,
    proceed,
    progress,
    tell,
    when_stored,
)
from tricklecast.app.data_plane.stream import Stream
from tricklecast.app.data_plane.upload import Upload, store_half_chunks
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord, Figures, Op, Reason
from tricklecast.trickle.wire import Status, parse_life

MAX_OVERTAKEN: Final = 256
"""POSTs that wait for POSTs that they have overtaken; further ones are refused at once. Each holds a connection that is
not read from, and the bytes of its body that came with its head."""

LOOKS: Final = 6
"""The core is asked this often again about a POST that has overtaken others, each time after twice the time. The times
(1 + 2 + 4 + … shares) add up to ``overtaking_grace_s``."""

MAX_EPOCH_DIGITS: Final = 15
"""The same limit as for a seq."""

_PRINTABLE: Final = re.compile(rb"[\x20-\x7e\t]*")

_READ, _CHANGES, _PUBLISH = Op.READ, Op.CHANGES, Op.PUBLISH


def begin(connection: Caller, request: Request) -> None:
    """Take a request on a segment route through the stages. Its head has arrived; its body may follow."""
    plane = connection.plane
    route = request.route
    assert route is not None, "the request is for a segment route"
    request.arrived = plane.clock()
    ip = connection.peer
    if connection.proxied and ip is not None:
        ip = plane.proxies.client(ip, request.text(FORWARDED_FOR))
    request.ip = ip
    request.certified = connection.certified
    stage: Stage = _admit
    if plane.cluster is not None and CLUSTER in request.headers:
        stage = _pass_on(connection, request, plane.cluster)
    elif b"origin" in request.headers:
        request.cors = plane.cors.decide(request.method, request.headers, connection.scheme)
    if plane.sink is None:
        request.record = Figures()
        request.record.op = route.op
    else:
        request.record = request.begin_record(
            ts_us=plane.wall_us(), node=plane.node, ip=request.ip, conn=connection.number
        )
        _name(request, request.certified)
    if (via := request.via) is not None:
        _name(request, via.subject)
        if isinstance(request.record, AccessRecord):
            request.record.via = via.hops[-1]
    proceed(connection, request, route, stage)


def _pass_on(connection: Caller, request: Request, cluster: Elsewhere) -> Stage:
    """Take the client of a request from the node that has passed it on. Returns the stage that comes first."""
    sender = cluster.sender(request)
    if isinstance(sender, Reply):
        refusal = sender

        def refuse(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
            return delay(connection, request, route, ReplyKind.REFUSED, 0, refuse) or refusal

        return refuse
    connection.from_node()
    request.via, request.ip, request.certified = sender, sender.ip, sender.certified
    return _admit


# Admit.


def _admit(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Refuse a request that exceeds a limit of its connection or its client."""
    plane = connection.plane
    if connection.surplus is None and plane.admission.clients is None:
        return _authorize(connection, request, route)
    limit = connection.admit(request.ip)
    if limit is None:
        return _authorize(connection, request, route)
    if limit not in ENDS_CONNECTION and (parked := delay(connection, request, route, ReplyKind.REFUSED, 0, _admit)):
        return parked
    wait_s = plane.admission.wait_s(limit)
    return limit_reply(limit, plane.jitter, close=route.op is Op.PUBLISH, wait_s=wait_s)


# Authorize.


def _authorize(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Refuse a request that is for another host, or that its origin, its token or the webhook does not allow."""
    authorizer = connection.plane.authorizer
    if request.via is not None:
        return resolve(connection, request, route)  # the first node has authorized it
    if not connection.plane.hosts.allow(request.headers.get(b"host")):
        return delay(connection, request, route, ReplyKind.REFUSED, 0, _authorize) or MISDIRECTED
    if not request.cors.allowed:
        return delay(connection, request, route, ReplyKind.REFUSED, 0, _authorize) or ORIGIN_REFUSED
    if authorizer is None or route.op is None or route.error or request.method == b"OPTIONS":
        return resolve(connection, request, route)  # it answers a wrong path; a preflight has no token
    decision = authorizer.authorize(request)
    if isinstance(decision, Granted):
        _grant(connection, request, decision)
        return resolve(connection, request, route)
    if isinstance(decision, Refused):
        _name(request, decision.subject)
        return delay(connection, request, route, ReplyKind.REFUSED, 0, _authorize) or decision.reply
    parked = park(connection, request, route, ParkedFor.AUTHORIZATION, resolve)

    def decided(decision: Granted | Refused) -> None:
        if isinstance(decision, Refused):
            _name(request, decision.subject)
            tell("refused", decision.reply.reason, connection, request)
            parked.send_away(decision.reply)
        else:
            _grant(connection, request, decision)
            parked.go_on()

    parked.cancel = decision.cancel
    decision.then(decided)
    return parked


def _grant(connection: Caller, request: Request, granted: Granted) -> None:
    _name(request, granted.subject)
    connection.plane.permit(connection, granted)


def _name(request: Request, subject: str | None) -> None:
    """Replace the client's own name in the record by its signed name."""
    if subject:
        request.record.client = request.subject = subject


# Resolve.


def resolve(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Hand the request to the function of its operation, or to the node of its channel.

    A request that was parked by the cluster goes on here.
    """
    op = route.op
    if not route.error:
        if (sources := connection.plane.sources) is not None:
            waits: Reply | Exchange | None = sources.answer(connection, request, route)
            if waits is not None:
                return waits
        if (cluster := connection.plane.cluster) is not None and op is not None:
            elsewhere: Reply | Exchange | None = cluster.answer(connection, request, route)
            if elsewhere is not None:
                return elsewhere
        if op is _READ or op is _CHANGES:
            return _read(connection, request, route)
        if op is _PUBLISH:
            return _publish(connection, request, route)
        if op is Op.STREAM:
            return _stream(connection, request, route)
        if op is Op.PLAYLIST or op is Op.HLS:
            return answer_player(connection, request, route)
        if op is Op.CLIP:
            return answer_clip(connection, request, route)
        if op is Op.FEED:
            return send_feed(connection, request, route)
    return _manage(connection, request, route)


# Reading.


def _read(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Ask the core for a segment."""
    plane = connection.plane
    record = request.record
    assert route.seq is not None, "a read names a seq"
    resolution = _resolved(connection, route.channel, route.seq)
    follows = parse_life(request.text(LIFE)) if LIFE in request.headers else None
    if follows is not None and not isinstance(resolution, Refusal):
        channel = plane.registry.channels[route.channel]
        if (other := channel.renumbered(follows, route.seq, resolution, _epoch_of(request))) is not None:
            record.rseq = other.seq
            return _not_there(connection, request, route, other)
    if isinstance(resolution, Found):
        channel, segment = resolution.channel, resolution.segment
        record.rseq = segment.seq
        is_watched = plane.guard is not None and not request.held and (segment.closed or connection.watched)
        if is_watched and (parked := _repeats(connection, request, route, channel, segment)):
            return parked
        if segment.closed and not segment.size:
            note_head(request, plane.registry, route)
            return empty_reply(channel, segment)
        if segment.closed and (found := span_of(connection, request, channel, segment)) is not None:
            return found
        if request.method == b"HEAD":
            return _head(connection, request, route, resolution)
        if plane.turns.flows:
            plane.turns.request_came(channel)
        return Reader(connection, request, resolution)
    return _not_there(connection, request, route, resolution)


def _resolved(connection: Caller, channel: str, seq: int) -> Resolution:
    """Resolve a seq. Beyond the limit of readers, one whose client may be gone is broken, to make room."""
    registry = connection.plane.registry
    resolution = registry.resolve(channel, seq)
    if not isinstance(resolution, Refusal):
        return resolution
    limit = resolution.limit
    if limit in (Limit.READERS, Limit.CHANNEL_READERS) and connection.break_half_closed(limit, channel):
        return registry.resolve(channel, seq)
    return resolution


def _stream(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Ask the core for the first segment of a stream. Segments that are gone are left out, and counted."""
    plane = connection.plane
    assert route.seq is not None, "a stream starts at a seq"
    resolution = _resolved(connection, route.channel, route.seq)
    left_out = 0
    while isinstance(resolution, Gone):
        left_out += resolution.following - resolution.seq
        resolution = plane.registry.resolve(route.channel, resolution.following)
    if not isinstance(resolution, Found):
        return _not_there(connection, request, route, resolution)
    channel, segment = resolution.channel, resolution.segment
    request.record.rseq = segment.seq
    is_watched = plane.guard is not None and not request.held and (segment.closed or connection.watched)
    if is_watched and (parked := _repeats(connection, request, route, channel, segment)):
        return parked
    if request.method == b"HEAD":
        return _head(connection, request, route, resolution)
    plane.turns.request_came(channel)
    return Stream(connection, request, resolution, left_out)


# Segments that are not there.


def _not_there(
    connection: Caller, request: Request, route: Route, resolution: Ahead | Gone | Ended | Refusal
) -> Reply | Parked:
    """Answer that the segment does not exist yet, or any more, or never will."""
    plane = connection.plane
    assert route.seq is not None, "a read names a seq"
    match resolution:
        case Ahead(seq):
            kind, about, reply = ReplyKind.AHEAD, seq, missing_reply(resolution, route.seq, plane.jitter)
        case Gone(seq):
            kind, about, reply = ReplyKind.GONE, seq, missing_reply(resolution, route.seq, plane.jitter)
        case Ended(seq, head):
            request.record.rseq = seq
            kind, about, reply = ReplyKind.ENDED, head, ended_reply(resolution)
        case Refusal():
            kind, about, reply = kind_of(resolution), route.seq, refusal_reply(resolution, route.op, plane.jitter)
        case _:
            assert_never(resolution)
    return _delay(connection, request, route, kind, about) or noted(request, plane.registry, route, reply)


def _repeats(connection: Caller, request: Request, route: Route, channel: Channel, segment: Segment) -> Parked | None:
    """Tell the storm guard of a segment that is about to be served, unless the client plainly makes progress.

    It does if it reads one closed segment after another over one connection. A reader of an open segment is paced by
    the publisher.
    """
    if segment.closed:
        epoch = hash((route.channel, channel.epoch))
        last = connection.last_read
        connection.last_read = epoch, segment.seq
        if last is None or last[0] != epoch or last[1] >= segment.seq:
            kind = ReplyKind.SAME if segment.size else ReplyKind.EMPTY
            # Another range of the segment is news.
            asked = request.headers.get(RANGE)
            about = segment.seq if asked is None else hash((segment.seq, asked))
            return _delay(connection, request, route, kind, about)
    if connection.watched and request.method != b"HEAD":
        progress(connection, request, route)
    return None


def _head(connection: Caller, request: Request, route: Route, found: Found) -> Reply | Parked:
    """Answer a HEAD at once. It never waits, so only the storm guard paces a client that repeats it."""
    channel, segment = found.channel, found.segment
    channel.release(segment)
    if not segment.closed and (parked := _delay(connection, request, route, ReplyKind.KNOWN, segment.seq)):
        return parked
    registry = connection.plane.registry
    tag = tag_of(channel, segment)
    return noted(request, registry, route, head_reply(channel, segment, found.head, tag))


# Publishing.


def _publish(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Ask the core for the right to write a segment."""
    plane = connection.plane
    registry = plane.registry
    assert route.seq is not None, "a publish names a seq"
    headers = request.headers
    reply = _unacceptable(request, route, registry)
    if reply is None and EPOCH in headers:
        reply = _of_another_epoch(connection, request, route)
    if reply is not None:
        return _delay(connection, request, route, ReplyKind.REFUSED, route.seq) or noted(
            request, registry, route, reply
        )
    upload = Upload(connection, request)
    key = request.text(IDEMPOTENCY_KEY) if IDEMPOTENCY_KEY in headers else ""
    reserved = registry.reserve(
        route.channel,
        route.seq,
        upload,
        plane.clock(),
        content_type=request.text(CONTENT_TYPE),
        reset=RESET in headers and bool(request.text(RESET)),
        key=key or None,
        attempt=request.attempt() if key else 1,
        claim=parse_life(request.text(LIFE)) if LIFE in headers else None,
        client=identity(headers, request.ip),
        if_idle=IF_IDLE in headers and bool(request.text(IF_IDLE)),
        payer=f"subject {request.subject}" if request.subject else client_of(request.ip or ""),
    )
    if isinstance(reserved, Refusal):
        if reserved.overtaking and request.looks < LOOKS and len(plane.parked[ParkedFor.OVERTAKEN]) < MAX_OVERTAKEN:
            parked = park(connection, request, route, ParkedFor.OVERTAKEN, resolve)
            parked.wait(registry.limits.overtaking_grace_s / (2**LOOKS - 1) * 2**request.looks)
            request.looks += 1
            return parked
        kind, reply = kind_of(reserved), refusal_reply(reserved, route.op, plane.jitter)
        if reserved.occupied is not None:
            request.record.detail = " ".join(filter(None, reserved.occupied.client))
    elif isinstance(reserved, AlreadyStored):
        delayed = _delay(connection, request, route, ReplyKind.CLOSED, route.seq)
        return delayed or when_stored(connection, request, route, stored_reply(reserved))
    else:
        upload.begin(reserved)
        if connection.watched:
            progress(connection, request, route)
        if expects_continue(headers) and not request.http10:
            connection.invite_body()
        return upload
    return _delay(connection, request, route, kind, route.seq) or noted(request, registry, route, reply)


def _unacceptable(request: Request, route: Route, registry: Registry) -> Reply | None:
    """Refuse a POST by its head alone; ``None`` if the core may be asked."""
    headers = request.headers
    for name, what in ((CONTENT_TYPE, "Content-Type"), (IDEMPOTENCY_KEY, "Idempotency-Key")):
        if name in headers and not _is_plain(headers[name]):
            return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=f"Invalid {what}".encode(), close=True)
    if CONTENT_ENCODING in headers and (coding := request.text(CONTENT_ENCODING).lower()) not in ("", "identity"):
        # Readers would be told nothing of it, and could not read the bytes.
        body = f"Content-Encoding {coding[:32]!r} is not kept: send the body without one".encode()
        return Reply(Status.UNSUPPORTED, Reason.BAD_REQUEST, body=body, close=True)
    size = request.length
    if size is not None and size > registry.limits.segment_bytes:
        assert route.seq is not None, "a publish names a seq"
        fields = ((wire.SEQ, registry.would_write(route.channel, route.seq)),)
        body = too_large(registry.limits.segment_bytes)
        return Reply(Status.TOO_LARGE, Reason.TOO_LARGE, fields, body, close=True)
    return None


def _of_another_epoch(connection: Caller, request: Request, route: Route) -> Reply | None:
    """Refuse a write whose epoch is not the channel's, or is no number; else ``None``."""
    if EPOCH not in request.headers:
        return None
    publishes = route.op is Op.PUBLISH
    if (epoch := _epoch_of(request)) is None:
        body = f"Invalid {wire.EPOCH}: not a number".encode()
        return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=body, close=publishes)
    plane = connection.plane
    refusal = plane.registry.refuse_other_epoch(route.channel, epoch)
    return None if refusal is None else refusal_reply(refusal, route.op, plane.jitter)


def _epoch_of(request: Request) -> int | None:
    """The epoch that a client means; ``None`` if it says none, or no number."""
    text = request.text(EPOCH)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_EPOCH_DIGITS else None


def _is_plain(value: bytes) -> bool:
    """Whether a header's value may be stored and sent to readers."""
    return len(value) <= MAX_TEXT and _PRINTABLE.fullmatch(value) is not None


# Requests that are answered at once and take no body.


def _manage(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
    """Create or end a channel, close a segment, answer with the head; or refuse a wrong path or method."""
    plane = connection.plane
    registry = plane.registry
    if request.method == b"OPTIONS" and not route.not_found:
        return options_reply(route)
    if (reply := path_reply(route)) is not None:
        if request.method == b"HEAD":
            return reply
        kind = ReplyKind.MISSING if reply.status == Status.NOT_FOUND else ReplyKind.REFUSED
        return _delay(connection, request, route, kind, 0) or reply
    now = plane.clock()
    done: Reply | Refusal | Channel | None
    match route.op:
        case Op.DELETE | Op.CLOSE_SEGMENT if (reply := _of_another_epoch(connection, request, route)) is not None:
            done = reply
        case Op.CREATE:
            if has_body(request.headers):
                # The body is meant for a segment: here it would be lost.
                body = f"Unexpected body: {hint_for(route.channel)}".encode()
                done = Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=body, close=True)
            elif not _is_plain(request.headers.get(EXPECT_CONTENT, b"")):
                done = Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=b"Invalid Expect-Content")
            else:
                done = registry.create(route.channel, request.text(EXPECT_CONTENT), now)
        case Op.DELETE:
            store_half_chunks(registry.live(route.channel))
            beside = identity(request.headers, request.ip) if request.text(IF_IDLE) else None
            done = registry.end(route.channel, now, if_idle_beside=beside)
        case Op.CLOSE_SEGMENT:
            assert route.seq is not None, "closing names a seq"
            store_half_chunks(registry.live(route.channel), route.seq)
            truncate = bool(request.text(TRUNCATED))
            leaver = identity(request.headers, request.ip) if request.text(LEAVE) else None
            done = registry.close_segment(route.channel, route.seq, now, truncate=truncate, leaver=leaver)
        case _:
            done = registry.find(route.channel)
    if isinstance(done, Reply):
        kind, about, reply = ReplyKind.REFUSED, 0, done
    elif isinstance(done, Refusal):
        kind, about, reply = kind_of(done), 0, refusal_reply(done, route.op, plane.jitter)
    elif done is None:  # a channel was ended or a segment closed, which is news
        return when_stored(connection, request, route, Reply(Status.OK, Reason.COMPLETE))
    elif route.op is Op.CREATE:
        parked = _delay(connection, request, route, ReplyKind.KNOWN, done.epoch)
        return parked or when_stored(connection, request, route, Reply(Status.OK, Reason.COMPLETE))
    else:
        kind, about, reply = ReplyKind.KNOWN, done.next_seq, next_reply(done)
    return _delay(connection, request, route, kind, about) or noted(request, registry, route, reply)


def _delay(connection: Caller, request: Request, route: Route, kind: ReplyKind, about: int) -> Parked | None:
    """Delay a request that was authorized, if the storm guard says so; then the core is asked again."""
    return delay(connection, request, route, kind, about, resolve)
