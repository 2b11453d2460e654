"""Durations and bitrates in options."""

from __future__ import annotations

import pytest

from publisher.media.amounts import parse_bitrate, parse_seconds
from trickle.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("1.5s", 1.5), ("500ms", 0.5), (" 2 min ", 120), ("1h", 3600), ("3S", 3)]
)
def test_durations(text: str, seconds: float) -> None:
    """With and without a unit."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(("text", "bits"), [("64000", 64_000), ("800k", 800_000), ("2.5M", 2_500_000), ("1 K", 1000)])
def test_bitrates(text: str, bits: int) -> None:
    """In bits, thousands and millions of them."""
    assert parse_bitrate(text) == bits


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1", "1 day", "1e3", "1,5", "\u0661s"])
def test_what_is_no_duration(text: str) -> None:
    """Nothing, no unit, and no time at all included."""
    with pytest.raises(InvalidInput, match="not a duration"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "k", "0", "0.5", "-1", "1kbit", "1s"])
def test_what_is_no_bitrate(text: str) -> None:
    """Less than one bit per second included."""
    with pytest.raises(InvalidInput, match="not a bitrate"):
        parse_bitrate(text)
