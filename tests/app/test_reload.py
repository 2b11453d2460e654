"""Reload: what SIGHUP changes, what stays where the new is invalid, and whom it concerns."""

from __future__ import annotations

import logging
import math
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from tests.app.access.signing import SECRET, bearer, token
from tests.support.certificates import make_certificate
from tests.support.local import LocalServer, local_server
from tests.support.metrics import samples
from tests.support.waiting import eventually
from tricklecast.app import reload as reload_module
from tricklecast.app.cli import cli
from tricklecast.app.listener import CannotServe, Tls, validity
from tricklecast.app.reload import RELOADED
from tricklecast.app.settings import Settings, load
from tricklecast.app.tools.conformance.response import Failure
from tricklecast.app.tools.conformance.target import Target

OTHER = b"another secret of more than thirty-two bytes"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    return file


@pytest.fixture
def revoked(tmp_path: Path) -> Path:
    file = tmp_path / "revoked"
    file.write_text("# nobody yet\n")
    return file


@pytest.fixture
def server(secret: Path, revoked: Path) -> Iterator[LocalServer]:
    """A server that wants tokens, and knows which are revoked."""
    with local_server(jwt_secret_file=secret, revoked_file=revoked, storm_guard="off") as running:
        yield running


@pytest.fixture
def target(server: LocalServer) -> Iterator[Target]:
    with server.client() as client:
        yield client


def scraped(text: bytes) -> dict[str, float]:
    """The samples of a scrape; a reload's is named by its result."""
    found = samples(text.decode()).items()
    return {"_".join([name, *(value for _, value in labels)]): number for (name, labels), number in found}


def reload(server: LocalServer, **changed: Any) -> None:
    """Send the server what it gets at SIGHUP, after some settings have changed."""
    server.next_settings = server.settings.model_copy(update=changed)
    server.inside(server.reload)


# Keys and revoked tokens.


@pytest.mark.parametrize("how", ["key", "jti", "sub"])
def test_running_requests_end_with_their_token(
    how: str, server: LocalServer, target: Target, secret: Path, revoked: Path
) -> None:
    """A publisher and a reader in the middle of a segment, and one that waits; those of another token go on."""
    stolen, good = bearer(token(sub="camera", jti="7")), bearer(token(sub="other", jti="8"))
    upload = target.channel("c").upload(0, b"begun", headers=stolen)
    beside = target.channel("d").upload(0, b"begun", headers=good)
    target.settle()
    reader = target.channel("d").read(0, stolen)
    assert (reader.head().status, reader.body(5)) == (200, b"begun")
    waiting = target.channel("d").read(1, stolen)
    eventually(lambda: server.plane.registry.readers == 2)
    if how == "key":
        secret.write_bytes(OTHER)
    else:
        revoked.write_text({"jti": "jti 7\n", "sub": "# stolen\n\n  sub\tcamera \r\n"}[how])
    reload(server)
    response = upload.answer()
    assert (response.status, response.body) == (401, b"Token revoked")
    response = waiting.response()
    assert (response.status, response.body) == (401, b"Token revoked")
    with pytest.raises(Failure):
        reader.rest()
    assert server.record(channel="c", op="publish").reason == "token:revoked"
    assert server.record(channel="d", op="read", status=200).reason == "token:revoked"
    if how == "key":
        assert beside.answer().status == 401
        good = bearer(token(OTHER))
    else:
        beside.chunk(b" and ended").end()
        assert beside.answer().status == 200
    assert target.ask("GET", f"{target.base}/d/next", stolen).status == 401
    assert target.ask("GET", f"{target.base}/d/next", good).status == 200


def test_a_stream_of_the_control_plane_ends_with_its_token(server: LocalServer, target: Target, revoked: Path) -> None:
    """The last event says why."""
    connection = target.open()
    connection.request(
        "GET", "/api/v1/changes?follow=1", {**bearer(token(sub="camera")), "Accept": "text/event-stream"}
    )
    assert connection.head().status == 200
    revoked.write_text("sub camera\n")
    reload(server)
    assert b"token:revoked" in connection.rest()


