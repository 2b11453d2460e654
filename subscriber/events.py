"""The events of a subscription, for ``on_event=`` and the log, and its counters.

::

    def on_event(event: SubscriberEvent) -> None:
        match event:
            case Gap(first, last):
                print(f"missed {first} to {last}")

    Subscriber(url, on_event=on_event)

Each event is a value that does not change, and its ``str()`` is a sentence. The same sentences go to the logger
``tricklecast.subscriber``: WARNING for data that was lost and for the first retry of a request, INFO for the rest.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tricklecast.trickle.client.reports import Event, Reporter
from tricklecast.trickle.client.reports import Retrying as Retrying
from tricklecast.trickle.errors import ConnectionLost, TrickleError

LOGGER: Final = logging.getLogger("tricklecast.subscriber")
# Without a handler of its own a library writes warnings to standard error in programs that do not configure logging.
LOGGER.addHandler(logging.NullHandler())


class Connected(Event):
    """The server has answered: for the first time, or for the first time after an outage."""

    def __str__(self) -> str:
        return "connected"


class SkippedAhead(Event):
    """The wanted segment does not exist; the subscriber asks for another one.

    Attributes:
        wanted: the segment that it asked for; ``None`` for the newest one.
        seq: the segment that it asks for now, or the lowest that it takes if the window moves on faster than segments
            can be asked for. It may be below ``wanted``: the server may have been restarted.
        error: the server's answer.
    """

    wanted: int | None
    seq: int
    error: TrickleError

    def __str__(self) -> str:
        return f"{self.error}; going on at segment {self.seq}"


class Gap(Event):
    """Segments were missed.

    Attributes:
        first, last: the first and the last seq that was missed.
        reason: ``"missing"``: they had left the server's window, or were never published; ``"restarted"``: the
            channel's numbering began again, and these are of the new one; ``"ended"``: the channel ended after them.
    """

    first: int
    last: int
    reason: Literal["missing", "restarted", "ended"]

    def __str__(self) -> str:
        which = f"segment {self.first}" if self.first == self.last else f"segments {self.first} to {self.last}"
        where = {"restarted": " of the new numbering", "ended": " before the channel's end"}.get(self.reason, "")
        return f"missed {which}{where}"


class Restarted(Event):
    """The channel's numbering is another one than before: it was created again, or its server was restarted.

    The subscriber goes on with segment ``seq`` of that numbering; its ``epoch`` and ``life`` are the server's.
    """

    seq: int
    epoch: int | None
    life: str | None

    def __str__(self) -> str:
        return f"the channel's numbering has changed; going on with its segment {self.seq}"


class Lagging(Event):
    """The subscriber has fallen behind: segment ``seq`` begins although ``lag`` newer ones have begun.

    Reported once, until the subscriber has caught up.
    """

    seq: int
    lag: int

    def __str__(self) -> str:
        return f"segment {self.seq} is {self.lag} behind the newest one"


class SegmentTruncated(Event):
    """A segment is not whole; ``reason`` is the server's word: ``"truncated"``, ``"skipped"`` or ``"terminated"``.

    ``"unknown"``: a proxy has dropped the server's word at the end, and the server does not have it any more.
    """

    seq: int
    reason: str

    def __str__(self) -> str:
        reason = _TRUNCATIONS.get(self.reason, self.reason)
        return f"segment {self.seq} {reason if self.reason in ('skipped', 'unknown') else f'is truncated: {reason}'}"


_TRUNCATIONS: Final = {
    "truncated": "its publisher did not finish it",
    "terminated": "the channel ended in the middle of it",
    "skipped": "has no bytes: its publisher skipped it, or the server has lost it in a crash",
    "unknown": "may not be whole: a proxy dropped its trailers, and the server does not have it any more",
}
"""The servers' words, in plain English."""


class SegmentResumed(Event):
    """A segment whose connection was cut goes on behind the ``bytes_read`` bytes that were read; no byte is lost."""

    seq: int
    bytes_read: int

    def __str__(self) -> str:
        return f"segment {self.seq} goes on after {self.bytes_read} bytes"


