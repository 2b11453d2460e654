"""Listeners besides a TCP port: a Unix socket, or a socket that systemd has opened."""

from __future__ import annotations

import select
import socket
import stat
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from tests.support.forked import forked, python
from tests.support.logs import logged
from tests.support.waiting import WITHIN_S
from tricklecast.app.cli import cli
from tricklecast.app.health import ask
from tricklecast.app.listener import CannotServe
from tricklecast.app.settings import InvalidSettings, Settings, load
from tricklecast.app.sockets import opened


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A server, and the address that it announces."""
    command = forked("serve", "--shutdown-drain-s", "0", *arguments)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def stop(process: subprocess.Popen[str]) -> None:
    """End it in order."""
    with process:
        process.terminate()
    assert process.returncode == 0


def request(path: Path, head: str, body: bytes = b"") -> bytes:
    """Send a request over a Unix socket; returns the whole answer."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WITHIN_S)
        client.connect(str(path))
        length = f"Content-Length: {len(body)}\r\n"
        client.sendall(f"{head}\r\nHost: localhost\r\nConnection: close\r\n{length}\r\n".encode() + body)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_a_server_on_a_unix_socket(tmp_path: Path) -> None:
    """It serves both planes, believes the proxy's X-Forwarded-For, has a URL for checks, and removes its socket."""
    path, log = tmp_path / "a socket", tmp_path / "access.jsonl"
    arguments = ("--unix-socket", str(path), "--access-log", str(log), "--health-file", str(tmp_path / "health"))
    process, address = start(*arguments)
    assert address == f"http+unix://{quote(str(path), safe='')}/trickle"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    posted = request(path, "POST /trickle/c/0 HTTP/1.1\r\nX-Forwarded-For: 192.0.2.7", b"hello")
    assert posted.startswith(b"HTTP/1.1 200")
    assert request(path, "GET /trickle/c/0 HTTP/1.1").endswith(b"\r\n5\r\nhello\r\n0\r\nLp-Trickle-Size: 5\r\n\r\n")
    assert request(path, "GET /api/v1/channels HTTP/1.1").startswith(b"HTTP/1.1 200")
    ask((tmp_path / "health").read_text().strip())
    assert [record["ip"] for record in logged(log, op="publish")] == ["192.0.2.7"]
    assert [record["ip"] for record in logged(log, op="read")] == ["unix"]
    conforms = CliRunner().invoke(cli, ["conformance", address, "--only", "head/starts-at-zero"])
    assert conforms.exit_code == 0, conforms.output
    one = ["-p", "1", "-s", "1", "--for", "100ms", "--segment-every", "50ms", "--segment-bytes", "100B"]
    stressed = CliRunner().invoke(cli, ["stress", address, *one])
    assert stressed.exit_code == 0, stressed.output
    stop(process)
    assert not path.exists()


def test_tls_on_a_unix_socket(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """As on a port."""
    path = tmp_path / "socket"
    process, address = start(
        "--unix-socket", str(path), "--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])
    )
    ask(address.removesuffix("/trickle"))
    stop(process)


def test_a_socket_that_a_killed_server_left_behind_is_replaced(tmp_path: Path) -> None:
    """But neither a file that is no socket, nor one on which a server listens; a later server's stays."""
    path = tmp_path / "socket"
    settings = Settings.model_validate({"unix_socket": path})
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with opened(settings):
        with pytest.raises(CannotServe, match="another server listens on it"), opened(settings):
            pass
        path.unlink()
        path.touch()
    assert path.exists()
    with pytest.raises(CannotServe, match="a file of that name is there, and no socket"), opened(settings):
        pass
    path.unlink()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waits:
        busy.bind(str(path))
        busy.listen(0)
        waits.connect(str(path))  # nobody accepts it, and there is no room for another one
        with pytest.raises(CannotServe, match="another server listens on it"), opened(settings):
            pass
    path.unlink()
    long = Settings.model_validate({"unix_socket": tmp_path / ("x" * 200)})
    with pytest.raises(CannotServe, match="AF_UNIX path too long"), opened(long):
        pass


def test_a_unix_socket_takes_the_place_of_host_and_port(tmp_path: Path) -> None:
    """Both together are a mistake."""
    with pytest.raises(InvalidSettings, match="give the one or the other"):
        load({"unix_socket": str(tmp_path / "socket"), "port": "80"})


@pytest.mark.parametrize(
    ("path", "why"), [("", "the path of a socket"), ("@name", r"abstract socket \(a file: ./@name")]
)
def test_a_unix_socket_has_a_path(path: str, why: str) -> None:
    """An abstract one would be open to every program of the machine."""
    with pytest.raises(InvalidSettings, match=f"--unix-socket: must be .*{why}"):
        load({"unix_socket": path})


ACTIVATED = """
import os, sys
os.dup2(0, 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
sys.argv = ["tricklecast", "serve", "--shutdown-drain-s", "0"]
from tricklecast.__main__ import main
main()
"""


def activated(listening: socket.socket) -> subprocess.Popen[str]:
    """A server that gets its socket as from systemd."""
    command = [python(), "-c", ACTIVATED]
    return subprocess.Popen(
        command, stdin=listening.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_restart_behind_systemds_socket_has_no_closed_port() -> None:
    """A connection that comes between two servers waits, and the second server answers it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with activated(listening) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == f"tricklecast is listening on http://127.0.0.1:{port}/trickle\n"
            ask(f"http://127.0.0.1:{port}")
            first.terminate()
        assert first.returncode == 0
        with socket.create_connection(("127.0.0.1", port), WITHIN_S) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            with activated(listening) as second:
                assert client.recv(12) == b"HTTP/1.1 200"
                second.terminate()
            assert second.returncode == 0


def test_systemds_socket_has_to_be_one_stream(tmp_path: Path) -> None:
    """Anything else is one clear line."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(tmp_path / "socket"))
        with activated(datagrams) as process:
            _, told = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, told.count("\n")) == (1, 1)
    assert "systemd's socket is no stream of TCP or of a Unix socket (ListenStream=)" in told


@pytest.mark.skipif(not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="the kernel keeps no silent connection")
def test_a_silent_connection_is_the_kernels_where_several_workers_accept() -> None:
    """No worker that dies takes it along; one process accepts it at once."""
    for workers in (1, 2):
        with opened(Settings.model_validate({"port": 0}), workers) as found, socket.socket() as client:
            poll = select.poll()
            for one in found:
                poll.register(one.main, select.POLLIN)
            client.connect(found[0].main.getsockname())
            assert len(poll.poll(WITHIN_S * 1000 if workers == 1 else 0)) == (workers == 1)
            client.send(b"G")
            assert len(poll.poll(WITHIN_S * 1000)) == 1
