"""Forwarding: a node passes a request on to the node that owns its channel, and the answer back, both as they come.

Theory of operation. A :class:`Forward` is the exchange of a request that another node answers. It joins two connections
by callbacks alone: the client's, which calls :meth:`Forward.data` with chunks of the body, and the :class:`Upstream`,
which calls :meth:`Forward.received` with bytes of the answer. There is no task and no queue between them.

- *The request* is written anew: a head of our own, with one framing, and without the fields that are good for one
  connection only (RFC 9110, section 7.6.1). So nobody can make the owner see another request than this node has
  authorized. The head goes out at once, so a preconnect is one at the owner, too; chunks keep their bounds.
- *The answer's* head is written anew, too. Its body goes to the client as it came, chunk lines and trailers included:
  the parser runs beside it, to find the end. So a relayed chunk costs one read, one parse and one write.
- *Back-pressure.* While one side takes no more, the other one is not read. So a request holds at most one read of each
  side here: 256 KiB towards the owner (:data:`~.scheduling.TURN_BYTES`), :data:`RELAY_BYTES` towards the client.
- *Its end.* If the client goes, so does the connection to the owner, which therefore notices. If the owner goes, the
  client gets 503, or loses its connection if a part of the answer is out.

A connection to another node serves one request at a time, and then rests in the node's :class:`_Pool` for the next one.
While one is being made, the request is parked (:class:`~.exchange.Parked`), with the bounds of that. A connection that
rested may be closed by the owner in the moment in which it is used again: then the request is sent once more over a new
one, unless a byte of its body was sent, or a byte of the answer has come.

A channel may move while a publisher waits with its next segment (:mod:`~tricklecast.app.cluster.moving`). Its last
owner says so (:data:`MOVED`): then this node leaves it, and begins the request anew, with the new owner; but if a byte
of the body was sent, the last owner passes the request on.

A node that cannot be reached may have died a moment ago. Until its lease is over nobody may take its channels, so an
answer now could only be 503, and the client would come back too late or too early. The request waits instead: until the
directory says that the channel is elsewhere or free, or the node is reached after all, and looks then where to go.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import ClassVar, Final
from urllib.parse import unquote

import httptools

from tricklecast.app.cluster.peers import ChannelPlace, NodePlace, NodeUrl, Peers
from tricklecast.app.core.segment import encode_frame
from tricklecast.app.data_plane.client_address import FORWARDED_FOR
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.exchange import Caller, Exchange, Parked
from tricklecast.app.data_plane.handler import resolve
from tricklecast.app.data_plane.request import (
    CLUSTER,
    FACTS,
    TRUNCATED,
    Request,
    Via,
    content_length,
    expects_continue,
    has_body,
)
from tricklecast.app.data_plane.responses import Reply, unreachable_reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.data_plane.scheduling import NODE
from tricklecast.app.data_plane.stages import park, proceed
from tricklecast.app.listener import tune
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord, Figures, Op, Reason
from tricklecast.trickle.wire import Status

logger = logging.getLogger("tricklecast.cluster")

CONNECT_S: Final = 1.0
"""A node that takes no connection within this time cannot be reached."""

IDLE_S: Final = 30.0
"""A connection rests for this time; the other node would close it after ``keep_alive_s`` (75 s)."""

MAX_IDLE: Final = 64
"""Connections to one node that rest. Further ones are closed when their request is over."""

LOOK_S: Final = 0.05
"""How often it is looked whether requests still have to wait for a node that cannot be reached."""

REACHED: Final = -inf
"""Stands for the time at which a request is refused, when it need not wait any more."""

WAKE_BATCH: Final = 64
"""Waiting requests that go on in one turn of the event loop."""

LINGER_S: Final = 1.0
"""How long the owner has to take the last bytes of a body whose client has gone."""

RELAY_BYTES: Final = 64 << 10
"""Bytes of an answer that are read at a time."""

HEAD_BYTES: Final = 64 << 10
"""The longest head of an answer."""

PEER_TIMEOUT_S: Final = 5
"""The kernel gives up a node whose machine does not answer for this time. Its lease has ended before."""

_TLS_HIGH_WATER: Final = 64 << 10
_CONTINUE: Final = 100
_MOVED: Final = 102

MOVED: Final = b"HTTP/1.1 102 Moved\r\n\r\n"
"""An interim answer to a node, not to a client: the channel has another owner now. A node that does not know it goes on
waiting."""

_BODILESS: Final = (Status.NO_CONTENT, Status.NOT_MODIFIED)
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: the connection is reset when it is closed

_HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
    )
)
"""Fields that are good for one connection only."""

_NOT_FOR_CLIENTS: Final = _HOP_BY_HOP | {CLUSTER}

_OURS: Final = _HOP_BY_HOP | {
    *(b"host", b"content-length", b"expect", CLUSTER, FORWARDED_FOR),
    # This node has decided about these; the owner need not know them.
    *(b"authorization", b"origin"),
}
"""Fields of a request that this node writes itself, or leaves out."""

_LATEST: Final = wire.LATEST.lower().encode()
_CLOSED: Final = wire.CLOSED.lower().encode()
_NODE: Final = wire.NODE.lower().encode()
_RETRY_AFTER: Final = wire.RETRY_AFTER.lower().encode()


class Forward(Exchange):
    """The exchange of a request that another node answers.

    Args:
        pool: of that node. hops: the nodes that the request has passed, this one included.
        upstream: a connection to that node; it serves no request.
    """

    __slots__ = (
        "_announced", "_body_ended", "_chunks", "_close", "_coded", "_excess", "_fields", "_framed", "_hops",
        "_parser", "_pending", "_phrase", "_pool", "_preconnect", "_reason", "_received", "_request", "_sent",
        "_started", "_unsent", "_upstream", "_whole",
    )  # fmt: skip

    takes_body: ClassVar[bool] = True

    def __init__(
        self, pool: _Pool, connection: Caller, request: Request, hops: tuple[str, ...], upstream: Upstream
    ) -> None:
        super().__init__(connection, request)
        self._pool, self._hops = pool, hops
        self._upstream: Upstream | None = upstream  # until all of the answer is here, or nobody waits for it any more
        # The request.
        self._framed = has_body(request.headers)
        self._coded = b"transfer-encoding" in request.headers  # the body comes in chunks, and goes on in chunks
        self._body_ended = not self._framed
        self._announced = None if self._coded else content_length(request.headers)  # bytes of the body, if known
        self._received = 0  # bytes of the body
        self._unsent = [pool.head_for(request, hops, self.plane)]  # goes out with the body that comes in this turn
        # It may be sent once more, until this is None. An empty segment may have been stored, and cannot be again.
        is_safe = upstream.used and (self._framed or self.record.op != Op.PUBLISH)
        self._request = request if is_safe else None
        self._preconnect = request if self._framed else None  # until a byte of its body was sent
        # The answer.
        self._parser: httptools.HttpResponseParser | None = None  # from its first byte to its last one
        self._pending = b""  # a part of its head
        self._phrase = b""
        self._fields: list[tuple[bytes, bytes]] | None = []  # of its head; None behind that
        self._chunks: list[bytes] | None = None  # payload that has just come, for a client that knows no chunks
        self._sent = 0  # bytes of its body
        self._whole = self._excess = False  # its end is here; more is here
        self._close = False  # the client's connection closes after it
        self._reason = ""  # how it ended, as the owner says
        self._started = False  # its head is out to the client
        upstream.begin(self)
        asyncio.get_running_loop().call_soon(self._flush)

    @property
    def idle(self) -> bool:
        return self.answerable and not self._received

    @property
    def answerable(self) -> bool:
        return not self._started and self.ending is None

    # The request.

    def data(self, chunks: list[bytes]) -> None:
        """Pass chunks of the body on."""
        self._take(chunks)

    def body_ended(self, chunks: list[bytes]) -> None:
        """Pass the last chunks on, and the end."""
        if not self._body_ended:
            self._body_ended = True
            self._take(chunks, b"0\r\n\r\n" if self._coded else b"")

    def _take(self, chunks: list[bytes], end: bytes = b"") -> None:
        if self._upstream is None:
            return  # it is answered already
        self._request = self._preconnect = None
        self._received += sum(map(len, chunks))
        self._unsent += [encode_frame(chunks), end] if self._coded else chunks
        self._flush()

    def _flush(self) -> None:
        if self._upstream is not None and self._unsent:
            unsent, self._unsent = self._unsent, []
            self._upstream.send(unsent)

    # The answer.

    def received(self, data: bytes) -> None:
        """Pass bytes of the answer on.

        Raises:
            httptools.HttpParserError: they are none of an answer.
        """
        if self._fields is not None:
            self._read_head(data)
            return
        assert self._parser is not None, "it is there until the answer is whole"
        self._parser.feed_data(data)
        if self._chunks is not None:
            data, self._chunks = b"".join(self._chunks), []
        self._pass_on(data)

    def _read_head(self, data: bytes) -> None:
        self._request = None
        body = self._pending + data
        status = 0
        while status < Status.OK:  # none yet, or an interim one
            end = body.find(b"\r\n\r\n") + 4
            if end < 4:
                if len(body) > HEAD_BYTES:
                    raise httptools.HttpParserError("the head has no end")
                self._pending = body
                return
            if self._parser is None:
                self._parser = httptools.HttpResponseParser(self)
            parser, head, body = self._parser, body[:end], body[end:]
            parser.feed_data(head)
            status = parser.get_status_code()
            if status < Status.OK:
                if status == _MOVED and self._preconnect is not None:
                    self._begin_anew(self._preconnect)
                    return
                if status == _CONTINUE:
                    self.connection.invite_body()
                self._fields, self._phrase, self._whole = [], b"", False
        self._pending = b""
        line = self._head_of(status)
        if body and not self._whole:
            parser.feed_data(body)
        elif body:
            self._excess = True
        if self._chunks is not None:
            body, self._chunks = b"".join(self._chunks), []
        self._pass_on(line + body)

    def _begin_anew(self, request: Request) -> None:
        """The channel has another owner, and the request may go there."""
        assert request.route is not None, "it was forwarded"
        self._leave()
        proceed(self.connection, request, request.route, resolve)

    def _head_of(self, status: int) -> bytes:
        """The head of the answer as the client gets it."""
        fields, self._fields = self._fields, None
        assert fields is not None, "the head has just come"
        by_name = {name.lower(): value for name, value in fields}
        if status == Status.FORBIDDEN and CLUSTER not in by_name:
            raise httptools.HttpParserError("the node does not believe this one's signature")
        is_coded, is_bodiless = b"transfer-encoding" in by_name, self.head_only or status in _BODILESS
        if is_bodiless:
            self._whole = True  # the parser does not know what was asked
        elif not is_coded and b"content-length" not in by_name:
            raise httptools.HttpParserError("the answer has no framing")
        if is_coded and self.http10:
            self._chunks = []
        self._note(status, by_name)
        options = _tokens(by_name.get(b"connection", b""))
        self._close = b"close" in options or not self.keep_alive
        if b"close" in options and self._upstream is not None:
            self._upstream.closes = True
        left_out = options | (_HOP_BY_HOP if self.via is not None else _NOT_FOR_CLIENTS)
        lines = [b"HTTP/1.1 %d %b" % (status, self._phrase)]
        lines += [b"%b: %b" % field for field in fields if field[0].lower() not in left_out]
        if is_coded and not self.http10 and not is_bodiless:
            lines.append(b"transfer-encoding: chunked")
        if self._close:
            lines.append(b"connection: close")
        if _NODE not in by_name:
            lines.append(self._pool.named)
        lines += [f"{name}: {value}".encode("latin-1") for name, value in self.cors]
        return b"\r\n".join([*lines, b"", b""])

    def _note(self, status: int, fields: dict[bytes, bytes]) -> None:
        """Note the head of the answer in the access record."""
        record = self.record
        record.status = status
        record.wait_us = self.elapsed_us()
        record.eos = _CLOSED in fields or None
        if (wait := fields.get(_RETRY_AFTER, b"")).isdigit():
            record.retry_after_ms = int(wait[:9]) * 1000
        if isinstance(record, AccessRecord):
            record.answered_by = self._pool.node
        if (facts := fields.get(CLUSTER)) is not None:
            self._reason = read_facts(record, facts)
        elif status >= Status.BAD_REQUEST:
            self._reason = Reason.BAD_REQUEST if status < Status.SERVER_ERROR else Reason.ERROR
        if (head := fields.get(_LATEST, b"")).isdigit():
            record.next_seq = int(head[:16])

    def _pass_on(self, data: bytes) -> None:
        """Give the client bytes of the answer, which were parsed."""
        if self._excess:
            raise httptools.HttpParserError("more than one answer came")
        connection = self.connection
        self._started = True
        if data:
            connection.send(data)
        upstream = self._upstream
        if self._whole:
            self._leave()
            self.finish(self._reason or self._streamed(), close=self._close)
        elif connection.write_paused and upstream is not None and not upstream.transport.is_closing():
            upstream.transport.pause_reading()

    def _streamed(self) -> str:
        """How an answer ended whose owner could not tell it in the head."""
        if self.record.eos:
            return Reason.TERMINATED
        return Reason.SHUTDOWN if self.record.op == Op.STREAM else Reason.COMPLETE

    def writable(self) -> None:
        """Read on, since the client has taken all."""
        if self.ending is not None:
            super().writable()
        elif self._upstream is not None and not self._upstream.transport.is_closing():
            self._upstream.transport.resume_reading()

    # What the parser tells.

    def on_message_begin(self) -> None:
        self._excess = self._whole

    def on_status(self, phrase: bytes) -> None:
        self._phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer field."""
        if self._fields is not None:
            self._fields.append((name, value))
            return
        name = name.lower()
        if name == TRUNCATED:
            self._reason = value.decode("latin-1")
        elif name == _CLOSED:
            self.record.eos = True

    def on_body(self, body: bytes) -> None:
        self._sent += len(body)
        if self._chunks is not None:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        self._whole = True

    # Its end.

    def node_gone(self, *, for_good: bool = False) -> None:
        """The connection to the owner broke, or brought no answer.

        Args:
            for_good: the owner is not to be asked again.
        """
        request, connection = self._request, self.connection
        if request is not None and request.route is not None and not for_good:
            self._leave()
            self._pool.forwarding.retried += 1
            connection.exchange = self._pool.connect(connection, request, request.route, self._hops)
            return
        self._pool.forwarding.failed += 1
        if self.answerable:
            self.send_away(unreachable_reply(self.plane.jitter))
        else:
            connection.abort(Reason.UNREACHABLE)

    def lost(self, reason: str = Reason.CLIENT_GONE) -> None:
        if reason == Reason.EVICTED:
            self._sent = max(0, self._sent - self.connection.unsent())
        super().lost(reason)

    def withdraw(self) -> None:
        """Leave the connection to the owner."""
        if self._framed:
            self.record.bytes_in = self._received
        if self._started:
            self.record.bytes_out = self._sent
        self._leave()

    def _leave(self) -> None:
        upstream, self._upstream = self._upstream, None
        self._request = self._preconnect = self._parser = None  # the parser knows this exchange
        if upstream is not None:
            is_whole = self._whole and self._body_ended and not self._unsent
            # If the owner still waited for bytes of this body, it would take the next request for them.
            is_whole = is_whole and self._announced in (None, self._received)
            upstream.leave(is_whole=is_whole, is_waiting=not self._framed and not self._whole)
            self.connection.resume(NODE)


