"""Decides the next step of a publisher: the meaning of every answer. No I/O, no clock, no randomness.

:class:`Plan` hands out a :class:`Ticket` per segment. The caller makes the request, tells the plan how it went (an
:data:`~tricklecast.trickle.client.exchange.ExchangeOutcome`), and obeys the :data:`Decision`:

- ``Advance``: this seq is done with; the next segment gets the next ticket.
- ``RetryAfter``: wait, then send the same segment again.
- ``Resync``: wait, then send the segment under another seq.
- ``Stop``: nothing more can be published.

While :attr:`Plan.uncertain`, no segment is sent: the caller asks for the position first, by one request at a time.

Rules (docs/reference/protocol.md, sections 3, 5 and 6):

- A request that failed is never repeated at once (:class:`~tricklecast.trickle.client.retry.Retries`).
- A status that says no (any 4xx other than 409, 429 and 470) is final.
- A 429 or 5xx holds for the channel: no other request is begun before its time.
- A segment is sent again only while all of its bytes are held, and only where they cannot be doubled: the server keeps
  the rule for bodies with a key, or has certainly nothing of it. Otherwise the segment is lost, its writer is told,
  and publishing goes on.
- Each request names the publisher's numbering, by a name of its own, or by the one that the server told when the
  publisher joined others. So the readers of a server that was restarted know that no new numbering begins.
- A server whose channel is gone or empty gets the seqs that come next here, as if nothing had happened. So does one
  that has lost the newest segments: its head went back, and it says that nothing was published since its start.
- A head beyond what was published here, any other head that went back, a later epoch of another numbering, or a 409
  for a seq that this publisher did not begin, are another publisher's doing: ``Superseded``.
- Once a server has told the channel's epoch, each request is for that epoch only, so that a publisher that was paused
  writes nothing into its successor's epoch. A 409 with a later epoch is ``Superseded``, unless it names this
  publisher's numbering: a copy of the channel was promoted, perhaps without the newest segments, and the position is
  asked for. So it is after one with an earlier epoch, of a server that has forgotten the later ones. A 404 is that of a
  server that has forgotten the channel: the segment is sent again for any epoch, and begins the channel anew.
- Before the first byte, a 409 to ``Lp-Trickle-If-Idle`` means that another client publishes: ``ChannelBusy``. Its
  connection may be gone already (``Retry-After``): then the request is repeated :data:`BUSY_RETRIES` times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Final, Literal

from tricklecast.publisher.numbering import Numbering
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import RetryBudget
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost
from tricklecast.trickle.client.retry import IDLE_S, RECONNECT_S, Retries, Stop
from tricklecast.trickle.errors import (
    BrokenByPeer,
    ChannelBusy,
    ChannelEnded,
    ChannelNotFound,
    ConnectionLost,
    InvalidInput,
    Refused,
    RemoteProtocolError,
    SegmentMissing,
    SegmentTooLarge,
    Superseded,
    TrickleError,
    error_for,
    header_int,
)

LIFE_CHARS: Final = 16
"""How much of its name a publisher gives to its numbering. Each answer of the server repeats it, so it is short."""

BUSY_RETRIES: Final = 2
"""How often a publisher whose channel is busy asks again, if the other publisher has no connection any more."""

_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)

Start = int | Literal["resume", "reset"]


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
        case int() if 0 <= value <= wire.LAST_SEQ and not isinstance(value, bool):
            return value
    hint = ""
    if value in ("earliest", "latest", "next"):
        hint = ", where a reader begins: 'resume' goes on behind the newest segment"
    raise InvalidInput(f"start is 'resume', 'reset' or a seq, not {value!r}{hint}")


class Closed(Enum):
    """How a published segment closed."""

    COMPLETE = "complete"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The server's confirmation of one segment.

    Attributes:
        seq: its number in the channel.
        sent: bytes that were written.
        stored: bytes that the server says it has, including those of an earlier publisher of the same segment;
            ``None`` if it did not say.
        closed: how it closed.
        first_byte_s: seconds from entering the segment until its first chunk was handed to the connection (the one
            that brought the answer); ``None`` for an empty segment, and not compared.
        answered_s: seconds from entering the segment to the answer; not compared.
        attempts: requests that it took; 1 if nothing went wrong.
    """

    seq: int
    sent: int
    stored: int | None
    closed: Closed
    first_byte_s: float | None = field(default=None, compare=False)
    answered_s: float | None = field(default=None, compare=False)
    attempts: int = 1


