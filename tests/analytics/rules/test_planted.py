"""What the simulator planted is found, once each, with the right class; what only looks like a storm stays silent."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.analytics.support.jsonl import read_jsonl
from tricklecast.analytics.rules.incidents import incidents
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.score import Fault, Score, score
from tricklecast.analytics.simulate.truth import Set


def judged(folder: Path, kind: Set, seed: int, lines: int) -> Score:
    """Simulates a log, finds its incidents, and judges them."""
    truth = simulate_logs(folder / f"{kind}-{seed}", seed, kind, sizes(lines=lines, kind=kind))
    with embedded.connect() as connection:
        read_jsonl(connection, sorted((folder / f"{kind}-{seed}").rglob("*.jsonl")))
        return score({"incidents": msgspec.to_builtins(incidents(connection))}, truth)


def test_planted_storms_are_found_once_each_with_their_class(tmp_path: Path) -> None:
    """Every storm, no false alarm, the right root; nearly all triggers and counts."""
    total = judged(tmp_path, Set.STANDARD, 21, 40_000)
    assert len(total.storms) > 30
    assert total.traps > 40
    assert (total.recall, total.precision, total.root) == (1.0, 1.0, 1.0), str(total)
    wrong = sum(Fault.TRIGGER in one.faults or Fault.COUNT in one.faults for one in total.incidents)
    assert wrong <= 0.05 * len(total.storms), str(total)


def test_storms_near_the_thresholds_are_found(tmp_path: Path) -> None:
    """Near misses stay silent, and what is just above a threshold is told."""
    total = judged(tmp_path, Set.GREY, 21, 10_000)
    assert total.recall >= 0.95, str(total)
    assert (total.precision, total.root) == (1.0, 1.0), str(total)


def test_a_healthy_fleet_is_silent(tmp_path: Path) -> None:
    """Nothing was planted, and nothing is told."""
    assert judged(tmp_path, Set.HEALTHY, 21, 10_000).incidents == ()
