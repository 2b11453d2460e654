"""Decides how long a client waits before it asks again, and when it gives up. No I/O, no clock, no randomness.

Theory of operation
===================

*The problem.* A client that asks again at once turns a small fault into a storm: each failure causes a request that
fails, and all clients that failed together come back together. A client that gives up at once ends a live channel
because a server was restarted.

*The idea.* One :class:`Retries` per client, the same for publishers and subscribers, tells two kinds of failures apart.

- A *refusal* (429, for example) is an answer: the server is there and works. Each retry after one costs a token of a
  budget that successful requests refill. So, beyond a reserve of ten, retries are at most a fifth of the wanted
  requests.
- An *outage* is a server that is away, however the client notices it: a refused connection, a reset, silence, a proxy's
  502 without ``Retry-After``. It may last for a limited time. If each of its failures cost a token, a restart that
  takes half a minute would empty the budget, and the client would give up. So an outage costs nothing if a segment got
  through since the last one, and one token otherwise: a server that only comes and goes is left in the end.

*Delays* are random (full jitter) below a ceiling that doubles with each failure: up to 10 s after refusals, 4 s in the
first minute of an outage, 10 s later. They begin anew when the server answers again, once in an outage, and when the
outage is over.

*Without end.* A program may tell a client to go on for ever. The budget then does not end it, but slows it down: a
retry that the budget cannot pay waits for at least half of the longest delay.

*Invariants.* No request is repeated at once: each retry waits for a random delay of at least :data:`MIN_DELAY_S`, on
top of ``Retry-After`` if the server sent one. The budget never goes below zero: it pays for a retry, or does not.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final, NamedTuple

from tricklecast.trickle import wire
from tricklecast.trickle.backoff import BASE_S, Backoff, RetryBudget
from tricklecast.trickle.errors import TrickleError

MIN_DELAY_S: Final = 0.05
"""The shortest delay before a retry. Full jitter alone may draw 0."""

MAX_RETRY_AFTER_S: Final = 300.0
"""A client gives up if the server asks it to wait longer than this: live media would be stale by then."""

RECONNECT_S: Final = 60.0
"""How long both clients wait by default for a server that was there and is away: a restart takes less, also of a large
data directory. Live media would be stale later."""

BACKOFF: Final = Backoff()
"""Delays after refusals, and late in an outage."""

OUTAGE_BACKOFF: Final = Backoff(BASE_S, 4.0)
"""Delays while the server, or the channel, is away: short, since live media is wanted. Clients that come back together
spread over the longest."""

LONG_OUTAGE_S: Final = 60.0
"""After this time of an outage, or of waiting for a channel to begin, the usual delays follow: a reader may wait for
days."""

IDLE_S: Final = 10.0
"""A request that waited this long for a segment, and whose connection then broke, was most likely cut for idleness (by
a load balancer, say): until then the server was well."""


class Stop(NamedTuple):
    """The decision of a client's core to give up with this error: nothing more can be published, or read."""

    error: TrickleError


