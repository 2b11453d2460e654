"""Times and lengths of time as people type them."""

from __future__ import annotations

import pytest

from tricklecast.analytics.times import parse_duration, parse_time

NOW = 1_760_000_000_123_456
"""2025-10-09 08:53:20.123456 UTC."""

DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2025-10-09T08:53:20.123456Z", NOW),
        ("2025-10-09T08:53:20.123456", NOW),
        ("2025-10-09 08:53", NOW - 20_123_456),
        ("2025-10-09T10:53:20.123456+02:00", NOW),
        (" 2025-10-09 ", NOW - NOW % DAY),
        ("20251009T085320Z", NOW - 123_456),
        ("1970-01-01", 0),
        ("now", NOW),
        ("2h ago", NOW - 7_200_000_000),
        ("1.5 H ago", NOW - 5_400_000_000),
        ("2h", NOW - 7_200_000_000),
        ("30d ago", NOW - 30 * DAY),
    ],
)
def test_times(text: str, us: int) -> None:
    """ISO 8601 with or without a zone, dates, and so long ago; exact to the microsecond."""
    assert parse_time(text, NOW) == us


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2h from now", "ago", "-2h", "2025-13-01", "1969-12-31", "99999w ago"]
)
def test_no_times(text: str) -> None:
    """What is none is told, with what it was."""
    with pytest.raises(ValueError, match=r"not a time|not a duration|before 1970"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "us"),
    [("90s", 90_000_000), ("15m", 900_000_000), ("15 min", 900_000_000), ("4w", 28 * DAY), ("0.5d", DAY // 2)],
)
def test_durations(text: str, us: int) -> None:
    """A number and a unit."""
    assert parse_duration(text) == us


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "1e3s", "1" * 5000 + "s"])
def test_no_durations(text: str) -> None:
    """As above."""
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
