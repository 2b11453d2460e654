"""The grammar of HTTP/1.1: heads and bodies."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tricklecast.trickle.client.grammar import (
    KEPT_BYTES,
    MAX_CHUNK,
    MAX_EXCESS,
    MAX_FIELDS,
    MAX_HEAD,
    MAX_SIZE_LINE,
    MAX_TRAILERS,
    BodyDecoder,
    InvalidBody,
    InvalidHead,
    ResponseHead,
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


def decoder(
    data: bytes = b"", status: int = 200, *, length: int | None = None, chunked: bool = True, is_empty: bool = False
) -> BodyDecoder:
    """A decoder of a body in chunks, with a length, or up to the connection's end."""
    head = ResponseHead(b"1.1", status, b"", [], chunked and length is None, length, True)
    return BodyDecoder(head, data, is_empty=is_empty)


def chunks(body: BodyDecoder, *pieces: bytes) -> list[bytes]:
    """The chunks of a body that comes in these pieces."""
    found = []
    for piece in pieces:
        chunk = body.next_chunk(piece)
        while chunk is not None:
            found.append(chunk)
            chunk = body.next_chunk()
    return found


BODY = b'1\r\na\r\n3 ;name="value"\r\nbcd\r\n00A\r\n0123456789\r\n0\r\nX-One: 1\r\nX-Two:\t two \r\n\r\n'


@pytest.mark.parametrize("step", [1, 2, 3, 7, len(BODY)])
def test_chunks_do_not_depend_on_how_they_arrive(step: int) -> None:
    """Each chunk comes in one piece, and the trailers after the last one."""
    body = decoder()
    assert chunks(body, *(BODY[at : at + step] for at in range(0, len(BODY), step))) == [b"a", b"bcd", b"0123456789"]
    assert body.over
    assert not body.data
    assert body.trailers == [(b"x-one", b"1"), (b"x-two", b"two")]


def test_a_body_without_trailers() -> None:
    """Bytes behind the body are not part of it, and are not lost."""
    body = decoder(b"0\r\n\r\nHTTP/1.1 408")
    assert body.next_chunk() is None
    assert body.over
    assert body.rest == b"HTTP/1.1 408"
    assert body.next_chunk() is None


def test_a_long_chunk_comes_in_pieces() -> None:
    """At most 64 KiB are collected; a part of a chunk can be taken if its rest does not come."""
    body = decoder(b"%x\r\n" % (2 * MAX_CHUNK + 5))
    pieces = chunks(body, b"x" * 100, b"x" * (2 * MAX_CHUNK - 99), b"x")
    assert [len(piece) for piece in pieces] == [MAX_CHUNK, MAX_CHUNK]
    assert body.take_partial() == b"xx"
    assert body.take_partial() == b""
    assert not body.end()


def test_a_length_or_the_connection_ends_a_body() -> None:
    """A body ends after its length, or else with the connection."""
    told = decoder(length=5)
    assert chunks(told, b"ab", b"cde!") == [b"ab", b"cde"]
    assert told.over
    assert told.data
    cut = decoder(length=5)
    assert chunks(cut, b"ab") == [b"ab"]
    assert not cut.end()
    endless = decoder(chunked=False)
    assert chunks(endless, b"ab", b"c" * (MAX_CHUNK + 1)) == [b"ab", b"c" * MAX_CHUNK, b"c"]
    assert not endless.over
    assert endless.end()


def test_some_answers_have_no_body() -> None:
    """204, 304 and the response to HEAD have no body, also if their heads announce one."""
    assert decoder(status=304, length=5).over
    assert decoder(length=0).over
    assert decoder(length=5, is_empty=True).over


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b"1" * 16 + b"\r\n",
        b"1;\x00\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\rb",
        b"1" * MAX_SIZE_LINE,
        b"0\r\n" + b"x" * MAX_TRAILERS,
        b"0\r\n" + b"X: 1\r\n" * (MAX_FIELDS + 1) + b"\r\n",
        b"0\r\nX: 1\n\r\n\r\n",
        (b"1;" + b"x" * 1000 + b"\r\na\r\n") * (MAX_EXCESS // 980 + 1),
        b"0\r\nno colon\r\n\r\n",
        b"0\r\na: \x00\r\n\r\n",
        b"0\r\na: 1\r\n folded\r\n\r\n",
    ],
)
def test_broken_bodies_are_refused(data: bytes) -> None:
    """Bad sizes, wrong chunk ends, and endless lines and trailers are errors."""
    body = decoder()
    with pytest.raises(InvalidBody):
        chunks(body, data)


def test_extensions_that_go_with_payload_are_passed_over() -> None:
    """A signature per chunk is accepted, and so is any number of chunks of one byte."""
    signed = b"400;chunk-signature=" + b"f" * 64 + b"\r\n" + b"x" * 0x400 + b"\r\n"
    assert chunks(decoder(), signed * 1000) == [b"x" * 0x400] * 1000
    assert len(chunks(decoder(), b"1 \t;a=b\r\nx\r\n" * 10_000)) == 10_000
