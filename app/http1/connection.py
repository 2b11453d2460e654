"""One connection of one client: input is parsed, requests are served one after the other, and each state has an end.

Theory of operation. All work is done in callbacks of the event loop: input arrives, the socket takes output again, the
connection is lost, a deadline is over. The parser (httptools) runs over one read, in slices, and each thing that it
finds (a head, a body, an end) is handed on at once. So a connection has no task, no buffer of its own and no timer, and
one that waits takes a few hundred bytes.

- *A GET*: ``buffer_updated`` → ``_parse`` → ``_feed`` → ``on_headers_complete`` makes a :class:`Request`, and
  :func:`~app.data_plane.handler.begin` takes it through the stages. Its exchange becomes ``exchange``, writes through
  the methods under "Writing", and calls ``complete``, which begins the next request.
- *A POST* goes the same way. Its body follows: ``on_body`` collects a chunk, and ``deliver`` gives the chunks of one
  read to the exchange.
- *A request of the control plane* goes to :mod:`app.http1.asgi_bridge` when it is whole.
- *A request behind an unfinished exchange* (pipelining) waits in the queue. Beyond :data:`QUEUE_REQUESTS` the
  connection is not read.
- *Input that cannot be framed, is too large or comes too slowly* begins no exchange: ``reject`` answers it in its turn.

A connection is in one of four states. It *rests* between requests (``keep_alive_s``), *owes* the rest of a request
while nothing else goes on (``head_timeout_s``), serves an exchange, or is *deaf*: it is about to close, and ignores its
input. Beside that, its peer may have closed its half, and still wait for a response (``half_closed_s``).

The rules of the methods that the data plane calls stand at its two protocols of a connection,
:class:`~app.data_plane.scheduling.Peer` and :class:`~app.data_plane.exchange.Caller`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from time import perf_counter, thread_time
from typing import Any, Final, Protocol

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from tricklecast.app.core.limits import Client, Limit
from tricklecast.app.core.segment import payload_of
from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.data_plane.client_address import (
    FORWARDED_FOR,
    certified_name,
    client_of,
    forwarded_for,
    peer_of,
    plain,
)
from tricklecast.app.data_plane.context import DataPlane, Elsewhere, Serve
from tricklecast.app.data_plane.exchange import Exchange, Parked
from tricklecast.app.data_plane.handler import begin
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.request import Request, content_length, expects_continue, facts_of, has_body
from tricklecast.app.data_plane.responses import (
    Reply,
    ResponseHead,
    busy_reply,
    half_closed_reply,
    limit_reply,
    shutdown_reply,
)
from tricklecast.app.data_plane.scheduling import DEAR_S, LEAST_TURN_BYTES, MORE, QUEUE, TURN_BYTES
from tricklecast.app.data_plane.upload import Upload
from tricklecast.app.http1.asgi_bridge import AsgiExchange, Hosting, has_path
from tricklecast.app.http1.framing import HOST_TEXT, NO_REQUEST, FramingGuard, joined, objection
from tricklecast.app.http1.switched import PROTOCOL, Switched
from tricklecast.app.http1.writer import CONTINUE, end, whole
from tricklecast.app.http1.writer import begin as begin_response
from tricklecast.trickle import wire
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

UNSPLIT: Final = 32 << 10
"""A published chunk of at most this many bytes reaches readers as one chunk (docs/reference/protocol.md, section 4)."""

UNREAD_BYTES: Final = 64 << 10
"""Longest body of a request whose body nobody reads, the control plane's included. The largest useful one is 1 kB."""

SLICE_BYTES: Final = 16 << 10
"""Input is parsed in slices of this size. Between two of them the connection can stop; within one the parser cannot."""

TURN_REQUESTS: Final = 32
"""Requests that one connection may begin in one turn of the event loop. A read may hold thousands of them."""

MOVABLE_BYTES: Final = 3 * SLICE_BYTES
"""One read of a connection that may move to another worker: the rest of the read goes with it in one message."""

QUEUE_REQUESTS: Final = 64
QUEUE_BYTES: Final = 64 << 10
"""How much may be pipelined behind an unfinished exchange, heads included, before the connection is neither read nor
parsed. The slice in which that happens may add more: 16 KiB of heads, or of a body."""

MAX_SURPLUS: Final = 64
"""Connections beyond a limit that are kept until they have asked. They are there for health checks, metrics and the
API, which must answer when everything else is full; on segment routes they are refused. One that asks nothing makes
room for a newer one, so that such connections cannot keep an operator out."""

FEW_CHUNKS: Final = 64
"""A read of at most this many chunks costs its publisher nothing but parsing: to hand them on is work for its readers.
More of them, below 32 bytes each in the smallest reads, take long to store, too."""

KEPT_PARSERS: Final = 256
"""Connections that keep their parser (1.1 kB) while their client waits or is being sent something."""

JOINED_BYTES: Final = 4 << 10
"""A frame up to this size is copied behind its head: that takes less time than a system call with several buffers."""

TLS_HIGH_WATER: Final = 64 << 10

_END: Final = re.compile(rb"\r(?:\n\r\n)")  # with this group the search is three times as fast
_END_BEFORE: Final = re.compile(rb"\n\r\n|\r\n|\n")
"""The end of a head, or of a chunked body; and what input begins with if such an end is split between two reads."""

_FRAMING: Final = re.compile(rb"\r\n(?:[Cc]ontent-[Ll]ength: ?([0-9]{1,15})|[Tt]ransfer-[Ee]ncoding: ?chunked)(?:\r\n)")
"""The field that says how a body is framed, as it is written by most. The parser refuses a head that has two."""

_HOP_BY_HOP: Final = frozenset({b"upgrade", b"connection", b"http2-settings"})

_ALONE: Final = "Nothing else may be asked for on this connection"

_NO_FIELDS: Final[list[tuple[bytes, bytes]]] = []
"""Shared by all connections that parse no head; never added to."""


WAITS_S: Final[tuple[float, ...]] = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 0.64, 0.64, 0.64)
"""A request for another worker that takes no connection now, since thousands move at once or it stands still, is tried
again after these times, each more or less by half; then it is refused, after 3 s in all."""


