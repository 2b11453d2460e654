"""Clients that close their half of a connection: they have said all, and listen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.app.data_plane.support import connections, later
from tests.support.local import LocalServer, local_server
from tests.support.resets import reset_when_closed
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.data_plane.deadlines import HALF_CLOSED_S
from tricklecast.app.tools.conformance.connection import RawConnection, encode_chunk
from tricklecast.app.tools.conformance.target import RemoteChannel, Target


def half_closed(server: LocalServer, count: int = 1) -> None:
    """Wait until the server knows of this many half-closed connections."""
    eventually(lambda: len(server.plane.timeouts.half_closed) == count, what="the half-close has arrived")


def waiting(server: LocalServer, channel: RemoteChannel, seq: int = 0) -> RawConnection:
    """A reader that has closed its half, and waits."""
    before = len(server.plane.timeouts.half_closed)
    reader = channel.waiting(seq)
    reader.half_close()
    half_closed(server, before + 1)
    return reader


def test_a_reader_gets_a_segment_that_is_not_born_yet(server: LocalServer, channel: RemoteChannel) -> None:
    """Chunk by chunk, to its end; then the server closes."""
    channel.create()
    reader = waiting(server, channel)
    upload = channel.upload(0, b"first,")
    head = reader.head()
    assert (head.status, head.get("Connection")) == (200, "close")
    assert reader.chunk() == b"first,"
    upload.chunk(b"second").end()
    assert reader.rest() == b"second"
    reader.closed()
    assert not server.plane.timeouts.half_closed


def test_a_reader_that_closes_its_half_in_the_middle_gets_the_rest(server: LocalServer, channel: RemoteChannel) -> None:
    """A half-close while bytes flow changes nothing but that the connection closes afterwards."""
    upload, reader = channel.started(0, b"first,")
    reader.half_close()
    half_closed(server)
    upload.chunk(b"second").end()
    assert reader.rest() == b"second"
    reader.closed()


def test_a_reader_in_the_middle_of_a_segment_that_stands_still_is_cut_off() -> None:
    """It may be gone: after so long without a byte its connection breaks; other readers stay."""
    with local_server(half_closed_s=0.05) as server, server.client() as target:
        channel = target.channel("c")
        upload, reader = channel.started(0, b"first,")
        other = channel.arrived(0, b"first,")
        reader.half_close()
        reader.closed()
        upload.chunk(b"second").end()
        assert other.rest() == b"second"


def test_everything_that_is_pipelined_is_answered(server: LocalServer, channel: RemoteChannel, target: Target) -> None:
    """Requests of both planes behind a read that waits; half a request behind them was never made."""
    channel.create()
    connection = target.open()
    wire = [connection.render("GET", path) for path in (channel.at(0), "/healthz", channel.at("next"))]
    for _ in wire:
        connection.expects("GET")
    connection.send(b"".join(wire) + b"GET /heal")
    connection.half_close()
    half_closed(server)
    channel.publish(0, b"data")
    assert connection.response().body == b"data"
    assert connection.response().status == 200
    last = connection.response()
    assert (last.body, last.get("Connection")) == (b"1", "close")
    connection.closed()


@pytest.mark.parametrize("more", [0, 1], ids=["behind it", "behind one that is pipelined"])
def test_what_is_no_request_is_refused_behind_a_read_that_waits(
    server: LocalServer, channel: RemoteChannel, target: Target, more: int
) -> None:
    """The refusal is the last answer, as it is where the requests before it are answered at once."""
    channel.create()
    connection = target.open()
    wire = [connection.render("GET", path) for path in (channel.at(0), channel.at("next"))][: 1 + more]
    for _ in (*wire, "refused"):
        connection.expects("GET")
    connection.send(b"".join(wire) + b"GET /trickle/x/0 HTTP/3.0\r\n\r\n")
    connection.half_close()
    half_closed(server)
    channel.publish(0, b"data")
    assert connection.response().body == b"data"
    for _ in range(more):
        assert connection.response().body == b"1"
    assert connection.response().status in (400, 505)
    connection.closed()


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/channels"])
def test_the_control_plane_answers(target: Target, path: str) -> None:
    """Like `printf 'GET …' | nc -N`."""
    connection = target.open()
    connection.request("GET", path)
    connection.half_close()
    assert connection.response().status == 200
    connection.closed()


def test_a_publisher_that_has_sent_all_is_answered(tmp_path: Path) -> None:
    """Also when the answer waits for storage."""
    with local_server(data_dir=tmp_path, ack="fsync") as server, server.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"data")
        upload.connection.send(b"0\r\n\r\n")
        upload.connection.half_close()
        answer = upload.answer()
        assert (answer.status, answer.get("Lp-Trickle-Durability")) == (200, "fsync")
        upload.connection.closed()


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind a read"])
def test_a_publisher_that_stops_in_the_middle_is_cut_short(
    server: LocalServer, channel: RemoteChannel, target: Target, behind: bool
) -> None:
    """Its segment stays open for one that goes on, as if the connection had broken; also where it waited in line."""
    other = target.channel().create()
    connection = target.open()
    if behind:
        connection.request("GET", other.at(0))
    connection.send(connection.render("POST", channel.at(0), {"Transfer-Encoding": "chunked"}) + encode_chunk(b"part"))
    connection.expects("POST")
    connection.half_close()
    if behind:
        half_closed(server)
        other.publish(0, b"now")
        assert connection.response().body == b"now"
    connection.closed()
    record = server.record(channel=channel.name, op="publish")
    assert (record.reason, record.bytes_in) == ("client_gone", 4)
    channel.upload(0, b" and rest").end().answer()
    channel.get(0).segment(0, b"part and rest")


def test_a_reader_for_whom_nothing_comes_is_told_in_the_end(server: LocalServer, channel: RemoteChannel) -> None:
    """A client that is gone looks the same: after 10 s the server answers 503, and the reader is forgotten.

    The log says when it left.
    """
    channel.create()
    reader = waiting(server, channel)
    later(server, HALF_CLOSED_S - 1)
    reader.silent()
    later(server, 2)
    answer = reader.response()
    assert (answer.status, answer.get("Connection")) == (503, "close")
    assert answer.get("Retry-After") in ("1", "2")
    reader.closed()
    record = server.record(channel=channel.name, op="read")
    assert (record.reason, record.status) == ("client_gone", None)
    assert record.dur_us is not None
    assert record.dur_us < 1_000_000 * HALF_CLOSED_S


def test_a_stream_lives_as_long_as_segments_come(server: LocalServer, channel: RemoteChannel) -> None:
    """Also where it waits for the next segment, of which it was sent nothing, each time that the server looks."""
    channel.publish(0, b"0")
    stream = channel.read("stream")
    stream.head().expect(200)
    stream.gets(b"0").half_close()
    half_closed(server)
    for seq in range(1, 4):
        channel.publish(seq, b"%d" % seq)
        stream.gets(b"%d" % seq)
        later(server, HALF_CLOSED_S + 1)
    stream.silent(0.01)
    later(server, HALF_CLOSED_S - 1)
    stream.silent(0.01)
    later(server, 2)
    stream.closed()


def test_a_reader_that_has_more_to_take_is_not_looked_at() -> None:
    """Bytes that it takes show that the client is there; how slowly it may read is another rule."""
    with local_server(reader_lag_s=1000) as server, server.client() as target:
        channel, body = target.channel(), bytes(8 << 20)
        channel.publish(0, body)
        reader = channel.read(0)
        reader.half_close()
        half_closed(server)
        eventually(lambda: server.plane.slow_peers.stalled, what="its socket is full")
        for _ in range(3):
            later(server, HALF_CLOSED_S + 1)
        assert reader.response().body == body


def test_a_request_that_is_held_back_is_answered_as_the_last_one(server: LocalServer, channel: RemoteChannel) -> None:
    """A playlist waits for a segment, for example; the answer says that the connection closes."""
    player = channel.create().waiting("media.m3u8")
    player.half_close()
    half_closed(server)
    channel.publish(0, b"no media")
    player.last(415)


def test_a_reader_that_has_gone_is_noticed_by_the_next_write(server: LocalServer, channel: RemoteChannel) -> None:
    """A closed socket answers the first bytes with a reset."""
    channel.create()
    waiting(server, channel).close()
    upload = channel.upload(0)
    eventually(lambda: upload.chunk(b"x") and not server.plane.registry.readers, what="the reader is forgotten")
    record = server.record(channel=channel.name, op="read")
    assert (record.reason, record.status, record.bytes_out) == ("client_gone", None, 0)


def test_a_half_closed_connection_that_is_reset_is_noticed_without_a_write(
    server: LocalServer, channel: RemoteChannel
) -> None:
    """As the kernel does when its probes are not answered; the sweeper looks for it."""
    channel.create()
    with socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as reader:
        reader.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % channel.at(0).encode())
        eventually(lambda: server.plane.registry.readers, what="the reader waits")
        reader.shutdown(socket.SHUT_WR)
        half_closed(server)
        reset_when_closed(reader)
    eventually(lambda: not server.plane.registry.readers, what="the reader is forgotten")


def test_a_full_pipeline_has_the_same_time(server: LocalServer, channel: RemoteChannel, target: Target) -> None:
    """A connection that is not read from, because of what is pipelined on it, is looked at all the same."""
    channel.create()
    connection = target.open()
    connection.send(connection.render("GET", channel.at(0)) + connection.render("GET", channel.at("next")) * 100)
    for _ in range(101):
        connection.expects("GET")
    connection.half_close()
    half_closed(server)
    later(server, HALF_CLOSED_S + 1)
    assert connection.response().status == 503


def test_it_makes_room_for_a_new_connection() -> None:
    """Where connections are short, one that may be gone is broken before a new one is refused."""
    with local_server(max_connections=2) as server, server.client() as target:
        channel = target.channel().create()
        eventually(lambda: not connections(server), what="nothing is open")
        kept, reader = channel.waiting(0), channel.waiting(0)
        reader.half_close()
        half_closed(server)
        assert target.ask("GET", "/healthz").status == 200
        reader.closed()
        channel.publish(0, b"data")
        assert kept.response().body == b"data"


def test_tls_knows_no_half_close(certificate: tuple[Path, Path]) -> None:
    """The event loop answers a close_notify with its own: the reader is forgotten at once."""
    with local_server(tls_cert=certificate[0], tls_key=certificate[1]) as server, server.client() as target:
        channel = target.channel().create()
        reader = channel.waiting(0)
        assert server.plane.registry.readers
        reader.close()
        eventually(lambda: not server.plane.registry.readers, what="the reader is forgotten")
        assert not server.plane.timeouts.half_closed
