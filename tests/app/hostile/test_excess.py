"""Too much of something: refused at its limit, not below it, and what was good before it is kept."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import patch

import pytest

from tests.app.hostile.support import left_over
from tests.support.local import LocalServer
from tests.support.waiting import eventually
from tricklecast.app.data_plane import handler
from tricklecast.app.data_plane.scheduling import TURN_BYTES
from tricklecast.app.http1 import connection as module
from tricklecast.app.http1.connection import QUEUE_REQUESTS, SLICE_BYTES, TURN_REQUESTS, UNREAD_BYTES
from tricklecast.app.http1.framing import CHUNK_OVERHEAD, EXCESS_BYTES, FIELD_BYTES
from tricklecast.app.tools.conformance.connection import RawConnection, encode_chunk
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

CREATE = "/api/v1/channels"
NEXT = "/trickle/control/next"


def test_headers_are_counted_with_a_price_for_each(server: LocalServer, target: Target) -> None:
    """64 KiB of header fields, of which many small ones use up as much as one large one; one byte more is 431."""
    limit = server.plane.options.header_bytes
    for count in (1, 100, 1000):
        for excess, status in ((-1, 200), (0, 200), (1, 431)):
            connection = target.open()
            host = len(connection.render("GET", NEXT).split(b"\r\n")[1]) - 2 + FIELD_BYTES
            room = limit - host - (count - 1) * (1 + FIELD_BYTES) - (1 + FIELD_BYTES) + excess
            connection.send(connection.render("GET", NEXT, [("a", "")] * (count - 1) + [("b", "v" * room)]))
            assert connection.response().status == status, (count, excess)


@pytest.mark.parametrize(("excess", "status"), [(-1, 200), (0, 200), (1, 414)])
def test_a_url_is_bounded(server: LocalServer, target: Target, excess: int, status: int) -> None:
    """8 KiB, with its query; one byte more is 414."""
    path = f"{NEXT}?"
    url = path + "q" * (server.plane.options.url_bytes - len(path) + excess)
    assert target.ask("GET", url).status == status


def test_a_head_that_never_ends_is_refused(target: Target) -> None:
    """Field after field, in packets of their own."""
    connection = target.open()
    connection.send(connection.render("GET", NEXT)[:-2])
    for number in range(4096):
        if not connection.try_send(b"x-%d: %b\r\n" % (number, b"v" * 100)):
            break
    assert connection.response().status == 431


def test_a_hundred_thousand_tiny_chunks_are_a_body(channel: RemoteChannel, server: LocalServer) -> None:
    """One byte each: stored whole, and others are served meanwhile."""
    upload = channel.upload(0)
    batch = encode_chunk(b"x") * 10_000
    for _ in range(10):
        upload.connection.send(batch)
        assert channel.target.ask("GET", NEXT).status == 200
    upload.end()
    assert upload.answer().get("Lp-Trickle-Size") == "100000"
    assert len(channel.get(0).body) == 100_000


@pytest.mark.parametrize(("excess", "accepted"), [(-1, True), (0, True), (1, False)])
def test_extensions_of_a_chunk_are_bounded(channel: RemoteChannel, excess: int, accepted: bool) -> None:
    """16 KiB beyond what a chunk may cost; one byte more is 400, and the chunks before it are kept."""
    upload = channel.upload(0, b"good")
    channel.arrived(0, b"good")
    # Of the packet with the head and the one behind it nothing is held against this one.
    wire = b"1;%b\r\nx\r\n"
    room = EXCESS_BYTES + CHUNK_OVERHEAD + 3 - len(wire % b"") + excess
    upload.connection.send(wire % (b"e" * room))
    if accepted:
        upload.end()
        assert upload.answer().status == 200
    else:
        answer = upload.answer()
        assert (answer.status, answer.body) == (400, b"Too many bytes around the chunks")
        channel.upload(0, b" again").end().answer()
    assert channel.get(0).body[:4] == b"good"


def test_moderate_extensions_of_every_chunk_are_fine(channel: RemoteChannel) -> None:
    """A signature of 80 bytes beside each kibibyte of payload, as some clients send: no limit adds them up."""
    upload = channel.upload(0)
    for _ in range(100):
        upload.connection.send(b"400;signature=%b\r\n%b\r\n" % (b"s" * 80, bytes(1024)) * 10)
    upload.end()
    assert upload.answer().get("Lp-Trickle-Size") == str(1000 << 10)


@pytest.mark.parametrize(
    "wire",
    [b"1;%b\r\nx\r\n", b"%b1\r\nx\r\n", b'1;a="%b"\r\nx\r\n'],
    ids=["extension", "zeros", "quoted extension"],
)
@pytest.mark.parametrize("path", ["segment", "control plane"])
def test_an_extension_that_never_ends_is_refused(
    target: Target, channel: RemoteChannel, wire: bytes, path: str
) -> None:
    """Within the first chunk, too, and on every route."""
    connection = target.open()
    where = channel.at(0) if path == "segment" else CREATE
    connection.send(connection.render("POST", where, {"Transfer-Encoding": "chunked"}))
    connection.expects("POST")
    target.settle()
    connection.send(wire[: wire.index(b"%b")])
    for _ in range(16):
        if not connection.try_send(b"0" * (8 << 10)):
            break
    assert connection.response().status == 400


def test_small_packets_hide_no_extensions(channel: RemoteChannel, target: Target) -> None:
    """Bytes that are no payload are added up over packets, also if each packet ends with a chunk's beginning."""
    upload = channel.upload(0)
    connection = upload.connection
    target.settle()
    connection.try_send(b"1;%b\r\n" % (b"e" * 4000))
    for _ in range(16):
        target.settle()
        if not connection.try_send(b"x\r\n1;%b\r\n" % (b"e" * 4000)):
            break
    # Where the packet ends with a chunk's beginning, what follows might be trailer fields.
    assert upload.answer().status in (400, 431)


