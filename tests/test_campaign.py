"""Random faults against a cluster under load: a short form of the campaign; and each of its checks can fail."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.campaign.checker import Story, judge
from benchmarks.campaign.cluster import Happened, Node
from benchmarks.campaign.faults import Fault, Kind, draw
from benchmarks.campaign.http import Answer
from benchmarks.campaign.load import Delete, Found, Read, Record, Write
from benchmarks.campaign.run import Outcome, Plan, campaign
from benchmarks.servers import ROOT
from tests.support.fixtures import forks
from tests.support.forked import command_of

__all__ = ["forks"]

BODY = b"x " * 10


def run(folder: Path, plan: Plan) -> Outcome:
    """Run a campaign; what it says is in the report of a failure."""
    outcome = asyncio.run(campaign(plan, folder, print))
    assert outcome.violations == []
    assert outcome.schedules == len(plan.schedules)
    return outcome


@pytest.mark.usefixtures("forks")
def test_a_schedule_keeps_every_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is killed, another one stands still; what the quorum has acknowledged is there, and all nodes agree."""
    start = Node.start

    async def start_fork(node: Node) -> None:
        """What is sent to the node reaches the fork, and not only its relay."""
        await start(node)
        assert node.process is not None
        pid = node.process.pid
        monkeypatch.setattr(node.process, "send_signal", lambda number: os.kill(command_of(pid), number))

    monkeypatch.setattr(Node, "start", start_fork)
    kinds = Kind.KILL, Kind.FREEZE
    outcome = run(tmp_path, Plan(schedules=range(1), seed=1, seconds=1.0, ack="quorum", kinds=kinds, root=ROOT))
    assert set(outcome.faults) == {"node killed", "node frozen"}
    assert outcome.counts["acknowledged: quorum"] > 0
    assert outcome.counts["reads"] > 0


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("ack", ["memory", "quorum"])
def test_many_schedules_keep_every_promise(tmp_path: Path, ack: str, servers: int) -> None:
    """All kinds of faults."""
    kinds = tuple(kind for kind in Kind if servers == 1 or kind is not Kind.BUCKET_OLDER)
    run(tmp_path, Plan(schedules=range(20), seed=2, ack=ack, servers=servers, kinds=kinds, root=ROOT))


def test_schedules_follow_from_the_seed() -> None:
    """The same number of the same seed is the same schedule; all kinds of faults come up."""
    drawn = [draw(1, number, 4.0, 0.4, tuple(Kind)) for number in range(100)]
    assert drawn == [draw(1, number, 4.0, 0.4, tuple(Kind)) for number in range(100)]
    assert {fault.kind for faults in drawn for fault in faults} == set(Kind)
    assert draw(2, 0, 4.0, 0.4, tuple(Kind)) != drawn[0]


def write(at: float, epoch: int, seq: int, body: str = "x", promise: str = "memory", **more: Any) -> Write:
    """A segment that was acknowledged a tenth of a second after it was begun."""
    fields = {"lp-trickle-durability": promise, **more}
    answer = Answer(200, fields, whole=True, at=at + 0.1)
    return Write("c", 0, body, None, at, answer, epoch, seq, len(BODY), owner=0)


def read(at: float, epoch: int, seq: int, body: bytes = BODY, **more: str) -> Read:
    """A segment that one reader got."""
    fields = {"lp-trickle-epoch": str(epoch), "lp-trickle-seq": str(seq), **more}
    return Read("c", "c at 0", at, Answer(200, fields, body, whole=True, at=at + 0.1))


def delete(at: float, epoch: int) -> Delete:
    """The channel was ended."""
    return Delete("c", epoch, at, Answer(200, at=at + 0.1))


SOUND = Story(
    Record(
        bodies={"x": BODY, "y": b"y " * 10, "z@1": b"z@1 " * 5},
        writes=[write(0, 1, 0, promise="quorum"), write(1, 1, 1)],
        reads=[read(2, 1, 0), read(3, 1, 1)],
    ),
    happened=[],
    lease_s=0.4,
    late_s=0.0,
    recovered=True,
    finals={"c": [Found(1, 2, {0: BODY, 1: BODY})] * 3},
)
GONE = {"c": [Found(None)] * 3}
LATER = {"c": [Found(2, 1, {0: BODY})] * 3}


def test_a_sound_story_breaks_no_promise() -> None:
    """All of it is counted."""
    judgement = judge(SOUND)
    assert judgement.violations == []
    assert judgement.counts == Counter({"acknowledged: quorum": 1, "acknowledged: memory": 1, "reads": 2})


@pytest.mark.parametrize(
    ("check", "writes", "reads", "deletes", "finals"),
    [
        ("one writer", [write(2, 1, 0, "y")], [], [], None),
        ("one writer", [], [read(5, 1, 1, b"y y y y y y y y y y ")], [], None),
        ("one answer, one body", [], [read(5, 1, 3, b"x x y y ")], [], None),
        ("no mixed epochs", [], [read(5, 2, 3, b"z@1 " * 5)], [], None),
        ("whole bodies", [], [read(5, 1, 3, b"x x ")], [], None),
        ("epochs go up", [], [read(5, 2, 3), read(6, 1, 3)], [], None),
        ("epochs go up", [write(2, 2, 0)], [], [], None),
        ("deposed owners", [write(2, 2, 0), write(3, 1, 2)], [], [], None),
        ("ends are final", [write(3, 1, 2)], [], [delete(2, 1)], GONE),
        ("ends are final", [], [], [delete(2, 1)], None),
        ("lost in its epoch", [write(2, 1, 2)], [], [], None),
        ("quorum", [], [], [], LATER),
        ("quorum", [], [], [], GONE),
        ("harmless faults", [], [], [], LATER),
        ("agreement", [], [], [], {"c": None}),
        ("answers", [], [Read("c", "c at 0", 5, Answer(403))], [], None),
    ],
)
def test_a_broken_promise_is_found(
    check: str, writes: list[Write], reads: list[Read], deletes: list[Delete], finals: dict[str, Any] | None
) -> None:
    """By its check."""
    sound = SOUND.record
    record = Record(sound.bodies, [*sound.writes, *writes], [*sound.reads, *reads], deletes)
    found = judge(replace(SOUND, record=record, finals=finals or SOUND.finals))
    assert check in {violation.check for violation in found.violations}


def test_what_is_lost_with_its_owner_is_counted() -> None:
    """In memory; and only if something was done to a node."""
    killed = [Happened(Fault(1.5, Kind.KILL, 0, 1.0), 1.5, 3.0)]
    record = replace(SOUND.record, writes=[write(0, 1, 0), write(1, 1, 1), write(3.5, 2, 0)])
    judgement = judge(replace(SOUND, record=record, happened=killed, finals=LATER))
    assert [violation.check for violation in judgement.violations] == ["takeover"]
    assert judgement.counts["lost: memory"] == 2
    assert judgement.takeovers == [pytest.approx(2.1)]
    assert not judge(replace(SOUND, record=record, happened=killed, finals=LATER, late_s=1.0)).violations


def test_a_loop_a_fault_and_a_publisher_that_never_writes_again_are_violations() -> None:
    """Also if no promise about bytes is broken."""
    record = replace(SOUND.record, hops=3)
    found = judge(replace(SOUND, record=record, recovered=False, faults=["ERROR a fault of the server"])).violations
    assert [violation.check for violation in found] == ["loops", "recovery", "no faults of the server"]
