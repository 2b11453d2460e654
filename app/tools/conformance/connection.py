"""One raw connection: it sends bytes exactly as a case wants them, and reads responses with the strict parser.

Deadlines are generous: they only end a case that has failed. A case proves that something does *not* come by order,
not by speed. :meth:`Connection.silent` may miss a fault on a slow machine, and never invents one.

A ``within_s`` is a deadline in seconds; by default it is that for an answer that must come at once.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tricklecast.app.tools.conformance.http1 import (
    Failure,
    Response,
    ResponseParser,
    Skip,
    Wanted,
    check,
    equal,
    shorten,
)

AT_ONCE_S: Final = 10.0
"""Deadline for an answer that must come at once: long enough for a busy machine, shorter than an endless wait."""

QUIET_S: Final = 0.25
"""A case watches this long for bytes that must not come."""

_TRANSCRIPT_LINES: Final = 40
_RECEIVE_BYTES: Final = 1 << 16

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


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
        """One line per entry."""
        return tuple(
            f"{at_s:6.2f} s  {text}{f' ({count} times)' if count > 1 else ''}" for at_s, text, count in self._entries
        )


class Connection:
    """A TCP (or TLS) connection to the server; the transcript, where it has this number, records its bytes."""

    def __init__(
        self, sock: socket.socket, host: str, number: int, transcript: Transcript, at_once_s: float = AT_ONCE_S
    ) -> None:
        self._sock = sock
        self._host = host
        self._number = number
        self._transcript = transcript
        self._at_once_s = self._within_s = at_once_s
        self._deadline = 0.0
        self._parser = ResponseParser(self._receive)
        self._methods: deque[str] = deque()

    # Sending

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
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
        self, method: str, path: str, headers: Headers = (), body: bytes | None = None, version: str = "1.1"
    ) -> None:
        """Send a request. A body gets a Content-Length unless a header frames it, rightly or not."""
        fields = pairs(headers)
        if body is not None and not {"Content-Length", "Transfer-Encoding"} & dict(fields).keys():
            fields.append(("Content-Length", str(len(body))))
        self.send(self.render(method, path, fields, version) + (body or b""))
        self.expects(method)

    def render(self, method: str, path: str, headers: Headers = (), version: str = "1.1") -> bytes:
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
        return self._within(within_s).response(self._next_method())

    def head(self, within_s: float | None = None) -> Response:
        """Status line and headers of the next response; its body is then read with :meth:`chunk`."""
        return self._within(within_s).head(self._next_method())

    def interim(self, within_s: float | None = None) -> Response:
        """The next status line and headers, which may be those of an interim response."""
        return self._within(within_s).next_head()

    def chunk(self, within_s: float | None = None) -> bytes | None:
        """The next piece of the body, one HTTP chunk if it is chunked; ``None`` after the end of the body."""
        return self._within(within_s).chunk()

    def body(self, count: int, within_s: float | None = None) -> bytes:
        """The next ``count`` bytes of the body, or fewer at its end, in any number of pieces."""
        data = b""
        while len(data) < count and (piece := self.chunk(within_s)) is not None:
            data += piece
        return data

    def rest(self, within_s: float | None = None) -> bytes:
        """The body from here to its end."""
        return self._within(within_s).rest()

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

    def gets(self, data: bytes) -> Connection:
        """Expect these bytes next in the body."""
        equal("the bytes", self.body(len(data)), data)
        return self

    def ends(self, data: bytes = b"", within_s: float | None = None) -> Response:
        """Expect these bytes as the rest of the body; returns the response, which has its trailers now."""
        response = self._parser.current
        equal("the rest", self.rest(within_s), data)
        assert response is not None, "a case reads the head first"
        return response

    def silent(self, watch_s: float = QUIET_S) -> Connection:
        """Expect that nothing has come, and that the connection is open."""
        if self._parser.buffer:
            raise Failure("nothing yet", shorten(bytes(self._parser.buffer)))
        self._within(watch_s)
        with contextlib.suppress(Late):
            data = self._receive()
            raise Failure("nothing yet", shorten(data) if data else "the end of the connection")
        return self

    def closed(self, within_s: float | None = None) -> None:
        """Expect that the server closes the connection and sends nothing more."""
        try:
            data = bytes(self._within(within_s).buffer) or self._receive()
        except Late:
            raise Failure("the end of the connection", f"open after {self._within_s:g} s") from None
        if data:
            raise Failure("the end of the connection", shorten(data))

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
        """Close the connection. A second call does nothing."""
        self._sock.close()

    def interrupt(self) -> None:
        """End a read or write that another thread is waiting in."""
        with contextlib.suppress(OSError):
            # Not the method of an SSL socket, which must not be called beside a read.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _next_method(self) -> str:
        return self._methods.popleft() if self._methods else "GET"

    def _within(self, within_s: float | None) -> ResponseParser:
        """The parser, with a deadline for the bytes that it needs from now on."""
        self._within_s = self._at_once_s if within_s is None else within_s
        self._deadline = time.monotonic() + self._within_s
        return self._parser

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
class Upload:
    """A POST with a chunked body that a case writes piece by piece, after its head was sent on the connection."""

    connection: Connection

    def chunk(self, data: bytes) -> Upload:
        """Send one HTTP chunk in one piece."""
        self.connection.send(encode_chunk(data))
        return self

    def end(self) -> Upload:
        """Send the final chunk."""
        self.connection.send(b"0\r\n\r\n")
        return self

    def answer(self, within_s: float | None = None) -> Response:
        """The server's answer, which may come before the body ends."""
        return self.connection.response(within_s)

    def stored(self, **headers: Wanted) -> Response:
        """Send the final chunk, and expect a 200 with these headers."""
        return self.end().answer().expect(200, **headers)

    def last(self, *statuses: int, **headers: Wanted) -> Response:
        """Expect an answer that announces the end of the connection, and then that end."""
        return self.connection.last(*statuses, **headers)

    def silent(self) -> Upload:
        """Expect no answer yet."""
        self.connection.silent()
        return self

    def abort(self) -> None:
        """Reset the connection."""
        self.connection.abort()


def encode_chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def pairs(headers: Headers) -> list[tuple[str, str]]:
    """Headers as pairs of name and value."""
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)