def read_facts(record: Figures, facts: bytes) -> str:
    """Take over what the owner says about a request (:func:`.request.facts_of`). Returns how the exchange ended."""
    reason = ""
    for fact in facts.decode("latin-1").split(";"):
        name, _, value = fact.partition("=")
        if name == "reason":
            reason = value
        elif name == "detail":
            record.detail = unquote(value)
        elif name in FACTS and value.isdigit():
            setattr(record, name, int(value[:16]))
    return reason


def _tokens(value: bytes) -> frozenset[bytes]:
    """The fields and options that ``Connection`` names."""
    return frozenset(map(bytes.strip, value.lower().split(b",")))


class Upstream(asyncio.BufferedProtocol):
    """A connection to another node.

    Args:
        pool: of the node. buffer: where bytes are read, shared with all other connections.

    Attributes:
        exchange: the request that it serves, if any.
        used: it has served a request before. closes: the node closes it after this one.
        rests_since: when it came to the pool, by the event loop's clock.
        write_paused: the transport holds bytes.
    """

    __slots__ = ("_buffer", "_fd", "_pool", "closes", "exchange", "rests_since", "transport", "used", "write_paused")

    transport: asyncio.Transport

    def __init__(self, pool: _Pool, buffer: memoryview) -> None:
        self._pool, self._buffer = pool, buffer
        self._fd = -1  # for writes straight to the socket; -1 under TLS, and without a connection
        self.exchange: Forward | None = None
        self.used = self.closes = self.write_paused = False
        self.rests_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        sock = transport.get_extra_info("socket")
        tune(sock, peer_timeout_s=PEER_TIMEOUT_S)
        if transport.get_extra_info("sslcontext") is None:
            self._fd = sock.fileno()
            transport.set_write_buffer_limits(high=0)  # see Connection.connection_made
        else:
            transport.set_write_buffer_limits(high=_TLS_HIGH_WATER)

    def begin(self, exchange: Forward) -> None:
        """Serve a request."""
        self.exchange = exchange
        self._pool.serving.add(self)

    def leave(self, *, is_whole: bool, is_waiting: bool) -> None:
        """Serve the request no longer.

        Args:
            is_whole: all of the request is out, and all of the answer is here.
            is_waiting: the owner has all of the request, which has no body: it takes the end of our half for that of a
                client that still waits for the answer, so the connection is reset.
        """
        self.exchange = None
        self._pool.serving.discard(self)
        if is_whole and not self.closes and not self.write_paused and not self.transport.is_closing():
            self.used = True
            self._pool.rest(self)
            return
        if is_waiting:
            if self._fd >= 0:
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
            return
        self.transport.close()  # when the rest of the body is written
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fd = -1
        self._pool.idle.pop(self, None)
        self._pool.serving.discard(self)
        if (exchange := self.exchange) is not None:
            try:
                exchange.node_gone()
            except Exception as error:
                exchange.failed(error)

    # Reading.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        exchange = self.exchange
        if exchange is None:  # nothing was asked
            self._pool.idle.pop(self, None)
            self.transport.abort()
            return
        try:
            exchange.received(bytes(self._buffer[:nbytes]))
        except httptools.HttpParserError as error:
            self._pool.forwarding.peers.warn("answer", f"node {self._pool.node} sent no valid answer: {error}")
            exchange.node_gone(for_good=True)
        except Exception as error:
            exchange.failed(error)

    # Writing.

    def send(self, buffers: list[bytes]) -> None:
        """Write, straight to the socket while the transport holds nothing."""
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        if self._fd >= 0 and not self.write_paused:
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                written = 0
            except OSError:
                return  # the node may have answered before it closed the connection: it is read to its end
            if written == len(data):
                return
            data = data[written:]
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.exchange is not None:
            self.exchange.connection.pause(NODE)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.connection.resume(NODE)


