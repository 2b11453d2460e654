"""One server with default settings for each module of attacks; after each of them it must be as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.app.hostile.support import Watched, watched
from tests.support.local import LocalServer


@pytest.fixture(scope="module")
def attacked() -> Iterator[Watched]:
    """A server with default settings and a control channel.

    But for one: a client that has closed its socket is not waited for as long as one that has only closed its half.
    """
    with watched() as server:
        server.server.plane.timeouts.half_closed_s = 0.1
        yield server


@pytest.fixture
def server(attacked: Watched) -> Iterator[LocalServer]:
    """That server; after the test it must be unharmed."""
    yield attacked.server
    attacked.check()
