"""The benchmark of open dashboards runs, and judges by the differences within one round."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks import dashboard
from benchmarks.dashboard import MANY


def test_dashboards_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is sent bytes; without one nothing is sent. (Too short and too small to judge by.)"""
    monkeypatch.setattr(dashboard, "WARM_UP_S", 1.5)
    monkeypatch.setattr(dashboard, "WINDOW_S", 0.0)
    found = dashboard.measure(channels=20, seconds=1.5, rounds=1)
    assert {count: rates[0][1] > 0 for count, rates in found.items()} == {0: False, 1: True, MANY: True}


@pytest.mark.parametrize(
    ("one", "many", "good"), [((0.12, 0.13), (0.128, 0.138), True), ((0.14, 0.15), (0.14, 0.15), False),
                              ((0.12, 0.13), (0.14, 0.15), False)]
)  # fmt: skip
def test_costs_are_compared_within_a_round(one: tuple[float, ...], many: tuple[float, ...], good: bool) -> None:
    """One dashboard costs at most 3 % of a core, and many at most 1.5 times as much."""
    rounds = {0: (0.10, 0.11), 1: one, MANY: many}
    found = {count: [(share, 1000.0) for share in shares] for count, shares in rounds.items()}
    assert dashboard.report(Console(file=io.StringIO()), found) is good


def test_the_page_is_judged_by_its_slow_interactions() -> None:
    """95 of 100 have to be shown within the bound."""
    console = Console(file=io.StringIO())
    assert dashboard.report_page(console, {"key": [20.0] * 98 + [500.0]})
    assert not dashboard.report_page(console, {"key": [20.0] * 50, "scroll": [150.0] * 50})
