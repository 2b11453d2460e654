"""The subscriber's decisions: which GET to make next, and how to take its answer. No sockets, clock or random source.

Theory of operation
===================

*The problem.* A reader of a live channel must miss nothing in silence, read nothing twice, and never ask in a tight
loop. Meanwhile segments leave the server's window, servers are restarted with fewer segments or with others, channels
begin anew, and proxies answer for servers that are away.

*The idea.* A :class:`Cursor` stands at one seq. Its caller makes the GET that :meth:`Cursor.ask` names, reports the
result (:meth:`~Cursor.answered`, :meth:`~Cursor.lost` or :meth:`~Cursor.refreshed`) and carries out the
:data:`Decision`. Three questions are answered elsewhere: which numbering is read, and which segments are missing in it
(:mod:`~tricklecast.subscriber.numbering`); where a reader goes on that is too late
(:mod:`~tricklecast.subscriber.catchup`); how long it waits after a failure, and when it gives up
(:mod:`~tricklecast.trickle.client.retry`).

*The rules* (docs/reference/protocol.md, sections 4 to 6):

- A start such as ``next`` is resolved once. After that only concrete seqs are requested, so a wait that is given up
  and repeated cannot skip a segment that began in between. A reader that does not keep up is the exception.
- A 200 without a body is an empty segment, not an end. Only the ``Closed`` header ends a channel.
- 404 means that the channel does not exist. The cursor waits for it only if the user asked for that
  (``wait_for_channel_s``), or for ``reconnect_s`` after the server was lost, or forgot a channel of which it had
  told the epoch: publishers come back to a restarted server a little later.
- 470 means that the segment does not exist; the answer says where the head is. The cursor goes forward if the segment
  has left the window. It goes back within a numbering only if the server's head is behind the newest one read, or if
  the channel has another life and its reader reads everything: then all of that life is new.
- A reader reads everything if it began at ``earliest`` or at a number, or if ``on_lag`` is ``earliest``; it does not if
  ``on_lag`` is ``live``. In a new numbering, whose first seq the server tells, it begins at the first segment that is
  kept. Where segments have left the window before it came to them, it goes on at the oldest one. Any other reader goes
  on at the live edge.
- If the server's head is behind the newest segment that was read of the same numbering (``Life``), the server was
  restarted and its publisher is sending again the segments in flight. The cursor waits until the head has caught up.
- An outage lasts for a limited time, whether it shows as refused connections, resets or 5xx answers, or as silence
  where a server answers at once.

*Invariants.* A failed request is never repeated at once. Each one more costs a token of the retry budget, or belongs to
a wait with delays of its own (an outage, a channel that is not there yet). Only a few steps forward after each whole
segment are free. So no server can make the cursor send requests in a tight loop, and no reader ends because it is slow.
Each segment that was missed is in the ``gap`` of the next one, or of the end.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from tricklecast.subscriber.catchup import CatchUp, ServerWindow
from tricklecast.subscriber.numbering import KnownNumbering, first_of
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import RetryBudget
from tricklecast.trickle.client.exchange import Answer
from tricklecast.trickle.client.retry import IDLE_S, RECONNECT_S, Retries, Stop
from tricklecast.trickle.errors import (
    SPACES,
    ChannelNotFound,
    ConnectionLost,
    InvalidInput,
    InvalidSeq,
    Position,
    RemoteProtocolError,
    SegmentMissing,
    TrickleError,
)
from tricklecast.trickle.paths import parse_seq

REFRESH_S: Final = 20.0
"""A GET that waits for a segment is repeated after this time, as Go's subscriber does. Proxies cut at 30 s or 60 s."""

REFRESH_SPREAD: Final = 0.2
"""Share of the refresh time that is random, so that the subscribers of one channel do not come back together."""

MAX_CUT_S: Final = 10.0
"""How long the rest of a cut segment is asked for; later it has most likely left the window."""

HEAD_RECHECKS: Final = 4
"""How often a head that seems to have gone back is checked again (about 2 s in all) before the cursor follows it."""

WAIT_HINT: Final = "Subscriber(…, wait_for_channel_s=30) waits for its publisher"


class OnLag(StrEnum):
    """Where to go on when the wanted segment has left the server's window."""

    LIVE = "live"
    """At the newest started segment."""

    EARLIEST = "earliest"
    """At the oldest segment that the server keeps: loses least, but may soon be too late again."""

    FAIL = "fail"
    """Nowhere: raise ``SegmentMissing``."""


