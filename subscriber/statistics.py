"""What a subscriber has seen, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tricklecast.subscriber.verdicts import Advance
from tricklecast.trickle.errors import TrickleError


@dataclass(frozen=True, slots=True)
class Statistics:
    """A frozen snapshot.

    Attributes:
        requests: GETs made.
        segments: segments begun, empty ones included.
        empty: of these, segments without a byte.
        bytes: bytes handed on.
        gaps: places at which segments were missed.
        missed: segments missed there.
        truncated: segments that the server said are not whole.
        broken: segments whose connection was cut, and the rest of which was not to be had.
        resumed: times a segment was gone on with after its connection was cut.
        restarts: times the channel's numbering began again.
        refreshes: waits that were given up and asked again.
        retries: GETs made after a failure or at another seq than the wanted one.
        seeks: times the user went elsewhere.
        last_error: what the newest of these was about.
    """

    requests: int = 0
    segments: int = 0
    empty: int = 0
    bytes: int = 0
    gaps: int = 0
    missed: int = 0
    truncated: int = 0
    broken: int = 0
    resumed: int = 0
    restarts: int = 0
    refreshes: int = 0
    retries: int = 0
    seeks: int = 0
    last_error: TrickleError | None = None


class Counters:
    """Counts; the subscriber says when."""

    __slots__ = ("_now",)

    def __init__(self) -> None:
        self._now = Statistics()

    def snapshot(self) -> Statistics:
        """The numbers as they stand."""
        return self._now

    def requested(self) -> None:
        """A GET goes out."""
        self._now = replace(self._now, requests=self._now.requests + 1)

    def refreshed(self) -> None:
        """A wait was given up, to be asked again."""
        self._now = replace(self._now, refreshes=self._now.refreshes + 1)

    def retried(self, error: TrickleError) -> None:
        """A GET is made because of an error."""
        self._now = replace(self._now, retries=self._now.retries + 1, last_error=error)

    def sought(self) -> None:
        """The user goes elsewhere."""
        self._now = replace(self._now, seeks=self._now.seeks + 1)

    def resumed(self) -> None:
        """A segment that was cut goes on."""
        self._now = replace(self._now, resumed=self._now.resumed + 1)

    def missed(self, segments: int) -> None:
        """So many segments were missed in one place (0: none)."""
        if segments:
            self._now = replace(self._now, gaps=self._now.gaps + 1, missed=self._now.missed + segments)

    def begun(self, segment: Advance) -> None:
        """A segment is handed to the user."""
        self.missed(segment.gap)
        self._now = replace(
            self._now,
            segments=self._now.segments + 1,
            empty=self._now.empty + segment.empty,
            truncated=self._now.truncated + (segment.empty and segment.truncated is not None),
            restarts=self._now.restarts + segment.restarted,
        )

    def ended(self, *, truncated: bool, broken: bool) -> None:
        """A segment that was not empty has been read or left."""
        self._now = replace(self._now, truncated=self._now.truncated + truncated, broken=self._now.broken + broken)

    def received(self, size: int) -> None:
        """So many bytes were handed on."""
        self._now = replace(self._now, bytes=self._now.bytes + size)
