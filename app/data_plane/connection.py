"""One connection's lifetime: what it is made of, how it is written to, and how it ends.

A subclass of uvicorn's httptools protocol, given to uvicorn by its public ``http=`` option. TLS, keep-alive, parsing
and graceful shutdown stay uvicorn's. What is relied upon is pinned by tests/app/data_plane/test_uvicorn_contract.py.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tricklecast.app.core.limits import Client, Limit
from tricklecast.app.core.slow_readers import Cut, Stall
from tricklecast.app.data_plane.answers import shutdown_reply
from tricklecast.app.data_plane.exchange import Exchange, Unsent
from tricklecast.app.data_plane.identity import FORWARDED_FOR, forwarded_for
from tricklecast.app.data_plane.lean import NOTHING, LeanFlowControl, shared
from tricklecast.app.data_plane.plane import DataPlane
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.routes import Route
from tricklecast.trickle.records import Reason

TLS_HIGH_WATER: Final = 64 << 10


class Connection(HttpToolsProtocol):
    """A connection of the data plane.

    Attributes:
        plane: what all connections share.
        exchange: the exchange in progress on a segment route, if any.
        write_paused: the transport holds bytes that the peer has not taken.
        fd: the socket, for writing straight to it while the transport holds nothing; -1 under TLS.
        number: counts the connections of this server.
        peer: the address at its other end. proxied: whether that is a trusted proxy, which says who its clients are.
        client_here: who it belongs to, where clients are told apart and it is not proxied.
        answering: the request of the control plane whose answer is under way, or was last; those pipelined behind it
            wait in ``pipeline``, and uvicorn's ``cycle`` is the last of them.
        asking: whose exchange is in progress, where clients are told apart.
        surplus: the limit that it exceeds: it is closed with its first answer, and has none of a segment route.
        deaf: whatever still comes in is ignored: the connection is about to close.
        mid_message: the peer has not finished the request that it is sending.
        watched: the storm guard may know of this client: it is to hear when it gets on.
        last_read: the closed segment that was read over it last: a hash of its channel's life, and its seq.
    """

    # Beyond 30 attributes instances no longer share their keys: these stay outside of the dict.
    __slots__ = (
        "answering",
        "asking",
        "client_here",
        "deaf",
        "exchange",
        "fd",
        "last_read",
        "mid_message",
        "number",
        "peer",
        "plane",
        "proxied",
        "surplus",
        "watched",
        "write_paused",
    )

    def __init__(
        self,
        plane: DataPlane,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.pipeline = NOTHING  # type: ignore[assignment]
        self.plane = plane
        self.url = b""
        self.exchange: Exchange | None = None
        self.write_paused = False
        self.fd = -1
        self.number = next(plane.connection_numbers)
        self.deaf = False
        self.mid_message = False
        self.watched = plane.guard is not None
        self.last_read: tuple[int, int] | None = None
        self.peer: str | None = None
        self.proxied = False
        self.client_here: Client | None = None
        self.answering: RequestResponseCycle | None = None
        self.asking: Client | None = None
        self.surplus: Limit | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = LeanFlowControl(transport)  # type: ignore[assignment]
        self.server = shared(self.server)
        self.plane.connections.add(self)
        self.plane.resting[self] = self.plane.clock() + self.timeout_keep_alive
        if transport.get_extra_info("sslcontext") is None:
            self.fd = transport.get_extra_info("socket").fileno()
            # Pause as soon as the kernel's buffer is full, and resume when ours is empty: `write_paused` then means
            # "the transport holds bytes", and a slow reader costs its position instead of a copy.
            transport.set_write_buffer_limits(high=0)
        else:
            transport.set_write_buffer_limits(high=TLS_HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        self.plane.connections.discard(self)
        self.plane.stalled.pop(self, None)
        self.plane.resting.pop(self, None)
        if self.plane.access is not None:
            self.plane.access.left(self)
        self.plane.paused.discard(self)
        self.deaf = True
        self.fd = -1
        self._give_up_answer()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lost()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_paused = True
        self.plane.stalled[self] = Stall(self.plane.clock(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_paused = False
        self.plane.stalled.pop(self, None)
        if isinstance(self.exchange, Reader):
            self.plane.catching_up.add(self.exchange)
        elif isinstance(self.exchange, Unsent):
            self.exchange.taken()

    @property
    def unfinished(self) -> bool:
        """Whether an exchange is running on it, or its answer not out yet."""
        return self.exchange is not None or self.deaf or self.write_paused or self.asgi_in_progress()

    def drain(self, after_s: float) -> None:
        """The server goes away: what only waits is sent away then, what is running may finish, and nothing follows.

        Between requests the connection stays: the next one may be on its way, and is answered.
        """
        if self.exchange is not None:
            self.exchange.keep_alive = False
            if self.exchange.idle:
                self.loop.call_later(after_s, self._send_away, self.exchange)
        elif self.asgi_in_progress():
            self.cycle.keep_alive = False

    def abort(self, reason: Reason = Reason.SHUTDOWN) -> None:
        """Break the connection; an exchange on it ends with ``reason``."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lost(reason)
        self.deaf = True
        self._give_up_answer()
        self.transport.abort()

    def cut_off(self, why: Cut) -> None:
        """The peer does not read: cut it off without a final chunk, so that it cannot take the part for the whole."""
        self.plane.cut_offs[why] += 1
        self.exchange = self.exchange or self.without_route()
        self.exchange.record.detail = why
        if (reader := self.reader()) is not None:
            reader.sent = max(0, reader.sent - self.transport.get_write_buffer_size())
        self.abort(Reason.EVICTED)

    def reader(self) -> Reader | None:
        """The reader on this connection, if there is one."""
        exchange = self.exchange.exchange if isinstance(self.exchange, Unsent) else self.exchange
        return exchange if isinstance(exchange, Reader) and not exchange.done else None

    def lag(self) -> int:
        """How many body bytes the reader on this connection is behind."""
        return reader.lag() if (reader := self.reader()) is not None else 0

    def lag_s(self) -> float:
        """For how many seconds the reader on this connection has lacked what was published."""
        return reader.lag_s() if (reader := self.reader()) is not None else 0.0

    def with_origin(self, headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """The headers of the request that was parsed, with all that proxies say about its client."""
        return headers | {FORWARDED_FOR: forwarded_for(self.headers)}

    def on_headers_complete(self) -> None:
        """A request of the control plane begins."""
        super().on_headers_complete()
        if not self.pipeline:
            self.answering = self.cycle
        if (self.surplus is not None or self.plane.registry.shutting_down) and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """A request of the control plane is answered; the next one begins, if there is one."""
        if self.pipeline:
            self.answering = self.pipeline[-1][0]
        super().on_response_complete()

    # Writing.

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

    def send_many(self, buffers: list[bytes]) -> None:
        """Write several buffers at once. What the kernel does not take, the transport keeps: these buffers, no copy."""
        if self.fd >= 0 and not self.write_paused:
            try:
                written = os.writev(self.fd, buffers)
            except OSError as error:
                written = self.write_failed(error)
            if written == sum(map(len, buffers)):
                return
            buffers = _rest(buffers, written)
        self.transport.writelines(buffers)

    def write_failed(self, error: OSError) -> int:
        """A write to the socket failed: nothing was written; anything but a full buffer breaks the connection."""
        if not isinstance(error, BlockingIOError):
            self.transport.abort()
        return 0

    def complete(self, *, close: bool) -> None:
        """The exchange is over: close, or wait for the next request.

        uvicorn's ``on_response_complete`` does that with a timer, which would be set and cancelled for every response.
        All connections rest equally long, so that the order in which they began is the order in which they end: the
        sweeper looks at the first few.
        """
        self.exchange = None
        if close or self.deaf:
            self._close()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            if self.flow.read_paused:
                self.flow.resume_reading()
            self.plane.resting[self] = self.plane.clock() + self.timeout_keep_alive

    def asgi_in_progress(self) -> bool:
        """Whether a request of the control plane is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def without_route(self) -> Exchange:
        """An exchange for a request of which it is not known what it is."""
        request = Request(b"-", self.url, Route(None), {}, http10=False, keep_alive=False)
        record = request.record(ts_us=self.plane.wall_us(), node=self.plane.node, ip=self.peer, conn=self.number)
        return Exchange(self, request, record)

    def _send_away(self, exchange: Exchange) -> None:
        if self.exchange is exchange and exchange.idle:
            exchange.send_away(shutdown_reply(self.plane.jitter, self.plane.registry.come_back_s))

    def _give_up_answer(self) -> None:
        """Nobody hears what FastAPI still says. uvicorn would tell only the last of several pipelined requests."""
        if self.answering is not None:
            self.answering.disconnected = True

    def _close(self) -> None:
        """Close when all is written. A peer that may still be sending is read from for a moment longer."""
        self.deaf = True
        if not self.mid_message:
            self.transport.close()
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(self.plane.options.linger_s, self.transport.close)


def _rest(buffers: list[bytes], written: int) -> list[Any]:
    """What is left of buffers of which so many bytes were written: the very buffers, the first one as a view."""
    for at, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[at + 1 :]]
        written -= len(buffer)
    return []
