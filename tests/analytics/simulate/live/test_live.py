"""Real storms: clients of every class misbehave at our server, and at one that is wrong; the report names each."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.analytics.simulate.live.faulty import faulty_server
from tests.support.server import serve
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import make_report
from tricklecast.analytics.report.json_report import as_dict
from tricklecast.analytics.simulate.live.acts import ACTS
from tricklecast.analytics.simulate.live.run import Performance, perform
from tricklecast.analytics.simulate.live.stage import ServerUnreachable
from tricklecast.analytics.simulate.live.truth import truth_of
from tricklecast.analytics.simulate.score import LIMITS, Score, score
from tricklecast.analytics.simulate.table import details
from tricklecast.analytics.simulate.truth import LIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER = ("--max-readers", "40", "--channel-drain-s", "2", "--window-segments", "32", "--storm-guard", "off")
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

    Acts that fill a server have one of their own: right after each other they would be one storm in its log.
    """
    folder = tmp_path_factory.mktemp("live")
    alone = [(name,) for name, act in ACTS.items() if act.alone]
    together = tuple(name for name, act in ACTS.items() if not act.alone)

    async def everywhere(places: list[tuple[str, tuple[str, ...], Played]]) -> None:
        async def at(url: str, names: tuple[str, ...], result: Played) -> None:
            result.performances += await perform(url, names, "live", requests=REQUESTS, rate=RATE)

        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(at, *place)

    with ExitStack() as servers:
        ours = [
            (
                servers.enter_context(serve(*SERVER, "--node", names[-1], access_log=folder / f"{names[-1]}.jsonl")),
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


def test_the_faults_of_a_server_are_found_and_named(spark: SparkSession, played: tuple[list[Played], Played]) -> None:
    """A head that stands still at an empty segment, or goes backwards; and requests that fail."""
    _, faulty = played
    assert [one.impossible for one in faulty.performances] == [None] * len(AT_THE_FAULTY)
    report, found = judged(spark, faulty)
    assert found.meets(LIMITS[LIVE]), "\n".join(details(found))
    causes = {episode["channels"][0]: episode["cause"] for episode in report["episodes"]}
    assert "head went backwards" in causes["live-head_backwards"]
    assert "does not advance" in causes["live-historic_fault"]


def test_a_client_does_no_more_than_it_was_told(played: tuple[list[Played], Played]) -> None:
    """Misbehaviour is bounded: so many requests each."""
    for performance in (act for one in (*played[0], played[1]) for act in one.performances):
        assert all(len(loop.statuses) <= REQUESTS for loop in performance.loops)


def test_nobody_there_is_said_at_once() -> None:
    """Without a server no act is played."""
    with pytest.raises(ExceptionGroup) as failure:
        anyio.run(perform, "http://127.0.0.1:1", ("not_found_loop",), "live")
    assert failure.group_contains(ServerUnreachable, match="127.0.0.1:1")
