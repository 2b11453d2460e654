"""What is evicted is gone."""

from __future__ import annotations

import gc
import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httptools

from app.core.segment import Segment
from tests.support.local import local_server

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


def test_who_waits_has_no_parser() -> None:
    """However many readers wait for a segment, none of them keeps what it takes to read a request."""
    with local_server() as server, server.client() as target, no_collector():
        channel = target.channel()
        channel.create()
        before = server.inside(parsers)
        waiting = [channel.waiting(0) for _ in range(10)]
        assert server.inside(parsers) <= before + 2  # those of the clients' other connections
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
