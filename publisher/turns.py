"""When a request for a segment may be made."""

from __future__ import annotations

import anyio

from tricklecast.publisher.core import Plan
from tricklecast.publisher.errands import Errands
from tricklecast.publisher.flights import Flights
from tricklecast.publisher.pause import Pause
from tricklecast.publisher.post import Post


class Turns:
    """Lets requests wait for each other, for the position, and for a server that has sent one of them away.

    Args:
        plan: decides.
        flights: the segments whose requests they are.
        errands: asks for the position.
        pause: in which no request is made.

    Attributes:
        stopped: no further request is made.
    """

    def __init__(self, plan: Plan, flights: Flights, errands: Errands, pause: Pause) -> None:
        self.stopped = False
        self._plan = plan
        self._flights = flights
        self._errands = errands
        self._pause = pause

    async def wait(self, post: Post) -> bool:
        """Wait until a request may be made; ``False`` if there is to be none any more."""
        while not self._has_come(post):
            if self.stopped or self._plan.error is not None:
                return False
            post.body.rest()
            if self._pause.is_on:
                with anyio.CancelScope(deadline=self._pause.until):
                    await self._flights.changed()
            else:
                if self._plan.uncertain:
                    self._errands.locate()
                await self._flights.changed()
        return True

    def _has_come(self, post: Post) -> bool:
        """Whether a request may be made now.

        An older segment that has to be sent again goes first: a channel that begins anew begins at its first byte.
        """
        seq, plan = post.ticket.seq, self._plan
        older = [flight.post for flight in self._flights if flight.post is not None and flight.post.ticket.seq < seq]
        ready = plan.may_open(seq) and not any(other.resting for other in older) and not self._pause.is_on
        return ready and plan.error is None and not plan.uncertain and not self.stopped
