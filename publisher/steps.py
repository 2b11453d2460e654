"""The steps that a source passes to :mod:`tricklecast.publisher.feed`: chunks, and cuts between segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

POLL_S: Final = 0.2
"""A source that waits looks this often, in seconds, whether it was stopped."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of the current segment, at least one; after a :class:`SegmentEnd`, of a new segment."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The current segment is over."""


Step = Chunk | SegmentEnd
IsStopped: TypeAlias = Callable[[], bool]


class Report(Protocol):
    """Takes the news of a source. Its methods may be called in any thread."""

    def say(self, message: str, /) -> None:
        """Print a line."""

    def source(self, state: str, /) -> None:
        """Show what the source waits for in the live line; an empty text when it waits no more."""


class Source(Protocol):
    """Plain bytes (:class:`tricklecast.publisher.raw.RawSource`), or media."""

    @property
    def drops(self) -> bool:
        """Whether it cannot wait: segments are dropped when the network is too slow."""

    @property
    def content_type(self) -> str:
        """Media type of its segments, once it is open."""

    def shorten(self, size: int, /) -> None:
        """The server refused a segment of this size as too large: end it now, and make the next ones smaller.

        It is called in another thread than the steps. A source that cannot do so goes on.
        """

    def open(self, report: Report, is_stopped: IsStopped) -> Iterator[Step]:
        """Open it, and make its steps; both block.

        Args:
            report: takes the news.
            is_stopped: the steps end soon after it returns ``True``.

        Raises:
            InvalidInput: it cannot be read. The steps raise it, too.
        """
