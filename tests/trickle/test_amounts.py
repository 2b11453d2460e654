"""Durations, sizes and bit rates in options."""

from __future__ import annotations

import pytest

from tricklecast.trickle.amounts import parse_bitrate, parse_duration, parse_size
from tricklecast.trickle.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10), ("1.5s", 1.5), ("500ms", 0.5), (" 2 min ", 120), ("2m", 120), ("1.5 H", 5400), ("7d", 604_800)],
)
def test_durations(text: str, seconds: float) -> None:
    """With and without a unit; plain numbers are seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1", "-1s", "1 day", "1e3", "1 2", "\u0661s", "inf", "nan"])
def test_what_is_no_duration(text: str) -> None:
    """Nothing, no unit, and no time at all included."""
    with pytest.raises(InvalidInput, match=r"not a duration: .*30s"):
        parse_duration(text)


def test_no_time_at_all_may_be_allowed() -> None:
    """Where not waiting makes sense."""
    assert parse_duration("0", zero=True) == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 65_536), ("1.5 kb", 1500), ("1.5 MB", 1_500_000), ("20GB", 20_000_000_000), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    """In bytes, and powers of 1000 or 1024 of them."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "4 parsecs", "0", "0.5", "-1", "1e3"])
def test_what_is_no_size(text: str) -> None:
    """Less than a byte included."""
    with pytest.raises(InvalidInput, match=r"not a size: .*64KiB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "bits"), [("64000", 64_000), ("800k", 800_000), ("2.5M", 2_500_000), ("1 K", 1000)])
def test_bit_rates(text: str, bits: int) -> None:
    """In bits, thousands and millions of them."""
    assert parse_bitrate(text) == bits


@pytest.mark.parametrize("text", ["", "k", "0", "0.5", "-1", "1kbit", "1s"])
def test_what_is_no_bit_rate(text: str) -> None:
    """Less than one bit per second included."""
    with pytest.raises(InvalidInput, match=r"not a bit rate: .*800k"):
        parse_bitrate(text)
