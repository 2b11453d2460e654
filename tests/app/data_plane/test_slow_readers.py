"""Peers that read slowly, or not at all: the server bounds what it holds for them, and for how long it waits."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from tests.app.data_plane.support import (
    FOR_EVER_S,
    LAG_S,
    PATIENT,
    SlowPeer,
    connections,
    later,
    pattern,
    slow_peer,
    stuck,
)
from tests.support.certificates import make_certificate
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.segment import FRAME_COST, SEGMENT_COST
from tricklecast.app.core.slow_readers import PACE_BYTES, Cut
from tricklecast.app.data_plane import pacing
from tricklecast.app.data_plane.upload import Upload
from tricklecast.app.listener import UNSENT_BYTES
from tricklecast.app.tools.conformance.target import RemoteChannel

CHUNK = 64 << 10


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server that cuts nobody off by itself."""
    with local_server(**PATIENT) as running:
        yield running


def get(channel: RemoteChannel, seq: int = 0, version: str = "1.1") -> bytes:
    return f"GET {channel.at(seq)} HTTP/{version}\r\nHost: h\r\n\r\n".encode()


def test_a_reader_that_reads_too_slowly_is_cut_off_for_its_age(server: LocalServer) -> None:
    """It takes something all the time, and still lacks what is older than the limit."""
    with server.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"begun---")
        with slow_reader(server, channel, upload.chunk, 40) as reader:
            later(server, 0)
            later(server, LAG_S / 2)
            sent = sent_to(server)
            reader.take(9 * CHUNK)
            eventually(lambda: sent_to(server) > sent + 4 * CHUNK)
            later(server, LAG_S / 2 - 1)
            assert server.plane.registry.readers == 1
            later(server, 2)
            record = server.record(channel=channel.name, op="read")
            assert (record.status, record.reason, record.detail) == (200, "evicted", Cut.AGE)
            assert witnessed(server, "cut_off") == [(Cut.AGE, channel.name, "127.0.0.1")]
            assert record.bytes_out is not None
            assert 9 * CHUNK <= record.bytes_out < 30 * CHUNK
            assert not reader.rest().endswith(b"0\r\n\r\n")
        upload.end()


def witnessed(server: LocalServer, kind: str) -> list[tuple[str, str, str]]:
    """The events as the dashboard would show them: reason, channel and client."""
    assert server.node.feed is not None
    events = server.node.feed.events
    server.inside(events.seal)
    return [(one.why, one.channel, one.client) for one in events.after(0) if one.kind == kind]


@contextmanager
def slow_reader(server: LocalServer, channel: RemoteChannel, publish: object, chunks: int) -> Iterator[SlowPeer]:
    """A reader that was there when so many chunks were published, and has read none of them."""
    assert callable(publish)
    peer = SlowPeer(server.port, get(channel))
    eventually(lambda: server.plane.registry.readers == 1)
    size = stored(server, channel) + chunks * CHUNK
    try:
        for _ in range(chunks):
            publish(pattern(CHUNK))
        eventually(lambda: stored(server, channel) == size, what="all is published")
        eventually(lambda: server.plane.slow_peers.stalled, what="the reader is stuck")
        yield peer
    finally:
        peer.socket.close()
        eventually(lambda: server.plane.registry.readers == 0)


def sent_to(server: LocalServer) -> int:
    """Body bytes that the one reader there is was sent."""
    readers = [reader for connection in connections(server) if (reader := connection.reader()) is not None]
    return readers[0].sent if readers else 0


def test_a_reader_that_does_not_read_holds_no_publisher(server: LocalServer) -> None:
    """Its socket is full, so it waits for no turn; the publisher goes on at its own pace."""
    with server.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"begun---")
        with slow_reader(server, channel, upload.chunk, 20):
            assert server.inside(lambda: (list(server.plane.turns), server.plane.turns.flows)) == ([], {})
            (publisher,) = [found for found in connections(server) if isinstance(found.exchange, Upload)]
            upload.chunk(b"more").end()
            assert upload.answer().get("Lp-Trickle-Size") == str(20 * CHUNK + 12)
            assert server.inside(lambda: publisher.pauses) == 0


@pytest.mark.interpreted
def test_a_publisher_that_waits_goes_on_when_its_reader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer ends the wait: the reader's socket takes bytes, so it is in time again."""
    monkeypatch.setattr(pacing, "LOOK_S", FOR_EVER_S)
    with local_server(**PATIENT) as server, server.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"begun---")
        reader = SlowPeer(server.port, get(channel))
        eventually(lambda: server.plane.registry.readers == 1)

        def publish() -> None:
            for _ in range(200):
                upload.chunk(pattern(CHUNK))
            upload.end()

        publisher = Thread(target=publish)
        publisher.start()
        eventually(lambda: server.plane.pacing.holding or not publisher.is_alive(), what="the reader is late")
        body = reader.take(200 * CHUNK)
        publisher.join()
        assert pattern(CHUNK)[-1000:] in body
        assert upload.answer().get("Lp-Trickle-Size") == str(200 * CHUNK + 8)
        reader.socket.close()


