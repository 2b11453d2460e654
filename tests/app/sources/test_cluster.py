"""A source that all nodes of a cluster have: one of them runs it, and another one when that one is gone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.app.cluster.test_nodes_on_nats import NatsNode, node
from tests.support.nats import NatsServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.sources import service

TEST = {"url": "testsrc:size=160x120,rate=10"}
DEMAND = {**TEST, "when": "demand", "stop_after_s": 1}


def url(one: NatsNode) -> str:
    """Of a node."""
    return f"http://127.0.0.1:{one.server.port}"


def states(*nodes: NatsNode) -> list[str]:
    """What the source does at each node."""

    def state(one: NatsNode) -> str:
        rows = httpx.get(f"{url(one)}/api/v1/sources", timeout=WITHIN_S).json()["sources"]
        return str(rows[0]["state"]) if rows else "elsewhere"

    return [state(one) for one in nodes]


def test_one_node_runs_it_and_another_one_when_that_stops(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that comes first. Where another one has the channel, the source is not listed."""
    monkeypatch.setattr(service, "LOOK_S", 0.05)
    settings: dict[str, Any] = {"cluster_name": "always"}
    with node("b", nats, **settings) as b:
        with node("a", nats, source={"cam": TEST}, **settings) as a:
            eventually(lambda: states(a) == ["running"])
            eventually(lambda: b.directory.place("cam"))
            changed = b.server.settings.model_copy(update={"source": a.server.settings.source})
            b.server.next_settings = changed
            b.server.inside(b.server.reload)
            assert states(a, b) == ["running", "elsewhere"]
            with httpx.stream("GET", f"{url(b)}/trickle/cam/-2", timeout=WITHIN_S) as response:
                assert next(response.iter_bytes())[:1] == b"G"
        eventually(lambda: states(b) == ["running"], what="b has the channel, and runs its source")
        assert b.server.plane.faults == 0


def test_on_demand_the_node_of_the_first_reader_runs_it(nats: NatsServer) -> None:
    """Readers at other nodes read from there, and it stops when all of them have left. The next one, wherever it comes,
    has it there again: the channel is still known to be of that node.
    """
    settings: dict[str, Any] = {"cluster_name": "demand", "source": {"cam": DEMAND}, "channel_drain_s": 1}
    with node("a", nats, **settings) as a, node("b", nats, **settings) as b:
        with httpx.stream("GET", f"{url(b)}/trickle/cam/stream", timeout=WITHIN_S) as first:
            assert next(first.iter_bytes())[:1] == b"G"
            eventually(lambda: a.directory.place("cam"))
            with httpx.stream("GET", f"{url(a)}/trickle/cam/stream", timeout=WITHIN_S) as second:
                assert next(second.iter_bytes())[:1] == b"G"
                assert states(a, b) == ["elsewhere", "running"]
                first.close()
                channel = b.server.plane.registry.channels["cam"]
                eventually(lambda: not channel.readers, what="the first reader has left")
                left_at, asked_at = b.server.plane.clock(), b.server.node.sources._asked_at
                eventually(lambda: asked_at["cam"] > left_at, what="the second one counts")
                assert states(a, b) == ["elsewhere", "running"]
        eventually(lambda: states(a, b) == ["elsewhere", "waiting"])
        with httpx.stream("GET", f"{url(a)}/trickle/cam/stream", timeout=WITHIN_S) as third:
            assert next(third.iter_bytes())[:1] == b"G"
            assert states(a, b) == ["elsewhere", "running"]


def test_when_its_node_dies_another_one_runs_it(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the lease of that node: nobody has to ask for the channel."""
    monkeypatch.setattr(service, "LOOK_S", 0.05)
    settings: dict[str, Any] = {"cluster_name": "died", "source": {"cam": TEST}}
    with node("a", nats, **settings) as a:
        eventually(lambda: states(a) == ["running"])
        with node("b", nats, **settings) as b:
            eventually(lambda: states(a, b) == ["running", "elsewhere"])
            a.run(a.die())
            eventually(lambda: states(b) == ["running"], what="b runs it")
            assert b.directory.owns("cam")
            assert b.server.plane.faults == 0