@dataclass(slots=True)  # not frozen, which takes three times as long to make
class Ticket:
    """Permission to make one request for one segment."""

    seq: int
    key: str = ""  # the Idempotency-Key, the same for all attempts
    attempt: int = 1  # 2 for the first retry
    reset: bool = False  # the request says Lp-Trickle-Reset: everything before this segment is over
    exposed: bool = False  # the server may have bytes of the segment, or its end, from an earlier attempt
    final: bool = False  # the segment keeps its seq: readers may have bytes of it from a server that is gone
    renewals: int = 0  # how often the channel had been found to be gone by then
    confirmed: int = -1  # the newest seq that the server had confirmed by then
    numbering: str = ""  # the value of Lp-Trickle-Life in the request
    epoch: int | None = None  # the value of Lp-Trickle-Epoch: the request is for this epoch only

    def again(self, seq: int | None = None, *, exposed: bool = False) -> Ticket:
        """The ticket of the next attempt; at another seq, if one is given, of which the server has nothing."""
        if seq is not None:
            return replace(self, seq=seq, attempt=self.attempt + 1, exposed=False)
        return replace(self, attempt=self.attempt + 1, exposed=self.exposed or exposed)


@dataclass(slots=True)
class Progress:
    """How far a segment had come when its request was answered or lost."""

    sent: int = 0  # bytes of the body that this request took for sending
    ended: bool = False  # this request took the end of the body, too
    lived_s: float = 0.0  # seconds since the request was made
    handed: int = 0  # bytes that the writer has handed over so far
    over: bool = False  # the writer has ended the body
    held: bool = True  # all of those bytes are still held, so that the body can be sent from its start
    first_byte_s: float | None = None  # as in a receipt
    answered_s: float | None = None
    now: float = 0.0  # seconds on a monotonic clock

    @property
    def begun(self) -> bool:
        """Whether there is something to be published; otherwise it is a preconnect."""
        return self.handed > 0 or self.over

    @property
    def exposed(self) -> bool:
        """Whether this request may have brought something to the server."""
        return self.sent > 0 or self.ended


