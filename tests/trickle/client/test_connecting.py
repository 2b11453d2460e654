"""Connections are made: addresses, Unix sockets, TLS, and TLS through an HTTP proxy."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from base64 import b64decode
from pathlib import Path
from urllib.parse import quote

import aiohappyeyeballs
import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.support.bodies import Chunks, endless, http_client
from tests.support.peers import Head, Peer, fake_server, run
from tricklecast.trickle.client import connecting, faults
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.client.connecting import (
    PEER_TIMEOUT_S,
    PROXY_PORT,
    Proxy,
    certificate_refusal,
    connect_tcp,
    connect_unix,
    open_tunnel,
    origin_of,
    proxy_for,
    reason,
)
from tricklecast.trickle.client.connection import (
    Pool,
    RequestTimeouts,
)
from tricklecast.trickle.client.exchange import Answer, Lost, TrickleClient, exchange
from tricklecast.trickle.errors import ConnectionLost
from tricklecast.trickle.paths import ChannelURL


def test_every_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal the next address is tried at once, after silence a moment later."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.send(b"hello")
            await peer.closed()

        async with fake_server(script) as server:
            port = int(server.base.split(":")[2].split("/")[0])

            def resolve(*addresses: str) -> None:
                found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

                async def getaddrinfo(*_: object, **__: object) -> object:
                    return found

                monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)

            # 127.0.0.2 refuses; 192.0.2.1 is reserved for documentation, and answers nobody.
            resolve("127.0.0.2", "127.0.0.1")
            async with await connect_tcp("host", port) as stream:
                assert await stream.receive() == b"hello"
            resolve("127.0.0.2", "127.0.0.3")
            with pytest.raises(OSError) as refused:  # noqa: PT011  # its words are checked below
                await connect_tcp("host", port)
            assert reason(refused.value) == "Connection refused"

    run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_backend_connects(backend: str) -> None:
    """Stream and errors are the same under asyncio and trio."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            async with await connect_tcp("localhost", port) as stream:
                theirs, _ = listener.accept()
                with theirs:
                    await stream.send(b"hello")
                    assert theirs.recv(5) == b"hello"
                    theirs.sendall(b"there")
                    assert await stream.receive() == b"there"
        with pytest.raises(OSError) as refused:  # noqa: PT011  # its words are checked below
            await connect_tcp("127.0.0.1", port)
        assert reason(refused.value) == "Connection refused"
        with pytest.raises(OSError) as unknown:  # noqa: PT011
            await connect_tcp("no-such-host.invalid", port)
        assert "not known" in reason(unknown.value) or "resolution" in reason(unknown.value)

    anyio.run(main, backend=backend)


def test_an_error_of_uvloop_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop raises RuntimeError where asyncio raises OSError."""

    async def fail(*_: object, **__: object) -> socket.socket:
        raise RuntimeError("not connected")

    async def main() -> None:
        monkeypatch.setattr(aiohappyeyeballs, "start_connection", fail)
        with pytest.raises(OSError, match="not connected"):
            await connect_tcp("127.0.0.1", 1)

    run(main())


def test_an_answer_without_tls_is_named() -> None:
    """The message tells the user to try http:// instead of OpenSSL's words."""
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    assert "http://" in reason(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "internal error"), "internal error"),
        (OSError("all of them"), "all of them"),
        (UnicodeError("label too long"), "label too long"),
        (OSError(), "OSError"),
    ],
    ids=["errno", "resolver", "tls", "text", "host name", "nothing"],
)
def test_reasons_are_words(error: Exception, words: str) -> None:
    """The reason of an error in a group is that of its first cause."""
    assert reason(error) == words
    outer = OSError("all attempts failed")
    outer.__cause__ = ExceptionGroup("", [ExceptionGroup("", [error])])
    assert reason(outer) == (words if isinstance(error, OSError) else "all attempts failed")


