"""A strict HTTP/1.1 response parser that finds fault, and the expectations that cases have of responses.

The parser accepts only what RFC 9112 lets a server send. A client library would forgive a bare line feed, a second
Content-Length or a body that stops early, and so hide the fault. The parser keeps the chunks of a chunked body apart,
because the trickle protocol has rules about single chunks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

from tricklecast.trickle import wire

MAX_LINE_BYTES: Final = 16_384
MAX_FIELDS: Final = 100

_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?")

_TRICKLE_HEADERS: Final = (
    wire.SEQ, wire.LATEST, wire.EARLIEST, wire.NEXT, wire.SIZE, wire.EPOCH, wire.CLOSED, wire.LIFE,
)  # fmt: skip
_HEADERS: Final = {
    **{name.rpartition("-")[2].lower(): name for name in _TRICKLE_HEADERS},
    "content_type": "Content-Type",
    "content_length": "Content-Length",
}
"""The header of each keyword of :meth:`Response.expect`; ``seq`` is that of ``Lp-Trickle-Seq``."""

Fields = tuple[tuple[str, str], ...]
Wanted = str | int | None
"""The expected value of a header; ``None``: the header is missing."""

T = TypeVar("T")


class Failure(Exception):
    """The server broke a rule: the behaviour that the rule demands, and the behaviour of the server, shortened."""

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


class ConnectionCut(Failure):
    """The server ended the connection in the middle of a response, or before one."""

    def __init__(self, where: str) -> None:
        super().__init__("a whole response", f"the end of the connection {where}")


class Skip(Exception):
    """The case cannot judge the server, for the reason given. The case has neither passed nor failed."""


def shorten(data: bytes, limit: int = 200) -> str:
    """Printable text for bytes; it leaves out and counts the middle of more than ``limit`` bytes."""
    if len(data) <= limit:
        return repr(data)[1:]
    half = limit // 2
    return f"{repr(data[:half])[1:]}… {len(data) - limit} bytes …{repr(data[-half:])[1:]}"


def _show(value: object) -> str:
    return shorten(value) if isinstance(value, bytes) else repr(value)


def check(condition: bool, expected: str, got: object) -> None:
    """Check that a condition holds."""
    if not condition:
        raise Failure(expected, _show(got))


def equal(what: str, got: T, expected: T) -> None:
    """Check that a value is the expected one."""
    check(got == expected, f"{what}: {_show(expected)}", got)


def number(name: str, text: str | None) -> int:
    """Check that a text is a number of at most 15 digits, and return the number."""
    if text is None or not re.fullmatch("[0-9]{1,15}", text):
        raise Failure(f"{name} as a number", repr(text))
    return int(text)


def _find(fields: Fields, name: str) -> str | None:
    values = [value for key, value in fields if key.lower() == name.lower()]
    if len(values) > 1:
        raise Malformed(f"{name} {len(values)} times")
    return values[0] if values else None


class Framing(Enum):
    """The way in which a client finds the end of a body."""

    NONE = "no body"
    LENGTH = "Content-Length"
    CHUNKED = "chunked"
    CLOSE = "end of connection"


@dataclass(slots=True, repr=False)
class Response:
    """A response, and the expectations of a case. Each expectation returns the response, so that others can follow.

    Attributes:
        framed: how its body ends.
        interim: the 1xx responses that came before it.
        chunks: the body as it was framed: HTTP chunks if it was chunked, otherwise the pieces as they were received.
        trailers: the fields after a chunked body.
    """

    version: str
    status: int
    reason: str
    headers: Fields
    framed: Framing = Framing.NONE
    interim: list[Response] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    trailers: Fields = ()

    def __repr__(self) -> str:
        fields = "; ".join(f"{name}: {value}" for name, value in self.headers)
        return f"{self.status} {self.reason} ({fields})"

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)

    def get(self, name: str) -> str | None:
        """The value of a header that may occur once, in any case; ``None`` if it is missing."""
        return _find(self.headers, name)

    def marked(self, name: str) -> str | None:
        """The value of a field in the headers or in the trailers."""
        return self.get(name) or _find(self.trailers, name)

    def tokens(self, name: str) -> set[str]:
        """The members of a comma-separated header, in lower case, from all lines of that name."""
        joined = ",".join(value for key, value in self.headers if key.lower() == name.lower())
        return {token.strip().lower() for token in joined.split(",") if token.strip()}

    @property
    def closes(self) -> bool:
        """Whether the server announced that this response is the last one on the connection."""
        return "close" in self.tokens("Connection") or self.version == "1.0"

    def framing(self) -> Framing:
        """The framing of the body, unless the request was a HEAD (RFC 9112, section 6.3)."""
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
        if self.status == 304:
            return Framing.NONE
        if coding is not None:
            return Framing.CHUNKED
        return Framing.LENGTH if length is not None else Framing.CLOSE

    # Expectations

    def expect(self, *statuses: int, **headers: Wanted) -> Response:
        """Expect one of these statuses (none: any), and these headers; their keywords are those of ``_HEADERS``."""
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

    def segment(self, seq: int, body: bytes, **headers: Wanted) -> Response:
        """Expect a segment with this body."""
        self.expect(200, seq=seq, **headers)
        equal("the body", self.body, body)
        return self

    def empty(self, seq: int, **headers: Wanted) -> Response:
        """Expect the answer to the reader of a segment that closed without a byte."""
        return self.expect(200, content_length=0, seq=seq, **headers).typed()

    def typed(self) -> Response:
        """Expect some Content-Type."""
        check(bool(self.get("Content-Type")), "a Content-Type", self)
        return self

    def ended(self) -> Response:
        """Expect that the answer announces the end of the channel."""
        return self.expect(closed=wire.TERMINATED)

    def refused(self, status: int, text: str | None = None, **headers: Wanted) -> Response:
        """Expect a refusal: this status, and a body that is one line of text, or this line."""
        self.expect(status, **headers)
        line = self.body.decode("utf-8", "replace").rstrip("\r\n")
        check(bool(line) and line.isprintable(), "a body that is one line of text", self.body)
        if text is not None:
            equal("the text", line, text)
        return self

    def unknown(self, **headers: Wanted) -> Response:
        """Expect the refusal of a request for a channel that does not exist."""
        return self.refused(404, "Stream not found", **headers)

    def missing(self, head: int, asked: int, **headers: Wanted) -> Response:
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


class ResponseParser:
    """Reads the responses of one connection, one after the other.

    Args:
        receive: returns the next bytes, at least one; ``b""`` at the end of the stream.
    """

    def __init__(self, receive: Callable[[], bytes]) -> None:
        self.buffer = bytearray()
        """The bytes that were received and not taken yet."""
        self._receive = receive
        self._left = 0
        self.current: Response | None = None
        """The response whose body has not been read to its end."""

    def next_head(self) -> Response:
        """The next status line and headers, interim or not."""
        line = self._line("before a response")
        if not (match := _STATUS_LINE.fullmatch(line)):
            raise Malformed("a bad status line", line)
        version, status, reason = (part.decode("latin-1") for part in match.groups())
        head = Response(version, int(status), reason, self._fields("in the headers"))
        head.framed = head.framing()
        return head

    def head(self, method: str) -> Response:
        """The next final response to a request of this method, without its body; with the interim ones before it."""
        interim: list[Response] = []
        while (head := self.next_head()).status < 200:
            if head.status == 101:
                raise Malformed("101 Switching Protocols, which the client did not ask for")
            interim.append(head)
        head.interim = interim
        if method == "HEAD":
            head.framed = Framing.NONE
        self._left = sys.maxsize if head.framed is Framing.CLOSE else 0
        if head.framed is Framing.LENGTH:
            self._left = int(head.get("Content-Length") or 0)
        self.current = head
        return head

    def response(self, method: str) -> Response:
        """The next final response with its whole body and trailers."""
        response = self.head(method)
        self.rest()
        return response

    def chunk(self) -> bytes | None:
        """The next piece of the body, which the response keeps, too; ``None`` after the end of the body."""
        if self.current is None:
            return None
        next_piece = self._chunked if self.current.framed is Framing.CHUNKED else self._plain
        if data := next_piece(self.current):
            self.current.chunks.append(data)
            return data
        self.current = None
        return None

    def rest(self) -> bytes:
        """The body from here to its end."""
        return b"".join(iter(self.chunk, None))

    def _plain(self, response: Response) -> bytes:
        if self._left and not self.buffer:
            self.buffer += self._receive()
        data = self._take(self._left)
        if self._left and not data and response.framed is Framing.LENGTH:
            raise ConnectionCut(f"with {self._left} bytes of the body missing")
        self._left -= len(data)
        return data

    def _chunked(self, response: Response) -> bytes:
        line = self._line("before the final chunk")
        if not (match := _CHUNK_SIZE.fullmatch(line)):
            raise Malformed("a bad chunk size", line)
        if not (size := int(match[1], 16)):
            response.trailers = self._fields("in the trailers")
            return b""
        while len(self.buffer) < size:
            self._fill("inside a chunk")
        data = self._take(size)
        if end := self._line("after a chunk"):
            raise Malformed("more in a chunk than its size", end)
        return data

    def _fields(self, where: str) -> Fields:
        fields: list[tuple[str, str]] = []
        while line := self._line(where):
            if not (match := _FIELD.fullmatch(line)):
                raise Malformed("a bad field line", line)
            fields.append((match[1].decode("ascii"), match[2].decode("latin-1")))
            if len(fields) > MAX_FIELDS:
                raise Malformed(f"more than {MAX_FIELDS} fields")
        return tuple(fields)

    def _line(self, where: str) -> bytes:
        while (end := self.buffer.find(b"\n")) < 0:
            if len(self.buffer) > MAX_LINE_BYTES:
                raise Malformed("an endless line", bytes(self.buffer))
            self._fill(where)
        line = self._take(end + 1)
        if not line.endswith(b"\r\n"):
            raise Malformed("a line that ends without CR", line)
        return line[:-2]

    def _fill(self, where: str) -> None:
        data = self._receive()
        if not data:
            raise ConnectionCut(f"{where}, after {shorten(bytes(self.buffer))}" if self.buffer else where)
        self.buffer += data

    def _take(self, count: int) -> bytes:
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data
