"""The decoder of bodies: the same chunks at any cut of the bytes, and limits for a hostile server."""

from __future__ import annotations

import pytest

from tricklecast.trickle.client.decoder import (
    MAX_CHUNK,
    MAX_EXCESS,
    MAX_SIZE_LINE,
    MAX_TRAILERS,
    BodyDecoder,
    InvalidBody,
)
from tricklecast.trickle.client.heads import MAX_FIELDS, ResponseHead


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
