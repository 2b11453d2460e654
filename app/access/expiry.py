"""Who must stop at which time, in the order of these times."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

STALE: Final = 64
"""So many overtaken entries, and as many as are valid, may lie in the heap before it is cleaned."""


class Expiries(Generic[K]):
    """One time per key. Setting and removing cost no search; what is due is found without looking at the rest."""

    __slots__ = ("_heap", "_times", "_turn")

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._turn = count()

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: K, when: float) -> None:
        """This key stops then, whatever was set before."""
        if self._times.get(key) == when:
            return
        self._times[key] = when
        if len(self._heap) >= 2 * len(self._times) + STALE:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapify(self._heap)
        heappush(self._heap, (when, next(self._turn), key))

    def remove(self, key: K) -> None:
        """This key does not stop."""
        self._times.pop(key, None)

    def due(self, now: float) -> list[K]:
        """The keys whose time has come, in the order of their times; they are removed."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            entry = heappop(self._heap)
            if self._is_valid(entry):
                del self._times[entry[2]]
                due.append(entry[2])
        return due

    def _is_valid(self, entry: tuple[float, int, K]) -> bool:
        return self._times.get(entry[2]) == entry[0]
