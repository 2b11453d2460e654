"""What keeps a server from starting is one clear line and exit code 1."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Serve
from tests.support.server import serve

TIMEOUT_S = 60


def failing(*arguments: str, **environment: str) -> str:
    """Run a server that cannot start; returns its complaint, without the name of the command."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    result = subprocess.run(
        [sys.executable, "-m", "app", "serve", *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env={**inherited, **environment},
    )  # fmt: skip
    assert result.returncode == 1, result
    assert result.stdout == ""
    assert result.stderr.startswith("tricklecast: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("tricklecast: ").rstrip("\n")


def test_a_port_in_use() -> None:
    """The address, the reason and the likely cause."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = failing("--port", str(port))
    assert line == f"cannot listen on 127.0.0.1:{port}: Address already in use; is another server running?"


def test_an_address_that_is_not_ours() -> None:
    """An address of no interface here."""
    assert failing("--host", "192.0.2.1", "--port", "0").startswith("cannot listen on 192.0.2.1:0: ")


@pytest.mark.parametrize("bad", ["missing", "nonsense"])
def test_bad_tls_files(tmp_path: Path, bad: str) -> None:
    """A certificate that is missing or none."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if bad == "nonsense":
        certificate.write_text("nonsense")
        key.write_text("nonsense")
    line = failing("--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key))
    assert line.startswith("cannot use TLS")
    assert str(certificate) in line


def test_half_of_tls(tmp_path: Path) -> None:
    """A certificate without its key."""
    assert failing("--tls-cert", str(tmp_path / "cert.pem")) == "tls_cert and tls_key go together"


def test_an_unwritable_log(tmp_path: Path) -> None:
    """A log that cannot be written stops the server before it says that it listens."""
    (tmp_path / "file").touch()
    line = failing("--port", "0", "--access-log", str(tmp_path / "file" / "access.jsonl"))
    assert line.startswith(f"cannot write the access log {tmp_path}/file/access.jsonl: ")


def test_a_full_disk() -> None:
    """A log that cannot be written any more stops the server: running on would hide what it is there for."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no device that is always full here")
    result = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--port", "0", "--access-log", str(full)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert result.stderr == "tricklecast: cannot write the access log /dev/full: No space left on device\n"
    assert result.returncode == 1


def test_a_bad_environment() -> None:
    """The environment is blamed where it is to blame."""
    line = failing(TRICKLECAST_PORT="x")
    assert line == "port: Input should be a valid integer, unable to parse string as an integer (environment)"


@pytest.mark.parametrize(("base_path", "printed"), [("/", ""), ("/a/b", "/a/b")])
def test_the_address_is_printed_when_it_listens(base_path: str, printed: str) -> None:
    """`--port 0` picks a port; what is printed can be used at once."""
    with serve("--base-path", base_path) as server, server.client() as target:
        assert server.base == f"http://127.0.0.1:{server.port}{printed}"
        assert target.ask("POST", f"{printed}/c/0", body=b"x").status == 200


def test_ipv6(quiet_serve: Serve) -> None:
    """An IPv6 address is printed in brackets."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with quiet_serve("--host", "::1") as server:
        assert server.url == f"http://[::1]:{server.port}"


def test_no_autocreate_and_no_changefeed(quiet_serve: Serve) -> None:
    """Both can be switched off."""
    with quiet_serve("--no-autocreate", "--no-changefeed") as server, server.client() as target:
        assert target.ask("POST", "/trickle/c/0", body=b"x").status == 404
        assert target.ask("POST", "/trickle/c", body=b"").status == 404
        assert target.ask("GET", "/trickle/_changes/0").status == 404
        created = target.ask("POST", "/api/v1/channels", {"Content-Type": "application/json"}, b'{"name": "c"}')
        assert created.status == 201
        assert target.ask("POST", "/trickle/c/0", body=b"x").status == 200
