"""What cases say about responses. Each function raises a failure that names what was expected and what came."""

from __future__ import annotations

import re
from typing import TypeVar

from tricklecast.app.conformance.connection import Connection
from tricklecast.app.conformance.http1 import Response
from tricklecast.app.conformance.verdicts import Failure, shorten
from tricklecast.trickle import wire

T = TypeVar("T")


def equal(what: str, got: T, expected: T) -> T:
    """Something has exactly this value."""
    if got != expected:
        raise Failure(f"{what}: {_show(expected)}", _show(got))
    return got


def true(condition: bool, expected: str, got: object) -> None:
    """A condition holds."""
    if not condition:
        raise Failure(expected, _show(got))


def matches(what: str, text: str | None, pattern: str) -> str:
    """A text follows a pattern as a whole."""
    if text is None or not re.fullmatch(pattern, text):
        raise Failure(f"{what} like {pattern}", repr(text))
    return text


def status(response: Response, *allowed: int) -> Response:
    """The status is one of these."""
    if response.status not in allowed:
        wanted = " or ".join(str(number) for number in allowed)
        raise Failure(f"status {wanted}", f"{response} {shorten(response.body)}")
    return response


def header(response: Response, name: str, value: str | int) -> None:
    """A header has this value."""
    got = response.get(name)
    if got != str(value):
        raise Failure(f"{name}: {value}", f"{name}: {got}" if got is not None else f"none in {response}")


def no_header(response: Response, name: str) -> None:
    """A header is not there."""
    if (got := response.get(name)) is not None:
        raise Failure(f"no {name}", f"{name}: {got}")


def number(response: Response, name: str) -> int:
    """A header is a number that is not negative; the number."""
    return int(matches(name, response.get(name), r"[0-9]{1,15}"))


def body(response: Response, expected: bytes) -> None:
    """The body is exactly this."""
    equal("the body", response.body, expected)


def closing(connection: Connection, response: Response) -> None:
    """The server said that it closes the connection, and does."""
    true("close" in response.tokens("Connection"), "Connection: close", response)
    connection.closed()


def keeps_open(response: Response) -> None:
    """The connection may be used for another request."""
    true(not response.closes, "a connection that stays open", response)


def ended(response: Response) -> None:
    """The answer says that the channel has ended."""
    header(response, wire.CLOSED, wire.TERMINATED)


def refusal(response: Response, code: int, text: str | None = None) -> Response:
    """A refusal: the status, and a body that is one line of text."""
    status(response, code)
    line = response.body.decode("utf-8", "replace").rstrip("\r\n")
    true(bool(line) and line.isprintable(), "a body that is one line of text", response.body)
    if text is not None:
        equal("the text", line, text)
    return response


def missing(response: Response, head: int, asked: int) -> Response:
    """470: the channel is there, the segment is not."""
    refusal(response, wire.Status.SEQ_MISSING, "Entry not found")
    header(response, wire.LATEST, head)
    header(response, wire.SEQ, asked)
    return response


def empty(response: Response, seq: int) -> Response:
    """The answer to the reader of a segment that closed without a byte."""
    status(response, 200)
    header(response, "Content-Length", 0)
    header(response, wire.SEQ, seq)
    true(response.get("Content-Type") is not None, "a Content-Type", response)
    return response


def segment(response: Response, seq: int, data: bytes) -> Response:
    """A segment with these bytes."""
    status(response, 200)
    header(response, wire.SEQ, seq)
    body(response, data)
    return response


def zero_byte_answer(connection: Connection, seq: int) -> Response:
    """The answer to a publisher whose segment closed without a byte; it ends the connection."""
    response = status(connection.response(), 200)
    header(response, wire.SEQ, seq)
    closing(connection, response)
    return response


def cut_short(connection: Connection, code: int, seq: int, size: int) -> Response:
    """The answer to a publisher whose segment was closed or taken over mid-body; it ends the connection."""
    response = status(connection.response(), code)
    header(response, wire.SEQ, seq)
    header(response, wire.SIZE, size)
    closing(connection, response)
    return response


def truncated(response: Response) -> None:
    """The segment says, in a header or a trailer, that it is not whole."""
    true(
        bool(response.marked(wire.TRUNCATED)),
        f"{wire.TRUNCATED} as a header or trailer",
        f"{response} {response.trailers}",
    )


def whole(response: Response) -> None:
    """The segment does not claim to be cut short."""
    true(response.marked(wire.TRUNCATED) is None, f"no {wire.TRUNCATED}", response.marked(wire.TRUNCATED))


def _show(value: object) -> str:
    return shorten(value) if isinstance(value, bytes) else str(value) if isinstance(value, Response) else repr(value)
