"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tricklecast.analytics.report.formats import (
    clock,
    counted,
    date_and_time,
    number,
    percent,
    rate,
    size,
    times,
)

BASE = 1_760_000_000_000_000


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [
        (date_and_time, BASE, "2025-10-09 08:53:20"),
        (clock, BASE + 999_999, "08:53:20"),
        (size, 1023, "1,023 B"),
        (size, 3 * 1024**2, "3.0 MiB"),
        (size, 5000 * 1024**5, "5,000.0 PiB"),
        (rate, 0.5, "0.5/s"),
        (rate, 1234.5, "1,234/s"),
        (percent, 0.0, "0 %"),
        (percent, 1.0, "100 %"),
        (percent, 0.5, "50 %"),
        (percent, 0.0312, "3.1 %"),
        (percent, 0.00001, "< 0.1 %"),
        (percent, 0.9968, "> 99 %"),
        (number, 0.0, "0"),
        (number, 2.104, "2.1"),
        (number, 1234.5, "1,234"),
        (times, 1.0, "1.00 \N{MULTIPLICATION SIGN}"),
        (times, 37.41, "37.4 \N{MULTIPLICATION SIGN}"),
        (times, 436.7, "437 \N{MULTIPLICATION SIGN}"),
    ],
)
def test_formats(form: Callable[[Any], str], value: float, shown: str) -> None:
    """Each figure has the digits and the unit in which it is read best."""
    assert form(value) == shown


def test_counted() -> None:
    """One of them has no plural."""
    assert [counted(count, "line") for count in (0, 1, 1200)] == ["0 lines", "1 line", "1,200 lines"]


@pytest.mark.parametrize("us", [2**63 - 1, -(2**63)])
def test_no_time(us: int) -> None:
    """A number that is no time on the calendar is shown as what it is."""
    assert date_and_time(us) == clock(us) == f"{us} µs"
