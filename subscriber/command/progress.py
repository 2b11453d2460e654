"""How far a run has come: its totals, and the line that people watch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.command.events import Totals
from tricklecast.subscriber.events import SubscriberStatistics
from tricklecast.trickle.terminal import count, rate, size

RATE_WINDOW_S: Final = 5.0
"""Bit rates are those of the last seconds: an average over hours shows no change."""


class Progress:
    """Counts over all subscriptions of a run.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_at: Final = clock()
        self._before = Totals()
        self._subscriber: Subscriber | None = None
        self._samples: deque[tuple[float, int]] = deque([(self._began_at, 0)])
        self.seq: int | None = None
        self.lag = 0
        self.state = "connecting"

    def subscribed(self, subscriber: Subscriber) -> None:
        """Another subscription begins; what the last one counted stays counted."""
        self._before = self.totals()
        self._subscriber = subscriber

    def begun(self, seq: int, lag: int) -> None:
        """A segment begins."""
        self.seq, self.lag, self.state = seq, lag, ""

    @property
    def statistics(self) -> SubscriberStatistics:
        """Of the present subscription."""
        return SubscriberStatistics() if self._subscriber is None else self._subscriber.statistics()

    def totals(self) -> Totals:
        """All so far."""
        now, before = self.statistics, self._before
        return replace(
            before,
            seconds=self._clock() - self._began_at,
            segments=before.segments + now.segments,
            bytes=before.bytes + now.bytes,
            gaps=before.gaps + now.gaps,
            missed=before.missed + now.missed,
            truncated=before.truncated + now.truncated,
            broken=before.broken + now.broken,
            resumed=before.resumed + now.resumed,
            retries=before.retries + now.retries,
            requests=before.requests + now.requests,
        )

    def bits_per_s(self) -> float:
        """The bit rate of the last seconds. Ask often: what happened in between is not known."""
        now, total = self._clock(), self.totals().bytes
        while len(self._samples) > 1 and self._samples[1][0] <= now - RATE_WINDOW_S:
            self._samples.popleft()
        since, before = self._samples[0]
        self._samples.append((now, total))
        return 8 * (total - before) / max(now - since, 0.1)

    def line(self) -> str:
        """The state in one line."""
        totals = self.totals()
        words = [self.state or f"segment {self.seq}", f"lag {self.lag}", rate(self.bits_per_s()), size(totals.bytes)]
        words += [f"{totals.seconds:.0f} s"]
        words += [f"{totals.missed} missed in {count(totals.gaps, 'gap')}"] if totals.gaps else []
        words += [f"{totals.truncated + totals.broken} cut"] if totals.truncated + totals.broken else []
        words += [count(totals.retries, "retry", "retries")] if totals.retries else []
        return " · ".join(words)


def summary(totals: Totals) -> str:
    """The last line: what was received, and what was not."""
    line = f"received {count(totals.segments, 'segment')}, {size(totals.bytes)} in {totals.seconds:.1f} s"
    faults = [
        f"{count(totals.gaps, 'gap')} ({count(totals.missed, 'segment')} missed)" if totals.gaps else "",
        f"{totals.truncated} truncated" if totals.truncated else "",
        f"{totals.broken} cut" if totals.broken else "",
    ]
    return f"{line}; {', '.join(filter(None, faults)) or 'no gaps'}"
