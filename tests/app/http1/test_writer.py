"""The response writer: responses as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tricklecast.app.data_plane.responses import Headers, Reply, ResponseHead
from tricklecast.app.http1.writer import begin, end, whole
from tricklecast.trickle import __version__
from tricklecast.trickle.wire import PHRASES, Status

COMMON = b"date: now\r\nserver: tricklecast/%b\r\ncache-control: no-store\r\n" % __version__.encode()
CORS: Headers = (("access-control-allow-origin", "*"),)


def written(reply: Reply, **how: Any) -> bytes:
    """The bytes of a reply, to a client that keeps its connection unless told otherwise."""
    return whole(reply, "now", **{"cors": (), "keep_alive": True, **how})


def test_a_whole_response() -> None:
    """It has the status line, common lines, its own fields, length, type, end and body; nothing else."""
    assert written(Reply(Status.OK, "complete", (("Lp-Trickle-Seq", 3), ("x", "\xe9")), b"hi")) == (
        b"HTTP/1.1 200 OK\r\n" + COMMON + b"content-type: text/plain; charset=utf-8\r\n"
        b"Lp-Trickle-Seq: 3\r\nx: \xe9\r\ncontent-length: 2\r\n\r\nhi"
    )


def test_lines_of_a_segment_are_sent_as_they_are() -> None:
    """They come before the other fields, also in a refusal that says when to come back."""
    reply = Reply(Status.UNAVAILABLE, "x", lines=b"Lp-Trickle-Size: 7\r\n", retry_after_s=4)
    assert b"\r\nLp-Trickle-Size: 7\r\nRetry-After: 4\r\n" in written(reply)


@pytest.mark.parametrize(
    ("close", "keep_alive", "said"), [(False, True, False), (True, True, True), (False, False, True)]
)
def test_the_end_of_the_connection_is_told(close: bool, keep_alive: bool, said: bool) -> None:
    """`Connection: close` stands there if either side wants the end."""
    text = written(Reply(Status.OK, "x", close=close), keep_alive=keep_alive)
    assert (b"\r\nconnection: close\r\n" in text) == said


def test_a_page_of_another_origin_may_read_the_response() -> None:
    """The header fields for it stand in the response as they are given."""
    line = b"\r\naccess-control-allow-origin: *\r\n"
    assert line in written(Reply(Status.OK, "x"), cors=CORS)
    assert line in begin(ResponseHead(Status.OK, b"", "video/mp4"), "now", CORS, keep_alive=True, http10=False)


def test_a_response_to_head_announces_the_body_and_leaves_it_out() -> None:
    """A body is described; a body that is not known is not given a length of 0."""
    known = written(Reply(Status.OK, "x", body=b"123"), head_only=True)
    assert b"content-length: 3\r\n" in known
    assert known.endswith(b"\r\n\r\n")
    assert b"content-" not in written(Reply(Status.OK, "x", content_type=""), head_only=True)


def test_no_content_has_no_framing() -> None:
    """A 204 carries neither a length nor a type (RFC 9110, section 8.6)."""
    assert written(Reply(Status.NO_CONTENT, "x")) == b"HTTP/1.1 204 No Content\r\n" + COMMON + b"\r\n"


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_its_line(status: Status) -> None:
    """Each status that the protocol knows can be sent, 470 included."""
    line = f"HTTP/1.1 {int(status)} {PHRASES[status]}".encode()
    assert written(Reply(status, "x")).partition(b"\r\n")[0] == line


def test_refusals_that_are_sent_again_and_again_are_the_same_bytes() -> None:
    """A refusal that is kept encoded is what it would be, encoded anew: for each date and each client."""
    one = Reply(Status.UNAVAILABLE, "x", retry_after_s=4)
    assert b"\r\nRetry-After: 4\r\n" in written(one)
    assert written(one) is written(one)
    assert whole(one, "then", (), keep_alive=True) == written(one).replace(b"now", b"then")
    assert b"connection: close" in written(one, keep_alive=False)


def test_the_head_of_a_body_in_frames() -> None:
    """It has the status line, common lines, type, its own fields, and says that chunks follow."""
    head = ResponseHead(Status.OK, b"Lp-Trickle-Seq: 4\r\n", "video/mp2t")
    start = b"HTTP/1.1 200 OK\r\n" + COMMON + b"content-type: video/mp2t\r\n"
    own = b"Lp-Trickle-Seq: 4\r\n"
    assert begin(head, "now", (), keep_alive=True, http10=False) == start + own + b"transfer-encoding: chunked\r\n\r\n"
    assert begin(head, "now", (), keep_alive=False, http10=True) == start + b"connection: close\r\n" + own + b"\r\n"


def test_the_head_of_a_body_of_known_length() -> None:
    """It has the length, and its own `Cache-Control`."""
    head = ResponseHead(Status.PARTIAL_CONTENT, b"", "text/html", 7, "private")
    assert begin(head, "now", (), keep_alive=True, http10=False) == (
        b"HTTP/1.1 206 Partial Content\r\n" + COMMON.replace(b"no-store", b"private") + b"content-type: text/html\r\n"
        b"x-content-type-options: nosniff\r\ncontent-security-policy: sandbox\r\ncontent-length: 7\r\n\r\n"
    )


def test_the_end_of_a_body_in_frames() -> None:
    """The last chunk is followed by the trailers."""
    assert end(b"Lp-Trickle-Size: 7\r\n") == b"0\r\nLp-Trickle-Size: 7\r\n\r\n"
