"""What the parser lets pass, and the server does not."""

from __future__ import annotations

import pytest

from tricklecast.app.data_plane.head import content_length, expects_continue, objection
from tricklecast.trickle.wire import Status

HOST = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"chunked")

ACCEPTED = {
    "plain": ("1.1", [HOST]),
    "chunked": ("1.1", [HOST, CHUNKED]),
    "chunked in capitals": ("1.1", [HOST, (b"transfer-encoding", b"Chunked ")]),
    "a header twice": ("1.1", [HOST, (b"accept", b"a"), (b"accept", b"b")]),
    "chunked beside a header twice": ("1.1", [HOST, CHUNKED, (b"accept", b"a"), (b"accept", b"b")]),
    "a Host with a port": ("1.1", [(b"host", b"edge-1.example.org:8888")]),
    "an address of IPv6": ("1.1", [(b"host", b"[2001:db8::7]:80")]),
    "an empty Host": ("1.1", [(b"host", b"")]),
    "1.0 without Host": ("1.0", []),
    "1.0 with Host": ("1.0", [HOST]),
}

REFUSED = {
    "no Host": ("1.1", [], 400),
    "two hosts in one": ("1.1", [(b"host", b"a, b")], 400),
    "a Host with a path": ("1.1", [(b"host", b"a/b")], 400),
    "a Host with a user": ("1.1", [(b"host", b"a@b")], 400),
    "a Host that is not ASCII": ("1.1", [(b"host", "ä".encode())], 400),
    "a Host with markup, in 1.0": ("1.0", [(b"host", b"<b>")], 400),
    "two Hosts": ("1.1", [HOST, HOST], 400),
    "two Hosts in 1.0": ("1.0", [HOST, HOST], 400),
    "chunked in 1.0": ("1.0", [HOST, CHUNKED], 400),
    "compressed and chunked": ("1.1", [HOST, (b"transfer-encoding", b"gzip, chunked")], 501),
    "compressed, then chunked": ("1.1", [HOST, (b"transfer-encoding", b"gzip"), CHUNKED], 501),
    "chunked, then identity": ("1.1", [HOST, CHUNKED, (b"transfer-encoding", b"identity")], 501),
    "identity": ("1.1", [HOST, (b"transfer-encoding", b"identity")], 501),
    "quoted": ("1.1", [HOST, (b"transfer-encoding", b'"chunked"')], 501),
    "0.9": ("0.9", [], 505),
    "2.0": ("2.0", [HOST], 505),
}


@pytest.mark.parametrize(("version", "fields"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_an_ordinary_head_is_accepted(version: str, fields: list[tuple[bytes, bytes]]) -> None:
    """One Host that can be one, and a body that is counted or chunked."""
    assert objection(version, fields, dict(fields)) is None


@pytest.mark.parametrize(("version", "fields", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_a_head_that_can_be_read_in_two_ways_is_refused(
    version: str, fields: list[tuple[bytes, bytes]], status: int
) -> None:
    """The status says why; the text is one line."""
    wrong = objection(version, fields, dict(fields))
    assert wrong is not None
    assert wrong.status == Status(status)
    assert wrong.text.isprintable()


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (b"0", 0),
        (b"17", 17),
        (b"0017", 17),
        (b"18446744073709551615", 2**64 - 1),
        (b"0" * 60_000, 0),
        (b"0" * 60_000 + b"1", 1),
        (b"9" * 60_000, int("9" * 20)),
        (b"", None),
        (b"-1", None),
        (b"1 1", None),
        (None, None),
    ],
)
def test_an_announced_length_is_read_whatever_it_is(value: bytes | None, size: int | None) -> None:
    """Also one of more digits than Python likes to read; what is no number is no announcement."""
    assert content_length({} if value is None else {b"content-length": value}) == size


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({b"expect": b"100-Continue"}, True), ({b"expect": b"something"}, False), ({}, False)],
)
def test_a_client_that_holds_its_body_back(headers: dict[bytes, bytes], expected: bool) -> None:
    """It says so in any case of letters."""
    assert expects_continue(headers) is expected
