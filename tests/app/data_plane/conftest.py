"""One server with default settings for each module, and a client of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.local import LocalServer, local_server


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with default settings."""
    with local_server() as running:
        yield running
