"""TLS: the same rules on an encrypted connection."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.local import LocalServer, local_server
from tests.support.server import serve
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.response import ConnectionCut
from tricklecast.app.tools.conformance.target import Address, Target

Certificate = tuple[Path, Path]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for 127.0.0.1 and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def context(certificate: Certificate) -> ssl.SSLContext:
    """A client that trusts the certificate, and checks it."""
    return ssl.create_default_context(cafile=str(certificate[0]))


@pytest.fixture(scope="module")
def server(certificate: Certificate) -> Iterator[LocalServer]:
    with local_server(tls_cert=certificate[0], tls_key=certificate[1], reader_lag_s=1) as running:
        yield running


@pytest.fixture
def target(server: LocalServer, context: ssl.SSLContext) -> Iterator[Target]:
    with server.client(context) as client:
        yield client


def test_the_command_serves_tls(certificate: Certificate, context: ssl.SSLContext) -> None:
    """`--tls-cert` and `--tls-key`: the printed address is https, and works; SIGTERM is a success."""
    arguments = ("--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))
    with serve(*arguments, scheme="https") as server, server.client(context) as target:
        assert server.base == f"https://127.0.0.1:{server.port}/trickle"
        target.channel("c").publish(0, b"body")
        assert target.ask("GET", "/healthz").status == 200
        assert server.stop() == 0


def test_segments_trickle_through_tls(target: Target) -> None:
    """A waiting reader gets each chunk as it is published."""
    channel = target.channel()
    upload = channel.upload(0)
    reader = channel.waiting(0)
    upload.chunk(b"one")
    assert reader.head().status == 200
    assert reader.chunk() == b"one"
    upload.chunk(b"two" * 10_000).end()
    assert reader.rest() == b"two" * 10_000
    assert upload.answer().status == 200


def test_a_large_segment_through_tls_is_exact(target: Target) -> None:
    """More than any buffer holds, to several readers."""
    channel = target.channel()
    body = b"".join(b"%08x" % number for number in range(1 << 18))
    channel.publish(0, body)
    readers = [channel.read(0) for _ in range(3)]
    for reader in readers:
        assert reader.response().body == body


def test_an_early_refusal_through_tls(target: Target) -> None:
    """The answer comes while the body is still open."""
    channel = target.channel()
    channel.publish(0)
    upload = channel.upload(0)
    assert upload.answer().status == 409
    upload.connection.closed()


def test_a_slow_reader_through_tls_is_cut_off(target: Target, server: LocalServer) -> None:
    """Also behind encryption a reader that takes nothing is found, and gets no final chunk."""
    channel = target.channel()
    upload = channel.upload(0, b"begun")
    reader = channel.read(0)
    eventually(lambda: server.plane.registry.readers == 1)
    for _ in range(200):
        upload.chunk(bytes(1 << 16))
    upload.end()
    assert upload.answer().status == 200
    assert server.record(channel=channel.name, op="read", reason="evicted").status == 200
    assert reader.head().status == 200
    with pytest.raises(ConnectionCut):
        reader.rest()


def test_plain_http_on_a_tls_port_changes_nothing(server: LocalServer) -> None:
    """The handshake fails, the server goes on."""
    plain = Target(Address("127.0.0.1", server.port))
    connection = plain.open()
    connection.send(b"POST /trickle/plain/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
    connection.closed()
    connection.close()
    assert "plain" not in server.plane.registry.channels
