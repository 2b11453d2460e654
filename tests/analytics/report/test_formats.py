"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tricklecast.analytics.report.formats import (
    clock,
    counted,
    date_and_time,
    duration,
    millis,
    moment,
    moment_in,
    peak,
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
        (duration, 0.0, "0 ms"),
        (duration, 0.095, "95 ms"),
        (duration, 9.5, "9.5 s"),
        (duration, 119.9, "119.9 s"),
        (duration, 600, "10.0 min"),
        (duration, 14_400, "4.0 h"),
        (duration, -3.0, "-3.0 s"),
        (millis, 0.25, "0.2 ms"),
        (millis, 31.5, "32 ms"),
        (millis, 2500, "2.5 s"),
        (size, 1023, "1,023 B"),
        (size, 3 * 1024**2, "3.0 MiB"),
        (size, 5000 * 1024**5, "5,000.0 PiB"),
        (rate, 0.5, "0.5/s"),
        (rate, 1234.5, "1,234/s"),
        (peak, 0.5, "0.5"),
        (peak, 402.4, "402"),
        (percent, 0.0, "0 %"),
        (percent, 1.0, "100 %"),
        (percent, 0.5, "50.0 %"),
        (percent, 0.00001, "< 0.01 %"),
        (percent, 0.99999, "> 99.99 %"),
        (percent, 0.9968, "99.68 %"),
        (percent, 1.2, "120.00 %"),
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


def test_dates_where_they_are_needed() -> None:
    """The date is left out where all is on one day."""
    assert moment_in(BASE, BASE + 1, None) == moment_in(BASE) == "08:53:20"
    assert moment_in(BASE, BASE + 86_400_000_000) == "2025-10-09 08:53:20"


@pytest.mark.parametrize("us", [2**63 - 1, -(2**63)])
def test_no_time(us: int) -> None:
    """A number that is no time on the calendar is shown as what it is."""
    assert moment(us) is None
    assert date_and_time(us) == clock(us) == f"{us} µs"
