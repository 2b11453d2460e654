"""The storm benchmark makes logs, measures and judges: its structure, never its speed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from benchmarks.storm.duck import compare
from benchmarks.storm.made import Clients, Shape, make
from benchmarks.storm.verdicts import Verdict, of_one_log, ratios, straight_line
from benchmarks.storm.worker import Measured, Task, Timing, found_from, work
from tricklecast.trickle.records import FIELD_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = 65_000
"""Lines: enough for two storms."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small log of both kinds."""
    return make(Shape(SMALL), tmp_path_factory.mktemp("made"))


def test_made_logs_are_of_their_shape(logs: dict[str, Path], tmp_path: Path) -> None:
    """JSON and Parquet hold the same records, as many as asked for; the shapes differ in whose they are."""
    counted = {}
    for who in Clients:
        made = make(Shape(SMALL, who), tmp_path, kinds=("parquet",))["parquet"]
        query = f"SELECT count(*), count(DISTINCT client) FROM '{made}/*.parquet' WHERE client LIKE 'viewer-%'"
        (counted[who],) = duckdb.execute(query).fetchall()
    assert counted[Clients.FEW][1] == 1000
    assert counted[Clients.HOT][0] < 0.6 * counted[Clients.FEW][0]
    assert counted[Clients.SESSIONS][1] > 10_000
    assert counted[Clients.SCATTERED][1] > 10_000
    lines = [line for path in logs["json"].iterdir() for line in path.read_text().splitlines()]
    assert len(lines) == pytest.approx(SMALL, rel=0.001)
    assert all(json.loads(line).keys() <= set(FIELD_NAMES) for line in lines[:1000])
    rows = duckdb.execute(f"SELECT count(*) FROM '{logs['parquet']}/*.parquet'").fetchall()
    assert rows == [(len(lines),)]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_spark_and_duckdb_find_what_was_planted(spark: SparkSession, logs: dict[str, Path]) -> None:
    """Both find every planted storm and nothing else; what the worker measured survives its way through JSON."""
    path = logs["parquet"]
    found = found_from(json.loads(json.dumps(asdict(work(Task((str(path),), rounds=0))))))
    log = found.logs[str(path)]
    assert log.episodes == compare(path, threads=1).storms == compare(logs["json"], threads=1).storms
    assert log.episodes == Shape(SMALL).storms
    assert log.rows > 0
    assert log.jobs > 0
    assert found.peak_mb > 0
    assert len(log.floor.wall_s) == len(log.rollup.wall_s) == len(log.rest.wall_s) == 1


def test_expectations_are_judged_by_what_lies_next_to_each_other() -> None:
    """Ratios are taken round by round, without the cold one; a bound may be an upper or a lower one."""
    log = Measured(Timing([9.0, 1.0, 2.0]), Timing([1.0, 1.5, 5.0]), Timing([8.0, 2.0, 2.0]))
    assert ratios(log.rollup, log.floor) == [1.5, 2.5]
    told = {verdict.what: verdict.met for verdict in of_one_log("3 M", log)}
    assert list(told.values()) == [False, True]
    assert str(Verdict("cores", 1.7, 1.6, least=True)) == "met    cores: 1.70 (at least 1.6)"


def test_the_line_through_sizes() -> None:
    """From three sizes on there is a line, and how far the worst of them is off."""
    assert straight_line({1.0: 2.0, 2.0: 3.0}) is None
    line = straight_line({1.0: 2.0, 2.0: 3.0, 4.0: 5.0})
    assert line is not None
    assert (line.fixed_s, line.per_million_s, line.off) == pytest.approx((1.0, 1.0, 0.0))
