"""The checks of a head that the parser does not make, and the limits of what stands around a body."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.http1.framing import FIELD_BYTES, FramingGuard, joined, objection
from tricklecast.trickle.wire import Status

HOST = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"chunked")

ACCEPTED = {
    "plain": ("1.1", [HOST]),
    "chunked": ("1.1", [HOST, CHUNKED]),
    "chunked in capitals": ("1.1", [HOST, (b"transfer-encoding", b"Chunked")]),
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
    assert objection(version, b"/c/0", fields, dict(fields)) is None


@pytest.mark.parametrize(("version", "fields", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_a_head_that_can_be_read_in_two_ways_is_refused(
    version: str, fields: list[tuple[bytes, bytes]], status: int
) -> None:
    """The status says why; the text is one line."""
    wrong = objection(version, b"/c/0", fields, dict(fields))
    assert wrong is not None
    assert wrong.status == Status(status)
    assert wrong.text.isprintable()


def test_lines_of_one_name_are_one_list() -> None:
    """In their order; a single one is as it came, and one that is repeated counts once."""
    assert joined([(b"a", b"1"), HOST, (b"a", b"2, 3"), (b"a", b"1")]) == {b"a": b"1, 2, 3", b"host": b"x"}


@pytest.mark.parametrize(
    ("target", "host", "is_right"),
    [
        (b"http://x/c/0", b"x", True),
        (b"HTTP://X:80/c/0", b"x:80", True),
        (b"http://x", b"x", True),
        (b"http://x?http://y/", b"x", True),
        (b"/c/0?url=http://y/", b"x", True),
        (b"/http://y/0", b"x", True),
        (b"*", b"x", True),
        (b"http://y/c/0", None, True),  # HTTP/1.0
        (b"http://y/c/0", b"x", False),
        (b"http://y/c/0", b"", False),
        (b"http://y@x/c/0", b"x", False),
        (b"http:///c/0", b"x", False),
    ],
)
def test_a_url_names_the_same_host_as_host_does(target: bytes, host: bytes | None, is_right: bool) -> None:
    """Or one server would take the request for another host's than the next one, which checks its name."""
    fields = [] if host is None else [(b"host", host)]
    wrong = objection("1.0" if host is None else "1.1", target, fields, dict(fields))
    assert (wrong is None) == is_right


HEADER_BYTES = 1000


def fed(guard: FramingGuard, packets: Iterable[int]) -> list[Status]:
    """Which of these packets the guard refuses, and how."""
    found = [guard.fed(size) for size in packets]
    return [wrong.status for wrong in found if wrong is not None]


def begun(*, chunked: bool) -> FramingGuard:
    """A request whose head is over."""
    guard = FramingGuard(HEADER_BYTES)
    assert guard.field(20) is None
    guard.head_ended()
    guard.chunked = chunked
    assert guard.head_bytes == 20 + FIELD_BYTES
    assert fed(guard, [1 << 18]) == []
    return guard


def test_fields_have_a_limit_together() -> None:
    """Each counts with its overhead."""
    guard = FramingGuard(HEADER_BYTES)
    count = HEADER_BYTES // (68 + FIELD_BYTES)
    assert [guard.field(68) for _ in range(count)] == [None] * count
    wrong = guard.field(0)
    assert wrong is not None
    assert wrong.status == Status.HEADERS_TOO_LARGE


def test_a_field_that_never_ends_is_refused_by_its_packets() -> None:
    """The first one, which may hold something else, is not counted."""
    guard = FramingGuard(HEADER_BYTES)
    assert fed(guard, [50_000, HEADER_BYTES, HEADER_BYTES]) == []
    assert fed(guard, [1]) == [Status.HEADERS_TOO_LARGE]


@given(sizes=st.lists(st.integers(1, 1 << 20), max_size=200), cut=st.integers(1, 4096))
def test_ordinary_chunks_have_no_limit(sizes: list[int], cut: int) -> None:
    """Of any size, over any number of packets: each may cost 16 bytes and twice its payload."""
    guard = begun(chunked=True)
    for size in sizes:
        guard.chunk()
        for at in range(0, min(size, 10 * cut), cut):
            guard.payload(min(cut, size - at))
            assert fed(guard, [min(cut, size - at)]) == []


def test_bytes_around_chunks_have_a_limit() -> None:
    """Behind the packet in which the head ends; in trailer fields they are those of a header that is too large."""
    for trailers, status in ((False, Status.BAD_REQUEST), (True, Status.HEADERS_TOO_LARGE)):
        guard = begun(chunked=True)
        guard.chunk()
        guard.payload(1)
        assert fed(guard, [100]) == []
        refused: list[Status] = []
        while not refused:
            if trailers:
                guard.chunk()
            refused = fed(guard, [100])
        assert refused == [status]


def test_a_counted_body_has_no_limit_here() -> None:
    """All of its bytes are payload."""
    guard = begun(chunked=False)
    for _ in range(10):
        guard.payload(1 << 16)
        assert fed(guard, [1 << 16]) == []
