"""What the simulator planted is found, once each, with the right class; what only looks like a storm stays silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analytics.rules.planted import Score, score
from tricklecast.analytics.rules.incidents import incidents
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.run import Request, simulate_logs
from tricklecast.analytics.simulate.sizes import sizes


def judged(folder: Path, kind: Set, seed: int, lines: int, into: Score | None = None) -> Score:
    """Simulates a log, finds its incidents, and judges them."""
    truth = simulate_logs(Request(folder / f"{kind}-{seed}", seed, kind, sizes(lines=lines, kind=kind)))
    with embedded.connect() as connection:
        embedded.read_jsonl(connection, sorted((folder / f"{kind}-{seed}").rglob("*.jsonl")))
        return score(incidents(connection), truth, into)


def test_planted_storms_are_found_once_each_with_their_class(tmp_path: Path) -> None:
    """On three seeds: every storm, no false alarm, the right root."""
    total = Score()
    for seed in (21, 22, 23):
        judged(tmp_path, Set.STANDARD, seed, 60_000, total)
    assert total.storms > 100
    assert (total.recall, total.precision, total.root_class) == (1.0, 1.0, 1.0), str(total)
    assert len(total.mistriggered) + len(total.miscounted) <= 0.05 * total.storms, str(total)


def test_storms_near_the_thresholds_are_found(tmp_path: Path) -> None:
    """Near misses stay silent, and what is just above a threshold is told."""
    total = judged(tmp_path, Set.GREY, 21, 20_000)
    assert total.recall >= 0.95, str(total)
    assert (total.precision, total.root_class) == (1.0, 1.0), str(total)


@pytest.mark.parametrize("seed", [21, 22])
def test_a_healthy_fleet_is_silent(tmp_path: Path, seed: int) -> None:
    """Nothing was planted, and nothing is told."""
    assert judged(tmp_path, Set.HEALTHY, seed, 20_000).incidents == 0
