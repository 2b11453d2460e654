"""A strict HTTP/1.1 response parser, made to find fault.

It accepts exactly what RFC 9112 lets a server send, and only what a trickle server may: a client library would
forgive a bare line feed, a second Content-Length or a body that stops early, and so hide it. It keeps the chunks
of a chunked body apart, since the protocol speaks about them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tricklecast.app.conformance.stream import ByteReader, Cut, Malformed

MAX_FIELDS: Final = 100

_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\r\n]*)?")


Fields = tuple[tuple[str, str], ...]


def find(fields: Fields, name: str) -> str | None:
    """The value of a field that may occur at most once, in any case; ``None`` if it is missing.

    Raises:
        Malformed: it occurs more than once.
    """
    values = [value for key, value in fields if key.lower() == name.lower()]
    if len(values) > 1:
        raise Malformed(f"{name} {len(values)} times")
    return values[0] if values else None


def tokens(fields: Fields, name: str) -> set[str]:
    """The members of a comma-separated list, in lower case, over all lines of that name."""
    joined = ",".join(value for key, value in fields if key.lower() == name.lower())
    return {token.strip().lower() for token in joined.split(",") if token.strip()}


class Framing(Enum):
    """How a body's end is known."""

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
        """A header that may occur once; ``None`` if it is missing."""
        return find(self.headers, name)

    def tokens(self, name: str) -> set[str]:
        """The members of a header that is a list, in lower case."""
        return tokens(self.headers, name)

    @property
    def closes(self) -> bool:
        """Whether the server said that this is the last response on the connection."""
        return "close" in self.tokens("Connection") or self.version == "1.0"

    def framing(self, method: str) -> Framing:
        """How the body ends (RFC 9112, section 6.3).

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
    """A whole response.

    Attributes:
        interim: the 1xx heads that came before it.
        chunks: the body as it was framed: HTTP chunks where it was chunked, otherwise as it was received.
        trailers: what followed a chunked body.
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
        """The value of a field that may stand in the headers or, if it was not known then, in the trailers."""
        return self.get(name) or find(self.trailers, name)


class ResponseParser:
    """Reads the responses of one connection, one after the other, as far as the caller asks.

    Args:
        reader: where the bytes come from.
    """

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self._framing = Framing.NONE
        self._left = 0
        self._response: Response | None = None

    def head(self, method: str) -> Response:
        """Status line and headers of the next final response; interim responses are collected on it."""
        interim: list[Head] = []
        while (head := self.next_head()).status < 200:
            if head.status == 101:
                raise Malformed("101 Switching Protocols, which nobody wanted")
            interim.append(head)
        self._framing = head.framing(method)
        self._left = int(head.get("Content-Length") or 0) if self._framing is Framing.LENGTH else 0
        self._response = Response(
            head.version, head.status, head.reason, head.headers, interim=tuple(interim), framed=self._framing
        )
        return self._response

    def next_head(self) -> Head:
        """The next status line and headers, interim or not."""
        line = self._reader.line("before a response")
        if not (match := _STATUS_LINE.fullmatch(line)):
            raise Malformed("a bad status line", line)
        version, status, reason = (part.decode("latin-1") for part in match.groups())
        head = Head(version, int(status), reason, self._fields("in the headers"))
        head.framing("GET")  # a contradiction is a fault even where there is no body
        return head

    def chunk(self) -> bytes | None:
        """The next piece of the body; ``None`` after its end. Keeps it on the response, too."""
        response = self._response
        if response is None:
            return None
        data = self._next_piece(response)
        if data is None:
            self._response = None
        else:
            response.chunks.append(data)
        return data

    def response(self, method: str) -> Response:
        """The next final response with its whole body and trailers."""
        response = self.head(method)
        self.rest()
        return response

    def rest(self) -> bytes:
        """Everything up to the end of the body that was not read yet."""
        pieces = []
        while (piece := self.chunk()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    def _next_piece(self, response: Response) -> bytes | None:
        match self._framing:
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
