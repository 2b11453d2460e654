"""How long a publisher waits before a retry, and when there is to be none any more. No I/O, no clock.

- Every retry waits for a random delay of at least :data:`MIN_DELAY_S`, on top of ``Retry-After`` where there is one.
- Every retry is paid from a budget that published segments refill, except after :data:`LONG_S` of a quiet preconnect,
  and for the first :data:`OUTAGE_S` seconds without a connection, which a server needs to start again.
- What happened to several requests at the same time is paid for once.
- A server that cannot be reached, or does not answer, or for which a proxy says so (a 5xx without ``Retry-After``), is
  waited for :data:`OUTAGE_LIMIT_S` seconds in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.publisher.verdicts import Lost
from tricklecast.trickle.backoff import Backoff, RetryBudget
from tricklecast.trickle.errors import Refused, TrickleError

if TYPE_CHECKING:
    from random import Random

MIN_DELAY_S: Final = 0.05
"""No retry comes sooner than this, whatever the dice say."""

LONG_S: Final = 10.0
"""A preconnect that stood this long and then broke was cut for idleness (by a load balancer, say). Replacing it is
ordinary work, not a retry: as often as the server's own sign of life on an idle preconnect."""

OUTAGE_S: Final = 15.0
"""So many seconds of waiting for a server that cannot be reached cost nothing: about what a restart takes."""

OUTAGE_DELAY_S: Final = 0.25
"""The shortest delay in an outage after its first few retries, so that no dice make many requests of those seconds."""

OUTAGE_LIMIT_S: Final = 60.0
"""After so many, whatever is left of the budget, publishing has failed: somebody has to know."""

FIRST_RETRIES: Final = 3
MAX_RETRY_AFTER_S: Final = 300.0
"""Told to wait longer than this, the publisher gives up: live media would be stale by then."""


class Patience:
    """Counts failures and says how long to wait after the next one.

    Args:
        rng: where the jitter comes from.
        backoff: delays before retries.
        budget: how many retries there may be.
    """

    def __init__(self, rng: Random, backoff: Backoff | None = None, budget: RetryBudget | None = None) -> None:
        self._rng = rng
        self._backoff = backoff or Backoff()
        self._budget = budget or RetryBudget()
        self._failures = 0
        self._outage_s = 0.0

    def published(self) -> None:
        """The server has stored a segment: all is well."""
        self._failures, self._outage_s = 0, 0.0
        self._budget.earn()

    def after_loss(self, lost: Lost, lived_s: float, *, known: bool) -> float | None:
        """How many seconds to wait after a lost connection; ``None`` if there is to be no other.

        Args:
            lost: how it was lost.
            lived_s: how long after the request was begun.
            known: others were lost before it, at the same time; one of them has paid, and will ask for the position.
        """
        in_vain_s = lost.waited_s if lost.connected else lived_s
        if lost.connected and not in_vain_s and lived_s >= LONG_S:
            self._failures, self._outage_s = 0, 0.0
        elif not known and not self._can_outlast(in_vain_s):
            return None
        return self._outlast(in_vain_s, known=known)

    def after_answer(self, error: TrickleError, lived_s: float, *, known: bool = False) -> float | None:
        """How many seconds to wait before another request; ``None`` if there is to be none.

        Args:
            error: what the server said.
            lived_s: how long after the request was begun.
            known: another request was told the same, and has paid.
        """
        if isinstance(error, Refused) and (error.status or 0) >= 500 and error.retry_after is None and lived_s < LONG_S:
            # A proxy's, most likely, with nobody behind it: an outage like any other.
            return self._outlast(0.0, known=known) if known or self._can_outlast(0.0) else None
        floor_s = getattr(error, "retry_after", None) or 0.0
        if known:
            pass
        elif lived_s >= LONG_S:
            self._failures = 1
        elif self._budget.spend():
            self._failures += 1
        else:
            return None
        if floor_s > MAX_RETRY_AFTER_S:
            return None
        return max(MIN_DELAY_S, self._backoff.delay(max(1, self._failures), self._rng, floor_s=floor_s))

    def _outlast(self, in_vain_s: float, *, known: bool) -> float:
        self._failures += not known
        least_s = MIN_DELAY_S if self._failures <= FIRST_RETRIES else OUTAGE_DELAY_S
        delay_s = max(least_s, self._backoff.delay(max(1, self._failures), self._rng))
        if not known:
            self._outage_s += delay_s + in_vain_s
        return delay_s

    def _can_outlast(self, in_vain_s: float) -> bool:
        if self._outage_s + in_vain_s >= OUTAGE_LIMIT_S:
            return False
        return self._outage_s < OUTAGE_S or self._budget.spend()
