"""Lengths of time in microseconds, the unit of every time in a log."""

from __future__ import annotations

from typing import Final

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US


def micros(seconds: float) -> int:
    """Seconds as microseconds."""
    return round(seconds * SECOND_US)
