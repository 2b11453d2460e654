"""Clients of the servers of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.app.mirror.pair import CLIENTS


@pytest.fixture(autouse=True)
def _clients() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.popitem()[1].close()
