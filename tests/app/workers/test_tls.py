"""TLS at a server of two processes: a session stays where it was accepted, the owner of a channel answers."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.app.workers.test_limits import names, standing_still
from tests.support.certificates import make_certificate
from tests.support.logs import logged
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S
from tricklecast.app.tools.conformance.connection import RawConnection
from tricklecast.app.workers.handover import PAIR_BYTES, Half

FRONT, OTHER = names(0), names(1)
SESSIONS = 8  # connections of a test: the kernel brings them all to one worker once in 128 times, which shows less


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the server and of its clients."""
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def context(folder: Path) -> ssl.SSLContext:
    """A client with a certificate, whose name is camera-1."""
    certificate, _ = make_certificate(folder)
    authority = trustme.CA()
    (folder / "clients.pem").write_bytes(authority.cert_pem.bytes())
    client = ssl.create_default_context(cafile=certificate)
    authority.issue_cert("camera.example", common_name="camera-1").configure_cert(client)
    return client


@pytest.fixture
def server(folder: Path, context: ssl.SSLContext, tmp_path: Path) -> Iterator[RunningServer]:
    options = ["--workers", "2", "--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
    options += ["--tls-client-ca", str(folder / "clients.pem"), "--shutdown-drain-s", "1"]
    with serve(*options, scheme="https", access_log=tmp_path / "access.log") as running:
        yield running


def test_sessions_serve_channels_of_all_workers(server: RunningServer, context: ssl.SSLContext) -> None:
    """On each of them, in turn, with the client's name and address; pages of a plain origin are none of the server's.
    A client that leaves is missed at once, by whichever worker serves it; a drain lets the others finish."""
    assert server.access_log is not None
    with server.client(context) as client:
        connections = [client.open() for _ in range(SESSIONS)]
        for seq, connection in enumerate(connections):
            for name in (FRONT[0], OTHER[0], FRONT[1], OTHER[1]):
                connection.request("POST", f"/trickle/{name}/{seq}", body=name.encode())
                connection.expect(200)
                connection.request("GET", f"/trickle/{name}/{seq}")
                connection.segment(seq, name.encode())
            connection.request("GET", "/api/v1/channels", {"X-Forwarded-For": "192.0.2.66"})
            connection.expect(200)
        asked = logged(server.access_log, SESSIONS, op="api", status=200, method="GET")
        assert {(record["client"], record["ip"]) for record in asked} == {("camera-1", "127.0.0.1")}
        published = logged(server.access_log, 4 * SESSIONS, op="publish")
        assert {(record["client"], record["ip"]) for record in published} == {("camera-1", "127.0.0.1")}
        assert {record["worker"] for record in published} == {0, 1}

        own, foreign = (f"{scheme}://{client.address.authority}" for scheme in ("https", "http"))
        for name in (FRONT[2], OTHER[2]) * 4:
            for origin, status in ((own, 200), (foreign, 403)):
                client.channel(name).ask("POST", {"Origin": origin}, b"").expect(status)

        uploads = {name: client.channel(name).upload(SESSIONS, b"begun") for name in (FRONT[0], OTHER[0])}
        readers: list[RawConnection] = []
        for number, connection in enumerate(connections):
            connection.request("GET", f"/trickle/{(FRONT[0], OTHER[0])[number % 2]}/{SESSIONS}")
            connection.head().expect(200)
            readers.append(connection.gets(b"begun"))
        for reader in readers[:4]:
            reader.close()
        left = logged(server.access_log, 4, reason="client_gone")
        assert sorted(record["channel"] for record in left) == sorted([FRONT[0], OTHER[0]] * 2)

        server.process.send_signal(signal.SIGTERM)
        logged(server.access_log, 2, event="drain")
        for upload in uploads.values():
            upload.chunk(b" and ended").end().answer().expect(200)
        for reader in readers[4:]:
            reader.ends(b" and ended")
        assert server.process.wait(WITHIN_S) == 0


def test_a_worker_that_stands_still_keeps_no_new_session(server: RunningServer, context: ssl.SSLContext) -> None:
    """The other one accepts those that the kernel brings to it."""
    with standing_still(server, 1), server.client(context) as client:
        for _ in range(SESSIONS):
            client.ask("GET", "/healthz").expect(200)


async def stands_still(writer: asyncio.StreamWriter) -> int:
    """Write until nothing more is taken; the bytes that were."""
    taken, sock = 0, writer.get_extra_info("socket")
    writer.transport.set_write_buffer_limits(high=0)
    quiet = 0
    while quiet < 20:
        if writer.transport.get_write_buffer_size():
            quiet += 1
            await asyncio.sleep(0)
        else:
            quiet = 0
            writer.write(bytes(1 << 14))
            taken += 1 << 14
            await asyncio.sleep(0)
    assert sock is not None
    return taken


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_does_not_read_fills_no_memory(loop: str) -> None:
    """The halves take no more than their buffers hold; then the owner finds that its client lags. Nothing is lost."""

    async def main() -> None:
        running = asyncio.get_running_loop()
        all_: set[Half] = set()
        session, inner = Half(all_), Half(all_)
        session.other, inner.other = inner, session
        (client, session_socket), (owner, inner_socket) = socket.socketpair(), socket.socketpair()
        for one in (client, session_socket, owner, inner_socket):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
        await running.connect_accepted_socket(lambda: session, session_socket)
        session.transport.pause_reading()
        await running.connect_accepted_socket(lambda: inner, inner_socket)
        client_reader, client_writer = await asyncio.open_connection(sock=client)
        owner_reader, owner_writer = await asyncio.open_connection(sock=owner)
        client_reader._transport.pause_reading()  # type: ignore[attr-defined]
        for writer, reader in ((owner_writer, client_reader), (client_writer, owner_reader)):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            taken = await stands_still(writer)
            assert taken < 2 << 20
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert await reader.readexactly(taken) == bytes(taken)
        client_writer.close()
        assert await owner_reader.read() == b""
        owner_writer.close()
        while all_:  # noqa: ASYNC110
            await asyncio.sleep(0)

    if loop == "uvloop":
        import uvloop

        uvloop.run(asyncio.wait_for(main(), WITHIN_S))
    else:
        asyncio.run(asyncio.wait_for(main(), WITHIN_S))
