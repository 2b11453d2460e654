"""One request with its response: what every kind of exchange has in common, and the one kind that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final, Protocol

from tricklecast.app.core.limits import Client, Limit
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.request import Request, has_body
from tricklecast.app.data_plane.responses import (
    FAULT,
    Reply,
    announced,
    encoded,
    limit_reply,
    memory_reply,
    storage_reply,
)
from tricklecast.app.data_plane.scheduling import PARKED, Peer
from tricklecast.trickle.records import Op, Reason

PARKED_BYTES: Final = 64 << 20
"""Bodies of parked requests, all of them together. One holds what came with its head: at most one read."""


class Caller(Peer, Protocol):
    """A connection, to those who answer its requests.

    Attributes:
        plane: what all connections share. exchange: the one in progress, if any.
        number: counts the connections of this server. fd: the socket, for writing straight to it; -1 under TLS.
        peer: the address at its other end. proxied: whether that is a trusted proxy, which names its clients.
        certified: the name in its client's certificate, where clients must show one.
        asking: the client of the exchange in progress, where clients are told apart.
        watched: the storm guard may know of this client, and is told when the client gets on.
        last_read: the closed segment that was read over it last: a hash of its channel's life, and its seq.
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

    # Requests.

    def admit(self, ip: str | None) -> Limit | None:
        """Count an exchange of the client at this address, or name the limit that it would exceed."""

    def take_place(self, limit: Limit, channel: str | None = None) -> bool:
        """Break a connection whose peer may be gone, so that there is room below a limit; whether there was one."""

    def deliver(self, request: Request) -> None:
        """Give what has arrived of a body to the exchange that takes it."""

    def deliver_rest(self) -> None:
        """Give the exchange what has arrived of a chunk that is not there yet."""

    def complete(self, *, close: bool) -> None:
        """The exchange is over: close, or go on with the next request."""

    def release_client(self) -> None:
        """The exchange no longer counts among those of its client."""

    # Writing.

    def send(self, data: bytes) -> None:
        """Write to the peer."""

    def send_many(self, buffers: list[bytes]) -> None:
        """Write several buffers to the peer in one system call."""

    def keep(self, data: bytes, written: int) -> None:
        """Let the transport write the rest of a buffer of which the kernel has taken so much."""

    def write_failed(self, error: OSError) -> int:
        """A write straight to the socket failed; the bytes written: 0."""


class Exchange:
    """One request with its response, on one connection.

    Attributes:
        record: the access record, filled in as the exchange goes on.
        arrived: when the request's head was complete, on the plane's clock.
        keep_alive, http10, head_only: of the request. cors: header lines for a page of another origin.
        ending: how it ends, and whether the connection closes then, once the peer has taken all of the response, which
            is handed over; ``None`` before.
    """

    __slots__ = ("arrived", "connection", "cors", "ending", "head_only", "http10", "keep_alive", "plane", "record")

    takes_body: ClassVar[bool] = False
    """Whether it takes the request's body; any other exchange throws the body away."""

    def __init__(self, connection: Caller, request: Request) -> None:
        plane = connection.plane
        self.connection = connection
        self.plane = plane
        self.record = request.record
        self.arrived = request.arrived
        self.keep_alive = request.keep_alive and not plane.registry.shutting_down
        self.http10 = request.http10
        self.cors = request.cors.lines
        self.head_only = request.method == b"HEAD"
        self.ending: tuple[str, bool] | None = None

    @property
    def idle(self) -> bool:
        """Whether its client only waits: nothing was sent to it, and nothing of a body received."""
        return False

    @property
    def answerable(self) -> bool:
        """Whether nothing of the response is out yet."""
        return self.ending is None

    @property
    def channel_name(self) -> str | None:
        """The channel that it uses, where a fault of the server might have hurt that."""
        return None

    def data(self, chunks: list[bytes]) -> None:
        """Chunks of the request's body arrived. An exchange that takes no body throws them away."""

    def body_ended(self, chunks: list[bytes]) -> None:
        """The request's body ended, after these last chunks."""

    def answer(self, reply: Reply) -> None:
        """Send a whole response, and be done."""
        connection = self.connection
        record = self.record
        # Refusals for want of room are alike, and a flood of them must be cheap.
        encode = Reply.encode if reply.retry_after_s is None or reply.headers else encoded
        common = self.plane.common
        connection.send(encode(reply, common, keep_alive=self.keep_alive, cors=self.cors, head_only=self.head_only))
        record.status = reply.status
        record.eos = reply.eos or None
        if reply.retry_after_s is not None:
            record.retry_after_ms = reply.retry_after_s * 1000
        if record.wait_us is None:
            record.wait_us = self.elapsed_us()
        if record.bytes_out is None:
            record.bytes_out = 0 if self.head_only else len(reply.body)
        self.finish(reply.reason, close=reply.close or not self.keep_alive)

    def answer_kept(self, reply: Reply) -> None:
        """Answer a publisher that something was done, as soon as storage has it where that was asked for."""
        durability = self.plane.durability
        if durability is None:
            self.answer(reply)
        elif durability.delays:
            durability.when_kept(partial(self._stored, reply))
        else:
            self.answer(announced(reply, durability.durability))

    def _stored(self, reply: Reply, kept: bool) -> None:
        durability = self.plane.durability
        if self.connection.exchange is not self or durability is None:
            return  # the client has gone, or was sent away
        if kept:
            self.answer(announced(reply, durability.durability))
        else:
            self.answer(storage_reply(self.plane.jitter))

    def finish(self, reason: str, *, close: bool) -> None:
        """All of the response is handed over: the exchange is over as soon as the peer has taken it.

        Nothing of the next request is answered before, so that a peer that does not read cannot pile up responses.
        """
        if self.connection.write_paused:
            self.ending = reason, close
        else:
            self.conclude(reason, close=close)

    def writable(self) -> None:
        """The transport has given the peer all that it held."""
        if self.ending is not None:
            reason, close = self.ending
            self.conclude(reason, close=close)

    def conclude(self, reason: str, *, close: bool) -> None:
        """The peer has taken all."""
        self.end(reason)
        self.connection.complete(close=close)

    def withdraw(self) -> None:
        """Leave the core: stop reading or writing there. Calling it again does nothing."""

    def send_away(self, reply: Reply) -> None:
        """End an exchange that has not sent anything yet with a response from outside."""
        self.withdraw()
        self.answer(reply)

    def lost(self, reason: str = Reason.CLIENT_GONE) -> None:
        """The connection broke before the exchange was over."""
        self.withdraw()
        self.end(reason)

    def end(self, reason: str) -> None:
        """Finish the access record: the exchange is over."""
        record = self.record
        record.reason = reason
        record.dur_us = int((self.plane.clock() - self.arrived) * 1_000_000)
        if self.connection.asking is not None:
            self.connection.release_client()
        self.plane.ended(record)

    def failed(self, error: Exception) -> None:
        """A fault of the server met this exchange: log it, then answer 500, or break the connection."""
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


