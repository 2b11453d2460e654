"""Every storm is told once while it happens, under the class that the report gives it; look-alikes stay silent."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.guarded import guarded
from tests.analytics.support.scenarios import STORMS, TRAPS, Truth, write_all
from tests.analytics.watch_old.live import Batch, batches, play
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.report.model import identity
from tricklecast.analytics.watch_old.open_storms import Change, Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_251_009


@pytest.fixture(scope="module")
def truths() -> dict[str, list[Truth]]:
    """What is true of each node of the log."""
    return write_all(SEED)[1]


@pytest.fixture(scope="module")
def handed_over(spark: SparkSession) -> list[Batch]:
    """The log with all scenarios, batch by batch."""
    return batches(spark, write_all(SEED)[0])


@pytest.fixture(scope="module")
def told(handed_over: list[Batch]) -> dict[str | None, list[Change]]:
    """What is told about each node."""
    found: dict[str | None, list[Change]] = defaultdict(list)
    for change in play(handed_over):
        found[change.episode.node].append(change)
    return found


@pytest.mark.parametrize("name", STORMS)
def test_storm(name: str, told: dict[str | None, list[Change]], truths: dict[str, list[Truth]]) -> None:
    """It begins once and is over once, and what it came to is what the report says."""
    began = [change for change in told[name] if change.kind is Kind.BEGAN]
    over = [change.episode for change in told[name] if change.kind is Kind.OVER]
    assert [change.episode.id for change in began] == [episode.id for episode in over]
    assert [Truth(str(each.storm), each.n, each.n_clients, each.trigger) for each in over] == truths[name]


@pytest.mark.parametrize("name", TRAPS)
def test_look_alike_is_silent(name: str, told: dict[str | None, list[Change]]) -> None:
    """What is no storm is not told."""
    assert told[name] == []


def test_what_the_storm_guard_holds_is_judged_by_the_clients_own_pauses(
    spark: SparkSession, truths: dict[str, list[Truth]]
) -> None:
    """Each storm is of the class that it has without the guard, and each look-alike silent, held as it may be."""
    lines: dict[bool, list[str]] = {True: [], False: []}
    for line in write_all(SEED)[0]:
        lines[json.loads(line)["node"] in STORMS].append(line)
    held = [guarded(lines[True]).lines, guarded(lines[False], crowds=True).lines]
    assert all(any('"guard_ms"' in line for line in part) for part in held)
    over = [change.episode for change in play(batches(spark, [*held[0], *held[1]])) if change.kind is Kind.OVER]
    found = sorted((str(each.node), str(each.storm), each.n) for each in over)
    true = sorted((name, truth.storm, truth.n) for name in STORMS for truth in truths[name])
    assert [each[:2] for each in found] == [each[:2] for each in true]
    # Of a loop that is slow from its start, the first request, which was wanted, is told from those that repeat it.
    assert all(n <= all_n <= n + 1 for (*_, n), (*_, all_n) in zip(found, true, strict=True))
    hot = {each.node for each in over if each.backoff == "hot_loop"}
    assert {"not_found_loop_on_new_connections", "seq_behind_loop", "overload_client", "zero_byte_loop"} <= hot
    assert "not_found_drip" not in hot


def test_restarts_change_nothing(handed_over: list[Batch], told: dict[str | None, list[Change]]) -> None:
    """What is told is the same, key by key and figure by figure, if every 101st batch is another process's."""
    again: dict[str | None, list[Change]] = defaultdict(list)
    for change in play(handed_over, restart_every=101):
        again[change.episode.node].append(change)
    assert {node: changes for node, changes in again.items() if changes} == {
        node: changes for node, changes in told.items() if changes
    }


def test_a_storm_is_called_as_in_the_report(told: dict[str | None, list[Change]]) -> None:
    """Its id is made of the same, so that the report can explain it."""
    [began, *_] = told["not_found_loop"]
    episode = began.episode
    parts = (StormClass.NOT_FOUND_LOOP, "not_found_loop", "probe/1.0", *episode.clients, "nothing", episode.start_us)
    assert episode.id == identity(*parts)
