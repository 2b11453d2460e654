"""A connection's requests: which are ours, their bodies in, and those that were pipelined.

Requests below the base path are served here; every other request goes to ``super()`` and so to FastAPI, untouched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from app.data_plane.connection import Connection
from app.data_plane.dispatch import begin
from app.data_plane.plane import DataPlane
from app.data_plane.request import Request
from trickle.wire import Status

UNSPLIT: Final = 32 << 10
"""A published chunk of at most this many bytes reaches readers as one chunk (docs/reference/protocol.md, section 4)."""

QUEUE_REQUESTS: Final = 64
QUEUE_BYTES: Final = 64 << 10
"""How much may be pipelined behind an unfinished exchange before reading from the connection pauses."""

NO_HEAD: Final = -1
"""Instead of the number of packets that the header fields being parsed have taken so far: there are none."""

_HOP_BY_HOP: Final = frozenset({b"upgrade", b"connection", b"http2-settings"})


class TrickleProtocol(Connection):
    """Parses what comes in and begins exchanges, one at a time, in order."""

    __slots__ = (
        "_chunked",
        "_head_bytes",
        "_head_packets",
        "_ours",
        "_partial",
        "_partial_size",
        "_queue",
        "_queued_bytes",
        "_request",
        "_upgrade",
    )

    def __init__(
        self,
        plane: DataPlane,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(plane, config, server_state, app_state, _loop)
        self._request: Request | None = None
        self._queue: deque[Request] | None = None
        self._queued_bytes = 0
        self._head_bytes = 0
        self._head_packets = NO_HEAD
        self._partial: list[bytes] | None = None
        self._partial_size = 0
        self._chunked = False
        self._ours = False
        self._upgrade: list[bytes] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._queue = None
        self._deliver_rest()
        super().connection_lost(exc)

    def rest(self) -> None:
        super().rest()
        self._go_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._go_on()

    def _go_on(self) -> None:
        if self._queue:
            self._limit_queue()
            self.loop.call_soon(self._next)

    # Parsing.

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        self._stay()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._deliver_rest()
            self.reject(Status.BAD_REQUEST, "Malformed request")
            return
        if self._head_packets != NO_HEAD:
            # The parser keeps a header to itself until it is whole: one that never ends shows only here. The packet
            # in which the fields began may hold the end of a body before them, and is not counted.
            self._head_bytes += len(data) if self._head_packets else 0
            self._head_packets += 1
            if self._head_bytes > 2 * self.plane.options.header_bytes:
                self.reject(Status.HEADERS_TOO_LARGE, "Request headers too large")
        if (request := self._request) is not None and request.chunks:
            self._deliver(request)

    def _stay(self) -> None:
        """Something has begun: the connection rests no longer."""
        self.plane.resting.pop(self, None)
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._head_bytes = 0
        self._ours = False
        self._chunked = False
        self.mid_message = True
        self._head_packets = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self.plane.options.url_bytes:
            self.reject(Status.URI_TOO_LONG, "URL too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes <= self.plane.options.header_bytes:
            self.headers.append((name.lower(), value))
        else:
            self.reject(Status.HEADERS_TOO_LARGE, "Request headers too large")

    def on_headers_complete(self) -> None:
        self._head_packets = NO_HEAD
        if self.deaf:
            return
        parts = self.plane.router.match(self.url)
        if parts is None:
            self._delegate()
            return
        self._ours = True
        parser = self.parser
        if parser.should_upgrade() and parser.get_method() != b"CONNECT":
            # The parser takes all that follows for another protocol: see _upgraded().
            self._upgrade = [b"%b %b HTTP/1.1" % (parser.get_method(), self.url)]
            self._upgrade += [b"%b: %b" % header for header in self.headers if header[0] not in _HOP_BY_HOP]
            return
        http10 = parser.get_http_version() == "1.0"
        request = Request(
            parser.get_method(),
            self.url,
            parts,
            dict(self.headers),
            http10=http10,
            keep_alive=parser.should_keep_alive() and not http10,
        )
        self._request = request
        # An exchange may wait for a long time, and needs none of this meanwhile.
        self.url, self.headers = b"", []
        if self.exchange is not None or self._queue or self.asgi_in_progress():
            self._enqueue(request)
        else:
            begin(self, request)

    def on_chunk_header(self) -> None:
        self._chunked = True
        # After the last chunk trailer fields may follow; after any other one its bytes.
        self._head_packets = 0

    def on_body(self, body: bytes) -> None:
        self._head_packets = NO_HEAD
        if not self._ours:
            if not self.deaf:
                super().on_body(body)
            return
        request = self._request
        if request is None or self.deaf:
            return
        if not self._chunked:
            request.chunks.append(body)
            return
        if self._partial is None:
            self._partial = [body]
        else:
            self._partial.append(body)
        self._partial_size += len(body)
        if self._partial_size > UNSPLIT:
            self._flush_partial()

    def on_chunk_complete(self) -> None:
        self._flush_partial()

    def on_message_complete(self) -> None:
        self.mid_message = False
        self._head_packets = NO_HEAD
        if not self._ours:
            if not self.deaf:
                super().on_message_complete()
            return
        request, self._request = self._request, None
        if request is not None and not self.deaf:
            request.complete = True
            self._deliver(request)
            self._rest_again()

    # Mechanics.

    def _rest_again(self) -> None:
        """Let the connection rest where a body that came after its answer has disturbed it."""
        resting = self.plane.resting
        if self not in resting and not (self.exchange or self.deaf or self._queue or self.asgi_in_progress()):
            resting[self] = self.plane.clock() + self.timeout_keep_alive

    def _delegate(self) -> None:
        """Hand the request to uvicorn, and so to FastAPI."""
        if self.exchange is not None or self._queue:
            # Behind an unfinished exchange of ours it cannot be answered in order: the connection closes after that
            # exchange, and the client sends it again (RFC 9112, section 9.3.2).
            self.deaf = True
            return
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def _enqueue(self, request: Request) -> None:
        if self._queue is None:
            self._queue = deque()
        request.queued = True
        self._queue.append(request)
        self._limit_queue()

    def _limit_queue(self) -> None:
        if self._queue and (len(self._queue) > QUEUE_REQUESTS or self._queued_bytes > QUEUE_BYTES):
            self.flow.pause_reading()

    def _next(self) -> None:
        """Begin the request that was pipelined behind the one that is now over."""
        if self._queue and self.exchange is None and not self.asgi_in_progress():
            self._stay()
            request = self._queue.popleft()
            request.queued = False
            if not self._queue:
                self._queued_bytes = 0
                # The rest of this request's body may still have to be read.
                self.flow.resume_reading()
            begin(self, request)
            if request.chunks or request.complete:
                self._deliver(request)

    def _deliver(self, request: Request) -> None:
        """Give the body that has arrived to the exchange that takes it, if it is its turn already."""
        if (publish := request.publish) is not None:
            chunks = request.take()
            if self.exchange is not publish:
                return
            if request.complete:
                publish.body_ended(chunks)
            elif chunks:
                publish.data(chunks)
        elif request.queued:
            self._queued_bytes += sum(map(len, request.chunks))
            self._limit_queue()
        elif not request.held:
            request.chunks.clear()

    def _deliver_rest(self) -> None:
        """No more of the body will come: what has arrived counts, half a chunk included."""
        if (request := self._request) is not None:
            self._flush_partial()
            if request.chunks:
                self._deliver(request)

    def _flush_partial(self) -> None:
        """What has arrived of a chunk goes on as it is."""
        if self._partial and (request := self._request) is not None:
            request.chunks.append(self._partial[0] if len(self._partial) == 1 else b"".join(self._partial))
        self._partial = None
        self._partial_size = 0

    def _upgraded(self, rest: bytes) -> None:
        """Serve a request that offered another protocol (h2c, say) as plain HTTP/1.1, body included."""
        if self._upgrade is None:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            return
        head, self._upgrade = self._upgrade, None
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*head, b"", rest]))
