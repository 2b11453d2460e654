"""What keeps a server from starting is one clear line and exit code 1."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Serve
from tests.support.certificates import make_certificate
from tests.support.forked import forked
from tests.support.server import serve
from tricklecast.app.server import serve as run
from tricklecast.app.settings import Settings
from tricklecast.trickle.errors import TrickleError

TIMEOUT_S = 120


def failing(*arguments: str, **environment: str) -> str:
    """Run a server that cannot start; returns its complaint, without the name of the command."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    result = subprocess.run(
        forked("serve", *arguments),
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env={**inherited, **environment},
    )  # fmt: skip
    assert result.returncode == 1, result
    assert result.stdout == ""
    assert result.stderr.startswith("tricklecast: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("tricklecast: ").rstrip("\n")


def refusal(**chosen: object) -> str:
    """What a server with these settings says that cannot start, in this process."""
    settings = Settings.model_validate(chosen)
    with pytest.raises(TrickleError) as caught:
        run(settings, lambda address: pytest.fail(f"it listens on {address}"))
    return str(caught.value)


def test_a_port_in_use() -> None:
    """The address, the reason, the likely cause and what to change, whichever of the two ports it is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lines = failing("--port", str(port)), refusal(port=0, control_port=port)
    said = f"cannot listen on 127.0.0.1:{port}: Address already in use; is another server running? "
    assert lines[0] == f"{said}choose another with --port (TRICKLECAST_PORT)"
    assert lines[1] == f"{said}choose another with --control-port (TRICKLECAST_CONTROL_PORT)"


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours(host: str) -> None:
    """An address of no interface here, or none at all: it is the host that is wrong."""
    line = refusal(host=host, port=0)
    assert line.startswith(f"cannot listen on {host}:0: ")
    assert line.endswith("; choose another with --host (TRICKLECAST_HOST)")


def test_a_misspelt_variable_is_told_and_no_error() -> None:
    """One line, without its value; the command goes on."""
    environment = {**os.environ, "TRICKLECAST_MAX_READER": "5 secrets"}
    result = subprocess.run(
        forked("serve", "--show-config"),
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=environment,
    )  # fmt: skip
    assert "MAX_READER (did you mean TRICKLECAST_MAX_READERS?)" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "secrets" not in result.stderr + result.stdout


WRONG_FILES = {
    "jwt_secret_file": ("shorter than 32", "cannot read", "(openssl rand -hex 32)"),
    "jwt_key_file": ("no key", "cannot read", "does not contain a public key (PEM)"),
    "jwks_file": ("no keys", "cannot read", "is not a JSON Web Key Set"),
    "control_token_file": ("short", "cannot read", "(openssl rand -hex 16)"),
    "webhook_secret_file": ("short", "cannot read", "(openssl rand -hex 32)"),
    "tls_cert": ("nonsense", "cannot read", "does not contain a certificate (PEM)"),
    "tls_key": ("nonsense", "cannot read", "does not contain a private key (PEM)"),
}
"""What a file holds that is no good, and what is said of one that is missing, and of this one."""


def wrong_file(name: str, file: Path, folder: Path) -> str:
    """What a server says that is given this file."""
    more: dict[str, Path | str] = {}
    if name.startswith("tls"):
        certificate, key = make_certificate(folder)
        more = {"tls_cert": certificate, "tls_key": key}
    elif name == "webhook_secret_file":
        token = folder / "token"
        token.write_text("t" * 16)
        more = {"webhook_url": "http://127.0.0.1:9/", "control_token_file": token}
    return refusal(**{"port": 0, **more, name: file})


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_that_cannot_be_used(name: str, tmp_path: Path) -> None:
    """Missing, a folder, or something else in it: one line with the setting, the file and what is wrong."""
    content, unreadable, unusable = WRONG_FILES[name]
    file = tmp_path / "file"
    missing = wrong_file(name, file, tmp_path)
    assert missing == f"{name}: {unreadable} {file}: No such file or directory"
    assert wrong_file(name, tmp_path, tmp_path) == f"{name}: {unreadable} {tmp_path}: Is a directory"
    file.write_text(content)
    said = wrong_file(name, file, tmp_path)
    assert said.startswith(f"{name}: {file} ")
    assert said.endswith(unusable)
    assert content not in said.replace(str(file), "")


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    """It is said which of the two settings is wrong."""
    other = tmp_path / "other"
    other.mkdir()
    _, key = make_certificate(other)
    assert wrong_file("tls_key", key, tmp_path) == f"tls_key: {key} does not belong to {tmp_path / 'cert.pem'}"


def test_an_encrypted_key_is_refused(tmp_path: Path) -> None:
    """Nobody is asked for a password."""
    key = tmp_path / "encrypted.pem"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    assert "is encrypted" in wrong_file("tls_key", key, tmp_path)


def test_a_wrong_file_is_one_line_and_the_code_of_other_errors(tmp_path: Path) -> None:
    """As the command says it."""
    file = tmp_path / "none"
    line = failing("--port", "0", "--control-token-file", str(file))
    assert line == f"control_token_file: cannot read {file}: No such file or directory"


def test_half_of_tls(tmp_path: Path) -> None:
    """A certificate without its key."""
    assert failing("--tls-cert", str(tmp_path / "cert.pem")) == "tls_cert and tls_key go together: tls_key is missing"


def test_an_unwritable_log(tmp_path: Path) -> None:
    """A log that cannot be written stops the server before it says that it listens."""
    (tmp_path / "file").touch()
    line = refusal(port=0, access_log=tmp_path / "file" / "access.jsonl")
    assert line.startswith(f"cannot write the access log {tmp_path}/file/access.jsonl (--access-log): ")


def test_a_full_disk() -> None:
    """A log that never could be written stops the server: its operator believes that there is one."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no device that is always full here")
    result = subprocess.run(
        forked("serve", "--port", "0", "--access-log", full),
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    text = "cannot write the access log /dev/full (--access-log): No space left on device"
    assert result.stderr == f"tricklecast: {text}\n"
    assert result.returncode == 1


def test_a_bad_environment() -> None:
    """The environment is blamed where it is to blame."""
    line = failing(TRICKLECAST_PORT="x")
    assert line == "TRICKLECAST_PORT: must be a whole number"


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
