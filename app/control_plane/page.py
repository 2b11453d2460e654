"""What takes long with many channels: made when it is asked for, but not so often that nothing else gets done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

CHEAP_S: Final = 0.005
"""CPU seconds up to which a page is always made anew. Metrics take 2 ms, a list of 300 channels 5 ms."""

REST: Final = 10
"""A page that took longer is shown again for so many times as long: whoever asks for it without end costs the event
loop a tenth of its time."""


class Page:
    """What is shown now.

    Args:
        make: makes it.
        clock: seconds. cpu: seconds that this thread has worked.
    """

    def __init__(
        self,
        make: Callable[[], bytes],
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._make = make
        self._clock = clock
        self._cpu = cpu
        self._text = b""
        self._made_at = self._until = clock()

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._made_at

    def text(self) -> bytes:
        """The page."""
        if self._clock() < self._until:
            return self._text
        begun = self._cpu()
        self._text = self._make()
        cost = self._cpu() - begun
        self._made_at = self._clock()
        self._until = self._made_at + (REST * cost if cost > CHEAP_S else 0.0)
        return self._text
