"""Between httpx and the clients: what each of them gets of the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.support.bodies import Chunks, http_client
from tests.support.peers import Head, Peer, fake_server, run
from tricklecast.trickle.client import bridge, faults
from tricklecast.trickle.client.bridge import HttpxBody, Streamed, TrickleTransport
from tricklecast.trickle.client.connection import (
    BodyWriter,
    LiveBody,
    Pool,
    ResponseBody,
)
from tricklecast.trickle.client.exchange import Answer, TrickleClient, exchange


class Parts(LiveBody):
    """A body of two chunks, which can be read as well."""

    def start(self, writer: BodyWriter) -> None:
        writer.write(b"a")
        writer.write(b"b", last=True)

    def resume(self) -> None: ...

    def detach(self) -> None: ...

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"


class Unreadable(Parts):
    __aiter__ = LiveBody.__aiter__


def raising(error: Exception) -> httpx.AsyncClient:
    """A client whose transport fails."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    return httpx.AsyncClient(transport=httpx.MockTransport(handler))


@pytest.mark.parametrize("is_live", [True, False])
def test_httpx_sends_a_body(is_live: bool) -> None:
    """Each chunk as one of HTTP; the response has its trailers at its end."""

    async def content() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    async def script(peer: Peer) -> None:
        await peer.head()
        assert await peer.body() == [b"a", b"b"]
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-End: yes\r\n\r\n")
        await peer.closed()

    async def main() -> None:
        async with fake_server(script) as server, httpx.AsyncClient(transport=TrickleTransport()) as http:
            request = http.build_request("POST", server.base, content=content())
            if is_live:
                request.stream = Streamed(Parts())
            response = await http.send(request)
            assert (response.content, response.extensions["trailers"]["x-end"]) == (b"ok", "yes")

    run(main())


class Slow:
    """A writer that has no room after any chunk; a connection before it has turned out to be dead."""

    def __init__(self, body: LiveBody) -> None:
        self.body, self.written = body, list[bytes]()
        self.has_ended = asyncio.Event()

    def write(self, chunk: bytes, *, last: bool = False) -> bool:
        self.written.append(chunk + b"$" * last)
        asyncio.get_running_loop().call_soon(self.body.resume)
        return False

    def end(self) -> bool:
        self.written.append(b"$")
        self.has_ended.set()
        return True

    def pause(self) -> None: ...


class Nothing:
    """An iterator that is no generator, and has nothing."""

    def __aiter__(self) -> Nothing:
        return self

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration


@pytest.mark.parametrize("chunks", [(b"a", b"", b"b"), ()])
def test_a_program_s_body_is_asked_for_a_chunk_when_there_is_room(chunks: tuple[bytes, ...]) -> None:
    """An empty chunk would end it, and is left out; a body without any ends on each connection."""

    async def main() -> None:
        body = bridge._Pulled(Chunks(*chunks) if chunks else Nothing())
        first, second = Slow(body), Slow(body)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(body.run())
            body.start(first)
            await first.has_ended.wait()
        assert first.written == [*filter(None, chunks), b"$"]
        body.detach()
        if not chunks:
            body.start(second)
            assert second.written == [b"$"]

    run(main())


def test_httpx_sends_bytes() -> None:
    """With their length; none at all if they are empty."""

    async def script(peer: Peer) -> None:
        for _ in range(2):
            length = int((await peer.head()).headers["content-length"])
            assert await peer.reader.readexactly(length) == b"data"[:length]
            await peer.answer(200)

    async def main() -> None:
        async with fake_server(script) as server, httpx.AsyncClient(transport=TrickleTransport()) as http:
            for data in (b"data", b""):
                assert (await http.post(server.base, content=data)).status_code == 200

    run(main())


def test_a_body_that_cannot_be_read_is_no_body_for_a_foreign_transport() -> None:
    """A transport that reads bodies gets the chunks, or an error that says why not."""

    async def main() -> None:
        assert [chunk async for chunk in Streamed(Parts())] == [b"a", b"b"]
        with pytest.raises(NotImplementedError, match="cannot be read"):
            aiter(Streamed(Unreadable()))

    run(main())


