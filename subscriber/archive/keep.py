"""How much a recording may hold."""

from __future__ import annotations

from dataclasses import dataclass

from tricklecast.subscriber.archive.index import Contents
from tricklecast.trickle.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Keep:
    """How much a recording may hold; the oldest segments go first, and the newest one never.

    Attributes:
        segments: most segments, at least 1; ``None``: all.
        bytes: most bytes; ``None``: all.

    Raises:
        InvalidInput: a limit that nothing fits into.
    """

    segments: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if (self.segments is not None and self.segments < 1) or (self.bytes is not None and self.bytes < 1):
            raise InvalidInput("a recording keeps at least one segment")

    def exceeded(self, contents: Contents) -> bool:
        """Whether the oldest segment has to go."""
        over = self.segments is not None and len(contents.kept) > self.segments
        over |= self.bytes is not None and contents.kept_bytes > self.bytes
        return over and len(contents.kept) > 1
