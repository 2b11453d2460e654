"""The lines with which commands tell people that a channel's server is in trouble, and that the trouble is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from tricklecast.subscriber.events import Connected, Retrying, SegmentResumed, SkippedAhead, SubscriberEvent
from tricklecast.trickle.errors import BrokenByPeer, ConnectionLost


class Troubles:
    """Says each trouble once. An outage may last for days, with a retry every few seconds.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lost_at: float | None = None  # when the server stopped answering; None while it answers
        self._has_answered = False
        self._told: set[tuple[type, int | None]] = set()  # the answers that were told since the last segment

    def line(self, event: SubscriberEvent) -> str:
        """The line for an event; empty: people know it already, or need not know."""
        match event:
            case Connected() | SegmentResumed():
                again, self._has_answered = " again" * self._has_answered, True
                if self._lost_at is not None:
                    since, self._lost_at = self._lost_at, None
                    return f"the server answers{again}, after {self._clock() - since:.1f} s"
            case Retrying(error=ConnectionLost() as error) if self._lost_at is None:
                self._lost_at = self._clock()
                return f"warning: {error}; trying again"
            case Retrying(error=error) | SkippedAhead(error=error) if not isinstance(error, ConnectionLost):
                answer = type(error), error.status if isinstance(error, BrokenByPeer) else None
                if answer not in self._told:
                    self._told.add(answer)
                    return f"warning: {error}; trying again" if isinstance(event, Retrying) else f"warning: {event}"
            case _:
                pass
        return ""

    def over(self) -> None:
        """A segment was read: the server's answers from now on are said anew."""
        self._told.clear()
