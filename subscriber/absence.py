"""How long a server or a channel has not been there, and what that has cost."""

from __future__ import annotations

from random import Random

from tricklecast.subscriber import patience
from tricklecast.subscriber.verdicts import RetryAfter, Stop
from tricklecast.trickle.backoff import Backoff, RetryBudget
from tricklecast.trickle.errors import TrickleError


class Absence:
    """One time without the server, or without the channel.

    A server that went away is one outage however it looks: refused connections, resets, answers that end before they
    begin, a proxy's 502. It costs one token of the retry budget, and beyond that time.

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
        """What is waited for has not been there yet."""
        return self._since is not None and not self.lost

    def lose(self, budget: RetryBudget) -> bool:
        """The server failed; ``False`` if that cannot be paid for. Until :meth:`over` it is the same failure."""
        if not self.lost and not budget.spend():
            return False
        self.lost = True
        return True

    def wait(self, error: TrickleError, limit_s: float, now: float, rng: Random, backoff: Backoff) -> RetryAfter | Stop:
        """Wait before it is asked for again, unless ``limit_s`` seconds have passed since it went.

        Args:
            error: what is the matter.
            limit_s: how long it is waited for in all, in seconds.
            now: seconds on a monotonic clock.
            rng: where jitter comes from.
            backoff: how long each time.
        """
        self._since = now if self._since is None else self._since
        if now >= self._since + limit_s:
            return Stop(error)
        self._tries += 1
        return RetryAfter(backoff.delay(self._tries, rng, floor_s=patience.MIN_PAUSE_S), error)

    def anew(self) -> None:
        """Something else is waited for from now on."""
        self._since, self._tries = None, 0

    def over(self) -> None:
        """It is there."""
        self.anew()
        self.lost = False
