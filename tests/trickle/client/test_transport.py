"""The duplex transport against servers that respond early, late, wrongly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.support.peers import Peer, fake_server, run
from tricklecast.trickle.client.bridge import Streamed, TrickleTransport
from tricklecast.trickle.client.connection import Connection
from tricklecast.trickle.client.sockets import SocketStream
from tricklecast.trickle.client.transport import BodyWriter, LiveBody, Pool, RawRequest, RequestTimeouts

EMPTY_200 = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def client(**timeouts: float) -> httpx.AsyncClient:
    """An httpx client on the transport under test."""
    return httpx.AsyncClient(transport=TrickleTransport(), timeout=httpx.Timeout(**{"timeout": 10.0, **timeouts}))


async def endless(chunk: bytes = b"x" * 1000) -> AsyncIterator[bytes]:
    """A body that never ends."""
    while True:
        yield chunk
        await anyio.lowlevel.checkpoint()


class Silent(httpx.AsyncByteStream):
    """A body whose first chunk never comes; it records how it ended."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.asked.set()
        try:
            await anyio.sleep_forever()
            yield b""
        except BaseException:
            self.cancelled = True
            raise


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

        async with fake_server(script) as server, client() as http:
            response = await http.post(server.base, content=body())
        assert response.status_code == 200
        assert seen == [b"one", b"two" * 20_000, None]

    run(main())


def test_the_head_leaves_before_the_first_chunk() -> None:
    """A preconnect reaches the server at once, and an early response ends the request."""

    async def main() -> None:
        body = Silent()

        async def script(peer: Peer) -> None:
            head = await peer.head()
            assert (head.method, head.path) == ("POST", "/trickle/c/1?token=a")
            await peer.answer(404, {"Connection": "close"}, b"Stream not found")

        async with fake_server(script) as server, client() as http:
            response = await http.post(f"{server.base}/c/1?token=a", content=body)
        assert (response.status_code, response.text) == (404, "Stream not found")
        assert body.cancelled

    run(main())


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

        async with fake_server(script) as server, client() as http:
            response = await http.post(server.base, content=endless())
        assert (response.status_code, response.text) == (413, "too large")

    run(main())


class Written(LiveBody):
    """A body that a test writes through ``writer``.

    Attributes:
        starts: how often it was started.
    """

    def __init__(self) -> None:
        self.writer: BodyWriter | None = None
        self.starts = 0
        self.begun = anyio.Event()
        self.resumed = anyio.Event()

    def start(self, writer: BodyWriter) -> None:
        self.writer = writer
        self.starts += 1
        self.begun.set()

    def resume(self) -> None:
        resumed, self.resumed = self.resumed, anyio.Event()
        resumed.set()

    def detach(self) -> None:
        self.writer = None


def live(http: httpx.AsyncClient, url: str, body: LiveBody) -> httpx.Request:
    """A request with a live body."""
    request = http.build_request("POST", url, headers={"Transfer-Encoding": "chunked"})
    request.stream = Streamed(body)
    return request


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

        async with fake_server(script) as server, client() as http:
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

    run(main())


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

        async with fake_server(script) as server, client() as http:
            assert (await http.send(live(http, server.base, Big()))).status_code == 200

    run(main())


def test_the_last_chunk_and_the_end_leave_together() -> None:
    """A short message takes one packet behind its head."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            assert await peer.reader.read(100) == b"3\r\nall\r\n0\r\n\r\n"
            await peer.answer(200)

        async with fake_server(script) as server, client() as http:
            body = Written()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(http.send, live(http, server.base, body))
                await body.begun.wait()
                assert body.writer is not None
                assert body.writer.write(b"all", last=True)

    run(main())


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

        async with fake_server(stale, fresh) as server, client() as http:
            await http.get(server.base)
            body = Twice()
            assert (await http.send(live(http, server.base, body))).status_code == 200
            assert body.starts == 2

    run(main())


def test_interim_answers_are_skipped() -> None:
    """Interim responses on an idle preconnect do not end the request."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 3)
            await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
            await peer.answer(200, {"Lp-Trickle-Seq": 7})

        async with fake_server(script) as server, client() as http:
            response = await http.post(server.base, content=Silent())
        assert response.headers["lp-trickle-seq"] == "7"

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

        async with fake_server(script) as server, client() as http:
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

        async with fake_server(early, closing, closing) as server, client() as http:
            for content in (Silent(), b"", b""):
                assert (await http.post(server.base, content=content)).status_code == 200
            assert len(server.peers) == 3

    run(main())


