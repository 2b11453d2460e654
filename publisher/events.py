"""The events of a publisher: one class for each, for ``Publisher(on_event=)`` and the log.

::

    def on_event(event: PublisherEvent) -> None:
        match event:
            case Retrying(error=error, delay_s=delay_s):
                print(f"{error}; trying again in {delay_s:.1f} s")

    async with Publisher(url, on_event=on_event) as publisher:
        ...

The callback runs in the event loop, between two steps of the publisher: it must not block. The ``str()`` of an event is
a sentence; the same sentences go to the logger ``tricklecast.publisher``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tricklecast.publisher.core import Receipt
from tricklecast.trickle.client.reports import Event, Reporter
from tricklecast.trickle.client.reports import Retrying as Retrying
from tricklecast.trickle.errors import SegmentDropped, TrickleError

logger: Final = logging.getLogger("tricklecast.publisher")
logger.addHandler(logging.NullHandler())  # a program that has not set up logging sees nothing of it


class SegmentBegun(Event):
    """The first bytes of a segment, or its end, were handed to a connection."""

    seq: int

    def __str__(self) -> str:
        return f"segment {self.seq} begins"


class SegmentPublished(Event):
    """The server has confirmed a segment."""

    receipt: Receipt

    def __str__(self) -> str:
        return f"segment {self.receipt.seq} is published ({self.receipt.sent} bytes)"


class SegmentLost(Event):
    """A segment was not published.

    Attributes:
        seq: its number; ``None`` if it has none: nothing of it was sent, and another segment may have got its number.
        error: why. ``SegmentDropped``: too many were in flight; ``ClosedHere``: its own writer left it.
    """

    seq: int | None
    error: Exception

    def __str__(self) -> str:
        if isinstance(self.error, SegmentDropped):
            return str(self.error)
        name = "a segment" if self.seq is None else f"segment {self.seq}"
        return f"{name} is lost: {self.error}"


class Disconnected(Event):
    """The server does not answer, or a connection to it broke. Told once, until :class:`Reconnected`."""

    error: TrickleError

    def __str__(self) -> str:
        return f"the server does not answer: {self.error}"


class Reconnected(Event):
    """The server answers again.

    Attributes:
        outage_s: how many seconds it did not.
    """

    outage_s: float

    def __str__(self) -> str:
        return f"the server answers again, after {self.outage_s:.1f} s"


class Forgotten(Event):
    """The server does not have segments any more that it had confirmed: it was killed, and had not stored them, or the
    channel has expired. Readers that have not read them by now see a gap, or segments without bytes.
    A segment of which the server still has a part is not among them: its readers see it truncated.

    Attributes:
        first: the oldest of them.
        last: the newest of them.
    """

    first: int
    last: int

    def __str__(self) -> str:
        which = f"segment {self.first}" if self.first == self.last else f"segments {self.first} to {self.last}"
        return f"the server does not have {which} any more, which it had confirmed"


class Renumbered(Event):
    """A segment is published under another number, since the server's numbering goes on elsewhere."""

    old: int
    new: int

    def __str__(self) -> str:
        return f"segment {self.old} is published as segment {self.new}"


class Failed(Event):
    """Nothing more can be published: ``Superseded``, ``ChannelBusy``, ``ChannelEnded``, ``Refused`` and so on."""

    error: Exception

    def __str__(self) -> str:
        return f"nothing more can be published: {self.error}"


class Finished(Event):
    """The publisher was closed.

    Attributes:
        ended: whether the channel was ended, too. Otherwise another publisher can go on with it.
        unconfirmed: the seqs of the segments that the server has not confirmed.
    """

    ended: bool
    unconfirmed: tuple[int, ...]

    def __str__(self) -> str:
        end = "the channel is ended" if self.ended else "the channel stays open"
        return f"{end}; not confirmed: {', '.join(map(str, self.unconfirmed))}" if self.unconfirmed else end


PublisherEvent: TypeAlias = (
    SegmentBegun
    | SegmentPublished
    | SegmentLost
    | Retrying
    | Disconnected
    | Reconnected
    | Forgotten
    | Renumbered
    | Failed
    | Finished
)


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """A publisher's counters at one moment.

    Attributes:
        segments: published with bytes: the server has confirmed them.
        bytes: of those segments.
        empty: published without a byte, by the writer or by idle rotation.
        in_flight: entered, and not yet published or lost.
        retries: requests made again, those for the position included.
        buffered_bytes: bytes that the server has not confirmed, and that are held to be sent, or sent again.
        dropped: given up here for newer ones, because the buffer was full.
        lost: failed, or left unconfirmed by the end, although bytes of them had been handed over.
        last_error: the newest error of a segment, or why nothing more can be published.
    """

    segments: int = 0
    bytes: int = 0
    empty: int = 0
    in_flight: int = 0
    buffered_bytes: int = 0
    retries: int = 0
    dropped: int = 0
    lost: int = 0
    last_error: Exception | None = None


_LEVELS: Final[dict[type, int]] = {
    Reconnected: logging.INFO,
    Retrying: logging.INFO,
    SegmentLost: logging.WARNING,
    Disconnected: logging.WARNING,
    Forgotten: logging.WARNING,
    Renumbered: logging.WARNING,
    Failed: logging.ERROR,
}
"""All others: ``DEBUG``."""


class PublisherReporter(Reporter[PublisherEvent]):
    """Reports the events of one publisher, and says when the connection was lost and regained.

    Args:
        now: seconds on a monotonic clock.

    Attributes:
        counts: some of the counters, under the names of :class:`PublisherStatistics`.
    """

    def __init__(
        self, on_event: Callable[[PublisherEvent], None] | None, channel: str, now: Callable[[], float]
    ) -> None:
        super().__init__(logger, channel, on_event)
        self.counts: Final[defaultdict[str, int]] = defaultdict(int)
        self._now = now
        self._lost_at: float | None = None  # when the server stopped answering; None while it answers

    def __call__(self, event: PublisherEvent) -> None:
        """Report one event."""
        self.report(event, _LEVELS.get(type(event), logging.DEBUG))

    @property
    def is_detailed(self) -> bool:
        """Whether anybody hears of it when a segment begins and is published. Else these events need not be made."""
        return self._on_event is not None or self._logger.isEnabledFor(logging.DEBUG)

    def lost(self, error: TrickleError) -> None:
        """A request got no answer."""
        if self._lost_at is None:
            self._lost_at = self._now()
            self(Disconnected(error))

    def answered(self) -> None:
        """A request got an answer."""
        if self._lost_at is not None:
            since, self._lost_at = self._lost_at, None
            self(Reconnected(self._now() - since))
