"""Requests of a client, with and without httpx, against servers that respond early, late, wrongly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.support.bodies import Chunks, Silent, Written, endless, http_client, live
from tests.support.peers import Head, Peer, fake_server, run
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.answers import Answer, exchange
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.client.connection import BodyWriter, LiveBody, RawRequest
from tricklecast.trickle.client.sockets import SocketStream
from tricklecast.trickle.client.transport import Pool, RequestTimeouts, TrickleClient, origin_of
from tricklecast.trickle.paths import ChannelURL

EMPTY_200 = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


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


def test_a_handshake_that_is_closed_is_no_connection() -> None:
    """A server that closes during the handshake is a ConnectError."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.reader.read(1)

        async with fake_server(script) as server, http_client() as http:
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

        async with fake_server(script) as server, http_client() as http:
            request = http.build_request("POST", server.base, headers={"Transfer-Encoding": "chunked"})
            request.stream = Body()
            assert (await http.send(request)).status_code == 200

    run(main())


def test_no_connection() -> None:
    """A refused connection, an unknown scheme and a broken TLS handshake are connection errors."""

    async def main() -> None:
        async def not_tls(peer: Peer) -> None:
            await peer.reader.read(10)
            await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with fake_server(not_tls) as server, http_client() as http:
            with pytest.raises(httpx.ConnectError, match="does not speak TLS: the URL may have to begin with http://"):
                await http.get(server.base.replace("http:", "https:"))
            url = server.base
        async with http_client() as http:
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
            async with http_client() as http:
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


class Whole(LiveBody):
    """A body of one chunk."""

    def start(self, writer: BodyWriter) -> None:
        writer.write(b"all", last=True)

    def resume(self) -> None: ...

    def detach(self) -> None: ...


def test_a_header_that_http_does_not_allow_is_a_local_error() -> None:
    """Nothing is sent, neither through httpx nor past it."""

    async def main() -> None:
        async with httpx.AsyncClient(transport=TrickleTransport()) as http, TrickleClient() as plain:
            with pytest.raises(httpx.LocalProtocolError):
                await http.get("http://127.0.0.1:1/", headers={"X": "a\r\nY: b"})
            with pytest.raises(faults.LocalProtocolError):
                plain.send_plain("GET", "http://127.0.0.1:1/", {"X": "a\r\nY: b"}, None, None)

    run(main())


@pytest.mark.parametrize("is_own", [True, False])
def test_a_token_takes_the_short_way(is_own: bool) -> None:
    """The client's token, or the one of this request, is a header, and goes before one that the caller set."""

    async def main() -> None:
        heads: list[Head] = []
        tokens = iter(["one", "two"])

        async def script(peer: Peer) -> None:
            for _ in range(2):
                heads.append(await peer.head())
                await peer.answer(200)

        bearer = Bearer(lambda: next(tokens))
        own, asked = (bearer, None) if is_own else (None, bearer)
        headers = {"authorization": "Basic x"}
        async with fake_server(script) as server, TrickleClient(auth=own) as http:
            for _ in range(2):
                sending = http.send_plain("GET", f"{server.base}/c/1", headers, None, None, asked)
                assert sending is not None
                response = await sending
                response.close()
        assert [head.headers["authorization"] for head in heads] == ["Bearer one", "Bearer two"]

    run(main())


@pytest.mark.parametrize("kind", [TrickleClient, httpx.AsyncClient])
def test_a_unix_socket_is_asked_like_a_host(
    kind: type[httpx.AsyncClient] | type[TrickleClient], tmp_path: Path
) -> None:
    """Its path may have capitals. It has no name, so the Host is localhost."""

    async def main() -> None:
        heads: list[Head] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer(0, reader, writer)
            heads.append(await peer.head())
            await peer.answer(200)
            writer.close()

        url = ChannelURL.parse(f"http+unix://{quote(str(tmp_path / 'A.sock'), safe='')}/trickle/cam")
        async with (
            await asyncio.start_unix_server(serve, tmp_path / "A.sock"),
            kind(transport=TrickleTransport(), timeout=httpx.Timeout(5.0)) as http,
        ):
            found = await exchange(http, "GET", url.next())
        assert isinstance(found, Answer)
        [head] = heads
        assert (head.path, head.headers["host"]) == ("/trickle/cam/next", "localhost")

    run(main())


