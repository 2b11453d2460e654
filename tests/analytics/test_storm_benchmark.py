"""The storm benchmark makes logs, measures and judges: its structure, never its speed."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from benchmarks.storm.bare import duckdb_aggregate
from benchmarks.storm.made import Clients, Shape, make
from benchmarks.storm.report import timed
from benchmarks.storms import RunFailed, bare, off_the_line, staged, storms, watched
from tricklecast.trickle.records import FIELD_NAMES

SMALL = 65_000
"""Lines: enough for two storms."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small log."""
    return make(Shape(SMALL), tmp_path_factory.mktemp("made"))


def test_made_logs_are_of_their_shape(log: Path, tmp_path: Path) -> None:
    """Records of the server's own schema, as many as asked for; the shapes differ in whose they are."""
    clients = {}
    for who in Clients:
        folder = log if who is Clients.FEW else make(Shape(SMALL, who), tmp_path)
        records = [orjson.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
        assert all(record.keys() <= set(FIELD_NAMES) for record in records)
        assert len(records) == pytest.approx(SMALL, rel=0.001)
        viewers = [record["client"] for record in records if record.get("client", "").startswith("viewer-")]
        clients[who] = len(viewers), len(set(viewers))
    assert clients[Clients.FEW][1] == 1000
    assert clients[Clients.HOT][0] < 0.6 * clients[Clients.FEW][0]
    assert clients[Clients.SESSIONS][1] > 10_000
    assert clients[Clients.SCATTERED][1] > 10_000
    assert duckdb_aggregate(str(log)) == pytest.approx(SMALL, rel=0.001)


def test_the_report_finds_what_was_planted(log: Path) -> None:
    """Every storm and nothing else; each stage of the work has its time."""
    found = timed("embedded", str(log))
    assert found["incidents"] == Shape(SMALL).storms
    assert {"reading", "looking", "writing"} <= found.keys()


def test_a_command_is_measured(log: Path) -> None:
    """Its time and memory, and what it printed as JSON; one that fails is an error with its message."""
    sample = watched([sys.executable, "-c", "print('{\"told\": 1}')"])
    assert (sample["told"], sample["s"] > 0) == (1, True)
    assert watched(storms(log, "embedded"))["peak_mb"] > 10
    with pytest.raises(RunFailed, match="no such log"):
        watched(storms(log / "nowhere", "embedded"))


@pytest.mark.long
def test_the_same_with_spark(log: Path) -> None:
    """Both of its processes."""
    assert watched(staged(log, "spark"))["incidents"] == Shape(SMALL).storms
    assert watched(bare(log, "spark"))["peak_mb"] > 100


def test_the_line_through_sizes() -> None:
    """How far the worst size is off it, as a share."""
    assert off_the_line({1.0: 2.0, 2.0: 3.0, 4.0: 5.0}) == pytest.approx(0)
    assert off_the_line({1.0: 2.0, 2.0: 3.0, 4.0: 8.0}) > 0.1
