"""Where a subscription begins, and where a seek leads: the words, numbers and positions that users give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tricklecast.trickle import wire
from tricklecast.trickle.errors import Position
from tricklecast.trickle.paths import parse_seq

AnyStart: TypeAlias = int | str | Position
"""``"next"``, ``"current"``, ``"earliest"``, N, -N, a :class:`Position`, or the text of any of these."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a start means for the first GET.

    Attributes:
        ask: the seq to ask for; ``None`` for the ``next`` route.
        back: once the head is known, the seq to go to is so many below it.
        named: whether the user has named this very segment, so that its absence is a gap.
        position: the start is where another subscription stopped.
    """

    ask: int | None
    back: int = 0
    named: bool = False
    position: Position | None = None

    @classmethod
    def parse(cls, start: AnyStart) -> Start:
        """Read what the user gave.

        -N is counted from the head that ``/next`` tells, since the reference server breaks the connection of whoever
        asks it for a seq below -2. For the same reason the earliest segment is looked for from 0, which no server
        refuses without saying where its head is.

        Raises:
            InvalidSeq: none of what is allowed.
        """
        match start:
            case "next":
                return cls(None)
            case "current":
                return cls(wire.SEQ_CURRENT)
            case "earliest":
                return cls(0)
            case Position():
                return cls(start.seq, named=True, position=start)
            case str() if "@" in start:
                return cls.parse(Position.parse(start))
        seq = parse_seq(str(start))
        if seq >= 0:
            return cls(seq, named=True)
        return cls(seq) if seq == wire.SEQ_CURRENT else cls(None, back=-1 - seq)

    @property
    def place(self) -> Position | None:
        """The position that this start is, as far as that is known without asking the server."""
        if self.position is not None:
            return self.position
        return Position(self.ask) if self.named and self.ask is not None else None
