"""How much a recording may hold."""

from __future__ import annotations

from dataclasses import dataclass

from tricklecast.subscriber.archive.index import Contents
from tricklecast.trickle.client.arguments import check_number


@dataclass(frozen=True, slots=True)
class Keep:
    """How much a recording may hold. The oldest segments are removed first, the newest one never.

    Attributes:
        segments: the highest number of segments, 1 or more; ``None``: no limit.
        bytes: the highest number of bytes, 1 or more; ``None``: no limit.

    Raises:
        InvalidInput: a limit is below 1 or no whole number.
    """

    segments: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("keep_segments", self.segments), ("keep_bytes", self.bytes)):
            if limit is not None:
                check_number(name, limit, at_least=1, whole=True)

    def exceeded(self, contents: Contents) -> bool:
        """Whether the oldest segment must be removed."""
        over = self.segments is not None and len(contents.kept) > self.segments
        over |= self.bytes is not None and contents.kept_bytes > self.bytes
        return over and len(contents.kept) > 1
