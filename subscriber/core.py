"""Which GET to make next, and what its answer means: the subscriber's decisions, without sockets, clock or dice.

A :class:`Cursor` stands on one seq. The caller makes the GET that :meth:`Cursor.ask` names, reports what came of it,
and obeys the verdict. The rules (docs/reference/protocol.md, sections 4 to 6):

- A start such as *next* is resolved once; from then on only concrete seqs are asked for, so that a wait that is
  given up and asked again cannot skip a segment that began in between.
- A 200 without a body is an empty segment, not an end. The end is the ``Closed`` header, and nothing else.
- 404 means that there is no such channel. It is waited for only where that was wished for (``wait_for_channel_s``),
  or for a while after the server went away, since a restarted one has its publishers back a little later.
- 470 means another seq. No failure is followed by the same request at once, and all that is not a first step
  forward costs a token of the retry budget: an arbitrary server cannot make a cursor hammer it.
- Going back within the numbering happens only if the server's head is behind what was already read, or if the channel
  has another life than the one that was read and ``on_lag`` is *earliest*: then all of that life is new.
- A server that says by the numbering's name (``Life``) that its head is behind what was read of that very numbering was
  restarted, and its publisher sends again what it had on its way. The cursor waits until the head has come by.
- A segment whose body was cut is asked for once more, after a pause (:meth:`Cursor.cut`).
- A server that went away costs one token of the budget however that looks, and a limited time (:class:`Absence`).
"""

from __future__ import annotations

from random import Random
from typing import Final

from tricklecast.subscriber import patience
from tricklecast.subscriber.absence import Absence
from tricklecast.subscriber.start import AnyStart, Start
from tricklecast.subscriber.verdicts import (
    Advance,
    Answer,
    Ask,
    End,
    Gone,
    OnLag,
    Resolved,
    Resync,
    RetryAfter,
    Stop,
    Verdict,
)
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import Backoff, RetryBudget
from tricklecast.trickle.errors import RemoteProtocolError, SegmentMissing, TrickleError

REFERENCE_WINDOW: Final = 5
"""Segments that the reference server keeps; it does not say which of them is the earliest, so look here for it."""


