"""Numbers for people."""

from __future__ import annotations

import pytest

from tricklecast.trickle.words import count, rate, size


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e9, "2.0 GB"), (3.25e12, "3.2 TB")],
)
def test_sizes_are_for_people(number: float, text: str) -> None:
    """Powers of 1000, one digit."""
    assert size(number) == text


def test_rates_and_counts_are_for_people() -> None:
    """With the unit, and the plural, that fits."""
    assert (rate(64_000), rate(2_345_678)) == ("64 kbit/s", "2.35 Mbit/s")
    assert (count(1, "gap"), count(2, "gap"), count(2, "retry", "retries")) == ("1 gap", "2 gaps", "2 retries")
