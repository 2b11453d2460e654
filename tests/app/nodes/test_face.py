"""One face: two nodes and a real directory, with the control plane of each showing and changing both."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from fastapi import FastAPI

from tests.app.cluster.test_nodes_on_nats import NatsNode, film, node
from tests.app.nodes.asking import ask, join_deaf
from tests.support.media import ts_pictures
from tests.support.nats import NatsServer
from tests.support.waiting import eventually
from tricklecast.app.nodes.routes import NodesModel, nodes_router


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
        b.server.record(op="api", path="/api/v1/channels/film", answered_by="a", status=200)
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
        about = ("name", "state", "reachable", "this", "channels")
        expected = [
            {"name": "a", "state": "serving", "reachable": True, "this": False, "channels": 1},
            {"name": "b", "state": "serving", "reachable": True, "this": True, "channels": 0},
        ]

        def as_expected() -> bool:  # a lease of half a second may be late
            _, listed = ask(b, "GET", "/api/v1/nodes")
            shown = [{key: one[key] for key in about} for one in listed["nodes"]]
            return (shown, listed["degraded"]) == (expected, "")

        eventually(as_expected)
        assert ask(b, "GET", "/api/v1/nodes")[1]["nodes"][0]["url"] == f"http://127.0.0.1:{a.server.port}/trickle"

        response, moved = ask(b, "POST", "/api/v1/channels/film/move?to=b")
        assert (response.status, moved) == (200, {"channel": "film", "node": "b"})
        assert b.directory.owns("film")
        eventually(lambda: a.server.plane.registry.live("film") is None, what="a has given it up")
        assert ask(a, "POST", "/api/v1/channels/film/move?to=b")[0].status == 200, "it is there"
        for path, detail in (
            ("channels/film/move?to=c", "there is no other node 'c'"),
            ("channels/other/move?to=b", "no such channel"),
            ("nodes/c/drain", "no such node: c"),
        ):
            response, problem = ask(a, "POST", f"/api/v1/{path}")
            assert response.status == 404, problem
            assert detail in problem["detail"]

        response, drained = ask(a, "POST", "/api/v1/nodes/b/drain")
        assert (response.status, drained) == (200, {"node": "b", "moved": 1, "left": {}})
        film(b).has(0, b"one").publish(1, b"two")
        assert names(b) == [("film", "a")]
        _, made = ask(b, "POST", "/api/v1/channels", {"name": "new"})
        assert made["node"] == "a", "b takes no new channels"
        _, listed = ask(a, "GET", "/api/v1/nodes")
        assert [one["state"] for one in listed["nodes"]] == ["serving", "draining"]


def test_a_move_that_was_not_made_has_its_reason() -> None:
    """A status that tells whether to come back, and one line."""

    class Moves:
        outcome = "busy"

        async def move(self, channel: str, to: str) -> tuple[str, str]:
            """It does not move."""
            return self.outcome, f"{channel} stays"

        async def drain(self) -> tuple[int, dict[str, tuple[str, str]]]:
            """One has moved."""
            return 1, {"film": (self.outcome, "")}

    moves, api = Moves(), FastAPI()
    api.include_router(nodes_router(lambda: NodesModel(nodes=[], degraded=""), moves, "a"))
    outcomes = ("no_node", 404), ("busy", 409), ("refused", 409), ("undecided", 503)

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://a") as client:
            for outcome, status in outcomes:
                moves.outcome = outcome
                answer = await client.post("/api/v1/channels/film/move?to=b")
                assert (answer.status_code, answer.json()) == (status, {"detail": "film stays"})
            assert answer.headers["Retry-After"] == "1"
            answer = await client.post("/api/v1/nodes/a/drain")
            assert answer.json() == {"node": "a", "moved": 1, "left": {"film": "undecided"}}

    asyncio.run(main())


def test_a_node_that_does_not_answer_is_named(nats: NatsServer) -> None:
    """The list has the others' channels, and what is about the node alone gets 503."""

    with node("b", nats) as b:
        b.target.channel("other").publish(0, b"two")
        c = b.run(join_deaf(nats))
        try:
            eventually(lambda: b.directory.place("lost"))
            response, listed = ask(b, "GET", "/api/v1/channels")
            assert listed["unreachable"] == ["c"]
            assert response.get("lp-trickle-degraded") == "no answer from c"
            assert names(b) == [("other", "b")]
            response, problem = ask(b, "GET", "/api/v1/channels/lost")
            assert (response.status, response.get("retry-after")) == (503, "1")
            assert problem["detail"].startswith("node c (http://")
            record = b.server.record(op="api", path="/api/v1/channels/lost", status=503)
            assert (record.reason, record.answered_by, record.retry_after_ms) == ("unreachable", None, 1000)
            assert ask(b, "POST", "/api/v1/channels", {"name": "lost"})[0].status == 503
            assert ask(b, "POST", "/api/v1/nodes/c/drain")[0].status == 503
        finally:
            b.run(c.stop())
        eventually(lambda: ask(b, "GET", "/api/v1/channels")[1]["unreachable"] == [], what="c has left")


