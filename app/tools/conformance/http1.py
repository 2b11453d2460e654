"""A strict HTTP/1.1 response parser that finds fault, and the expectations that cases have of responses.

The parser accepts only what RFC 9112 lets a server send. A client library would forgive a bare line feed, a second
Content-Length or a body that stops early, and so hide the fault. The parser keeps the chunks of a chunked body apart,
because the trickle protocol has rules about single chunks.

Each check raises :class:`Failure` with the expected and the received value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

from tricklecast.trickle import wire

MAX_LINE_BYTES: Final = 16_384
MAX_FIELDS: Final = 100

_SHOWN_BYTES: Final = 200

_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?")

_HEADERS: Final = {
    "seq": wire.SEQ,
    "latest": wire.LATEST,
    "earliest": wire.EARLIEST,
    "next": wire.NEXT,
    "size": wire.SIZE,
    "epoch": wire.EPOCH,
    "closed": wire.CLOSED,
    "content_type": "Content-Type",
    "content_length": "Content-Length",
}
"""The keyword of :meth:`Response.expect` for each header."""

Fields = tuple[tuple[str, str], ...]
T = TypeVar("T")


class Failure(Exception):
    """The server broke a rule.

    Attributes:
        expected: the behaviour that the rule demands.
        got: the behaviour of the server, shortened.
    """

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(expected, got)
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"expected {self.expected}, got {self.got}"


class Malformed(Failure):
    """The server sent bytes that are no HTTP/1.1 response."""

    def __init__(self, why: str, data: bytes = b"") -> None:
        super().__init__("a well-formed HTTP/1.1 response", f"{why}{f': {shorten(data)}' if data else ''}")


class Cut(Failure):
    """The server ended the connection in the middle of a response, or before one."""

    def __init__(self, where: str) -> None:
        super().__init__("a whole response", f"the end of the connection {where}")


class Skip(Exception):
    """The case cannot judge the server, for the reason given. The case has neither passed nor failed."""


def shorten(data: bytes, limit: int = _SHOWN_BYTES) -> str:
    """Printable text for bytes; it leaves out and counts the middle of more than ``limit`` bytes."""
    if len(data) <= limit:
        return repr(data)[1:]
    half = limit // 2
    return f"{repr(data[:half])[1:]}… {len(data) - limit} bytes …{repr(data[-half:])[1:]}"


def check(condition: bool, expected: str, got: object) -> None:
    """Check that a condition holds."""
    if not condition:
        raise Failure(expected, _show(got))


def equal(what: str, got: T, expected: T) -> T:
    """Check that a value is the expected one, and return it."""
    check(got == expected, f"{what}: {_show(expected)}", got)
    return got


def number(name: str, text: str | None) -> int:
    """Check that a text is a number of at most 15 digits, and return the number."""
    if text is None or not re.fullmatch("[0-9]{1,15}", text):
        raise Failure(f"{name} as a number", repr(text))
    return int(text)


def _show(value: object) -> str:
    return shorten(value) if isinstance(value, bytes) else str(value) if isinstance(value, Head) else repr(value)


def find(fields: Fields, name: str) -> str | None:
    """The value of a field that may occur at most once, in any case; ``None`` if it is missing.

    Raises:
        Malformed: the field occurs more than once.
    """
    values = [value for key, value in fields if key.lower() == name.lower()]
    if len(values) > 1:
        raise Malformed(f"{name} {len(values)} times")
    return values[0] if values else None


class Framing(Enum):
    """How a client finds the end of a body."""

    NONE = "no body"
    LENGTH = "Content-Length"
    CHUNKED = "chunked"
    CLOSE = "end of connection"


@dataclass(slots=True)
class Head:
    """Status line and headers."""

    version: str
    status: int
    reason: str
    headers: Fields

    def get(self, name: str) -> str | None:
        """The value of a header that may occur once; ``None`` if it is missing."""
        return find(self.headers, name)

    def tokens(self, name: str) -> set[str]:
        """The members of a comma-separated header, in lower case, from all lines of that name."""
        joined = ",".join(value for key, value in self.headers if key.lower() == name.lower())
        return {token.strip().lower() for token in joined.split(",") if token.strip()}

    @property
    def closes(self) -> bool:
        """Whether the server announced that this response is the last one on the connection."""
        return "close" in self.tokens("Connection") or self.version == "1.0"

    def framing(self, method: str) -> Framing:
        """How the body ends (RFC 9112, section 6.3).

        Args:
            method: of the request.

        Raises:
            Malformed: the headers contradict each other.
        """
        length, coding = self.get("Content-Length"), self.get("Transfer-Encoding")
        if length is not None and not re.fullmatch("[0-9]{1,15}", length):
            raise Malformed(f"Content-Length {length!r}")
        if coding is not None and (coding.lower() != "chunked" or self.version == "1.0"):
            raise Malformed(f"Transfer-Encoding {coding!r} in HTTP/{self.version}")
        if coding is not None and length is not None:
            raise Malformed("both Content-Length and Transfer-Encoding")
        if self.status < 200 or self.status == 204:
            if coding is not None or length is not None:
                raise Malformed(f"a body announced in a {self.status}")
            return Framing.NONE
        if method == "HEAD" or self.status == 304:
            return Framing.NONE
        if coding is not None:
            return Framing.CHUNKED
        return Framing.LENGTH if length is not None else Framing.CLOSE

    def __str__(self) -> str:
        fields = "; ".join(f"{name}: {value}" for name, value in self.headers)
        return f"{self.status} {self.reason} ({fields})"


@dataclass(slots=True)
class Response(Head):
    """A response, and what a case expects of it. Each expectation returns the response, so that others can follow.

    Attributes:
        interim: the 1xx heads that came before it.
        framed: how its body ends.
        chunks: the body as it was framed: HTTP chunks if it was chunked, otherwise the pieces as they were received.
        trailers: the fields after a chunked body.
    """

    interim: tuple[Head, ...] = ()
    framed: Framing = Framing.NONE
    chunks: list[bytes] = field(default_factory=list)
    trailers: Fields = ()

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)

    def marked(self, name: str) -> str | None:
        """The value of a field in the headers or in the trailers."""
        return self.get(name) or find(self.trailers, name)

    def expect(self, *statuses: int, **headers: str | int | None) -> Response:
        """Expect one of these statuses, and these headers.

        Args:
            statuses: the allowed ones; none: any.
            headers: values by the keywords ``seq``, ``latest``, ``earliest``, ``next``, ``size``, ``epoch``,
                ``closed``, ``content_type``, ``content_length``; ``None``: the header is missing.
        """
        wanted = " or ".join(map(str, statuses))
        check(not statuses or self.status in statuses, f"status {wanted}", f"{self} {shorten(self.body)}")
        for keyword, value in headers.items():
            name = _HEADERS[keyword]
            got = self.get(name)
            expected = f"no {name}" if value is None else f"{name}: {value}"
            check(got == (None if value is None else str(value)), expected, f"{name}: {got} in {self}")
        return self

    def number(self, name: str) -> int:
        """Expect that a header is a number, and return the number."""
        return number(name, self.get(name))

    def segment(self, seq: int, body: bytes, **headers: str | int | None) -> Response:
        """Expect a segment with this body."""
        self.expect(200, seq=seq, **headers)
        equal("the body", self.body, body)
        return self

    def empty(self, seq: int, **headers: str | int | None) -> Response:
        """Expect the answer to the reader of a segment that closed without a byte."""
        self.expect(200, content_length=0, seq=seq, **headers)
        check(self.get("Content-Type") is not None, "a Content-Type", self)
        return self

    def ended(self) -> Response:
        """Expect that the answer announces the end of the channel."""
        return self.expect(closed=wire.TERMINATED)

    def refused(self, status: int, text: str | None = None, **headers: str | int | None) -> Response:
        """Expect a refusal: this status, and a body that is one line of text.

        Args:
            status: the expected one.
            text: the expected line; ``None``: any.
            headers: as for :meth:`expect`.
        """
        self.expect(status, **headers)
        line = self.body.decode("utf-8", "replace").rstrip("\r\n")
        check(bool(line) and line.isprintable(), "a body that is one line of text", self.body)
        if text is not None:
            equal("the text", line, text)
        return self

    def missing(self, head: int, asked: int, **headers: str | int | None) -> Response:
        """Expect a 470: the channel exists, the segment does not."""
        return self.refused(470, "Entry not found", latest=head, seq=asked, **headers)

    def busy(self) -> Response:
        """Expect a 503 with a ``Retry-After`` in whole seconds."""
        self.refused(503).number(wire.RETRY_AFTER)
        return self

    def truncated(self) -> Response:
        """Expect that a header or a trailer calls the segment truncated."""
        check(bool(self.marked(wire.TRUNCATED)), f"{wire.TRUNCATED} in headers or trailers", f"{self} {self.trailers}")
        return self

    def whole(self) -> Response:
        """Expect that neither headers nor trailers call the segment truncated."""
        check(self.marked(wire.TRUNCATED) is None, f"no {wire.TRUNCATED}", self.marked(wire.TRUNCATED))
        return self

    def keeps_open(self) -> Response:
        """Expect that the connection may be used for another request."""
        check(not self.closes, "a connection that stays open", self)
        return self


class ByteReader:
    """Takes lines and counted bytes out of a stream.

    Args:
        receive: returns the next bytes, at least one; ``b""`` at the end of the stream.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self._receive = receive
        self._buffer = bytearray()

    def line(self, where: str) -> bytes:
        """One line without its CRLF.

        Args:
            where: the place in the response, for the failure.

        Raises:
            Malformed: the line ends in a bare LF, or is too long.
            Cut: the stream ended before the line did.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise Malformed("an endless line", bytes(self._buffer))
            self._fill(where)
        line = self._take(end + 1)
        if not line.endswith(b"\r\n"):
            raise Malformed("a line that ends without CR", line)
        return line[:-2]

    def exactly(self, count: int, where: str) -> bytes:
        """``count`` bytes.

        Raises:
            Cut: the stream ended before.
        """
        while len(self._buffer) < count:
            self._fill(where)
        return self._take(count)

    def at_most(self, count: int) -> bytes:
        """Up to ``count`` bytes; waits for at least one; ``b""`` at the end of the stream."""
        if not self._buffer:
            self._buffer += self._receive()
        return self._take(min(count, len(self._buffer)))

    def _fill(self, where: str) -> None:
        data = self._receive()
        if not data:
            raise Cut(f"{where}, after {shorten(bytes(self._buffer))}" if self._buffer else where)
        self._buffer += data

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    @property
    def buffered(self) -> bytes:
        """The bytes that were received and not taken yet."""
        return bytes(self._buffer)


class ResponseParser:
    """Reads the responses of one connection, one after the other.

    Args:
        reader: where the bytes come from.
    """

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self._left = 0
        self._response: Response | None = None

    def next_head(self) -> Head:
        """The next status line and headers, interim or not."""
        line = self._reader.line("before a response")
        if not (match := _STATUS_LINE.fullmatch(line)):
            raise Malformed("a bad status line", line)
        version, status, reason = (part.decode("latin-1") for part in match.groups())
        head = Head(version, int(status), reason, self._fields("in the headers"))
        head.framing("GET")  # a contradiction is a fault even if the response has no body
        return head

    def head(self, method: str) -> Response:
        """The next final response without its body, and the interim responses before it.

        Args:
            method: of the request.
        """
        interim: list[Head] = []
        while (head := self.next_head()).status < 200:
            if head.status == 101:
                raise Malformed("101 Switching Protocols, which the client did not ask for")
            interim.append(head)
        framing = head.framing(method)
        self._left = int(head.get("Content-Length") or 0) if framing is Framing.LENGTH else 0
        self._response = Response(head.version, head.status, head.reason, head.headers, tuple(interim), framing)
        return self._response

    def response(self, method: str) -> Response:
        """The next final response with its whole body and trailers."""
        response = self.head(method)
        self.rest()
        return response

    def chunk(self) -> bytes | None:
        """The next piece of the body, which the response keeps, too; ``None`` after the end of the body."""
        if self._response is None:
            return None
        data = self._next_piece(self._response)
        if data is None:
            self._response = None
        else:
            self._response.chunks.append(data)
        return data

    def rest(self) -> bytes:
        """The body from here to its end."""
        pieces = []
        while (piece := self.chunk()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    def _next_piece(self, response: Response) -> bytes | None:
        match response.framed:
            case Framing.NONE:
                return None
            case Framing.LENGTH:
                return self._counted()
            case Framing.CHUNKED:
                return self._chunked(response)
            case Framing.CLOSE:
                return self._reader.at_most(1 << 20) or None

    def _counted(self) -> bytes | None:
        if not self._left:
            return None
        data = self._reader.at_most(self._left)
        if not data:
            raise Cut(f"with {self._left} bytes of the body missing")
        self._left -= len(data)
        return data

    def _chunked(self, response: Response) -> bytes | None:
        line = self._reader.line("before the final chunk")
        if not (match := _CHUNK_SIZE.fullmatch(line)):
            raise Malformed("a bad chunk size", line)
        size = int(match[1], 16)
        if not size:
            response.trailers = self._fields("in the trailers")
            return None
        data = self._reader.exactly(size, "inside a chunk")
        if end := self._reader.line("after a chunk"):
            raise Malformed("more in a chunk than its size", end)
        return data

    def _fields(self, where: str) -> Fields:
        fields: list[tuple[str, str]] = []
        while line := self._reader.line(where):
            if not (match := _FIELD.fullmatch(line)):
                raise Malformed("a bad field line", line)
            fields.append((match[1].decode("ascii"), match[2].decode("latin-1")))
            if len(fields) > MAX_FIELDS:
                raise Malformed(f"more than {MAX_FIELDS} fields")
        return tuple(fields)
