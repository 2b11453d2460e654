"""Evicted segments are freed."""

from __future__ import annotations

import gc
import http.client
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httptools
import pytest

from tests.support.local import local_server
from tests.support.waiting import eventually
from tricklecast.app.core.segment import Segment
from tricklecast.app.http1.connection import Connection
from tricklecast.app.tools.conformance.target import RemoteChannel

KEPT = 4


@contextmanager
def no_collector() -> Iterator[None]:
    """Nothing but reference counts free memory."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def segments() -> int:
    return sum(type(thing) is Segment for thing in gc.get_objects())


def parsers() -> int:
    return sum(type(thing) is httptools.HttpRequestParser for thing in gc.get_objects())


def guards() -> int:
    return len({id(thing._guard) for thing in gc.get_objects() if type(thing) is Connection})


@pytest.mark.interpreted
def test_a_waiting_reader_has_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many readers wait for a segment, only a bounded number keeps what it takes to read a request."""
    monkeypatch.setattr("tricklecast.app.http1.connection.KEPT_PARSERS", 0)
    with local_server() as server, server.client() as target, no_collector():
        channel = target.channel()
        channel.create()
        before, guards_before = server.inside(parsers), server.inside(guards)
        waiting = [channel.waiting(0) for _ in range(10)]
        assert server.inside(parsers) <= before + 2  # those of the clients' other connections
        assert server.inside(guards) <= guards_before + 2
        channel.publish(0, b"now")
        assert [reader.response().body for reader in waiting] == [b"now"] * 10
        for reader in waiting:
            reader.request("GET", channel.at(0))
            assert reader.response().body == b"now"


def test_an_evicted_segment_is_freed_without_the_collector() -> None:
    """No reference cycle keeps its bytes: with 64 MiB segments the collector would come by much too late."""
    with local_server(window_segments=KEPT) as server, no_collector():
        before = segments()
        port = server.port
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as publisher:
            publisher.request("POST", "/trickle/c")
            publisher.getresponse().read()
            with closing(http.client.HTTPConnection("127.0.0.1", port)) as reader:
                for seq in range(50):
                    publisher.request("POST", f"/trickle/c/{seq}", body=iter([b"abc", b"def"]), encode_chunked=True)
                    reader.request("GET", f"/trickle/c/{seq}")
                    assert publisher.getresponse().read() == b""
                    assert reader.getresponse().read() == b"abcdef"
        # The changefeed's channel has segments, too.
        assert segments() - before <= KEPT + 2


def only_for_the_collector() -> Counter[str]:
    """Objects of the server that nothing refers to any more, and that still exist."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        ours = [
            type(thing)
            for thing in gc.garbage
            if type(thing).__module__.startswith(("tricklecast.app.core", "tricklecast.app.data_plane"))
        ]
        return Counter(kind.__name__ for kind in ours)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def whole_segments(channel: RemoteChannel) -> None:
    channel.publish(0, b"one")
    channel.get(0)
    assert channel.end().status == 200


def body_that_breaks_off(channel: RemoteChannel) -> None:
    channel.upload(0, b"one").abort()


def body_that_nobody_wants(channel: RemoteChannel) -> None:
    channel.publish(0, b"one")
    refused = channel.upload(0, b"again")
    assert refused.answer().status == 409
    refused.abort()


def reader_that_leaves(channel: RemoteChannel) -> None:
    channel.create()
    channel.waiting(0).abort()


def question_of_the_control_plane(channel: RemoteChannel) -> None:
    assert channel.target.ask("GET", "/api/v1/channels").status == 200


@pytest.mark.parametrize(
    "life",
    [question_of_the_control_plane, whole_segments, body_that_breaks_off, body_that_nobody_wants, reader_that_leaves],
    ids=lambda f: f.__name__,
)
def test_what_is_over_is_freed_without_the_collector(life: Callable[[RemoteChannel], None]) -> None:
    """Connections, requests and segments, however they ended: a full collection is rare, as it stops the server."""
    with local_server(channel_drain_s=0.05) as server, no_collector():
        with server.client() as target:
            life(target.channel())
        eventually(lambda: not server.plane.connections)
        assert server.inside(only_for_the_collector) == Counter()


def test_a_failed_handshake_is_freed_without_the_collector(certificate: tuple[Path, Path]) -> None:
    """Clients that speak no TLS to a TLS port: there are many, and each would keep OpenSSL's buffers."""
    with local_server(tls_cert=certificate[0], tls_key=certificate[1]) as server, no_collector():
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert stranger.recv(100) == b""
        eventually(lambda: server.plane.failed_handshakes == 3)
        assert server.inside(only_for_the_collector) == Counter()
