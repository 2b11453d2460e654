"""Heads: requests are valid HTTP, and responses that are not valid HTTP are refused."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tricklecast.trickle.client.heads import (
    KEPT_BYTES,
    MAX_FIELDS,
    MAX_HEAD,
    InvalidHead,
    parse_fields,
    parse_response,
    request_head,
)


def head_of(*lines: bytes, rest: bytes = b"") -> bytes:
    """The bytes of a response with these lines."""
    return b"\r\n".join(lines) + b"\r\n\r\n" + rest


def test_a_request_is_written_as_it_is_given() -> None:
    """Names and values are written unchanged, line by line."""
    head = request_head(b"POST", b"/trickle/c/1?token=a", [(b"Host", b"h:80"), (b"X-Empty", b"")])
    assert head == b"POST /trickle/c/1?token=a HTTP/1.1\r\nHost: h:80\r\nX-Empty: \r\n\r\n"


@pytest.mark.parametrize(
    ("target", "name", "value"),
    [
        (b"/a b", b"X", b"1"),
        (b"/a\r\nX: 1", b"X", b"1"),
        (b"/", b"X Y", b"1"),
        (b"/", b"", b"1"),
        (b"/", b"X", b"1\r\nY: 2"),
        (b"/", b"X", b"1\n"),
        (b"/", b"X", b"\x00"),
    ],
)
def test_a_request_cannot_be_split(target: bytes, name: bytes, value: bytes) -> None:
    """A line end or control character in the target or a header is refused."""
    with pytest.raises(InvalidHead):
        request_head(b"GET", target, [(name, value)])


def test_a_response_is_read() -> None:
    """Names become lower case, white space around values is removed; the size points behind the head."""
    data = head_of(b"HTTP/1.1 470 Not \xe4 here", b"Lp-Trickle-Seq: 7 ", b"X:\t", b"Content-Length: 4", rest=b"body")
    found = parse_response(data)
    assert found is not None
    head, size = found
    assert (head.http_version, head.status_code, head.reason, data[size:]) == (b"1.1", 470, b"Not \xe4 here", b"body")
    assert head.headers == [(b"lp-trickle-seq", b"7"), (b"x", b""), (b"content-length", b"4")]
    assert (head.chunked, head.length, head.keeps_alive) == (False, 4, True)


def test_a_head_may_come_in_any_pieces() -> None:
    """An incomplete head, also an empty one, needs more bytes."""
    data = head_of(b"HTTP/1.1 200", b"Transfer-Encoding: Chunked")
    assert not any(parse_response(data[:size], max(0, size - 1)) for size in range(len(data)))
    assert parse_response(data, len(data) - 1) == parse_response(data)
    found = parse_response(data)
    assert found is not None
    assert (found[0].chunked, found[0].length, found[0].reason) == (True, None, b"")


@pytest.mark.parametrize(
    ("lines", "keeps"),
    [
        ([b"HTTP/1.1 200 OK", b"Connection: keep-alive"], True),
        ([b"HTTP/1.1 200 OK", b"Connection: x, Close"], False),
        ([b"HTTP/1.1 200 OK", b"Connection: x", b"connection: close"], False),
        ([b"HTTP/1.0 200 OK", b"Connection: keep-alive"], False),
    ],
)
def test_some_responses_end_their_connection(lines: list[bytes], keeps: bool) -> None:
    """``Connection: close`` and HTTP/1.0 end it."""
    found = parse_response(head_of(*lines))
    assert found is not None
    assert found[0].keeps_alive is keeps


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0",
        b"HTTQ",
        head_of(b"HTTP/1.1 20 OK"),
        head_of(b"HTTP/2.0 200 OK"),
        head_of(b"HTTP/1.1 200 OK\x00"),
        head_of(b"HTTP/1.1 200 OK", b"no colon"),
        head_of(b"HTTP/1.1 200 OK", b"X : 1"),
        head_of(b"HTTP/1.1 200 OK", b"X: 1", b" folded"),
        head_of(b"HTTP/1.1 200 OK", b"X: 1\nY: 2"),
        head_of(b"HTTP/1.1 200 OK", b"X: 1\rY: 2"),
        head_of(b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Content-Length: 2"),
        head_of(b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Content-Length: 1"),
        head_of(b"HTTP/1.1 200 OK", b"Content-Length: 1, 1"),
        head_of(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"Content-Length: 1"),
        head_of(b"HTTP/1.1 200 OK", b"Content-Length: 0", b"Transfer-Encoding: chunked"),
        head_of(b"HTTP/1.0 200 OK", b"Transfer-Encoding: chunked"),
        head_of(b"HTTP/1.1 200 OK", *[b"X: 1"] * (MAX_FIELDS + 1)),
        head_of(b"HTTP/1.1 200 OK", b"Content-Length: -1"),
        head_of(b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip, chunked"),
        head_of(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD,
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    """So is a head that is too long, or that allows two ends of its body."""
    with pytest.raises(InvalidHead):
        parse_response(data)


STATUS_LINES = (b"HTTP/1.1 200 OK", b"HTTP/1.0 404 ", b"HTTP/1.1 470", b"HTTP/2 200 OK", b"HTTP/1.1 1000 X", b"")
LINES = (
    *(b"Content-Length: 5", b"content-length:5", b"Content-Length: 6", b"Content-Length: 5, 5", b"Content-Length: +5"),
    *(b"Transfer-Encoding: Chunked", b"transfer-encoding: gzip, chunked", b"Connection: close", b"X : y", b"X: \x00"),
    *(b" folded", b"X: y \t", b"X", b": y", b"Y: \xff", b"Z: a\nb", b"Z: a\rb"),
)


@given(
    st.builds(
        lambda first, lines, end, rest: b"\r\n".join([first, *lines]) + end + rest,
        st.sampled_from(STATUS_LINES) | st.binary(max_size=9).map(b"HTTP/1.1 ".__add__),
        st.lists(st.sampled_from(LINES), max_size=3) | st.lists(st.binary(max_size=6), max_size=2),
        st.just(b"\r\n\r\n") | st.sampled_from([b"\n\n", b"\r\n", b""]),
        st.binary(max_size=6),
    )
)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
@settings(max_examples=600)
def test_what_is_read_is_what_h11_reads(data: bytes) -> None:
    """h11 accepts each head that is accepted here, with the same status, headers and end of body."""
    try:
        found = parse_response(data)
    except InvalidHead:
        return
    if found is None:
        return
    head, size = found
    oracle = h11.Connection(h11.CLIENT)
    oracle.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    oracle.send(h11.EndOfMessage())
    oracle.receive_data(data)
    theirs = oracle.next_event()
    assert isinstance(theirs, h11.Response | h11.InformationalResponse)
    assert (head.status_code, head.http_version) == (theirs.status_code, theirs.http_version)
    mine = [(name, value) for name, value in head.headers if name not in (b"content-length", b"transfer-encoding")]
    assert mine == [pair for pair in theirs.headers if pair[0] not in (b"content-length", b"transfer-encoding")]
    lengths = [int(value) for name, value in theirs.headers if name == b"content-length"]
    assert head.chunked == any(name == b"transfer-encoding" for name, _ in theirs.headers)
    assert head.length == (None if head.chunked else lengths[0] if lengths else None)
    assert data[:size].endswith(b"\r\n\r\n")


def test_a_head_is_read_the_same_again_and_if_it_is_long() -> None:
    """Lines of short heads are kept; a wrong one is refused each time."""
    long = (b"Y", bytes([97]) * KEPT_BYTES)
    for fields in ([(b"X", b"1")], [(b"X", b"1")], [(b"X", b"1"), long], [(b"X", b"1"), long]):
        found = parse_response(head_of(b"HTTP/1.1 200 OK", *(b"%b:%b" % field for field in fields)))
        assert found is not None
        assert found[0].headers == [(name.lower(), value) for name, value in fields]
    for _ in range(2):
        with pytest.raises(InvalidHead, match="not a header"):
            parse_response(head_of(b"HTTP/1.1 200 OK", b"X 1"))


def test_trailers_are_headers() -> None:
    """The same rules hold."""
    assert parse_fields(b"X: 1\r\ny:2 ") == [(b"x", b"1"), (b"y", b"2")]
    with pytest.raises(InvalidHead, match="not a header"):
        parse_fields(b"X: 1\r\n")
