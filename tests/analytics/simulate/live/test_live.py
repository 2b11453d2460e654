"""Real storms: clients of every class misbehave at our server, and at one that is wrong; the report names each."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.analytics.simulate.live.faulty import faulty_server
from tests.support.server import serve
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import make_report
from tricklecast.analytics.report_old.json_report import as_dict
from tricklecast.analytics.simulate.live.acts import ACTS
from tricklecast.analytics.simulate.live.run import Performance, perform
from tricklecast.analytics.simulate.live.stage import ServerUnreachable
from tricklecast.analytics.simulate.live.truth import truth_of
from tricklecast.analytics.simulate.score import LIMITS, Score, score
from tricklecast.analytics.simulate.table import details
from tricklecast.analytics.simulate.truth import LIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER = ("--max-readers", "40", "--window-segments", "32", "--storm-guard", "off")
LONG_DRAIN, SHORT_DRAIN = ("--channel-drain-s", "60"), ("--channel-drain-s", "2")
"""Of an ended channel: for all requests of a slow client; and so that a 404 is not long waited for."""

AFTER_THE_DRAIN = "not_found_drip"
REQUESTS, RATE = 40, 30.0

NOT_AT_OURS = {"historic_fault", "head_backwards", "server_error_loop"}
"""What our server does not let happen."""

AT_THE_FAULTY = ("historic_fault", "head_backwards", "server_error_loop", "zero_byte_loop", "same_segment_loop")


@dataclass
class Played:
    """What was done at a server, and the log that it wrote."""

    performances: list[Performance]
    log: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Played], Played]:
    """Every act at our server, and those that need a fault at one that has it; all at the same time.

    Acts that fill a server have one of their own: right after each other they would be one storm in its log. So has the
    one that waits for the end of a drain.
    """
    folder = tmp_path_factory.mktemp("live")
    alone = [(name,) for name, act in ACTS.items() if act.alone or name == AFTER_THE_DRAIN]
    together = tuple(name for name, act in ACTS.items() if (name,) not in alone)

    async def everywhere(places: list[tuple[str, tuple[str, ...], Played]]) -> None:
        async def at(url: str, names: tuple[str, ...], result: Played) -> None:
            result.performances += await perform(url, names, "live", requests=REQUESTS, rate=RATE)

        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(at, *place)

    with ExitStack() as servers:
        ours = [
            (
                servers.enter_context(
                    serve(
                        *SERVER,
                        *(SHORT_DRAIN if names[-1] == AFTER_THE_DRAIN else LONG_DRAIN),
                        "--node",
                        names[-1],
                        access_log=folder / f"{names[-1]}.jsonl",
                    )
                ),
                names,
            )
            for names in (together, *alone)
        ]
        faulty = Played([], folder / "faulty.jsonl")
        faulty_base = servers.enter_context(faulty_server(faulty.log))
        results = [Played([], folder / f"{names[-1]}.jsonl") for _, names in ours]
        places = [(server.base, names, result) for (server, names), result in zip(ours, results, strict=True)]
        anyio.run(everywhere, [*places, (faulty_base, AT_THE_FAULTY, faulty)])
        assert [server.stop() for server, _ in ours] == [0] * len(ours)
    return results, faulty


def judged(spark: SparkSession, *played: Played) -> tuple[dict[str, Any], Score]:
    """The report on these logs, and how good it is."""
    report = as_dict(make_report(spark, find_logs([str(one.log) for one in played])))
    return report, score(report, truth_of([performance for one in played for performance in one.performances]))


@pytest.mark.long
def test_every_misbehaviour_at_our_server_is_found_and_named(
    spark: SparkSession, played: tuple[list[Played], Played]
) -> None:
    """All storms of all classes but those that cannot happen there; the log has nobody else to accuse."""
    ours, _ = played
    impossible = {act.name for one in ours for act in one.performances if act.impossible is not None}
    assert impossible == NOT_AT_OURS
    report, found = judged(spark, *ours)
    assert found.meets(LIMITS[LIVE]), "\n".join(details(found))
    assert report["quality"]["unparsable"] == 0


@pytest.mark.long
def test_the_faults_of_a_server_are_found_and_named(spark: SparkSession, played: tuple[list[Played], Played]) -> None:
    """A head that stands still at an empty segment, or goes backwards; and requests that fail."""
    _, faulty = played
    assert [one.impossible for one in faulty.performances] == [None] * len(AT_THE_FAULTY)
    report, found = judged(spark, faulty)
    assert found.meets(LIMITS[LIVE]), "\n".join(details(found))
    causes = {episode["channels"][0]: episode["cause"] for episode in report["episodes"]}
    assert "head went backwards" in causes["live-head_backwards"]
    assert "does not advance" in causes["live-historic_fault"]


@pytest.mark.long
def test_a_client_does_no_more_than_it_was_told(played: tuple[list[Played], Played]) -> None:
    """Misbehaviour is bounded: so many requests each."""
    for performance in (act for one in (*played[0], played[1]) for act in one.performances):
        assert all(len(loop.statuses) <= REQUESTS for loop in performance.loops)


LOOPS: dict[str, dict[str, Any]] = {
    "zero_byte_loop": {"status": 200, "reason": "empty", "bytes_out": 0},
    "ended_loop": {"status": 200, "reason": "terminated", "bytes_out": 0, "eos": True},
    "not_found_loop": {"status": 404, "reason": "not_found"},
}


def test_loops_stand_in_the_log(tmp_path: Path) -> None:
    """Each request of a client that repeats itself is a line of the server's log that says what it was answered."""
    path = tmp_path / "access.jsonl"
    with serve(*SERVER, *LONG_DRAIN, access_log=path) as server:
        performances = anyio.run(partial(perform, server.base, LOOPS, "live", requests=10, rate=200.0))
        assert server.stop() == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(performance.name for performance in performances) == sorted(LOOPS)
    for performance in performances:
        (loop,) = performance.loops
        said = [line for line in lines if line.get("client") == loop.client]
        assert [line["status"] for line in said] == loop.statuses
        assert len(said) == 10
        assert all(line.items() >= LOOPS[performance.name].items() for line in said), said


def test_nobody_there_is_said_at_once() -> None:
    """Without a server no act is played."""
    with pytest.raises(ExceptionGroup) as failure:
        anyio.run(perform, "http://127.0.0.1:1", ("not_found_loop",), "live")
    assert failure.group_contains(ServerUnreachable, match="127.0.0.1:1")
