"""A connection's requests as they are parsed: which are ours, and their bodies in.

Requests below the base path are served here; every other request goes to ``super()`` and so to FastAPI, once it is
whole: what cannot be framed, is too large or comes too slowly never gets there.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import httptools

from tricklecast.app.data_plane.delegating import Delegating
from tricklecast.app.data_plane.dispatch import begin
from tricklecast.app.data_plane.head import HOST_TEXT, has_body, objection
from tricklecast.app.data_plane.lean import NO_FIELDS
from tricklecast.app.data_plane.request import Request
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

UNSPLIT: Final = 32 << 10
"""A published chunk of at most this many bytes reaches readers as one chunk (docs/reference/protocol.md, section 4)."""

FIELD_BYTES: Final = 32
"""What a header field costs beside its name and value, as HTTP/2 counts them, too (RFC 9113, section 6.5.2)."""

CHUNK_OVERHEAD: Final = 16
EXCESS_BYTES: Final = 16 << 10
"""What a chunked body may hold that is no payload. Each chunk may cost 16 bytes and twice its payload; of what is
beyond (extensions, leading zeros, trailer fields) so much may have come together. Go's net/http has the same rule."""

_FIRST_PACKET: Final = -(1 << 20)
"""Credit for the packet in which a head ends: how much of it is head is not known."""

NO_HEAD: Final = -1
"""Instead of the number of packets that the header fields being parsed have taken so far: there are none."""

_HOP_BY_HOP: Final = frozenset({b"upgrade", b"connection", b"http2-settings"})