def test_a_reader_that_keeps_up_is_not_too_old(server: LocalServer) -> None:
    """A reader that has all bytes older than the limit stays, however often it is stuck."""
    with server.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"begun---")
        with slow_reader(server, channel, upload.chunk, 20) as reader:
            for _ in range(5):
                published = stored(server, channel)
                for _ in range(20):
                    upload.chunk(pattern(CHUNK))
                eventually(partial(lambda size: stored(server, channel) == size, published + 20 * CHUNK))
                eventually(lambda: server.plane.slow_peers.stalled, what="the reader is stuck again")
                reader.take(20 * CHUNK)
                eventually(partial(lambda published: sent_to(server) >= published, published))
                later(server, LAG_S * 0.6)
            assert server.plane.registry.readers == 1
        upload.end()


def test_a_backlog_may_be_read_slowly_but_not_stood_upon(server: LocalServer) -> None:
    """A reader of a closed segment is exempt from lag; but it has to keep a pace."""
    with server.client() as target:
        channel = target.channel()
        channel.publish(0, pattern(100 * CHUNK))
        with slow_peer(server, get(channel)) as reader:
            for _ in range(4):
                sent = server.inside(lambda: sent_to(server))
                reader.take(PACE_BYTES)
                while server.inside(lambda: sent_to(server)) <= sent:  # its kernel has room for more than a pace
                    reader.take(PACE_BYTES)
                later(server, LAG_S / 2)
            assert server.plane.registry.readers == 1
            for _ in range(16):  # its kernel may still take a pace for it, and sometimes another one
                reader.take(1)
                later(server, LAG_S)
                if server.inside(lambda: server.plane.registry.readers) == 0:
                    break
            record = server.record(channel=channel.name, op="read")
            assert (record.reason, record.detail) == ("evicted", Cut.STILL)
            assert not reader.rest().endswith(b"0\r\n\r\n")


FRAME = 31 << 10
SEGMENT = 16 * FRAME
"""Four turns of a reader, of four frames each; every turn is more than the kernel takes at once of a small buffer."""


def stored(server: LocalServer, channel: RemoteChannel) -> int:
    """Bytes of the channel's first segment."""
    found = server.plane.registry.channels.get(channel.name)
    return found.segments[0].size if found is not None and 0 in found.segments else 0


@contextmanager
def handed_over(server: LocalServer, channel: RemoteChannel, behind: bytes = b"") -> Iterator[tuple[SlowPeer, int]]:
    """A reader to whom all of a segment was handed over and that has not taken it; and how much it has read."""
    upload = channel.upload(0)
    for size in range(FRAME, SEGMENT + 1, FRAME):
        upload.chunk(pattern(FRAME))
        eventually(partial(lambda size: stored(server, channel) == size, size))
    upload.end()
    upload.answer()
    before = connections(server)
    peer = SlowPeer(server.port, b"")
    try:
        (connection,) = eventually(lambda: [found for found in connections(server) if found not in before])
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer.socket.sendall(get(channel) + behind)
        read = 0
        eventually(lambda: connection in server.plane.slow_peers.stalled)
        while sent_to(server) < SEGMENT:
            if connection in server.plane.slow_peers.stalled:
                read += len(peer.socket.recv(4096))
        eventually(lambda: connection.exchange is not None and connection.exchange.ending)
        yield peer, read
    finally:
        peer.socket.close()


def test_what_was_not_taken_is_not_called_complete(server: LocalServer) -> None:
    """All of a segment is handed over, its end included; its reader goes away before it has taken it."""
    with server.client() as target:
        channel = target.channel()
        with handed_over(server, channel):
            assert server.plane.registry.readers == 1
            later(server, 0)
            later(server, LAG_S)
            record = server.record(channel=channel.name, op="read")
            assert (record.status, record.reason, record.detail) == (200, "evicted", Cut.STILL)
            assert record.bytes_out is not None
            assert record.bytes_out < SEGMENT
        assert server.plane.registry.readers == 0


def test_a_peer_that_goes_before_it_has_taken_all_is_not_called_complete(server: LocalServer) -> None:
    """It went away, as in the middle of a segment."""
    with server.client() as target:
        channel = target.channel()
        with handed_over(server, channel):
            pass
        assert server.record(channel=channel.name, op="read").reason == "client_gone"
        assert server.plane.registry.readers == 0


