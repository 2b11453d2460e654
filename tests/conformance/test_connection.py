"""The raw connection: its requests, its deadlines and its expectations. It never invents a fault."""

from __future__ import annotations

import socket
import threading

import pytest

from tricklecast.app.tools.conformance.connection import (
    AT_ONCE_S,
    ChunkedPost,
    Late,
    RawConnection,
    Transcript,
    encode_chunk,
)
from tricklecast.app.tools.conformance.response import ConnectionCut, Failure

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class _Peer:
    """A connection and the socket of the one it speaks to."""

    def __init__(self) -> None:
        here, self.socket = socket.socketpair()
        self.transcript = Transcript()
        self.connection = RawConnection(here, "host:1", 1, self.transcript)

    def __enter__(self) -> _Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.socket.close()


def test_requests_are_rendered_as_asked() -> None:
    """A request has its Host, the given headers, and a length only with a body that no header frames."""
    with _Peer() as peer:
        peer.connection.request("POST", "/p", {"A": "b"}, b"body")
        assert peer.socket.recv(999) == b"POST /p HTTP/1.1\r\nHost: host:1\r\nA: b\r\nContent-Length: 4\r\n\r\nbody"
        peer.connection.request("GET", "/p", [("A", "b"), ("A", "c")])
        assert peer.socket.recv(999) == b"GET /p HTTP/1.1\r\nHost: host:1\r\nA: b\r\nA: c\r\n\r\n"
        peer.connection.request("POST", "/p", {"Content-Length": "9"}, b"body", "1.0")
        assert peer.socket.recv(999) == b"POST /p HTTP/1.0\r\nHost: host:1\r\nContent-Length: 9\r\n\r\nbody"


def test_responses_are_matched_with_their_requests() -> None:
    """The answer to a HEAD has no body, and the one after it does, in the order of the requests."""
    with _Peer() as peer:
        peer.connection.request("HEAD", "/")
        peer.connection.request("GET", "/")
        peer.socket.sendall(_OK[:-2] + _OK)
        assert peer.connection.response().body == b""
        assert peer.connection.response().body == b"ok"


def test_a_body_is_read_as_it_comes() -> None:
    """Head, single chunks, counted bytes and the rest can be taken apart."""
    with _Peer() as peer:
        peer.socket.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert peer.connection.head().body == b""
        peer.socket.sendall(encode_chunk(b"one") + encode_chunk(b"two"))
        assert peer.connection.chunk() == b"one"
        assert peer.connection.body(3) == b"two"
        peer.socket.sendall(encode_chunk(b"three") + b"0\r\n\r\n")
        assert peer.connection.rest() == b"three"
        assert peer.connection.body(1) == b""


