"""A control plane with an address of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.local import LocalServer, local_server
from tricklecast.app.tools.conformance.target import Address, Target


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server(control_port=0) as running:
        yield running


def control(server: LocalServer) -> Target:
    return Target(Address("127.0.0.1", server.control_port, server.settings.base_path))


def test_the_control_plane_is_there_and_nowhere_else(server: LocalServer) -> None:
    """The control port serves the whole control plane and no channel."""
    with server.client() as data:
        assert server.control_port != server.port
        data.channel("seen").publish(0, b"body")
        there = control(server)
        assert [channel["name"] for channel in json.loads(there.ask("GET", "/api/v1/channels").body)["channels"]] == [
            "_changes", "seen",
        ]  # fmt: skip
        for path in ("/healthz", "/readyz", "/metrics", "/docs"):
            assert there.ask("GET", path).status == 200
        for path in ("/healthz", "/readyz", "/metrics", "/docs", "/api/v1/channels", "/", "/other"):
            response = data.ask("GET", path)
            assert response.status == 404
            assert response.body.startswith(b"Not found")
        assert there.ask("GET", "/trickle/seen/0").status == 404
        assert there.ask("POST", "/trickle/new/0", {}, b"body").status == 404
        assert data.channel("seen").get(0).body == b"body"
        there.cleanup()


def test_requests_there_are_recorded(server: LocalServer) -> None:
    """The access log has requests of the control port, too."""
    there = control(server)
    there.ask("GET", "/openapi.json")
    there.cleanup()
    assert server.record(path="/openapi.json").op == "api"


def test_connections_there_are_kept_and_limited_as_others(server: LocalServer) -> None:
    """Several requests on one connection; a head that is too long is refused."""
    there = control(server)
    connection = there.open()
    for _ in range(3):
        connection.request("GET", "/readyz")
        assert connection.response().status == 200
    assert there.ask("GET", "/readyz", {"X": "x" * (65 << 10)}).status == 431
    there.cleanup()
