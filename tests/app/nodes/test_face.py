"""One face: two nodes and a real directory, with the control plane of each showing and changing both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.app.cluster.test_nodes_on_nats import NatsNode, film, node
from tests.support.nats import NatsServer, nats_server
from tests.support.waiting import eventually
from tricklecast.app.tools.conformance.connection import Response


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A server for all tests here."""
    with nats_server() as server:
        yield server


def ask(one: NatsNode, method: str, path: str, body: Any = None) -> tuple[Response, Any]:
    """Ask its control plane."""
    sent = None if body is None else orjson.dumps(body)
    response = one.target.ask(method, path, {"Content-Type": "application/json"}, sent)
    return response, orjson.loads(response.body)


def names(one: NatsNode) -> list[tuple[str, str]]:
    """The channels in its list, with their nodes."""
    _, listed = ask(one, "GET", "/api/v1/channels")
    return [(each["name"], each["node"]) for each in listed["channels"] if each["name"] != "_changes"]


def test_each_node_lists_and_changes_all_channels(nats: NatsServer) -> None:
    """A request goes to the node of its channel, with the client's address, and is in the logs of both nodes."""
    with node("a", nats) as a, node("b", nats) as b:
        film(a).publish(0, b"one")
        eventually(lambda: b.directory.place("film"))
        film(b).has(0, b"one")
        b.target.channel("other").publish(0, b"two")
        eventually(lambda: a.directory.place("other"))
        assert names(a) == names(b) == [("film", "a"), ("other", "b")]
        response, listed = ask(b, "GET", "/api/v1/channels")
        assert (listed["unreachable"], response.get("lp-trickle-degraded")) == ([], None)
        _, shown = ask(b, "GET", "/api/v1/channels/film")
        assert (shown["node"], shown["bytes_in"]) == ("a", 3)
        b.server.record(op="api", path="/api/v1/channels/film", to="a", status=200)
        second = a.server.record(op="api", path="/api/v1/channels/film", via="b")
        assert (second.ip, second.status) == ("127.0.0.1", 200)
        _, segments = ask(b, "GET", "/api/v1/channels/film/segments?from=0&limit=1")
        assert [each["seq"] for each in segments["segments"]] == [0]
        assert ask(b, "GET", "/api/v1/channels/film/segments?limit=x")[0].status == 422
        assert ask(b, "PUT", "/api/v1/channels/film")[0].status == 405

        # Made where the first client asks, unless it is there.
        new = {"name": "new", "content_type": "video/mp2t"}
        response, made = ask(b, "POST", "/api/v1/channels", new)
        assert (response.status, made["node"]) == (201, "b")
        eventually(lambda: a.directory.place("new"))
        response, made = ask(a, "POST", "/api/v1/channels", new)
        assert (response.status, made["node"]) == (200, "b")

        response, ended = ask(a, "DELETE", "/api/v1/channels/new")
        assert (response.status, ended["node"]) == (200, "b")
        assert b.server.plane.registry.live("new") is None
        eventually(lambda: a.directory.place("new") is None)
        assert ask(a, "DELETE", "/api/v1/channels/new")[0].status == 404
        assert ask(a, "GET", "/api/v1/channels/nothing")[0].status == 404
        assert a.server.plane.faults == b.server.plane.faults == 0


def test_nodes_are_listed_drained_and_given_channels(nats: NatsServer) -> None:
    """Any node takes the request, and the node concerned does it."""
    with node("a", nats) as a, node("b", nats) as b:
        film(a).publish(0, b"one")
        eventually(lambda: b.directory.place("film"))
        _, listed = ask(b, "GET", "/api/v1/nodes")
        shown = [
            {key: one[key] for key in ("name", "state", "reachable", "this", "channels")} for one in listed["nodes"]
        ]
        assert shown == [
            {"name": "a", "state": "serving", "reachable": True, "this": False, "channels": 1},
            {"name": "b", "state": "serving", "reachable": True, "this": True, "channels": 0},
        ]
        assert listed["nodes"][0]["url"] == f"http://127.0.0.1:{a.server.port}/trickle"
        assert listed["degraded"] == ""

        response, moved = ask(b, "POST", "/api/v1/channels/film/move?to=b")
        assert (response.status, moved) == (200, {"channel": "film", "node": "b"})
        assert (at_a.asked, at_b.asked) == ([("film", "b")], [])
        assert ask(b, "POST", "/api/v1/channels/film/move?to=a")[0].status == 200, "it is there"
        for outcome, status in (("not_owner", 404), ("no_node", 404), ("busy", 409), ("refused", 409)):
            at_a.outcome = outcome, "so it is"
            response, problem = ask(b, "POST", "/api/v1/channels/film/move?to=b")
            assert (response.status, problem) == (status, {"detail": "so it is"})
        at_a.outcome = "undecided", ""
        response, problem = ask(b, "POST", "/api/v1/channels/film/move?to=b")
        assert (response.status, response.get("retry-after"), problem["detail"]) == (503, "1", "undecided")

        at_a.left = {"film": ("busy", "")}
        response, drained = ask(b, "POST", "/api/v1/nodes/a/drain")
        assert (response.status, drained) == (200, {"node": "a", "moved": 2, "left": {"film": "busy"}})
        assert at_b.asked == []
        assert ask(a, "POST", "/api/v1/nodes/a/drain")[0].status == 200
        response, problem = ask(b, "POST", "/api/v1/nodes/c/drain")
        assert (response.status, problem["detail"]) == (404, "no such node: c")


def test_a_node_that_does_not_answer_is_named(nats: NatsServer) -> None:
    """The list has the others' channels, and what is about the node alone gets 503."""
    with node("a", nats) as a, node("b", nats) as b:
        film(a).publish(0, b"one")
        b.target.channel("other").publish(0, b"two")
        eventually(lambda: b.directory.place("film"))
        a.directory.nodes["b"].url = b.directory.nodes["a"].url = "http://127.0.0.1:1/trickle"
        place = b.directory.place("film")
        assert place is not None
        b.directory.place = {"film": place._replace(url="http://127.0.0.1:1/trickle")}.get  # type: ignore[method-assign]
        response, listed = ask(b, "GET", "/api/v1/channels")
        assert listed["unreachable"] == ["a"]
        assert response.get("lp-trickle-degraded") == "no answer from a"
        assert names(b) == [("other", "b")]
        response, problem = ask(b, "GET", "/api/v1/channels/film")
        assert (response.status, response.get("retry-after")) == (503, "1")
        assert problem["detail"].startswith("node a does not answer: ")
        record = b.server.record(op="api", path="/api/v1/channels/film", status=503)
        assert (record.reason, record.to, record.retry_after_ms) == ("unreachable", None, 1000)
        assert ask(b, "POST", "/api/v1/channels", {"name": "film"})[0].status == 503
