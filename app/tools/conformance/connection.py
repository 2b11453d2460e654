"""One raw connection: it sends bytes exactly as a case wants them, and forgives a server nothing.

A client library hides faults: it forgives a bare line feed, a second Content-Length, or a body that stops early. This
connection reads with the grammar of our clients (:mod:`~tricklecast.trickle.client.grammar` and
:mod:`~tricklecast.trickle.client.grammar`), which allows a response one meaning only, and keeps chunks apart, because
the protocol has rules about single chunks.

Deadlines are generous: they only end a case that has failed. A case proves that something does *not* come by order,
not by speed. :meth:`RawConnection.silent` may miss a fault on a slow machine, and never invents one.

A ``within_s`` is a deadline in seconds; by default it is that for an answer that must come at once.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tricklecast.app.tools.conformance.response import (
    ConnectionCut,
    Failure,
    MalformedResponse,
    Response,
    Skip,
    Wanted,
    check,
    equal,
    shorten,
)
from tricklecast.trickle.client.grammar import BodyDecoder, InvalidBody, InvalidHead, parse_response

AT_ONCE_S: Final = 10.0
"""Deadline for an answer that must come at once: long enough for a busy machine, shorter than an endless wait."""

QUIET_S: Final = 0.25
"""A case watches this long for bytes that must not come."""

_TRANSCRIPT_LINES: Final = 40
_RECEIVE_BYTES: Final = 1 << 16

_BARE_LINE_FEED: Final = re.compile(rb"(?<!\r)\n")
_STATUS_BYTES: Final = len(b"HTTP/1.1 200")
"""A space stands behind the status, also if no reason follows (RFC 9112, section 4)."""

HeaderFields = Mapping[str, str] | Iterable[tuple[str, str]]


class Late(Failure):
    """The server sent nothing within the deadline."""

    def __init__(self, within_s: float) -> None:
        super().__init__(f"an answer within {within_s:g} s", "nothing")


class Transcript:
    """The bytes on a case's connections, shortened, for the report of a failure.

    A line that repeats is counted instead of shown again, so that a flood does not push the beginning out.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._entries: deque[tuple[float, str, int]] = deque(maxlen=_TRANSCRIPT_LINES)

    def add(self, connection: int, direction: str, data: bytes | str) -> None:
        """Note bytes that the case sent (``>``) or received (``<``), or an event (``!``)."""
        text = f"#{connection} {direction} {data if isinstance(data, str) else shorten(data)}"
        if self._entries and self._entries[-1][1] == text:
            at_s, _, count = self._entries.pop()
            self._entries.append((at_s, text, count + 1))
        else:
            self._entries.append((time.monotonic() - self._start, text, 1))

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(
            f"{at_s:6.2f} s  {text}{f' ({count} times)' if count > 1 else ''}" for at_s, text, count in self._entries
        )


