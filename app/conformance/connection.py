"""One raw connection: bytes out as the case wants them, responses in through the strict parser.

Deadlines are generous and only ever end a case that has failed. That something does *not* come is shown by order,
not by speed: :meth:`Connection.silent` can only find a fault, never invent one, however slow the machine.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tricklecast.app.conformance.http1 import Head, Response, ResponseParser
from tricklecast.app.conformance.stream import ByteReader
from tricklecast.app.conformance.verdicts import Failure, Skip, shorten

AT_ONCE_S: Final = 10.0
"""How long "at once" may take: long enough for a busy machine, shorter than a wait that never ends."""

QUIET_S: Final = 0.25
"""How long to watch for bytes that must not come."""

_TRANSCRIPT_LINES: Final = 40
_RECEIVE_BYTES: Final = 1 << 16

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


class Late(Failure):
    """Nothing came within the deadline."""

    def __init__(self, within_s: float) -> None:
        super().__init__(f"an answer within {within_s:g} s", "nothing")


class Transcript:
    """What went over a case's connections, shortened, for the report of a failure.

    Floods are counted instead of repeated, so that the beginning stays in sight.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._entries: deque[_Entry] = deque(maxlen=_TRANSCRIPT_LINES)

    def add(self, connection: int, direction: str, data: bytes | str) -> None:
        """Note bytes that were sent (``>``) or received (``<``), or something that happened (``!``)."""
        text = f"#{connection} {direction} {data if isinstance(data, str) else shorten(data)}"
        if self._entries and self._entries[-1].text == text:
            self._entries[-1].count += 1
        else:
            self._entries.append(_Entry(time.monotonic() - self._start, text))

    @property
    def lines(self) -> tuple[str, ...]:
        """One line per entry."""
        return tuple(str(entry) for entry in self._entries)


@dataclass(slots=True)
class _Entry:
    at_s: float
    text: str
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.at_s:6.2f} s  {self.text}{times}"


