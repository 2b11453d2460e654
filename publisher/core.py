"""What a publisher does next: which seq, and what every answer means. No I/O, no clock, no randomness of its own.

:class:`Plan` hands out a :class:`Ticket` per segment. Whoever carries the request out tells it how that went (an
:class:`Outcome`) and obeys the :data:`Verdict`:

- :class:`Advance`: this seq is done with; the next segment gets the next ticket.
- :class:`RetryAfter`: wait, then send the same segment again.
- :class:`Resync`: wait, then send the segment under another seq.
- :class:`Stop`: nothing more can be published.

Rules (docs/reference/protocol.md, sections 3, 5 and 6):

- A request that failed is never repeated at once: every retry waits for a random delay of at least
  :data:`MIN_DELAY_S`, on top of ``Retry-After`` where there is one.
- A status that says no (any 4xx other than 429 and 470) is final.
- Every retry is paid from a budget that published segments refill, except after :data:`LONG_S` of a quiet preconnect.
- Bytes that were handed over once are not kept. A segment that fails after its first byte is reported to its writer,
  and publishing goes on with the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from trickle import wire
from trickle.backoff import Backoff, RetryBudget
from trickle.errors import (
    ChannelEnded,
    ConnectionLost,
    InvalidInput,
    LocalProtocolError,
    Refused,
    RemoteProtocolError,
    SegmentMissing,
    SegmentTooLarge,
    Superseded,
    TrickleError,
    error_for,
    header_int,
)

if TYPE_CHECKING:
    from random import Random

MIN_DELAY_S: Final = 0.05
"""No retry comes sooner than this, whatever the dice say."""

LONG_S: Final = 10.0
"""A preconnect that stood this long and then broke was cut for idleness (by a load balancer, say). Replacing it is
ordinary work, not a retry: as often as the server's own sign of life on an idle preconnect."""

MAX_RETRY_AFTER_S: Final = 300.0
"""Told to wait longer than this, the publisher gives up: live media would be stale by then."""

Start = int | Literal["resume", "reset"]

_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


def parse_start(value: str | int) -> Start:
    """Read where to start: ``resume``, ``reset``, or a seq of 0 or above.

    Raises:
        InvalidInput: it is none of these.
    """
    match value:
        case "resume" | "reset":
            return value
        case str() if _NUMBER.fullmatch(value):
            return int(value)
        case int() if 0 <= value < 10**15:
            return value
    raise InvalidInput(f"start is 'resume', 'reset' or a seq, not {value!r}")


class Closed(Enum):
    """How a published segment closed."""

    COMPLETE = "complete"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one published segment.

    Attributes:
        seq: its number in the channel.
        sent: bytes that were written.
        stored: bytes that the server says it has, including those of an earlier publisher of the same segment;
            ``None`` if it did not say.
        closed: how it closed.
    """

    seq: int
    sent: int
    stored: int | None
    closed: Closed


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to send one segment.

    Attributes:
        seq: which one.
        attempt: 1 for the first request, 2 for its first retry, ...
        reset: the request says ``Lp-Trickle-Reset``.
    """

    seq: int
    attempt: int = 1
    reset: bool = False

    def again(self, seq: int | None = None) -> Ticket:
        """The ticket of the next attempt, at another seq if one is given."""
        return replace(self, seq=self.seq if seq is None else seq, attempt=self.attempt + 1)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request had come when its outcome was known.

    Attributes:
        sent: bytes of the body that were taken for sending.
        ended: the whole body was.
        lived_s: seconds since the request was made.
    """

    sent: int = 0
    ended: bool = False
    lived_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered.

    Attributes:
        status: the HTTP status.
        headers: found in any case.
        detail: first line of the body.
    """

    status: int
    headers: Mapping[str, str]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """There was no answer.

    Attributes:
        error: why.
        connected: a connection had been made.
    """

    error: ConnectionLost | RemoteProtocolError
    connected: bool = True