class Neighbours(Protocol):
    """The way to the other workers of a server, as :class:`app.workers.handover.HandOver` has it.

    Attributes:
        me: this worker's number.
    """

    me: int

    def is_ours(self, head: memoryview, at: int) -> bool:
        """Whether the request that begins here in the input is known to be for this worker, as most are."""

    def worker_for(self, head: bytes | memoryview, number: int | None) -> int | None:
        """The worker that a request is for, by the beginning of its head; ``None``: more of it is needed.

        Args:
            number: of the connection. It picks one of several workers that hold the channel. ``None``: this worker is
                to answer, if it holds the channel.
        """

    def move(self, connection: Connection, worker: int, data: bytes, *, last: bool) -> bool:
        """Hand over a connection that begins a request; ``False`` if the worker does not take it now.

        Args:
            data: bytes of the request that were read already.
            last: there is no further try: if this one fails, the request is refused.
        """


class Endpoint:
    """An address at which a server listens. It makes the connections (uvicorn's ``http=`` option).

    Args:
        plane: what all connections share.
        number: of the address, from 0.
        routes: whether there are segment routes at this address, or only the control plane.
        neighbours: the other workers of the server, if it has any.
    """

    def __init__(
        self, plane: DataPlane, number: int = 0, *, routes: bool = True, neighbours: Neighbours | None = None
    ) -> None:
        self.plane = plane
        self.number = number
        self.neighbours = neighbours
        self.turn_bytes = TURN_BYTES if neighbours is None else MOVABLE_BYTES  # that one connection may read in a turn
        self.routes = routes
        self.hosting: Hosting  # of the connection that was accepted last; all have the same

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        """A new connection, as uvicorn asks for it."""
        self.hosting = Hosting(config, server_state, app_state)
        return Connection(self)