class Connection:
    """A TCP (or TLS) connection to the server.

    Args:
        sock: connected.
        host: value of the ``Host`` header.
        number: how the transcript calls this connection.
        transcript: where sent and received bytes are noted.
        at_once_s: how long "at once" may take, where nothing else is said.
    """

    def __init__(
        self, sock: socket.socket, host: str, number: int, transcript: Transcript, at_once_s: float = AT_ONCE_S
    ) -> None:
        self._sock = sock
        self._host = host
        self._number = number
        self._transcript = transcript
        self._at_once_s = at_once_s
        self._deadline = 0.0
        self._within_s = at_once_s
        self._reader = ByteReader(self._receive)
        self._parser = ResponseParser(self._reader)
        self._methods: list[str] = []

    # Sending

    def send(self, data: bytes) -> None:
        """Send bytes as they are.

        Raises:
            Failure: the server has closed the connection, or does not read.
        """
        self._transcript.add(self._number, ">", data)
        self._sock.settimeout(self._at_once_s)
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise Failure("the server to read what is sent", f"nothing read for {self._at_once_s:g} s") from None
        except OSError as error:
            raise Failure("the server to keep the connection open", str(error)) from None

    def try_send(self, data: bytes) -> bool:
        """Send bytes that the server may rightly refuse to read; whether they could be sent."""
        try:
            self.send(data)
        except Failure:
            return False
        return True

    def request(self, method: str, path: str, headers: Headers = (), body: bytes | None = None) -> None:
        """Send a request; with a body it is counted, without one nothing is said about a body."""
        length = [] if body is None else [("Content-Length", str(len(body)))]
        self.send(self.render(method, path, [*_pairs(headers), *length]) + (body or b""))
        self.expects(method)

    def render(self, method: str, path: str, headers: Headers = (), version: str = "1.1") -> bytes:
        """The bytes of a request's head; ``Host`` is added."""
        lines = [f"{method} {path} HTTP/{version}", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in _pairs(headers)]
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")

    def expects(self, method: str) -> None:
        """Say which method the next response answers, after sending a request as raw bytes."""
        self._methods.append(method)

    # Receiving

    def response(self, within_s: float | None = None) -> Response:
        """The next response with its whole body."""
        self._start(within_s)
        return self._parser.response(self._next_method())

    def head(self, within_s: float | None = None) -> Response:
        """Status line and headers of the next response; its body is then read with :meth:`chunk`."""
        self._start(within_s)
        return self._parser.head(self._next_method())

    def interim(self, within_s: float | None = None) -> Head:
        """The next status line and headers, which may be those of an interim response."""
        self._start(within_s)
        return self._parser.next_head()

    def chunk(self, within_s: float | None = None) -> bytes | None:
        """The next piece of the body, one HTTP chunk where it is chunked; ``None`` after the end."""
        self._start(within_s)
        return self._parser.chunk()

    def body(self, count: int, within_s: float | None = None) -> bytes:
        """So many bytes of the body, or all up to its end, in as many pieces as they come."""
        data = b""
        while len(data) < count and (piece := self.chunk(within_s)) is not None:
            data += piece
        return data

    def rest(self, within_s: float | None = None) -> bytes:
        """All of the body that was not read yet."""
        self._start(within_s)
        return self._parser.rest()

    def silent(self, watch_s: float = QUIET_S) -> None:
        """Check that nothing has come.

        A server that keeps the rule never fails this, however slow anything is; one that breaks it is caught if it
        does so within the time.

        Raises:
            Failure: something came, or the connection was closed.
        """
        if not self._reader.buffered:
            self._start(watch_s)
            try:
                data = self._receive()
            except Late:
                return
            raise Failure("nothing yet", shorten(data) if data else "the end of the connection")
        raise Failure("nothing yet", shorten(self._reader.buffered))

    def closed(self, within_s: float | None = None) -> None:
        """Check that the server closes the connection without sending anything more.

        Raises:
            Failure: more came, or the connection stayed open.
        """
        self._start(within_s)
        try:
            data = self._reader.at_most(_RECEIVE_BYTES)
        except Late:
            raise Failure("the end of the connection", f"open after {self._within_s:g} s") from None
        if data:
            raise Failure("the end of the connection", shorten(data))

    # Ending

    def half_close(self) -> None:
        """Say that nothing more will be sent, and keep reading.

        Raises:
            Skip: over TLS, which Python cannot half-close.
        """
        if isinstance(self._sock, ssl.SSLSocket):
            raise Skip("a TLS connection cannot be half-closed from here")
        self._transcript.add(self._number, "!", "half-closed here")
        self._sock.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """Break the connection off with a reset, as a crashing client does."""
        self._transcript.add(self._number, "!", "aborted here")
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        self._sock.close()

    def _next_method(self) -> str:
        return self._methods.pop(0) if self._methods else "GET"

    def _start(self, within_s: float | None) -> None:
        self._within_s = self._at_once_s if within_s is None else within_s
        self._deadline = time.monotonic() + self._within_s

    def _receive(self) -> bytes:
        # A socket whose timeout is zero would not wait at all, nor look.
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


class Upload:
    """A POST with a chunked body that the case writes piece by piece.

    Args:
        connection: where the request's head was sent.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def chunk(self, data: bytes) -> Upload:
        """Send one chunk in one piece."""
        self.connection.send(encode_chunk(data))
        return self

    def end(self) -> Upload:
        """Send the final chunk."""
        self.connection.send(b"0\r\n\r\n")
        return self

    def answer(self, within_s: float | None = None) -> Response:
        """The server's answer, which may come before the body ended."""
        return self.connection.response(within_s)

    def abort(self) -> None:
        """Break off."""
        self.connection.abort()


def encode_chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _pairs(headers: Headers) -> list[tuple[str, str]]:
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)