class _Pool:
    """The connections to one node.

    Attributes:
        node: its name. named: the field that tells clients its URL.
        idle: connections that rest, the one that has rested longest first. serving: those that serve a request.
        waiting: requests that found no way to the node, each with the time at which it is refused.
    """

    def __init__(self, forwarding: Forwarding, place: NodePlace) -> None:
        self.forwarding = forwarding
        self.node = place.node
        self.named = f"{wire.NODE}: {place.url}".encode("ascii")
        self.idle: dict[Upstream, None] = {}
        self.serving: set[Upstream] = set()
        self.waiting: dict[Parked, float] = {}
        self._url = NodeUrl.parse(place.url)
        self._tidying: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None

    def begin(self, connection: Caller, request: Request, route: Route, hops: tuple[str, ...]) -> Exchange:
        """The exchange of a request that goes to this node."""
        if self.idle:
            upstream, _ = self.idle.popitem()
            return Forward(self, connection, request, hops, upstream)
        return self.connect(connection, request, route, hops)

    def connect(self, connection: Caller, request: Request, route: Route, hops: tuple[str, ...]) -> Exchange:
        """Park a request until there is a new connection to this node."""
        found: list[Upstream] = []

        def go_on(connection: Caller, request: Request, route: Route) -> Reply | Exchange:
            if found:
                return Forward(self, connection, request, hops, found.pop())
            if self._is_at(route.channel):
                return self._wait(connection, request, route)
            return unreachable_reply(connection.plane.jitter)

        def connected(task: asyncio.Task[Upstream]) -> None:
            self.forwarding.connecting.discard(task)
            if task.cancelled():
                return
            if (error := task.exception()) is None and task.result().transport.is_closing():
                error = ConnectionResetError("it has closed the connection")
            if error is None:
                found.append(task.result())
                parked.go_on()
                for unwanted in found:
                    self.rest(unwanted)
                self.waiting = dict.fromkeys(self.waiting, REACHED)
                self._look()
            elif not isinstance(error, OSError):
                parked.failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            elif not parked.over:
                self.forwarding.failed += 1
                logger.info("node %s cannot be reached: %s", self.node, error or type(error).__name__)
                parked.go_on()

        parked = park(connection, request, route, ParkedFor.NODE, go_on)
        task = asyncio.get_running_loop().create_task(self._connect(connection.plane))
        self.forwarding.connecting.add(task)
        task.add_done_callback(connected)

        def cancel() -> None:
            task.cancel()

        parked.cancel = cancel
        return parked

    def _is_at(self, channel: str) -> bool:
        """Whether this node has a channel, as far as the directory knows, and may be alive."""
        place = self.forwarding.place(channel)
        return place is not None and place.reachable and self.forwarding.leads_to(self, place.url)

    def _wait(self, connection: Caller, request: Request, route: Route) -> Parked:
        """Let a request wait until this node is reached after all, or does not have the channel any more."""
        parked = park(connection, request, route, ParkedFor.NODE, resolve)
        loop = asyncio.get_running_loop()
        self.waiting[parked] = loop.time() + self.forwarding.waits_s

        def cancel() -> None:
            del self.waiting[parked]  # another dict by now, if the node was reached

        parked.cancel = cancel
        if self._looking is None:
            self._looking = loop.call_later(LOOK_S, self._look)
        return parked

    def _look(self) -> None:
        """See which of the requests that wait can go on, and let some of them do so in each turn of the event loop."""
        loop, woken = asyncio.get_running_loop(), 0
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        for parked, until in list(self.waiting.items()):
            route = parked.request.route
            if until == REACHED or route is None or not self._is_at(route.channel):
                parked.go_on()
                woken += 1
                if woken == WAKE_BATCH:
                    break
            elif loop.time() >= until:
                parked.send_away(unreachable_reply(parked.plane.jitter))
        if self.waiting:
            self._looking = loop.call_later(0 if woken == WAKE_BATCH else LOOK_S, self._look)

    async def _connect(self, plane: DataPlane) -> Upstream:
        upstream = Upstream(self, plane.turns.input[:RELAY_BYTES])
        tls = self.forwarding.tls() if self._url.tls else None
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: upstream, self._url.host, self._url.port, ssl=tls
                )
        except BaseException:
            if hasattr(upstream, "transport"):
                upstream.transport.abort()
            raise
        return upstream

    def head_for(self, request: Request, hops: tuple[str, ...], plane: DataPlane) -> bytes:
        """The head of a request as this node gets it."""
        parts = plane.router.match(request.target)
        assert parts is not None, "it has a route"
        _, mark, query = request.target.partition(b"?")
        target = b"/".join((self._url.base, *parts)) + mark + query
        headers, method = request.headers, request.method
        left_out = _OURS | _tokens(headers[b"connection"]) if b"connection" in headers else _OURS
        lines = [b"%b %b HTTP/1.1" % (method, target), b"host: " + self._url.authority]
        lines += [b"%b: %b" % field for field in headers.items() if field[0] not in left_out]
        if b"transfer-encoding" in headers:
            lines.append(b"transfer-encoding: chunked")
        elif (size := content_length(headers)) is not None:
            lines.append(b"content-length: %d" % size)
        if expects_continue(headers) and not request.http10:
            lines.append(b"expect: 100-continue")
        via = Via(hops, request.ip, request.certified, request.subject)
        lines.append(b"trickle-cluster: " + self.forwarding.peers.sign(method, target, via))
        return b"\r\n".join([*lines, b"", b""])

    def rest(self, upstream: Upstream) -> None:
        """Keep a connection for the next request."""
        loop = asyncio.get_running_loop()
        if len(self.idle) >= MAX_IDLE or upstream.transport.is_closing():
            upstream.transport.close()
            return
        upstream.rests_since = loop.time()
        upstream.transport.resume_reading()  # it may have been paused, and the end of the connection must be seen
        self.idle[upstream] = None
        if self._tidying is None:
            self._tidying = loop.call_later(IDLE_S, self._tidy)

    def _tidy(self) -> None:
        """Close connections that have rested for too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for upstream in list(self.idle):
            if now - upstream.rests_since < IDLE_S:
                break
            del self.idle[upstream]
            upstream.transport.close()
        oldest = next(iter(self.idle), None)
        self._tidying = None
        if oldest is not None:
            self._tidying = loop.call_at(oldest.rests_since + IDLE_S, self._tidy)

    def end(self) -> None:
        """Break all connections; their clients are told. Requests that wait look again where their channels are."""
        self._look()
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        for upstream in list(self.serving):
            if upstream.exchange is not None:
                upstream.exchange.node_gone(for_good=True)
        for upstream in list(self.idle):
            upstream.transport.abort()
        self.idle.clear()


class Forwarding:
    """The way of requests to other nodes.

    Args:
        peers: signs them.
        tls: for nodes that speak TLS; the default trusts the certificates that this machine trusts.
        place: knows where a channel is.
        waits_s: a request waits for this time if the owner of its channel cannot be reached, and may be alive.

    Attributes:
        by_node: requests that went to another node, by its name.
        failed: those that it did not answer, since it could not be reached or went away.
        retried: those that were sent once more, since a connection that had rested was closed.
        connecting: connections that are being made.
    """

    def __init__(
        self,
        peers: Peers,
        *,
        tls: ssl.SSLContext | None = None,
        place: Callable[[str], ChannelPlace | None] = lambda channel: None,
        waits_s: float = 0.0,
    ) -> None:
        self.peers, self.place, self.waits_s = peers, place, waits_s
        self.by_node: Counter[str] = Counter()
        self.failed = self.retried = 0
        self.connecting: set[asyncio.Task[Upstream]] = set()
        self._tls = tls
        self._pools: dict[str, _Pool] = {}  # by the node's URL

    @property
    def forwarded(self) -> int:
        """Requests that went to other nodes."""
        return self.by_node.total()

    def begin(self, connection: Caller, request: Request, route: Route, place: NodePlace) -> Reply | Exchange:
        """Let another node answer a request that is allowed and well formed."""
        hops = (self.peers.me,) if request.via is None else (*request.via.hops, self.peers.me)
        if (loop := self.peers.looped(hops)) is not None:
            return loop
        self.by_node[place.node] += 1
        pool = self._pools.get(place.url)
        if pool is None or pool.node != place.node:
            pool = self._pools[place.url] = _Pool(self, place)
        return pool.begin(connection, request, route, hops)

    def leads_to(self, pool: _Pool, url: str) -> bool:
        """Whether requests for a node with this URL use this pool."""
        return self._pools.get(url) is pool

    def lost(self, node: str) -> None:
        """A node is taken for dead: its clients here are told, and its connections are closed."""
        for url in [url for url, pool in self._pools.items() if pool.node == node]:
            self._pools.pop(url).end()

    def end(self) -> None:
        """Break all connections."""
        for task in list(self.connecting):
            task.cancel()
        for pool in self._pools.values():
            for parked in list(pool.waiting):
                parked.send_away(unreachable_reply(parked.plane.jitter))
            pool.end()
        self._pools.clear()

    def tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
