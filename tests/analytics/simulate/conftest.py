"""One small log of each set, for all tests that only read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.analytics.simulate.logs import Line, all_lines
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import simulate_logs
from tricklecast.analytics.simulate.truth import Set, Truth

SEED = 7


@dataclass(frozen=True, slots=True)
class Log:
    """A simulated log: its folder, its truth, its lines."""

    folder: Path
    truth: Truth
    lines: list[Line]


def simulated(
    folder: Path, seed: int, kind: Set, lines: int, form: FormatName = FormatName.JSONL, *, force: bool = False
) -> Truth:
    """Writes a log of about so many lines."""
    return simulate_logs(folder, seed, kind, sizes(lines=lines, kind=kind), form, force=force)


def _log(folder: Path, kind: Set, lines: int) -> Log:
    truth = simulated(folder, SEED, kind, lines)
    return Log(folder, truth, all_lines(folder))


@pytest.fixture(scope="session")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Clear cases."""
    return _log(tmp_path_factory.mktemp("logs") / "standard", Set.STANDARD, 60_000)


@pytest.fixture(scope="session")
def grey(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Cases near the thresholds."""
    return _log(tmp_path_factory.mktemp("logs") / "grey", Set.GREY, 15_000)
