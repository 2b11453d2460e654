"""The rules against an oracle that reads every line (:mod:`tests.analytics.rules.brute`)."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.analytics.rules import brute
from tests.analytics.support.chaos import write_chaos
from tests.analytics.support.jsonl import read_jsonl
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.rules.incidents import Incident, incidents
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import Set

SIMPLE = {"rejected_loop", "server_error_loop", "ended_loop", "not_found_loop", "seq_behind_loop", "seq_ahead_sweep"}


def _read(paths: list[Path]) -> tuple[list[brute.Line], list[Incident]]:
    lines = [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    with embedded.connect() as connection:
        read_jsonl(connection, paths)
        return lines, incidents(connection)


def _compare(lines: list[brute.Line], found: list[Incident]) -> int:
    runs = brute.runs(lines)
    clear = brute.clear_storms(runs)
    missed = [run for run in clear if not any(brute.covers(incident, run) for incident in found)]
    assert not missed, [(run.client, run.channel, run.kind, run.hits, run.rate, run.length_s) for run in missed]
    named = [one for one in found if one.named and {phase.storm for phase in one.phases} <= SIMPLE]
    invented = [one for one in named if not brute.could_be(one, runs)]
    assert not invented, invented
    for incident in named:
        if told := brute.count(incident, lines):
            assert (incident.n, incident.peak_rps) == pytest.approx(told), incident
    return len(clear)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_traffic_without_a_plan(tmp_path: Path, seed: int) -> None:
    """Whatever a line can say, at any rate: clear storms are found, counts and peaks are those of the lines."""
    path = write_lines(tmp_path / "log.jsonl", write_chaos(seed, servers=12))
    assert _compare(*_read([path])) > 5


@pytest.mark.long  # test_planted.py holds the same log to what was planted
def test_simulated_traffic(tmp_path: Path) -> None:
    """The same on a simulated fleet."""
    simulate_logs(tmp_path / "log", 31, Set.STANDARD, sizes(lines=10_000))
    assert _compare(*_read(sorted((tmp_path / "log").rglob("*.jsonl")))) > 20
