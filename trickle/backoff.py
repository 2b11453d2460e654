"""Capped exponential delays with full jitter, and a budget for retries. No clock; the caller passes the randomness.

Equal delays keep clients together that failed together: they return as one herd. Full jitter draws each delay evenly
between 0 and a ceiling that doubles with each failure, and so spreads them. "Equal jitter" (half of the delay is fixed)
needs more requests and more time (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).

Delays alone do not bound the load: a fleet whose every request fails once sends twice as many. So retries are paid from
a budget (Google SRE book, "Handling Overload"): beyond a reserve, they are a share of the wanted requests. With the
defaults, 1,000 requests cause at most 210 retries, however many of them fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

BASE_S: Final = 0.25
"""Upper end of the first delay, in seconds."""

CAP_S: Final = 10.0
"""Upper end of every delay, in seconds."""

BUDGET_RATIO: Final = 0.2
"""Tokens that a wanted request earns (Finagle's default, too; the SRE book suggests a tenth)."""

BUDGET_RESERVE: Final = 10.0
"""Tokens at the start, and the most that a budget holds."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays before a retry.

    Attributes:
        base_s: upper end of the first delay, in seconds.
        cap_s: upper end of every delay, in seconds.
    """

    base_s: float = BASE_S
    cap_s: float = CAP_S

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError("a backoff needs 0 < base_s <= cap_s")

    def ceiling(self, failures: int) -> float:
        """Return the longest delay, in seconds, after a number of failures in a row (1 or more)."""
        if failures < 1:
            raise ValueError("a delay follows at least one failure")
        # 2 ** 64 already exceeds every cap; a larger exponent would only overflow a float.
        return min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 64))

    def delay(self, failures: int, rng: Random, *, floor_s: float | None = None) -> float:
        """Draw the seconds to wait before the next attempt.

        Args:
            failures: number of failures in a row, 1 or more.
            floor_s: the value of ``Retry-After``. The jitter comes on top of it: clients that share a floor would
                come back together.
        """
        jitter = rng.uniform(0.0, self.ceiling(failures))
        return jitter if floor_s is None else floor_s + jitter


class RetryBudget:
    """Tokens that wanted requests earn and retries spend.

    A fresh budget allows a short burst (``reserve``); after that, retries are at most ``ratio`` of the wanted
    requests. If there is no token, the retry is refused, not delayed: the caller gives up with the error that it has.

    Args:
        ratio: tokens that a wanted request earns.
        reserve: tokens at the start, and the most that the budget holds.
    """

    __slots__ = ("_ratio", "_reserve", "_tokens")

    def __init__(self, ratio: float = BUDGET_RATIO, reserve: float = BUDGET_RESERVE) -> None:
        if ratio < 0 or reserve < 0:
            raise ValueError("a retry budget needs ratio >= 0 and reserve >= 0")
        self._ratio = ratio
        self._reserve = reserve
        self._tokens = reserve

    @property
    def tokens(self) -> float:
        """The tokens that are left. A retry costs 1."""
        return self._tokens

    def earn(self) -> None:
        """Count a wanted request that succeeded."""
        if self._tokens < self._reserve:
            self._tokens = min(self._reserve, self._tokens + self._ratio)

    def spend(self) -> bool:
        """Pay for one retry; ``False``, and nothing is paid, if less than one token is left."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
