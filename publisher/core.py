"""What a publisher does next: which seq, and what every answer means. No I/O, no clock, no randomness of its own.

:class:`Plan` hands out a :class:`~tricklecast.publisher.verdicts.Ticket` per segment. Whoever carries the request out
tells it how that went (an :data:`~tricklecast.publisher.verdicts.Outcome`) and obeys the
:data:`~tricklecast.publisher.verdicts.Verdict`:

- ``Advance``: this seq is done with; the next segment gets the next ticket.
- ``RetryAfter``: wait, then send the same segment again.
- ``Resync``: wait, then send the segment under another seq.
- ``Stop``: nothing more can be published.

While :attr:`Plan.uncertain`, no segment is sent: the position is asked for first, by one request at a time.

Rules (docs/reference/protocol.md, sections 3, 5 and 6):

- A request that failed is never repeated at once (:mod:`tricklecast.publisher.patience`).
- A status that says no (any 4xx other than 409, 429 and 470) is final.
- A request that is told to come back later (429, 5xx) speaks for the channel: nothing else is begun before that.
- A segment is sent again only while all of its bytes are held, and only where they cannot be doubled: the server keeps
  the rule for bodies with a key, or has certainly nothing of it. Otherwise its writer is told, and publishing goes on.
- Numbering: each request names it, by a name of this publisher's, or by the one that the server told it when it joined
  others. So the readers of a server that was restarted, and now gets what is sent again, know that nothing began anew.
- A server whose channel is gone or empty gets the seqs that come next here, as if nothing had happened, and so does one
  that has lost the newest segments: its head went back, and it says that nothing was published since its start. A head
  beyond what was published here, any other head that went back, a later epoch, or a 409 for a seq that this publisher
  did not begin, are another publisher's doing: ``Superseded``, and nothing is published between its segments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from tricklecast.publisher.numbering import Numbering
from tricklecast.publisher.patience import Patience
from tricklecast.publisher.verdicts import (
    NUMBER,
    Advance,
    Answered,
    Closed,
    Lost,
    Outcome,
    Progress,
    Receipt,
    Resync,
    RetryAfter,
    Stop,
    Ticket,
    Verdict,
    error_of,
)
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import Backoff, RetryBudget
from tricklecast.trickle.errors import (
    ChannelEnded,
    ConnectionLost,
    InvalidInput,
    Refused,
    SegmentMissing,
    SegmentTooLarge,
    Superseded,
    TrickleError,
    error_for,
    header_int,
)

if TYPE_CHECKING:
    from random import Random

LIFE_CHARS: Final = 16
"""How much of its name a publisher gives to its numbering: as much as tells publishers apart, since each answer of the
server has it."""

Start = int | Literal["resume", "reset"]


def parse_start(value: str | int) -> Start:
    """Read where to start: ``resume``, ``reset``, or a seq of 0 or above.

    Raises:
        InvalidInput: it is none of these.
    """
    match value:
        case "resume" | "reset":
            return value
        case str() if NUMBER.fullmatch(value):
            return int(value)
        case int() if 0 <= value <= wire.LAST_SEQ and not isinstance(value, bool):
            return value
    raise InvalidInput(f"start is 'resume', 'reset' or a seq, not {value!r}")


class Plan:
    """The decisions of one publisher.

    Args:
        start: the first seq, or how to find it.
        rng: where the jitter comes from.
        name: begins every ``Idempotency-Key`` and names the numbering; must be unique among publishers.
        backoff: delays before retries.
        budget: how many retries there may be.

    Attributes:
        error: why nothing more can be published; ``None`` while that is not so.
        trouble: what the server failed with last, as long as nothing was published since.
        uncertain: a connection was lost: before anything is sent, ask for the position, and call :meth:`on_located`.
        keeps_keys: whether the server stores a body that is sent again under its key only once; ``None``: not known.
    """

    def __init__(
        self,
        start: Start,
        *,
        rng: Random,
        name: str = "",
        backoff: Backoff | None = None,
        budget: RetryBudget | None = None,
    ) -> None:
        self.error: TrickleError | None = None
        self.trouble: TrickleError | None = None
        self.uncertain = False
        self.keeps_keys: bool | None = None
        self._numbering = Numbering(start if isinstance(start, int) else None)
        self._reset = start == "reset"
        self._name = name
        self._keys = 0
        self._life = ""
        self._patience = Patience(rng, backoff, budget)
        self._held = False
        self._reached = False

    @property
    def next_seq(self) -> int | None:
        """The seq of the next ticket; ``None`` while ``GET /{channel}/next`` has to be asked first."""
        return self._numbering.next

    @property
    def confirmed(self) -> int:
        """The newest seq that the server has said it closed for this publisher; -1 if there is none."""
        return self._numbering.confirmed

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
        seq = self._numbering.take()
        reset, self._reset = self._reset, False
        self._keys += 1
        if self._name and not self._life:
            self._life = str(wire.Life(self._name[:LIFE_CHARS], seq))
        return Ticket(seq, f"{self._name}.{self._keys}", reset=reset, life=self._numbering.life)

    def may_open(self, seq: int) -> bool:
        """Whether a request for this seq may be made now; ask again after each segment's first byte or fate."""
        return self._numbering.may_open(seq)

    def bind(self, ticket: Ticket) -> None:
        """There is something to send with this ticket."""
        self._numbering.bind(ticket.seq)

    def begin(self, ticket: Ticket) -> None:
        """The first byte of a segment, or its end, was handed to a connection."""
        self._reached = True
        self._numbering.flow(ticket.seq)

    def release(self, ticket: Ticket) -> bool:
        """Nothing of a segment was handed over, and it is given up; returns whether its ticket can be used again."""
        self._numbering.release(ticket.seq)
        return self._numbering.is_last(ticket.seq)

    def give_up(self, ticket: Ticket) -> None:
        """A segment was cut off here."""
        self._numbering.settle(ticket.seq, closed=False)

    def overrun(self) -> None:
        """Segments come faster than the server answers. Perhaps it does not answer at all: ask it something simple."""
        self.uncertain = True

    def on_next(self, outcome: Outcome) -> Advance | RetryAfter | Stop:
        """What the first ``GET /{channel}/next`` brought; after ``Advance``, ``next_seq`` is known."""
        self._note(outcome)
        if isinstance(outcome, Answered) and (head := outcome.head) is not None:
            self._learn(outcome)
            self.uncertain = False
            self._numbering.place(head, header_int(outcome.headers, wire.EPOCH))
            return Advance()
        return self._retry(outcome, error_of(outcome, None))

    def on_located(self, outcome: Outcome, since: int, lived_s: float = 0.0) -> Advance | RetryAfter | Stop:
        """What ``GET /{channel}/next`` brought; after ``Advance``, segments may be sent again.

        Args:
            outcome: how it ended.
            since: :attr:`confirmed` when the request was made.
            lived_s: how many seconds ago that was.
        """
        self._note(outcome)
        error = error_of(outcome, None)
        stop: TrickleError | None = None
        match outcome:
            case Lost() | Answered(status=wire.Status.TOO_MANY_REQUESTS) | Answered(status=500 | 502 | 503 | 504):
                return self._retry(outcome, error, lived_s=lived_s)
            case Answered(status=wire.Status.OK | wire.Status.NOT_FOUND) if isinstance(error, ChannelEnded):
                stop = error if self._numbering.newest >= 0 else None
            case Answered(status=wire.Status.NOT_FOUND):
                self._numbering.begin_life()
            case Answered() if (head := outcome.head) is not None:
                self._learn(outcome)
                epoch = header_int(outcome.headers, wire.EPOCH)
                why = self._numbering.judge(
                    head, since, epoch, exact=epoch is not None, unwritten=_is_unwritten(outcome)
                )
                stop = Superseded(None, seq=self._numbering.newest, detail=why, latest=head) if why else None
            case _:
                self.keeps_keys = False  # a server without this route; what it says to segments will do
        if stop is not None:
            return self._stop(stop)
        self.uncertain = False
        return Advance()

    def on_delete(self, outcome: Outcome) -> Advance | RetryAfter | Stop:
        """What ``DELETE /{channel}`` brought. A channel that is already gone is as good as one that was ended."""
        self._note(outcome)
        gone = (wire.Status.OK, wire.Status.BAD_REQUEST, wire.Status.NOT_FOUND)
        if isinstance(outcome, Answered) and outcome.status in gone:
            return Advance()
        return self._retry(outcome, error_of(outcome, None))

    def before_request(self, ticket: Ticket) -> Ticket | Advance:
        """The time has come to send a segment: with this ticket, unless its bytes could be doubled."""
        self._held = False
        numbering = self._numbering
        exposed = ticket.exposed and ticket.life == numbering.life
        if exposed and not self.keeps_keys:
            return self._drop(ticket, ConnectionLost(seq=ticket.seq, detail="this server would double what it has"))
        reset, final = ticket.reset or numbering.leaps(ticket.seq), ticket.final or ticket.exposed != exposed
        now = replace(ticket, life=numbering.life, confirmed=numbering.confirmed, numbering=self._life)
        return replace(now, exposed=exposed, reset=reset, final=final)

    def on_post(self, ticket: Ticket, outcome: Outcome, progress: Progress) -> Verdict:
        """What ``POST /{channel}/{seq}`` came to.

        Args:
            ticket: whose request it was.
            outcome: how it ended.
            progress: how far the segment had come.
        """
        self._note(outcome)
        error = error_of(outcome, ticket.seq)
        match error:
            case None:
                assert isinstance(outcome, Answered)
                return self._on_ok(ticket, outcome, progress)
            case SegmentMissing():
                return self._on_missing(ticket, error, progress, unwritten=_is_unwritten(outcome))
            case Superseded():
                return self._on_conflict(ticket, error, progress)
            case SegmentTooLarge() if progress.begun:
                self._numbering.settle(ticket.seq, closed=True)
                return Advance(error=error)
        exposed = progress.exposed and not (isinstance(outcome, Lost) and not outcome.connected)
        if not _may_retry(error):
            return self._stop(error)
        doubled = (ticket.exposed or exposed) and self.keeps_keys is False and isinstance(outcome, Answered)
        if not progress.held or doubled:
            self.uncertain |= isinstance(outcome, Lost)
            return self._drop(ticket, error)
        self.uncertain |= exposed and self.keeps_keys is None and isinstance(outcome, Answered)
        known = self.uncertain if isinstance(outcome, Lost) else self._held
        verdict = self._retry(outcome, error, lived_s=progress.lived_s, known=known)
        return replace(verdict, exposed=exposed) if isinstance(verdict, RetryAfter) else verdict

    def _on_ok(self, ticket: Ticket, answer: Answered, progress: Progress) -> Verdict:
        stored = header_int(answer.headers, wire.SIZE)
        if (told := answer.life) is not None:
            self._life = str(told)
        self._numbering.settle(ticket.seq, closed=True)
        repeated = progress.over and ticket.exposed and stored is not None
        if (progress.ended or repeated) and (stored is None or stored >= progress.handed):
            self._patience.published()
            if not (self._held or self.uncertain):  # otherwise it was under way before, and proves nothing
                self.trouble = None
            closed = Closed.COMPLETE if progress.handed else Closed.EMPTY
            return Advance(Receipt(ticket.seq, progress.handed, stored, closed, attempts=ticket.attempt))
        if progress.held and not ticket.final and (stored == 0 or not (ticket.exposed or progress.exposed)):
            error = Superseded(answer.status, seq=ticket.seq, detail="somebody else closed it before it began")
            return self._resync(ticket, ticket.seq + 1, error, progress)
        detail = f"somebody else closed it; the server has {stored} of {progress.handed} bytes"
        return Advance(error=Superseded(answer.status, seq=ticket.seq, detail=detail))

    def _on_missing(self, ticket: Ticket, error: SegmentMissing, progress: Progress, *, unwritten: bool) -> Verdict:
        """470: nothing of this request was stored, and the server says where its head is."""
        if error.latest is None or error.latest < 0:
            return self._stop(error)
        if why := self._judge(ticket, error.latest, unwritten=unwritten):
            return self._stop(Superseded(error.status, seq=ticket.seq, detail=why, latest=error.latest))
        if not progress.held:
            return self._drop(ticket, error)
        if (delay_s := self._patience.after_answer(error, progress.lived_s)) is None:
            return self._stop(error)
        seq = self._numbering.move(ticket.seq, error.latest, begun=progress.begun)
        return RetryAfter(delay_s) if seq is None else Resync(delay_s, seq)

    def _on_conflict(self, ticket: Ticket, error: Superseded, progress: Progress) -> Verdict:
        """409: closed, or another publisher's. It may be our own doing if it, or a later one, had been begun here."""
        ours = ticket.exposed or ticket.seq < self._numbering.newest
        why = None if error.latest is None else self._judge(ticket, error.latest)
        if not ours or error.latest is None or why:
            return self._stop(error if not why else Superseded(seq=ticket.seq, detail=why, latest=error.latest))
        self._numbering.settle(ticket.seq, closed=True)
        if ticket.exposed or ticket.final or not progress.held:
            return Advance(error=error)
        return self._resync(ticket, ticket.seq + 1, error, progress)

    def _judge(self, ticket: Ticket, head: int, *, unwritten: bool = False) -> str | None:
        since = ticket.confirmed if ticket.life == self._numbering.life else -1
        return self._numbering.judge(head, since, unwritten=unwritten)

    def _resync(self, ticket: Ticket, to: int, error: TrickleError, progress: Progress) -> Resync | Stop:
        if (delay_s := self._patience.after_answer(error, progress.lived_s)) is None:
            return self._stop(error)
        return Resync(delay_s, self._numbering.skip(ticket.seq, to, begun=progress.begun))

    def _drop(self, ticket: Ticket, error: TrickleError) -> Advance:
        self._numbering.settle(ticket.seq, closed=False)
        return Advance(error=error, drop=True)

    def _note(self, outcome: Outcome) -> None:
        self._reached |= not isinstance(outcome, Lost) or (outcome.connected and not outcome.waited_s)

    def _learn(self, answer: Answered) -> None:
        if answer.status == wire.Status.OK:
            self.keeps_keys = header_int(answer.headers, wire.EPOCH) is not None

    def _retry(
        self, outcome: Outcome, error: TrickleError | None, *, lived_s: float = 0.0, known: bool = False
    ) -> RetryAfter | Stop:
        if error is None:
            assert isinstance(outcome, Answered)
            return self._stop(error_for(outcome.status, outcome.headers, detail=outcome.detail))
        # The very first connection is not worth waiting for: most likely the URL is wrong, and somebody is watching.
        if not _may_retry(error) or not self._reached:
            return self._stop(error)
        self.trouble = error
        if isinstance(outcome, Lost):
            self.uncertain = True
            delay_s = self._patience.after_loss(outcome, lived_s, known=known)
        else:
            self._held = True
            delay_s = self._patience.after_answer(error, lived_s, known=known)
        return self._stop(error) if delay_s is None else RetryAfter(delay_s, holds=not isinstance(outcome, Lost))

    def _stop(self, error: TrickleError) -> Stop:
        self.error = error
        return Stop(error)


def _is_unwritten(outcome: Outcome) -> bool:
    """Whether the server says that nothing was written to the channel since it started."""
    told = outcome.life if isinstance(outcome, Answered) else None
    return told is not None and told.first is None


def _may_retry(error: TrickleError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, ConnectionLost) or (isinstance(error, Refused) and error.temporary)
