"""The text of a scrape: made when it is asked for, but never so often that it takes the server from its clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

CHEAP_S: Final = 0.005
"""CPU seconds up to which a page is always made anew; it takes 2 ms, unless there are thousands of channels."""

REST: Final = 10
"""A page that took longer is shown again for so many times as long: whoever asks for it without end costs the event
loop a tenth of its time."""


class Page:
    """What is shown now.

    Args:
        registry: what is to be shown.
        clock: seconds. cpu: seconds that this thread has worked.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._cpu = cpu
        self._text = b""
        self._until = clock()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        if self._clock() < self._until:
            return self._text
        begun = self._cpu()
        self._text = generate_latest(self._registry)
        cost = self._cpu() - begun
        self._until = self._clock() + (REST * cost if cost > CHEAP_S else 0.0)
        return self._text