class Cursor:
    """A subscriber's place in a channel.

    Args:
        start: the first segment, as :meth:`Start.parse` reads it.
        on_lag: where to go on when a segment has left the window.
        wait_for_channel_s: how long to wait for a channel (or a server) that is not there yet, in seconds.
        refresh_s: how long a GET waits before it is asked again, in seconds; up to 20 % more is added at random.
        backoff: delays after failures.
        budget: pays for retries; earned back by segments that arrive whole, and by waits that last their time.
    """

    def __init__(
        self,
        start: AnyStart | Start = "next",
        *,
        on_lag: OnLag = OnLag.LIVE,
        wait_for_channel_s: float = 0.0,
        refresh_s: float = patience.REFRESH_S,
        backoff: Backoff | None = None,
        budget: RetryBudget | None = None,
    ) -> None:
        self._on_lag = on_lag
        self._wait_s = wait_for_channel_s
        self._refresh_s = refresh_s
        self._backoff = backoff or Backoff()
        self._budget = budget or RetryBudget()
        self._failures = self._head = 0
        self._hold = self._met = self._joined = False
        self._away = Absence()
        self._epoch: int | None = None
        self._life: str | None = None
        self._stand(start if isinstance(start, Start) else Start.parse(start))

    def _stand(self, start: Start) -> None:
        self._asked, self._attempt = start.ask, 1
        self._below, self._named = start.back, start.named
        self._expected = start.ask if start.named else None
        self._before: int | None = None
        # Nobody has named the seq that is asked for: it stands for all that there is.
        self._unnamed = start.ask == 0 and not start.named
        # The seq that is asked for is one more than what was read, here or by whoever wrote the position down.
        self._follows = start.position is not None
        if start.position is not None:
            self._epoch, self._life = start.position.epoch, start.position.life
        self._restarted, self._doubts = False, 0
        self._away.anew()

    def seek(self, start: Start, rng: Random, *, failed: bool = False) -> float:
        """Go elsewhere. What was asked for before must not be reported any more.

        Args:
            start: where to.
            rng: where jitter comes from.
            failed: the cursor had said :class:`Stop`; it is not to be talked into hammering.

        Returns:
            Seconds to wait before the GET that :meth:`ask` now names.
        """
        self._failures += failed
        self._stand(start)
        return self._delay(None, rng) if self._failures else 0.0

    def ask(self) -> Ask:
        """The GET to make now. Report it with :meth:`answered`, :meth:`lost` or :meth:`refreshed`."""
        return Ask(self._asked, self._attempt)

    def refresh_after(self, rng: Random) -> float:
        """Seconds after which a GET without an answer is to be given up and reported as :meth:`refreshed`."""
        return self._refresh_s * (1.0 + rng.uniform(0.0, patience.REFRESH_SPREAD))

    def refreshed(self) -> None:
        """The GET waited for its whole time, as it should: make the one that :meth:`ask` names, at once."""
        self._met = True
        self._away.over()
        self._budget.earn()
        if self._asked is not None and self._asked < wire.SEQ_NEXT:
            # All that is relative to the head is answered at once unless nothing was ever written; then it is seq 0.
            self._asked, self._unnamed = 0, True

    def finished(self, *, empty: bool = False) -> None:
        """A segment's body was read to its end, or its user left it. Nothing is to be done.

        Args:
            empty: the segment held nothing. Such a segment is no proof of health: a dead one is answered like that.
        """
        if not empty:
            self._failures = 0
            self._budget.earn()

    def cut(self, error: TrickleError, now: float, rng: Random, *, floor_s: float | None = None) -> RetryAfter | None:
        """A segment's body was cut, or the GET that was to bring the rest of it failed.

        Args:
            error: what happened.
            now: seconds on a monotonic clock.
            rng: where jitter comes from.
            floor_s: what ``Retry-After`` said, in seconds.

        Returns:
            After what pause to ask for that segment once more; ``None`` if patience or the budget do not allow it.
        """
        if (floor_s or 0.0) > patience.CUT_PATIENCE_S or not self._away.lose(self._budget):
            return None
        verdict = self._away.wait(error, patience.CUT_PATIENCE_S, now, rng, self._backoff)
        return RetryAfter(verdict.delay_s + (floor_s or 0.0), error) if isinstance(verdict, RetryAfter) else None

    def resumed(self) -> None:
        """The rest of a segment that was cut is there. Nothing is to be done."""
        self._away.over()

    def broken(self, error: TrickleError) -> Stop | None:
        """A segment's body was cut, and the rest of it is not to be had. Nothing is to be done, or to obey the verdict.

        The cursor stays where it is, one further; the GET after the next :class:`Advance` is held back.

        Args:
            error: what happened, for the case that this was once too often.
        """
        self._failures += 1
        self._hold = True
        return None if self._away.lose(self._budget) else Stop(error)

    def lost(self, error: TrickleError, now: float, rng: Random) -> Verdict:
        """The GET got no answer: the connection could not be made, or broke.

        Args:
            error: what happened; it becomes the final one when there is nothing left to try. A
                ``RemoteProtocolError`` is final at once: what is there does not speak the protocol. Where nobody is
                there (``Gone``), the pauses stay short: who is not there cannot be hammered.
            now: seconds on a monotonic clock.
            rng: where jitter comes from.
        """
        if isinstance(error, RemoteProtocolError):
            return Stop(error)
        if not self._met:
            return self._wait(error, now, rng)
        return self._outlast(error, now, rng, short=isinstance(error, Gone))

    def answered(self, answer: Answer, now: float, rng: Random) -> Verdict:
        """The GET that :meth:`ask` named was answered.

        Args:
            answer: the head of the response.
            now: seconds on a monotonic clock.
            rng: where jitter comes from.
        """
        self._met = True
        self._head = max(self._head, answer.natural(wire.LATEST) or 0)
        error = answer.error(self._asked)
        if answer.closed:
            return self._closed(answer, now, rng)
        match answer.status:
            case wire.Status.OK:
                return self._begun(answer, rng)
            case wire.Status.NOT_FOUND:
                return self._missing(error, now, rng)
            case wire.Status.SEQ_MISSING:
                return self._moved(answer, error, now, rng)
            case wire.Status.BAD_REQUEST if self._asked is None:
                return self._without_next_route(rng, error)
            case wire.Status.TOO_MANY_REQUESTS:
                return self._retry(error, answer.retry_after_s, rng)
            case status if status >= wire.Status.SERVER_ERROR and answer.retry_after_s is None:
                return self._outlast(error, now, rng, short=False)
            case status if status >= wire.Status.SERVER_ERROR:
                self._away.lost = True  # most likely it is about to be restarted
                return self._retry(error, answer.retry_after_s, rng)
        return Stop(error)

    def _begun(self, answer: Answer, rng: Random) -> Verdict:
        self._away.over()
        if self._asked is None:
            head = answer.natural(wire.LATEST)
            if head is None:
                return Stop(RemoteProtocolError(answer.status, detail=f"no {wire.LATEST} header"))
            return Resolved(self._resolve(head))
        seq = answer.natural(wire.SEQ)
        if seq is None or seq >= wire.LAST_SEQ or (self._asked >= 0 and seq != self._asked):
            told = answer.headers.get(wire.SEQ)
            detail = f"no {wire.SEQ} header" if told is None else f"it answered with seq {told}"
            return Stop(RemoteProtocolError(answer.status, seq=self._asked, detail=detail))
        return self._advance(seq, answer, rng)

    def _resolve(self, head: int) -> int:
        seq = max(0, head - self._below)
        self._unnamed = self._below > 0
        self._expected = None if self._unnamed else seq
        return self._go_to(seq)

    def _advance(self, seq: int, answer: Answer, rng: Random) -> Verdict:
        epoch, told = answer.natural(wire.EPOCH), answer.life
        reborn = answer.is_renumbered(self._epoch, self._life, seq)
        if reborn and self._follows:
            is_past = seq > _first_of(answer)
            if self._on_lag is OnLag.FAIL or (self._on_lag is OnLag.EARLIEST and is_past):
                return self._reborn(seq, answer, rng)
            if told is not None and told.first is not None:
                self._expected, self._before = told.first, None
        if told is not None and (told.first is not None or reborn):
            self._life = told.name
        delay_s = self._delay(None, rng) if self._hold else 0.0
        verdict = Advance(
            seq,
            epoch=epoch,
            life=None if told is None else self._life,
            gap=self._missed(seq),
            restarted=self._restarted or reborn,
            content_type=answer.content_type,
            size_at_start=answer.natural(wire.SIZE),
            truncated=answer.headers.get(wire.TRUNCATED),
            empty=answer.empty,
            lag=max(0, (answer.natural(wire.LATEST) or 0) - seq - 1),
            delay_s=delay_s,
        )
        self._epoch = self._epoch if epoch is None else epoch
        self._joined, self._follows = True, True
        self._restarted, self._hold, self._unnamed = False, False, False
        self._doubts = self._doubts if answer.empty else 0
        if not answer.empty or (self._before or 0) <= seq:
            self._before = None
        self._expected = self._go_to(seq + 1)
        return verdict

    def _missed(self, seq: int) -> int:
        """How many segments before this one were wanted and did not come.

        A publisher goes on with its numbering on a server that was restarted: a seq beyond those from before is
        counted from there. One below them belongs to a numbering that began again.
        """
        expected = self._expected if self._before is None or seq < self._before else self._before
        return 0 if expected is None else max(0, seq - expected)

    def _reborn(self, seq: int, answer: Answer, rng: Random) -> Verdict:
        """The wanted segment is gone with the life that it belonged to; the one of that number is another one."""
        epoch, told = answer.natural(wire.EPOCH), answer.life
        detail = "the channel has another life" + f": epoch {epoch} instead of {self._epoch}" * (epoch != self._epoch)
        error = SegmentMissing(None, seq=seq, detail=detail, latest=answer.natural(wire.LATEST))
        if self._on_lag is OnLag.FAIL:
            return Stop(error)
        retry = self._retry(error, None, rng)
        if isinstance(retry, Stop):
            return retry
        self._epoch, self._restarted, self._head = epoch, True, 0
        self._expected, self._before, self._unnamed, self._follows = None, None, True, False
        if told is not None:
            self._life, self._expected = told.name, told.first
        return Resync(self._go_to(_first_of(answer)), retry.delay_s, error)

    def _closed(self, answer: Answer, now: float, rng: Random) -> Verdict:
        latest, asked = answer.natural(wire.LATEST), self._asked
        if latest is not None and self._is_followed(answer, latest):
            return self._begun(answer, rng)
        if latest and asked is not None and self._follows and answer.is_of_another_life(self._epoch, self._life, asked):
            is_missed = answer.status != wire.Status.OK and self._on_lag is OnLag.EARLIEST
            return End(latest) if is_missed or self._on_lag is OnLag.LIVE else self._reborn(asked, answer, rng)
        if not self._joined and self._wait_s > 0:
            verdict = self._missing(answer.error(self._asked), now, rng)
            return verdict if isinstance(verdict, RetryAfter) else End(self._missed(max(latest or 0, self._head)))
        head = max(latest or 0, self._head)
        # The reference server ends a channel with an answer for the segment that was asked for: that one is not missed.
        is_own = answer.natural(wire.SEQ) == asked == head - 1
        return End(max(0, self._missed(head) - is_own))

    def _is_followed(self, answer: Answer, latest: int) -> bool:
        """Whether a channel that has ended holds more than what was asked for: it stays readable for a while.

        Its empty segments say ``Closed``, too, and its head says it before anything was read.
        """
        if answer.status != wire.Status.OK:
            return False
        if self._asked is None:
            return self._below > 0 and latest > 0
        return answer.empty and answer.natural(wire.SEQ) == self._asked < latest - 1

    def _missing(self, error: TrickleError, now: float, rng: Random) -> Verdict:
        if self._joined and not self._away.lost:
            return Stop(error)
        verdict = self._wait(error, now, rng)
        if not self._away.lost and not self._named:
            # The channel did not exist when it was asked for, so all that it will ever hold is new.
            self._asked, self._unnamed, self._expected = 0, True, None
        return verdict

    def _moved(self, answer: Answer, error: TrickleError, now: float, rng: Random) -> Verdict:
        latest, asked, told = answer.natural(wire.LATEST), self._asked, answer.life
        if latest is None or asked is None or latest == asked:
            return self._retry(error, answer.retry_after_s, rng)
        if self._follows and told is not None:
            if answer.is_renumbered(self._epoch, self._life, asked):
                return self._renumbered(told, latest, answer, error, rng)
            if latest < asked and (told.first is None or told.name == self._life):
                wait = self._outlast(error, now, rng, short=True)
                if isinstance(wait, RetryAfter):
                    return RetryAfter(wait.delay_s + (answer.retry_after_s or 0.0), error)
        earliest = answer.natural(wire.EARLIEST)
        if self._away.lost:
            # The server is back: that this took long is no reason to be slow in asking it for another segment.
            self._failures = min(self._failures, 1)
        elif earliest is None and self._follows and latest < asked and self._doubts < patience.DOUBTS:
            # The reference server's head goes back for moments, when two requests of its publisher overtake each other.
            self._doubts += 1
            return self._retry(error, answer.retry_after_s, rng)
        if self._on_lag is OnLag.FAIL and not self._unnamed:
            return Stop(error)
        if latest > asked >= 0:
            return self._forward(asked, latest, answer, error, rng)
        return self._back(latest, earliest, answer, error, rng)

    def _renumbered(self, told: wire.Life, latest: int, answer: Answer, error: TrickleError, rng: Random) -> Verdict:
        """The head is that of another numbering than the one that was read: nothing of it was."""
        first = _first_of(answer)
        oldest = max(first, answer.natural(wire.EARLIEST) or 0)
        if self._on_lag is OnLag.FAIL:
            return Stop(error)
        retry = self._retry(error, answer.retry_after_s, rng)
        if isinstance(retry, Stop):
            return retry
        self._epoch, self._life, self._restarted, self._head = None, told.name, True, latest
        self._expected, self._before, self._follows = first, None, False
        seq = oldest if self._on_lag is OnLag.EARLIEST else max(oldest, latest - 1)
        return Resync(self._go_to(min(seq, latest)), retry.delay_s, error)

    def _forward(self, asked: int, latest: int, answer: Answer, error: TrickleError, rng: Random) -> Verdict:
        earliest, following = answer.natural(wire.EARLIEST), answer.natural(wire.NEXT)
        from_earliest = self._unnamed or self._on_lag is OnLag.EARLIEST
        oldest = max(0, latest - REFERENCE_WINDOW) if earliest is None and from_earliest else earliest or 0
        # A hole in a window that still holds what is older: the publisher left some out. The server knows how many; if
        # it does not tell, one is tried, but not twice in a row: the way out of a large hole is that of everybody else.
        is_hole = earliest is not None and earliest <= asked and (following is not None or self._failures == 0)
        wanted = max(oldest, following or 0) if from_earliest or is_hole else latest - 1
        if self._before is not None and max(asked, oldest) <= self._before <= latest:
            # A restarted server, whose publisher went on with its numbering: here is what was wanted before.
            wanted = self._before
        seq = min(max(wanted, asked + 1, oldest), latest)
        if self._failures == 0:
            # A step forward after a healthy segment: another request, not a retry, so nothing is to be waited for.
            self._failures = 1
            return Resync(self._go_to(seq), 0.0, error)
        if not self._budget.spend():
            return Stop(error)
        self._failures += 1
        return Resync(self._go_to(seq), self._delay(None, rng), error)

    def _back(self, latest: int, earliest: int | None, answer: Answer, error: TrickleError, rng: Random) -> Verdict:
        """The head is behind what was asked for: the server has forgotten the channel's past, or counts wrongly.

        The head itself is the one seq at which nothing is read twice, whichever it is.
        """
        retry = self._retry(error, answer.retry_after_s, rng)
        if isinstance(retry, Stop):
            return retry
        self._head = latest
        kept = latest if earliest is None else min(earliest, latest)
        seq = kept if self._on_lag is OnLag.EARLIEST else latest
        self._restarted = self._restarted or self._follows
        if self._expected is not None:
            self._before = max(self._before or 0, self._expected) if self._follows else None
            self._expected = kept if self._follows else seq
        self._epoch = None
        return Resync(self._go_to(seq), retry.delay_s, error)

    def _without_next_route(self, rng: Random, error: TrickleError) -> Verdict:
        # Servers from before July 2026 do not know the route; there a refreshed wait may skip a segment.
        retry = self._retry(error, None, rng)
        if isinstance(retry, Stop):
            return retry
        return Resync(self._go_to(wire.SEQ_NEXT - self._below), retry.delay_s, error)

    def _outlast(self, error: TrickleError, now: float, rng: Random, *, short: bool) -> RetryAfter | Stop:
        """Wait for a server that was there, and is not. While a channel was waited for, that goes on as before."""
        if not self._away.is_first and not self._away.lose(self._budget):
            return Stop(error)
        return self._wait(error, now, rng, short=short)

    def _wait(self, error: TrickleError, now: float, rng: Random, *, short: bool = True) -> RetryAfter | Stop:
        self._attempt += 1
        limit_s = max(self._wait_s, patience.REJOIN_WAIT_S if self._away.lost else 0.0)
        return self._away.wait(error, limit_s, now, rng, patience.JOIN_BACKOFF if short else self._backoff)

    def _retry(self, error: TrickleError, floor_s: float | None, rng: Random) -> RetryAfter | Stop:
        if (floor_s or 0.0) > patience.PATIENCE_S or not self._budget.spend():
            return Stop(error)
        self._failures += 1
        self._attempt += 1
        return RetryAfter(self._delay(floor_s, rng), error)

    def _delay(self, floor_s: float | None, rng: Random) -> float:
        return self._backoff.delay(max(1, self._failures), rng, floor_s=max(floor_s or 0.0, patience.MIN_PAUSE_S))

    def _go_to(self, seq: int) -> int:
        self._asked, self._attempt = seq, 1
        return seq


def _first_of(answer: Answer) -> int:
    """The lowest seq of the numbering that an answer is about, as far as the server says."""
    told = answer.life
    return 0 if told is None or told.first is None else told.first
