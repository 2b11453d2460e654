"""A connection finds fault with everything that a server may not send; expectations name what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.tools.conformance.connection import RawConnection, Transcript
from tricklecast.app.tools.conformance.response import ConnectionCut, Failure, MalformedResponse, Response, shorten


class _Pieces:
    """A socket that receives these bytes in pieces of this size, and then the end."""

    def __init__(self, data: bytes, step: int) -> None:
        self._pieces = iter([data[start : start + step] for start in range(0, len(data), step)])

    def settimeout(self, timeout: float) -> None: ...

    def recv(self, size: int) -> bytes:
        return next(self._pieces, b"")


def _connection(data: bytes, step: int = 1 << 16) -> RawConnection:
    sock: Any = _Pieces(data, step)
    return RawConnection(sock, "host:1", 1, Transcript())


def _parse(data: bytes, method: str = "GET", step: int = 1 << 16) -> Response:
    connection = _connection(data, step)
    connection.expects(method)
    return connection.response()


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_counted_body(step: int) -> None:
    """A body ends after Content-Length bytes, however they come."""
    response = _parse(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A: b \r\n\r\ndata", step=step)
    assert (response.status, response.head.reason, response.body) == (200, b"OK", b"data")
    assert response.get("x-a") == "b"
    assert response.head.length == 4


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_chunked_body_keeps_its_chunks_and_trailers(step: int) -> None:
    """Chunks stay apart, extensions are ignored, and trailers are found like headers."""
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\none\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\n"
    response = _parse(data, step=step)
    assert response.chunks == [b"one", b"0123456789"]
    assert response.trailers == [(b"t", b"v")]
    assert response.marked("t") == "v"
    assert response.marked("u") is None


def test_body_until_the_end_of_the_connection() -> None:
    """Without any framing the body is all that comes."""
    response = _parse(b"HTTP/1.0 200 OK\r\n\r\nall of it")
    assert (response.head.length, response.body, response.head.keeps_alive) == (None, b"all of it", False)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304)])
def test_announced_bodies_that_do_not_come(method: str, status: int) -> None:
    """The answer to HEAD, and 304, announce a body's length and have none."""
    response = _parse(b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\n" % status, method)
    assert response.body == b""


def test_204_has_no_body() -> None:
    """A 204 ends with its headers."""
    assert _parse(b"HTTP/1.1 204 No Content\r\n\r\n").body == b""


def test_interim_responses_are_passed_over() -> None:
    """Any number of 1xx may come before the final response."""
    response = _parse(b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert response.status == 200


def test_responses_follow_each_other() -> None:
    """One response ends where the next begins."""
    connection = _connection(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 404 Nope\r\nContent-Length: 0\r\n\r\n"
    )
    assert connection.response().body == b"a"
    assert connection.chunk() is None
    assert connection.response().status == 404


def test_lists_are_read_over_lines() -> None:
    """A list may be spread over several lines of a header, in any case."""
    response = _parse(b"HTTP/1.1 200 OK\r\nAllow: GET, post\r\nallow: DELETE\r\nContent-Length: 0\r\n\r\n")
    assert response.tokens("ALLOW") == {"get", "post", "delete"}
    assert response.head.keeps_alive


_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        _OK + b"Content-Length: 4\n\r\n",
        _OK + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        _CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
        _CHUNKED + b"1\na\r\n0\r\n\r\n",
    ],
)
def test_faults_are_found(data: bytes) -> None:
    """A response that a forgiving client would accept is malformed; the grammar has tests of its own."""
    with pytest.raises(MalformedResponse):
        _parse(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        _OK,
        _OK + b"Content-Length: 2\r\n\r\nx",
        _CHUNKED,
        _CHUNKED + b"5\r\nabc",
        _CHUNKED + b"3\r\nabc\r\n",
        _CHUNKED + b"0\r\n",
    ],
)
def test_early_ends_are_found(data: bytes) -> None:
    """A response that stops before its end is cut, never a shorter response."""
    with pytest.raises(ConnectionCut):
        _parse(data)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    """Any bytes are a response or a failure with words, and raise nothing else."""
    try:
        response = _parse(_OK + data)
    except Failure as failure:
        text = str(failure)
        assert "expected a" in text
        return
    assert response.status == 200


