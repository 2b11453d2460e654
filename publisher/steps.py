"""What a source of bytes produces, whatever it reads: chunks, and cuts between segments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of the current segment; after a :class:`Cut`, of a new one.

    Attributes:
        data: at least one byte.
    """

    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """The current segment is over."""


Step = Chunk | Cut