AnyOnLag: TypeAlias = OnLag | Literal["live", "earliest", "fail"]

# Where a subscription begins --------------------------------------------------------------------------------------

AnyStart: TypeAlias = int | Position | Literal["next", "current", "earliest"]
"""``"next"``, ``"current"``, ``"earliest"``, N, -N, or a :class:`Position`. The text of a number or position does as
well; a type checker, which finds misspelt words, wants it as an ``int`` or by :meth:`Position.parse`."""


def parse_start(text: str) -> AnyStart:
    """Read the text of a start of segments.

    Raises:
        InvalidInput: the text is not a start, or one of lines alone.
    """
    text = text.strip(SPACES)
    check_whole(Start.parse(text).position)
    if text in ("next", "current", "earliest"):
        return cast("AnyStart", text)
    return Position.parse(text) if "@" in text or "+" in text else int(text)


def check_whole(position: Position | None) -> None:
    """Check that a position is not between two lines of a segment, where only readers of lines go on.

    Raises:
        InvalidInput: it is.
    """
    if position is not None and position.offset:
        raise InvalidInput(
            f"{position} is between two lines of a segment: json_lines goes on there; "
            f"without +{position.offset} the segment is read again from its start"
        )


class Start(NamedTuple):
    """A start, as the first GET needs it.

    Attributes:
        ask: the seq to request; ``None`` for the ``next`` route.
        back: once the head is known, the wanted seq is this far below it.
        named: the user named this segment, so its absence is a gap.
        position: the start is a position that another subscription reached.
    """

    ask: int | None
    back: int = 0
    named: bool = False
    position: Position | None = None

    @classmethod
    def parse(cls, start: AnyStart | str) -> Start:
        """Read the start that a user gave.

        -N is counted from the head that ``/next`` answers, because the reference server breaks the connection when it
        is asked for a seq below -2. For the same reason ``earliest`` begins at 0, which every server answers with
        where its head is.

        Raises:
            InvalidInput: the text is not a start.
        """
        try:
            return cls._parse(start)
        except InvalidSeq:
            allowed = "next, current, earliest, a number, -N, or a position such as 128@3:9f86d081884c7d65"
            raise InvalidInput(f"use {allowed}, not {str(start)[:40]!r}") from None

    @classmethod
    def _parse(cls, start: AnyStart | str) -> Start:
        match start:
            case "next":
                return cls(None)
            case "current":
                return cls(wire.SEQ_CURRENT)
            case "earliest":
                return cls(0)
            case Position():
                return cls(start.seq, named=True, position=start)
            case str() if "@" in start or "+" in start:
                return cls._parse(Position.parse(start))
        seq = parse_seq(str(start).strip(SPACES))
        if seq >= 0:
            return cls(seq, named=True)
        return cls(seq) if seq == wire.SEQ_CURRENT else cls(None, back=-1 - seq)

    @property
    def reads_all(self) -> bool:
        """Whether a reader that begins here wants every segment from there on.

        One with a position may: but a live reader that is restarted has one, too.
        """
        return self.ask is not None and self.ask >= 0 and self.position is None

    @property
    def place(self) -> Position | None:
        """The position that this start names, as far as it is known without the server."""
        if self.position is not None:
            return self.position
        return Position(self.ask) if self.named and self.ask is not None else None


