"""Requests that two parties could read differently: the owner sees none that the edge has not sent.

The inputs are those of one server (`tests/app/hostile`, `tests/fuzz`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.app.cluster.nodes import Nodes, two_nodes
from tests.app.hostile.support import CONTROL, CONTROL_BODIES, exchange, picture, statuses
from tests.app.hostile.test_framing import CHUNKED_BODY, CHUNKS, HEADS, LENGTHS
from tests.fuzz.own import CORPUS
from tests.fuzz.requests import Requests
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.tools.conformance.target import RemoteChannel

CONNECTIONS = 150
SETTINGS: dict[str, Any] = {"idle_timeout_s": 1e6, "window_age_s": 1e6, "storm_guard": "off", "half_closed_s": 0.5}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes, and a channel at the owner that nobody may change."""
    with two_nodes(**SETTINGS) as running:
        RemoteChannel(running.edge.target(), CONTROL).publish(0, *CONTROL_BODIES)
        before = running.owner.inside(lambda: picture(running.owner.plane))
        yield running
        assert running.owner.inside(lambda: picture(running.owner.plane)) == before
        for server in (running.edge, running.owner):
            assert not server.plane.faults
        assert running.at_owner.peers.forged == 0


HIDDEN = b"POST /trickle/hidden HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


def test_nothing_hides_in_a_request(nodes: Nodes) -> None:
    """A request without a clear end, head or chunk has one answer; what stands behind it never reaches the owner."""
    bodies = [
        b"POST /trickle/framing/0 HTTP/1.1\r\nHost: x\r\n%b\r\n" % fields + CHUNKED_BODY
        for fields, _ in LENGTHS.values()
    ]
    heads = [head % b"/trickle/control/0" for head, _ in HEADS.values()]
    chunks = [
        b"POST /trickle/framing/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk
        for chunk in CHUNKS.values()
        if chunk != b"4\r\ndata\r\n"
    ]
    for data in (*bodies, *heads, *chunks):
        got = statuses(exchange(nodes.edge, data + HIDDEN, half_close=False))
        assert len(got) <= 1, data
    assert "hidden" not in nodes.owner.plane.registry.channels


@pytest.mark.parametrize("seed", [0, 5, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 10))])
def test_two_nodes_read_requests_as_one_server_does(nodes: Nodes, seed: int) -> None:
    """Good, strange and damaged ones, several on a connection: as many answers, with the same statuses.

    No owner that reads something else than the edge has sent could answer so.
    """
    requests = Requests(random.Random(seed))
    with local_server(**SETTINGS) as alone:
        RemoteChannel(alone.target(), CONTROL).publish(0, *CONTROL_BODIES)
        for server in (alone, nodes.edge):
            eventually(partial(is_idle, server), what="nobody is connected")
        inputs = [path.read_bytes() for path in sorted((CORPUS / "server").iterdir())] if seed == 0 else []
        while len(inputs) < CONNECTIONS:
            good = [requests.valid() for _ in range(requests._rng.randrange(4))]
            data = b"".join([*good, requests.any()])
            if b"/api/" not in data:  # the control plane is each node's own
                inputs.append(data)
        for data in inputs:
            for server in (alone, nodes.owner):
                fresh(server)
            at_edge, at_one = [statuses(exchange(server, data)) for server in (nodes.edge, alone)]
            assert is_alike(at_edge, at_one), (seed, data, at_edge, at_one)


def is_alike(at_edge: list[int], at_one: list[int]) -> bool:
    """Whether two nodes answered as one server, which answers the last request sooner.

    The edge sees what is wrong with a body before the owner has refused its head (400); and who closes its half in the
    middle of a body, or of a request, gets no answer that was not out by then.
    """
    return at_edge in (at_one, at_one[:-1], [*at_one[:-1], 400])


def is_idle(server: LocalServer) -> bool:
    """Whether nobody is connected."""
    return not server.plane.connections


def fresh(server: LocalServer) -> None:
    """Forget all channels but one, so that earlier requests, which may have been cut short, play no part."""

    def drop() -> None:
        registry = server.plane.registry
        for name, channel in list(registry.channels.items()):
            if isinstance(channel, OwnedChannel) and name != CONTROL and not name.startswith("_"):
                registry.drop(channel)

    server.inside(drop)