def test_errors_have_httpx_s_kinds_for_httpx() -> None:
    """Also those within a body."""

    async def half(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")

    async def no_http(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"SSH-2.0\r\n\r\n")

    async def main() -> None:
        async with (
            fake_server(half, no_http) as server,
            httpx.AsyncClient(transport=TrickleTransport()) as http,
        ):
            with pytest.raises(httpx.ReadError, match="in the middle"):
                await http.get(server.base)
            with pytest.raises(httpx.RemoteProtocolError) as found:
                await http.get(server.base)
            assert isinstance(found.value.__cause__, faults.InvalidAnswer)
            with pytest.raises(httpx.UnsupportedProtocol):
                await http.get("ftp://127.0.0.1/")
            with pytest.raises(httpx.LocalProtocolError):
                await http.get(server.base, headers={"X": "a\r\nY: b"})

    run(main())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (httpx.ConnectError("why"), faults.ConnectError),
        (httpx.PoolTimeout("why"), faults.TransportError),
        (httpx.RemoteProtocolError("why"), faults.RemoteProtocolError),
        (httpx.ReadTimeout(""), faults.ReadTimeout),
    ],
)
def test_errors_of_httpx_have_our_kinds_for_our_clients(
    theirs: httpx.TransportError, ours: type[faults.TransportError]
) -> None:
    """Under the same name, or the next one above it. One without a text gets its name."""

    async def main() -> None:
        async with raising(theirs) as http:
            with pytest.raises(ours) as found:
                await bridge.send(http, "GET", "http://host/", {}, None, None, None)
            assert type(found.value) is ours
            assert str(found.value) == (str(theirs) or "ReadTimeout")

    run(main())


def test_an_error_that_came_through_httpx_is_the_one_that_it_was() -> None:
    """Of our transport: httpx knows no ``InvalidAnswer``."""

    async def main() -> None:
        error = httpx.RemoteProtocolError("why")
        error.__cause__ = faults.InvalidAnswer("why")
        async with raising(error) as http:
            with pytest.raises(faults.InvalidAnswer):
                await bridge.send(http, "GET", "http://host/", {}, None, None, None)

    run(main())


def test_a_live_body_goes_through_httpx_to_our_transport() -> None:
    """It is sent in chunks, and the response's body is the transport's own."""

    async def script(peer: Peer) -> None:
        assert (await peer.head()).headers["transfer-encoding"] == "chunked"
        assert await peer.body() == [b"a", b"b"]
        await peer.answer(200)

    async def main() -> None:
        async with fake_server(script) as server, httpx.AsyncClient(transport=TrickleTransport()) as http:
            _, body = await bridge.send(http, "POST", server.base, {}, Parts(), httpx.Timeout(5.0), None)
            assert isinstance(body, ResponseBody)
            await body.aclose()

    run(main())


def test_a_transport_that_never_answers_is_given_up() -> None:
    """The read timeout holds for transports that ignore it."""

    async def never(_: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(never)) as http:
            with pytest.raises(faults.ReadTimeout):
                await bridge.send(http, "GET", "http://host/", {}, None, httpx.Timeout(0.02), None)

    run(main())


def test_bodies_of_other_transports_are_read_as_well() -> None:
    """They are streamed, or were read before; their trailers are known if the transport has kept them."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    async def main() -> None:
        streamed = httpx.Response(200, content=parts(), extensions={"trailers": {"x": "1"}})
        filled = httpx.Response(200, content=b"ab")
        await filled.aread()
        for response, expected, trailer in ((streamed, [b"a", b"b"], "1"), (filled, [b"ab"], None)):
            body, got = HttpxBody(response), list[bytes]()
            assert not body.keeps_cancelled
            while chunk := await (body.receive() if got else body.receive_chunk()):
                got.append(chunk)
            assert got == expected
            assert body.trailer("x") == trailer

    run(main())


@pytest.mark.parametrize("way", ["silent", "closed", "broken"])
def test_a_body_of_another_transport_fails(way: str) -> None:
    """By silence, by a close, or by itself: a read that waits ends."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        if way == "broken":
            raise httpx.ReadError("cut")
        await anyio.sleep_forever()

    async def main() -> None:
        body = HttpxBody(httpx.Response(200, content=parts()))
        assert await body.receive() == b"a"
        if way == "silent":
            body.limit_silence(0.02)

        async def read() -> None:
            with pytest.raises(faults.ReadError if way == "broken" else faults.ReadTimeout):
                await body.receive()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            if way == "closed":
                await anyio.wait_all_tasks_blocked()
                await body.aclose()
        await body.aclose()

    run(main())