@pytest.mark.parametrize(("size", "status"), [(UNREAD_BYTES - 1, 422), (UNREAD_BYTES, 422), (UNREAD_BYTES + 1, 413)])
@pytest.mark.parametrize("chunked", [False, True], ids=["counted", "chunked"])
def test_a_body_for_the_control_plane_is_bounded(target: Target, size: int, status: int, chunked: bool) -> None:
    """64 KiB; announced or not. Below that it is FastAPI who says what is wrong with it."""
    connection = target.open()
    if chunked:
        connection.send(connection.render("POST", CREATE, {"Transfer-Encoding": "chunked"}))
        connection.expects("POST")
        connection.try_send(
            encode_chunk(b"x" * 1000) * (size // 1000) + encode_chunk(b"x" * (size % 1000)) + b"0\r\n\r\n"
        )
    else:
        connection.send(connection.render("POST", CREATE, {"Content-Length": str(size)}))
        connection.expects("POST")
        connection.try_send(b"x" * size)
    assert connection.response().status == status


def test_a_body_for_the_control_plane_that_is_waited_for(target: Target) -> None:
    """A client that holds its body back is told to go on, and told so once."""
    connection = target.open()
    body = b'{"name": "held-back"}'
    headers = {"Content-Length": str(len(body)), "Expect": "100-continue", "Content-Type": "application/json"}
    connection.send(connection.render("POST", CREATE, headers))
    connection.expects("POST")
    assert connection.interim().status == 100
    connection.send(body)
    connection.expects("POST")
    assert connection.response().status == 201
    assert target.ask("DELETE", f"{CREATE}/held-back").status == 200


def test_trailer_fields_are_no_header_fields(target: Target) -> None:
    """Bytes behind a body do not change the framing that the head has announced."""
    connection = target.open()
    body = b'{"name": "trailing"}'
    connection.send(connection.render("POST", CREATE, {"Transfer-Encoding": "chunked"}))
    connection.expects("POST")
    connection.send(encode_chunk(body) + b"0\r\nContent-Type: application/json\r\n\r\n")
    plain = target.ask("POST", CREATE, {}, body)
    assert connection.response().status == plain.status
    target.ask("DELETE", f"{CREATE}/trailing")


def pipelined(channel: RemoteChannel, count: int) -> RawConnection:
    """A reader that waits, and so many requests behind it in the same packet."""
    connection = channel.target.open()
    wire = connection.render("GET", channel.at(0)) + connection.render("GET", channel.at("next")) * count
    for _ in range(count + 1):
        connection.expects("GET")
    connection.send(wire)
    return connection


def test_ten_thousand_pipelined_requests(channel: RemoteChannel, server: LocalServer) -> None:
    """Those behind a read that waits are neither read nor parsed beyond a bound, and all are answered in the end."""
    channel.create()
    connection = channel.target.open()
    head = b"HEAD /a HTTP/1.1\r\nHost:\r\n\r\n".replace(b"/a", channel.at("next").encode())
    count = 10_000
    waiting = connection.render("GET", channel.at(0))
    connection.expects("GET")
    sender = threading.Thread(target=connection.send, args=(waiting + head * count,))
    sender.start()
    (pipelining,) = eventually(lambda: server.inside(lambda: list(server.plane.pipelined)), what="reading has paused")
    assert isinstance(pipelining, module.Connection)
    queue = pipelining._queue
    assert queue is not None
    assert len(queue) <= QUEUE_REQUESTS + SLICE_BYTES // len(head) + 1
    assert len(pipelining._more) <= TURN_BYTES
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    for _ in range(count):
        connection.expects("HEAD")
    assert {connection.response().status for _ in range(count)} == {200}
    sender.join()


def test_control_plane_requests_at_once(target: Target) -> None:
    """They are answered in order; a client that has closed its half meanwhile gets all answers, and the end."""
    connection = target.open()
    count = 300
    connection.send(connection.render("GET", "/healthz") * count)
    connection.half_close()
    for _ in range(count):
        connection.expects("GET")
    assert {connection.response().status for _ in range(count)} == {200}
    connection.closed()


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD"])
def test_requests_that_offer_another_protocol(
    channel: RemoteChannel, target: Target, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """500 in one packet (36 KB), with a DELETE behind them: each is answered, and the DELETE is done."""
    channel.publish(0, b"data")
    connection = target.open()
    offer = {"Connection": "Upgrade", "Upgrade": "x"}
    connection.send(connection.render(method, channel.at(0), offer) * 500 + connection.render("DELETE", channel.path))
    for _ in range(500):
        connection.expects(method)
    connection.expects("DELETE")
    assert {connection.response().status for _ in range(500)} == {204 if method == "OPTIONS" else 200}
    assert connection.response().status == 200
    assert channel.get("next").get("Lp-Trickle-Closed") == "terminated"
    assert not caplog.records


@pytest.mark.interpreted
def test_a_client_that_pipelines_lets_others_come_first(channel: RemoteChannel, server: LocalServer) -> None:
    """However much it sends at once, the server begins few of its requests in one turn of the event loop."""
    channel.create()
    turns: list[int] = []
    begin = handler.begin

    def counting(connection: Any, request: Any) -> None:
        turns[-1] += 1
        begin(connection, request)

    def turn() -> None:
        turns.append(0)
        if sum(turns) < count:
            asyncio.get_running_loop().call_soon(turn)

    count = 2000
    connection = channel.target.open()
    wire = connection.render("OPTIONS", channel.at(0)) * count
    with patch.object(module, "begin", counting):
        server.inside(turn)
        connection.send(wire)
        for _ in range(count):
            connection.expects("OPTIONS")
        assert {connection.response().status for _ in range(count)} == {204}
    assert sum(turns) == count
    assert max(turns) <= TURN_REQUESTS + 2, "those of the parser, and what one turn takes from the queue"


@pytest.mark.parametrize(("count", "paused"), [(QUEUE_REQUESTS - 1, 0), (QUEUE_REQUESTS, 0), (QUEUE_REQUESTS + 1, 1)])
def test_reading_pauses_at_the_limit(channel: RemoteChannel, server: LocalServer, count: int, paused: int) -> None:
    """64 requests may wait behind another one; while there are more, nothing is read."""
    channel.create()
    pipelined(channel, count)
    channel.target.settle()
    assert server.inside(lambda: len(server.plane.pipelined)) == paused


def test_a_client_that_leaves_a_full_pipeline_is_noticed(channel: RemoteChannel, server: LocalServer) -> None:
    """Nothing is read from it any more; its waiting request is forgotten all the same."""
    channel.create()
    for leave in (RawConnection.close, RawConnection.abort, RawConnection.half_close):
        connection = pipelined(channel, QUEUE_REQUESTS + 1)
        eventually(lambda: server.inside(lambda: len(server.plane.pipelined)) == 1, what="reading has paused")
        leave(connection)
        eventually(lambda: not server.inside(lambda: left_over(server.plane)), what=f"{leave} is noticed")


def test_a_full_pipeline_of_a_client_that_stays_is_served(channel: RemoteChannel, server: LocalServer) -> None:
    """Pausing, and being looked at, ends nobody's wait."""
    channel.create()
    connection = pipelined(channel, QUEUE_REQUESTS + 1)
    eventually(lambda: server.inside(lambda: len(server.plane.pipelined)) == 1, what="reading has paused")
    server.inside(lambda: server.plane.tick(server.plane.clock()))
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    assert [connection.response().body for _ in range(QUEUE_REQUESTS + 1)] == [b"1"] * (QUEUE_REQUESTS + 1)
    eventually(lambda: not server.inside(lambda: server.plane.pipelined), what="and is read from again")


def test_large_heads_fill_a_pipeline_sooner(channel: RemoteChannel, server: LocalServer) -> None:
    """Pipelined requests are counted with their heads: reading pauses at 64 KiB."""
    channel.create()
    connection = channel.waiting(0)
    for _ in range(3):
        connection.send(connection.render("GET", channel.at("next"), {"x": "v" * 30_000}))
        connection.expects("GET")
    eventually(lambda: server.inside(lambda: len(server.plane.pipelined)) == 1, what="reading has paused")
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    assert [connection.response().body for _ in range(3)] == [b"1"] * 3


def test_deep_paths_are_not_found(target: Target) -> None:
    """A path of thousands of segments is one of ours, and names nothing."""
    for number in range(20):
        connection = target.open()
        connection.request("GET", f"/trickle/deep/{number % 2}{'/a' * 3000}{number}")
        assert connection.response().status == 404


def test_a_length_of_thousands_of_digits(channel: RemoteChannel) -> None:
    """Leading zeros are allowed, as many as a header may hold; Python alone would not read such a number."""
    connection = channel.target.open()
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "0" * 10_000 + "4"}) + b"data")
    connection.expects("POST")
    assert connection.response().status == 200
    assert channel.get(0).body == b"data"
