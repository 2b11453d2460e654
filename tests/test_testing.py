"""The server for users' tests: a real process that can be stopped, killed and started again."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.fixtures import forked_servers
from tests.support.waiting import WITHIN_S, eventually
from tricklecast import testing
from tricklecast.testing import ServerFailed, TestServer

__all__ = ["forked_servers"]


@pytest.fixture(scope="module")
def running() -> Iterator[TestServer]:
    """A server for the tests that leave it running."""
    with testing.server(window_segments=3) as server:
        yield server


def test_it_serves_when_the_block_is_entered(running: TestServer) -> None:
    """The first request is answered, without waiting or retries."""
    url = running.url("cam")
    assert httpx.post(f"{url}/0", content=b"hello").status_code == 200
    assert httpx.get(f"{url}/0").content == b"hello"
    assert running.base == f"http://127.0.0.1:{running.port}/trickle"


def test_settings_are_the_servers(running: TestServer) -> None:
    """Settings are written with underscores."""
    for seq in range(5):
        httpx.post(f"{running.url('windowed')}/{seq}", content=b"x")
    assert httpx.get(f"{running.url('windowed')}/0").headers["Lp-Trickle-Earliest"] == "2"


def test_names_of_channels_are_encoded(running: TestServer) -> None:
    """A name may contain characters that a path may not."""
    assert running.url("a b?").endswith("/trickle/a%20b%3F")


def test_its_access_records_can_be_read(running: TestServer) -> None:
    """They are waited for by number, and picked by their fields."""
    httpx.post(f"{running.url('logged')}/0", content=b"four")
    httpx.get(f"{running.url('logged')}/0")
    (publish,) = running.records(1, channel="logged", op="publish")
    (read,) = running.records(1, channel="logged", op="read")
    assert (publish.bytes_in, read.bytes_out, read.status) == (4, 4, 200)
    with pytest.raises(ServerFailed, match="1 access records with"):
        running.records(2, within_s=0.1, channel="logged", op="read")


@pytest.mark.usefixtures("forked_servers")
def test_it_can_be_stopped_killed_and_started_again() -> None:
    """It keeps its port and its records, but no channels."""
    with testing.server() as server:
        base = server.base
        url = server.url("cam")
        httpx.post(f"{url}/0", content=b"x")
        server.records(1, channel="cam")
        server.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/next")
        server.restart()
        assert server.base == base
        assert httpx.get(f"{url}/next").status_code == 404
        assert [record.status for record in server.records(2, channel="cam")] == [200, 404]
        server.restart()
        assert server.stop() == 0
        assert server.stop() == 0


def test_a_program_may_have_many_open_files() -> None:
    """Thousands of clients in one test, for example."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            files.enter_context(open(os.devnull, "rb"))
        with testing.server() as running:
            assert httpx.get(f"{running.base}/none/next").status_code == 404


def test_a_server_that_does_not_start_says_why() -> None:
    """The error contains the server's own message."""
    with pytest.raises(ServerFailed, match=r"(?s)did not start.*colour"), testing.server(colour="red"):
        raise AssertionError("it started")


def test_a_server_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """stop() raises an error instead of hanging."""
    with testing.server() as server:
        assert server._process is not None
        server._process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(testing, "STOP_S", 0.1)
        with pytest.raises(ServerFailed, match="did not stop"):
            server.stop()


def test_no_server_is_left_when_the_test_run_is_killed(tmp_path: Path) -> None:
    """The server ends without a signal."""
    program = (
        "import os, signal, tricklecast.testing as t\n"
        "with t.server() as s:\n    print(s.port, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=WITHIN_S)
    assert run.returncode == -signal.SIGKILL

    def is_gone() -> bool:
        try:
            socket.create_connection(("127.0.0.1", int(run.stdout))).close()
        except OSError:
            return True
        return False

    eventually(is_gone)


def test_the_environment_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Variables and a foreign package of the same name are ignored; settings may have any type."""
    monkeypatch.setenv("TRICKLECAST_BASE_PATH", "/elsewhere")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        with testing.server(autocreate=False, base_path="/live", tls_cert=None) as server:
            assert server.base.endswith("/live")
            assert httpx.post(f"{server.url('cam')}/0", content=b"x").status_code == 404
    finally:
        os.chdir(before)
