"""What the ledger remembers: of each channel, and of each subscriber's place in it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from tricklecast.trickle.stress import Received, Sent

MAX_TOLD: Final = 1_000_000
"""Most missed segments that a subscriber is believed in one place: a server's nonsense must not fill the memory."""


class Place(Enum):
    """Where a segment stands among those that came before it."""

    IN_ORDER = "after all of them"
    LATE = "it was overtaken"
    AGAIN = "it has come before"


class Reader:
    """A subscriber's place in its channel.

    Args:
        name: for people.

    Attributes:
        expected: the ordinal after the newest one that came.
        holes: older ordinals that have not come.
        gone: it reads no more.
        failed: an error ended it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.expected = 0
        self.holes: set[int] = set()
        self.gone = False
        self.failed = False
        self._told: list[range] = []
        self._last_seq = -1

    def hear(self, seq: int, gap: int) -> None:
        """A segment came, and the library said that so many before it were missed."""
        self._tell(max(0, seq - min(gap, MAX_TOLD)), seq)
        self._last_seq = seq

    def place(self, ordinal: int) -> Place:
        """A segment with this ordinal came."""
        if ordinal >= self.expected:
            self.holes.update(range(self.expected, ordinal))
            self.expected = ordinal + 1
            return Place.IN_ORDER
        if ordinal in self.holes:
            self.holes.remove(ordinal)
            return Place.LATE
        return Place.AGAIN

    def leave(self, missed: int, *, failed: bool) -> None:
        """It reads no more.

        Args:
            missed: how many the library said were missed after the last one that came.
            failed: an error ended it.
        """
        self._tell(self._last_seq + 1, self._last_seq + 1 + min(missed, MAX_TOLD))
        self.gone, self.failed = True, failed

    def told(self) -> set[int]:
        """The seqs that the library said were missed."""
        return {seq for told in self._told for seq in told}

    def _tell(self, first: int, end: int) -> None:
        if first < end:
            self._told.append(range(first, end))


class Channel:
    """What is known of one channel.

    Args:
        name: for people.
        subscribers: how many there are.

    Attributes:
        readers: its subscribers.
        sent: what its publisher has said of segments that not everybody is past, by ordinal.
        failed: ordinals that the server does not have.
        count: one more than the newest ordinal that the publisher is done with.
    """

    def __init__(self, name: str, subscribers: int) -> None:
        self.name = name
        self.readers = [Reader(f"subscriber {number} of {name}") for number in range(subscribers)]
        self.sent: dict[int, Sent] = {}
        self.failed: set[int] = set()
        self.count = 0
        self._early: dict[int, list[Received]] = {}
        self._forgotten = 0
        # How far seqs are ahead of ordinals, and from which ordinal on: changes only when a publisher loses its place.
        self._shifts: list[tuple[int, int]] = [(0, 0)]

    def add(self, sent: Sent) -> list[Received]:
        """The publisher is done with a segment; returns what came of it before that was known."""
        self.count = max(self.count, sent.ordinal + 1)
        if not self.is_forgotten(sent.ordinal):
            self.sent[sent.ordinal] = sent
        if sent.error:
            self.failed.add(sent.ordinal)
        if sent.seq >= 0 and self.seq(sent.ordinal) != sent.seq:
            self._shifts.append((sent.ordinal, sent.seq - sent.ordinal))
            self._shifts.sort()
        return self._early.pop(sent.ordinal, [])

    def wait(self, ordinal: int, received: Received) -> None:
        """Keep what was received until the publisher's record of it comes."""
        self._early.setdefault(ordinal, []).append(received)

    def early(self) -> Iterator[Received]:
        """All that still waits."""
        return (received for waiting in self._early.values() for received in waiting)

    def seq(self, ordinal: int) -> int:
        """The seq under which a segment was published, as far as is known."""
        return ordinal + next(shift for begins, shift in reversed(self._shifts) if begins <= ordinal)

    def ordinal(self, seq: int) -> int:
        """The ordinal of what was published under a seq, as far as is known."""
        return next((seq - shift for begins, shift in reversed(self._shifts) if begins <= seq - shift), seq)

    def is_used(self, seq: int) -> bool:
        """Whether anything was published under a seq; a publisher that loses its place leaves some out."""
        ordinal = self.ordinal(seq)
        return ordinal < self.count and self.seq(ordinal) == seq

    def is_forgotten(self, ordinal: int) -> bool:
        """Whether the publisher's record has been dropped."""
        return ordinal < self._forgotten

    def forget(self) -> None:
        """Drop the publisher's records that all subscribers are past."""
        slowest = min((reader.expected for reader in self.readers if not reader.gone), default=self.count)
        for ordinal in range(self._forgotten, min(slowest, self.count)):
            self.sent.pop(ordinal, None)
        self._forgotten = max(self._forgotten, min(slowest, self.count))