def test_at_once_is_as_long_as_its_user_says() -> None:
    """The tests of this project have more patience than a verdict on somebody's server."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = RawConnection(ours, "h", 1, Transcript(), at_once_s=0.01)
        with pytest.raises(Failure, match=r"open after 0\.01 s"):
            connection.closed()
        with pytest.raises(Late, match=r"within 0\.01 s"):
            connection.response()


def test_no_answer_is_late() -> None:
    """The failure names the time in which nothing came."""
    with _Peer() as peer, pytest.raises(Late) as caught:
        peer.connection.response(within_s=0.01)
    assert caught.value.expected == "an answer within 0.01 s"


def test_silence_is_silence() -> None:
    """A peer that says nothing is silent, and what it says afterwards is not lost."""
    with _Peer() as peer:
        peer.connection.silent(0.01)
        peer.socket.sendall(_OK)
        assert peer.connection.response().body == b"ok"


@pytest.mark.parametrize("early", [False, True])
def test_noise_is_found(early: bool) -> None:
    """Bytes that must not come are found, also when they came along with earlier ones."""
    with _Peer() as peer:
        peer.socket.sendall(_OK + b"more" if early else b"more")
        if early:
            peer.connection.response()
        with pytest.raises(Failure, match="nothing yet") as caught:
            peer.connection.silent()
        assert caught.value.got == "'more'"


def test_a_closed_connection_is_not_silence() -> None:
    """A peer that hangs up while it should wait is found out."""
    with _Peer() as peer:
        peer.socket.close()
        with pytest.raises(Failure, match="end of the connection"):
            peer.connection.silent()


def test_the_end_of_the_connection_is_checked() -> None:
    """A close is a close; staying open or saying more is not."""
    with _Peer() as peer:
        with pytest.raises(Failure, match="open after"):
            peer.connection.closed(within_s=0.01)
        peer.socket.sendall(b"more")
        with pytest.raises(Failure, match="more"):
            peer.connection.closed()
        peer.socket.close()
        peer.connection.closed()


def test_a_peer_that_is_gone_is_noticed_by_sending() -> None:
    """Sending to a closed connection fails the case, unless the case allows it."""
    with _Peer() as peer:
        peer.socket.close()
        assert not peer.connection.try_send(b"x")
        with pytest.raises(Failure, match="keep the connection open"):
            peer.connection.send(b"x")


def test_a_cut_response_is_cut() -> None:
    """A response that ends early is a failure that says where."""
    with _Peer() as peer:
        peer.socket.sendall(_OK[:-1])
        peer.socket.close()
        with pytest.raises(ConnectionCut, match="the end of the connection in the body"):
            peer.connection.response()


def test_interim_responses_can_be_seen_alone() -> None:
    """Each 1xx can be read as it comes, and the final answer afterwards."""
    with _Peer() as peer:
        peer.connection.expects("POST")
        peer.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert peer.connection.interim().status == 100
        peer.socket.sendall(_OK)
        assert ChunkedPost(peer.connection).answer().body == b"ok"


def test_an_upload_is_chunked() -> None:
    """An upload writes HTTP chunks and the final one."""
    with _Peer() as peer:
        ChunkedPost(peer.connection).chunk(b"0123456789abcdef").end()
        assert peer.socket.recv(999) == b"10\r\n0123456789abcdef\r\n0\r\n\r\n"


def test_the_end_of_an_upload_is_expected() -> None:
    """`stored` sends the final chunk and expects a 200; `last` expects the end of the connection, too."""
    with _Peer() as peer:
        peer.connection.expects("POST")
        peer.socket.sendall(_OK + b"HTTP/1.1 409 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\nmore")
        assert ChunkedPost(peer.connection).stored(content_length=2).body == b"ok"
        assert peer.socket.recv(99) == b"0\r\n\r\n"
        with pytest.raises(Failure, match="the end of the connection"):
            ChunkedPost(peer.connection).last(409)


def test_bytes_are_expected_where_they_come() -> None:
    """`gets` expects the next bytes, `ends` the rest and returns the response; other bytes are a failure."""
    with _Peer() as peer:
        peer.socket.sendall(_OK)
        peer.connection.head()
        peer.connection.gets(b"ok")
        with pytest.raises(Failure, match="the rest: 'more', got ''"):
            peer.connection.ends(b"more")
        peer.socket.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: v\r\n\r\n")
        peer.connection.head()
        assert peer.connection.gets(b"ok").ends().trailers == [(b"t", b"v")]


def test_an_interrupt_ends_a_read() -> None:
    """A read in one thread ends when another thread interrupts the connection."""
    with _Peer() as peer:
        reader = threading.Thread(target=peer.connection.closed)
        reader.start()
        peer.connection.interrupt()
        reader.join(AT_ONCE_S)
        assert not reader.is_alive()
        peer.connection.close()
        peer.connection.interrupt()


def test_a_half_closed_connection_still_receives() -> None:
    """After the sending side is closed the peer sees the end, and its answer is read."""
    with _Peer() as peer:
        peer.connection.half_close()
        assert peer.socket.recv(1) == b""
        peer.socket.sendall(_OK)
        assert peer.connection.response().body == b"ok"


def test_the_transcript_counts_floods() -> None:
    """Bytes that are sent many times in a row are one line with a count, so that the beginning stays in sight."""
    transcript = Transcript()
    transcript.add(1, ">", b"head")
    for _ in range(1000):
        transcript.add(1, ">", b"flood")
    transcript.add(2, "!", "aborted here")
    first, second, third = transcript.lines
    assert first.endswith("#1 > 'head'")
    assert second.endswith("#1 > 'flood' (1000 times)")
    assert third.endswith("#2 ! aborted here")
