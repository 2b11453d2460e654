"""Fixtures of the clients' tests: a server and a certificate. The conftest.py of a folder imports what it needs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.forked import command_of, python
from tests.support.server import RunningServer, serve
from tricklecast.testing import TestServer


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A real server; each test uses channels of its own."""
    with serve() as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``cert.pem`` and ``key.pem`` for 127.0.0.1, which nobody but a test trusts."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder)
    return folder


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are started with ``sys.executable`` are forks of one that has imported what they import."""
    monkeypatch.setattr(sys, "executable", python())


@pytest.fixture
def forked_servers() -> Iterator[None]:
    """Servers of `tricklecast.testing` are forks of one that has imported all."""
    with servers_are_forks():
        yield


@contextmanager
def servers_are_forks() -> Iterator[None]:
    """The same, for a block."""

    def kill(server: TestServer) -> None:
        """When it returns, the fork has ended, and not only its relay: the port is free."""
        if server._process is not None:
            os.kill(command_of(server._process.pid), signal.SIGKILL)
            server._end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python())
        patch.setattr(TestServer, "kill", kill)
        yield
