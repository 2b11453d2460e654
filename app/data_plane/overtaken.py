"""A POST that comes before those for the seqs below it, which may only be late: it is held for a moment.

Clients that do not wait for answers send each segment on whichever connection is free, and connections overtake each
other. A refusal at once would lose the segment, and some clients give up after a few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from app.data_plane.exchange import Exchange
from app.data_plane.tally import Record

if TYPE_CHECKING:
    from app.data_plane.connection import Connection
    from app.data_plane.request import Request

LOOKS: Final = 6
"""How often it is tried again, each time after twice as long: soon, and cheaply."""

MAX_HELD: Final = 256
"""At a time; more are refused at once. Each holds a connection that is not read from, and no more of its body than
came with its head."""


class Held(Exchange):
    """A POST that waits, unread, until the core takes it or the grace is over.

    Args:
        again: tries once more; called with this exchange.
    """

    __slots__ = ("_again", "_look", "_timer", "request")

    def __init__(self, connection: Connection, request: Request, record: Record, again: Callable[[Held], None]) -> None:
        super().__init__(connection, request, record)
        self.request = request
        self._again = again
        self._look = 0
        request.held = True
        connection.flow.pause_reading()
        self.plane.held.add(self)
        self._wait()

    @property
    def idle(self) -> bool:
        """It only waits."""
        return True

    def _wait(self) -> None:
        # 1 + 2 + 4 + ... of these shares make up the grace.
        share_s = self.plane.registry.limits.overtaking_grace_s / (2**LOOKS - 1)
        self._timer = self.connection.loop.call_later(share_s * 2**self._look, self._again, self)

    def wait_longer(self) -> bool:
        """Look again, later; ``False`` if the grace is over."""
        self._look += 1
        if self._look == LOOKS:
            return False
        self._wait()
        return True

    def withdraw(self) -> None:
        """Wait no longer, and let the body come."""
        self._timer.cancel()
        self.plane.held.discard(self)
        self.request.held = False
        if not self.connection.transport.is_closing():
            self.connection.flow.resume_reading()
