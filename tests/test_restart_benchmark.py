"""The benchmark of restarts: what it counts, and what it says; never its speed."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from benchmarks.restart import Outage, busiest, print_found


@pytest.mark.parametrize(
    ("times", "most"),
    [([], 0), ([5.0], 1), ([0.0, 0.5, 0.999], 3), ([0.0, 0.5, 1.0], 2), ([3.0, 0.0, 2.5, 9.0], 2)],
)
def test_the_busiest_second_begins_anywhere(times: list[float], most: int) -> None:
    """A window that is open at one end, and times in any order."""
    assert busiest(times, 1.0) == most


@pytest.mark.parametrize(("at_once", "kept"), [(19, True), (20, False)])
def test_the_verdict(at_once: int, kept: bool) -> None:
    """Below twice the rate at which clients are sent away; what a kill does is shown beside it."""
    spread = [float(second) for second in range(100 - at_once)]
    drained = Outage(100, [*spread, *[500.0] * at_once], Counter({503: 100, 404: 100}))
    killed = Outage(100, [0.0] * 100, Counter({0: 300, 404: 100}))
    text = io.StringIO()
    assert print_found(Console(file=text, width=160), {"drained": drained, "killed": killed}, 10.0) is kept
    assert ("yes" if kept else "NO") in text.getvalue()
    assert "10.00" in text.getvalue()