@dataclass(slots=True)
class Advance:
    """Go on. Of a segment: it is done with, either published (``receipt``) or lost (``error``, for its writer)."""

    receipt: Receipt | None = None
    error: TrickleError | None = None
    drop: bool = False  # the server may hold a part of it: tell it that no more comes, so that its readers learn it
    in_doubt: bool = False  # the server may hold all of it: read it back, and call Plan.found() if that is the same


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Wait for ``delay_s`` seconds, then send the same request again."""

    delay_s: float
    exposed: bool = False  # the server may have a part of the bytes that were sent
    holds: bool = False  # the server asked for it: no other request of the channel is begun before that, either
    error: TrickleError | None = field(default=None, compare=False)  # why


@dataclass(frozen=True, slots=True)
class Resync:
    """Wait for ``delay_s`` seconds, then send the segment as ``seq``. Preconnects are void: they get new numbers."""

    delay_s: float
    seq: int
    error: TrickleError | None = field(default=None, compare=False)  # why


Decision = Advance | RetryAfter | Resync | Stop


def head_of(answer: Answer) -> int | None:
    """The position that an answer of ``GET /{channel}/next`` gives; ``None`` if it gives none."""
    # An ended channel stays readable for a while. A segment that is published now begins the next epoch of its name.
    if answer.status == wire.Status.NOT_FOUND or (answer.status == wire.Status.OK and answer.closed):
        return 0
    if answer.status != wire.Status.OK:
        return None
    head = header_int(answer.headers, wire.LATEST)
    if head is None and _NUMBER.fullmatch(answer.detail):
        head = int(answer.detail)
    return head if head is not None and head >= 0 else None


def error_of(outcome: ExchangeOutcome, seq: int | None) -> TrickleError | None:
    """The error that an outcome stands for; ``None`` for a 200 that is not the end of the channel."""
    if isinstance(outcome, Lost):
        return outcome.error
    if outcome.status == wire.Status.OK and wire.CLOSED not in outcome.headers:
        return None
    return outcome.error(seq)


class Plan:
    """The decisions of one publisher.

    In its methods, ``now`` is seconds on a monotonic clock, and ``lived_s`` is for how many a request was under way.

    Args:
        name: begins every ``Idempotency-Key`` and names the numbering; must be unique among publishers.
        rng: where jitter comes from.
        budget: as for :class:`~tricklecast.trickle.client.retry.Retries`.
        outage_s, wait_s: its ``reconnect_s`` and ``wait_s``.

    Attributes:
        numbering: hands out seqs.
        error: why nothing more can be published; ``None`` while the publisher can go on.
        trouble: the server's last failure, until a segment is published.
        uncertain: a connection was lost, or segments come faster than the server answers. Before any other request,
            ask for the position and call :meth:`on_located`.
        keeps_keys: whether the server stores a body that is sent again under its key only once; ``None``: not known.
    """

    def __init__(
        self,
        start: Start,
        *,
        rng: Random,
        name: str = "",
        budget: RetryBudget | None = None,
        outage_s: float | None = RECONNECT_S,
        wait_s: float | None = 0.0,
    ) -> None:
        self.error: TrickleError | None = None
        self.trouble: TrickleError | None = None
        self.uncertain = False
        self.keeps_keys: bool | None = None
        self.numbering = Numbering(start if isinstance(start, int) else None)
        self._reset = start == "reset"  # the next ticket asks the server to close all lower segments
        self._name = name
        self._keys = 0  # number of keys that were made
        self._life = ""  # the numbering, as Lp-Trickle-Life names it; empty until the first seq is known
        self._rng = rng
        self._retries = Retries(budget=budget, reconnect_s=outage_s, wait_s=wait_s)
        self._held = False  # a refusal was counted; those of other requests cost nothing more until the next request
        self._reached = False  # a request has reached the server
        self._published = False  # the server has taken a segment
        self._first = self.numbering.next  # the seq with which it begins the channel, or its next epoch
        self._resets = False  # the first segment says so, too: it begins the next epoch of a channel that has ended
        self._ended_epoch: int | None = None  # the channel's last one, if it had ended before this publisher began
        self._busy = 0  # waits because another client publishes
        self._busy_until = 0.0  # when the last one of them is over: a request that is refused meanwhile shares it

    @property
    def owns_channel(self) -> bool:
        """Whether this publisher may end the channel: it reached the server, and no other publisher was found there."""
        match self.error:
            case None | ConnectionLost() | SegmentMissing():
                return self._reached
            case Refused(temporary=temporary, elsewhere=elsewhere):
                return temporary and not elsewhere
            case _:
                return False

    def take(self) -> Ticket:
        """A ticket for the next segment.

        Raises:
            LocalProtocolError: the position has to be asked for first.
        """
        seq = self.numbering.take()
        reset, self._reset = self._reset, False
        self._keys += 1
        if self._name and not self._life:
            self._life = str(wire.Life(self._name[:LIFE_CHARS], seq))
        return Ticket(seq, f"{self._name}.{self._keys}", reset=reset, renewals=self.numbering.renewals)

    def hand_back(self, ticket: Ticket) -> bool:
        """No request is made with a ticket; ``False`` if others were handed out behind it, and its number stays."""
        handed_back = self.numbering.hand_back(ticket.seq)
        self._reset |= handed_back and ticket.reset
        return handed_back

    def begin(self, ticket: Ticket) -> None:
        """The first byte of a segment, or its end, was handed to a connection."""
        if not self._reached:
            self._reach()
        self.numbering.note_sent(ticket.seq)

    def on_next(self, outcome: ExchangeOutcome, now: float) -> Advance | RetryAfter | Stop:
        """The first ``GET /{channel}/next`` was answered or lost. After ``Advance``, the next seq is known."""
        self._note(outcome)
        if isinstance(outcome, Answer) and (head := head_of(outcome)) is not None:
            self._learn(outcome)
            self.uncertain = False
            epoch = outcome.natural(wire.EPOCH)
            if outcome.closed or outcome.status != wire.Status.OK:  # the first segment begins the next epoch
                self._first, self._ended_epoch, epoch = head, epoch, None
            self.numbering.place(head, epoch)
            return Advance()
        return self._retry(outcome, error_of(outcome, None), now)

    def on_located(
        self, outcome: ExchangeOutcome, since: int, now: float, lived_s: float = 0.0
    ) -> Advance | RetryAfter | Stop:
        """A later ``GET /{channel}/next`` was answered or lost. After ``Advance``, segments may be sent again.

        Args:
            since: ``numbering.confirmed`` when the request was made.
        """
        self._note(outcome)
        error = error_of(outcome, None)
        stop: TrickleError | None = None
        match outcome:
            case Lost() | Answer(status=wire.Status.TOO_MANY_REQUESTS) | Answer(status=500 | 502 | 503 | 504):
                return self._retry(outcome, error, now, lived_s)
            case Answer(status=wire.Status.OK | wire.Status.NOT_FOUND) if isinstance(error, ChannelEnded):
                stop = error if self.numbering.newest >= 0 and not self._ended_before(outcome) else None
            case Answer(status=wire.Status.NOT_FOUND):
                self.numbering.begin_epoch(since=since)
            case Answer() if (head := head_of(outcome)) is not None:
                self._learn(outcome)
                known, epoch = self.numbering.epoch, outcome.natural(wire.EPOCH)
                ours = outcome.life is not None and self._is_ours(outcome.life.name)
                why = self.numbering.compare(
                    head, since, epoch, exact=epoch is not None, unwritten=_is_unwritten(outcome), ours=ours
                )
                if why:
                    other = None if known in (None, epoch) else epoch
                    stop = Superseded(None, seq=self.numbering.newest, detail=why, latest=head, epoch=other)
            case _:
                self.keeps_keys = False  # a server without this route: its answers to segments must do
        if stop is not None:
            return self._stop(stop)
        self.uncertain = False
        self._retries.back()
        return Advance()

    def on_delete(self, outcome: ExchangeOutcome, now: float) -> Advance | RetryAfter | Stop:
        """``DELETE /{channel}`` was answered or lost. A channel that is gone already counts as ended."""
        self._note(outcome)
        gone = (wire.Status.OK, wire.Status.BAD_REQUEST, wire.Status.NOT_FOUND)
        if isinstance(outcome, Answer) and outcome.status in gone:
            return Advance()
        return self._retry(outcome, error_of(outcome, None), now)

    def before_request(self, ticket: Ticket) -> Ticket | Advance:
        """Call this right before a request: it returns the ticket to use, or ``Advance`` if bytes could be doubled."""
        self._held = False
        numbering = self.numbering
        exposed = ticket.exposed and ticket.renewals == numbering.renewals
        if exposed and not self.keeps_keys:
            return self._drop(ticket, ConnectionLost(seq=ticket.seq, detail="this server would double its bytes"))
        reset = ticket.reset or numbering.leaps(ticket.seq) or (self._resets and ticket.seq == self._first)
        final = ticket.final or ticket.exposed != exposed
        return Ticket(
            ticket.seq,
            ticket.key,
            ticket.attempt,
            reset,
            exposed,
            final,
            numbering.renewals,
            numbering.confirmed,
            self._life,
            numbering.epoch,
        )

    def on_post(self, ticket: Ticket, outcome: ExchangeOutcome, progress: Progress) -> Decision:
        """``POST /{channel}/{seq}`` was answered or lost."""
        self._note(outcome)
        error = error_of(outcome, ticket.seq)
        if error is None:
            assert isinstance(outcome, Answer)
            return self._on_ok(ticket, outcome, progress)
        match error:
            case ChannelBusy():
                return self._on_busy(ticket, error, progress)
            case SegmentMissing():
                return self._on_missing(ticket, error, progress, unwritten=_is_unwritten(outcome))
            case Superseded(epoch=int()) | ChannelNotFound() if ticket.epoch is not None:
                return self._on_other_epoch(ticket, error, progress)
            case ChannelEnded() if progress.held and self._may_begin(ticket, outcome):
                delay_s = self._refused(error, progress.lived_s, known=ticket.attempt == 1)
                self._resets = True
                return self._stop(error) if delay_s is None else RetryAfter(delay_s, error=error)
            case Superseded():
                return self._on_conflict(ticket, error, progress)
            case SegmentTooLarge() if progress.begun:
                self.numbering.settle(ticket.seq, closed=True)
                return Advance(error=error)
        exposed = progress.exposed and not (isinstance(outcome, Lost) and not outcome.connected)
        if not _may_retry(error):
            return self._stop(error)
        doubled = (ticket.exposed or exposed) and self.keeps_keys is False and isinstance(outcome, Answer)
        if not progress.held or doubled:
            self.uncertain |= isinstance(outcome, Lost)
            return self._drop(ticket, error)
        self.uncertain |= exposed and self.keeps_keys is None and isinstance(outcome, Answer)
        known = self.uncertain if isinstance(outcome, Lost) else self._held
        decision = self._retry(outcome, error, progress.now, progress.lived_s, known=known)
        return replace(decision, exposed=exposed) if isinstance(decision, RetryAfter) else decision

    def _on_ok(self, ticket: Ticket, answer: Answer, progress: Progress) -> Decision:
        stored, seq = answer.natural(wire.SIZE), answer.natural(wire.SEQ)
        if stored is None and (answer.detail or self.keeps_keys):  # a server of another make says nothing at all
            why = answer.detail or f"it does not say what it stored (no {wire.SIZE})"
            return self._stop(RemoteProtocolError(answer.status, seq=ticket.seq, detail=why))
        if seq is not None and seq != ticket.seq:
            return self._stop(RemoteProtocolError(answer.status, seq=ticket.seq, detail=f"it stored segment {seq}"))
        if (life := answer.life) is not None:
            self._life = str(life)
        if ticket.renewals == self.numbering.renewals and self.numbering.epoch is None:
            self.numbering.epoch = answer.natural(wire.EPOCH)
        self.numbering.settle(ticket.seq, closed=True)
        repeated = progress.over and ticket.exposed and stored is not None
        if (progress.ended or repeated) and (stored is None or stored >= progress.handed):
            return self.found(ticket, progress, stored)
        if progress.held and not ticket.final and (stored == 0 or not (ticket.exposed or progress.exposed)):
            error = Superseded(answer.status, seq=ticket.seq, detail="another client closed it before it began")
            return self._resync(ticket, ticket.seq + 1, error, progress)
        detail = f"another client closed it; the server has {stored} of {progress.handed} bytes"
        return Advance(error=Superseded(answer.status, seq=ticket.seq, detail=detail))

    def found(self, ticket: Ticket, progress: Progress, stored: int | None) -> Advance:
        """The server has all of a segment: ``stored`` bytes, if it says so."""
        self._retries.worked()
        self._published = True
        if not (self._held or self.uncertain):  # otherwise the request began before the failure, and proves nothing
            self.trouble = None
        closed = Closed.COMPLETE if progress.handed else Closed.EMPTY
        told_s = progress.first_byte_s, progress.answered_s
        return Advance(Receipt(ticket.seq, progress.handed, stored, closed, *told_s, ticket.attempt))

    def _on_missing(self, ticket: Ticket, error: SegmentMissing, progress: Progress, *, unwritten: bool) -> Decision:
        """470: nothing of this request was stored, and the server says where its head is."""
        if error.latest is None or error.latest < 0:
            return self._stop(error)
        if why := self._compare(ticket, error.latest, unwritten=unwritten):
            return self._stop(Superseded(error.status, seq=ticket.seq, detail=why, latest=error.latest))
        if not progress.held:
            return self._drop(ticket, error)
        if self.numbering.has_gap(error.latest, ticket.seq):
            # The segment given up never came to the server, and an older one is open: the next answer may be another.
            delay_s = self._retries.outlast(progress.now, self._rng, known=self._held)
            self._held = True
        else:
            delay_s = self._refused(error, progress.lived_s)
        if delay_s is None:
            return self._stop(error)
        seq = self.numbering.move(ticket.seq, error.latest, begun=progress.begun)
        return RetryAfter(delay_s, error=error) if seq is None else Resync(delay_s, seq, error)

    def _on_other_epoch(
        self, ticket: Ticket, error: Superseded | ChannelNotFound, progress: Progress
    ) -> RetryAfter | Advance | Stop:
        """404, or 409 with an epoch: the channel is not in the epoch that the request was for; nothing was stored.

        A later epoch is another client's, unless it goes on with this publisher's numbering, or this publisher has
        found its channel gone since the request was made: then its own segments may have begun it.
        """
        known = ticket.renewals != self.numbering.renewals
        match error:
            case ChannelNotFound() if not known:
                self.numbering.begin_epoch(since=ticket.confirmed)
                error = ChannelNotFound(error.status, seq=ticket.seq, detail="the server does not know it any more")
            case Superseded(epoch=int() as epoch) if not known:
                if epoch > (ticket.epoch or 0) and not self._is_ours(error.numbering):
                    return self._stop(error)
                self.uncertain |= epoch != self.numbering.epoch
        if not progress.held:
            return self._drop(ticket, error)
        delay_s = self._refused(error, progress.lived_s, known=known)
        return self._stop(error) if delay_s is None else RetryAfter(delay_s, error=error)

    def _on_busy(self, ticket: Ticket, error: ChannelBusy, progress: Progress) -> RetryAfter | Stop:
        """409 to ``Lp-Trickle-If-Idle``: another client publishes here, or has a moment ago."""
        if self._published:
            if progress.held and error.latest is not None and error.latest <= self.numbering.confirmed:
                # It knows less of the channel than this publisher has published since: a proxy has held it back, and
                # the wait that it asks for is over.
                return RetryAfter(self._retries.delay_s(self._rng), error=error)
            return self._stop(Superseded(error.status, seq=ticket.seq, detail=error.detail, latest=error.latest))
        is_next = progress.now >= self._busy_until
        self._busy += is_next
        if error.retry_after is None or self._busy > BUSY_RETRIES or not progress.held:
            return self._stop(error)
        if (delay_s := self._refused(error, progress.lived_s, known=self._held)) is None:
            return self._stop(error)
        self._held = True
        if is_next:
            self._busy_until = progress.now + delay_s
        return RetryAfter(delay_s, error=error, holds=True)

    def _on_conflict(self, ticket: Ticket, error: Superseded, progress: Progress) -> Decision:
        """409: closed, or another publisher's. It may be our own doing if it, or a later one, had been begun here."""
        ours = ticket.exposed or ticket.seq < self.numbering.newest
        why = None if error.latest is None else self._compare(ticket, error.latest)
        if not ours or error.latest is None or why:
            return self._stop(error if not why else Superseded(seq=ticket.seq, detail=why, latest=error.latest))
        self.numbering.settle(ticket.seq, closed=True)
        if ticket.exposed or ticket.final or not progress.held:
            # A server that was killed has forgotten the key of the body that it had stored, and not answered.
            return Advance(error=error, in_doubt=ticket.exposed and progress.over and progress.held)
        return self._resync(ticket, ticket.seq + 1, error, progress)

    def _compare(self, ticket: Ticket, head: int, *, unwritten: bool = False) -> str | None:
        since = ticket.confirmed if ticket.renewals == self.numbering.renewals else -1
        return self.numbering.compare(head, since, unwritten=unwritten)

    def _resync(self, ticket: Ticket, to: int, error: TrickleError, progress: Progress) -> Resync | Stop:
        if (delay_s := self._refused(error, progress.lived_s)) is None:
            return self._stop(error)
        return Resync(delay_s, self.numbering.skip(ticket.seq, to, begun=progress.begun), error)

    def _drop(self, ticket: Ticket, error: TrickleError) -> Advance:
        self.numbering.settle(ticket.seq, closed=False)
        return Advance(error=error, drop=True)

    def _note(self, outcome: ExchangeOutcome) -> None:
        if not self._reached and (not isinstance(outcome, Lost) or (outcome.connected and not outcome.waited_s)):
            self._reach()

    def _reach(self) -> None:
        """There is a server. If it was waited for, that is over: its next outage has a time of its own."""
        self._reached = True
        self._retries.restart()

    def _may_begin(self, ticket: Ticket, outcome: ExchangeOutcome) -> bool:
        """Whether a channel that has ended can begin anew with this publisher's first segment: the server was not told
        that it is a beginning (a number above 0 is one with a reset only), or a later segment has overtaken it.

        A 200 tells of an end under this request, and so of this publisher's own epoch.
        """
        if not isinstance(outcome, Answer) or outcome.status != wire.Status.NOT_FOUND or ticket.exposed:
            return False
        if self._first is None or self.numbering.confirmed >= 0 or self.numbering.renewals:
            return False
        return ticket.seq > self._first or (ticket.seq == self._first > 0 and not ticket.reset)

    def _ended_before(self, answer: Answer) -> bool:
        """Whether the end that an answer tells of is that of the epoch before this publisher's first one."""
        return not self._published and answer.natural(wire.EPOCH) == self._ended_epoch is not None

    def _is_ours(self, numbering: str) -> bool:
        """Whether a numbering is the one with which this publisher publishes."""
        return bool(numbering) and numbering == self._life.partition(":")[0]

    def _learn(self, answer: Answer) -> None:
        if answer.status == wire.Status.OK:
            self.keeps_keys = header_int(answer.headers, wire.EPOCH) is not None

    def _retry(
        self,
        outcome: ExchangeOutcome,
        error: TrickleError | None,
        now: float,
        lived_s: float = 0.0,
        *,
        known: bool = False,
    ) -> RetryAfter | Stop:
        if error is None:
            assert isinstance(outcome, Answer)
            return self._stop(error_for(outcome.status, outcome.headers, detail=outcome.detail))
        # Most likely the URL is wrong if a server that has taken nothing yet says that another one takes the channel.
        # Later it may have been promoted meanwhile.
        misled = isinstance(error, Refused) and error.elsewhere and not (self._published or self._retries.endless)
        if not _may_retry(error) or misled:
            return self._stop(error)
        self.trouble = error
        if isinstance(outcome, Lost):
            self.uncertain = True
            if outcome.connected and not outcome.waited_s and lived_s >= IDLE_S and not known:
                self._retries.worked()  # a preconnect: replacing it is ordinary work
            if self._reached:
                delay_s = self._retries.outlast(now, self._rng, known=known)
            else:  # most likely the URL is wrong: that has a limit of its own
                delay_s = self._retries.wait(now, self._rng)
        else:
            self._held = True
            known |= lived_s >= IDLE_S
            delay_s = self._retries.failed(outcome.status, outcome.retry_after_s, now, self._rng, known=known)
        if delay_s is None:
            return self._stop(error)
        return RetryAfter(delay_s, holds=not isinstance(outcome, Lost), error=error)

    def _refused(self, error: TrickleError, lived_s: float, *, known: bool = False) -> float | None:
        """Seconds to wait after an answer that is no failure of the server; ``None``: give up.

        A preconnect that stood for long is replaced for nothing.
        """
        retry_after_s = error.retry_after if isinstance(error, BrokenByPeer) else None
        return self._retries.refused(self._rng, retry_after_s, known=known or lived_s >= IDLE_S)

    def _stop(self, error: TrickleError) -> Stop:
        self.error = error
        return Stop(error)


def _is_unwritten(outcome: ExchangeOutcome) -> bool:
    """Whether the server says that nothing was written to the channel since it started."""
    life = outcome.life if isinstance(outcome, Answer) else None
    return life is not None and life.first is None


def _may_retry(error: TrickleError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, ConnectionLost) or (isinstance(error, Refused) and error.temporary)
