"""Publishers as those who pay: the memory of unfinished segments, counted for each publisher.

This module is not compiled with the rest of the core: compiled objects cannot be known weakly.
"""

from __future__ import annotations

from weakref import WeakValueDictionary


class Payer:
    """A publisher whose unfinished segments take memory: the subject of its token, or its address.

    Attributes:
        open: memory that they take, in bytes. quota: how much they may take.
    """

    __slots__ = ("__weakref__", "open", "quota")

    def __init__(self, quota: int) -> None:
        self.open = 0
        self.quota = quota

    def extends(self, size: int) -> bool:
        """Whether the quota has become larger, so that these bytes fit, too. Here it stays as it is."""
        return False


class Payers:
    """The publishers that have an unfinished segment, or a writer; of the others, only the newest is remembered.

    Args:
        quota: bytes of memory for the unfinished segments of each; ``None`` for any number.
    """

    def __init__(self, quota: int | None) -> None:
        self._quota = quota
        self._known: WeakValueDictionary[str, Payer] = WeakValueDictionary()
        # Asked for last: a client that sends its segments one by one is not made anew for each.
        self._newest: tuple[str, Payer] | None = None

    def __len__(self) -> int:
        return len(self._known)

    def of(self, name: str) -> Payer | None:
        """The publisher of this name; ``None`` where there is no quota. It is known while somebody holds it."""
        if self._quota is None:
            return None
        if self._newest is not None and self._newest[0] == name:
            return self._newest[1]
        payer = self._known.get(name)
        if payer is None:
            payer = self._known[name] = self._make(name, self._quota)
        self._newest = name, payer
        return payer

    def _make(self, name: str, quota: int) -> Payer:
        return Payer(quota)