def test_a_unix_socket_has_no_name(tmp_path: Path) -> None:
    """The Host is localhost, whatever httpx makes of the path."""

    async def main() -> None:
        heads: list[Head] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer(0, reader, writer)
            heads.append(await peer.head())
            await peer.answer(200)
            writer.close()

        url = f"http+unix://{quote(str(tmp_path / 's.sock'), safe='')}/cam"
        async with (
            await asyncio.start_unix_server(serve, tmp_path / "s.sock"),
            bridge.httpx_client(TrickleTransport()) as http,
        ):
            assert (await http.get(url)).status_code == 200
        assert heads[0].headers["host"] == "localhost"

    run(main())


def test_whose_connections_a_request_may_use() -> None:
    """Those of our transport, unless a subclass changes requests."""

    class Own(TrickleTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200)

    pool = Pool()
    assert TrickleClient(transport=TrickleTransport(pool)).pool is pool
    assert TrickleClient(transport=Own()).pool is None
    assert TrickleClient(transport=httpx.MockTransport(lambda _: httpx.Response(200))).pool is None


def test_each_fault_has_a_namesake_in_httpx() -> None:
    """Itself, or a base class of it."""
    assert str(bridge._error_of_httpx(faults.NoAnswer("why"))) == "why"
    for kind in vars(faults).values():
        if isinstance(kind, type) and issubclass(kind, faults.TransportError):
            assert isinstance(bridge._error_of_httpx(kind("why")), httpx.TransportError)


def test_closing_closes_the_transport_of_the_program() -> None:
    """Once, though httpx has it; the client cannot be used after it."""

    class Counted(httpx.AsyncBaseTransport):
        closed = 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200)

        async def aclose(self) -> None:
            self.closed += 1

    async def main() -> None:
        transport = Counted()
        async with TrickleClient(transport=transport) as http:
            assert isinstance(await exchange(http, "GET", "http://host/"), Answer)
            assert http.by_httpx() is http.by_httpx()
        assert transport.closed == 1
        with pytest.raises(RuntimeError, match="closed"):
            await exchange(http, "GET", "http://host/")

    run(main())


def test_both_ways_share_the_connections() -> None:
    """A request by httpx follows a plain one on its connection, and nothing of it is left open."""

    async def main() -> None:
        heads: list[Head] = []

        async def script(peer: Peer) -> None:
            for _ in range(2):
                heads.append(await peer.head())
                await peer.answer(200)
            await peer.closed()

        async with fake_server(script) as server, TrickleClient(headers={"X": "1"}) as http:
            for auth in (None, ("user", "secret")):
                assert isinstance(await exchange(http, "GET", server.base, auth=auth), Answer)
            assert len(server.peers) == 1
        assert [head.headers["x"] for head in heads] == ["1", "1"]
        assert "authorization" in heads[1].headers

    run(main())


def test_a_plain_iterator_is_left_as_it_is() -> None:
    """Only generators are closed."""

    class Once:
        def __init__(self) -> None:
            self.left = [b"data"]

        def __aiter__(self) -> Once:
            return self

        async def __anext__(self) -> bytes:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    class Body(httpx.AsyncByteStream):
        def __aiter__(self) -> AsyncIterator[bytes]:
            return Once()

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            assert await peer.body() == [b"data"]
            await peer.answer(200)

        async with fake_server(script) as server, http_client() as http:
            request = http.build_request("POST", server.base, headers={"Transfer-Encoding": "chunked"})
            request.stream = Body()
            assert (await http.send(request)).status_code == 200

    run(main())