def test_a_file_that_cannot_be_used_changes_nothing_else(
    server: LocalServer, target: Target, secret: Path, revoked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The key file is broken, and the list of revoked tokens applies all the same; the log and the metrics say so."""
    stolen, good = bearer(token(jti="7")), bearer(token(jti="8"))
    secret.write_bytes(b"short")
    revoked.write_text("jti 7\n")
    reload(server)
    assert target.ask("GET", f"{target.base}/c/next", stolen).status == 401
    assert target.ask("GET", f"{target.base}/c/next", good).status == 404
    secret.write_bytes(SECRET)
    revoked.write_text("jti 8\ntoken 9\n")
    reload(server)
    assert target.ask("GET", f"{target.base}/c/next", stolen).status == 401
    assert target.ask("GET", f"{target.base}/c/next", good).status == 404
    figures = scraped(target.ask("GET", "/metrics", good).body)
    assert figures["tricklecast_reload_total_failed"] == 2
    assert figures["tricklecast_reload_total_succeeded"] == 0
    assert figures["tricklecast_last_reload_failed"] == 1
    assert figures["tricklecast_last_reload_timestamp_seconds"] > 1e9
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(texts) == 2
    assert f"jwt_secret_file: {secret} has 5 bytes" in texts[0]
    assert f"revoked_file: {revoked}, line 2: write 'jti ID' or 'sub NAME', or begin the line with #" in texts[1]
    revoked.unlink()
    reload(server)
    assert target.ask("GET", f"{target.base}/c/next", stolen).status == 401


def test_the_token_of_the_control_plane(tmp_path: Path) -> None:
    """The former one is worth nothing any more."""
    file = tmp_path / "control"
    file.write_text("the former control token")
    with local_server(control_token_file=file, storm_guard="off") as server, server.client() as target:
        former, next_one = bearer("the former control token"), bearer("the next control token")
        assert target.ask("GET", "/api/v1/channels", former).status == 200
        file.write_text("the next control token")
        reload(server)
        assert target.ask("GET", "/api/v1/channels", former).status == 401
        assert target.ask("GET", "/api/v1/channels", next_one).status == 200


# Settings.


def test_settings_that_change_at_once(server: LocalServer, target: Target) -> None:
    """Origins of web pages on both planes, and the shutdown."""
    page = {**bearer(token()), "Origin": "https://studio.example"}
    assert target.ask("POST", f"{target.base}/c", page, b"").status == 403
    assert target.ask("GET", "/api/v1/channels", page).get("Access-Control-Allow-Origin") is None
    reload(server, cors_write_origins=("https://studio.example",), shutdown_drain_s=0.01)
    assert target.ask("POST", f"{target.base}/c", page, b"").status == 200
    assert target.ask("GET", "/api/v1/channels", page).get("Access-Control-Allow-Origin") == "https://studio.example"
    assert server.reload.settings.drain(0).spread_s == 0.01


def test_settings_that_need_a_restart(server: LocalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names them; so do those that would switch a part on or off."""
    file = tmp_path / "control"
    file.write_text("a control token")
    reload(server, max_channels=1, jwt_secret_file=None, revoked_file=None, control_token_file=file, tls_cert=file)
    names = "revoked_file, jwt_secret_file, control_token_file, tls_cert, max_channels"
    (text,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    head, _, listed = text.partition(": ")
    assert head == "these settings have changed and need a restart"
    assert set(listed.split(", ")) == set(names.split(", "))
    assert server.reload.settings == server.settings
    assert server.reload.counts.succeeded == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("max_channels = 'x'\n", "max_channels in"),
        ("a = " + "[" * 20_000, "brackets are nested too deep"),
        (None, "a fault of the server: ZeroDivisionError"),
    ],
)
def test_settings_that_are_invalid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, why: str
) -> None:
    """They stay as they were, and the files that they name are read all the same."""
    config, revoked, secret = tmp_path / "t.toml", tmp_path / "revoked", tmp_path / "secret"
    config.write_text(text or "")
    revoked.touch()
    secret.write_bytes(bytes(32))
    with local_server(jwt_secret_file=secret, revoked_file=revoked) as server:
        server.reload._reread = lambda: load({} if text else {"port": 1 // 0}, config).settings
        revoked.write_text("sub a\n")
        server.inside(server.reload)
        assert server.reload.settings == server.settings
        assert server.reload.counts.failed == 1
        assert server.access is not None
        assert server.access._files.revocations.subjects == {"a"}
    assert why in caplog.text


def test_every_setting_that_is_reloaded_is_one_and_is_documented() -> None:
    """The page on signals lists them all."""
    page = (Path(__file__).parents[2] / "docs/reference/signals.md").read_text()
    assert [name for name in RELOADED if name not in Settings.model_fields or f"`{name}`" not in page] == []


# Certificates.


def issue(folder: Path, begins: datetime, ends: datetime) -> tuple[Path, Path]:
    """A certificate that is valid between two times, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, begins, ends)
    made = builder.sign(key, hashes.SHA256())
    files = folder / "made.pem", folder / "made.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    files[1].chmod(0o600)
    return files


@pytest.mark.parametrize("end", [datetime(2049, 12, 31, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)])
def test_the_validity_of_a_chain(end: datetime, tmp_path: Path) -> None:
    """From 2050 on, times in certificates have four digits for the year; of a chain, the first to expire counts."""
    begin = datetime(1999, 5, 6, 7, 8, 9, tzinfo=UTC)
    one, _ = issue(tmp_path, begin, end)
    chain = one.read_bytes()
    assert validity(chain) == (begin.timestamp(), end.timestamp())
    other, _ = issue(tmp_path, begin + timedelta(days=1), end - timedelta(days=1))
    both = (begin + timedelta(days=1)).timestamp(), (end - timedelta(days=1)).timestamp()
    assert validity(chain + other.read_bytes()) == validity(other.read_bytes() + chain) == both


@pytest.mark.parametrize("text", ["MIIB", "MA==", "!!", "////////", "MIIB////"])
def test_a_certificate_that_is_none(text: str) -> None:
    """One clear error, whatever its bytes say about lengths."""
    pem = f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n".encode()
    with pytest.raises(CannotServe, match="tls_cert: a certificate that cannot be read"):
        validity(pem)


@pytest.mark.parametrize(
    ("lasts_d", "left_d", "said"),
    [
        (90, 17, "expires in 1"),
        (90, 19, ""),
        (6, 1, "expires in"),
        (6, 2, ""),
        (700, 29, "expires in 2"),
        (700, 31, ""),
        (90, -1, "has expired at"),
        (90, 91, "is not valid before"),
    ],
)
def test_a_certificate_that_expires(
    lasts_d: int, left_d: int, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server warns in the last fifth of its time, and in the last 30 days at most."""
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=left_d)
    certificate, key = issue(tmp_path, end - timedelta(days=lasts_d), end)
    tls = Tls(Settings.model_validate({"tls_cert": certificate, "tls_key": key}))
    assert tls.valid[1] == end.timestamp()
    assert [said in message for message in caplog.messages] == [True] * bool(said)


def serial(server: LocalServer) -> int:
    """The number of the certificate that a new connection gets."""
    pem = ssl.get_server_certificate(("127.0.0.1", server.port))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_a_certificate_that_is_renewed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New connections get the new one, a running reader goes on; a key that does not belong to it changes nothing."""
    (tmp_path / "next").mkdir()
    certificate, key = make_certificate(tmp_path)
    renewed = make_certificate(tmp_path / "next")
    with local_server(tls_cert=certificate, tls_key=key) as server, server.client() as target:
        upload = target.channel("c").upload(0, b"begun")
        reader = target.channel("c").read(0)
        assert reader.head().status == 200
        first = serial(server)
        certificate.write_bytes(renewed[0].read_bytes())
        reload(server)
        assert serial(server) == first
        assert f"tls_key: {key} does not belong to {certificate}" in caplog.text
        assert server.reload.counts.last_failed
        assert list(server.reload.ailments(time.time())) == ["reload"]
        key.write_bytes(renewed[1].read_bytes())
        reload(server)
        assert not server.reload.counts.last_failed
        assert server.reload.tls is not None
        ends = server.reload.tls.valid[1]
        assert server.reload.ailments(ends - reload_module.SOON_S) == {}
        assert server.reload.ailments(ends - 1)["certificate"].startswith("it expires on ")
        assert server.reload.ailments(ends + 1)["certificate"].startswith("it has expired on ")
        expected = x509.load_pem_x509_certificates(renewed[0].read_bytes())[0].serial_number
        assert serial(server) == expected != first
        upload.end()
        assert reader.rest() == b"begun"
        with server.client(ssl.create_default_context(cafile=certificate)) as following:
            metrics = scraped(following.ask("GET", "/metrics").body)
        begins, ends = validity(certificate.read_bytes())
        assert metrics["tricklecast_tls_not_after_timestamp_seconds"] == ends
        assert metrics["tricklecast_tls_not_before_timestamp_seconds"] == begins
        assert math.isfinite(ends)


# Certificates of clients.


def client(authority: trustme.CA, server: Path, name: str | None = None) -> ssl.SSLContext:
    """A client that trusts a server's certificate, and has one of its own from this authority."""
    context = ssl.create_default_context(cafile=server)
    authority.issue_cert(f"{name or 'x'}.example", common_name=name).configure_cert(context)
    return context


def test_clients_need_a_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that the authority has signed; the log has its name. After a reload, another authority counts."""
    certificate, key = make_certificate(tmp_path)
    former, following = trustme.CA(), trustme.CA()
    file = tmp_path / "clients.pem"
    file.write_bytes(former.cert_pem.bytes())
    with local_server(tls_cert=certificate, tls_key=key, tls_client_ca=file) as server:
        with server.client(client(former, certificate, "camera-1")) as target:
            target.channel("c").publish(0, b"body")
            assert target.ask("GET", "/api/v1/channels").status == 200
        assert server.record(op="publish").client == "camera-1"
        assert server.record(op="api", path="/api/v1/channels").client == "camera-1"
        unnamed = ssl.create_default_context(cafile=certificate)
        for stranger, alert in ((unnamed, "CERTIFICATE_REQUIRED"), (client(following, certificate), "UNKNOWN_CA")):
            with server.client(stranger) as target, pytest.raises((Failure, OSError), match=alert):
                target.ask("GET", f"{target.base}/c/0")
        eventually(
            lambda: [record.reason for record in list(server.records)].count("handshake") == 2,
            what="both handshakes are recorded",
        )
        file.write_bytes(b"nothing")
        reload(server)
        assert f"tls_client_ca: {file} does not contain certificates (PEM)" in caplog.text
        with server.client(client(former, certificate)) as target:
            assert target.ask("GET", f"{target.base}/c/0").body == b"body"
        file.write_bytes(following.cert_pem.bytes())
        reload(server)
        with server.client(client(following, certificate)) as target:
            assert target.ask("GET", f"{target.base}/c/0").body == b"body"
        with server.client(client(former, certificate)) as target, pytest.raises((Failure, OSError)):
            target.ask("GET", f"{target.base}/c/0")


def test_commands_show_a_certificate(tmp_path: Path) -> None:
    """With `--cert` and `--key`, or with both in one file; what cannot be used is wrong usage."""
    certificate, key = make_certificate(tmp_path)
    authority = trustme.CA()
    file, own, both = tmp_path / "clients.pem", tmp_path / "own.key", tmp_path / "own.pem"
    file.write_bytes(authority.cert_pem.bytes())
    issued = authority.issue_cert("camera.example")
    own.write_bytes(issued.private_key_pem.bytes())
    both.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    health_file = tmp_path / "health"
    with local_server(tls_cert=certificate, tls_key=key, tls_client_ca=file) as server:
        health_file.write_text(f"https://127.0.0.1:{server.port}\n")
        url = f"https://127.0.0.1:{server.port}"
        trust = ["--ca-file", str(certificate)]
        runs = [
            CliRunner().invoke(cli, words)
            for words in (
                ["channels", url, *trust, "--cert", str(both), "--json"],
                ["channels", url, *trust, "--cert", str(both), "--key", str(own)],
                ["health", "--health-file", str(health_file), "--cert", str(both)],
                ["health", "--health-file", str(health_file)],
                ["channels", url, *trust, "--cert", str(file)],
                ["channels", url, *trust, "--key", str(own)],
                ["ingest", "rtmp://127.0.0.1:1", "--to", f"{url}/trickle/", *trust, "--key", str(own)],
            )
        ]
        assert [run.exit_code for run in runs] == [0, 0, 0, 1, 2, 2, 2], [run.output for run in runs]
        assert "does it want a certificate of its clients (--cert, --key)?" in str(runs[3].exception)
        assert f"cannot use {file}" in runs[4].output
        assert all("give its certificate, too: --cert" in run.output for run in runs[5:])