@given(chunks=st.lists(st.binary(min_size=1, max_size=50), max_size=8), step=st.integers(1, 64))
def test_chunks_come_out_as_they_went_in(chunks: list[bytes], step: int) -> None:
    """However the stream is cut, the chunks are those that were framed."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    assert _parse(_CHUNKED + body + b"0\r\n\r\n", step=step).chunks == chunks


def _answer(status: int, body: bytes = b"no\n", *headers: str) -> Response:
    lines = [f"HTTP/1.1 {status} X", *headers, f"Content-Length: {len(body)}", "", ""]
    return _parse("\r\n".join(lines).encode() + body)


def test_expectations_that_hold_can_be_chained() -> None:
    """Each expectation returns the response, and `None` expects that a header is missing."""
    segment = _answer(200, b"data", "Lp-Trickle-Seq: 3", "Lp-Trickle-Size: 4", "Content-Type: video/mp2t")
    assert segment.expect(200, 201, seq=3, size=4, closed=None).segment(3, b"data", latest=None).whole() is segment
    assert segment.keeps_open().number("lp-trickle-size") == 4
    empty = _answer(200, b"", "Lp-Trickle-Seq: 3", "Content-Type: a/b", "Lp-Trickle-Closed: terminated")
    assert empty.empty(3, content_type="a/b").ended() is empty
    missing = _answer(470, b"Entry not found\n", "Lp-Trickle-Latest: 9", "Lp-Trickle-Seq: 3", "Lp-Trickle-Next: 5")
    assert missing.missing(9, 3, next=5) is missing
    busy = _answer(503, b"no\n", "Retry-After: 2")
    assert busy.busy() is busy
    truncated = _answer(200, b"part", "Lp-Trickle-Truncated: truncated")
    assert truncated.truncated() is truncated


@pytest.mark.parametrize(
    ("expectation", "words"),
    [
        (lambda r: r.expect(200, 404), "status 200 or 404"),
        (lambda r: r.expect(seq=4), "Lp-Trickle-Seq: 4"),
        (lambda r: r.expect(seq=None), "no Lp-Trickle-Seq"),
        (lambda r: r.expect(size=1), "Lp-Trickle-Size: 1"),
        (lambda r: r.number("Retry-After"), "Retry-After as a number"),
        (lambda r: r.segment(3, b"data"), "status 200"),
        (lambda r: r.refused(403), "a body that is one line of text"),
        (lambda r: r.ended(), "Lp-Trickle-Closed: terminated"),
        (lambda r: r.truncated(), "Lp-Trickle-Truncated in headers or trailers"),
        (lambda r: r.keeps_open(), "a connection that stays open"),
    ],
)
def test_expectations_that_fail(expectation: Callable[[Response], object], words: str) -> None:
    """A failure names the expected value."""
    response = _answer(403, b"two\nlines\n", "Lp-Trickle-Seq: 3", "Connection: close")
    with pytest.raises(Failure) as caught:
        expectation(response)
    assert words in caught.value.expected


def test_a_refusal_has_the_expected_text() -> None:
    """A refusal with another line of text is a failure."""
    with pytest.raises(Failure, match="the text: 'yes', got 'no'"):
        _answer(404).refused(404, "yes")


def test_long_bytes_are_shortened_for_people() -> None:
    """A failure shows both ends of what came, and how much is between."""
    assert shorten(b"ab") == "'ab'"
    assert shorten(b"a" * 50 + b"b" * 50, limit=4) == "'aa'… 96 bytes …'bb'"
