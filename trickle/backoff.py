"""When to try again: capped exponential delays with full jitter, and a budget for retries.

Full jitter (a delay drawn evenly between 0 and the cap) spreads clients that failed together; equal delays keep
them together. See M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The budget follows
the Google SRE book, "Handling Overload": retries are a share of the wanted requests, so that a whole fleet that
fails cannot multiply its own load.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

BASE_S: Final = 0.25
CAP_S: Final = 10.0
BUDGET_RATIO: Final = 0.2
BUDGET_RESERVE: Final = 10.0


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
        """The longest delay, in seconds, after so many failures in a row (1 or more)."""
        if failures < 1:
            raise ValueError("a delay follows at least one failure")
        # 2 ** 64 already exceeds every cap; a larger exponent would only overflow a float.
        return min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 64))

    def delay(self, failures: int, rng: Random, *, floor_s: float | None = None) -> float:
        """Seconds to wait after so many failures in a row.

        Args:
            failures: failures in a row so far, 1 or more.
            rng: where the jitter comes from.
            floor_s: what ``Retry-After`` said. The jitter then comes on top of it, since a floor that all
                clients share would bring them back together.
        """
        jitter = rng.uniform(0.0, self.ceiling(failures))
        return jitter if floor_s is None else floor_s + jitter


class RetryBudget:
    """Tokens that retries spend and wanted requests earn.

    A fresh budget allows a short burst (``reserve``); after that, retries are at most ``ratio`` of the wanted
    requests. Spending is refused rather than delayed: the caller then gives up with the error that it has.

    Args:
        ratio: tokens earned per wanted request.
        reserve: tokens at the start, and at most.
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
        """What is left; one retry costs 1."""
        return self._tokens

    def earn(self) -> None:
        """A wanted request succeeded."""
        self._tokens = min(self._reserve, self._tokens + self._ratio)

    def spend(self) -> bool:
        """Take one retry out of the budget; ``False`` (and nothing taken) if there is none left."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
