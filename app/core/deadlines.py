"""When segments change by themselves: graces and time-outs, as times to look again."""

from __future__ import annotations

from collections.abc import Callable

from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import WAITING, Segment


class Deadlines:
    """The segments of one channel that have a deadline.

    Args:
        schedule: told of each new deadline, so that somebody looks at the channel then.
    """

    __slots__ = ("_schedule", "_segments")

    def __init__(self, schedule: Callable[[float], None]) -> None:
        self._schedule = schedule
        self._segments: dict[Segment, None] = {}

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def next(self) -> float | None:
        """The earliest one."""
        return min((when for segment in self._segments if (when := segment.deadline) is not None), default=None)

    def set(self, segment: Segment, when: float) -> None:
        """Something is due for this segment at ``when``, or at its present deadline if that is earlier."""
        segment.deadline = when if segment.deadline is None else min(segment.deadline, when)
        self._segments[segment] = None
        self._schedule(segment.deadline)

    def expect_begin(self, segment: Segment, head: int, limits: Limits, now: float) -> None:
        """A writer has just reserved this segment: set when it must have begun, if it has not."""
        if segment.state is not WAITING:
            self.clear(segment)
        elif segment.seq < head:
            self.set(segment, now + limits.skip_grace_s)
        elif (timeout := limits.first_byte_timeout_s) is not None:
            self.clear(segment)
            self.set(segment, now + timeout)

    def spare(self, segment: Segment, floor: int, limits: Limits, now: float) -> bool:
        """A later seq has begun: set when this one is skipped; ``False`` if that is at once.

        Args:
            segment: without a byte.
            floor: at or above it, a publisher's request may still be on its way.
            limits: have the graces.
            now: the time.
        """
        grace_s = limits.skip_grace_s
        if segment.writer is None:
            grace_s = limits.overtaking_grace_s if segment.seq >= floor else 0.0
            if not grace_s:
                return False
        self.set(segment, now + grace_s)
        return True

    def clear(self, segment: Segment) -> None:
        """Nothing is due for this segment any more."""
        if segment.deadline is not None:
            segment.deadline = None
            del self._segments[segment]

    def forget(self) -> None:
        """Nobody is told of anything any more, so that who was told can be forgotten, too."""
        self._schedule = _nobody
        self._segments.clear()

    def due(self, now: float) -> list[Segment]:
        """The segments whose time has come."""
        return [segment for segment in self._segments if segment.deadline is not None and segment.deadline <= now]


def _nobody(when: float) -> None:
    """Is not told."""