# The cursor's decisions --------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """The GET to make.

    Attributes:
        seq: the segment; one below 0 is counted from the head; ``None`` for the ``next`` route, which answers the head
            at once.
        attempt: 1 for an original request, 2 for its first retry, ...
        life: the numbering in which the segment is next, if that is known: the server says at once if it has another.
            With its first seq if all that was read is older, so that nothing is lost with that numbering.
        epoch: that of the segment before, if that is known, too.
    """

    seq: int | None
    attempt: int = 1
    life: str | None = None
    epoch: int | None = None


class NextSegment(NamedTuple):
    """A segment has begun: hand it to the user, and make the next GET after ``delay_s``.

    The fields that :class:`~tricklecast.subscriber.Segment` has, too, mean the same there.

    Attributes:
        seq: the segment's seq, always concrete.
        empty: the segment is closed and has no byte.
        delay_s: above 0 only after segments that broke.
    """

    seq: int
    epoch: int | None = None
    life: str | None = None
    gap: int = 0
    restarted: bool = False
    content_type: str = ""
    size_at_start: int | None = None
    truncated: str | None = None
    empty: bool = False
    lag: int = 0
    delay_s: float = 0.0


class Resolved(NamedTuple):
    """``next`` is this seq: request it at once."""

    seq: int
    delay_s: float = 0.0


class Retry(NamedTuple):
    """Make the same GET again after ``delay_s``, which is never 0."""

    delay_s: float
    error: TrickleError


class Jump(NamedTuple):
    """The wanted segment does not exist: go on after ``delay_s`` at ``seq``, or beyond it if :meth:`Cursor.ask` counts
    from the head."""

    seq: int
    delay_s: float
    error: TrickleError


class End(NamedTuple):
    """The channel has ended; ``gap`` segments were missed between the last one read and the end."""

    gap: int = 0


Decision: TypeAlias = NextSegment | Resolved | Retry | Jump | End | Stop


# The cursor -------------------------------------------------------------------------------------------------------


class Cursor:
    """A subscriber's place in a channel.

    In its methods, ``now`` is seconds on a monotonic clock, and ``rng`` is where jitter comes from.

    Args:
        start: the first segment, as :meth:`Start.parse` reads it.
        on_lag: where to go on when a segment has left the window; ``None``: as the start says.
        wait_for_channel_s, reconnect_s, refresh_s: as :class:`~tricklecast.subscriber.client.Subscriber` explains.
        budget: as for :class:`~tricklecast.trickle.client.retry.Retries`. Whole segments and waits that lasted their
            time earn tokens.
    """

    def __init__(
        self,
        start: AnyStart | str | Start = "next",
        *,
        on_lag: OnLag | None = None,
        wait_for_channel_s: float | None = 0.0,
        reconnect_s: float | None = RECONNECT_S,
        refresh_s: float = REFRESH_S,
        budget: RetryBudget | None = None,
    ) -> None:
        # State that a seek keeps. First, the user's wishes:
        self._on_lag = on_lag
        self._reads_all = on_lag is OnLag.EARLIEST  # every segment is wanted, rather than the newest one
        self._waits_for_channel = wait_for_channel_s != 0
        self._refresh_s = refresh_s
        # Knowledge of the server:
        self._retries = Retries(budget=budget, reconnect_s=reconnect_s, wait_s=wait_for_channel_s)
        self._server_seen = False  # it has answered or held a GET, so the address is right
        self._channel_seen = False  # a segment has begun, so 404 says that the channel is over
        self._hold = False  # a segment was broken: the GET after the next segment is made after a delay
        # The segments that were read, and those that are missing among them.
        self._numbering = KnownNumbering()
        self._start_at(start if isinstance(start, Start) else Start.parse(start))

    def _start_at(self, start: Start) -> None:
        # State that begins anew with each start and seek. First, the GET to make:
        self._start = start
        self._asked, self._attempt = start.ask, 1
        self._from_head: int | None = None  # this number, below 0, is in the GET: ``_asked`` is the least it can mean
        # The meaning of the requested seq:
        self._follows = start.position is not None  # it follows one that was read or skipped, here or before a position
        self._takes_any = start.ask == 0 and not start.named  # it is not the user's: all that the channel has will do
        # Failures since then:
        self._catch_up = CatchUp()  # the reader was too late
        self._rechecks = 0  # how often a head that seems to have gone back was checked again
        self._retries.restart()

        known = self._numbering
        epoch, life = known.epoch, known.life
        if start.position is not None:  # a reader that goes to a position wants no more and no less than before
            epoch, life = start.position.epoch, start.position.life
        elif self._on_lag not in (OnLag.EARLIEST, OnLag.LIVE):
            self._reads_all = start.reads_all
        expected = start.ask if start.named else None
        self._numbering = KnownNumbering(epoch, life, head=known.head, expected=expected)

    @property
    def endless(self) -> bool:
        """Whether no failure for the moment ends it."""
        return self._retries.endless

    def seek(self, start: Start, rng: Random, *, failed: bool = False) -> float:
        """Go elsewhere. The answer to an earlier request must not be reported any more.

        Args:
            failed: the cursor had said :class:`Stop`; seeking must not become a way to retry without delays.

        Returns:
            Seconds to wait before the GET that :meth:`ask` now names.
        """
        self._retries.failures += failed
        self._start_at(start)
        return self._retries.delay_s(rng) if self._retries.failures else 0.0

    def _begins_at_first(self, answer: Answer) -> bool:
        """Whether the reader begins a new numbering, which an answer is about, at its first segment."""
        is_known = answer.life is not None and answer.life.first is not None
        return self._on_lag is OnLag.EARLIEST or (self._reads_all and is_known)

    def ask(self) -> Ask:
        """The GET to make now. Report it with :meth:`answered`, :meth:`lost` or :meth:`refreshed`."""
        if self._from_head is not None:
            return Ask(self._from_head)
        if not self._follows:
            return Ask(self._asked, self._attempt)
        known = self._numbering
        life = known.life if known.life is None or known.begins is None else str(wire.Life(known.life, known.begins))
        return Ask(self._asked, self._attempt, life, known.epoch)

    def _unread(self, seq: int) -> int:
        """The lowest seq of which nothing was read, where ``seq`` comes next: a position of lines may be within it."""
        place = self._start.position
        return seq + 1 if place is not None and place.seq == seq and place.offset else seq

    def refresh_after(self, rng: Random) -> float:
        """Seconds after which to give up a GET without an answer and report it as :meth:`refreshed`."""
        return self._refresh_s * (1.0 + rng.uniform(0.0, REFRESH_SPREAD))

    def refreshed(self) -> None:
        """The GET waited for its whole time, as it should: make the one that :meth:`ask` names, at once.

        Not so the ``next`` route, which a server answers at once: its silence is :meth:`lost`.
        """
        self._server_seen = True
        self._retries.worked()
        self._from_head = None
        if self._asked is not None and self._asked < wire.SEQ_NEXT:
            # A seq relative to the head is answered at once unless nothing was ever written: then seq 0 comes first.
            self._asked, self._takes_any = 0, True

    def moved(self) -> None:
        """A request goes to another node of the cluster: its channel may come there a little later."""
        if self._server_seen:
            self._retries.lose()

    def finished(self) -> None:
        """A segment that is not empty was read to its end, or its user left it.

        An empty segment is no proof of health: a dead segment is answered in the same way.
        """
        self._retries.succeeded()

    def cut(self, now: float, rng: Random, *, floor_s: float | None = None) -> float | None:
        """A segment's body was cut, or the GET for the rest of it failed.

        Args:
            floor_s: ``Retry-After`` of the answer, in seconds.

        Returns:
            Seconds to wait before the next GET for the rest; ``None`` if time or budget are used up.
        """
        if (floor_s or 0.0) > MAX_CUT_S or not self._retries.lose():
            return None
        delay_s = self._retries.wait(now, rng, MAX_CUT_S)
        return None if delay_s is None else delay_s + (floor_s or 0.0)

    def resumed(self) -> None:
        """The rest of a cut segment is there."""
        self._retries.over()

    def broken(self, error: TrickleError) -> Stop | None:
        """A segment's body was cut, and the rest cannot be had: hold the GET after the next :class:`NextSegment` back.

        Returns:
            ``Stop`` if the budget is used up, for the user's next call.
        """
        self._retries.failures += 1
        self._hold = True
        return None if self._retries.lose() else Stop(error)

    def lost(
        self, error: TrickleError, now: float, rng: Random, *, taken: bool = False, waited_s: float = 0.0
    ) -> Decision:
        """The GET got no answer: the connection could not be made, or broke.

        Args:
            error: the cause; raised at last if nothing helps. All but a ``ConnectionLost`` is raised at
                once: the peer does not speak the protocol, or wants another certificate of this client.
            taken: there is a server, since it held the GET for a while. Without this, and before any answer, the
                address is most likely wrong.
            waited_s: for how long it did, before the connection broke, in seconds.
        """
        if not isinstance(error, ConnectionLost):
            return Stop(error)
        if not (self._server_seen or taken):
            return self._again(self._retries.wait(now, rng), error)
        if waited_s >= IDLE_S:
            self._retries.worked()
        return self._again(self._retries.outlast(now, rng), error)

    def answered(self, answer: Answer, now: float, rng: Random) -> Decision:
        """The GET that :meth:`ask` named was answered with this head."""
        self._server_seen = True
        self._numbering.head = max(self._numbering.head, answer.natural(wire.LATEST) or 0)
        if (
            self._from_head is not None
            and answer.status == wire.Status.OK
            and (seq := answer.natural(wire.SEQ)) is not None
        ):
            # The number was counted from the head, so the answer says which segment it is. Below the least that was
            # meant, it was read before.
            if seq < (self._asked or 0):
                error = SegmentMissing(None, seq=self._asked, detail=f"the head has gone back to {seq}")
                return self._retry(error, None, rng)
            self._asked = seq
        if answer.closed:
            return self._closed(answer, now, rng)
        match answer.status:
            case status if status >= wire.Status.SERVER_ERROR:
                delay_s = self._retries.failed(answer.status, answer.retry_after_s, now, rng)
                return self._again(delay_s, answer.error(self._asked))
            case wire.Status.OK:
                return self._begun(answer, rng)
            case wire.Status.NOT_FOUND:
                return self._no_channel(answer, now, rng)
            case wire.Status.SEQ_MISSING:
                return self._no_segment(answer, now, rng)
            case wire.Status.TOO_MANY_REQUESTS:
                return self._retry(answer.error(self._asked), answer.retry_after_s, rng)
            case wire.Status.BAD_REQUEST if self._asked is None:
                return self._without_next_route(answer, rng)
        return Stop(answer.error(self._asked))

    # Answers, by status: 200, 404, 470, and 400 to ``next``.

    def _begun(self, answer: Answer, rng: Random) -> Decision:
        self._retries.over()
        if self._asked is None:
            head = answer.natural(wire.LATEST)
            if head is None:
                return Stop(RemoteProtocolError(answer.status, detail=f"no {wire.LATEST} header"))
            return Resolved(self._resolve(head))
        seq = answer.natural(wire.SEQ)
        if seq is None or seq >= wire.LAST_SEQ or (self._asked >= 0 and seq != self._asked):
            value = answer.headers.get(wire.SEQ)
            detail = f"no {wire.SEQ} header" if value is None else f"it answered with seq {value}"
            return Stop(RemoteProtocolError(answer.status, seq=self._asked, detail=detail))
        if answer.coding and not answer.empty:
            detail = f"it is compressed on the way, as {answer.coding[:32]!r}: turn that off in the proxy"
            return Stop(RemoteProtocolError(answer.status, seq=self._asked, detail=detail))
        return self._take(seq, answer, rng)

    def _no_channel(self, answer: Answer, now: float, rng: Random) -> Decision:
        error = answer.error(self._asked)
        if self._channel_seen and not self._retries.lost:
            # A server that counts epochs tells for minutes that a channel has ended. One that does not know the channel
            # was restarted, or a proxy has put it in the place of another: it is waited for as one that was away.
            may_come = self.endless or self._numbering.epoch is not None
            if not may_come or not self._retries.lose():
                return Stop(error)
        outcome = self._again(self._retries.wait(now, rng), error)
        if isinstance(error, ChannelNotFound) and not (self._channel_seen or self._waits_for_channel):
            error.hint = WAIT_HINT
        if not self._retries.lost and not self._start.named:
            # The channel did not exist when it was requested, so everything that it will ever hold is new.
            self._asked, self._takes_any, self._numbering.expected = 0, True, None
        return outcome

    def _no_segment(self, answer: Answer, now: float, rng: Random) -> Decision:
        error = answer.error(self._asked)
        latest, asked, life = answer.natural(wire.LATEST), self._asked, answer.life
        if latest is None or asked is None:
            return self._retry(error, answer.retry_after_s, rng)
        numbering = self._numbering
        # A numbering that begins at the requested seq or later may be that of a publisher that goes on.
        if life is not None and self._follows and first_of(answer) < asked and numbering.is_other(answer, asked):
            return self._renumbered(life, latest, answer, error, rng)
        if latest == asked:  # the segment is the next one: the server could let the reader wait, and does not
            return self._retry(error, answer.retry_after_s, rng)
        is_same = life is not None and (life.first is None or life.name == numbering.life)
        if is_same and self._follows and latest < asked:
            # The server was restarted, and its publisher is sending again the segments in flight. If it does not come
            # back in time, the rules below for a head that has gone back apply.
            wait = self._again(self._retries.outlast(now, rng), error)
            if isinstance(wait, Retry):
                return Retry(wait.delay_s + (answer.retry_after_s or 0.0), error)
        earliest = answer.natural(wire.EARLIEST)
        if self._retries.lost:
            self._retries.back()  # it was restarted, so its head is right
        elif earliest is None and self._follows and latest < asked and self._rechecks < HEAD_RECHECKS:
            # The reference server's head goes back for moments, when two requests of its publisher overtake each other.
            self._rechecks += 1
            return self._retry(error, answer.retry_after_s, rng)
        if self._on_lag is OnLag.FAIL and not self._takes_any:
            return Stop(error)
        if latest > asked >= 0:
            return self._forward(asked, latest, answer, error, now, rng)
        return self._back(latest, earliest, answer, error, rng)

    def _without_next_route(self, answer: Answer, rng: Random) -> Decision:
        # Servers from before July 2026 do not know the route; there a refreshed wait may skip a segment.
        error = answer.error(self._asked)
        retry = self._retry(error, None, rng)
        return retry if isinstance(retry, Stop) else self._jump(wire.SEQ_NEXT - self._start.back, retry, error)

    # A segment has begun.

    def _resolve(self, head: int) -> int:
        seq = max(0, head - self._start.back)
        self._takes_any = self._start.back > 0
        self._numbering.expected = None if self._takes_any else seq
        return self._go_to(seq)

    def _take(self, seq: int, answer: Answer, rng: Random) -> Decision:
        """Hand a segment out, unless it belongs to another numbering and is not the one to begin with there."""
        numbering, epoch, life = self._numbering, answer.natural(wire.EPOCH), answer.life
        is_other = numbering.is_other(answer, self._unread(seq))
        if is_other and self._follows:
            is_past = seq > first_of(answer)  # that numbering has had segments before, which are new to the reader
            if self._on_lag is OnLag.FAIL or (self._begins_at_first(answer) and is_past):
                return self._another_life(seq, answer, rng)
        latest = answer.natural(wire.LATEST) or 0
        if is_other:
            numbering.head = latest  # that of the numbering before may be far higher
        gap = numbering.take(seq, epoch, life, empty=answer.empty, is_other=is_other, follows=self._follows)
        outcome = NextSegment(
            seq,
            epoch=epoch,
            life=None if life is None else numbering.life,
            gap=gap,
            restarted=numbering.restarted or is_other,
            content_type=answer.content_type,
            size_at_start=answer.natural(wire.SIZE),
            truncated=answer.headers.get(wire.TRUNCATED),
            empty=answer.empty,
            lag=max(0, latest - seq - 1),
            delay_s=self._retries.delay_s(rng) if self._hold else 0.0,
        )
        self._channel_seen = self._follows = True
        numbering.restarted = self._hold = self._takes_any = False
        if not answer.empty:  # an empty one may be a dead segment, about which a head that swings is no less wrong
            self._rechecks = 0
        self._go_to(seq + 1)
        return outcome

    def _another_life(self, seq: int, answer: Answer, rng: Random) -> Decision:
        """The wanted segment is gone with its life; the segment of that number is another one."""
        known, epoch, life = self._numbering, answer.natural(wire.EPOCH), answer.life
        detail = "the channel has another life" + f": epoch {epoch} instead of {known.epoch}" * (epoch != known.epoch)
        error = SegmentMissing(None, seq=seq, detail=detail, latest=answer.natural(wire.LATEST))
        if self._on_lag is OnLag.FAIL:
            return Stop(error)
        retry = self._retry(error, None, rng)
        if isinstance(retry, Stop):
            return retry
        # Without the first seq of that life, nobody can say how many of its segments are missing in the beginning.
        name, first = (known.life, None) if life is None else life
        self._numbering = KnownNumbering(epoch, name, expected=first, restarted=True)
        self._catch_up, self._takes_any = CatchUp(), True
        return self._jump(first_of(answer), retry, error)

    # The channel has ended.

    def _closed(self, answer: Answer, now: float, rng: Random) -> Decision:
        latest, asked = answer.natural(wire.LATEST), self._asked
        if latest is not None and self._has_more(answer, latest):
            return self._begun(answer, rng)
        if latest and asked is not None and self._follows and self._numbering.is_other_at_end(answer, asked):
            reads_it = answer.status == wire.Status.OK and self._begins_at_first(answer)
            if reads_it or self._on_lag is OnLag.FAIL:
                return self._another_life(asked, answer, rng)
            return End(latest)  # nothing of that life was read
        # A server that has forgotten the channel tells no head, or a lower one.
        head = max(latest or 0, self._numbering.head)
        if not self._channel_seen and self._waits_for_channel:
            # To a reader that has just come, this channel is over, and its next life is not there yet.
            outcome = self._no_channel(answer, now, rng)
            return outcome if isinstance(outcome, Retry) else End(self._numbering.missed(head))
        # The reference server ends a channel with an answer for the requested segment: that one is not missed.
        is_own = answer.natural(wire.SEQ) == asked == head - 1
        return End(max(0, self._numbering.missed(head) - is_own))

    def _has_more(self, answer: Answer, latest: int) -> bool:
        """Whether an ended channel holds more than the requested segment: it stays readable for a while.

        Its empty segments have the ``Closed`` header, too, and so has the answer about its head.
        """
        if answer.status != wire.Status.OK:
            return False
        if self._asked is None:
            return self._start.back > 0 and latest > 0
        return answer.empty and answer.natural(wire.SEQ) == self._asked < latest - 1

    # The requested segment does not exist.

    def _renumbered(self, life: wire.Life, latest: int, answer: Answer, error: TrickleError, rng: Random) -> Decision:
        """The head is that of another numbering: nothing of it was read."""
        first = first_of(answer)
        oldest = max(first, answer.natural(wire.EARLIEST) or 0)
        if self._on_lag is OnLag.FAIL:
            return Stop(error)
        retry = self._retry(error, None, rng)  # Retry-After is for the segment that is not there
        if isinstance(retry, Stop):
            return retry
        epoch, name = answer.natural(wire.EPOCH), None if life.first is None else life.name
        self._numbering = KnownNumbering(epoch, name, head=latest, expected=first, restarted=True)
        self._catch_up = CatchUp()
        seq = oldest if self._begins_at_first(answer) else max(oldest, latest - 1)
        return self._jump(min(seq, latest), retry, error)

    def _forward(
        self, asked: int, latest: int, answer: Answer, error: TrickleError, now: float, rng: Random
    ) -> Decision:
        """The segment has left the window, or was left out: go to a newer one."""
        step = self._catch_up.step(
            asked,
            ServerWindow(latest, answer.natural(wire.EARLIEST), answer.natural(wire.NEXT)),
            self._retries,
            now,
            rng,
            reads_all=self._takes_any or self._reads_all,
            wanted_before=self._numbering.expected_before,
        )
        if step is None:
            return Stop(error)
        life = answer.life
        if life is not None and life.first is not None and (self._numbering.life is None or not self._follows):
            # Nothing of it was read yet, but the number to go on at is one of this numbering, not of a later one.
            self._numbering.epoch, self._numbering.life = answer.natural(wire.EPOCH), life.name
            self._follows = True
        self._go_to(step.seq)
        self._from_head = step.from_head
        return Jump(step.seq, step.delay_s, error)

    def _back(self, latest: int, earliest: int | None, answer: Answer, error: TrickleError, rng: Random) -> Decision:
        """The head is behind the requested seq: the server has forgotten the channel's past, or counts wrongly.

        At the head itself nothing can be read twice.
        """
        retry = self._retry(error, answer.retry_after_s, rng)
        if isinstance(retry, Stop):
            return retry
        life = answer.life
        is_own = (
            life is not None and life.name == self._numbering.life
        )  # the reader has read what the server keeps of it
        kept = latest if earliest is None or is_own else min(earliest, latest)
        # A number of the user's that does not exist yet is no past that was lost: it begins at the head.
        has_past = self._follows or self._takes_any
        seq = kept if self._on_lag is OnLag.EARLIEST and has_past else latest
        self._numbering = self._numbering.gone_back(latest, kept if self._follows else seq, follows=self._follows)
        return self._jump(seq, retry, error)

    # Delays.

    def _retry(self, error: TrickleError, floor_s: float | None, rng: Random) -> Retry | Stop:
        return self._again(self._retries.refused(rng, floor_s), error)

    def _again(self, delay_s: float | None, error: TrickleError) -> Retry | Stop:
        if delay_s is None:
            return Stop(error)
        self._attempt += 1
        # A retry does not count from the head: a server that was restarted may have gone back, and a full one takes a
        # reader that counts from the head for a new one.
        self._from_head = None
        return Retry(delay_s, error)

    def _jump(self, seq: int, retry: Retry, error: TrickleError) -> Jump:
        return Jump(self._go_to(seq), retry.delay_s, error)

    def _go_to(self, seq: int) -> int:
        self._asked, self._attempt, self._from_head = seq, 1, None
        return seq
