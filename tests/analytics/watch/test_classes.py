"""Every storm is told once while it happens, under the class that the report gives it; look-alikes stay silent."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from analytics.watch.open_storms import Change, Kind
from tests.analytics.support.scenarios import STORMS, TRAPS, Truth, write_all
from tests.analytics.watch.live import play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_251_009


@pytest.fixture(scope="module")
def truths() -> dict[str, list[Truth]]:
    """What is true of each node of the log."""
    return write_all(SEED)[1]


@pytest.fixture(scope="module")
def told(spark: SparkSession) -> dict[str | None, list[Change]]:
    """What is told about each node."""
    found: dict[str | None, list[Change]] = defaultdict(list)
    for change in play(spark, write_all(SEED)[0]):
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