class SegmentBroken(Event):
    """The connection of a segment was cut by ``error``, and the bytes behind the ``bytes_read`` ones cannot be had."""

    seq: int
    bytes_read: int
    error: TrickleError

    def __str__(self) -> str:
        return f"segment {self.seq} broke after {self.bytes_read} bytes: {self.error}"


class Ended(Event):
    """The channel has ended."""

    def __str__(self) -> str:
        return "the channel has ended"


class Failed(Event):
    """The subscription is over because of an error, which is also raised."""

    error: Exception

    def __str__(self) -> str:
        return f"the subscription failed: {self.error}"


SubscriberEvent: TypeAlias = (
    Connected
    | Retrying
    | SkippedAhead
    | Gap
    | Restarted
    | Lagging
    | SegmentTruncated
    | SegmentResumed
    | SegmentBroken
    | Ended
    | Failed
)
Loss: TypeAlias = Gap | Restarted | SegmentTruncated | SegmentBroken
"""The events after which a copy of the channel is not whole."""

OnEvent: TypeAlias = Callable[[SubscriberEvent], None]


@dataclass(frozen=True, slots=True)
class SubscriberStatistics:
    """The counters of a subscriber at one moment.

    Attributes:
        requests: GETs made.
        segments: segments begun, empty ones included.
        empty: of these, segments without a byte.
        bytes: bytes received.
        gaps: places where segments were missed.
        missed: segments missed there.
        truncated: segments that the server said are not whole.
        broken: segments whose connection was cut and whose rest could not be read.
        resumed: times that a segment went on after its connection was cut.
        restarts: times that the channel's numbering began again.
        refreshes: waits that were given up and repeated, as planned, and questions whether the server still answers.
        retries: GETs made after a failure, or for another seq than the wanted one.
        seeks: calls of ``seek()``.
        last_error: the error behind the newest retry.
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


_COUNTED: Final[dict[type[SubscriberEvent], str]] = {
    Gap: "gaps",
    Restarted: "restarts",
    Retrying: "retries",
    SegmentBroken: "broken",
    SegmentResumed: "resumed",
    SegmentTruncated: "truncated",
    SkippedAhead: "retries",
}
"""The counters of :class:`SubscriberStatistics` that count an event."""


class Monitor(Reporter[SubscriberEvent]):
    """Counts and reports the events of one subscriber.

    Args:
        channel, on_event: as for :class:`~tricklecast.trickle.client.reports.Reporter`.

    Attributes:
        counts: the counters, under the names of :class:`SubscriberStatistics`.
    """

    def __init__(self, channel: str, on_event: OnEvent | None) -> None:
        super().__init__(LOGGER, channel, on_event)
        # Not a Counter, which takes five times as long: something is counted for each chunk.
        self.counts: Final[defaultdict[str, int]] = defaultdict(int)
        self._last_error: TrickleError | None = None
        self._is_connected = self._is_lagging = False

    def statistics(self) -> SubscriberStatistics:
        return SubscriberStatistics(**self.counts, last_error=self._last_error)

    def emit(self, event: SubscriberEvent) -> None:
        """Count and report an event."""
        if name := _COUNTED.get(type(event)):
            self.counts[name] += 1
        match event:
            case Gap(first, last):
                self.counts["missed"] += last - first + 1
            case Retrying(error=error) | SkippedAhead(error=error):
                self._last_error = error
                self._is_connected = self._is_connected and not isinstance(error, ConnectionLost)
        # Only the first retry of a request is a warning: an outage is not reported every few seconds.
        is_first_retry = isinstance(event, Retrying) and event.attempt <= 2
        is_warning = is_first_retry or isinstance(event, Gap | SegmentTruncated | SegmentBroken)
        self.report(event, logging.WARNING if is_warning else logging.INFO)

    def answered(self) -> None:
        """The server has answered a request."""
        if not self._is_connected:
            self._is_connected = True
            self.emit(Connected())

    def lag(self, seq: int, lag: int) -> None:
        """A segment begins ``lag`` segments behind the newest one."""
        if lag and not self._is_lagging:
            self.emit(Lagging(seq, lag))
        self._is_lagging = lag > 0