class Chunks(httpx.AsyncByteStream):
    """A body of given chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


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

        async with fake_server(once) as server, client() as http:
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

        async with fake_server(stale, fresh) as server, client() as http:
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

        async with fake_server(script) as server, client() as http:
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

        async with fake_server(stale, fresh) as server, client() as http:
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

        async with fake_server(stale, fresh) as server, client() as http:
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

        async with fake_server(script) as server, client() as http:
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

        async with fake_server(stale) as server, client() as http:
            await http.get(server.base)
            with pytest.raises(httpx.ReadError):
                await http.post(server.base, content=endless())
            assert len(server.peers) == 1

    run(main())


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
            with contextlib.suppress(ConnectionError):
                await peer.send(answer)

        async with fake_server(script) as server, client() as http:
            with pytest.raises(error):
                await http.post(server.base, content=Silent())

    run(main())


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

        async with fake_server(script) as server, client() as http:
            with pytest.raises(error):
                await http.get(server.base)

    run(main())


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

    run(main())


def test_a_body_that_is_over_has_its_trailers_and_no_more_bytes() -> None:
    """Later reads return nothing."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-End: yes\r\n\r\n")
            await peer.closed()

        async with fake_server(script) as server, client() as http:
            response = await http.send(http.build_request("GET", server.base), stream=True)
            body = response.extensions["body"]
            assert await body.receive() == b""
            assert response.extensions["trailers"]["x-end"] == "yes"
            body.limit_silence(1.0)
            assert await body.receive_chunk() == b""

    run(main())


def test_a_handshake_that_is_closed_is_no_connection() -> None:
    """A server that closes during the handshake is a ConnectError."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.reader.read(1)

        async with fake_server(script) as server, client() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(server.base.replace("http:", "https:"))

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

        async with fake_server(script) as server, client() as http:
            request = http.build_request("POST", server.base, headers={"Transfer-Encoding": "chunked"})
            request.stream = Body()
            assert (await http.send(request)).status_code == 200

    run(main())


def test_an_end_that_cannot_be_told_from_a_cut_is_refused() -> None:
    """A GET's body that ends with the connection could be a part of a segment."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\nbody")

        async with fake_server(script) as server, client() as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get(server.base)
            assert (await http.delete(server.base)).text == "body"

    run(main())


def test_no_connection() -> None:
    """A refused connection, an unknown scheme and a broken TLS handshake are connection errors."""

    async def main() -> None:
        async def not_tls(peer: Peer) -> None:
            await peer.reader.read(10)
            await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with fake_server(not_tls) as server, client() as http:
            with pytest.raises(httpx.ConnectError, match="does not speak TLS: the URL may have to begin with http://"):
                await http.get(server.base.replace("http:", "https:"))
            url = server.base
        async with client() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(url)
            with pytest.raises(httpx.UnsupportedProtocol):
                await TrickleTransport().handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))

    run(main())


def test_a_server_that_closes_without_a_word_may_want_tls() -> None:
    """The message suggests https:// if plain HTTP got no response."""

    async def main() -> None:
        async def silent(peer: Peer) -> None:
            await peer.reader.readuntil(b"\r\n\r\n")

        async with fake_server(silent) as server, client() as http:
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

        async with fake_server(answers, silent) as server, client() as http:
            await http.get(server.base)
            with pytest.raises(httpx.ReadError, match=r"without an answer$"):
                await http.get(server.base)

    run(main())