def test_what_was_taken_late_is_complete(server: LocalServer) -> None:
    """The exchange ends when the peer has taken all, and the next one begins then."""
    with server.client() as target:
        channel = target.channel()
        with handed_over(server, channel, behind=get(channel, 9)) as (reader, read):
            assert not [record for record in server.records if record.channel == channel.name and record.op == "read"]
            reader.take(SEGMENT - read)
            assert server.record(channel=channel.name, op="read", seq=0).reason == "complete"
            assert server.record(channel=channel.name, op="read", seq=9).status == 470


def ask_until_stuck(server: LocalServer, peer: SlowPeer, name: str) -> int:
    """Ask for what is not there, a few times at once and again when that is answered, and read nothing."""
    asked = 0
    while not server.plane.slow_peers.stalled:
        peer.socket.sendall(f"GET /trickle/{name}/0 HTTP/1.1\r\nHost: h\r\n\r\n".encode() * 50)
        asked += 50
        eventually(partial(lambda asked: server.plane.slow_peers.stalled or answered(server, name) == asked, asked))
    return asked


def answered(server: LocalServer, name: str) -> int:
    return sum(record.channel == name for record in list(server.records))


def test_a_client_that_never_reads_its_refusals_is_not_answered_on_and_on(server: LocalServer) -> None:
    """At most one response is held for it; its further requests wait, and it is cut off."""
    peer = SlowPeer(server.port, b"")
    asked = ask_until_stuck(server, peer, "nowhere")
    assert stuck(server).transport.get_write_buffer_size() < 1000
    assert answered(server, "nowhere") < asked
    later(server, 0)
    later(server, LAG_S)
    record = server.record(channel="nowhere", reason="evicted")
    assert (record.status, record.detail) == (404, Cut.STILL)
    peer.socket.close()


def test_a_client_that_reads_its_refusals_late_gets_them_all(server: LocalServer) -> None:
    """Not one is lost or doubled by having to wait."""
    peer = SlowPeer(server.port, b"")
    asked = ask_until_stuck(server, peer, "late")
    got = b""
    while got.count(b"Stream not found") < asked:
        got += peer.socket.recv(1 << 16)
    eventually(lambda: answered(server, "late") == asked)
    assert got.count(b"HTTP/1.1 404") == asked
    peer.socket.close()


def test_http_1_0_may_be_slow_and_is_exact(server: LocalServer) -> None:
    """Without chunks, also where one turn holds thousands of them."""
    with server.client() as target:
        channel = target.channel()
        upload = channel.upload(0, b"x")
        upload.connection.send(b"".join(b"1\r\n%c\r\n" % (65 + n % 26) for n in range(20_000)))
        upload.chunk(pattern(20 * CHUNK)).end()
        upload.answer()
        with slow_peer(server, get(channel, version="1.0")) as reader:
            body = reader.rest().partition(b"\r\n\r\n")[2]
        assert body == b"x" + bytes(65 + n % 26 for n in range(20_000)) + pattern(20 * CHUNK)


def test_a_tls_reader_holds_little_and_is_cut_off(tmp_path: Path) -> None:
    """Bytes that are encrypted for it are its own: one turn's, and no more."""
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    with local_server(**PATIENT, tls_cert=certificate, tls_key=key) as server, server.client(context) as target:
        channel = target.channel()
        channel.publish(0, pattern(100 * CHUNK))
        with slow_peer(server, get(channel), context):
            assert stuck(server).transport.get_write_buffer_size() < 400 << 10
            later(server, 0)
            later(server, LAG_S)
            record = server.record(channel=channel.name, op="read")
            assert (record.reason, record.detail) == ("evicted", Cut.STILL)


def test_memory_is_taken_back_from_who_reads_what_is_evicted() -> None:
    """A slow reader of an old segment does not cost a publisher its place."""
    one = SEGMENT_COST + 11 * (CHUNK + FRAME_COST + 9)
    limits = {"window_segments": 1, "max_total_bytes": one * 5 // 2}
    with local_server(**PATIENT, **limits) as server, server.client() as target:
        slow, other, last = target.channel(), target.channel(), target.channel()
        slow.publish(0, pattern(10 * CHUNK))
        with slow_peer(server, get(slow)):
            slow.publish(1, b"x")
            assert len(server.plane.registry.budget.lingering) == 1
            other.publish(0, pattern(9 * CHUNK))
            upload = last.upload(0, pattern(9 * CHUNK))
            record = server.record(channel=slow.name, op="read")
            assert (record.reason, record.detail) == ("evicted", Cut.MEMORY)
            upload.end()
            assert upload.answer().status == 200


def test_connections_inherit_their_limits(server: LocalServer) -> None:
    """The kernel holds a bounded number of bytes for a peer, and gives up a vanished peer after a bounded time."""
    with server.client() as target:
        connection = target.open()
        connection.request("GET", "/healthz")
        assert connection.response().status == 200
        sock = connections(server)[0].transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        idle, pause, probes = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + pause * probes == 60
