"""Bounds the bytes per second that a mirror reads from its source."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

LEAD_S: Final = 1.0
"""A live channel may be ahead of the limit by so much: history waits until it has had its bytes."""

RATE_S: Final = 10
"""The rate is the mean of this many whole seconds, the last ones."""


class Pace:
    """The bytes of all copies and feeds.

    Args:
        most: bytes per second; ``None``: as many as come.

    Attributes:
        total: how many there were.
    """

    def __init__(self, most: float | None) -> None:
        self.most, self.total = most, 0
        self._ahead, self._at = 0.0, 0.0  # bytes that came before their time
        self._seconds: deque[tuple[int, int]] = deque([(0, 0)], maxlen=RATE_S + 1)  # and the bytes of each

    def got(self, size: int) -> None:
        """Bytes have come."""
        now = asyncio.get_running_loop().time()
        self.total += size
        if self.most is not None:
            self._ahead = max(0.0, self._ahead - (now - self._at) * self.most) + size
            self._at = now
        second, before = self._seconds[-1]
        if second == int(now):
            self._seconds[-1] = (second, before + size)
        else:
            self._seconds.append((int(now), size))

    async def wait(self, *, live: bool) -> None:
        """Wait until the next bytes may be read."""
        while self.most is not None:
            now = asyncio.get_running_loop().time()
            pause = self._ahead / self.most - (now - self._at) - (LEAD_S if live else 0.0)
            if pause < 0.001:
                break
            await asyncio.sleep(pause)

    def rate(self) -> float:
        """Bytes per second of late."""
        now = asyncio.get_running_loop().time()
        return sum(size for second, size in self._seconds if int(now) - RATE_S <= second < int(now)) / RATE_S
