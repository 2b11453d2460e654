"""Several requests on one connection: reused after an answer, or sent before it."""

from __future__ import annotations

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.data_plane.connection import QUEUE_BYTES, QUEUE_REQUESTS
from tricklecast.app.tools.conformance.connection import Connection, encode_chunk
from tricklecast.app.tools.conformance.target import Channel, Target


def test_a_connection_serves_one_request_after_the_other(channel: Channel, target: Target) -> None:
    """Keep-alive: publish, read, ask for the head, ask the control plane, and publish again, on one connection."""
    connection = target.open()
    connection.request("POST", channel.at(0), body=b"first")
    assert connection.response().status == 200
    connection.request("GET", channel.at(0))
    assert connection.response().body == b"first"
    connection.request("GET", channel.at("next"))
    assert connection.response().body == b"1"
    connection.request("GET", "/healthz")
    assert connection.response().status == 200
    connection.request("POST", channel.at(1), body=b"second")
    assert connection.response().status == 200
    connection.request("HEAD", channel.at(1))
    assert connection.response().get("Lp-Trickle-Size") == "6"


def test_pipelined_requests_are_answered_in_order(channel: Channel, target: Target) -> None:
    """Requests that arrive in one packet are answered one after the other."""
    connection = target.open()
    head = connection.render("POST", channel.at(0), {"Content-Length": "3"})
    connection.send(head + b"abc" + connection.render("GET", channel.at(0)) + connection.render("GET", channel.at(7)))
    for method in ("POST", "GET", "GET"):
        connection.expects(method)
    assert connection.response().status == 200
    assert connection.response().body == b"abc"
    assert connection.response().status == 470


def test_a_request_waits_behind_a_read_that_waits(channel: Channel, target: Target) -> None:
    """What is pipelined behind a long poll is served when that has been answered."""
    channel.create()
    connection = channel.read(0)
    connection.request("GET", channel.at("next"))
    target.settle()
    connection.silent()
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    assert connection.response().body == b"1"


def test_any_bytes_may_come_while_a_read_waits(channel: Channel, target: Target) -> None:
    """What comes meanwhile is a request as any other, however it is cut, and whatever comes behind the last one."""
    channel.create()
    connection = channel.waiting(0)
    head = connection.render("GET", channel.at("next"))
    for part in (b"\r\n", head[:2], head[2:-2], head[-2:]):
        connection.send(part)
        target.settle()
    connection.send(connection.render("GET", channel.at("next"), {"Connection": "close"}) + head)
    for _ in range(2):
        connection.expects("GET")
    target.settle()
    connection.silent()
    channel.publish(0, b"now")
    assert [connection.response().body for _ in range(3)] == [b"now", b"1", b"1"]
    connection.closed()


def test_a_large_publish_behind_a_waiting_read_arrives_whole(channel: Channel, target: Target) -> None:
    """Reading pauses while much is queued, and goes on when its turn comes."""
    other = target.channel()
    channel.create()
    connection = channel.read(0)
    body = b"".join(b"%08d" % number for number in range(QUEUE_BYTES // 2))
    connection.send(connection.render("POST", other.at(0), {"Content-Length": str(len(body))}) + body[:-8])
    connection.expects("POST")
    target.settle()
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    connection.send(body[-8:])
    assert connection.response().status == 200
    assert other.get(0).body == body


def test_many_pipelined_requests_are_all_answered(channel: Channel, target: Target) -> None:
    """More requests than may be queued are held back, and lost is none."""
    count = 3 * QUEUE_REQUESTS
    channel.publish(0, *[b"%d" % seq for seq in range(count)])
    connection = target.open()
    connection.send(b"".join([connection.render("GET", channel.at(seq)) for seq in range(count)]))
    assert [connection.response().body for _ in range(count)] == [b"%d" % seq for seq in range(count)]


def test_two_large_publishes_behind_a_waiting_read(channel: Channel, target: Target) -> None:
    """The queue's byte count goes down with the queue: the second of two large bodies does not stall."""
    other = target.channel()
    channel.create()
    connection = channel.read(0)
    body = bytes(QUEUE_BYTES)
    for seq in (0, 1):
        connection.send(connection.render("POST", other.at(seq), {"Transfer-Encoding": "chunked"}))
        connection.expects("POST")
        for start in range(0, len(body), 1 << 14):
            connection.send(encode_chunk(body[start : start + (1 << 14)]))
        connection.send(b"0\r\n\r\n")
    target.settle()
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    assert [connection.response().status for _ in range(2)] == [200, 200]
    assert other.get(0).body == other.get(1).body == body


def test_a_segment_request_waits_behind_the_control_plane(channel: Channel, target: Target) -> None:
    """A segment route pipelined behind a FastAPI route is answered after it."""
    channel.publish(0, b"abc")
    connection = target.open()
    connection.send(connection.render("GET", "/readyz") + connection.render("GET", channel.at(0)))
    assert connection.response().body == b'{"status":"ready"}'
    assert connection.response().body == b"abc"


def test_the_control_plane_behind_a_segment_route_is_not_answered_out_of_order(
    channel: Channel, target: Target
) -> None:
    """FastAPI cannot queue behind an unfinished exchange: that is answered, then the connection closes."""
    channel.create()
    connection = channel.read(0)
    connection.request("GET", "/healthz")
    target.settle()
    channel.publish(0, b"now")
    assert connection.response().body == b"now"
    connection.closed()


def test_a_connection_that_breaks_takes_its_queue_along(channel: Channel, target: Target, server: LocalServer) -> None:
    """Requests that were never begun change nothing when their connection is gone."""
    channel.create()
    connection = channel.read(0)
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "3"}) + b"abc")
    target.settle()
    connection.abort()
    record = server.record(channel=channel.name, op="read")
    assert record.reason == "client_gone"
    assert channel.next_seq() == 0
    eventually(lambda: not _waiting(target, channel))


def _waiting(target: Target, channel: Channel) -> bool:
    connection: Connection = target.send("GET", f"/api/v1/channels/{channel.name}")
    return b'"readers":0' not in connection.response().body


def test_pipelined_control_plane_requests_are_answered_in_order(target: Target) -> None:
    """uvicorn's own pipelining works: several FastAPI requests in one packet."""
    connection = target.open()
    paths = ["/healthz", "/readyz", "/healthz", "/readyz", "/healthz"]
    connection.send(b"".join(connection.render("GET", path) for path in paths))
    bodies = [connection.response().body for _ in paths]
    assert bodies == [b'{"status":"ok"}' if path == "/healthz" else b'{"status":"ready"}' for path in paths]


def test_an_unused_connection_is_closed_after_the_keep_alive() -> None:
    """Also one whose last request had a body that came after its answer."""
    with local_server(keep_alive_s=1) as server, server.client() as target:
        early, plain = target.open(), target.open()
        early.send(early.render("POST", "/trickle/c", {"Content-Length": "5"}))
        early.expects("POST")
        assert early.response().status == 200
        early.send(b"12345")
        plain.request("GET", "/trickle/c/next")
        assert plain.response().status == 200
        early.closed()
        plain.closed()


def test_a_wait_is_not_taken_for_an_unused_connection() -> None:
    """The keep-alive counts from the answer, not while something is in progress."""
    with local_server(keep_alive_s=1, interim_interval_s=0.5) as server, server.client() as target:
        channel = target.channel()
        channel.create()
        reader, upload = channel.read(0), channel.upload(0)
        for _ in range(3):
            assert upload.connection.interim().status == 100
        upload.chunk(b"late").end()
        assert reader.response().body == b"late"
        assert upload.answer().status == 200
