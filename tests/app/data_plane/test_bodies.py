"""What publishers send and how readers get it: chunks kept together, large ones streamed, malformed ones refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.data_plane.connection import UNSPLIT
from tricklecast.app.tools.conformance.connection import Connection, encode_chunk
from tricklecast.app.tools.conformance.target import Channel, Target


def pattern(size: int) -> bytes:
    """Bytes that tell where they are."""
    return b"".join(b"%08x" % number for number in range(size // 8 + 1))[:size]


@pytest.mark.parametrize("size", [2, 1000, UNSPLIT])
def test_a_small_chunk_in_many_packets_stays_one_chunk(channel: Channel, target: Target, size: int) -> None:
    """A chunk of at most 32 KiB reaches a waiting reader as one HTTP chunk, however it was cut by TCP."""
    upload = channel.upload(0)
    reader = channel.waiting(0)
    body = pattern(size)
    wire = encode_chunk(body)
    for start, stop in ((0, 3), (3, len(wire) // 2), (len(wire) // 2, len(wire) - 1), (len(wire) - 1, len(wire))):
        upload.connection.send(wire[start:stop])
        target.settle()
    assert reader.head().status == 200
    assert reader.chunk() == body
    upload.end()
    assert reader.chunk() is None
    assert upload.answer().get("Lp-Trickle-Size") == str(size)


def test_chunks_in_one_packet_stay_apart(channel: Channel) -> None:
    """Control clients read one chunk at a time: chunks are not merged either."""
    upload = channel.upload(0)
    upload.connection.send(b"".join(map(encode_chunk, (b"one", b"two", b"three"))))
    upload.end()
    assert upload.answer().status == 200
    assert channel.get(0).chunks == [b"one", b"two", b"three"]


def test_a_large_chunk_streams(channel: Channel) -> None:
    """Readers do not wait for the end of a chunk of more than 32 KiB."""
    body = pattern(1 << 20)
    upload = channel.upload(0)
    upload.connection.send(b"%x\r\n" % len(body) + body[: len(body) // 2])
    reader = channel.read(0)
    assert reader.head().status == 200
    early = reader.body(len(body) // 2 - UNSPLIT)
    assert early == body[: len(early)]
    upload.connection.send(body[len(body) // 2 :] + b"\r\n")
    upload.end()
    assert upload.answer().get("Lp-Trickle-Size") == str(len(body))
    assert early + reader.rest() == body
    assert channel.get(0).body == body


def test_a_counted_body_is_relayed_as_it_arrives(channel: Channel) -> None:
    """With Content-Length there are no chunks to keep together: readers get what has arrived."""
    connection = channel.target.open()
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "10"}) + b"01234")
    connection.expects("POST")
    reader = channel.arrived(0, b"01234")
    connection.send(b"56789")
    assert connection.response().status == 200
    assert reader.rest() == b"56789"


def test_what_arrived_of_a_chunk_counts_when_its_publisher_is_lost(channel: Channel) -> None:
    """Half a chunk is half a chunk: it is kept and can be continued by a second POST."""
    upload = channel.upload(0)
    upload.connection.send(b"a\r\n01234")
    channel.target.settle()
    upload.connection.close()
    reader = channel.arrived(0, b"01234")
    second = channel.upload(0, b"56789").end()
    assert second.answer().get("Lp-Trickle-Size") == "10"
    assert reader.rest() == b"56789"


MALFORMED = {
    "size": b"xyz\r\n",
    "negative": b"-5\r\n",
    "overflow": b"fffffffffffffffff\r\n",
    "after": b"2\r\nabc\r\n",
}


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_chunk_is_refused_and_what_came_before_is_kept(channel: Channel, bad: bytes) -> None:
    """The publisher is told at once; its segment stays open for one that can go on."""
    upload = channel.upload(0, b"good ")
    reader = channel.arrived(0, b"good ")
    upload.connection.send(bad)
    assert upload.answer().status == 400
    upload.connection.half_close()
    upload.connection.closed()
    second = channel.upload(0, b"again").end()
    assert second.answer().status == 200
    assert reader.rest()[-5:] == b"again"


def test_chunks_before_a_malformed_one_in_the_same_packet_are_kept(channel: Channel) -> None:
    """What becomes of good chunks does not depend on how TCP cut the stream."""
    upload = channel.upload(0)
    upload.connection.send(encode_chunk(b"good ") + b"xyz\r\n")
    assert upload.answer().status == 400
    channel.upload(0, b"again").end().answer()
    assert channel.get(0).body == b"good again"


def test_a_malformed_chunk_first_leaves_nothing(channel: Channel, server: LocalServer) -> None:
    """A preconnect that turns out to be nonsense moves no head and leaves no segment."""
    channel.create()
    upload = channel.upload(0)
    upload.connection.send(b"nonsense\r\n")
    assert upload.answer().status == 400
    assert channel.next_seq() == 0
    assert server.record(channel=channel.name, op="publish").reason == "bad_request"


def test_a_body_that_stops_without_its_end_changes_nothing_else(channel: Channel, server: LocalServer) -> None:
    """An aborted preconnect leaves no trace, and its record says that the client went."""
    channel.create()
    upload = channel.preconnect(0)
    upload.abort()
    record = server.record(channel=channel.name, op="publish")
    assert (record.reason, record.status, record.bytes_in) == ("client_gone", None, 0)
    assert channel.next_seq() == 0


NONSENSE = {
    "no http": b"hello\r\n\r\n",
    "two lengths": b"POST /trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": (
        b"POST /trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\n"
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "bad length": b"POST /trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "a host that is none": b"GET /trickle/nonsense/0 HTTP/1.1\r\nHost: x y\r\n\r\n",
    "header without a name": b"GET /trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    "header with a NUL": b"GET /trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\na: \0\r\n\r\n",
    "unknown method": b"FETCH /trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000001fc0303") + bytes(100),
    "no path": b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT host": b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT path": b"CONNECT /trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT url": b"CONNECT http://x/trickle/nonsense/0 HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("base_path", ["/trickle", "/"])
def test_nonsense_is_refused_and_changes_nothing(base_path: str) -> None:
    """Bytes that are no request get a 4xx and the end of the connection, and create no channel."""
    with local_server(base_path=base_path) as server, server.client() as target:
        for name, data in NONSENSE.items():
            connection: Connection = target.open()
            connection.send(data)
            status = connection.response().status
            assert status in (400, 404, 405, 501), f"{name}: {status}"
            connection.half_close()
            connection.closed()
        assert set(server.plane.registry.channels) == {"_changes"}


def test_an_endless_header_is_refused(target: Target) -> None:
    """A header line that never ends is cut off at the limit: it must not fill the memory."""
    connection = target.open()
    connection.send(b"GET /trickle/c/0 HTTP/1.1\r\nHost: x\r\nendless: ")
    for _ in range(64):
        if not connection.try_send(b"a" * (1 << 14)):
            break
    assert connection.response().status == 431


def test_an_endless_trailer_is_refused(channel: Channel) -> None:
    """The same holds for what may follow a chunked body."""
    upload = channel.upload(0, b"data")
    upload.connection.send(b"0\r\nendless: ")
    for _ in range(64):
        if not upload.connection.try_send(b"a" * (1 << 14)):
            break
    assert upload.answer().status == 431


def test_a_large_body_before_a_head_is_not_taken_for_headers(channel: Channel, target: Target) -> None:
    """What is counted against the limit of the headers is headers, not the body in the same packet."""
    size = 200_000
    connection = target.open()
    first = connection.render("POST", channel.at(0), {"Content-Length": str(size)}) + bytes(size)
    second = connection.render("GET", channel.at("next"))
    connection.send(first[:100])
    target.settle()
    connection.send(first[100:] + second[:10])
    connection.expects("POST")
    assert connection.response().status == 200
    connection.send(second[10:])
    assert connection.response().body == b"1"


def test_a_long_url_is_refused(target: Target) -> None:
    """A URL beyond 8 KiB is 414, even before it ends."""
    connection = target.open()
    connection.send(b"GET /trickle/" + b"a" * 9000)
    assert connection.response().status == 414


def test_large_headers_are_refused(target: Target) -> None:
    """Headers beyond 64 KiB in all are 431."""
    connection = target.open()
    connection.send(connection.render("GET", "/trickle/c/0", [(f"x-{n}", "v" * 1000) for n in range(70)]))
    assert connection.response().status == 431


FOR_EVER_S = 10**6


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("headers", [{}, {"Content-Length": "0"}], ids=["none", "empty"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_who_has_no_body_to_send_is_not_waited_for(
    tls: bool, headers: dict[str, str], method: str, certificate: tuple[Path, Path]
) -> None:
    """An answer that closes the connection closes it at once, under TLS, too."""
    ways = {"tls_cert": certificate[0], "tls_key": certificate[1]} if tls else {}
    with local_server(**ways) as server, server.client() as target:
        server.plane.options = replace(server.plane.options, linger_s=FOR_EVER_S)
        connection = target.open()
        connection.request(method, f"{target.base}/one/two/three", headers)
        assert connection.response().status == 404
        connection.closed()
        connection.close()
        eventually(lambda: not server.plane.connections)


@pytest.mark.parametrize(
    "headers", [{"Content-Length": "5"}, {"Transfer-Encoding": "chunked"}], ids=["length", "chunks"]
)
def test_who_has_more_to_send_is_read_from_for_a_moment(headers: dict[str, str]) -> None:
    """Or the kernel would reset the connection, and the answer might be lost."""
    with local_server() as server, server.client() as target:
        server.plane.options = replace(server.plane.options, linger_s=FOR_EVER_S)
        connection = target.open()
        connection.send(connection.render("GET", f"{target.base}/one/two/three", headers))
        connection.expects("GET")
        assert connection.response().status == 404
        connection.closed()  # for the server's part
        connection.send(b"abc")
        assert server.inside(lambda: len(server.plane.connections)) == 1
        connection.close()
        eventually(lambda: not server.plane.connections)