class TrickleProtocol(Delegating):
    """Parses what comes in, and begins exchanges.

    Attributes:
        has_routes: whether there are segment routes at all, or everything is for the control plane.
    """

    has_routes: ClassVar[bool] = True

    __slots__ = (
        "_chunked",
        "_excess",
        "_head_packets",
        "_head_room",
        "_ours",
        "_partial",
        "_partial_size",
        "_request",
        "_upgrade",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request: Request | None = None
        self._excess = 0
        self._head_room = 0
        self._head_packets = NO_HEAD
        self._partial: list[bytes] | None = None
        self._partial_size = 0
        self._chunked = False
        self._ours = False
        self._upgrade: list[bytes] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.queue = None
        self._deliver_rest()
        super().connection_lost(exc)
        # They know this connection: each would keep the other until a full collection. (The request does if it is of a
        # publisher, and its body did not end.)
        self._request = self.answering = None
        self.cycle = self.scope = None  # type: ignore[assignment]  # as they begin

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        if self.exchange is None:
            self.stay()
        try:
            (self.parser or self._make_parser()).feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            self.failed(error)
            return
        except httptools.HttpParserError:
            self._deliver_rest()
            self.reject(Status.BAD_REQUEST, "Malformed request")
            return
        if self._head_packets != NO_HEAD:
            # The parser keeps a header to itself until it is whole: one that never ends shows only here. The packet
            # in which the fields began may hold the end of a body before them, and is not counted.
            self._head_room -= len(data) if self._head_packets else 0
            self._head_packets += 1
            if self._head_room < -self.plane.options.header_bytes:
                self.reject(Status.HEADERS_TOO_LARGE, "Request headers too large")
        if self._chunked:
            # What of it was payload is subtracted already.
            self._excess += len(data)
            if self._excess < 0:
                self._excess = 0
            elif self._excess > EXCESS_BYTES:
                self._reject_excess()
        if (request := self._request) is not None and request.chunks:
            self.deliver(request)
        if self.exchange is None:
            if self.mid_message or self not in self.plane.resting:
                self.expect_rest()
        elif not self.mid_message:
            # Who waits, or is sent something, needs none meanwhile: it is a quarter of what a waiting reader takes.
            self.parser = None  # type: ignore[assignment]

    def _reject_excess(self) -> None:
        """Too much of a chunked body is no payload."""
        self._deliver_rest()
        if self._head_packets == NO_HEAD:
            self.reject(Status.BAD_REQUEST, "Too much around the chunks")
        else:
            self.reject(Status.HEADERS_TOO_LARGE, "Request headers too large")

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._head_room = self.plane.options.header_bytes
        self._ours = False
        self._chunked = False
        self._excess = _FIRST_PACKET
        self.mid_message = True
        self._head_packets = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self.plane.options.url_bytes:
            self.reject(Status.URI_TOO_LONG, "URL too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_room = room = self._head_room - len(name) - len(value) - FIELD_BYTES
        if room < 0:
            self.reject(Status.HEADERS_TOO_LARGE, "Request headers too large")
        elif not self._chunked:
            # Behind a chunked body come trailer fields: nobody asks for them, and they are not the head's.
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._head_packets = NO_HEAD
        if self.deaf:
            return
        if self.owing:
            self.owe_nothing()
        parser = self.parser
        fields = self.headers
        headers = dict(fields)
        version = parser.get_http_version()
        chunked = b"transfer-encoding" in headers
        # Nothing can be wrong with most heads, and this is asked for each of them.
        strange = chunked or version != "1.1" or b"host" not in headers or len(headers) != len(fields)
        strange = strange or headers[b"host"].translate(None, HOST_TEXT) != b""
        if strange and (wrong := objection(version, fields, headers)) is not None:
            self.reject(wrong.status, wrong.text)
            return
        self._chunked = chunked
        if parser.should_upgrade():
            # The parser takes all that follows for another protocol: see _upgraded().
            self._ours = True
            if parser.get_method() == b"CONNECT":
                self.reject(Status.NOT_IMPLEMENTED, "This is no proxy")
                return
            self._upgrade = [b"%b %b HTTP/%b" % (parser.get_method(), self.url, version.encode())]
            self._upgrade += [b"%b: %b" % header for header in self.headers if header[0] not in _HOP_BY_HOP]
            return
        # Who is answered at once, and for good, is not waited for where there is no body to come.
        self.mid_message = has_body(headers)
        method = parser.get_method()
        route = self.plane.router.find(method, self.url) if self.has_routes else None
        if route is None:
            self.await_body(version, headers)
            return
        self._ours = True
        http10 = version == "1.0"
        request = Request(
            method,
            self.url,
            route,
            self.with_origin(headers) if self.proxied else headers,
            http10=http10,
            keep_alive=parser.should_keep_alive() and not http10,
        )
        self._request = request
        # An exchange may wait for a long time, and needs none of this meanwhile.
        self.url, self.headers = b"", NO_FIELDS
        if self.exchange is not None or self.queue or (self.cycle is not None and self.asgi_in_progress()):
            self.enqueue(request, self.plane.options.header_bytes - self._head_room)
        else:
            begin(self, request)

    def on_chunk_header(self) -> None:
        self._excess -= CHUNK_OVERHEAD
        # After the last chunk trailer fields may follow; after any other one its bytes.
        self._head_packets = 0

    def on_body(self, body: bytes) -> None:
        self._head_packets = NO_HEAD
        self._excess -= 3 * len(body)
        if not self._ours:
            self.keep_body(body)
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
        self._head_room = 0
        if self.owing:
            self.owe_nothing()
        if not self._ours:
            if not self.deaf:
                self.delegate()
            return
        request, self._request = self._request, None
        if request is not None and not self.deaf:
            request.complete = True
            if request.publish is not None or request.chunks:
                self.deliver(request)
            if self.exchange is None:
                self.rest_again()

    def too_slow(self) -> None:
        """Reject the request, or close where it has been answered already and the rest of its body is missing."""
        if self._request is None:
            super().too_slow()
        else:
            self.owe_nothing()
            self.without_route().end(Reason.TIMEOUT)
            self.abort()

    # Mechanics.

    def _make_parser(self) -> httptools.HttpRequestParser:
        """A new parser, with the one leniency that uvicorn's have: between two messages nothing is known to it."""
        self.parser = parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _deliver_rest(self) -> None:
        """No more of the body will come: what has arrived counts, half a chunk included."""
        if (request := self._request) is not None:
            self._flush_partial()
            if request.chunks:
                self.deliver(request)

    def _flush_partial(self) -> None:
        """What has arrived of a chunk goes on as it is."""
        if self._partial and (request := self._request) is not None:
            request.chunks.append(self._partial[0] if len(self._partial) == 1 else b"".join(self._partial))
        self._partial = None
        self._partial_size = 0

    def _upgraded(self, rest: bytes) -> None:
        """Serve a request that offered another protocol (h2c, say) as plain HTTP/1.1, body included."""
        if self._upgrade is not None:
            head, self._upgrade = self._upgrade, None
            self._make_parser()
            self.data_received(b"\r\n".join([*head, b"", rest]))
