"""How far a run has come, in words."""

from __future__ import annotations

import pytest

from tricklecast.subscriber.command.events import Totals
from tricklecast.subscriber.command.progress import Progress, summary


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
            from tricklecast.subscriber.events import SubscriberStatistics

            return SubscriberStatistics(bytes=received)

    progress.subscribed(Numbers())  # type: ignore[arg-type]
    for _ in range(10):
        now += 1
        received += 1000
        assert progress.bits_per_s() == pytest.approx(8000)
    for _ in range(6):
        now += 1
        last = progress.bits_per_s()
    assert last == 0
