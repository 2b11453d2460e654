"""What a full server evicts, written down a second time in the plainest way (docs/explanation/memory.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Room:
    """What is held, each segment as the bytes of memory that it costs.

    Attributes:
        limit: of all together.
        windows: by channel, in the order in which they were created: closed segments, oldest first.
        open: those that are being written.
        lingering: those that have left their window and are still read, in the order in which they left it.
    """

    limit: int
    windows: dict[str, list[int]]
    open: list[int]
    lingering: list[int]

    @property
    def used(self) -> int:
        return sum(map(sum, self.windows.values())) + sum(self.open) + sum(self.lingering)

    def take(self, size: int) -> bool:
        """Make room for so many bytes; whether there is room.

        Lingering segments go first, then the oldest of the largest window, newest ones in need only, open ones never.
        """
        if not size:
            return True
        if self.used + size > self.limit:
            needed, spare = self.limit - size, self.limit // 16
            while self.lingering and self.used > needed - spare:
                self.lingering.pop(0)
            self._evict(needed - spare, keep=1)
            self._evict(needed, keep=0)
        return self.used + size <= self.limit

    def _evict(self, goal: int, *, keep: int) -> None:
        while self.used > goal and (evictable := [w for w in self.windows.values() if len(w) > keep]):
            max(evictable, key=sum).pop(0)
