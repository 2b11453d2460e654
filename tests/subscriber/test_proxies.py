"""What proxies do to the end of a segment: nginx drops trailers, and ends a body that broke off as if it were whole."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from tests.subscriber.fake import Exchange, Handler, run
from tests.subscriber.test_client import ended, subscribed
from tests.support.local import local_server
from tests.support.waiting import eventually
from tests.trickle.client.test_connection import unused_port
from tricklecast.subscriber import Segment, Subscriber
from tricklecast.trickle.errors import ConnectionLost, RemoteProtocolError


def through(status: int, **headers: object) -> Handler:
    """A server behind a proxy that drops trailers; how it answers a HEAD of segment 0."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail != "0":
            await ended(exchange)
        elif exchange.method == "HEAD":
            await exchange.empty(status, seq=0, epoch=1, life="a:0", **headers)
        else:
            await exchange.begin(0, epoch=1, life="a:0", size=2)
            await exchange.chunk(b"data")
            await exchange.end()

    return handler


@pytest.mark.parametrize(
    ("handler", "truncated"),
    [
        (through(200, size=4), None),
        (through(200, size=4, truncated="terminated"), "terminated"),
        (through(470, latest=9), "unknown"),
        (through(200), "unknown"),
    ],
    ids=["whole", "truncated", "gone", "silent"],
)
def test_where_trailers_are_missing_the_server_is_asked(handler: Handler, truncated: str | None) -> None:
    """One HEAD says how the segment ended. What nobody knows any more is not called whole."""

    async def main() -> None:
        async with subscribed(handler, start=0) as (subscriber, server):
            segment = await anext(subscriber)
            assert await segment.read() == b"data"
            assert (segment.truncated, segment.complete) == (truncated, truncated is None)
            assert subscriber.statistics().truncated == (truncated is not None)
            assert [exchange.method for exchange in server.exchanges if exchange.tail == "0"] == ["GET", "HEAD"]

    run(main)


def test_cancelled_calls_ask_once() -> None:
    """However short the calls are, the answer comes."""
    due = anyio.Event()

    async def handler(exchange: Exchange) -> None:
        if exchange.method == "HEAD":
            await due.wait()
        await through(200, size=4)(exchange)

    async def main() -> None:
        async with subscribed(handler, start=0) as (subscriber, server):
            segment = await anext(subscriber)
            assert await segment.read_some() == b"data"
            for _ in range(20):
                async with anyio.create_task_group() as group:
                    group.start_soon(segment.read_some)
                    await server.asked(3)
                    group.cancel_scope.cancel()
            due.set()
            assert await segment.read_some() == b""
            assert segment.complete
            assert [exchange.method for exchange in server.exchanges].count("HEAD") == 1

    run(main)


