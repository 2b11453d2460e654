"""Connections that begin a TLS handshake and do not end it: they have a place, a time, and no more."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tricklecast.app.listener
from tests.app.hostile.support import left_over, received
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.http1.connection import MAX_SURPLUS
from tricklecast.app.listener import TlsListener, _failure
from tricklecast.app.tools.conformance.target import Target

Certificate = tuple[Path, Path]


@contextmanager
def attacked(certificate: Certificate, **settings: Any) -> Iterator[tuple[LocalServer, Target, ExitStack]]:
    """A server that speaks TLS, a client of it, and what closes silent connections. Nothing of them must stay."""
    way = {"tls_cert": certificate[0], "tls_key": certificate[1], "storm_guard": "off"}
    with local_server(**way, **settings) as server:
        with ExitStack() as stack, server.client() as target:
            yield server, target, stack
        eventually(lambda: not server.inside(lambda: left_over(server.plane)), what="nothing is left over")


def silent(server: LocalServer, stack: ExitStack) -> socket.socket:
    """A connection that says nothing."""
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S))


def test_connections_that_wait_are_accepted_together(certificate: Certificate) -> None:
    """Ten connections that arrive in one turn of a busy event loop need only a few turns, not one or more each."""

    async def burst() -> int:
        for _ in range(10):
            silent(server, stack)
        for _ in range(4):
            await asyncio.sleep(0)
        return places(server)

    with attacked(certificate) as (server, _, stack):
        assert asyncio.run_coroutine_threadsafe(burst(), server.loop).result(WITHIN_S) == 10


def test_a_listener_without_descriptors_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs the reason, and does not spin meanwhile; closed, it accepts nothing more."""
    monkeypatch.setattr(tricklecast.app.listener, "ACCEPT_RETRY_S", 0.001)

    class Full(socket.socket):
        tried = 0

        def accept(self) -> tuple[socket.socket, Any]:
            self.tried += 1
            raise OSError(errno.EMFILE, "Too many open files")

    async def main(sock: Full) -> None:
        unused: Any = None
        listener = TlsListener(sock, unused, unused, unused)
        await until(lambda: sock.tried >= 3)
        listener.close()
        tried = sock.tried
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert sock.tried == tried

    with Full() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with socket.create_connection(sock.getsockname()):
            asyncio.run(main(sock))
    assert set(caplog.messages) == {"cannot accept a connection: Too many open files"}


def places(server: LocalServer) -> int:
    """How many connections have a place."""
    return server.plane.registry.capacities.connections.used


@pytest.mark.parametrize(("others", "status"), [(1, 404), (2, 503)])
def test_a_handshake_takes_a_place(certificate: Certificate, others: int, status: int) -> None:
    """A client is refused when silent connections take all places, as without TLS; with one place left it is not."""
    with attacked(certificate, max_connections=2) as (server, target, stack):
        for _ in range(others):
            silent(server, stack)
        eventually(lambda: places(server) == others)
        assert target.ask("GET", "/trickle/c/next").status == status
        assert target.ask("GET", "/healthz").status == 200


def test_silent_handshakes_do_not_keep_an_operator_out(certificate: Certificate) -> None:
    """Beyond the limit the oldest make room, so that there are never more than so many."""
    with attacked(certificate, max_connections=1) as (server, target, stack):
        opened = [silent(server, stack) for _ in range(1 + MAX_SURPLUS + 3)]
        eventually(lambda: server.plane.failed_handshakes == 3)
        assert [received(sock) for sock in opened[1:4]] == [b""] * 3
        assert (places(server), len(server.plane.surplus)) == (1, MAX_SURPLUS)
        assert target.ask("GET", "/healthz").status == 200
        assert b"tricklecast_handshakes " in target.ask("GET", "/metrics").body


def test_handshakes_of_a_client_count_as_its_connections(certificate: Certificate) -> None:
    """A limit per address holds before TLS is spoken."""
    with attacked(certificate, per_ip_connections=2) as (server, target, stack):
        silent(server, stack), silent(server, stack)
        eventually(lambda: places(server) == 2)
        refused = target.ask("GET", "/trickle/c/next")
        assert (refused.status, refused.body) == (429, b"Limit reached: per_ip_connections")