Outcome = Answered | Lost


@dataclass(frozen=True, slots=True)
class Advance:
    """Go on. Of a segment: it is done with, either published (``receipt``) or lost (``error``, for its writer)."""

    receipt: Receipt | None = None
    error: TrickleError | None = None


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Wait for ``delay_s`` seconds, then send the same request again."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Resync:
    """Wait for ``delay_s`` seconds, then send the segment as ``seq``."""

    delay_s: float
    seq: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more can be published."""

    error: TrickleError


Verdict = Advance | RetryAfter | Resync | Stop


class Plan:
    """The decisions of one publisher.

    At most one ticket at a time may be without its first byte: the newest. So seqs are begun in order.

    Args:
        start: the first seq, or how to find it.
        rng: where the jitter comes from.
        backoff: delays before retries.
        budget: how many retries there may be.

    Attributes:
        error: why nothing more can be published; ``None`` while that is not so.
    """

    def __init__(
        self, start: Start, *, rng: Random, backoff: Backoff | None = None, budget: RetryBudget | None = None
    ) -> None:
        self._next = start if isinstance(start, int) else None
        self._reset = start == "reset"
        self._rng = rng
        self._backoff = backoff or Backoff()
        self._budget = budget or RetryBudget()
        self._failures = 0
        self._reached = False
        self._newest_begun = -1
        self.error: TrickleError | None = None

    @property
    def next_seq(self) -> int | None:
        """The seq of the next ticket; ``None`` while ``GET /{channel}/next`` has to be asked first."""
        return self._next

    @property
    def owns_channel(self) -> bool:
        """Whether this publisher may end the channel: it found the server, and nobody said that it is another's."""
        match self.error:
            case None | ConnectionLost() | SegmentMissing():
                return self._reached
            case Refused(temporary=temporary):
                return temporary
            case _:
                return False

    def take(self) -> Ticket:
        """A ticket for the next segment.

        Raises:
            LocalProtocolError: ``next_seq`` is not known yet.
        """
        if self._next is None:
            raise LocalProtocolError("the position has to be asked for before the first segment")
        ticket = Ticket(self._next, reset=self._reset)
        self._reset = False
        self._next += 1
        return ticket

    def begin(self, ticket: Ticket) -> None:
        """The first byte of a segment was handed over."""
        self._reached = True
        self._newest_begun = ticket.seq

    def on_next(self, outcome: Outcome) -> Advance | RetryAfter | Stop:
        """What ``GET /{channel}/next`` brought; after ``Advance``, ``next_seq`` is known."""
        self._note(outcome)
        if isinstance(outcome, Answered) and (head := _head(outcome)) is not None:
            self._next = head
            return Advance()
        return self._retry(outcome, _error(outcome, None), lived_s=0.0)

    def on_delete(self, outcome: Outcome) -> Advance | RetryAfter | Stop:
        """What ``DELETE /{channel}`` brought. A channel that is already gone is as good as one that was ended."""
        self._note(outcome)
        gone = (wire.Status.OK, wire.Status.BAD_REQUEST, wire.Status.NOT_FOUND)
        if isinstance(outcome, Answered) and outcome.status in gone:
            return Advance()
        return self._retry(outcome, _error(outcome, None), lived_s=0.0)

    def on_post(self, ticket: Ticket, outcome: Outcome, progress: Progress) -> Verdict:
        """What ``POST /{channel}/{seq}`` came to.

        Args:
            ticket: whose request it was.
            outcome: how it ended.
            progress: how far it had come.
        """
        self._note(outcome)
        error = _error(outcome, ticket.seq)
        match outcome:
            case Answered(status=wire.Status.OK) if not isinstance(error, ChannelEnded):
                return self._on_ok(ticket, outcome, progress)
        if progress.sent or progress.ended:
            # Its bytes are gone: its writer is told, and the next segment may still get through.
            return Advance(error=error) if _may_go_on(error) else self._stop(error)
        match error:
            case SegmentMissing(latest=int(head)) if head >= 0:
                # The head may be a segment of our own whose first byte is still on its way to the server.
                seq = head + 1 if head == self._newest_begun else head
                return self._resync(seq, error, progress)
            case SegmentMissing() | SegmentTooLarge():
                return self._stop(error)
        return self._retry(outcome, error, lived_s=progress.lived_s)

    def _on_ok(self, ticket: Ticket, answer: Answered, progress: Progress) -> Verdict:
        stored = header_int(answer.headers, wire.SIZE)
        if not progress.ended and not progress.sent:
            error = Superseded(answer.status, seq=ticket.seq, detail="somebody else closed it before it began")
            return self._resync(ticket.seq + 1, error, progress)
        if not progress.ended or (stored is not None and stored < progress.sent):
            detail = f"somebody else closed it; the server has {stored} of {progress.sent} bytes"
            return Advance(error=Superseded(answer.status, seq=ticket.seq, detail=detail))
        self._failures = 0
        self._budget.earn()
        closed = Closed.COMPLETE if progress.sent else Closed.EMPTY
        return Advance(receipt=Receipt(ticket.seq, progress.sent, stored, closed))

    def _note(self, outcome: Outcome) -> None:
        self._reached |= not isinstance(outcome, Lost) or outcome.connected

    def _retry(self, outcome: Outcome, error: TrickleError, *, lived_s: float) -> RetryAfter | Stop:
        # The very first connection is not worth waiting for: most likely the URL is wrong, and somebody is watching.
        unconnected = isinstance(outcome, Lost) and not outcome.connected
        hopeless = (unconnected and not self._reached) or not _may_retry(error)
        delay_s = None if hopeless else self._pay(error, 0.0 if unconnected else lived_s)
        return self._stop(error) if delay_s is None else RetryAfter(delay_s)

    def _resync(self, seq: int, error: TrickleError, progress: Progress) -> Resync | Stop:
        delay_s = self._pay(error, progress.lived_s)
        if delay_s is None:
            return self._stop(error)
        self._next = seq + 1
        return Resync(delay_s, seq)

    def _pay(self, error: TrickleError, lived_s: float) -> float | None:
        """How many seconds to wait before another request; ``None`` if there is to be none."""
        floor_s = getattr(error, "retry_after", None) or 0.0
        if lived_s >= LONG_S:
            self._failures = 0
        elif not self._budget.spend():
            return None
        self._failures += 1
        if floor_s > MAX_RETRY_AFTER_S:
            return None
        return max(MIN_DELAY_S, self._backoff.delay(self._failures, self._rng, floor_s=floor_s))

    def _stop(self, error: TrickleError) -> Stop:
        self.error = error
        return Stop(error)


def _head(answer: Answered) -> int | None:
    """The position that an answer of ``GET /{channel}/next`` gives; ``None`` if it gives none."""
    # An ended channel stays readable for a while. What is published now begins the next life of its name.
    if answer.status == wire.Status.NOT_FOUND or (answer.status == wire.Status.OK and answer.headers.get(wire.CLOSED)):
        return 0
    if answer.status != wire.Status.OK:
        return None
    head = header_int(answer.headers, wire.LATEST)
    if head is None and _NUMBER.fullmatch(answer.detail):
        head = int(answer.detail)
    return head if head is not None and head >= 0 else None


def _error(outcome: Outcome, seq: int | None) -> TrickleError:
    if isinstance(outcome, Lost):
        return outcome.error
    return error_for(outcome.status, outcome.headers, seq=seq, detail=outcome.detail)


def _may_retry(error: TrickleError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, ConnectionLost) or (isinstance(error, Refused) and error.temporary)


def _may_go_on(error: TrickleError) -> bool:
    """Whether another segment may get through after one failed with this."""
    return _may_retry(error) or isinstance(error, SegmentTooLarge | SegmentMissing)
