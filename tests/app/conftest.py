"""A client of the server that a test, or its module, has started, and a channel of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.local import LocalServer
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
