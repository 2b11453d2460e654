"""What a full server evicts, cuts and refuses, written down a second time (docs/explanation/memory.md)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Holder:
    """What one channel holds, each segment as the bytes of memory that it costs.

    Attributes:
        window: closed segments, oldest first. open: those that are being written.
        lingering: those that have left the window and are still read, in the order in which they left it.
    """

    window: list[int] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    lingering: list[int] = field(default_factory=list)

    @property
    def held(self) -> int:
        return sum(self.window) + sum(self.open) + sum(self.lingering)


@dataclass
class Room:
    """What all channels hold.

    Attributes:
        limit: of all together. holders: the channels, in the order in which they were created.
        cut: how many segments were cut while they were being written.
    """

    limit: int
    holders: dict[str, Holder] = field(default_factory=dict)
    cut: int = 0

    @property
    def used(self) -> int:
        return sum(holder.held for holder in self.holders.values())

    def take(self, name: str, size: int) -> bool:
        """Make room for so many bytes of a channel; whether there is room.

        The channel that holds most gives first: what lingers, the oldest of its window, the newest in need only, and
        what is being written only in need of a channel that holds less. Nobody gives to a channel that holds more.
        """
        if not size or self.used + size <= self.limit:
            return True
        taker = self.holders.setdefault(name, Holder())

        def held(holder: Holder) -> int:
            return holder.held + (size if holder is taker else 0)

        giving = list(self.holders.values())
        while giving and self.used + size > self.limit - self.limit // 16:
            largest = max(giving, key=held)
            short = self.used + size > self.limit
            if held(largest) < held(taker):
                break
            if largest.lingering:
                largest.lingering.pop(0)
            elif len(largest.window) > 1 or (short and largest.window):
                largest.window.pop(0)
            elif short and largest.open and held(largest) > held(taker):
                largest.open.remove(max(largest.open))
                self.cut += 1
            elif short:
                giving.remove(largest)
            else:
                break
        return self.used + size <= self.limit