def test_a_peer_that_vanishes_is_noticed_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket has keep-alive probes and a user timeout; unknown options are left out."""
    monkeypatch.setitem(connecting._OPTIONS, "TCP_OF_ANOTHER_SYSTEM", 1)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with await connect_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
                option = stream._socket.getsockopt
                assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == PEER_TIMEOUT_S * 1000

    run(main())


def test_a_unix_socket_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    """The connection is made when the server accepts one."""

    async def main() -> None:
        path = str(tmp_path / "socket")
        with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as waiting:
            listener.bind(path)
            listener.listen(0)
            while True:
                one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                if one.connect_ex(path) == errno.EAGAIN:
                    break
            async with anyio.create_task_group() as tasks:

                async def connect() -> None:
                    (await connect_unix(path)).close()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(connect)
                await anyio.wait_all_tasks_blocked()
                listener.setblocking(False)
                while True:
                    await anyio.wait_readable(listener)
                    listener.accept()[0].close()

    run(main())


def test_a_unix_socket_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """So is one on which nobody listens."""

    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await connect_unix(str(tmp_path / "socket"))
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(tmp_path / "socket"))
            with pytest.raises(ConnectionRefusedError):
                await connect_unix(str(tmp_path / "socket"))

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
        ({"ALL_PROXY": "http://p", "HTTPS_PROXY": ""}, Proxy("p", PROXY_PORT, b"", "http://p")),
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


@pytest.mark.parametrize(
    ("host", "direct"),
    [
        *(("127.0.0.2", True), ("10.1.2.3", True), ("192.0.2.7", True), ("192.0.2.8", False)),
        *(("fd00::1", True), ("FD00:0::1", True), ("fe00::1", False), ("ten.example", False)),
    ],
)
def test_networks_need_no_proxy(host: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``NO_PROXY`` may hold them in CIDR notation, as curl takes it, also if bits of a host are set in it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv("NO_PROXY", "other, 127.0.0.0/8,10.9.9.9/8 192.0.2.7/32,fd00::/8,1.2.3.4/99")
    assert (proxy_for(host) is None) is direct


@pytest.mark.parametrize("url", ["socks5://p:1", "https://p:1", "http://", "http://p:99999"])
def test_a_proxy_of_another_kind_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not go around a proxy in silence: it says how that is allowed."""
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(OSError, match=f"^HTTPS_PROXY is {url}: only http://HOST:PORT is supported; NO_PROXY"):
        proxy_for("host")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "the server wants a client certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "the server does not accept the client certificate: certificate expired"),
        ("TLSV1_ALERT_INTERNAL_ERROR", ""),
        ("CERTIFICATE_VERIFY_FAILED", ""),
        (None, ""),
    ],
)
def test_alerts_about_the_clients_certificate_are_told_apart(name: str | None, words: str) -> None:
    """They are certain; others, and what the client finds wrong with the server's certificate, are not these."""
    error = ssl.SSLError(1, "alert")
    error.reason = name  # type: ignore[assignment]
    assert (certificate_refusal(error) or "").startswith(words)
    assert (certificate_refusal(error) is None) is (words == "")
    assert certificate_refusal(ConnectionResetError()) is None


def test_a_refused_handshake_may_be_one_without_a_certificate() -> None:
    """TLS 1.2 has one alert for all that the two sides do not agree on."""
    error = ssl.SSLError(1, "alert")
    error.reason = "SSLV3_ALERT_HANDSHAKE_FAILURE"
    assert "may want a client certificate" in reason(error)


@pytest.mark.parametrize(
    ("code", "why", "hint"),
    [
        (18, "self-signed certificate", " (--ca-file, or the variable SSL_CERT_FILE, names an authority to trust)"),
        (62, "Hostname mismatch, certificate is not valid for 'host'.", ""),
    ],
)
def test_what_is_wrong_with_the_servers_certificate(code: int, why: str, hint: str) -> None:
    """The reason says it without OpenSSL's brackets, and what helps where the authority is not known."""
    error = ssl.SSLCertVerificationError(1, f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {why} (1)")
    error.verify_code, error.verify_message = code, why
    assert reason(error) == f"certificate verify failed: {why.rstrip('.')}{hint}"


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
