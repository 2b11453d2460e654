"""Decides how long a client waits before it asks again, and when it gives up. No I/O, no clock, no randomness.

Theory of operation
===================

*The problem.* A client that asks again at once turns a small fault into a storm: each failure causes a request that
fails, and all clients that failed together come back together. A client that gives up at once ends a live channel
because a server was restarted.

*The idea.* Two kinds of failures are paid differently.

- A *refusal* (429, for example) is an answer: the server is there and works. Each retry after one costs a token of a
  budget that successful requests refill (:class:`Retries`). So, beyond a reserve of ten, retries are at most a fifth of
  the wanted requests.
- An *outage* is a server that is away, however the client notices it: a refused connection, a reset, a proxy's 502.
  All of its failures together cost one token, and the client waits for a limited time (:class:`Outage`). If each
  failure cost a token, a restart that takes half a minute would empty the budget, and the client would give up.

*Without end.* A client may be told to go on for ever. The budget then does not end it, but slows it down: a retry that
the budget cannot pay waits for at least half of the longest delay.

*Invariants.* No request is repeated at once: each retry waits for a random delay of at least :data:`MIN_DELAY_S`, on
top of ``Retry-After`` if the server sent one. The budget never goes below zero: it pays for a retry, or does not.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final, NamedTuple

from tricklecast.trickle.backoff import Backoff, RetryBudget
from tricklecast.trickle.errors import TrickleError

MIN_DELAY_S: Final = 0.05
"""The shortest delay before a retry. Full jitter alone may draw 0."""

MAX_RETRY_AFTER_S: Final = 300.0
"""A client gives up if the server asks it to wait longer than this: live media would be stale by then."""

RECONNECT_S: Final = 60.0
"""How long both clients wait by default for a server that was there and is away: a restart takes less, also of a large
data directory. Live media would be stale later."""


def limit_of(reconnect_s: float | None) -> float:
    """Turn a client's argument into a limit: ``None`` is "for ever"."""
    return math.inf if reconnect_s is None else reconnect_s


class Stop(NamedTuple):
    """The decision of a client's core to give up with this error: nothing more can be published, or read."""

    error: TrickleError


class Retries:
    """Failures in a row, the delays after them, and the budget that pays for retries.

    Args:
        backoff, budget: delays before retries, and what pays for them.
        endless: a retry that the budget cannot pay is slowed down, and made.

    Attributes:
        failures: number of failures in a row.
    """

    __slots__ = ("_backoff", "_budget", "_is_broke", "endless", "failures")

    def __init__(
        self, backoff: Backoff | None = None, budget: RetryBudget | None = None, *, endless: bool = False
    ) -> None:
        self.failures = 0
        self.endless: Final = endless
        self._backoff = backoff or Backoff()
        self._budget = budget or RetryBudget()
        self._is_broke = False  # the last retry was not paid, and is made

    def pay(self) -> bool:
        """Take one retry out of the budget; ``False`` (and nothing taken) if there is none left, and no retry is to
        be made."""
        is_paid = self._budget.spend()
        self._is_broke = self.endless and not is_paid
        return is_paid or self.endless

    def earn(self) -> None:
        """Count a request that succeeded: the budget grows."""
        self._budget.earn()

    def succeeded(self) -> None:
        """Count a request that succeeded, and end the row of failures."""
        self.failures = 0
        self.earn()

    def delay_s(self, rng: Random, floor_s: float | None = None, backoff: Backoff | None = None) -> float:
        """Seconds to wait before the next request.

        Args:
            floor_s: the value of ``Retry-After``; the jitter comes on top of it.
            backoff: delays instead of the usual ones.
        """
        delay_s = (backoff or self._backoff).delay(max(1, self.failures), rng, floor_s=floor_s)
        return self.slowed(max(MIN_DELAY_S, delay_s), rng)

    def slowed(self, delay_s: float, rng: Random) -> float:
        """Return the delay, or a long one if the last retry was not paid."""
        cap_s = self._backoff.cap_s
        return max(delay_s, rng.uniform(cap_s / 2, cap_s)) if self._is_broke else delay_s

    def refused(
        self, rng: Random, retry_after_s: float | None = None, limit_s: float = MAX_RETRY_AFTER_S
    ) -> float | None:
        """Count a refusal. Return the seconds to wait before the next request; ``None``: give up.

        Args:
            retry_after_s: the value of ``Retry-After``.
            limit_s: the longest wait that the client accepts, in seconds. If the server asks for a longer one, the
                client gives up, and the budget pays nothing.
        """
        if ((retry_after_s or 0.0) > limit_s and not self.endless) or not self.pay():
            return None
        self.failures += 1
        return self.delay_s(rng, retry_after_s)


class Outage:
    """A time without the server, or without the channel. It costs one retry, and then only time.

    Attributes:
        lost: a server that was there before has failed.
        tries: waits since the first failure.
    """

    __slots__ = ("_since", "lost", "tries")

    def __init__(self) -> None:
        self.lost = False
        self.tries = 0
        self._since: float | None = None  # when the first wait began

    @property
    def is_first(self) -> bool:
        """Whether the client waits for a server or channel that was never there."""
        return self._since is not None and not self.lost

    def lose(self, retries: Retries) -> bool:
        """Count a failure of the server; ``False`` if the budget cannot pay for it. Until :meth:`over`, further
        failures belong to the same outage and cost nothing.
        """
        if not self.lost and not retries.pay():
            return False
        self.lost = True
        return True

    def wait(self, limit_s: float, now: float, rng: Random, backoff: Backoff) -> float | None:
        """Return the seconds to wait before the next request; ``None``: the outage has lasted too long.

        Args:
            limit_s: how long the outage may last, from its first failure, in seconds.
            now: seconds on a monotonic clock.
        """
        self._since = now if self._since is None else self._since
        if now >= self._since + limit_s:
            return None
        self.tries += 1
        return backoff.delay(self.tries, rng, floor_s=MIN_DELAY_S)

    def restart(self) -> None:
        """Let the time begin anew: the client waits for something else from now on."""
        self._since, self.tries = None, 0

    def over(self) -> None:
        """End the outage: the server is there."""
        self.restart()
        self.lost = False
