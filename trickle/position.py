"""A place in a channel that can be written down and come back to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tricklecast.trickle.errors import InvalidSeq

_POSITION = re.compile(r"([0-9]{1,15})(?:@([0-9]{1,15}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """A segment that is to be read next.

    Its text is ``128@3``, or ``128`` where the epoch is not known.

    Attributes:
        seq: the segment's seq, 0 or more.
        epoch: the life of the channel's name in which that seq was meant; ``None`` where no server has said so.

    Raises:
        InvalidSeq: a number is negative or has more than 15 digits.
    """

    seq: int
    epoch: int | None = None

    def __post_init__(self) -> None:
        if not _POSITION.fullmatch(str(self)):
            raise InvalidSeq(str(self))

    def __str__(self) -> str:
        return f"{self.seq}" if self.epoch is None else f"{self.seq}@{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str()`` wrote.

        Raises:
            InvalidSeq: the text is no position.
        """
        match = _POSITION.fullmatch(text)
        if match is None:
            raise InvalidSeq(text)
        seq, epoch = match.groups()
        return cls(int(seq), None if epoch is None else int(epoch))