class Retries:
    """The failures of one client: how long it waits after each of them, and when it gives up.

    In its methods, ``now`` is seconds on a monotonic clock, and ``rng`` is where jitter comes from. Those that return
    seconds to wait before the next request return ``None`` for "give up". ``known`` means that another request of this
    client failed for the same reason and was counted: this one costs nothing.

    Args:
        budget: the tokens that pay for retries; ``None`` for the usual ones.
        reconnect_s: how long a server that was there may be away, in seconds; ``None``: for ever, and no passing
            refusal is final.
        wait_s: how long the client waits for a server, or a channel, that was never there.

    Attributes:
        failures: refusals in a row.
        endless: a retry that the budget cannot pay is slowed down, and made.
        lost: a server that was there is away, or has said that it goes.
        tries: delays since the present wait for a server, or channel, began, or since the server was back in it.
    """

    __slots__ = (
        "_budget",
        "_is_broke",
        "_is_proven",
        "_limit_s",
        "_since",
        "_wait_s",
        "_was_back",
        "endless",
        "failures",
        "lost",
        "tries",
    )

    def __init__(
        self,
        *,
        budget: RetryBudget | None = None,
        reconnect_s: float | None = RECONNECT_S,
        wait_s: float | None = 0.0,
    ) -> None:
        self.failures = 0
        self.endless: Final = reconnect_s is None
        self.lost = False
        self._budget = budget or RetryBudget()
        self._limit_s = math.inf if reconnect_s is None else reconnect_s
        self._wait_s = math.inf if wait_s is None else wait_s
        self._is_broke = False  # the last retry was not paid, and is made
        self._is_proven = False  # the server has served this client since the last outage
        self._since: float | None = None  # when the present wait for a server or channel began
        self._was_back = False  # the present outage's delays have begun anew
        self.tries = 0

    # Successes.

    def succeeded(self) -> None:
        """Count a request that succeeded: the row of refusals ends, and the budget grows. An outage goes on: the
        success may be that of an older request."""
        self.failures, self._is_proven, self._is_broke = 0, True, False
        self._budget.earn()

    def worked(self) -> None:
        """Count a request that succeeded and ends the outage."""
        if self.lost or self._since is not None or self.tries:
            self.over()
        self.succeeded()

    def back(self) -> None:
        """The server answers again, and has not yet served this client: delays begin anew, and the time runs on.

        They do so once in an outage. A server may answer each of these requests, and fail at each request for a
        segment: then it is not back, and a client without growing delays would be a storm.
        """
        if not self._was_back:
            self._was_back = True
            self.failures, self.tries = min(self.failures, 1), 0

    # Refusals.

    def pay(self) -> bool:
        """Take one retry out of the budget; ``False`` (and nothing taken) if there is none left, and no retry is to
        be made."""
        is_paid = self._budget.spend()
        self._is_broke = self.endless and not is_paid
        return is_paid or self.endless

    def delay_s(self, rng: Random, floor_s: float | None = None) -> float:
        """Seconds to wait before the next request.

        Args:
            floor_s: the value of ``Retry-After``; the jitter comes on top of it.
        """
        return self._delay_s(BACKOFF, self.failures, rng, floor_s)

    def refused(self, rng: Random, retry_after_s: float | None = None, *, known: bool = False) -> float | None:
        """Count a refusal.

        Args:
            retry_after_s: the value of ``Retry-After``. If it is above :data:`MAX_RETRY_AFTER_S`, the client gives up,
                and the budget pays nothing.
        """
        if (retry_after_s or 0.0) > MAX_RETRY_AFTER_S and not self.endless:
            return None
        if not known:
            if not self.pay():
                return None
            self.failures += 1
        return self.delay_s(rng, retry_after_s)

    def failed(
        self, status: int | None, retry_after_s: float | None, now: float, rng: Random, *, known: bool = False
    ) -> float | None:
        """Count an answer that may be another one later: a refusal, or an outage that a proxy tells of."""
        if (status or 0) >= wire.Status.SERVER_ERROR:
            if retry_after_s is None:
                return self.outlast(now, rng, known=known)
            self.lost = True  # most likely it is about to be restarted
        return self.refused(rng, retry_after_s, known=known)

    # Outages.

    @property
    def is_first(self) -> bool:
        """Whether the client waits for a server or channel that was never there."""
        return self._since is not None and not self.lost

    def lose(self) -> bool:
        """Count a failure of the server; ``False`` if the budget cannot pay for it. Until :meth:`over`, further
        failures belong to the same outage and cost nothing.
        """
        if not self.lost:
            if not (self._is_proven or self.pay()):
                return False
            self._is_broke &= not self._is_proven
            self.lost, self._is_proven = True, False
        return True

    def outlast(self, now: float, rng: Random, *, known: bool = False) -> float | None:
        """Count a failure of the server, and wait for it. A wait for one that was never there goes on."""
        if not (known or self.is_first or self.lose()):
            return None
        return self.wait(now, rng, known=known)

    def wait(self, now: float, rng: Random, limit_s: float | None = None, *, known: bool = False) -> float | None:
        """Wait for the server, or the channel.

        Args:
            limit_s: how long it may be away, from the first failure on, in seconds; ``None``: as long as was set.
        """
        if not known:
            if limit_s is None:
                limit_s = max(self._wait_s, self._limit_s if self.lost else 0.0)
            self._since = now if self._since is None else self._since
            if now >= self._since + limit_s:
                return None
            self.tries += 1
        is_long = self._since is not None and now >= self._since + LONG_OUTAGE_S
        backoff = BACKOFF if is_long else OUTAGE_BACKOFF
        return self._delay_s(backoff, self.tries, rng)

    def restart(self) -> None:
        """Let the time begin anew: the client waits for something else from now on."""
        self._since, self.tries = None, 0

    def over(self) -> None:
        """End the outage: the server is there."""
        self.restart()
        self.lost = self._was_back = False

    def _delay_s(self, backoff: Backoff, failures: int, rng: Random, floor_s: float | None = None) -> float:
        delay_s = max(MIN_DELAY_S, backoff.delay(max(1, failures), rng, floor_s=floor_s))
        cap_s = BACKOFF.cap_s
        return max(delay_s, rng.uniform(cap_s / 2, cap_s)) if self._is_broke else delay_s
