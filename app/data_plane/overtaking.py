"""A POST that comes before those for the seqs below it, which may only be late: it is held for a moment.

Clients that do not wait for answers send each segment on whichever connection is free, and connections overtake each
other. A refusal at once would lose the segment, and some clients give up after a few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tricklecast.app.data_plane.tally import Record
from tricklecast.app.data_plane.waiting import Waiting

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.request import Request

LOOKS: Final = 6
"""How often it is tried again, each time after twice as long: soon, and cheaply."""

MAX_OVERTAKING: Final = 256
"""At a time; more are refused at once. Each holds a connection that is not read from, and no more of its body than
came with its head."""


class Overtaking(Waiting):
    """A POST that waits until the core takes it or the grace is over.

    Args:
        again: tries once more; called with this exchange.
    """

    __slots__ = ("_again", "_look", "_timer")

    def __init__(
        self, connection: Connection, request: Request, record: Record, again: Callable[[Overtaking], None]
    ) -> None:
        super().__init__(connection, request, record)
        self._again = again
        self._look = 0
        self.plane.overtaking.add(self)
        self._wait()

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
        """Wait no longer."""
        super().withdraw()
        self._timer.cancel()
        self.plane.overtaking.discard(self)
