"""TLS through an HTTP proxy, against a small real one and against proxies that answer wrongly."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from pathlib import Path

import pytest

from tests.support.peers import Head, Peer, fake_server, run
from tricklecast.trickle.client.answers import Answer, Lost, exchange
from tricklecast.trickle.client.proxies import PORT, Proxy, open_tunnel, proxy_for
from tricklecast.trickle.client.transport import RequestTimeouts, TrickleClient
from tricklecast.trickle.errors import ConnectionLost


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"HTTP_PROXY": "http://p:1"}, None),
        ({"HTTPS_PROXY": "http://p:1"}, Proxy("p", 1, b"", "http://p:1")),
        ({"https_proxy": "p:1", "ALL_PROXY": "http://q:1"}, Proxy("p", 1, b"", "http://p:1")),
        ({"ALL_PROXY": "http://p", "HTTPS_PROXY": ""}, Proxy("p", PORT, b"", "http://p")),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other, .example.com"}, None),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "*"}, None),
    ],
)
def test_the_environment_names_the_proxy(
    variables: dict[str, str], proxy: Proxy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``HTTPS_PROXY`` goes before ``ALL_PROXY``, ``NO_PROXY`` before both, in capitals or not."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for("live.example.com") == proxy


@pytest.mark.parametrize("url", ["socks5://p:1", "https://p:1", "http://", "http://p:99999"])
def test_a_proxy_of_another_kind_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not go around a proxy in silence: it says how that is allowed."""
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(OSError, match=f"^HTTPS_PROXY is {url}: only http://HOST:PORT is supported; NO_PROXY"):
        proxy_for("host")


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the end of one side."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_a_request_goes_through_the_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is told host, port and its password; the server sees TLS from end to end."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    trust = ssl.create_default_context(cafile=certificate / "cert.pem")
    asked: list[Head] = []

    async def proxy(peer: Peer) -> None:
        asked.append(await peer.head())
        host, _, port = asked[-1].path.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(relay(peer.reader, writer), relay(reader, peer.writer))

    async def script(peer: Peer) -> None:
        assert (await peer.head()).path == "/trickle/cam/next"
        await peer.answer(200)

    async def main() -> None:
        async with fake_server(script, tls=context) as server, fake_server(proxy) as between:
            address = between.base.removesuffix("/trickle").replace("//", "//me:se%20cret@")
            monkeypatch.setenv("HTTPS_PROXY", address)
            async with TrickleClient(trust, timeout=RequestTimeouts.each(5.0)) as http:
                found = await exchange(http, "GET", f"{server.base}/cam/next")
            assert isinstance(found, Answer)
            [head] = asked
            assert head.method == "CONNECT"
            assert head.path == head.headers["host"] == server.base.split("/")[2]
            assert b64decode(head.headers["proxy-authorization"].removeprefix("Basic ")) == b"me:se cret"

    run(main())


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", r"refuses \[::1\]:443: HTTP 407 Proxy Auth"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "sent more than its answer"),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200", "closed the connection"),
    ],
)
def test_a_proxy_that_makes_no_tunnel_is_named(says: bytes, why: str) -> None:
    """The error has the proxy, not its password, and the reason."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(says)

    async def main() -> None:
        async with fake_server(script) as server:
            port = int(server.base.split("/")[2].partition(":")[2])
            with pytest.raises(OSError, match=f"^the proxy http://me {why}"):
                await open_tunnel(Proxy("127.0.0.1", port, b"", "http://me"), "::1", 443)

    run(main())


def test_a_proxy_that_is_away_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told like a server that is away, with the proxy's name."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    async def main() -> None:
        async with TrickleClient(ssl.create_default_context(), timeout=RequestTimeouts.each(5.0)) as http:
            found = await exchange(http, "GET", "https://host.invalid/trickle/cam/next")
        assert isinstance(found, Lost)
        assert not found.connected
        text = "the proxy http://127.0.0.1:1 cannot be reached: Connection refused"
        assert isinstance(found.error, ConnectionLost)
        assert (found.error.detail, found.error.server) == (text, "https://host.invalid")

    run(main())