class RawConnection:
    """A TCP (or TLS) connection to the server; the transcript, where it has this number, records its bytes."""

    def __init__(
        self, sock: socket.socket, host: str, number: int, transcript: Transcript, at_once_s: float = AT_ONCE_S
    ) -> None:
        self._sock = sock
        self._host = host
        self._number = number
        self._transcript = transcript
        self._at_once_s = at_once_s
        self._within_s = at_once_s  # the deadline of the present read, from its beginning
        self._deadline = 0.0  # the same on the monotonic clock
        self._methods: deque[str] = deque()  # of the requests without a response yet
        self._buffer = bytearray()  # received bytes that belong to no response yet
        self._current: Response | None = None  # the last response whose head was read
        self._decoder: BodyDecoder | None = None  # of its body; None when the body is over

    # Sending

    def send(self, data: bytes) -> None:
        self._transcript.add(self._number, ">", data)
        self._sock.settimeout(self._at_once_s)
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise Failure("the server to read the request", f"nothing read for {self._at_once_s:g} s") from None
        except OSError as error:
            raise Failure("the server to keep the connection open", str(error)) from None

    def try_send(self, data: bytes) -> bool:
        """Send bytes that the server may refuse to read; returns whether it took them."""
        try:
            self.send(data)
        except Failure:
            return False
        return True

    def request(
        self, method: str, path: str, headers: HeaderFields = (), body: bytes | None = None, version: str = "1.1"
    ) -> None:
        """Send a request. A body gets a Content-Length unless a header frames it, rightly or not."""
        fields = pairs(headers)
        if body is not None and not {"Content-Length", "Transfer-Encoding"} & dict(fields).keys():
            fields.append(("Content-Length", str(len(body))))
        self.send(self.render(method, path, fields, version) + (body or b""))
        self.expects(method)

    def render(self, method: str, path: str, headers: HeaderFields = (), version: str = "1.1") -> bytes:
        """The bytes of a request's head, with ``Host``."""
        lines = [f"{method} {path} HTTP/{version}", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in pairs(headers)]
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")

    def expects(self, method: str) -> None:
        """Tell the parser the method of a request that was sent as raw bytes; the default is GET."""
        self._methods.append(method)

    # Receiving

    def response(self, within_s: float | None = None) -> Response:
        """The next response with its whole body."""
        response = self.head(within_s)
        self._read_rest()
        return response

    def head(self, within_s: float | None = None) -> Response:
        """Status line and headers of the next final response; its body is then read with :meth:`chunk`."""
        self._begin(within_s)
        method = self._methods.popleft() if self._methods else "GET"
        while (response := self._read_head()).status < 200:
            if response.status == 101:
                raise MalformedResponse("101 Switching Protocols, which the client did not ask for")
        self._current = response
        self._decoder = BodyDecoder(response.head, bytes(self._buffer), is_empty=method == "HEAD")
        self._buffer.clear()
        self._finish()
        return response

    def interim(self, within_s: float | None = None) -> Response:
        """The next status line and headers, which may be those of an interim response."""
        self._begin(within_s)
        return self._read_head()

    def chunk(self, within_s: float | None = None) -> bytes | None:
        """The next piece of the body, one HTTP chunk if it is chunked; ``None`` after the end of the body."""
        self._begin(within_s)
        return self._read_chunk()

    def body(self, count: int, within_s: float | None = None) -> bytes:
        """The next ``count`` bytes of the body, or fewer at its end, in any number of pieces."""
        data = b""
        while len(data) < count and (piece := self.chunk(within_s)) is not None:
            data += piece
        return data

    def rest(self, within_s: float | None = None) -> bytes:
        """The body from here to its end."""
        self._begin(within_s)
        return self._read_rest()

    # Expectations

    def expect(self, *statuses: int, **headers: Wanted) -> Response:
        """Read the next response and expect these statuses and headers; see :meth:`Response.expect`."""
        return self.response().expect(*statuses, **headers)

    def segment(self, seq: int, body: bytes, **headers: Wanted) -> Response:
        """Read the next response and expect a segment with this body."""
        return self.response().segment(seq, body, **headers)

    def last(self, *statuses: int, **headers: Wanted) -> Response:
        """Expect a response that announces the end of the connection, and then that end."""
        response = self.expect(*statuses, **headers)
        check("close" in response.tokens("Connection"), "Connection: close", response)
        self.closed()
        return response

    def gets(self, data: bytes) -> RawConnection:
        """Expect these bytes next in the body."""
        equal("the bytes", self.body(len(data)), data)
        return self

    def ends(self, data: bytes = b"", within_s: float | None = None) -> Response:
        """Expect these bytes as the rest of the body; returns the response, which has its trailers now."""
        response = self._current
        equal("the rest", self.rest(within_s), data)
        assert response is not None, "a case reads the head first"
        return response

    def silent(self, watch_s: float = QUIET_S) -> RawConnection:
        """Expect that nothing has come, and that the connection is open."""
        self._begin(watch_s)
        with contextlib.suppress(Late):
            raise Failure("nothing yet", self._unread() or "the end of the connection")
        return self

    def closed(self, within_s: float | None = None) -> None:
        """Expect that the server closes the connection and sends nothing more."""
        try:
            self._begin(within_s)
            got = self._unread()
        except Late:
            got = f"open after {self._within_s:g} s"
        if got:
            raise Failure("the end of the connection", got)

    # Ending

    def half_close(self) -> None:
        """Close the sending side, and keep reading."""
        if isinstance(self._sock, ssl.SSLSocket):
            raise Skip("a TLS connection cannot be half-closed from here")
        self._transcript.add(self._number, "!", "half-closed here")
        self._sock.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """Reset the connection, as a crashing client does."""
        self._transcript.add(self._number, "!", "aborted here")
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        self._sock.close()

    def interrupt(self) -> None:
        """End a read or write that another thread is waiting in."""
        with contextlib.suppress(OSError):
            # Not the method of an SSL socket, which must not be called beside a read.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _begin(self, within_s: float | None) -> None:
        """Set the deadline for the bytes that are needed from now on."""
        self._within_s = self._at_once_s if within_s is None else within_s
        self._deadline = time.monotonic() + self._within_s

    def _unread(self) -> str:
        """The next bytes that no case has read, for people; empty at the end of the connection."""
        data, read = bytes(self._buffer), b""
        while not data:
            if self._decoder is not None:  # what was read is perhaps only the line end behind a chunk
                data = self._decode(self._decoder, read) or self._decoder.rest
                if data or self._decoder.over:
                    break
            if not (read := self._receive()):
                return ""
            if self._decoder is None:
                data = read
        return shorten(data) if data else "the end of the body"

    def _read_head(self) -> Response:
        searched = 0
        try:
            while (found := parse_response(self._buffer, searched)) is None:
                if _BARE_LINE_FEED.search(self._buffer, searched):
                    raise MalformedResponse("a line that ends without CR")
                searched = len(self._buffer)
                if not (data := self._receive()):
                    after = f", after {shorten(bytes(self._buffer))}" if self._buffer else ""
                    raise ConnectionCut(f"before a response{after}")
                self._buffer += data
        except InvalidHead as error:
            raise MalformedResponse(str(error)) from None
        head, size = found
        if self._buffer[_STATUS_BYTES : _STATUS_BYTES + 1] != b" ":
            raise MalformedResponse("no space behind the status")
        if (head.status_code < 200 or head.status_code == 204) and (head.chunked or head.length is not None):
            raise MalformedResponse(f"a body announced in a {head.status_code}")
        del self._buffer[:size]
        return Response(head)

    def _read_chunk(self) -> bytes | None:
        while (decoder := self._decoder) is not None:
            chunk = self._decode(decoder)
            if chunk is None and not decoder.over:
                if data := self._receive():
                    chunk = self._decode(decoder, data)
                elif not decoder.end():
                    raise ConnectionCut("in the body")
            self._finish()
            if chunk is not None:
                assert self._current is not None, "a decoder has a response"
                self._current.chunks.append(chunk)
                return chunk
        return None

    def _decode(self, decoder: BodyDecoder, data: bytes = b"") -> bytes | None:
        try:
            return decoder.next_chunk(data)
        except InvalidBody as error:
            raise MalformedResponse(str(error)) from None

    def _finish(self) -> None:
        """Take the trailers at the end of a body, and the bytes behind it, which belong to the next response."""
        if self._decoder is not None and self._decoder.over:
            assert self._current is not None, "a decoder has a response"
            self._current.trailers = self._decoder.trailers
            self._buffer += self._decoder.rest
            self._decoder = None

    def _read_rest(self) -> bytes:
        return b"".join(iter(self._read_chunk, None))

    def _receive(self) -> bytes:
        # A timeout of zero would make the socket non-blocking.
        self._sock.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise Late(self._within_s) from None
        except (ConnectionError, ssl.SSLEOFError) as error:
            self._transcript.add(self._number, "!", f"broken: {error}")
            return b""
        self._transcript.add(self._number, "<", data if data else "end of connection")
        return data


@dataclass(frozen=True, slots=True)
class ChunkedPost:
    """A POST with a chunked body that a case writes piece by piece, after its head was sent on the connection."""

    connection: RawConnection

    def chunk(self, data: bytes) -> ChunkedPost:
        self.connection.send(encode_chunk(data))
        return self

    def end(self) -> ChunkedPost:
        self.connection.send(b"0\r\n\r\n")
        return self

    def answer(self, within_s: float | None = None) -> Response:
        """The server's answer, which may come before the body ends."""
        return self.connection.response(within_s)

    def stored(self, **headers: Wanted) -> Response:
        """Send the final chunk, and expect a 200 with these headers."""
        return self.end().answer().expect(200, **headers)

    def last(self, *statuses: int, **headers: Wanted) -> Response:
        return self.connection.last(*statuses, **headers)

    def silent(self) -> ChunkedPost:
        self.connection.silent()
        return self

    def abort(self) -> None:
        self.connection.abort()


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def pairs(headers: HeaderFields) -> list[tuple[str, str]]:
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)