class Kept(Exchange):
    """A publisher's request that has been done, and is answered when storage has it.

    Args:
        reply: the response.
    """

    __slots__ = ("_reply",)

    def __init__(self, connection: Caller, request: Request, reply: Reply) -> None:
        super().__init__(connection, request)
        self._reply = reply

    def begin(self) -> None:
        """Answer, now or later."""
        self.answer_kept(self._reply)


class Parked(Exchange):
    """A request that waits before it goes on: for a delay, for other requests, or for an answer from another service.

    The body of a POST is held back: what came with the head is kept, and nothing more is read. In all other cases
    reading goes on, so that a client that leaves is noticed.

    Args:
        why: what it waits for.
        resume: called when the wait is over; the request then goes on where it stopped.

    Attributes:
        request: the request that waits.
        cancel: keeps :meth:`go_on` from being called; set by whoever will call it.
    """

    __slots__ = ("_kept", "_resume", "_since", "cancel", "request", "why")

    def __init__(self, connection: Caller, request: Request, why: ParkedFor, resume: Callable[[], None]) -> None:
        super().__init__(connection, request)
        self.request = request
        self.why = why
        self._resume = resume
        self.cancel: Callable[[], None] = _nothing
        self._since = self.plane.clock()
        self._kept = 0
        self.plane.parked[why].add(self)
        if request.route is not None and request.route.op is Op.PUBLISH and has_body(request.headers):
            request.wanted = True
            connection.pause(PARKED)

    @property
    def idle(self) -> bool:
        """Its client only waits."""
        return True

    @property
    def over(self) -> bool:
        """Whether it does not wait any more: it went on, was answered, or its client is gone."""
        return self not in self.plane.parked[self.why]

    def keeps(self, size: int) -> None:
        """So many bytes of its body are kept. If that is too much with those of all others, its wait is over.

        A delayed request then goes on; one that waits for a decision of another service is refused.
        """
        plane = self.plane
        plane.parked_bytes += size - self._kept
        self._kept = size
        if plane.parked_bytes <= PARKED_BYTES:
            return
        if self.why is ParkedFor.AUTHORIZATION:
            self.send_away(limit_reply(Limit.TOTAL_BYTES, plane.jitter, close=True))
        else:
            plane.unheld += self.why is ParkedFor.GUARD
            self.go_on()

    def wait(self, seconds: float) -> None:
        """Go on after this time."""
        self.cancel = asyncio.get_running_loop().call_later(seconds, self.go_on).cancel

    def go_on(self) -> None:
        """The wait is over."""
        if self.over:
            return
        try:
            self._resume()  # ends the wait
        except Exception as error:
            # The request may have another exchange by now, which took what came of its body.
            (self.connection.exchange or self).failed(error)

    def withdraw(self) -> None:
        """Stop waiting, and let the body come."""
        if self.over:
            return
        plane, request = self.plane, self.request
        plane.parked[self.why].discard(self)
        plane.parked_bytes -= self._kept
        self.cancel()
        self.cancel = self._resume = _nothing  # both know this exchange
        now = plane.clock()
        if self.why is ParkedFor.GUARD:
            held_us = int((now - self._since) * 1_000_000)
            # The time that the server takes is counted from here; the delay has a field of its own.
            self.arrived = request.arrived = now
            plane.held_us += held_us
            self.record.guard_ms = held_us // 1000
        request.wanted = False
        self.connection.resume(PARKED)


def _nothing() -> None:
    """Does nothing."""
