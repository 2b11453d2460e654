"""Exchanges: one request with its response, on one connection.

Each kind of request has its own exchange: :class:`~app.data_plane.reader.Reader`, ``Stream``, ``Upload``, and here the
plain one, which answers with a whole :class:`Reply`; :class:`AwaitsStorage`; and :class:`Parked`, which waits and then
gives its request back to the stages of :mod:`app.data_plane.handler`.

An exchange ends in one of three ways, each once:

- it has handed over all of its response (:meth:`Exchange.finish`). The connection takes the next request only when the
  peer has taken the response (:meth:`Exchange.conclude`), so that a peer that does not read cannot pile up responses;
- its connection breaks (:meth:`Exchange.lost`);
- it meets a fault of the server (:meth:`Exchange.failed`): 500 if no byte of the response is out, else the connection
  breaks.

Before that it leaves the core (:meth:`Exchange.withdraw`, which may be called again), and each end writes the access
record (:meth:`Exchange.end`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final, Protocol

from tricklecast.app.core.limits import Client, Limit
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane, ParkedFor, Serve
from tricklecast.app.data_plane.request import Request, facts_of, has_body
from tricklecast.app.data_plane.responses import (
    FAULT,
    Reply,
    ResponseHead,
    announced,
    limit_reply,
    memory_reply,
    storage_reply,
)
from tricklecast.app.data_plane.scheduling import PARKED, Peer
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op, Reason

PARKED_BYTES: Final = 64 << 20
"""Bytes of the bodies of all parked requests. One holds the bytes that came with its head: at most one read."""


class Caller(Peer, Protocol):
    """A connection, as stages and exchanges see it.

    ``Peer``, its part that turns, deadlines and the plane see, is a protocol below this one: the plane holds
    connections, and a connection has the plane, so one protocol would be a circle.

    Attributes:
        plane: the state that all connections share. exchange: the one in progress, if any.
        number: of the connection, for the access log. scheme: ``http`` or ``https``.
        fd: the socket, for writes straight to it; -1 with TLS.
        peer: the address at its other end. proxied: that is a trusted proxy, which names the client's address.
        certified: the name in its client's certificate, if clients must show one.
        asking: the client of the exchange in progress, if clients have limits.
        watched: the storm guard may know of this client, and is told when the client makes progress.
        last_read: the closed segment that was read last over it: a hash of its channel and epoch, and its seq.
    """

    plane: DataPlane
    exchange: Exchange | None
    number: int
    fd: int
    peer: str | None
    proxied: bool
    certified: str | None
    asking: Client | None
    watched: bool
    last_read: tuple[int, int] | None

    @property
    def scheme(self) -> str: ...

    # Requests.

    def admit(self, ip: str | None) -> Limit | None:
        """Count an exchange of the client at this address, or name the limit that it would exceed."""

    def from_node(self) -> None:
        """Note that its peer is a node of the cluster: it is no client, and passes on requests of many clients."""

    def break_half_closed(self, limit: Limit, channel: str | None = None) -> bool:
        """Break a connection whose peer has closed its half, and may be gone, so that there is room below a limit.

        Args:
            channel: whose readers are limited; ``None``: the limit is not one of a channel's readers.

        Returns:
            Whether there was one to break.
        """

    def deliver(self, request: Request) -> None:
        """Give the chunks that have arrived to the exchange that takes the body; nothing if it has not begun."""

    def deliver_rest(self) -> None:
        """Give it all bytes that have arrived, half a chunk included."""

    def switch(self, request: Request, serve: Serve) -> Reply | Exchange:
        """Let the connection carry a feed from now on; a refusal if more has come than this request.

        Args:
            serve: serves it, and closes it when it is done.
        """

    def complete(self, *, close: bool) -> None:
        """End the exchange: close the connection, or go on with the next request."""

    def release_client(self) -> None:
        """Count the exchange no longer among those of its client."""

    # Writing. What the kernel does not take at once waits in the transport, and ``write_paused`` is set.

    def invite_body(self) -> None:
        """Tell a client that waits for ``100 Continue`` to send its body."""

    def send_reply(self, exchange: Exchange, reply: Reply) -> None:
        """Write a whole response."""

    def send_frames(
        self, exchange: Exchange, head: ResponseHead | None, frames: list[bytes], trailers: bytes | None = None
    ) -> None:
        """Write frames of a segment in one system call.

        Args:
            head: goes before them. trailers: end the body behind them.
        """

    def send_span(self, exchange: Exchange, head: ResponseHead | None, data: bytes) -> None:
        """Write bytes of a body whose head has a length."""

    def send(self, data: bytes) -> None:
        """Write bytes that are encoded already."""

    def keep(self, data: bytes, written: int) -> None:
        """Let the transport write the rest of a frame, of which the kernel has taken ``written`` bytes."""

    def write_failed(self, error: OSError) -> int:
        """Note that a write straight to the socket failed. Returns the bytes written: 0."""


class Exchange:
    """One request with its response, on one connection."""

    __slots__ = (
        "arrived", "connection", "cors", "ending", "head_only", "http10", "keep_alive", "plane", "record", "via",
    )  # fmt: skip

    takes_body: ClassVar[bool] = False
    """The exchange takes the request's body; any other exchange throws the body away."""

    def __init__(self, connection: Caller, request: Request) -> None:
        plane = connection.plane
        self.connection = connection
        self.plane = plane
        self.record = request.record  # the access record, filled in as the exchange goes on
        self.arrived = request.arrived  # the time at which the request's head was complete, on the plane's clock
        self.keep_alive = request.keep_alive and not plane.registry.shutting_down
        self.http10 = request.http10
        self.cors = request.cors.headers  # header fields for a page of another origin
        self.head_only = request.method == b"HEAD"
        self.via = request.via  # the way through other nodes of a cluster, if one of them has passed the request on
        # All of the response is handed over, and the peer has not taken it yet: the reason, and whether to close then.
        self.ending: tuple[str, bool] | None = None

    @property
    def idle(self) -> bool:
        """Whether its client only waits: no byte was sent to it, and no byte of a body received."""
        return False

    @property
    def answerable(self) -> bool:
        """Whether no byte of the response is out yet."""
        return self.ending is None

    @property
    def channel_name(self) -> str | None:
        """The channel that it uses, and that a fault of the server might have damaged."""
        return None

    def data(self, chunks: list[bytes]) -> None:
        """Take chunks of the request's body. An exchange that takes no body throws them away."""

    def body_ended(self, chunks: list[bytes]) -> None:
        """Take the last chunks of the request's body."""

    def answer(self, reply: Reply) -> None:
        """Send a whole response, which ends the exchange."""
        record = self.record
        if self.via is not None:
            reply = reply._replace(headers=(*reply.headers, (wire.CLUSTER, facts_of(record, reply.reason))))
        self.connection.send_reply(self, reply)
        record.status = reply.status
        record.eos = reply.eos or None
        if reply.retry_after_s is not None:
            record.retry_after_ms = reply.retry_after_s * 1000
        if record.wait_us is None:
            record.wait_us = self.elapsed_us()
        if record.bytes_out is None:
            record.bytes_out = 0 if self.head_only else len(reply.body)
        self.finish(reply.reason, close=reply.close or not self.keep_alive)

    def answer_when_stored(self, reply: Reply, channel: Channel | None) -> None:
        """Answer a publisher whose request is done: with ``--ack journal`` or ``fsync`` as soon as storage has it.

        Args:
            channel: to which was published; it may have ended; ``None`` if it is gone.
        """
        durability = self.plane.durability
        if durability is None:
            self.answer(reply)
        elif durability.delays:
            durability.when_stored(partial(self._stored, reply), channel)
        else:
            self.answer(announced(reply, durability.durability))

    def _stored(self, reply: Reply, stored: bool | Reply) -> None:
        durability = self.plane.durability
        if self.connection.exchange is not self or durability is None:
            return  # the client has gone, or was sent away
        if isinstance(stored, Reply):
            self.answer(stored)
        elif stored:
            self.answer(announced(reply, durability.durability, durability.degraded))
        else:
            self.answer(storage_reply(self.plane.jitter))

    def finish(self, reason: str, *, close: bool) -> None:
        """Conclude as soon as the peer has taken the response, all of which is handed over."""
        if self.connection.write_paused:
            self.ending = reason, close
        else:
            self.conclude(reason, close=close)

    def writable(self) -> None:
        """Go on, since the transport is empty again."""
        if self.ending is not None:
            reason, close = self.ending
            self.conclude(reason, close=close)

    def conclude(self, reason: str, *, close: bool) -> None:
        """End the exchange: the peer has taken all of the response."""
        self.withdraw()
        self.end(reason)
        self.connection.complete(close=close)

    def withdraw(self) -> None:
        """Stop reading or writing in the core. A second call does nothing."""

    def send_away(self, reply: Reply) -> None:
        """Answer an exchange that has sent no byte yet, from outside, for example at the shutdown."""
        self.withdraw()
        self.answer(reply)

    def lost(self, reason: str = Reason.CLIENT_GONE) -> None:
        """End the exchange, since its connection is broken."""
        self.withdraw()
        self.end(reason)

    def end(self, reason: str) -> None:
        """Finish the access record and count the exchange."""
        record = self.record
        record.reason = reason
        record.dur_us = int((self.plane.clock() - self.arrived) * 1_000_000)
        if self.connection.asking is not None:
            self.connection.release_client()
        self.plane.ended(record)

    def failed(self, error: Exception) -> None:
        """Log a fault of the server, and answer 500, or break the connection if a part of the response is out."""
        self.plane.fault(f"in an exchange ({self.record.op})", error, self.channel_name)
        connection = self.connection
        if connection.exchange is not self:
            return
        try:
            if self.answerable:
                self.send_away(memory_reply(self.plane.jitter) if isinstance(error, MemoryError) else FAULT)
            else:
                connection.abort(Reason.ERROR)
        except Exception as again:
            self.plane.fault("while ending a faulty exchange", again)
            connection.exchange = None
            connection.abort(Reason.ERROR)

    def elapsed_us(self) -> int:
        """Microseconds since the request arrived."""
        return int((self.plane.clock() - self.arrived) * 1_000_000)


