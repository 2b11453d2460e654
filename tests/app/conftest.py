"""A client of the server that a test, or its module, has started, and a channel of its own; NATS; settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.local import LocalServer
from tests.support.nats import NatsServer, nats_server
from tricklecast.app.tools.conformance.target import RemoteChannel, Target


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def target(server: LocalServer) -> Iterator[Target]:
    """A client of that server; it closes its connections and ends its channels after the test."""
    with server.client() as client:
        yield client


@pytest.fixture
def channel(target: Target) -> RemoteChannel:
    """A channel that nobody else uses; it is not created yet."""
    return target.channel()


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A server of NATS for all tests of a module."""
    with nats_server() as server:
        yield server


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's environment reaches the settings."""
    for name in [name for name in os.environ if name.upper().startswith("TRICKLECAST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Where a file of settings may be written."""
    return tmp_path / "tricklecast.toml"