class Connection(asyncio.BufferedProtocol):
    """A connection. The event loop knows it as a protocol, exchanges know it as a ``Caller``."""

    __slots__ = (
        "_arrival", "_at_half_close", "_body_left", "_guard", "_half_closed_sent", "_handed_on_s", "_has_left",
        "_headers", "_more", "_parser", "_parses_rest", "_partial", "_partial_size", "_queue", "_queued_bytes",
        "_rejection", "_request", "_turn_bytes", "_turn_requests", "_unread", "_upgrade", "_url", "_waits",
        "_with_head", "asking", "certified", "client_here", "deaf", "endpoint", "exchange", "fd", "half_closed",
        "handshake", "last_read", "mid_message", "number", "pauses", "peer", "plane", "proxied", "surplus", "tls",
        "transport", "watched", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport  # there is none before a TLS handshake is over

    def __init__(self, endpoint: Endpoint) -> None:
        plane = endpoint.plane
        self.endpoint = endpoint  # where it was accepted
        self.plane = plane  # what all connections share
        self.number = next(plane.connection_numbers)  # counts the connections of this server
        self.exchange: Exchange | None = None  # in progress
        # Its client.
        self.peer: str | None = None  # the address at its other end
        self.proxied = False  # that is a trusted proxy, which names its clients
        self.tls = False  # its client speaks TLS, to this process or to another worker
        # If another worker has handed it over, until its first request is here: the client's address, and the bytes of
        # that request that came with it.
        self._arrival: tuple[str | None, bytes] | None = None
        self.certified: str | None = None  # the name in its client's certificate, where clients must show one
        self.client_here: Client | None = None  # where clients are told apart, and it is not proxied
        self.asking: Client | None = None  # the client of the exchange in progress, where clients are told apart
        self.surplus: Limit | None = None  # the limit that it exceeds: its requests on segment routes are refused
        self._has_left = False  # it has given its place among the limits back
        self.watched = plane.guard is not None  # the storm guard is told when the client gets on
        self.last_read: tuple[int, int] | None = (
            None  # of a closed segment, for the storm guard: its epoch, as a hash, and its seq
        )
        # Its state.
        self.handshake: asyncio.Task[Any] | None = None  # of TLS, while it is not over
        self.mid_message = False  # the peer has not finished the request that it is sending
        self.deaf = False  # it is about to close, and its input is ignored
        self.half_closed = False  # the peer sends no more, and is owed the answer to what it has sent
        # When the peer closed its half, and the exchange whose client had been sent nothing by then, if there was one.
        self._at_half_close: tuple[float, Exchange | None] = (0.0, None)
        self._half_closed_sent = 0  # bytes that its reader had been sent when it was looked at last
        # Writing.
        self.fd = -1  # the socket, for writing straight to it while the transport holds nothing; -1 under TLS
        self.write_paused = False  # the transport holds bytes that the peer has not taken
        # Reading.
        self.pauses = 0  # why it is not read from: reasons of app.data_plane.scheduling
        self._turn_bytes = endpoint.turn_bytes  # how much may be read in one turn; less while its input is dear
        # Seconds of processor time that handing on the chunks of the last read took. Measured if reads are shortened.
        self._handed_on_s = 0.0
        self._more = b""  # input that waits for this connection's next turn, or behind its queue
        self._parses_rest = False  # more of the input that waited may follow
        self._turn_requests = 0  # requests that it has begun in this turn of the loop
        # Parsing.
        self._guard = NO_REQUEST  # against bytes that are no payload
        self._parser: httptools.HttpRequestParser | None = None  # none while a client only waits
        self._url = b""  # of the head that is being parsed
        self._headers = _NO_FIELDS  # of the head that is being parsed
        self._request: Request | None = None  # whose body is being parsed
        self._partial: list[bytes] | None = None  # the bytes that have arrived of a chunk, and their number
        self._partial_size = 0
        self._unread = 0  # bytes of a body that nobody takes
        self._waits = 0  # how often its request has waited for its worker
        # Where there are other workers: bytes of a body with a length that are not parsed yet, or that came with its
        # head. They show where the next request begins, which may be for another worker.
        self._body_left = self._with_head = 0
        self._upgrade: list[bytes] | None = None  # a head that offers another protocol, without the offer
        # The refusal of input that is no request. It is sent when the requests before it are answered.
        self._rejection: tuple[Status, str, str, bool] | None = None  # the last: whether that is a HEAD, without a body
        # Pipelining.
        self._queue: deque[Request] | None = None  # requests behind the exchange in progress
        self._queued_bytes = 0  # of their heads and bodies

    # Lifetime.

    def accepted(self, handshake: asyncio.Task[Any], address: Any) -> None:
        """The connection came from this address and has its place; its TLS handshake follows."""
        self.handshake = handshake
        self._arrive(peer_of(address))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        plane = self.plane
        plane.connections.add(self)
        plane.timeouts.resting[self] = plane.clock() + plane.timeouts.rest_s
        arrival = self._arrival
        if transport.get_extra_info("sslcontext") is None:
            self.fd = transport.get_extra_info("socket").fileno()
            # Pause as soon as the kernel's buffer is full, and resume when ours is empty: `write_paused` then means
            # "the transport holds bytes", and a slow reader costs its position instead of a copy.
            transport.set_write_buffer_limits(high=0)
        else:
            transport.set_write_buffer_limits(high=TLS_HIGH_WATER)
            self.tls = True
            self.certified = certified_name(transport.get_extra_info("peercert"))
        if self.handshake is None:
            ip = None if arrival is None else arrival[0]
            self._arrive(ip or peer_of(transport.get_extra_info("peername")))
        self.handshake = None
        if arrival is not None and arrival[1]:
            # The event loop begins to read after this, and it can be told to pause only then: until then, read little.
            self._more, self._turn_bytes = arrival[1], 1
            asyncio.get_running_loop().call_soon(self._parse_arrival)

    def arrives(self, ip: str | None, certified: str | None, *, tls: bool, data: bytes) -> None:
        """Another worker hands it over. Call this before it has a transport.

        Args:
            ip: of the client; ``None``: the socket tells it. certified: the name in the client's certificate.
            tls: whether the client speaks TLS, to the other worker. data: bytes of its request that were read there.
        """
        self._arrival = ip, data
        self.certified, self.tls = certified, tls

    def moved(self, to: asyncio.Protocol | None = None) -> None:
        """Forget it here, since another worker has it.

        Args:
            to: under TLS, gets the transport, which stays here and is not read from. ``None``: the socket is closed
                here, and stays open there.
        """
        if to is None:
            self.deaf = True
            self.transport.abort()
            return
        self.transport.pause_reading()
        self.transport.set_protocol(to)
        to.connection_made(self.transport)
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        plane = self.plane
        self._queue = None
        self._more = b""
        # Guarded alone: the exchange must hear that its client is gone, whatever its body meets.
        plane.guarded("while a connection was closed", self.deliver_rest)
        try:
            plane.slow_peers.flowing(self)
            exchange, self.exchange = self.exchange, None
            if exchange is not None:
                self._backdate(exchange)
                exchange.lost()
        except Exception as error:
            plane.fault("while a connection was closed", error)
        finally:
            self.deaf = True
            self.fd = -1
            self.pauses = 0
            plane.connections.discard(self)
            plane.timeouts.forget(self)
            plane.pipelined.discard(self)
            plane.expiring.pop(self, None)
            # These know this connection: without this, each cycle would stay until a full garbage collection.
            self._request = None
            self._drop_parser()
            self._at_half_close = (0.0, None)
            self.leave()

    def leave(self) -> None:
        """Give the connection's place back."""
        if self._has_left:
            return
        self._has_left = True
        plane = self.plane
        client, self.client_here = self.client_here, None
        if self.surplus is None:
            plane.admission.disconnect(client)
        else:
            plane.surplus.pop(self, None)
        if client is not None and plane.admission.clients is not None:
            plane.admission.clients.release(client)

    def abort(self, reason: str = Reason.SHUTDOWN) -> None:
        """Break the connection; an exchange on it ends with this reason."""
        exchange, self.exchange = self.exchange, None
        self.deaf = True
        try:
            if exchange is not None:
                exchange.lost(reason)
        finally:
            self.transport.abort()

    def close(self) -> None:
        """Close when all is written. A peer that may still be sending is read from for a moment longer."""
        self.deaf = True
        if self._more:
            self._more, self.mid_message = b"", True
            self.resume(MORE)
        if not self.mid_message:
            self.transport.close()
            return
        if self.transport.can_write_eof() and not self.tls:
            self.transport.write_eof()
        asyncio.get_running_loop().call_later(self.plane.options.linger_s, self.transport.close)

    def cut_off(self, why: Cut) -> None:
        """The peer does not read: break the connection without a final chunk, so that a part does not look whole."""
        exchange = self.exchange
        unsent = self.unsent()
        if (witness := self.plane.witness) is not None:
            channel = None if exchange is None else exchange.channel_name
            witness.note("cut_off", why, channel or "", ip=self.peer)
        if isinstance(exchange, AsgiExchange):
            if (record := exchange.untaken) is not None:
                record.detail = why
                record.bytes_out = max(0, (record.bytes_out or 0) - unsent)
        else:
            if exchange is None:
                exchange = self.exchange = self.without_route()
            exchange.record.detail = why
            if isinstance(exchange, Reader):
                exchange.sent = max(0, exchange.sent - unsent)
        self.abort(Reason.EVICTED)

    def end_permission(self, reply: Reply) -> None:
        """The token of its request has expired, or was revoked, as this reply says: end the exchange.

        A client that has not been sent anything is told. A reader in the middle of a segment is cut off without a final
        chunk, so that it cannot take the part for the whole; a segment that was being written closes as truncated.
        """
        exchange = self.exchange
        if exchange is None or isinstance(exchange, AsgiExchange):
            return
        if not exchange.answerable:
            self.abort(reply.reason)
        elif isinstance(exchange, Upload):
            exchange.cut_short(reply)
        else:
            exchange.send_away(reply)

    def peer_gone(self) -> None:
        if self.exchange is not None:
            self._backdate(self.exchange)
        self.abort(Reason.CLIENT_GONE)

    @property
    def unfinished(self) -> bool:
        return self.exchange is not None or self.deaf or self.write_paused

    @property
    def waiting(self) -> bool:
        return self.exchange is not None and self.exchange.idle

    def drain(self, after_s: float) -> None:
        """The server shuts down: a client that only waits is answered then, a running exchange may finish.

        Between requests the connection stays: the next one may be on its way, and is answered.
        """
        self._be_last()
        if self.exchange is not None and self.exchange.idle:
            asyncio.get_running_loop().call_later(after_s, self._send_away, self.exchange)

    def reader(self) -> Reader | None:
        exchange = self.exchange
        return exchange if isinstance(exchange, Reader) and not exchange.done else None

    def fileno(self) -> int:
        number: int = self.transport.get_extra_info("socket").fileno()
        return number

    # Its place, and its client's.

    def _arrive(self, ip: str | None) -> None:
        """Take a place below the limits. A connection that gets none may ask one thing (:data:`MAX_SURPLUS`)."""
        plane = self.plane
        peer = self.peer = plain(ip) if ip else None
        self.proxied = peer is not None and peer in plane.proxies
        clients = plane.admission.clients
        if clients is not None and not self.proxied:
            self.client_here = clients.hold(client_of(peer or ""))
        self.surplus = plane.admission.connect(self.client_here)
        if self.surplus is not None and self.break_half_closed(self.surplus):
            self.surplus = plane.admission.connect(self.client_here)
        if self.surplus is not None:
            plane.surplus[self] = None
            if len(plane.surplus) > MAX_SURPLUS:
                next((connection for connection in plane.surplus if connection.yield_place()), None)

    def break_half_closed(self, limit: Limit, channel: str | None = None) -> bool:
        for other in self.plane.timeouts.half_closed:
            if not isinstance(other, Connection):
                continue
            if limit in (Limit.READERS, Limit.CHANNEL_READERS):
                reader = other.reader()
                counts = reader is not None and (limit is Limit.READERS or reader.channel_name == channel)
            else:
                counts = limit is Limit.CONNECTIONS or other.client_here is self.client_here
            if counts:
                other.leave()
                other.peer_gone()
                return True
        return False

    def yield_place(self) -> bool:
        # It is answered unasked.
        if self.handshake is not None:
            if self.handshake.cancelling():
                return False
            self.handshake.cancel()
        elif self.deaf:
            self.transport.abort()
        elif isinstance(self.exchange, AsgiExchange) or self.surplus is None:
            return False
        else:
            self.deaf = True
            self.without_route().answer(limit_reply(self.surplus, self.plane.jitter, close=True))
        return True

    def admit(self, ip: str | None) -> Limit | None:
        plane = self.plane
        clients = plane.admission.clients
        if self.surplus is not None or clients is None or self.asking is not None:
            return self.surplus
        client = self.client_here or clients.hold(client_of(ip or ""))
        limit = plane.admission.begin(client, plane.clock())
        if limit is Limit.CLIENT_EXCHANGES and self.break_half_closed(limit):
            limit = plane.admission.begin(client, plane.clock())
        if limit is None:
            self.asking = client
        elif client is not self.client_here:
            clients.release(client)
        return limit

    def from_node(self) -> None:
        plane = self.plane
        self.last_read, self.watched = None, plane.guard is not None  # the client may be another one each time
        client, self.client_here = self.client_here, None
        if client is None:
            return
        admission = plane.admission
        if self.surplus is None:
            admission.disconnect(client)
        plane.surplus.pop(self, None)
        self.surplus = admission.connect(None)
        if self.surplus is not None:
            plane.surplus[self] = None
        if admission.clients is not None:
            admission.clients.release(client)

    def release_client(self) -> None:
        plane = self.plane
        client, self.asking = self.asking, None
        if client is None:
            return
        plane.admission.end(client)
        if client is not self.client_here and plane.admission.clients is not None:
            plane.admission.clients.release(client)

    # Reading.

    def pause(self, reason: int) -> None:
        if not self.pauses and not self.half_closed and not self.transport.is_closing():
            self.transport.pause_reading()
        self.pauses |= reason

    def resume(self, reason: int) -> None:
        if self.pauses & reason:
            self.pauses &= ~reason
            if not self.pauses and not self.half_closed and not self.transport.is_closing():
                self.transport.resume_reading()

    def read_less(self, size: int) -> None:
        self._turn_bytes = min(self._turn_bytes, size)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next input goes: at most what this connection may have read in one turn."""
        whole = self.plane.turns.input
        return whole if self._turn_bytes == TURN_BYTES else whole[: self._turn_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self._more and not self.pauses & MORE:
            data = self._more + bytes(self.plane.turns.input[:nbytes])
            self._more = b""
            self._turn_bytes = max(self._turn_bytes, LEAST_TURN_BYTES)  # it has read little until now
            self._parse(memoryview(data))
            return
        if self.deaf or self._rejection is not None:
            # Unread input would make the kernel reset the connection, and the client might lose its response.
            if nbytes >= self._turn_bytes:
                self.plane.turns.had_turn(self)
            return
        # A read that was dear by the clock may only have been interrupted: the next one is measured in processor time.
        most = self.endpoint.turn_bytes
        clock = perf_counter if self._turn_bytes == most else thread_time
        self._handed_on_s = 0.0
        begun = clock()
        turns = self.plane.turns
        if not self._parse(turns.input[:nbytes]):
            return
        # Only parsing is the peer's doing. A publisher with many readers would be read in small pieces, which
        # all go to each reader, and would rest for longer than its next chunk takes to come.
        cost_s = clock() - begun - self._handed_on_s
        if cost_s > DEAR_S:
            if self._turn_bytes < most:
                turns.was_dear(self, cost_s)
            self._turn_bytes = max(LEAST_TURN_BYTES, self._turn_bytes >> 1)
        elif self._turn_bytes < most:
            self._turn_bytes = min(most, self._turn_bytes << 1)
        if nbytes >= self._turn_bytes:
            turns.had_turn(self)

    def _parse(self, data: memoryview) -> bool:
        """Parse input, and hand on the bodies in it; ``False`` if the connection has met a fault.

        What is left when the connection has begun all requests that one turn allows, or when its queue is full, waits.
        """
        self._turn_requests = 0
        at = 0
        try:
            while at < len(data) and not (self.deaf or self._rejection is not None):
                if self._turn_requests >= TURN_REQUESTS or self.pauses & QUEUE:
                    self._more = bytes(data[at:])
                    self.pause(MORE)
                    break
                end = at + SLICE_BYTES
                if (neighbours := self.endpoint.neighbours) is not None:
                    stays = self.mid_message or (
                        self.exchange is None and not self.pauses and neighbours.is_ours(data, at)
                    )
                    if not stays and not self._begins_here(neighbours, data[at:]):
                        return False
                    end = self._end_of_message(data, at, end)
                self._feed(data[at:end])
                at = end
            request = self._request
            if request is not None:
                if not self._guard.chunked or self._partial_size > UNSPLIT:
                    self._flush_partial()
                if request.chunks:
                    self.deliver(request)
        except Exception as error:
            self._failed(error)
            return False
        if self._more and not self.pauses & QUEUE:
            asyncio.get_running_loop().call_soon(self._parse_more)
        if self._queue and self.exchange is None:
            asyncio.get_running_loop().call_soon(self._next)
        return True

    def _begins_here(self, neighbours: Neighbours, data: memoryview) -> bool:
        """Whether a request that begins may be parsed here and now. If not, its connection has moved, or it waits.

        It waits until the exchange before it is over, since a connection moves only when nothing is owed to its client;
        until enough of it is here to find its worker; and while that worker takes no connection (:data:`WAITS_S`).
        """
        if isinstance(self.exchange, Switched):
            self.abort(Reason.BAD_REQUEST)  # as in _feed()
            return False
        if self.exchange is not None:
            self._more = bytes(data)
            self.pause(MORE)
            self.plane.pipelined.add(self)
            return False
        self.plane.pipelined.discard(self)
        # A connection that another worker has just sent stays, if it may: two workers would hand it to and fro. So does
        # one whose TLS session is here.
        moves_freely = self._arrival is None and self.fd >= 0
        worker = neighbours.worker_for(data, self.number if moves_freely else None)
        if worker is None:
            if self.half_closed:  # no more of it will come
                self.transport.close()
                return False
            self._more = bytes(data)
            self.resume(MORE)
            self._stop_resting()
            self._expect_rest()
            return False
        if worker == neighbours.me:
            self._waits = 0
            return True
        last = self._waits == len(WAITS_S)
        if neighbours.move(self, worker, bytes(data), last=last):
            return False
        if last:
            exchange = self.exchange = self.without_route()
            self.mid_message = True  # its body may follow
            exchange.answer(busy_reply(self.plane.jitter))
            return False
        self._more = bytes(data)
        self.pause(MORE)
        self._stop_resting()
        self._owes_nothing()  # the client is not to blame
        wait_s = WAITS_S[self._waits] * (0.5 + self.plane.rng.random())
        asyncio.get_running_loop().call_later(wait_s, self._parse_more)
        self._waits += 1
        return False

    def _end_of_message(self, data: memoryview, at: int, end: int) -> int:
        """Up to where a slice may be parsed: not beyond the end of a message.

        What follows may be for another worker, and the parser would not stop there. A head and its body are two steps,
        unless it shows that nothing follows them.
        """
        end = min(end, len(data))
        if self._body_left:
            size = min(end - at, self._body_left)
            self._body_left -= size
            return at + size
        self._with_head = 0
        found = _END_BEFORE.match(data, at, end) or _END.search(data, at, end)
        if found is None:
            return end
        self._turn_requests += self.mid_message  # so that a body made of such ends takes no long turn
        after = found.end()
        if after < end and not self.mid_message and (framing := _FRAMING.search(data, at, after)) is not None:
            if framing[1] is None:  # a chunked body
                body_end = _END.search(data, after, end)
                if body_end is None or body_end.end() == end:
                    return end
            elif int(framing[1]) >= end - after:
                self._with_head = end - after
                return end
        return after

    def _parse_arrival(self) -> None:
        """Parse the input that came with the connection from another worker."""
        self._turn_bytes = self.endpoint.turn_bytes
        self._parse_more()

    def _parse_more(self) -> None:
        """Parse the input that has waited for its turn, and read again when all of it is parsed."""
        data, self._more = self._more, b""
        self._parses_rest = True
        parsed = not data or self.deaf or self._parse(memoryview(data))
        self._parses_rest = False
        if parsed and not self._more:
            self.resume(MORE)
            if self.half_closed and self.exchange is None and not self._queue:
                self._end_of_input()

    def eof_received(self) -> bool:
        """The peer has closed its half of the connection; whether ours stays open.

        It stays open while an answer is owed to what the peer has sent as a whole. A body that breaks off here was cut
        short. Under TLS the event loop closes the connection at once, whatever is returned.
        """
        if self.deaf or self.tls or (self.exchange is None and not self._queue and not self._more):
            return False
        request, queue = self._request, self._queue
        if request is not None and request.route is not None and not (queue and queue[-1] is request):
            return False  # it is the body of the exchange in progress
        self.half_closed = True
        exchange = self.exchange
        now = self.plane.clock()
        self._at_half_close = now, exchange if exchange is not None and exchange.answerable else None
        self._half_closed_sent = exchange.sent_in_all if isinstance(exchange, Reader) else 0
        self.mid_message = False
        if not queue and not self._more and self._rejection is None:
            self._be_last()
        self.plane.timeouts.closed_half(self, now)
        return True

    def _be_last(self) -> None:
        """Let the response that is under way be the last one of this connection."""
        exchange = self.exchange
        if isinstance(exchange, AsgiExchange):
            exchange.close_after()
        elif exchange is not None:
            exchange.keep_alive = False
            if isinstance(exchange, Parked):
                exchange.request.keep_alive = False  # of the exchange that follows

    def let_go(self) -> None:
        """The peer has closed its half long ago, and may be gone: tell it to come back, if it was sent nothing yet.

        If it was sent something, the next write shows whether it is gone. A reader that was sent nothing since the last
        look is cut off.
        """
        exchange = self.exchange
        if isinstance(exchange, Reader) and not exchange.answerable:
            sent = exchange.sent_in_all
            # While the transport holds bytes, the kernel finds out whether the peer is gone.
            if sent == self._half_closed_sent and not self.write_paused:
                self.peer_gone()
            self._half_closed_sent = sent
            return
        if exchange is None or not exchange.answerable:
            return
        reply = half_closed_reply(self.plane.jitter)
        exchange.keep_alive = False
        self.send_reply(exchange, reply)
        self.exchange = None
        self._backdate(exchange)
        exchange.lost()
        self.close()

    def _backdate(self, exchange: Exchange) -> None:
        """Write the record of a client that has closed its half, and is gone, as if it had left at that time."""
        if not self.half_closed:
            return
        since, waiting = self._at_half_close
        exchange.arrived += self.plane.clock() - since
        if exchange is waiting and isinstance(exchange, Reader):
            exchange.sent = 0
            exchange.record.status = exchange.record.wait_us = None

    def _feed(self, data: memoryview) -> None:
        """Parse a slice of input. Bodies gather in the request; :meth:`deliver` hands them on."""
        if self.exchange is None:
            self._stop_resting()
        pieces = [data]
        try:
            while pieces and not self.deaf:
                piece = pieces.pop()
                try:
                    (self._parser or self._make_parser()).feed_data(piece)
                except httptools.HttpParserUpgrade as upgrade:
                    rest = piece[upgrade.args[0] :]
                    if (head := self._without_upgrade()) is not None:
                        pieces += [rest, memoryview(head)]
                    elif rest and isinstance(self.exchange, (Switched, Parked)) and self._rejection is None:
                        self.abort(Reason.BAD_REQUEST)  # who asks for a feed waits until the connection is switched
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ or error) from None
        except httptools.HttpParserError as error:
            if isinstance(error, httptools.HttpParserInvalidURLError):
                self._url = b""  # what an earlier read had of it would stand in the log for the whole
            self.deliver_rest()
            self.reject(Status.BAD_REQUEST, "Malformed request")
            return
        if (wrong := self._guard.fed(len(data))) is not None:
            self.deliver_rest()
            self.reject(*wrong)
        # All of it is parsed: the connection rests, owes the rest of a request, or serves an exchange.
        if self.exchange is None:
            if self.mid_message or self not in self.plane.timeouts.resting:
                self._expect_rest()
        elif not self.mid_message:
            # A client that waits, or is being sent something, needs no parser: it is a third of an idle reader. The
            # first ones keep theirs, since to make a new one takes as long as to find the segment.
            self._guard = NO_REQUEST
            if self.plane.parsers > KEPT_PARSERS:
                self._drop_parser()

    def deliver(self, request: Request) -> None:
        if request.waits:
            if self._queue:
                self._queued_bytes += sum(map(len, request.chunks))
                self._limit_queue()
            elif isinstance(self.exchange, Parked):
                self.exchange.holds_body(sum(map(len, request.chunks)))
            return
        chunks, request.chunks = request.chunks, []
        exchange = self.exchange
        if exchange is not None and exchange.takes_body:
            is_measured = self._turn_bytes < self.endpoint.turn_bytes and len(chunks) <= FEW_CHUNKS
            begun = thread_time() if is_measured else 0.0
            if request.complete:
                exchange.body_ended(chunks)
            elif chunks:
                exchange.data(chunks)
            if is_measured:
                self._handed_on_s += thread_time() - begun
        elif chunks:
            self._unread += sum(map(len, chunks))
            if self._unread > UNREAD_BYTES:
                self.reject(Status.TOO_LARGE, "Request body too large", Reason.TOO_LARGE, request)

    # Parser callbacks.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._unread = 0
        self.mid_message = True
        self._guard = FramingGuard(self.plane.options.header_bytes)

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self.plane.options.url_bytes:
            self.reject(Status.URI_TOO_LONG, "URL too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, or a trailer field."""
        guard = self._guard
        if (wrong := guard.field(len(name) + len(value))) is not None:
            self.reject(*wrong)
        elif not guard.chunked:
            # Trailer fields come behind a chunked body: nothing asks for them, and they are not the head's.
            # White space behind a value is no part of it (RFC 9110, section 5.5), and the parser leaves it there.
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        guard = self._guard
        guard.head_ended()
        if self.deaf or self._rejection is not None:
            return
        plane = self.plane
        self._owes_nothing()
        parser = self._parser
        assert parser is not None, "it calls"
        fields = self._headers
        headers = {name: value for name, value in fields}  # dict() takes three times as long in compiled code
        keeps_alive = parser.should_keep_alive()
        # A client that keeps its connection without saying so speaks HTTP/1.1; the parser would make a text of that.
        says_nothing = b"connection" not in headers and b"proxy-connection" not in headers
        version = "1.1" if keeps_alive and says_nothing else parser.get_http_version()
        coding = headers.get(b"transfer-encoding")
        # Nothing can be wrong with most heads, and every one of them comes this way.
        strange = coding not in (None, b"chunked") or version != "1.1" or len(headers) != len(fields)
        strange = strange or b"host" not in headers
        strange = strange or headers[b"host"].strip(HOST_TEXT) != b"" or not self._url.startswith(b"/")
        if strange:
            if (wrong := objection(version, self._url, fields, headers)) is not None:
                self.reject(wrong.status, wrong.text)
                return
            headers = joined(fields)
        guard.chunked = coding is not None
        method = parser.get_method()
        if parser.should_upgrade():
            # See _without_upgrade().
            if method == b"CONNECT":
                self.reject(Status.NOT_IMPLEMENTED, "This server is not a proxy")
                return
            if (
                headers.get(b"upgrade", b"").lower() == PROTOCOL
                and self.endpoint.routes
                and self._feed_asked(method, headers, fields)
            ):
                return
            self._upgrade = [b"%b %b HTTP/%b" % (method, self._url, version.encode())]
            self._upgrade += [b"%b: %b" % field for field in fields if field[0] not in _HOP_BY_HOP]
            return
        # A request without a body is complete: nothing more is waited for.
        length = content_length(headers) if b"content-length" in headers else None
        self.mid_message = coding is not None or bool(length)
        if self.endpoint.neighbours is not None:
            self._arrival = None
            self._body_left = max(0, (length or 0) - self._with_head)
        if self.proxied:
            headers[FORWARDED_FOR] = forwarded_for(fields)
        http10 = version == "1.0"
        url, self._url, self._headers = self._url, b"", _NO_FIELDS
        route = plane.router.find(method, url) if self.endpoint.routes else None
        if route is not None and route.not_found and method == b"GET" and b"text/html" in headers.get(b"accept", b""):
            route = None  # a person with a browser: the control plane has a page for that
        request = Request(method, url, route, headers, http10=http10, keep_alive=keeps_alive and not http10)
        request.length = length
        self._request = request
        busy = self.exchange is not None or bool(self._queue) or self._turn_requests >= TURN_REQUESTS
        if route is None:
            self._begin_control(request, fields, busy=busy)
        elif busy:
            self._enqueue(request, guard.head_bytes)
        else:
            self._turn_requests += 1
            begin(self, request)

    def on_chunk_header(self) -> None:
        self._guard.chunk()

    def on_body(self, body: bytes) -> None:
        self._guard.payload(len(body))
        request = self._request
        if request is None or self.deaf or self._rejection is not None:
            return
        if request.route is None:
            self._unread += len(body)
            if self._unread > UNREAD_BYTES:
                self.reject(Status.TOO_LARGE, "Request body too large", Reason.TOO_LARGE)
                return
        if self._partial is None:
            self._partial = [body]
        else:
            self._partial.append(body)
        self._partial_size += len(body)

    def on_chunk_complete(self) -> None:
        self._flush_partial()

    def on_message_complete(self) -> None:
        self.mid_message = False
        self._guard.head_ended()
        self._owes_nothing()
        if self._partial:
            self._flush_partial()
        request, self._request = self._request, None
        if request is None or self.deaf or self._rejection is not None:
            return
        request.complete = True
        if request.route is None:
            self._complete_control(request)
            return
        self.deliver(request)
        if self.exchange is None:
            self._rest_again()

    # Control-plane requests: held until they are whole.

    def _begin_control(self, request: Request, fields: list[tuple[bytes, bytes]], *, busy: bool) -> None:
        request.fields = fields
        request.waits = True
        if (request.length or 0) > UNREAD_BYTES:
            self.reject(Status.TOO_LARGE, "Request body too large", Reason.TOO_LARGE)
        elif not has_path(request.target):
            self.reject(Status.BAD_REQUEST, "Malformed URL")
        elif expects_continue(request.headers) and not request.http10 and not busy:
            self.invite_body()

    def _complete_control(self, request: Request) -> None:
        if self.exchange is not None or self._queue:
            self._enqueue(request, len(request.target) + sum(len(name) + len(value) for name, value in request.fields))
        else:
            self._begin_asgi(request)

    def _begin_asgi(self, request: Request) -> None:
        if self.surplus is not None or self.plane.registry.shutting_down:
            request.keep_alive = False
        self.exchange = AsgiExchange(self, request, self.transport, self.endpoint.hosting)

    # Pipelining.

    def _enqueue(self, request: Request, head_bytes: int) -> None:
        """Let a request wait behind the exchange in progress."""
        if self._queue is None:
            self._queue = deque()
        request.waits = True
        self._queue.append(request)
        self._queued_bytes += head_bytes
        self._limit_queue()

    def _limit_queue(self) -> None:
        if self._queue and (len(self._queue) > QUEUE_REQUESTS or self._queued_bytes > QUEUE_BYTES):
            self.pause(QUEUE)
            self.plane.pipelined.add(self)

    def _next(self) -> None:
        """Begin the request that is pipelined behind the exchange that is now over."""
        if not self._queue or self.exchange is not None or self.deaf:
            return
        try:
            self._stop_resting()
            request = self._queue.popleft()
            request.waits = False
            if not self._queue:
                self._queued_bytes = 0
                self.plane.pipelined.discard(self)
                # The rest of this request's body may still have to be read.
                self.resume(QUEUE)
                if self._more:
                    asyncio.get_running_loop().call_soon(self._parse_more)
                elif self.half_closed and self._rejection is None:
                    request.keep_alive = False
            if request.route is None:
                self._begin_asgi(request)
                return
            begin(self, request)
            if request.chunks or request.complete:
                self.deliver(request)
            if request is self._request and not self._more:
                self._end_of_input()
        except Exception as error:
            self._failed(error)

    def _end_of_input(self) -> None:
        """Every request is answered, or begun: refuse the input behind them that is no request, or close."""
        if self._rejection is not None:
            (status, text, reason, head_only), self._rejection = self._rejection, None
            self.reject(status, text, reason, head_only=head_only)
        elif self.half_closed:
            self.transport.close()

    # The end of an exchange, and of a request that never became one.

    def complete(self, *, close: bool) -> None:
        self.exchange = None
        if close or self.deaf:
            self.close()
            return
        timeouts = self.plane.timeouts
        timeouts.resting[self] = self.plane.clock() + timeouts.rest_s
        if self._queue:
            asyncio.get_running_loop().call_soon(self._next)
        elif self._more:
            asyncio.get_running_loop().call_soon(self._parse_more)
        elif self._rejection is not None or (self.half_closed and not self._parses_rest):
            self._end_of_input()

    def without_route(self) -> Exchange:
        """An exchange for input that is no request, or a request that is refused before its route is known."""
        request = Request(b"-", self._url, None, {}, http10=False, keep_alive=False)
        plane = self.plane
        request.arrived = plane.clock()
        request.record = request.begin_record(ts_us=plane.wall_us(), node=plane.node, ip=self.peer, conn=self.number)
        exchange = Exchange(self, request)
        exchange.head_only = self._is_head()
        return exchange

    def _is_head(self) -> bool:
        return self.mid_message and self._parser is not None and self._parser.get_method() == b"HEAD"

    def reject(
        self,
        status: Status,
        text: str,
        reason: str = Reason.BAD_REQUEST,
        request: Request | None = None,
        *,
        head_only: bool = False,
    ) -> None:
        """Refuse input that no stage can take. The refusal comes behind the responses that are owed, and is the last.

        Args:
            request: the request whose body is refused, if that has ended; ``None``: the one that is being parsed.
            head_only: it was a HEAD, whose response has no body, and waited for its turn.
        """
        if self.deaf or self._rejection is not None:
            return
        exchange, request = self.exchange, request or self._request
        own = request is not None and request.route is not None and not request.waits
        if not own and (self._queue or (exchange is not None and (request is None or request.route is None))):
            # The client would take the response for that to an earlier request.
            self._rejection = status, text, reason, head_only or self._is_head()
            return
        self.deaf = True
        reply = Reply(status, reason, body=text.encode("ascii"), close=True)
        if exchange is not None and exchange.answerable:
            exchange.send_away(reply)
        elif exchange is not None:
            self.abort(reason)
        elif own:
            # It was answered already, and a second response would be taken for that to the client's next request.
            self.without_route().end(reason)
            self.close()
        else:
            exchange = self.exchange = self.without_route()
            exchange.head_only = exchange.head_only or head_only
            exchange.answer(reply)

    def too_slow(self) -> None:
        if self._request is None or self._request.route is None:
            # Neither a head that is not whole nor a request of the control plane has begun an exchange.
            self.reject(Status.REQUEST_TIMEOUT, "Request not complete in time", Reason.TIMEOUT)
        else:
            # It was answered already, and only its body is missing.
            self.without_route().end(Reason.TIMEOUT)
            self.abort()

    def _failed(self, error: Exception) -> None:
        """A fault of the server met this connection while its input was handled."""
        exchange = self.exchange
        if exchange is not None:
            exchange.failed(error)
        else:
            self.plane.fault("while a request was parsed", error)
            self.without_route().end(Reason.ERROR)
        if not self.deaf:
            self.abort(Reason.ERROR)

    def _send_away(self, exchange: Exchange) -> None:
        if self.exchange is exchange and exchange.idle:
            exchange.send_away(shutdown_reply(self.plane.jitter, self.plane.registry.come_back_s))

    def _stop_resting(self) -> None:
        """A request begins: the time for which a connection may rest is over."""
        self.plane.timeouts.resting.pop(self, None)

    def _owes_nothing(self) -> None:
        """The rest of a request is here, or is waited for no more."""
        if owing := self.plane.timeouts.owing:
            owing.pop(self, None)

    def _rest_again(self) -> None:
        """Let the connection rest again, after the end of a body that was answered before it had arrived."""
        resting = self.plane.timeouts.resting
        if self not in resting and not self.deaf and not self._queue:
            resting[self] = self.plane.clock() + self.plane.timeouts.rest_s

    def _expect_rest(self) -> None:
        """Bound the time for the rest of a request, if it has begun to arrive and nothing else goes on here."""
        timeouts = self.plane.timeouts
        if self.deaf or self._queue or (not self.mid_message and self in timeouts.resting):
            return
        if self not in timeouts.owing:
            self._stop_resting()
            timeouts.owing[self] = self.plane.clock() + timeouts.owed_s

    # Parsing, mechanics.

    def _make_parser(self) -> httptools.HttpRequestParser:
        """A new parser. Between two messages nothing is known to it, so that it may be dropped then."""
        if self._parser is None:
            self.plane.parsers += 1
        self._parser = parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _drop_parser(self) -> None:
        if self._parser is not None:
            self._parser = None
            self.plane.parsers -= 1

    def _flush_partial(self) -> None:
        """Hand on what has arrived of a chunk."""
        if self._partial and (request := self._request) is not None:
            request.chunks.append(self._partial[0] if len(self._partial) == 1 else b"".join(self._partial))
        self._partial = None
        self._partial_size = 0

    def deliver_rest(self) -> None:
        # No more will come, or be stored.
        if (request := self._request) is not None:
            self._flush_partial()
            if request.chunks:
                self.deliver(request)

    def _without_upgrade(self) -> bytes | None:
        """The head of a request that offers another protocol (h2c, for example), without the offer.

        The parser takes all that follows such a head for the other protocol. A new one is fed this head instead, so
        that the request is served as plain HTTP/1.1, body included. ``None`` if the request is refused.
        """
        lines, self._upgrade = self._upgrade, None
        if lines is None:
            return None
        self._make_parser()
        return b"\r\n".join([*lines, b"", b""])

    def _feed_asked(self, method: bytes, headers: dict[bytes, bytes], fields: list[tuple[bytes, bytes]]) -> bool:
        """Begin a request for a feed, of a client or of a node of the cluster; ``False`` if there is none there."""
        route, cluster = self.plane.router.feed(method, self._url), self.plane.cluster
        if route is None and cluster is None:
            return False
        self._drop_parser()  # it takes what follows for the other protocol, which begins after our answer
        self.mid_message = False
        if self.proxied:
            headers[FORWARDED_FOR] = forwarded_for(fields)
        request = Request(method, self._url, route, headers, http10=False, keep_alive=False)
        if self.exchange is not None or self._queue or has_body(headers):
            self.reject(Status.BAD_REQUEST, _ALONE)
        elif route is not None:
            begin(self, request)
        elif cluster is not None:
            self._switch(cluster, request)
        return True

    def switch(self, request: Request, serve: Serve) -> Reply | Exchange:
        if self._queue or self._more or self._rejection is not None or self.mid_message or self.half_closed:
            return Reply(Status.BAD_REQUEST, Reason.BAD_REQUEST, body=_ALONE.encode(), close=True)
        self.pauses = 0
        return Switched(self, request, self.transport, serve, self.connection_lost)

    def _switch(self, cluster: Elsewhere, request: Request) -> None:
        """A node of the cluster asks to switch this connection."""
        request.ip = self.peer
        serve = cluster.switch(request)
        if isinstance(serve, Reply):
            self.deaf = True
            exchange = self.exchange = self.without_route()
            exchange.answer(serve)
            return
        self.from_node()
        if self.surplus is not None:
            self.deaf = True
            self.without_route().answer(limit_reply(self.surplus, self.plane.jitter, close=True))
            return
        self.exchange = Switched(self, request, self.transport, serve, self.connection_lost)

    # Writing.

    def pause_writing(self) -> None:
        """The transport began to hold bytes."""
        self.write_paused = True
        self.plane.slow_peers.stall(self)
        if isinstance(self.exchange, AsgiExchange):
            self.exchange.pause_writing()

    def resume_writing(self) -> None:
        """The transport holds nothing any more."""
        self.write_paused = False
        self.plane.slow_peers.flowing(self)
        exchange = self.exchange
        if exchange is not None:
            try:
                exchange.writable()
            except Exception as error:
                self._failed(error)

    def unsent(self) -> int:
        size: int = self.transport.get_write_buffer_size()
        return size

    @property
    def scheme(self) -> str:
        """``http``, or ``https`` under TLS."""
        return "https" if self.tls else "http"

    def invite_body(self) -> None:
        self.send(CONTINUE)

    def send_reply(self, exchange: Exchange, reply: Reply) -> None:
        keep_alive, head_only = exchange.keep_alive, exchange.head_only
        self.send(whole(reply, self.plane.date, exchange.cors, keep_alive=keep_alive, head_only=head_only))

    def send_frames(
        self, exchange: Exchange, head: ResponseHead | None, frames: list[bytes], trailers: bytes | None = None
    ) -> None:
        buffers = [] if head is None else [self._begin_response(exchange, head)]
        if exchange.http10:
            buffers += [b"".join(payload_of(frame)) for frame in frames]
        else:
            buffers += frames
            if trailers is not None:
                buffers.append(end(trailers))
        if len(buffers) > 1 and len(frames) < 2 and (not frames or len(frames[0]) <= JOINED_BYTES):
            self.send(b"".join(buffers))
        elif buffers:
            self._send_many(buffers)

    def send_span(self, exchange: Exchange, head: ResponseHead | None, data: bytes) -> None:
        self._send_many([data] if head is None else [self._begin_response(exchange, head), data])

    def _begin_response(self, exchange: Exchange, head: ResponseHead) -> bytes:
        keep_alive, http10 = exchange.keep_alive, exchange.http10
        if exchange.via is not None:
            more = f"{wire.CLUSTER}: {facts_of(exchange.record)}\r\n".encode("latin-1")
            head = ResponseHead(head.status, head.lines + more, head.content_type, head.length, head.caching)
        return begin_response(head, self.plane.date, exchange.cors, keep_alive=keep_alive, http10=http10)

    def send(self, data: bytes) -> None:
        """Write, straight to the socket while the transport holds nothing."""
        if self.fd >= 0 and not self.write_paused:
            try:
                written = os.write(self.fd, data)
            except OSError as error:
                written = self.write_failed(error)
            if written == len(data):
                return
            data = data[written:]
        self.transport.write(data)

    def _send_many(self, buffers: list[bytes]) -> None:
        """Write several buffers at once. The transport keeps what the kernel does not take: these buffers, no copy."""
        if self.fd >= 0 and not self.write_paused:
            try:
                written = os.writev(self.fd, buffers)
            except OSError as error:
                written = self.write_failed(error)
            if written == sum(map(len, buffers)):
                return
            buffers = _unwritten(buffers, written)
        self.transport.writelines(buffers)

    def keep(self, data: bytes, written: int) -> None:
        self.transport.write(memoryview(data)[written:])

    def write_failed(self, error: OSError) -> int:
        """A write to the socket failed, and nothing was written; unless its buffer is full, the connection breaks."""
        if not isinstance(error, BlockingIOError):
            self.transport.abort()
        return 0


def _unwritten(buffers: list[bytes], written: int) -> list[Any]:
    """The buffers without their first ``written`` bytes: the very buffers, the first one as a view."""
    for at, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[at + 1 :]]
        written -= len(buffer)
    return []
