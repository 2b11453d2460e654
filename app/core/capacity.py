"""A limit that many share: how much of it is in use, and whom it still lets in."""

from __future__ import annotations

from typing import Final, NamedTuple

from tricklecast.app.core.limits import Limits

UNLIMITED: Final = 1 << 62
"""Instead of a limit where there is none: no count comes near."""

JOINS_STOP: Final = (4, 5)
JOINS_RETURN: Final = (3, 5)
"""Shares of a limit, as fractions. From the first on nobody new is let in, until less than the second is in use: what
is left belongs to those who go on with what they have begun. The distance between the two keeps a server that is nearly
full from letting in and refusing by turns."""


class Capacity:
    """A limit that many share, with a reserve for those who are in already.

    Args:
        limit: how many there may be at a time; ``None`` for any number.

    Attributes:
        limit: the same, a number nobody reaches for ``None``.
        used: how many there are. Who is let in must :meth:`take`, and :meth:`give_back` once.
        joinable: whether somebody new may come: not from 80 % of the limit on, until it is below 60 % again.
    """

    __slots__ = ("_joins_return", "_joins_stop", "joinable", "limit", "used")

    def __init__(self, limit: int | None) -> None:
        self.limit = UNLIMITED if limit is None else limit
        self.used = 0
        self._joins_stop = _share(self.limit, JOINS_STOP)
        self._joins_return = _share(self.limit, JOINS_RETURN)
        self.joinable = self._joins_stop > 0

    def __repr__(self) -> str:
        return f"<Capacity {self.used} of {self.limit}{'' if self.joinable else ', not for new ones'}>"

    def admits(self, *, join: bool) -> bool:
        """Whether there is room for one more, who is new (``join``) or goes on."""
        return self.used < self.limit and (self.joinable or not join)

    def take(self) -> None:
        """One more is in."""
        self.used += 1
        if self.used >= self._joins_stop:
            self.joinable = False

    def give_back(self) -> None:
        """One has left."""
        self.used -= 1
        if self.used < self._joins_return:
            self.joinable = True


class Capacities(NamedTuple):
    """The limits that all clients share."""

    readers: Capacity
    publishers: Capacity
    channels: Capacity
    connections: Capacity

    @classmethod
    def of(cls, limits: Limits) -> Capacities:
        """As wide as the limits."""
        return cls(
            Capacity(limits.readers),
            Capacity(limits.publishers),
            Capacity(limits.channels),
            Capacity(limits.connections),
        )


def _share(limit: int, share: tuple[int, int]) -> int:
    """The smallest count that is at least this share of a limit."""
    part, whole = share
    return -(-limit * part // whole)
