"""The servers that the suite is run against: ours, or the one of ``--url``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.support.local import local_server
from tests.support.server import serve
from tricklecast.app.tools.conformance.profiles import PROFILES
from tricklecast.app.tools.conformance.runner import Runner
from tricklecast.app.tools.conformance.target import Address
from tricklecast.trickle import wire

RunnerFor = Callable[[str], Runner]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the suite be pointed at any server."""
    group = parser.getgroup("conformance")
    group.addoption("--url", help="judge the server at this base URL instead of our own")
    group.addoption("--profile", default="default", help="what that server was started with")


def address_of(url: str) -> Address:
    """The address behind a base URL of plain HTTP."""
    parts = urlsplit(url)
    return Address(parts.hostname or "", parts.port or 80, parts.path.rstrip("/"))


@pytest.fixture(scope="session")
def external(pytestconfig: pytest.Config) -> Runner | None:
    """The server that the user named, if any."""
    url = pytestconfig.getoption("--url", None) or os.environ.get("TRICKLECAST_CONFORMANCE_URL")
    if not url:
        return None
    profile = pytestconfig.getoption("--profile", None) or "default"
    parts = urlsplit(url)
    return Runner(address_of(url if parts.path else f"{url}{wire.DEFAULT_BASE_PATH}"), profile)


@pytest.fixture(scope="package")
def runner_for(external: Runner | None) -> Iterator[RunnerFor]:
    """A runner for a profile; our server of that profile is started when it is first needed.

    The one with default settings is a process, as in production; to start the others in processes of their own would
    take most of the time. They end with this package: tests that fork their process follow, and an event loop of uvloop
    whose process has forked meanwhile never comes to its end.
    """
    with ExitStack() as servers:
        running: dict[str, Runner] = {}

        def started(profile: str) -> Address:
            if profile == "default":
                return address_of(servers.enter_context(serve()).base)
            server = servers.enter_context(local_server(**PROFILES[profile].options))
            return Address("127.0.0.1", server.port, server.settings.base_path)

        def runner(profile: str) -> Runner:
            if external:
                return external
            if profile not in running:
                running[profile] = Runner(started(profile), profile)
            return running[profile]

        yield runner
