"""One server with default settings for each module, and a client of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.conformance.target import Channel, Target
from tests.support.local import LocalServer, local_server


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with default settings."""
    with local_server() as running:
        yield running


@pytest.fixture
def target(server: LocalServer) -> Iterator[Target]:
    """A client of that server; it closes its connections and ends its channels after the test."""
    with server.client() as client:
        yield client


@pytest.fixture
def channel(target: Target) -> Channel:
    """A channel as an orchestrator hands it out: created, nobody has used it yet."""
    channel = target.channel()
    channel.create("video/mp2t")
    return channel