def test_the_first_node_authorizes_wherever_control_planes_listen(nats: NatsServer, tmp_path: Path) -> None:
    """The owner asks for no token: a node has signed the request. Nobody else may ask it so."""
    file = tmp_path / "token"
    file.write_text("a" * 40)
    with node("a", nats, control_port=0, control_token_file=file) as a, node("b", nats, control_token_file=file) as b:
        film(a).publish(0, b"one")
        eventually(lambda: b.directory.place("film"))
        bearer = {"Authorization": "Bearer " + "a" * 40}
        for path in ("/api/v1/nodes", "/api/v1/channels/film"):
            assert b.target.ask("GET", path).status == 401
            assert b.target.ask("GET", path, bearer).status == 200
        assert a.target.ask("GET", "/api/v1/channels/film", bearer).status == 404, "it is at another port"
        assert b.target.ask("DELETE", "/api/v1/channels/film", bearer).status == 200
        assert a.server.plane.registry.live("film") is None
        ask_as_node = {"Connection": "upgrade", "Upgrade": "trickle-feed", "Trickle-Cluster": "e30.00"}
        assert a.target.ask("GET", f"{a.target.base}/_cluster/ask/channels?%7B%7D", ask_as_node).status == 403


def test_any_node_has_the_recording_of_a_channel_that_is_over(nats: NatsServer, tmp_path: Path) -> None:
    """Its playlists, its files and clips, though its node was restarted and nobody knows any more that it was there."""
    settings = {"data_dir": tmp_path, "ack": "journal", "channel_drain_s": 0}
    pictures = b"".join(ts_pictures(0.0, 5))
    paths = ("index.m3u8", "media.m3u8", "clip.ts?since=1h")

    def answers(one: NatsNode) -> list[bytes]:
        return [film(one).get(path).expect(200).body for path in paths]

    with node("b", nats) as b:
        with node("a", nats, **settings) as a:
            film(a).post(0, pictures, {"Content-Type": "video/mp2t"}).expect(200)
            film(a).end()
            eventually(lambda: film(a).get("media.m3u8").status == 200, what="the recording is there")
            eventually(lambda: b.directory.former("film"))
            here = answers(a)
            assert answers(b) == here
            assert (here[2], b"#EXT-X-ENDLIST" in here[1]) == (pictures, True)
        with node("a", nats, **settings) as a:
            eventually(lambda: film(b).get("media.m3u8").status == 200, what="b has asked anew")
            assert answers(b) == answers(a) == here
            name = next(line for line in here[1].decode().splitlines() if line.startswith("hls/"))
            part = film(b).get(name, {"Range": "bytes=188-375"}).expect(206)
            assert part.body == pictures[188:376]
            assert film(b).get(0).status == film(a).get(0).status == 404

            # What is not there is soon known, and asked for anew later. Nobody sees another node's fault.
            other = b.target.channel("other")
            assert [other.get("media.m3u8").status for _ in range(2)] == [404, 404]
            assert b.server.plane.faults == a.server.plane.faults == 0
            b.server.inside(lambda: setattr(b.member.cluster.recorded, "find", None))
            assert b.target.channel("third").get("media.m3u8").status == 404
            assert b.server.plane.faults == 1
            b.server.plane.faults = 0
