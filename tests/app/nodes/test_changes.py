"""The changes of a cluster: what one node tells of all of them, in one order per channel."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest

from tests.app.cluster.test_nodes_on_nats import NatsNode, film, node
from tests.app.nodes.asking import ask, join_deaf
from tests.support.nats import NatsServer
from tests.support.waiting import eventually
from tricklecast.app.nodes.changes import MAX_HELD, ClusterChanges
from tricklecast.app.storage.database import FactRow, Position


class Follower:
    """A client that follows the changes at a node."""

    def __init__(self, one: NatsNode) -> None:
        _, answer = ask(one, "GET", "/api/v1/changes?snapshot=1")
        self.instance, self.index, self.unreachable = answer["instance"], answer["index"], answer.get("unreachable")
        self.channels = [(each["channel"], each["epoch"]) for each in answer["channels"]]
        self.facts: list[tuple[str, str, int | None]] = []
        self._node = one

    def until(self, *fact: Any) -> list[tuple[str, str, int | None]]:
        """Wait for a fact; all facts so far."""
        while fact not in self.facts:
            path = f"/api/v1/changes?after={self.index}&instance={self.instance}"
            response, answer = ask(self._node, "GET", path)
            assert response.status == 200, answer
            self.index = answer["index"]
            self.facts += [(each["kind"], each["channel"], each.get("seq")) for each in answer["changes"]]
        return self.facts


def announced(one: NatsNode, count: int) -> list[Any]:
    """The first messages of its `_changes`."""
    return [orjson.loads(one.target.channel("_changes").get(seq).body) for seq in range(count)]


def test_any_node_tells_of_all_channels_and_a_move_is_not_seen(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that goes on at another node is told to take the list again."""
    monkeypatch.setattr("tricklecast.app.nodes.changes.LOOK_S", 0.1)
    with node("a", nats) as a, node("b", nats) as b:
        film(a).publish(0, b"one")
        at_a, at_b = Follower(a), Follower(b)
        assert at_a.channels == at_b.channels == [("film", 1)]
        film(b).publish(1, b"two")
        assert ask(b, "POST", "/api/v1/channels/film/move?to=b")[0].status == 200
        film(b).publish(2, b"three")
        assert ask(b, "POST", "/api/v1/channels/film/move?to=a")[0].status == 200
        film(b).publish(3, b"four")
        b.target.channel("other").create()
        film(a).end()
        seen = [("closed", "film", seq) for seq in (1, 2, 3)]
        for follower in (at_a, at_b):
            facts = [fact for fact in follower.until("removed", "film", 4) if fact[1] == "film"]
            assert facts == [*seen, ("removed", "film", 4)]
        for one in (a, b):
            first, *others = announced(one, 3)
            assert first == {"added": ["film"]}
            # Two nodes tell of these, and nobody knows which came first.
            assert sorted(others, key=str) == [{"added": ["other"]}, {"removed": ["film"]}]
        response, gone = ask(b, "GET", f"/api/v1/changes?after={at_a.index}&instance={at_a.instance}")
        assert (response.status, gone["instance"]) == (410, at_b.instance)
        assert ask(b, "GET", "/api/v1/changes?after=0")[0].status == 400

        # A node that cannot be reached is named, and delays nobody.
        c = b.run(join_deaf(nats))
        try:
            eventually(lambda: Follower(b).unreachable == ["c"])
            response, _ = ask(b, "GET", "/api/v1/changes?snapshot=1")
            assert response.get("lp-trickle-degraded") == "no answer from c"
        finally:
            b.run(c.stop())
        eventually(lambda: Follower(b).unreachable is None, what="c has left")
        assert ("other", 1) in Follower(a).channels
        assert a.server.plane.faults == b.server.plane.faults == 0


HERE = Position("", 0)
A, B, C = 1, 2, 3


def row(kind: str, epoch: int = 1, seq: int | None = None, detail: str | None = None) -> FactRow:
    """A fact about the film."""
    return FactRow(0, 0, kind, "film", epoch, seq, detail)


ADDED, MOVED, GONE = row("added"), row("removed", 1, 2, "moved"), row("removed", 1, 2, "deleted")
ONE, TWO, THREE = (row("closed", 1, seq, "complete") for seq in (1, 2, 3))
LIFE = [(A, ADDED), (A, ONE)]


@pytest.mark.parametrize(
    ("told", "kinds"),
    [
        ([*LIFE, (A, GONE)], ["added", 1, "removed"]),
        ([*LIFE, (A, MOVED), (B, ADDED), (B, TWO)], ["added", 1, 2]),
        ([*LIFE, (B, ADDED), (B, THREE), (A, TWO), (A, MOVED)], ["added", 1, 2, 3]),
        ([*LIFE, (C, ADDED), (C, THREE), (A, MOVED), (C, GONE)], ["added", 1, 3, "removed"]),
        # It moves on before the first owner has told that it has moved.
        ([*LIFE, (B, ADDED), (B, TWO), (B, MOVED), (C, ADDED), (C, THREE), (A, MOVED)], ["added", 1, 2, 3]),
        # The next epoch has begun: what is told of this one comes too late.
        ([*LIFE, (B, row("added", 2)), (A, TWO), (A, GONE), (B, row("removed", 2))], ["added", 1, "added", "removed"]),
        ([*LIFE, (B, ADDED), (B, TWO), (C, row("added", 2)), (A, MOVED)], ["added", 1, "added"]),
        # Nobody was told of this channel.
        ([(A, GONE)], []),
        # A node that had it before is started again without it.
        ([*LIFE, (A, MOVED), (B, ADDED), (A, GONE), (B, TWO)], ["added", 1, 2]),
    ],
)
def test_facts_of_a_channel_have_one_order(told: list[tuple[int, FactRow]], kinds: list[str | int]) -> None:
    """Whatever order the nodes' logs arrive in."""

    async def main() -> None:
        changes = ClusterChanges("a", cast(Any, None), dict, cast(Any, None))
        for number, fact in told:
            changes.add([fact], number, HERE)
        found = changes.facts_after(0, 100)
        assert [one.kind if one.seq is None or one.kind != "closed" else one.seq for one in found] == kinds
        lives = any(kind == "added" for kind in kinds) and kinds[-1] != "removed"
        assert [one.channel for one in changes.snapshot().channels] == (["film"] if lives else [])

    asyncio.run(main())


def test_facts_that_wait_are_bounded() -> None:
    """Further ones of channels that are being moved are lost, and those that wait come when they may."""

    async def main() -> None:
        changes = ClusterChanges("a", cast(Any, None), dict, cast(Any, None))
        changes.add([ADDED], A, HERE)
        changes.add([ADDED, *(row("closed", 1, seq, "complete") for seq in range(MAX_HELD + 5))], B, HERE)
        assert changes.index == 1
        changes.add([MOVED], A, HERE)
        assert changes.index == MAX_HELD, "the word that it goes on is one of those that wait, and is not told"
        changes.add([ONE], B, HERE)
        assert changes.index == MAX_HELD + 1

    asyncio.run(main())
