"""A connection: chunks as the server sent them, trailers, keep-alive, and broken responses."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import httpx
import pytest
import trustme

from tests.subscriber.fake import Exchange, FakeServer, Handler, fake
from tests.support.bodies import Chunks, Silent, Written, endless, http_client, live
from tests.support.certificates import make_certificate
from tests.support.peers import Peer, fake_server, run
from tests.support.streams import serve_streams
from tricklecast.trickle import wire
from tricklecast.trickle.client import connection, faults
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.client.connecting import (
    connect_tcp,
)
from tricklecast.trickle.client.connection import (
    MAX_CHUNKS,
    MAX_IDLE,
    MAX_INTERIM,
    SMALL,
    BodyWriter,
    Connection,
    Pool,
    RawRequest,
    RequestTimeouts,
)
from tricklecast.trickle.client.grammar import (
    MAX_CHUNK,
)
from tricklecast.trickle.client.sockets import SocketStream


def client(server: FakeServer, tls: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=TrickleTransport(True if tls is None else tls), base_url=server.root)


def in_halves(go: asyncio.Event) -> Handler:
    """A server that sends half of a chunk, and the rest after ``go``."""

    async def handler(exchange: Exchange) -> None:
        await exchange.begin(0)
        await exchange.raw(b"6\r\nabc")
        await go.wait()
        await exchange.raw(b"def\r\n")
        await exchange.end()

    return handler


async def chunks_of(response: httpx.Response) -> list[bytes]:
    return [chunk async for chunk in response.aiter_raw()]


class TestBodies:
    def test_chunks_arrive_as_they_were_sent(self) -> None:
        """Chunks that share a packet stay apart; a chunk of many packets comes in one piece."""
        big = bytes(range(256)) * 256
        assert len(big) == MAX_CHUNK
        seen = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.raw(b"1\r\na\r\n2\r\nbc\r\n3\r\nd")
            await seen.wait()
            await exchange.raw(b"ef\r\n10000\r\n")
            for start in range(0, len(big), 5000):
                await exchange.raw(big[start : start + 5000])
            await exchange.raw(b"\r\n")
            await exchange.end()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                got = []
                async for chunk in response.aiter_raw():
                    got.append(chunk)
                    if chunk == b"bc":
                        seen.set()
                assert got == [b"a", b"bc", b"def", big]

        run(main)

    def test_a_longer_chunk_comes_in_large_pieces(self) -> None:
        """A chunk of more than 64 KiB comes in pieces, so that memory is bounded."""
        data = b"x" * (3 * MAX_CHUNK + 17)

        async def handler(exchange: Exchange) -> None:
            await exchange.segment(0, data, b"end")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                got = await chunks_of(response)
                assert b"".join(got) == data + b"end"
                assert got[-1] == b"end"
                assert max(map(len, got)) < 2 * MAX_CHUNK
                assert min(map(len, got[:-2])) >= MAX_CHUNK

        run(main)

    def test_trailers_are_shown_after_the_body(self) -> None:
        """``extensions["trailers"]`` finds names in any case, and is empty before the end."""

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.chunk(b"part")
            await exchange.end(truncated="publisher_lost")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                assert not response.extensions["trailers"]
                assert await chunks_of(response) == [b"part"]
                assert response.extensions["trailers"]["lp-trickle-truncated"] == "publisher_lost"

        run(main)

    def test_a_body_with_a_length(self) -> None:
        """A body with ``Content-Length`` is read, and has no trailers."""

        async def handler(exchange: Exchange) -> None:
            await exchange.text(200, "hello")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                response = await http.get("/")
                assert response.text == "hello"
                assert not response.extensions["trailers"]

        run(main)

    def test_an_error_s_body_may_end_with_the_connection(self) -> None:
        """Only a GET with status 200 needs a visible end."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(b"HTTP/1.0 404 Not Found\r\n\r\ngone")
            exchange.writer.close()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                assert (await http.get("/")).content == b"gone"

        run(main)

    def test_another_protocol_is_no_answer(self) -> None:
        """A 101 is refused, since other bytes than HTTP follow it."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                with pytest.raises(httpx.RemoteProtocolError):
                    await http.get("/")

        run(main)

    def test_interim_answers_are_passed_over(self) -> None:
        """100 and 103 are skipped."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
            await exchange.text(470, "Entry not found")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                assert (await http.get("/")).status_code == 470

        run(main)


