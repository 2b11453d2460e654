"""Fixtures of the clients' tests: a server and a certificate. The conftest.py of a folder imports what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.server import RunningServer, serve


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
