"""How long a client waits before it asks again, and when it gives up. No I/O, no clock, no dice of its own.

- No request is repeated at once: each retry waits for a random delay of at least :data:`MIN_DELAY_S`, on top of
  ``Retry-After`` where the server sent one.
- Each refusal is paid from a budget that successful requests refill (:class:`Retries`).
- A server that is away is one outage, however that looks: a refused connection, a reset, a proxy's 502. It is waited
  for a limited time (:class:`Outage`).
"""

from __future__ import annotations

from random import Random
from typing import Final

from tricklecast.trickle.backoff import Backoff, RetryBudget

MIN_DELAY_S: Final = 0.05
"""No retry comes sooner, whatever the dice say: full jitter may draw 0."""

MAX_RETRY_AFTER_S: Final = 300.0
"""A client that is told to wait longer gives up: live media would be stale by then."""


class Retries:
    """Failures in a row, the delays after them, and the budget that pays for retries.

    Args:
        backoff: delays before retries.
        budget: how many retries there may be.

    Attributes:
        failures: how many in a row.
    """

    __slots__ = ("_backoff", "_budget", "failures")

    def __init__(self, backoff: Backoff | None = None, budget: RetryBudget | None = None) -> None:
        self.failures = 0
        self._backoff = backoff or Backoff()
        self._budget = budget or RetryBudget()

    def pay(self) -> bool:
        """Take one retry out of the budget; ``False`` (and nothing taken) if there is none left."""
        return self._budget.spend()

    def earn(self) -> None:
        """A wanted request did what it should: the budget grows."""
        self._budget.earn()

    def succeeded(self) -> None:
        """All is well: no failures, and the budget grows."""
        self.failures = 0
        self.earn()

    def delay_s(self, rng: Random, floor_s: float | None = None, backoff: Backoff | None = None) -> float:
        """Seconds to wait before the next request.

        Args:
            rng: where jitter comes from.
            floor_s: what ``Retry-After`` said; the jitter comes on top of it.
            backoff: delays instead of the usual ones.
        """
        return max(MIN_DELAY_S, (backoff or self._backoff).delay(max(1, self.failures), rng, floor_s=floor_s))

    def refused(
        self, rng: Random, retry_after_s: float | None = None, limit_s: float = MAX_RETRY_AFTER_S
    ) -> float | None:
        """The server said no for now: how many seconds to wait before asking again; ``None``: give up.

        Args:
            rng: where jitter comes from.
            retry_after_s: what the server said.
            limit_s: how long a wait the client accepts, in seconds. A longer one costs nothing: it is a no.
        """
        if (retry_after_s or 0.0) > limit_s or not self.pay():
            return None
        self.failures += 1
        return self.delay_s(rng, retry_after_s)


class Outage:
    """One time without the server, or without the channel: it costs one retry, and beyond that time.

    Attributes:
        lost: the server, or the way to it, was there before.
    """

    __slots__ = ("_since", "_tries", "lost")

    def __init__(self) -> None:
        self.lost = False
        self._since: float | None = None
        self._tries = 0

    @property
    def is_first(self) -> bool:
        """Whether the client waits for something that was never there."""
        return self._since is not None and not self.lost

    def lose(self, retries: Retries) -> bool:
        """The server failed; ``False`` if that cannot be paid for. Until :meth:`over` it is the same failure."""
        if not self.lost and not retries.pay():
            return False
        self.lost = True
        return True

    def wait(self, limit_s: float, now: float, rng: Random, backoff: Backoff) -> float | None:
        """How many seconds to wait before the next request; ``None`` once ``limit_s`` seconds have passed.

        Args:
            limit_s: how long the outage may last, from its first failure, in seconds.
            now: seconds on a monotonic clock.
            rng: where jitter comes from.
            backoff: how long each time.
        """
        self._since = now if self._since is None else self._since
        if now >= self._since + limit_s:
            return None
        self._tries += 1
        return backoff.delay(self._tries, rng, floor_s=MIN_DELAY_S)

    def restart(self) -> None:
        """The client waits for something else from now on: the time begins anew."""
        self._since, self._tries = None, 0

    def over(self) -> None:
        """The server is there."""
        self.restart()
        self.lost = False
