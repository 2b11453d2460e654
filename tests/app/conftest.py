"""A client of the server that a test, or its module, has started, and a channel of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.conformance.target import Channel, Target
from tests.support.local import LocalServer


@pytest.fixture
def target(server: LocalServer) -> Iterator[Target]:
    """A client of that server; it closes its connections and ends its channels after the test."""
    with server.client() as client:
        yield client


@pytest.fixture
def channel(target: Target) -> Channel:
    """A channel that nobody else uses; it is not created yet."""
    return target.channel()
