"""How a server goes away: when it sends whom away, when they are to come back, and how long it stays itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

COME_BACK_S: Final = (1, 5)
"""Shortest and longest ``Retry-After``, in seconds, where others answer at this address already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One server's last seconds.

    Who waits is sent away at a random moment of the first ``spread_s``. Who is sent away, or comes anew, is told to
    come back when the successor is there, which cannot be before this server is gone, and then at a random moment of
    as long a time again. So the successor meets the rate at which clients left, and not all of them in one second.

    Attributes:
        begun_at: seconds of the plane's clock.
        spread_s: over how long waiting clients are sent away.
        deadline_s: how long, from the beginning, what is running may take.
        restart_s: how long after the end of this server its successor answers; 0: others answer already.
    """

    begun_at: float
    spread_s: float
    deadline_s: float
    restart_s: float

    def send_away_after(self, share: float) -> float:
        """Seconds from the beginning after which one who waits is sent away.

        Args:
            share: drawn evenly between 0 and 1, for each anew.
        """
        return share * self.spread_s

    def come_back_s(self, now: float) -> tuple[int, int]:
        """Shortest and longest time, in seconds, after which who is sent away now is to come back."""
        if not self.restart_s:
            return COME_BACK_S
        # Until all are sent away it seems that this server then ends; later only the deadline is certain.
        stays_s = self.spread_s if now < self.begun_at + self.spread_s else self.deadline_s
        shortest = ceil(max(0.0, self.begun_at + stays_s - now) + self.restart_s)
        return shortest, shortest + max(ceil(self.spread_s), COME_BACK_S[1]) - 1

    def is_over(self, now: float, *, connected: bool, busy: bool) -> bool:
        """Whether nothing is left to stay for.

        Args:
            connected: there are connections, which may still bring a request that is to be answered.
            busy: exchanges are running on them.
        """
        if now >= self.begun_at + self.deadline_s or not connected:
            return True
        return not busy and now >= self.begun_at + self.spread_s