class TestJoined:
    """``extensions["body"].receive()`` joins the chunks that have come."""

    def test_chunks_that_came_together_are_joined(self) -> None:
        """Later chunks are not waited for; end and trailers come after the bytes."""
        go = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.raw(b"1\r\na\r\n2\r\nbc\r\n3\r\nd")
            await go.wait()
            await exchange.raw(b"ef\r\n")
            await exchange.end(truncated="why")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                body = response.extensions["body"]
                got = await body.receive()
                while got != b"abc":
                    got += await body.receive()
                go.set()
                assert await body.receive() == b"def"
                assert [await body.receive() for _ in range(3)] == [b"", b"", b""]
                assert response.extensions["trailers"][wire.TRUNCATED] == "why"

        run(main)

    def test_memory_and_time_of_one_call_are_bounded(self) -> None:
        """One call returns about 64 KiB or 256 chunks, and other tasks run in between."""
        tiny, large = 3000, 40

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.raw(b"1\r\nx\r\n" * tiny + b"1000\r\n%b\r\n" % (b"y" * 4096) * large)
            await exchange.raw(b"%x\r\n%b\r\n" % (3 * MAX_CHUNK, b"z" * (3 * MAX_CHUNK)))
            await exchange.end()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                body, got = response.extensions["body"], []
                while part := await body.receive():
                    got.append(part)
                whole = b"".join(got)
                assert whole == b"x" * tiny + b"y" * 4096 * large + b"z" * (3 * MAX_CHUNK)
                assert max(map(len, got)) <= 5 * MAX_CHUNK
                assert max(part.count(b"x") for part in got) <= MAX_CHUNKS

        run(main)

    @pytest.mark.parametrize("way", ["receive", "receive_chunk"])
    def test_tiny_chunks_let_other_tasks_run(self, way: str) -> None:
        """Other tasks run while 73,000 chunks that have come are read."""
        count = 73_000

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.raw(b"1\r\nx\r\n" * count)
            await exchange.end()

        async def main() -> None:
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await anyio.lowlevel.checkpoint()

            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                read, size = getattr(response.extensions["body"], way), 0
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(other)
                    while part := await read():
                        size += len(part)
                    tasks.cancel_scope.cancel()
                assert size == count
                assert turns > count / MAX_CHUNKS / 2

        run(main)

    def test_a_cut_is_raised_after_the_bytes(self) -> None:
        """The bytes before the cut are returned first; then each read raises the error."""

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.raw(b"1\r\na\r\n2\r\nbc\r\nzz\r\n")
            await exchange.closed_by_client()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                body, got = response.extensions["body"], b""
                while got != b"abc":
                    got += await body.receive()
                for _ in range(2):
                    with pytest.raises(faults.InvalidAnswer):
                        await body.receive()

        run(main)

    def test_a_cancelled_read_loses_nothing(self) -> None:
        """The next read goes on, also in the middle of a chunk."""
        go = asyncio.Event()

        async def main() -> None:
            async with fake(in_halves(go)) as server, client(server) as http, http.stream("GET", "/") as response:
                body = response.extensions["body"]
                for read in (body.receive, body.receive_chunk):
                    with anyio.move_on_after(0.05) as scope:
                        await read()
                    assert scope.cancelled_caught
                go.set()
                assert await body.receive_chunk() == b"abcdef"
                assert await body.receive_chunk() == b""

        run(main)

    def test_silence_is_an_error_after_which_reading_goes_on(self) -> None:
        """A part of a chunk that came before the silence is kept."""
        go = asyncio.Event()

        async def main() -> None:
            async with fake(in_halves(go)) as server, client(server) as http, http.stream("GET", "/") as response:
                body = response.extensions["body"]
                body.limit_silence(0.05)
                for _ in range(2):
                    with pytest.raises(faults.ReadTimeout, match=r"no byte for 0\.05 s"):
                        await body.receive_chunk()
                body.limit_silence(None)
                go.set()
                assert await body.receive_chunk() == b"abcdef"
                assert await body.receive_chunk() == b""
                body.limit_silence(0.05)
                assert await body.receive_chunk() == b""

        run(main)

    def test_closing_wakes_the_reader(self) -> None:
        """A waiting read raises an error; later reads return nothing."""

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.raw(b"")
            await exchange.closed_by_client()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                body = response.extensions["body"]
                async with anyio.create_task_group() as tasks:

                    async def read() -> None:
                        with pytest.raises(faults.ReadError):
                            await body.receive()

                    tasks.start_soon(read)
                    await anyio.wait_all_tasks_blocked()
                    body.close()
                assert await body.receive() == b""

        run(main)


HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