def test_a_body_that_ended_too_early_is_read_on() -> None:
    """A proxy that loses its server may end the body cleanly: the segment is longer, and its rest is asked for."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail != "0":
            return await ended(exchange)
        if exchange.method == "HEAD":
            return await exchange.empty(200, seq=0, epoch=1, life="a:0", size=8)
        await exchange.begin(0, epoch=1, life="a:0", size=4)
        await exchange.chunk(b"data")
        if exchange.headers["trickle-attempt"] == "1":
            return await exchange.end()
        await exchange.chunk(b"rest")
        await exchange.end(size="8")

    async def main() -> None:
        async with subscribed(handler, start=0) as (subscriber, _):
            segment = await anext(subscriber)
            assert await segment.read() == b"datarest"
            assert segment.complete
            assert subscriber.statistics().resumed == 1

    run(main)


@pytest.mark.parametrize(
    ("at_start", "at_end", "size"), [(4, "8", 8), (2, "2", 2), (9, "4", 9)], ids=["longer", "shorter", "at its start"]
)
def test_a_segment_of_another_size_than_the_server_tells_is_broken(at_start: int, at_end: str, size: int) -> None:
    """Something between has lost or added bytes: it is asked for once more, and is no whole segment."""

    async def handler(exchange: Exchange) -> None:
        if exchange.tail != "0":
            return await ended(exchange)
        await exchange.begin(0, epoch=1, life="a:0", size=at_start)
        await exchange.chunk(b"data")
        await exchange.end(size=at_end)

    async def main() -> None:
        async with subscribed(handler, start=0) as (subscriber, server):
            segment = await anext(subscriber)
            with pytest.raises(ConnectionLost, match=f"ended after 4 of {size} bytes"):
                await segment.read()
            assert not segment.complete
            assert [exchange.tail for exchange in server.exchanges].count("0") == 2

    run(main)


def test_a_body_that_a_proxy_has_compressed_is_an_error() -> None:
    """It is not what was published, and nobody could tell."""

    async def handler(exchange: Exchange) -> None:
        await exchange.begin(0, epoch=1, life="a:0", size=4, Content_Encoding="gzip")
        await exchange.chunk(b"data")
        await exchange.end(size="4")

    async def main() -> None:
        async with subscribed(handler, start=0) as (subscriber, _):
            with pytest.raises(RemoteProtocolError, match="compressed on the way, as 'gzip': turn that off"):
                await anext(subscriber)

    run(main)


def test_with_trailers_nobody_is_asked() -> None:
    """A server that is reached directly says all of it; one HEAD more for each segment would be its load."""

    async def main(url: str) -> Segment:
        async with Subscriber(url, start=0) as subscriber:
            segment = await anext(subscriber)
            assert await segment.read() == b"data"
            assert subscriber.statistics().requests <= 2
            return segment

    with local_server() as server, server.client() as target:
        channel = target.channel("cam")
        channel.publish(0, b"data")
        assert run(lambda: main(f"http://127.0.0.1:{server.port}/trickle/cam")).complete
        assert not [record for record in server.records if record.method == "HEAD"]


def test_a_segment_costs_none_of_httpx_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost more than a small segment does: neither its GET nor its trailers are turned into them."""
    made: list[str] = []

    async def main(url: str) -> None:
        async with Subscriber(url, start=0) as subscriber:
            assert await (await anext(subscriber)).read() == b"one"  # with what is made once
            for kind in (httpx.Headers, httpx.Request, httpx.Response, httpx.URL):
                monkeypatch.setattr(kind, "__init__", lambda self, *_, **__: made.append(type(self).__name__))
            segment = await anext(subscriber)
            assert await segment.read() == b"two"
            assert segment.complete

    with local_server() as server, server.client() as target:
        channel = target.channel("cam")
        channel.publish(0, b"one")
        channel.publish(1, b"two")
        channel.publish(2, b"three")
        run(lambda: main(f"http://127.0.0.1:{server.port}/trickle/cam"))
    assert not made


@contextmanager
def nginx(upstream: int, folder: Path) -> Iterator[int]:
    """nginx as the how-to sets it up; yields its port."""
    port = unused_port()
    conf = folder / "nginx.conf"
    conf.write_text(
        f"""
        daemon off; pid {folder}/pid; error_log stderr; worker_processes 1;
        events {{ worker_connections 64; }}
        http {{
            access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
            fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
            server {{
                listen 127.0.0.1:{port};
                location /trickle/ {{
                    proxy_pass http://127.0.0.1:{upstream};
                    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host;
                    proxy_request_buffering off; proxy_buffering off; client_max_body_size 0;
                }}
            }}
        }}"""
    )
    with subprocess.Popen(["nginx", "-p", str(folder), "-c", str(conf)], stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _connects(port), what="nginx listens")
            yield port
        finally:
            process.terminate()


def _connects(port: int) -> bool:
    with closing(socket.socket()) as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx")
def test_a_truncated_segment_is_seen_through_nginx(tmp_path: Path) -> None:
    """It drops the trailer that says so; a whole segment stays whole."""

    async def main(url: str, cut: Callable[[], None]) -> None:
        async with Subscriber(url, start=0) as subscriber:
            whole = await anext(subscriber)
            assert (await whole.read(), whole.complete) == (b"whole", True)
            part = await anext(subscriber)
            got = await part.read_some()
            assert part.truncated is None
            cut()
            assert got + await part.read() == b"onetwothree"
            assert not part.complete
            assert subscriber.statistics().truncated == 1

    with local_server(publisher_grace_s=0.05) as server, server.client() as target:
        channel = target.channel("cam")
        channel.publish(0, b"whole")
        upload = channel.upload(1, b"one", b"two", b"three")
        with nginx(server.port, tmp_path) as port:
            run(lambda: main(f"http://127.0.0.1:{port}/trickle/cam", upload.connection.close))
