"""Bytes into lines, over the ends of chunks and segments, and never over something that was missed.

A line that was begun before a gap is dropped there. What comes after the gap may begin in the middle of a line, too:
the first line is *doubtful*, and only an object or an array that is whole is taken for a line of its own, since no
rest of a JSON object or array is one. (The rest of a number is a number.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end; never blank.

    Attributes:
        seq: the segment in which it ended.
        data: its bytes.
        doubtful: it may be the rest of a line.
    """

    seq: int
    data: bytes
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that cannot be used.

    Attributes:
        seq: the segment in which that turned out.
        why: what is wrong with it, for people.
        torn: it is a part of a line, the other part of which was missed.
        again: reading the segment again may mend it.
    """

    seq: int
    why: str
    torn: bool = False
    again: bool = False


Item: TypeAlias = Line | Broken


class Lines:
    """Splits one channel. Call, for each segment: :meth:`begin`, :meth:`feed` for its chunks, :meth:`end`.

    Args:
        limit: longest line, in bytes; more than that is never held.
    """

    __slots__ = ("_doubtful", "_dropping", "_limit", "_part", "_seq")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seq = -1
        self._part = bytearray()
        self._doubtful = True
        self._dropping = False

    def begin(self, seq: int, *, follows: bool) -> list[Item]:
        """A segment begins.

        Args:
            seq: which.
            follows: nothing was missed between the segment before and this one.
        """
        items = [] if follows else self._tear()
        self._doubtful = self._doubtful and seq != 0
        self._seq = seq
        return items

    def feed(self, chunk: bytes) -> list[Item]:
        """Some of its bytes; returns the lines that ended in them."""
        *whole, rest = chunk.split(b"\n")
        items: list[Item] = []
        for end in whole:
            items += self._add(end)
            items += self._line()
        return items + self._add(rest)

    def end(self, *, whole: bool) -> list[Item]:
        """The segment has ended; its last line may go on in the next one, unless it was not whole."""
        return [] if whole else self._tear()

    def finish(self, *, whole: bool) -> list[Item]:
        """The channel has ended, and its last line with it; unless more was missed there."""
        return self._line() if whole else self._tear()

    def _add(self, data: bytes) -> list[Item]:
        if self._dropping:
            return []
        self._part += data
        if len(self._part) <= self._limit:
            return []
        self._part.clear()
        self._dropping = True
        return [Broken(self._seq, f"a line of more than {self._limit} bytes", torn=self._doubtful)]

    def _line(self) -> list[Item]:
        data, doubtful = bytes(self._part).strip(), self._doubtful
        self._part.clear()
        self._doubtful = self._dropping = False
        if not data:
            return []
        if doubtful and data[:1] not in b"{[":
            return [self._half()]
        return [Line(self._seq, data, doubtful)]

    def _tear(self) -> list[Item]:
        items: list[Item] = [self._half()] if self._part.strip() else []
        self._part.clear()
        self._doubtful, self._dropping = True, False
        return items

    def _half(self) -> Broken:
        return Broken(self._seq, "a part of a line", torn=True)