def test_a_handshake_has_the_time_of_a_head(certificate: Certificate) -> None:
    """Whether nothing comes or half a hello: it ends, silently, and gives its place back."""
    with attacked(certificate, head_timeout_s=0.2) as (server, _, stack):
        opened = [silent(server, stack) for _ in range(2)]
        opened[1].sendall(bytes.fromhex("16030100c8010000"))
        assert [received(sock) for sock in opened] == [b"", b""]
        eventually(lambda: server.plane.failed_handshakes == 2)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 99])
def test_what_is_no_tls_ends_at_once(certificate: Certificate, data: bytes) -> None:
    """At most an alert is said; it is counted."""
    with attacked(certificate) as (server, _, stack):
        sock = silent(server, stack)
        sock.sendall(data)
        assert len(received(sock)) <= 7
        eventually(lambda: server.plane.failed_handshakes == 1)


def why(server: LocalServer) -> list[str | None]:
    """The access log has a record of each failed handshake, with the client's address."""
    records = [record for record in list(server.records) if record.reason == "handshake"]
    assert all(record.ip == "127.0.0.1" and record.op is None and record.status is None for record in records)
    assert len({record.conn for record in records}) == len(records)
    return [record.detail for record in records]


def fail(sock: socket.socket, context: ssl.SSLContext) -> None:
    """Begin TLS in a way that the server, or this client, does not want."""
    with pytest.raises(ssl.SSLError):
        context.wrap_socket(sock, server_hostname="127.0.0.1")
    sock.close()


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (lambda sock: sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "http_request"),
        (lambda sock: sock.sendall(b"\0" * 99), "wrong_version_number"),
        (lambda sock: sock.shutdown(socket.SHUT_WR), "client_gone"),
        (lambda sock: sock.close(), "client_gone"),
        (lambda sock: fail(sock, ssl.create_default_context()), "tlsv1_alert_unknown_ca"),
    ],
    ids=["plain", "noise", "half-close", "close", "untrusted"],
)
def test_an_operator_is_told_whose_handshake_failed_and_why(
    attempt: Callable[[socket.socket], object], reason: str, certificate: Certificate
) -> None:
    """One line in the access log, which is counted like any other; one that succeeds has none."""
    with attacked(certificate) as (server, target, stack):
        assert target.ask("GET", "/healthz").status == 200
        attempt(silent(server, stack))
        eventually(lambda: server.plane.failed_handshakes == 1)
        eventually(lambda: why(server) == [reason])
        assert server.plane.exchanges["none", 0, "handshake"] == 1


def test_a_handshake_that_is_ended_says_by_what(certificate: Certificate) -> None:
    """Its time was over; another one needed its place; the server went away."""
    with attacked(certificate, head_timeout_s=0.2) as (server, _, stack):
        silent(server, stack)
        eventually(lambda: why(server) == ["timeout"])
        assert (server.records[-1].dur_us or 0) > 100_000, "how long it took"
    with (
        local_server(tls_cert=certificate[0], tls_key=certificate[1], max_connections=1) as server,
        ExitStack() as stack,
    ):
        for _ in range(1 + MAX_SURPLUS + 1):
            silent(server, stack)
        eventually(lambda: why(server) == ["limit:connections"])
        server.stop()
        eventually(server.over)
        assert sorted(filter(None, why(server))) == ["limit:connections"] * (1 + MAX_SURPLUS) + ["shutdown"]


def test_an_error_of_ours_in_a_handshake_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback."""
    assert _failure(ValueError("ours")) == "error"
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_client_that_goes_during_its_handshake(certificate: Certificate) -> None:
    """Its place is free again."""
    with attacked(certificate) as (server, _, stack):
        silent(server, stack)
        eventually(lambda: places(server) == 1)
        stack.close()
        eventually(lambda: places(server) == 0)


def test_a_server_ends_while_hands_are_shaken(certificate: Certificate) -> None:
    """Nobody waits for them."""
    with local_server(tls_cert=certificate[0], tls_key=certificate[1]) as server, ExitStack() as stack:
        sock = silent(server, stack)
        eventually(lambda: places(server) == 1)
        server.stop()
        assert received(sock) == b""
        eventually(server.over)
