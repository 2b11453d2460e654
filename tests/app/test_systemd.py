"""How a service and systemd talk: sockets that are passed on, readiness, the watchdog."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import WITHIN_S
from tricklecast.app.systemd import Watchdog, notify, sockets


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """systemd's end of the socket that a service notifies."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(WITHIN_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_nothing_is_told_or_taken_without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable, no effect; variables that were meant for another process have none either."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"):
        monkeypatch.delenv(name, raising=False)
    notify("READY=1")
    Watchdog().beat()
    assert sockets() == []
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", "1")
    assert sockets() == []
    assert "LISTEN_FDS" not in os.environ


def test_a_state_is_told(told: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one datagram, to a path or an abstract name."""
    notify("READY=1")
    assert told.recv(100) == b"READY=1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0tricklecast-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@tricklecast-test-{os.getpid()}")
        notify("STOPPING=1")
        assert abstract.recv(100, socket.MSG_DONTWAIT) == b"STOPPING=1"


def test_a_systemd_that_does_not_listen_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The service goes on."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify("READY=1")
    assert caplog.messages == ["cannot tell systemd READY=1: No such file or directory"]


def test_the_watchdog_is_told_twice_a_period(told: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the loop says that it turns."""
    now = 100.0
    monkeypatch.setattr("tricklecast.app.systemd.time.monotonic", lambda: now)
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    watchdog = Watchdog()
    beats = 0
    told.setblocking(False)
    for _ in range(40):  # ten seconds
        watchdog.beat()
        now += 0.25
        try:
            beats += told.recv(100) == b"WATCHDOG=1"
        except BlockingIOError:
            continue
    assert beats == 5


def test_sockets_are_taken_once_and_not_inherited(tmp_path: Path) -> None:
    """They are the descriptors from 3 on; a program that the service starts has neither them nor the variables."""
    code = """
import os, socket, sys
listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)][2:]
for number, one in enumerate(listening):
    os.dup2(one.fileno(), 3 + number)
    os.set_inheritable(3 + number, True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b"}
os.execv(sys.executable, [sys.executable, "-c", '''
import os
from tricklecast.app.systemd import sockets
found = sockets()
assert [one.fileno() for one in found] == [3, 4], found
assert all(one.getsockname()[0] == "127.0.0.1" for one in found)
assert not any(os.get_inheritable(one.fileno()) for one in found)
assert not any(name.startswith("LISTEN_") for name in os.environ)
assert sockets() == []
'''])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WITHIN_S)


def test_a_process_without_a_free_descriptor_goes_on(
    told: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The watchdog's next beat may find one."""
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    watchdog = Watchdog()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(told.fileno())
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        watchdog.beat()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caplog.messages == ["cannot tell systemd WATCHDOG=1: Too many open files"]
