"""The quota of a publisher's unfinished segments, over all workers.

Each worker may use a small part of a publisher's quota without telling the others (its *allowance*). For more, it first
reserves a portion in a sketch that all workers read (:mod:`app.workers.clients`), and gives back what it does not use.
So most publishers, which need little, cost no look into the sketch.

This module is not compiled, since the classes from which it derives are not (:mod:`app.core.payers`).
"""

from __future__ import annotations

from typing import Final

from tricklecast.app.core.payers import Payer, Payers
from tricklecast.app.workers.clients import Places, Sketches

ALLOWANCE_SHARE: Final = 16
"""The allowances of all workers together are a sixteenth of the quota."""


class SharedPayer(Payer):
    """A publisher of this worker, which may have unfinished segments at other workers, too.

    Attributes:
        places: of its name, in the sketch.
        quota: bytes that it may take here now: the allowance, and what this worker has reserved for it.
    """

    __slots__ = ("_payers", "places")

    def __init__(self, payers: SharedPayers, places: Places) -> None:
        super().__init__(payers.allowance)
        self._payers, self.places = payers, places

    def extends(self, size: int) -> bool:
        """Reserve more of the quota, if the other workers leave that much."""
        return self._payers.extend(self, self.open + size - self.quota)


class SharedPayers(Payers):
    """Publishers whose quota holds over all workers.

    A publisher may exceed its quota by a sixteenth, with the allowances of all workers. It may exceed it by more if it
    asks for the rest at two workers at the same moment.

    Args:
        quota: bytes of memory for the unfinished segments of each; ``None`` for any number.
        sketches: of the server. worker: this one's number.

    Attributes:
        allowance: bytes that each publisher may take at this worker without a reservation.
    """

    def __init__(self, quota: int | None, sketches: Sketches, worker: int) -> None:
        super().__init__(quota)
        self._sketches, self._reserved, self._worker = sketches, sketches.reserved, worker
        self.allowance = (quota or 0) // (ALLOWANCE_SHARE * len(self._reserved.words))
        self._reservable = (quota or 0) - self.allowance
        self._reserving: set[SharedPayer] = set()  # publishers for which this worker has reserved something

    def _make(self, name: str, quota: int) -> Payer:
        return SharedPayer(self, self._sketches.places(name))

    def extend(self, payer: SharedPayer, missing: int) -> bool:
        """Reserve at least this much for a publisher, if its quota has that much left."""
        free = self._reservable - self._reserved.total(payer.places)
        if missing > free:
            return False
        self._reserve(payer, min(free, max(missing, self.allowance)))
        return True

    def _reserve(self, payer: SharedPayer, change: int) -> None:
        self._reserved.add(self._worker, payer.places, change)
        payer.quota += change
        if payer.quota > self.allowance:
            self._reserving.add(payer)
        else:
            self._reserving.discard(payer)

    def tick(self) -> None:
        """Give back reservations that are not used any more; four times a second."""
        for payer in list(self._reserving):
            idle = payer.quota - payer.open - self.allowance
            if idle > 0:
                self._reserve(payer, -idle)
