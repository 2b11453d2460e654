"""Storms on a server with the storm guard on: found, named, and paced as the clients pace themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.guarded import guarded
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.evaluate import reported, simulated
from tricklecast.analytics.simulate.score import LIMITS, score
from tricklecast.analytics.simulate.table import details, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RHYTHMS = 0.9
"""Share of the rhythms that are told right; without the guard it is no higher."""


@pytest.mark.long
def test_the_report_on_a_guarded_log(spark: SparkSession, tmp_path: Path) -> None:
    """As good as on the same log without it; each hold is in the client's gaps, and none in its pauses."""
    truth = simulated(tmp_path / "log", 23, Set.STANDARD, 15_000)
    lines = [line for path in sorted((tmp_path / "log").glob("*.jsonl")) for line in path.read_text().splitlines()]
    held = guarded(lines)
    assert sum('"guard_ms"' in line for line in held.lines) > 1000
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "access.jsonl").write_text("\n".join(held.lines) + "\n")
    found = score(reported(spark, tmp_path / "held"), held.truth(truth))
    assert found.meets(LIMITS[Set.STANDARD]), "\n".join([table(found, Set.STANDARD), *details(found)])
    assert found.backoff_accuracy >= RHYTHMS
