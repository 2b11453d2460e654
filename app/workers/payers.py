"""What one publisher has unfinished in all workers: its quota is reserved in portions, in a tally of all workers.

This module is not compiled, as the classes from which it derives (:mod:`app.core.payers`).
"""

from __future__ import annotations

from typing import Final

from tricklecast.app.core.payers import Payer, Payers
from tricklecast.app.workers.clients import Places, Tallies

UNTOLD: Final = 16
"""A publisher may take a sixteenth of its quota, in all workers together, before they tell each other: most need no
more, and then nothing is shared."""


class SharedPayer(Payer):
    """A publisher of this worker that others may have, too.

    Attributes:
        places: of its name.
        quota: bytes that it may take here without a question: those that are reserved for it, and a few more.
    """

    __slots__ = ("_payers", "places")

    def __init__(self, payers: SharedPayers, places: Places) -> None:
        super().__init__(payers.untold)
        self._payers, self.places = payers, places

    def extends(self, size: int) -> bool:
        """Take more of the quota, if the other workers leave that much."""
        return self._payers.extend(self, self.open + size - self.quota)


class SharedPayers(Payers):
    """Publishers whose quota holds over all workers.

    It may be exceeded by a sixteenth; and by more if a publisher asks for the rest at two workers at the same moment.

    Args:
        quota: bytes of memory for the unfinished segments of each; ``None`` for any number.
        tallies: of the server. worker: this one.

    Attributes:
        untold: bytes that each may have here, and the others do not know of.
    """

    def __init__(self, quota: int | None, tallies: Tallies, worker: int) -> None:
        super().__init__(quota)
        self._tallies, self._reserved, self._worker = tallies, tallies.reserved, worker
        self.untold = (quota or 0) // (UNTOLD * len(self._reserved.parts))
        self._reservable = (quota or 0) - self.untold
        self._large: set[SharedPayer] = set()  # those that have reserved something

    def _make(self, name: str, quota: int) -> Payer:
        return SharedPayer(self, self._tallies.places(name))

    def extend(self, payer: SharedPayer, missing: int) -> bool:
        """Reserve at least this much for a publisher, if there is so much left of its quota."""
        free = self._reservable - self._reserved.total(payer.places)
        if missing > free:
            return False
        self._reserve(payer, min(free, max(missing, self.untold)))
        return True

    def _reserve(self, payer: SharedPayer, change: int) -> None:
        self._reserved.add(self._worker, payer.places, change)
        payer.quota += change
        (self._large.add if payer.quota > self.untold else self._large.discard)(payer)

    def tick(self) -> None:
        """Give back what is not used any more; four times a second."""
        for payer in list(self._large):
            idle = payer.quota - payer.open - self.untold
            if idle > 0:
                self._reserve(payer, -idle)