class TestWriting:
    """Writes while an earlier write waits for room."""

    def test_order_is_kept_while_the_socket_is_full(self) -> None:
        """Chunks that are written meanwhile follow in order, and none is lost."""

        async def main() -> None:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                tcp = await connect_tcp("127.0.0.1", listener.getsockname()[1])
                peer, _ = listener.accept()
            connection = Connection(("http", "h", 80), tcp, tcp)
            with peer:
                assert connection.write_head(HEAD, None)
                first = b"a" * (16 << 20)
                assert not connection.write(first)
                assert not connection.write(b"b")
                received = bytearray()

                def drain() -> None:
                    while not received.endswith(b"0\r\n\r\n"):
                        received.extend(peer.recv(1 << 20))

                async with anyio.create_task_group() as tasks:

                    async def flush() -> None:
                        assert await connection.flush(10)

                    tasks.start_soon(flush)
                    await anyio.wait_all_tasks_blocked()
                    assert not connection.write(b"c")
                    assert not connection.end()
                    await anyio.to_thread.run_sync(drain)
                body = bytes(received).partition(b"\r\n\r\n")[2]
                assert body == b"%x\r\n%b\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n" % (len(first), first)
                assert not connection.start_next()
                connection.close()
                assert not connection.is_usable()

        run(main)

    @pytest.mark.parametrize(("body_bytes", "body"), [(None, b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"), (3, b"abc"), (0, b"")])
    def test_a_body_is_framed_as_its_head_says(self, body_bytes: int | None, body: bytes) -> None:
        """A body is sent in chunks or plain; its end is written once, with the last bytes or after them."""

        async def main() -> None:
            for last in (True, False):
                with socket.create_server(("127.0.0.1", 0)) as listener:
                    tcp = await connect_tcp("127.0.0.1", listener.getsockname()[1])
                    peer, _ = listener.accept()
                connection = Connection(("http", "h", 80), tcp, tcp)
                with peer:
                    assert connection.write_head(HEAD, body_bytes)
                    if body_bytes != 0:
                        assert connection.write(b"ab")
                        assert connection.write(b"c", last=last)
                    assert connection.end()
                    assert connection.end()
                    connection.close()
                    with peer.makefile("rb") as sent:
                        assert sent.read() == HEAD + body

        run(main)

    def test_a_body_of_another_length_is_not_written(self) -> None:
        """A body that is longer or shorter than announced raises, and nothing is written."""

        async def main() -> None:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                tcp = await connect_tcp("127.0.0.1", listener.getsockname()[1])
                connection = Connection(("http", "h", 80), tcp, tcp)
                connection.write_head(HEAD, 3)
                for data, last in ((b"abcd", False), (b"ab", True)):
                    with pytest.raises(faults.LocalProtocolError):
                        connection.write(data, last=last)
                with pytest.raises(faults.LocalProtocolError):
                    connection.end()
                connection.close()

        run(main)

    def test_a_peer_that_vanished_takes_nothing(self) -> None:
        """A rejected write is reported, and the connection is not used again."""

        async def main() -> None:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                tcp = await connect_tcp("127.0.0.1", listener.getsockname()[1])
                listener.accept()[0].close()
            connection = Connection(("http", "h", 80), tcp, tcp)
            connection.write_head(HEAD, None)
            while connection.write(b"x"):
                await anyio.lowlevel.checkpoint()
            assert not await connection.flush(1)
            with pytest.raises(faults.ReadError):
                await connection.answer()
            connection.close()
            assert connection.unacknowledged == 0

        run(main)


class TestKeepAlive:
    def test_a_connection_is_used_again(self) -> None:
        """GETs share a connection, one after another, if each body was read."""

        async def handler(exchange: Exchange) -> None:
            await exchange.segment(0, b"x")

        async def main() -> None:
            async with fake(handler) as server:
                async with client(server) as http:
                    for _ in range(5):
                        assert (await http.get("/")).content == b"x"
                assert server.connections == 1
                await server.all_closed()

        run(main)

    def test_a_body_left_half_read_closes_its_connection(self) -> None:
        """The next GET gets a new connection, and no byte of the old body."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "endless":
                await exchange.begin(0)
                await exchange.chunk(b"one")
                await exchange.closed_by_client()
            else:
                await exchange.segment(0, b"x")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                async with http.stream("GET", "/endless") as response:
                    assert await anext(response.aiter_raw()) == b"one"
                assert (await http.get("/")).content == b"x"
                assert server.connections == 2

        run(main)

    @pytest.mark.parametrize("farewell", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
    def test_a_connection_that_the_server_closed_is_not_used(self, farewell: bytes) -> None:
        """An idle connection that has ended, or that received bytes, is replaced."""
        gone = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            await exchange.segment(0, b"x")
            if exchange.connection == 1:
                await exchange.raw(farewell)
                exchange.writer.close()
                await exchange.writer.wait_closed()
                gone.set()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                await http.get("/")
                await gone.wait()
                assert (await http.get("/")).content == b"x"
                assert server.connections == 2
                assert len(server.exchanges) == 2

        run(main)

    @pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
    def test_connection_close_is_obeyed(self, version: str) -> None:
        """A response with ``Connection: close`` closes the connection."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(f"{version} 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx".encode())

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                await http.get("/")
                await http.get("/")
                assert server.connections == 2

        run(main)

    def test_few_idle_connections_are_kept(self) -> None:
        """At most four are kept, after any number of concurrent GETs."""
        together = asyncio.Barrier(MAX_IDLE + 3)

        async def handler(exchange: Exchange) -> None:
            await together.wait()
            await exchange.segment(0, b"x")

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, anyio.create_task_group() as group:
                for _ in range(MAX_IDLE + 3):
                    group.start_soon(http.get, "/")
            assert len(server.exchanges) == MAX_IDLE + 3

        run(main)


class TestFaults:
    @pytest.mark.parametrize(
        "answer",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
            b"HTTP/1.1 200 OK\r\n\r\nbody without an end",
        ],
    )
    def test_what_is_not_usable_is_said_so(self, answer: bytes) -> None:
        """Other protocols, broken or endless heads, and bodies without a visible end are refused."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(answer)
            await exchange.closed_by_client()

        async def main() -> None:
            async with fake(handler) as server:
                async with client(server) as http:
                    with pytest.raises(httpx.RemoteProtocolError):
                        await http.get("/")
                await server.all_closed()

        run(main)

    def test_a_bad_chunk_is_said_so(self) -> None:
        """The bytes before the bad chunk are returned first."""

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.chunk(b"good")
            await exchange.raw(b"zz\r\n")
            await exchange.closed_by_client()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                chunks = response.aiter_raw()
                assert await anext(chunks) == b"good"
                with pytest.raises(httpx.RemoteProtocolError):
                    await anext(chunks)

        run(main)

    @pytest.mark.parametrize("abort", [True, False])
    @pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"])
    def test_a_cut_is_an_error(self, sent: bytes, abort: bool) -> None:
        """A connection that ends at any byte before the message's end is an error."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(sent)
            if abort:
                exchange.abort()
            else:
                exchange.writer.close()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                with pytest.raises(httpx.ReadError):
                    await http.get("/")

        run(main)

    def test_half_a_chunk_is_handed_on_before_the_cut_is_raised(self) -> None:
        """Each byte that came is returned, and then the error is raised."""

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.raw(b"10\r\nhalf of it")
            exchange.writer.close()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http, http.stream("GET", "/") as response:
                chunks = response.aiter_raw()
                assert await anext(chunks) == b"half of it"
                with pytest.raises(httpx.ReadError):
                    await anext(chunks)

        run(main)

    def test_a_refused_connection_says_why(self) -> None:
        """The message names the system's reason."""

        async def main() -> None:
            async with httpx.AsyncClient(transport=TrickleTransport()) as http:
                with pytest.raises(httpx.ConnectError, match=r"^Connection refused$"):
                    await http.get(f"http://127.0.0.1:{unused_port()}/")

        run(main)

    def test_a_host_that_cannot_be_looked_up_is_a_connect_error(self) -> None:
        """So is a host whose name breaks the rules of names."""

        async def main() -> None:
            async with httpx.AsyncClient(transport=TrickleTransport()) as http:
                for host in ("a" * 70 + ".example", "no-such-host.invalid"):
                    with pytest.raises(httpx.ConnectError):
                        await http.get(f"http://{host}/")

        run(main)

    def test_tls_to_a_plain_server_is_a_connect_error(self) -> None:
        """A failed handshake is a connection that could not be made."""

        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        async def main() -> None:
            server = await serve_streams(plain)
            async with httpx.AsyncClient(transport=TrickleTransport()) as http:
                with pytest.raises(httpx.ConnectError):
                    await http.get(f"https://127.0.0.1:{server.port}/")
            await server.cancel()

        run(main)

    def test_a_cancelled_wait_closes_its_connection(self) -> None:
        """The server sees the end of the connection at once."""
        waiting, gone = asyncio.Event(), asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            waiting.set()
            await exchange.closed_by_client()
            gone.set()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                async with anyio.create_task_group() as group:
                    group.start_soon(http.get, "/")
                    await waiting.wait()
                    group.cancel_scope.cancel()
                await gone.wait()

        run(main)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that only the test trusts."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(folder)
    both = folder / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    return both


class TestTLS:
    def test_segments_come_over_tls(self, certificate: Path) -> None:
        """Chunks, trailers, keep-alive and cuts are the same as without TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        trusting = ssl.create_default_context(cafile=str(certificate))

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(0)
            await exchange.chunk(b"secret")
            if exchange.tail == "cut":
                exchange.abort()
            else:
                await exchange.end(truncated="yes")

        async def main() -> None:
            async with fake(handler, context) as server, client(server, trusting) as http:
                for _ in range(2):
                    response = await http.get("/")
                    assert response.content == b"secret"
                    assert response.extensions["trailers"][wire.TRUNCATED] == "yes"
                assert server.connections == 1
                with pytest.raises(httpx.ReadError):
                    await http.get("/cut")

        run(main)

    def test_a_certificate_that_is_not_trusted_is_refused(self, certificate: Path) -> None:
        """The connection fails by default, and the message gives the reason."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

        async def handler(exchange: Exchange) -> None:
            raise AssertionError("no request should come")

        async def main() -> None:
            async with fake(handler, context) as server, client(server) as http:
                with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                    await http.get("/")

        run(main)


def refusing(certificate: Path, version: ssl.TLSVersion, sessions: int = 1) -> tuple[int, threading.Thread]:
    """The port of a server that wants a client certificate of an unknown authority, up to this version of TLS.

    It has a thread, since asyncio's own server closes such a connection without a word.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(cadata=trustme.CA().cert_pem.bytes().decode())
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            for _ in range(sessions):
                peer, _ = listener.accept()
                with peer, pytest.raises(ssl.SSLError):
                    context.wrap_socket(peer, server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    return int(listener.getsockname()[1]), thread


class TestClientCertificates:
    """A server that wants one says so behind the client's handshake (TLS 1.3), or within it."""

    @pytest.mark.parametrize("has_one", [False, True])
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_the_refusal_is_named(self, version: ssl.TLSVersion, has_one: bool, certificate: Path) -> None:
        """That there is none, or that it is not accepted. TLS 1.2 has no word for the former."""
        trusting = ssl.create_default_context(cafile=str(certificate))
        if has_one:
            trusting.load_cert_chain(certificate)
        port, thread = refusing(certificate, version)

        async def main() -> None:
            with pytest.raises(faults.TransportError) as raised:
                await Pool(trusting).send(RawRequest(("https", "127.0.0.1", port), b"GET / HTTP/1.1\r\n\r\n"))
            is_certain = has_one or version == ssl.TLSVersion.TLSv1_3
            assert type(raised.value) is (faults.CertificateRefused if is_certain else faults.ConnectError)
            wanted = "does not accept the client certificate: unknown ca" if has_one else "want.* a client certificate"
            assert re.search(wanted, str(raised.value))

        run(main)
        thread.join()

    def test_a_server_that_says_nothing_may_want_one(self, certificate: Path) -> None:
        """It closes the connection behind the handshake; one that has answered before has none to ask for."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        trusting = ssl.create_default_context(cafile=str(certificate))

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"", Connection="close")
            else:
                exchange.abort()

        async def main() -> None:
            async with fake(handler, context) as server, client(server, trusting) as http:
                with pytest.raises(httpx.ReadError, match=r"without an answer .one that wants a client certificate"):
                    await http.get("/trickle/cam/1")
                await http.get("/trickle/cam/0")
                with pytest.raises(httpx.ReadError, match=r"without an answer$"):
                    await http.get("/trickle/cam/1")

        run(main)


def unused_port() -> int:
    """A port on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestInterimAnswers:
    """A server may send interim responses while it works, but a limited number."""

    def test_a_flood_of_them_is_an_error(self) -> None:
        """More than a hundred at once are an error."""

        async def handler(exchange: Exchange) -> None:
            while True:
                await exchange.raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4000)

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                with pytest.raises(httpx.RemoteProtocolError, match="101 interim answers"):
                    await http.get("/")

        run(main)

    def test_as_many_as_a_patient_server_sends_are_passed_over(self) -> None:
        """A hundred at once are skipped; the next request counts anew."""

        async def handler(exchange: Exchange) -> None:
            for byte in b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 X\r\nLink: y\r\n\r\n":
                await exchange.raw(bytes([byte]))
            await exchange.raw(b"HTTP/1.1 102 Processing\r\n\r\n" * (MAX_INTERIM - 2))
            await exchange.empty()

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                assert [(await http.get("/")).status_code for _ in range(2)] == [200, 200]
                assert server.connections == 1

        run(main)

    @pytest.mark.parametrize(
        ("begin", "more"), [(b"", b"HTTP/1.1 102 Processing\r\n\r\n"), (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")]
    )
    def test_no_bytes_prolong_the_wait(self, begin: bytes, more: bytes) -> None:
        """The timeout holds for the whole head: interim responses and pieces of a head do not extend it."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(begin)
            while True:
                await exchange.raw(more)
                await asyncio.sleep(0.05)

        async def main() -> None:
            async with fake(handler) as server, client(server) as http:
                with pytest.raises(httpx.ReadTimeout, match=r"no answer within 0\.3 s"):
                    await http.get("/", timeout=0.3)

        run(main)


def test_a_chunk_is_an_http_chunk_and_leaves_while_the_body_is_open() -> None:
    """Each chunk is on the wire before the next one exists."""

    async def main() -> None:
        seen: list[bytes | None] = []
        step = asyncio.Event()

        async def script(peer: Peer) -> None:
            head = await peer.head()
            assert head.headers["transfer-encoding"] == "chunked"
            for _ in range(3):
                seen.append(await peer.chunk())
                step.set()
            await peer.answer(200)

        async def body() -> AsyncIterator[bytes]:
            for chunk in (b"one", b"two" * 20_000):
                yield chunk
                await step.wait()
                step.clear()

        async with fake_server(script) as server, http_client() as http:
            response = await http.post(server.base, content=body())
        assert response.status_code == 200
        assert seen == [b"one", b"two" * 20_000, None]

    run(main)


def test_the_head_leaves_before_the_first_chunk() -> None:
    """A preconnect reaches the server at once, and an early response ends the request."""

    async def main() -> None:
        body = Silent()

        async def script(peer: Peer) -> None:
            head = await peer.head()
            assert (head.method, head.path) == ("POST", "/trickle/c/1?token=a")
            await peer.answer(404, {"Connection": "close"}, b"Stream not found")

        async with fake_server(script) as server, http_client() as http:
            response = await http.post(f"{server.base}/c/1?token=a", content=body)
        assert (response.status_code, response.text) == (404, "Stream not found")
        assert body.cancelled

    run(main)


@pytest.mark.parametrize("reset", [False, True])
def test_an_answer_in_the_middle_of_the_body_stops_it(reset: bool) -> None:
    """The response is read, also if the server then resets the connection."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.chunk()
            await peer.answer(413, {"Connection": "close"}, b"too large")
            if reset:
                # After a close with unread bytes in its buffer, the kernel resets the connection at the next byte.
                peer.writer.transport.abort()
            else:
                await peer.closed()

        async with fake_server(script) as server, http_client() as http:
            response = await http.post(server.base, content=endless())
        assert (response.status_code, response.text) == (413, "too large")

    run(main)


def test_a_live_body_is_written_by_any_task() -> None:
    """A chunk leaves at once, in the task that has it; after a full socket the body is resumed."""

    async def main() -> None:
        step, over = asyncio.Event(), asyncio.Event()
        big = b"x" * (16 << 20)

        async def script(peer: Peer) -> None:
            await peer.head()
            assert await peer.chunk() == b"one"
            step.set()
            assert await peer.body() == [b"two", big, big, b"end"]
            await peer.answer(200)
            over.set()

        async with fake_server(script) as server, http_client() as http:
            body, answers = Written(), []

            async def send() -> None:
                answers.append(await http.send(live(http, server.base, body)))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await body.begun.wait()
                assert body.writer is not None
                assert body.writer.write(b"one")
                await step.wait()
                assert body.writer.write(b"two")
                for _ in range(2):
                    resumed = body.resumed
                    assert not body.writer.write(big)
                    await resumed.wait()
                resumed = body.resumed
                body.writer.pause()
                await resumed.wait()
                assert body.writer.write(b"end", last=True)
                await over.wait()
            assert [answer.status_code for answer in answers] == [200]
            assert body.writer is None

    run(main)


def test_an_end_without_room_follows_the_chunk_before_it() -> None:
    """The response is waited for while the body's end waits for room."""

    async def main() -> None:
        big = b"x" * (16 << 20)

        async def script(peer: Peer) -> None:
            await peer.head()
            assert await peer.body() == [big]
            await peer.answer(200)

        class Big(Written):
            def start(self, writer: BodyWriter) -> None:
                assert not writer.write(big)
                writer.end()

        async with fake_server(script) as server, http_client() as http:
            assert (await http.send(live(http, server.base, Big()))).status_code == 200

    run(main)


def test_the_last_chunk_and_the_end_leave_together() -> None:
    """A short message takes one packet behind its head."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            assert await peer.reader.read(100) == b"3\r\nall\r\n0\r\n\r\n"
            await peer.answer(200)

        async with fake_server(script) as server, http_client() as http:
            body = Written()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(http.send, live(http, server.base, body))
                await body.begun.wait()
                assert body.writer is not None
                assert body.writer.write(b"all", last=True)

    run(main)


def test_interim_answers_are_skipped() -> None:
    """Interim responses on an idle preconnect do not end the request."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 3)
            await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
            await peer.answer(200, {"Lp-Trickle-Seq": 7})

        async with fake_server(script) as server, http_client() as http:
            response = await http.post(server.base, content=Silent())
        assert response.headers["lp-trickle-seq"] == "7"

    run(main)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx.ReadError),
        (b"HTT", httpx.ReadError),
        (b"HTTP/1.1 200 OK\r\nConte", httpx.ReadError),
        (b"SSH-2.0-OpenSSH_9.6\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, httpx.RemoteProtocolError),
        (b"HTTP/1.1 100 Continue\r\n\r\n", httpx.ReadError),
    ],
    ids=["nothing", "half a word", "half a head", "another protocol", "huge header", "interim only"],
)
def test_a_connection_that_ends_without_an_answer(answer: bytes, error: type[Exception]) -> None:
    """No response, or a part of one, is a ReadError; a wrong one is a RemoteProtocolError."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            with suppress(ConnectionError):
                await peer.send(answer)

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(error):
                await http.post(server.base, content=Silent())

    run(main)


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        (b"3\r\nabc\r\n", httpx.ReadError),
        (b"nonsense\r\n", httpx.RemoteProtocolError),
        (None, httpx.ReadError),
    ],
    ids=["cut", "garbage", "reset"],
)
def test_a_response_body_that_breaks(rest: bytes | None, error: type[Exception]) -> None:
    """The read of a cut body raises."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if rest is None:
                peer.reset()
            else:
                await peer.send(rest)

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(error):
                await http.get(server.base)

    run(main)


def test_the_response_s_body_is_read_in_either_way() -> None:
    """Joined or chunk by chunk; an early close closes the connection."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n")
            await peer.closed()

        transport = TrickleTransport()
        async with fake_server(script) as server, httpx.AsyncClient(transport=transport, timeout=None) as http:
            response = await http.send(http.build_request("GET", server.base), stream=True)
            body = response.extensions["body"]
            assert await body.receive_chunk() == b"a"
            assert await body.receive() == b"b"
            body.close()
            body.close()
            assert await body.receive() == b""

    run(main)


def test_a_body_that_is_over_has_its_trailers_and_no_more_bytes() -> None:
    """Later reads return nothing."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-End: yes\r\n\r\n")
            await peer.closed()

        async with fake_server(script) as server, http_client() as http:
            response = await http.send(http.build_request("GET", server.base), stream=True)
            body = response.extensions["body"]
            assert await body.receive() == b""
            assert response.extensions["trailers"]["x-end"] == "yes"
            body.limit_silence(1.0)
            assert await body.receive_chunk() == b""

    run(main)


