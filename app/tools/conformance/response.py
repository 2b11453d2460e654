"""A response, the expectations that cases have of it, and the ways in which a server can fail them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tricklecast.trickle import wire
from tricklecast.trickle.client.grammar import Fields, ResponseHead

_TRICKLE_HEADERS: Final = (
    wire.SEQ, wire.LATEST, wire.EARLIEST, wire.NEXT, wire.SIZE, wire.EPOCH, wire.CLOSED, wire.LIFE,
)  # fmt: skip
_HEADERS: Final = {
    **{name.rpartition("-")[2].lower(): name for name in _TRICKLE_HEADERS},
    "content_type": "Content-Type",
    "content_length": "Content-Length",
}
"""The header of each keyword of :meth:`Response.expect`; ``seq`` is that of ``Lp-Trickle-Seq``."""

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


class MalformedResponse(Failure):
    """The server sent bytes that are no HTTP/1.1 response."""

    def __init__(self, why: str) -> None:
        super().__init__("a well-formed HTTP/1.1 response", why)


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
    if not condition:
        raise Failure(expected, _show(got))


def equal(what: str, got: T, expected: T) -> None:
    check(got == expected, f"{what}: {_show(expected)}", got)


def number(name: str, text: str | None) -> int:
    """Check that a text is a number of at most 15 digits, and return the number."""
    if text is None or not re.fullmatch("[0-9]{1,15}", text):
        raise Failure(f"{name} as a number", repr(text))
    return int(text)


def _values(fields: Fields, name: str) -> list[str]:
    wanted = name.lower().encode()
    return [value.decode("latin-1") for key, value in fields if key == wanted]


def _find(fields: Fields, name: str) -> str | None:
    values = _values(fields, name)
    if len(values) > 1:
        raise MalformedResponse(f"{name} {len(values)} times")
    return values[0] if values else None


@dataclass(slots=True, repr=False)
class Response:
    """A response, and the expectations of a case. Each expectation returns the response, so that others can follow.

    Attributes:
        chunks: the body as it was framed: HTTP chunks if it was chunked, otherwise the pieces as they were received.
        trailers: the fields after a chunked body.
    """

    head: ResponseHead
    chunks: list[bytes] = field(default_factory=list)
    trailers: Fields = field(default_factory=list)

    def __repr__(self) -> str:
        fields = b"; ".join(b"%b: %b" % pair for pair in self.head.headers)
        return f"{self.status} {self.head.reason.decode('latin-1')} ({fields.decode('latin-1')})"

    @property
    def status(self) -> int:
        return self.head.status_code

    @property
    def closes(self) -> bool:
        """Whether the server announced that this response is the last one on the connection."""
        return not self.head.keeps_alive

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def get(self, name: str) -> str | None:
        """The value of a header that may occur once, in any case; ``None`` if it is missing."""
        return _find(self.head.headers, name)

    def marked(self, name: str) -> str | None:
        """The value of a field in the headers or in the trailers."""
        return self.get(name) or _find(self.trailers, name)

    def tokens(self, name: str) -> set[str]:
        """The members of a comma-separated header, in lower case, from all lines of that name."""
        joined = ",".join(_values(self.head.headers, name))
        return {token.strip().lower() for token in joined.split(",") if token.strip()}

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
        self.expect(200, seq=seq, **headers)
        equal("the body", self.body, body)
        return self

    def empty(self, seq: int, **headers: Wanted) -> Response:
        """Expect the answer to the reader of a segment that closed without a byte."""
        return self.expect(200, content_length=0, seq=seq, **headers).typed()

    def typed(self) -> Response:
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
