"""Requests without httpx, and those that need it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.peers import Head, Peer, fake_server, run
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.answers import Answered, exchange
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.client.sender import TrickleClient, origin_of
from tricklecast.trickle.client.transport import BodyWriter, LiveBody
from tricklecast.trickle.paths import ChannelURL


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
                await plain.send_plain("GET", "http://127.0.0.1:1/", {"X": "a\r\nY: b"}, None, None)

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
                response = await http.send_plain("GET", f"{server.base}/c/1", headers, None, None, asked)
                assert response is not None
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
        assert isinstance(found, Answered)
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
                response = await http.send_plain("POST", f"{server.base}/c/1", {}, Whole(), None)
                assert response is not None
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
                response = await http.send_plain("GET", f"{root}/c/1?token=a", {"user-agent": "c"}, None, None)
                assert response is not None
                assert (response.head.status_code, await response.receive()) == (200, b"")
            with pytest.raises(RuntimeError, match="closed"):
                await exchange(http, "GET", root)
            async with TrickleClient(auth=("user", "secret")) as http:
                assert await http.send_plain("GET", f"{root}/c/3", {}, None, None) is None
        [head] = heads
        assert (head.method, head.path, head.headers["host"]) == ("GET", "/c/1?token=a", root.partition("//")[2])
        assert (head.headers["user-agent"], head.headers["x"]) == ("c", "b")

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
                assert isinstance(await exchange(http, "GET", f"{server.base}/c/{number}"), Answered)
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


@pytest.mark.parametrize("is_used", [True, False])
def test_closing_closes_the_transport_of_the_program(is_used: bool) -> None:
    """Whether httpx had to be used or not; the client cannot be used after it."""

    class Counted(httpx.AsyncBaseTransport):
        closed = 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200)

        async def aclose(self) -> None:
            self.closed += 1

    async def main() -> None:
        transport = Counted()
        async with TrickleClient(transport=transport) as http:
            if is_used:
                assert isinstance(await exchange(http, "GET", "http://host/"), Answered)
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
                assert isinstance(await exchange(http, "GET", server.base, auth=auth), Answered)
            assert len(server.peers) == 1
        assert [head.headers["x"] for head in heads] == ["1", "1"]
        assert "authorization" in heads[1].headers

    run(main())
