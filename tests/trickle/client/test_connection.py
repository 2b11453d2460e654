"""A connection: chunks as the server sent them, trailers, keep-alive, and broken responses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.subscriber.fake import Exchange, FakeServer, Handler, fake, run
from tests.support.certificates import make_certificate
from tests.support.streams import serve_streams
from tricklecast.trickle import wire
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.client.connection import MAX_CHUNKS, MAX_INTERIM, Connection
from tricklecast.trickle.client.decoder import MAX_CHUNK
from tricklecast.trickle.client.sockets import connect_tcp
from tricklecast.trickle.client.transport import MAX_IDLE


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
                assert not connection.write_body(first)
                assert not connection.write_body(b"b")
                received = bytearray()

                def drain() -> None:
                    while not received.endswith(b"0\r\n\r\n"):
                        received.extend(peer.recv(1 << 20))

                async with anyio.create_task_group() as tasks:

                    async def flush() -> None:
                        assert await connection.flush(10)

                    tasks.start_soon(flush)
                    await anyio.wait_all_tasks_blocked()
                    assert not connection.write_body(b"c")
                    assert not connection.end_body()
                    await anyio.to_thread.run_sync(drain)
                body = bytes(received).partition(b"\r\n\r\n")[2]
                assert body == b"%x\r\n%b\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n" % (len(first), first)
                assert not connection.start_next(1.0)
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
                        assert connection.write_body(b"ab")
                        assert connection.write_body(b"c", last=last)
                    assert connection.end_body()
                    assert connection.end_body()
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
                        connection.write_body(data, last=last)
                with pytest.raises(faults.LocalProtocolError):
                    connection.end_body()
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
            while connection.write_body(b"x"):
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
