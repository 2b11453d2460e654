"""Answers of the control plane that a client has asked for and does not read."""

from __future__ import annotations

import logging

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually

CHANNELS = 2_000
LISTS = 8
"""Each is 0.7 MB: more than the kernel holds."""


def break_stalled(server: LocalServer) -> None:
    """What happens to connections whose peer does not read, when their time is over."""
    for connection in list(server.plane.slow_peers.stalled):
        connection.abort()


def fill(server: LocalServer) -> None:
    """Many channels, so that a list of them is long."""
    registry, clock = server.plane.registry, server.plane.clock
    server.inside(lambda: [registry.create(f"channel-{n}", "", clock()) for n in range(CHANNELS)])


@pytest.mark.parametrize("by_client", [True, False])
def test_a_client_that_is_cut_off_while_it_pipelines(by_client: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The answer under way is given up with its connection, those behind it are never begun, and nothing fails."""
    with local_server() as server, server.client() as target, caplog.at_level(logging.DEBUG):
        fill(server)
        connection = target.open()
        connection.send(connection.render("GET", "/api/v1/channels") * LISTS)
        eventually(lambda: server.plane.slow_peers.stalled, what="the client is sent more than it takes")
        if by_client:
            connection.abort()
        else:
            server.inside(lambda: break_stalled(server))
        eventually(lambda: not server.plane.connections)
        eventually(lambda: [record for record in server.records if record.op == "api"], what="its record")
    assert len(server.records) < LISTS
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
