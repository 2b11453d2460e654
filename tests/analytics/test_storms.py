"""Every class of storm is found, named, counted and given its trigger; every look-alike stays silent."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.scenarios import STORMS, TRAPS, Truth, write_all
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import make_report
from tricklecast.analytics.report.model import Episode, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_251_009


@pytest.fixture(scope="module")
def truths() -> dict[str, list[Truth]]:
    """What is true of each node of the log."""
    return write_all(SEED)[1]


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report on one log with all scenarios."""
    path = write_lines(tmp_path_factory.mktemp("logs") / "access.jsonl", write_all(SEED)[0])
    return make_report(spark, find_logs([str(path)]))


@pytest.fixture(scope="module")
def by_node(report: Report) -> dict[str | None, list[Episode]]:
    """The episodes of each node, in the order of time."""
    found: dict[str | None, list[Episode]] = defaultdict(list)
    for episode in sorted(report.episodes, key=lambda episode: episode.start_us):
        found[episode.node].append(episode)
    return found


@pytest.mark.parametrize("name", STORMS)
def test_storm(name: str, by_node: dict[str | None, list[Episode]], truths: dict[str, list[Truth]]) -> None:
    """The storm is found once, with its class, requests, clients and trigger."""
    told = [Truth(str(found.storm), found.n, found.n_clients, found.trigger) for found in by_node[name]]
    assert told == truths[name]


@pytest.mark.parametrize("name", TRAPS)
def test_look_alike_is_silent(name: str, by_node: dict[str | None, list[Episode]]) -> None:
    """What is no storm is not reported as one."""
    assert by_node[name] == []
