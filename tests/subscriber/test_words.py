"""Numbers for people, and what people write."""

from __future__ import annotations

import pytest

from subscriber.events import Totals
from subscriber.progress import Progress, summary
from subscriber.words import count, rate, size


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


def test_a_perfect_summary() -> None:
    """Says that nothing was missed."""
    assert summary(Totals(1.25, 1, 5)) == "received 1 segment, 5 B in 1.2 s; no gaps"


def test_a_rate_is_that_of_the_last_seconds() -> None:
    """An average since the beginning would show no change."""
    now = 100.0
    progress = Progress(lambda: now)
    received = 0

    class Numbers:
        def statistics(self) -> object:
            from subscriber.statistics import Statistics

            return Statistics(bytes=received)

    progress.subscribed(Numbers())  # type: ignore[arg-type]
    for _ in range(10):
        now += 1
        received += 1000
        assert progress.bits_per_s() == pytest.approx(8000)
    for _ in range(6):
        now += 1
        last = progress.bits_per_s()
    assert last == 0