def test_a_plain_request_may_have_a_live_body() -> None:
    """It is sent in chunks; the second request reuses the server's origin."""

    async def main() -> None:
        bodies: list[list[bytes]] = []

        async def script(peer: Peer) -> None:
            for _ in range(2):
                head = await peer.head()
                assert head.headers["transfer-encoding"] == "chunked"
                bodies.append(await peer.body())
                await peer.answer(200)

        async with fake_server(script) as server, TrickleClient() as http:
            for _ in range(2):
                sending = http.send_plain("POST", f"{server.base}/c/1", {}, Whole(), None)
                assert sending is not None
                response = await sending
                assert response.head.status_code == 200
                await response.aclose()
        assert bodies == [[b"all"]] * 2

    run(main())


def test_a_plain_request_takes_the_short_way() -> None:
    """It has the client's headers and its own. With authentication, httpx sends it."""

    async def main() -> None:
        heads: list[Head] = []

        async def script(peer: Peer) -> None:
            heads.append(await peer.head())
            await peer.answer(200)

        async with fake_server(script) as server:
            root = server.base.removesuffix("/trickle")
            async with TrickleClient(headers={"User-Agent": "a", "X": "b"}) as http:
                sending = http.send_plain("GET", f"{root}/c/1?token=a", {"user-agent": "c"}, None, None)
                assert sending is not None
                response = await sending
                assert (response.head.status_code, await response.receive()) == (200, b"")
            with pytest.raises(RuntimeError, match="closed"):
                await exchange(http, "GET", root)
            async with TrickleClient(auth=("user", "secret")) as http:
                assert http.send_plain("GET", f"{root}/c/3", {}, None, None) is None
        [head] = heads
        assert (head.method, head.path, head.headers["host"]) == ("GET", "/c/1?token=a", root.partition("//")[2])
        assert (head.headers["user-agent"], head.headers["x"]) == ("c", "b")

    run(main())


@pytest.mark.parametrize("auth", [None, ("user", "secret")], ids=["plain", "httpx"])
def test_a_request_may_have_a_key_of_its_own(auth: tuple[str, str] | None) -> None:
    """It goes before the client's; the next request has another one, or the client's."""

    async def main() -> None:
        heads: list[Head] = []

        async def script(peer: Peer) -> None:
            for _ in range(3):
                heads.append(await peer.head())
                await peer.answer(200)

        usual = {"Idempotency-Key": "usual"}
        async with fake_server(script) as server, TrickleClient(auth=auth, headers=usual) as http:
            for key in ("a.1", "a.2", ""):
                assert isinstance(await exchange(http, "POST", f"{server.base}/c/1", {"X": "y"}, key=key), Answer)
        assert [head.headers.get("idempotency-key") for head in heads] == ["a.1", "a.2", "usual"]
        assert [head.headers["x"] for head in heads] == ["y"] * 3

    run(main())


@pytest.mark.parametrize("auth", [None, ("user", "secret")], ids=["plain", "httpx"])
def test_no_cookie_is_kept(auth: tuple[str, str] | None) -> None:
    """The next request carries none that a server set, and those that the program set."""

    async def main() -> None:
        heads: list[Head] = []

        async def script(peer: Peer) -> None:
            for number in range(2):
                heads.append(await peer.head())
                await peer.answer(200, {"Set-Cookie": f"c{number}=" + "x" * 4000})

        http = TrickleClient(auth=auth, headers={"Cookie": "own=1"})
        async with fake_server(script) as server, http:
            for number in range(2):
                assert isinstance(await exchange(http, "GET", f"{server.base}/c/{number}"), Answer)
        assert [head.headers["cookie"] for head in heads] == ["own=1", "own=1"]

    run(main())


@pytest.mark.parametrize(
    ("root", "origin", "host"),
    [
        ("http://Host", ("http", "host", 80), b"host"),
        ("HTTPS://host:443", ("https", "host", 443), b"host"),
        ("http://host:2939", ("http", "host", 2939), b"host:2939"),
        ("http://[::1]:2939", ("http", "::1", 2939), b"[::1]:2939"),
        ("http+unix://%2Frun%2FA.sock", ("http+unix", "/run/A.sock", 0), b"localhost"),
    ],
)
def test_where_a_request_goes(root: str, origin: tuple[str, str, int], host: bytes) -> None:
    """A usual port is not named in the header."""
    assert origin_of(root) == (origin, host)


def test_a_scheme_that_is_not_known() -> None:
    """There is no connection to be made."""
    with pytest.raises(faults.UnsupportedProtocol, match="not http or https: ftp://host"):
        origin_of("ftp://host")


def test_a_transport_that_was_not_used_is_closed_as_well() -> None:
    """It is the program's, and has no connections of ours."""

    class Counted(httpx.AsyncBaseTransport):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    async def main() -> None:
        transport = Counted()
        async with TrickleClient(transport=transport):
            pass
        assert transport.closed == 1

    run(main())
