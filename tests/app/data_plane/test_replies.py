"""Response heads as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tricklecast.app.data_plane.replies import Reply, header_lines, segment_head, truncated_end
from tricklecast.trickle.wire import PHRASES, Status

COMMON = b"date: now\r\nserver: us\r\n"


def test_a_whole_answer() -> None:
    """Status line, common lines, own headers, length, type, end, body; nothing else."""
    reply = Reply(Status.OK, "complete", (("Lp-Trickle-Seq", 3),), b"hi")
    assert reply.encode(COMMON, keep_alive=True) == (
        b"HTTP/1.1 200 OK\r\ndate: now\r\nserver: us\r\ncache-control: no-store\r\nLp-Trickle-Seq: 3\r\n"
        b"content-length: 2\r\ncontent-type: text/plain; charset=utf-8\r\n\r\nhi"
    )


def test_the_end_of_a_channel_and_the_wait_are_told() -> None:
    """`eos` and `retry_after_s` become their headers."""
    text = Reply(Status.UNAVAILABLE, "x", eos=True, retry_after_s=4).encode(COMMON, keep_alive=True)
    assert b"\r\nLp-Trickle-Closed: terminated\r\nRetry-After: 4\r\n" in text
    assert b"\r\ncontent-length: 0\r\n" in text


@pytest.mark.parametrize(
    ("close", "keep_alive", "said"), [(False, True, False), (True, True, True), (False, False, True)]
)
def test_the_end_of_the_connection_is_told(close: bool, keep_alive: bool, said: bool) -> None:
    """`Connection: close` stands there if either side wants the end."""
    text = Reply(Status.OK, "x", close=close).encode(COMMON, keep_alive=keep_alive)
    assert (b"\r\nconnection: close\r\n" in text) == said


def test_browsers_may_read_the_headers() -> None:
    """The header lines for a page of another origin go into the answer as they are."""
    lines = b"access-control-allow-origin: *\r\n"
    assert lines in Reply(200, "x").encode(b"", keep_alive=True, cors=lines)


def test_a_head_announces_the_body_and_leaves_it_out() -> None:
    """To a HEAD a body is described; a body that is not known is not given a length of 0."""
    known = Reply(Status.OK, "x", body=b"123").encode(b"", keep_alive=True, head_only=True)
    assert b"content-length: 3\r\n" in known
    assert known.endswith(b"\r\n\r\n")
    unknown = Reply(Status.OK, "x", content_type="").encode(b"", keep_alive=True, head_only=True)
    assert b"content-" not in unknown


def test_no_content_has_no_framing() -> None:
    """A 204 carries neither a length nor a type (RFC 9110, section 8.6)."""
    text = Reply(Status.NO_CONTENT, "x").encode(b"", keep_alive=True)
    assert text == b"HTTP/1.1 204 No Content\r\ncache-control: no-store\r\n\r\n"


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_its_line(status: Status) -> None:
    """Each status that the protocol knows can be sent, 470 included."""
    line = Reply(status, "x").encode(b"", keep_alive=True).partition(b"\r\n")[0]
    assert line == f"HTTP/1.1 {int(status)} {PHRASES[status]}".encode()


def head(**fields: Any) -> bytes:
    """The head of a segment, plain unless told otherwise."""
    values: dict[str, Any] = {
        "common": COMMON, "content_type": "video/mp2t", "seq": 4, "latest": None, "epoch": 2, "size": 9,
        "truncated": "", "keep_alive": True, "cors": b"", "http10": False,
    }  # fmt: skip
    return segment_head(**{**values, **fields})


def test_the_head_of_a_segment() -> None:
    """A plain segment: type, seq, size, epoch, chunked; no Latest where it equals Seq."""
    assert head() == (
        b"HTTP/1.1 200 OK\r\ndate: now\r\nserver: us\r\ncache-control: no-store\r\ncontent-type: video/mp2t\r\n"
        b"Lp-Trickle-Seq: 4\r\nLp-Trickle-Size: 9\r\nLp-Trickle-Epoch: 2\r\ntransfer-encoding: chunked\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"latest": 7}, b"Lp-Trickle-Latest: 7\r\n"),
        ({"truncated": "truncated"}, b"Lp-Trickle-Truncated: truncated\r\n"),
        ({"keep_alive": False}, b"connection: close\r\n"),
        ({"cors": b"access-control-allow-origin: *\r\n"}, b"access-control-allow-origin: *\r\n"),
        ({"http10": True}, b"connection: close\r\n"),
    ],
)
def test_a_segments_head_says_what_applies(fields: dict[str, object], line: bytes) -> None:
    """Each of these adds its header line and changes nothing else that was said."""
    assert line in head(**fields)
    assert line not in head()


def test_http_1_0_gets_no_chunks() -> None:
    """For HTTP/1.0 the end of the connection is the end of the body."""
    assert b"chunked" not in head(http10=True)


def test_a_truncated_end_says_so_in_a_trailer() -> None:
    """The last chunk of a segment that was cut short carries the reason."""
    assert truncated_end("terminated") == b"0\r\nLp-Trickle-Truncated: terminated\r\n\r\n"


def test_header_lines() -> None:
    """Names and values, one a line."""
    assert header_lines([("a", 1), ("b", "é")]) == "a: 1\r\nb: é\r\n".encode("latin-1")