def test_an_end_that_cannot_be_told_from_a_cut_is_refused() -> None:
    """A GET's body that ends with the connection could be a part of a segment."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\nbody")

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get(server.base)
            assert (await http.delete(server.base)).text == "body"

    run(main)


def test_the_answer_is_due_once_the_body_has_ended() -> None:
    """An open body may wait for ever, a finished one for the read timeout."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        body = Silent()
        async with fake_server(script) as server, http_client(read=0.05) as http:
            with anyio.move_on_after(0.3) as open_body:
                await http.post(server.base, content=body)
            assert open_body.cancelled_caught
            with pytest.raises(httpx.ReadTimeout):
                await http.post(server.base, content=b"over")
            with pytest.raises(httpx.ReadTimeout):
                await http.get(server.base)

    run(main)


def test_a_body_that_has_ended_has_nothing_more() -> None:
    """It has its trailers. Its limits do not touch the next request on its connection."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndata\r\n0\r\nX-End: 1\r\n\r\n")

    async def main() -> None:
        async with fake_server(script) as server, http_client() as http:
            response = await http.send(http.build_request("GET", server.base), stream=True)
            body = response.extensions["body"]
            assert body.trailer("X-End") is None
            assert await body.receive() == b"data"
            for _ in range(2):
                assert await body.receive() == b""
                assert await body.receive_chunk() == b""
                body.limit_silence(0.01)
            assert (body.trailer("X-End"), body.trailer("X-Other")) == ("1", None)
            await response.aclose()

    run(main)


@pytest.mark.parametrize(("left", "waits"), [([9, 6, 3, 0], 3), ([9, 6, 6], 2), ([0, 0], 1), ([5, 9], 1)])
def test_the_answer_is_due_once_the_body_has_arrived(
    left: list[int], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While bytes in this host's buffers get less, the timeout does not fire. A small body is not asked about."""
    asked: list[int] = []

    def unacknowledged(self: SocketStream) -> int:
        # Asked once before each wait, and once after it.
        asked.append(left[min((len(asked) + 1) // 2, len(left) - 1)])
        return asked[-1]

    monkeypatch.setattr(SocketStream, "unacknowledged", property(unacknowledged))

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        async with fake_server(script) as server, http_client(read=0.02) as http:
            with pytest.raises(httpx.ReadTimeout, match=r"no answer within 0\.02 s"):
                await http.post(server.base, content=bytes(SMALL + 1))
            assert len(asked) == 2 * waits
            with pytest.raises(httpx.ReadTimeout):
                await http.post(server.base, content=bytes(SMALL))
            assert len(asked) <= 2 * waits + 1  # after the wait

    run(main)


def test_an_answer_that_stops_half_way_times_out() -> None:
    """The rest of a response is due within the read timeout."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
            await peer.closed()

        async with fake_server(script) as server, http_client(read=0.05) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.get(server.base)

    run(main)


def test_a_server_that_stops_reading_times_out() -> None:
    """A body that the server does not read fails after the write timeout."""

    async def main() -> None:
        done = asyncio.Event()

        async def script(peer: Peer) -> None:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await done.wait()

        async with fake_server(script) as server, http_client(write=0.05) as http:
            with pytest.raises(httpx.WriteTimeout):
                await http.post(server.base, content=endless(b"x" * 1_000_000))
            done.set()

    run(main)


def test_an_error_of_the_body_comes_through() -> None:
    """An exception of the body's own code is raised, and the connection is closed."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        async def broken() -> AsyncIterator[bytes]:
            yield b"x"
            raise LookupError("mine")

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(LookupError, match="mine"):
                await http.post(server.base, content=broken())

    run(main)


def test_cancelling_closes_the_connection_and_the_body() -> None:
    """A cancelled request closes both."""

    async def main() -> None:
        body = Silent()
        open_, closed = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.head()
            open_.set()
            await peer.closed()
            closed.set()

        async with fake_server(script) as server, http_client() as http:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: http.post(server.base, content=body))
                await open_.wait()
                tasks.cancel_scope.cancel()
            await closed.wait()
        assert body.cancelled

    run(main)


def test_a_body_longer_than_announced_is_a_local_error() -> None:
    """It is refused before the excess reaches the wire."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(httpx.LocalProtocolError):
                await http.post(server.base, content=Chunks(b"four"), headers={"Content-Length": "3"})

    run(main)


@pytest.mark.parametrize("length", ["5", "4"])
def test_a_body_shorter_than_announced_is_a_local_error(length: str) -> None:
    """Its connection is closed; a body of the right length is sent."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            assert await peer.reader.readexactly(4) == b"four"
            if length == "4":
                await peer.answer(200)
            await peer.closed()

        async with fake_server(script) as server, http_client() as http:
            sending = http.post(server.base, content=Chunks(b"fo", b"ur"), headers={"Content-Length": length})
            if length == "4":
                assert (await sending).status_code == 200
            else:
                with pytest.raises(httpx.LocalProtocolError):
                    await sending

    run(main)


def test_a_live_body_that_nobody_reads_any_more_waits_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rejected write the response may still be on its way."""

    async def rejected(self: Connection, write_s: float | None) -> bool:
        return False

    monkeypatch.setattr(Connection, "flush", rejected)

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.answer(413, {"Connection": "close"}, b"too large")
            await peer.closed()

        class Big(Written):
            def start(self, writer: BodyWriter) -> None:
                assert not writer.write(bytes(16 << 20))

        async with fake_server(script) as server, http_client() as http:
            assert (await http.send(live(http, server.base, Big()))).status_code == 413

    run(main)


def test_a_flood_of_interim_answers_stops_a_body() -> None:
    """A request with a body ends if its server sends only interim responses."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            with suppress(ConnectionError):
                while True:
                    peer.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 4000)
                    await peer.writer.drain()

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(httpx.RemoteProtocolError, match="interim answers"):
                await http.post(server.base, content=Silent())

    run(main)


def test_a_cancellation_arrives_although_bytes_never_stop() -> None:
    """A cancel scope ends a read whose peer always has bytes."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            peer.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with suppress(ConnectionError):
                while True:
                    peer.writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                    await peer.writer.drain()

        async with fake_server(script) as server, http_client() as http, http.stream("GET", server.base) as response:
            with anyio.CancelScope() as scope:
                chunks = 0
                async for chunk in response.aiter_raw():
                    chunks += len(chunk) > 0
                    if chunks == 20:
                        scope.cancel()
                    assert chunks < 1000
            assert scope.cancelled_caught

    run(main)


def test_an_exchange_of_nothing() -> None:
    """A body that is announced and is none ends at once; the response's is read to its end, and may be closed twice."""

    async def script(peer: Peer) -> None:
        await peer.head()
        assert await peer.body() == []
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
        await peer.closed()

    async def main() -> None:
        async with fake_server(script) as server:
            host, port = urlsplit(server.base).netloc.split(":")
            stream = await connect_tcp(host, int(port))
            connection = Connection(("http", host, int(port)), stream, stream)
            head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            response = await connection.exchange(RawRequest(connection.origin, head, None, None))
            assert [await response.receive_chunk() for _ in range(2)] == [b"ok", b""]
            await response.aclose()

    run(main)


def test_a_body_that_writes_itself_need_not_be_readable() -> None:
    """One that is not says so."""
    with pytest.raises(NotImplementedError, match="cannot be read"):
        aiter(Written())


@pytest.mark.parametrize("ends", [False, True])
def test_a_live_body_starts_again_on_the_connection_that_replaces_a_dead_one(ends: bool) -> None:
    """It does so if no chunk was written; its end alone is repeated."""

    async def main() -> None:
        async def stale(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            await peer.head()
            peer.writer.close()

        async def fresh(peer: Peer) -> None:
            await peer.head()
            assert await peer.body() == ([] if ends else [b"one"])
            await peer.answer(200)

        class Twice(Written):
            def start(self, writer: BodyWriter) -> None:
                super().start(writer)
                if ends:
                    writer.end()
                elif self.starts == 2:
                    assert writer.write(b"one", last=True)

        async with fake_server(stale, fresh) as server, http_client() as http:
            await http.get(server.base)
            body = Twice()
            assert (await http.send(live(http, server.base, body))).status_code == 200
            assert body.starts == 2

    run(main())


def test_a_clean_connection_is_used_again() -> None:
    """Requests share a connection if the body was sent and the response allows it."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            for _ in range(3):
                head = await peer.head()
                assert head.method == "GET" or await peer.body() == [b"data"]
                await peer.answer(200, body=b"ok")
            await peer.closed()

        async with fake_server(script) as server, http_client() as http:
            for _ in range(2):
                assert (await http.post(server.base, content=Chunks(b"data"))).text == "ok"
            assert (await http.get(server.base)).text == "ok"
            assert len(server.peers) == 1

    run(main())


def test_a_connection_is_not_used_again_after_an_early_answer_or_a_close() -> None:
    """An unfinished body or ``Connection: close`` closes it."""

    async def main() -> None:
        async def early(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            await peer.closed()

        async def closing(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200, {"Connection": "close"})
            await peer.closed()

        async with fake_server(early, closing, closing) as server, http_client() as http:
            for content in (Silent(), b"", b""):
                assert (await http.post(server.base, content=content)).status_code == 200
            assert len(server.peers) == 3

    run(main())


def test_a_pooled_connection_that_was_closed_is_not_used() -> None:
    """An idle connection that the server has closed is not used."""

    async def main() -> None:
        gone = asyncio.Event()

        async def once(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            peer.writer.close()
            await peer.writer.wait_closed()
            gone.set()

        async with fake_server(once) as server, http_client() as http:
            for _ in range(2):
                await http.get(server.base)
                await gone.wait()
                gone.clear()
            assert len(server.peers) == 2

    run(main())


@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_a_stale_connection_is_replaced_once(method: str) -> None:
    """If an idle connection dies under the head, the request is sent on a new one."""

    async def main() -> None:
        async def stale(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            await peer.head()
            peer.reset()

        async def fresh(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200, body=b"fresh")

        async with fake_server(stale, fresh) as server, http_client() as http:
            await http.get(server.base)
            content = Silent() if method == "POST" else None
            response = await http.request(method, server.base, content=content)
        assert response.text == "fresh"

    run(main())


def test_a_get_whose_pooled_connection_ends_fails() -> None:
    """A GET may wait long, so the end of its connection is a lost server."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            await peer.head()
            peer.reset()

        async with fake_server(script) as server, http_client() as http:
            await http.get(server.base)
            with pytest.raises(httpx.ReadError):
                await http.get(server.base)
            assert len(server.peers) == 1

    run(main())


def test_the_body_continues_on_the_connection_that_replaced_a_stale_one() -> None:
    """A chunk that comes after the replacement is sent there, in full."""

    async def main() -> None:
        replaced = asyncio.Event()

        async def stale(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            await peer.head()
            peer.writer.close()

        async def fresh(peer: Peer) -> None:
            await peer.head()
            replaced.set()
            assert await peer.body() == [b"late"]
            await peer.answer(200)

        async def body() -> AsyncIterator[bytes]:
            await replaced.wait()
            yield b"late"

        async with fake_server(stale, fresh) as server, http_client() as http:
            await http.get(server.base)
            assert (await http.post(server.base, content=body())).status_code == 200

    run(main())


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("steps", range(10))
def test_a_chunk_that_meets_the_death_of_its_connection_is_sent_or_refused(steps: int, empty: bool) -> None:
    """The chunk goes to the new connection, or the request fails; neither waits for ever."""

    async def main() -> None:
        dying = asyncio.Event()
        sent: list[bytes] = []

        async def stale(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            await peer.head()
            peer.writer.close()
            dying.set()

        async def fresh(peer: Peer) -> None:
            await peer.head()
            sent.extend(await peer.body())
            await peer.answer(200)

        async def body() -> AsyncIterator[bytes]:
            await dying.wait()
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            if not empty:
                yield b"chunk"

        async with fake_server(stale, fresh) as server, http_client() as http:
            await http.get(server.base)
            try:
                response = await http.post(server.base, content=body())
            except httpx.ReadError:
                assert len(server.peers) == 1
            else:
                assert (response.status_code, sent) == (200, [] if empty else [b"chunk"])

    run(main())


def test_a_fresh_connection_that_breaks_is_not_replaced() -> None:
    """Only an idle connection is replaced; any other failure goes to the caller."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            peer.reset()

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(httpx.ReadError):
                await http.get(server.base)
            assert len(server.peers) == 1

    run(main())


def test_a_stale_connection_is_not_replaced_after_a_body_byte() -> None:
    """Bytes that may have arrived are not sent twice."""

    async def main() -> None:
        async def stale(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200)
            await peer.head()
            await peer.chunk()
            peer.reset()

        async with fake_server(stale) as server, http_client() as http:
            await http.get(server.base)
            with pytest.raises(httpx.ReadError):
                await http.post(server.base, content=endless())
            assert len(server.peers) == 1

    run(main())


def test_a_server_that_closes_without_a_word_may_want_tls() -> None:
    """The message suggests https:// if plain HTTP got no response."""

    async def main() -> None:
        async def silent(peer: Peer) -> None:
            await peer.reader.readuntil(b"\r\n\r\n")

        async with fake_server(silent) as server, http_client() as http:
            with pytest.raises(httpx.ReadError, match=r"without an answer .* https://"):
                await http.get(server.base)

    run(main())


def test_a_server_that_has_answered_before_wants_no_tls() -> None:
    """It was killed, or closed an idle connection: the message says no more than that."""

    async def main() -> None:
        async def answers(peer: Peer) -> None:
            await peer.head()
            await peer.answer(200, {"Connection": "close"})

        async def silent(peer: Peer) -> None:
            await peer.head()

        async with fake_server(answers, silent) as server, http_client() as http:
            await http.get(server.base)
            with pytest.raises(httpx.ReadError, match=r"without an answer$"):
                await http.get(server.base)

    run(main())


def test_idle_connections_are_bounded_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four are kept, none beyond its time."""

    async def main() -> None:
        everybody = asyncio.Barrier(6)

        async def script(peer: Peer) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await peer.head()
                await everybody.wait()
                await peer.answer(200)
                await peer.head()
                await peer.answer(200)
            await peer.closed()

        monkeypatch.setattr(connection, "KEEPALIVE_S", 0.0)
        transport = TrickleTransport()
        async with fake_server(script) as server, httpx.AsyncClient(transport=transport) as http:
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(http.get, server.base)
            assert sum(len(idle) for idle in transport.pool._idle.values()) == 4
            everybody = asyncio.Barrier(1)
            await http.get(server.base)
            assert len(server.peers) == 7

    run(main())


def test_a_handshake_that_is_closed_is_no_connection() -> None:
    """A server that closes during the handshake is a ConnectError."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.reader.read(1)

        async with fake_server(script) as server, http_client() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(server.base.replace("http:", "https:"))

    run(main())


def test_a_connection_that_is_not_made_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that never answers raises ConnectTimeout."""

    async def never(host: str, port: int) -> SocketStream:
        await anyio.sleep_forever()
        raise AssertionError

    async def main() -> None:
        monkeypatch.setattr("tricklecast.trickle.client.connecting.connect_tcp", never)
        async with http_client(connect=0.01) as http:
            with pytest.raises(httpx.ConnectTimeout, match="host did not answer in time"):
                await http.get("http://host/")

    run(main())


def test_a_pool_is_used_without_httpx() -> None:
    """Its response has trailers, and may be closed in the way of any resource. Not each body can be read."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-End: yes\r\n\r\n")
            await peer.closed()

        async with fake_server(script) as server:
            pool, limit = Pool(), RequestTimeouts.each(5.0)
            origin = ("http", "127.0.0.1", urlsplit(server.base).port or 0)
            head = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
            body = await pool.send(RawRequest(origin, head, connect_s=limit.connect, read_s=limit.read))
            assert await body.receive() == b"ok"
            assert await body.receive() == b""
            assert body.trailer("X-End") == "yes"
            await body.aclose()
            await pool.aclose()
        with pytest.raises(NotImplementedError, match="cannot be read"):
            aiter(Written())

    run(main())
