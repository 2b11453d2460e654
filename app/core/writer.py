"""The right to write one segment: a token that turns stale, and what it is answered.

A publisher's exchange holds a :class:`Writer`. Everything it does to its segment goes through the token; once the
segment closed or another exchange took it over, the token is stale and changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tricklecast.app.core.capacity import Capacity
    from tricklecast.app.core.channel import Channel
    from tricklecast.app.core.segment import Segment


class Verdict(Enum):
    """What has become of a writer's segment."""

    COMPLETE = auto()
    """It ended with at least one byte."""
    EMPTY = auto()
    """It ended without a byte; the head has moved past it all the same."""
    CLOSED_BY_OTHER = auto()
    """DELETE, a reset or a skip closed it first."""
    TERMINATED = auto()
    """The channel ended."""
    SUPERSEDED = auto()
    """Another writer took it over."""
    TOO_LARGE = auto()
    """It has reached the limit for one segment and was truncated."""
    OVER_BUDGET = auto()
    """All windows together hold as much as the server may; what it had stored was truncated."""
    NOT_THE_SAME = auto()
    """A retry ended before the bytes that are stored of its body: it is not the same body."""
    ABORTED = auto()
    """The publisher's connection broke."""


class Outcome(NamedTuple):
    """The answer to a writer.

    Attributes:
        verdict: see :class:`Verdict`.
        size: bytes that the segment holds now.
    """

    verdict: Verdict
    size: int


class WriterOwner(Protocol):
    """Who holds a token."""

    def preempted(self, outcome: Outcome) -> None:
        """Somebody else ended this writer's part; answer the publisher at once and drop its later bytes.

        Called in the middle of a change: it may write to its own socket, but must not call back into the
        registry from here.
        """


class Writer:
    """A token (epoch, seq, serial).

    Attributes:
        channel, segment: what it writes to; the channel object is one epoch of a name.
        serial: counts the writers of the server; of two tokens for one segment the higher is the valid one.
        owner: told when the token turns stale through somebody else.
        attempt: which attempt at its body this is: 1 for the first, 2 for its first retry, ...
        repeated: bytes still to come that the segment has already, from an earlier attempt at the same body.
        outcome: how its part ended; ``None`` while the token is valid.
    """

    __slots__ = ("_counted", "attempt", "channel", "outcome", "owner", "repeated", "segment", "serial")

    def __init__(
        self,
        channel: Channel,
        segment: Segment,
        serial: int,
        owner: WriterOwner,
        *,
        attempt: int = 1,
        repeated: int = 0,
    ) -> None:
        self.channel = channel
        self.segment = segment
        self.serial = serial
        self.owner = owner
        self.attempt = attempt
        self.repeated = repeated
        self.outcome: Outcome | None = None
        self._counted: Capacity | None = None

    def __repr__(self) -> str:
        state = "valid" if self.outcome is None else self.outcome.verdict.name.lower()
        return f"<Writer {self.channel.name!r}.{self.channel.epoch}/{self.segment.seq} #{self.serial} {state}>"

    def pass_over(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Leave out what the segment has already; what is left of a chunk in which that ends is a chunk."""
        new = []
        for chunk in chunks:
            if self.repeated < len(chunk):
                new.append(chunk[self.repeated :])
            self.repeated = max(0, self.repeated - len(chunk))
        return new

    @property
    def counted(self) -> bool:
        """Whether it is one of the publishers: the server's own are not."""
        return self._counted is not None

    def count(self, publishers: Capacity) -> None:
        """It is one of the publishers, until its part has ended."""
        publishers.take()
        self._counted = publishers

    def settle(self, verdict: Verdict) -> Outcome:
        """Make the token stale and record how its part ended. Only the channel calls this."""
        if self._counted is not None:
            self._counted.give_back()
        self.outcome = Outcome(verdict, self.segment.size)
        return self.outcome