def test_the_answer_is_due_once_the_body_has_ended() -> None:
    """An open body may wait for ever, a finished one for the read timeout."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        body = Silent()
        async with fake_server(script) as server, client(read=0.05) as http:
            with anyio.move_on_after(0.3) as open_body:
                await http.post(server.base, content=body)
            assert open_body.cancelled_caught
            with pytest.raises(httpx.ReadTimeout):
                await http.post(server.base, content=b"over")
            with pytest.raises(httpx.ReadTimeout):
                await http.get(server.base)

    run(main())


def test_a_body_that_has_ended_has_nothing_more() -> None:
    """It has its trailers. Its limits do not touch the next request on its connection."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndata\r\n0\r\nX-End: 1\r\n\r\n")

    async def main() -> None:
        async with fake_server(script) as server, client() as http:
            response = await http.send(http.build_request("GET", server.base), stream=True)
            body = response.extensions["body"]
            assert await body.receive() == b"data"
            assert body.trailer("X-End") is None
            for _ in range(2):
                assert await body.receive() == b""
                assert await body.receive_chunk() == b""
                body.limit_silence(0.01)
            assert (body.trailer("X-End"), body.trailer("X-Other")) == ("1", None)
            await response.aclose()

    run(main())


@pytest.mark.parametrize(("left", "waits"), [([9, 6, 3, 0], 3), ([9, 6, 6], 2), ([0, 0], 1), ([5, 9], 1)])
def test_the_answer_is_due_once_the_body_has_arrived(
    left: list[int], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While bytes in this host's buffers get less, the timeout does not fire."""
    asked: list[int] = []

    def unacknowledged(self: SocketStream) -> int:
        # Asked once before each wait, and once after it.
        asked.append(left[min((len(asked) + 1) // 2, len(left) - 1)])
        return asked[-1]

    monkeypatch.setattr(SocketStream, "unacknowledged", property(unacknowledged))

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        async with fake_server(script) as server, client(read=0.02) as http:
            with pytest.raises(httpx.ReadTimeout, match=r"no answer within 0\.02 s"):
                await http.post(server.base, content=b"data")
        assert len(asked) == 2 * waits

    run(main())


def test_an_answer_that_stops_half_way_times_out() -> None:
    """The rest of a response is due within the read timeout."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
            await peer.closed()

        async with fake_server(script) as server, client(read=0.05) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.get(server.base)

    run(main())


def test_a_server_that_stops_reading_times_out() -> None:
    """A body that the server does not read fails after the write timeout."""

    async def main() -> None:
        done = asyncio.Event()

        async def script(peer: Peer) -> None:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await done.wait()

        async with fake_server(script) as server, client(write=0.05) as http:
            with pytest.raises(httpx.WriteTimeout):
                await http.post(server.base, content=endless(b"x" * 1_000_000))
            done.set()

    run(main())


def test_an_error_of_the_body_comes_through() -> None:
    """An exception of the body's own code is raised, and the connection is closed."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        async def broken() -> AsyncIterator[bytes]:
            yield b"x"
            raise LookupError("mine")

        async with fake_server(script) as server, client() as http:
            with pytest.raises(LookupError, match="mine"):
                await http.post(server.base, content=broken())

    run(main())


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

        async with fake_server(script) as server, client() as http:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: http.post(server.base, content=body))
                await open_.wait()
                tasks.cancel_scope.cancel()
            await closed.wait()
        assert body.cancelled

    run(main())


def test_a_body_longer_than_announced_is_a_local_error() -> None:
    """It is refused before the excess reaches the wire."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.closed()

        async with fake_server(script) as server, client() as http:
            with pytest.raises(httpx.LocalProtocolError):
                await http.post(server.base, content=Chunks(b"four"), headers={"Content-Length": "3"})

    run(main())


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

        async with fake_server(script) as server, client() as http:
            sending = http.post(server.base, content=Chunks(b"fo", b"ur"), headers={"Content-Length": length})
            if length == "4":
                assert (await sending).status_code == 200
            else:
                with pytest.raises(httpx.LocalProtocolError):
                    await sending

    run(main())


def test_idle_connections_are_bounded_and_expire() -> None:
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

        transport = TrickleTransport(keepalive_s=0.0)
        async with fake_server(script) as server, httpx.AsyncClient(transport=transport) as http:
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(http.get, server.base)
            assert sum(len(idle) for idle in transport.pool._idle.values()) == 4
            everybody = asyncio.Barrier(1)
            await http.get(server.base)
            assert len(server.peers) == 7

    run(main())


def test_over_tls_everything_is_the_same(certificate: Path) -> None:
    """Early responses, reuse and cuts are the same over TLS; ``verify`` decides about trust."""

    async def main() -> None:
        server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_side.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        trusting = ssl.create_default_context(cafile=certificate / "cert.pem")

        async def script(peer: Peer) -> None:
            for _ in range(2):
                await peer.head()
                assert await peer.body() == [b"data"]
                await peer.answer(200)
            await peer.head()
            await peer.chunk()
            await peer.answer(413, {"Connection": "close"})
            await peer.closed()

        async def cut(peer: Peer) -> None:
            await peer.head()
            peer.reset()

        async with fake_server(script, cut, tls=server_side) as server:
            async with httpx.AsyncClient(transport=TrickleTransport(verify=trusting)) as http:
                for _ in range(2):
                    assert (await http.post(server.base, content=Chunks(b"data"))).status_code == 200
                assert (await http.post(server.base, content=endless())).status_code == 413
                assert len(server.peers) == 1
                with pytest.raises(httpx.ReadError):
                    await http.post(server.base, content=endless())
            async with client() as http:
                with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                    await http.get(server.base)
            async with httpx.AsyncClient(transport=TrickleTransport(verify=False)) as http:
                with pytest.raises(httpx.ReadError):
                    await http.get(server.base)

    run(main())


def test_a_connection_that_is_not_made_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that never answers raises ConnectTimeout."""

    async def never(host: str, port: int) -> SocketStream:
        await anyio.sleep_forever()
        raise AssertionError

    async def main() -> None:
        monkeypatch.setattr("tricklecast.trickle.client.transport.connect_tcp", never)
        async with client(connect=0.01) as http:
            with pytest.raises(httpx.ConnectTimeout, match="host did not answer in time"):
                await http.get("http://host/")

    run(main())


def test_a_live_body_that_nobody_reads_any_more_waits_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rejected write the response may still be on its way."""

    async def rejected(self: Connection, stall_s: float | None) -> bool:
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

        async with fake_server(script) as server, client() as http:
            assert (await http.send(live(http, server.base, Big()))).status_code == 413

    run(main())


def test_a_flood_of_interim_answers_stops_a_body() -> None:
    """A request with a body ends if its server sends only interim responses."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            with contextlib.suppress(ConnectionError):
                while True:
                    peer.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 4000)
                    await peer.writer.drain()

        async with fake_server(script) as server, client() as http:
            with pytest.raises(httpx.RemoteProtocolError, match="interim answers"):
                await http.post(server.base, content=Silent())

    run(main())


def test_a_cancellation_arrives_although_bytes_never_stop() -> None:
    """A cancel scope ends a read whose peer always has bytes."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            peer.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while True:
                    peer.writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                    await peer.writer.drain()

        async with fake_server(script) as server, client() as http, http.stream("GET", server.base) as response:
            with anyio.CancelScope() as scope:
                chunks = 0
                async for chunk in response.aiter_raw():
                    chunks += len(chunk) > 0
                    if chunks == 20:
                        scope.cancel()
                    assert chunks < 1000
            assert scope.cancelled_caught

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
            body = await pool.send(RawRequest(origin, "GET", head, connect_s=limit.connect, read_s=limit.read))
            assert await body.receive() == b"ok"
            assert await body.receive() == b""
            assert body.trailer("X-End") == "yes"
            await body.aclose()
            await pool.aclose()
        with pytest.raises(NotImplementedError, match="cannot be read"):
            aiter(Written())

    run(main())


@pytest.mark.parametrize("named", [("SSL_CERT_FILE", "cert.pem"), ("SSL_CERT_DIR", ".")])
def test_the_environment_names_the_certificates(
    named: tuple[str, str], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, or a folder; usually they are those of certifi. Contexts of the same certificates are the same."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)

    async def main() -> None:
        usual, again = await Pool()._context(), await Pool()._context()
        assert usual is again
        assert len(usual.get_ca_certs()) > 50
        monkeypatch.setenv(named[0], str(certificate / named[1]))
        other = await Pool()._context()
        assert other.verify_mode == ssl.CERT_REQUIRED
        assert len(other.get_ca_certs()) == (1 if named[1] == "cert.pem" else 0)  # a folder is read when it is needed
        assert (await Pool(verify=False)._context()).verify_mode == ssl.CERT_NONE

    run(main())