class AwaitsStorage(Exchange):
    """A publisher's request that is done, and is answered when storage has it.

    Its body, that of a segment which is stored already, is thrown away, however large it is: a publisher would take a
    refusal of it for one of the segment.
    """

    __slots__ = ("_channel", "_reply")

    takes_body: ClassVar[bool] = True

    def __init__(self, connection: Caller, request: Request, reply: Reply, channel: Channel | None) -> None:
        super().__init__(connection, request)
        self._reply, self._channel = reply, channel

    def begin(self) -> None:
        """Answer at once, or when storage calls back."""
        self.answer_when_stored(self._reply, self._channel)


class Parked(Exchange):
    """A request that waits before it goes on: for a delay, for other requests, or for a decision of another service.

    The body of a POST is held back: bytes that came with the head stay in the request, and no further ones are read. So
    is any other body in a cluster, since the node to which the request goes is told of it. For all other requests
    reading goes on, so that the server notices a client that leaves.

    Args:
        why: the kind of the wait.
        resume: called when the wait is over; the request then goes on where it stopped.
    """

    __slots__ = ("_body_size", "_ends_with_body", "_resume", "_since", "cancel", "request", "why")

    def __init__(self, connection: Caller, request: Request, why: ParkedFor, resume: Callable[[], None]) -> None:
        super().__init__(connection, request)
        self.request = request
        self.why = why
        self._resume = resume
        self.cancel: Callable[[], None] = _nothing  # stops the timer or task that would call go_on
        self._since = self.plane.clock()
        self._body_size = 0  # bytes of its body in memory
        self._ends_with_body = False  # the wait is over when a byte of the body arrives
        self.plane.parked[why].add(self)
        is_kept = request.route is not None and (request.route.op is Op.PUBLISH or self.plane.cluster is not None)
        if is_kept and has_body(request.headers):
            request.waits = True
            connection.pause(PARKED)

    @property
    def idle(self) -> bool:
        return True

    @property
    def over(self) -> bool:
        """Whether the wait is over: the request went on, was answered, or its client is gone."""
        return self not in self.plane.parked[self.why]

    def holds_body(self, size: int) -> None:
        """Count the bytes of its body in memory. Beyond :data:`PARKED_BYTES` of all parked requests, the wait ends.

        A delayed request then goes on; one that waits for a decision of another service, or for a connection to another
        node, is refused.
        """
        plane = self.plane
        plane.parked_bytes += size - self._body_size
        self._body_size = size
        if self._ends_with_body:
            self.go_on()
            return
        if plane.parked_bytes <= PARKED_BYTES:
            return
        if self.why in (ParkedFor.AUTHORIZATION, ParkedFor.NODE):
            self.send_away(limit_reply(Limit.TOTAL_BYTES, plane.jitter, close=True))
        else:
            plane.unheld += self.why is ParkedFor.GUARD
            self.go_on()

    def wait(self, seconds: float) -> None:
        """Go on after this time."""
        self.cancel = asyncio.get_running_loop().call_later(seconds, self.go_on).cancel

    def wait_for_body(self, seconds: float) -> None:
        """Go on when a byte of the body arrives, or after this time; the client may leave before."""
        self.cancel()
        self.wait(seconds)
        self._ends_with_body = True
        self.connection.resume(PARKED)

    def go_on(self) -> None:
        """End the wait, and go on with the request."""
        if self.over:
            return
        try:
            self._resume()  # ends the wait
        except Exception as error:
            # The request may have another exchange by now, which took the bytes of its body.
            (self.connection.exchange or self).failed(error)

    def withdraw(self) -> None:
        """Stop waiting, and read the body again."""
        if self.over:
            return
        plane, request = self.plane, self.request
        plane.parked[self.why].discard(self)
        plane.parked_bytes -= self._body_size
        self.cancel()
        self.cancel = self._resume = _nothing  # both know this exchange
        now = plane.clock()
        if self.why is ParkedFor.GUARD:
            held_us = int((now - self._since) * 1_000_000)
            # The time that the server takes is counted from here; the delay has a field of its own.
            self.arrived = request.arrived = now
            plane.held_us += held_us
            self.record.guard_ms = held_us // 1000
        request.waits = False
        self.connection.resume(PARKED)


def _nothing() -> None:
    """Stands for ``cancel`` and ``resume`` of a request that waits no more."""
