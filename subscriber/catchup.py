"""Where a reader goes on that came too late for its segment: which one it asks for next, and after which pause.

Theory of operation
===================

*The problem.* A server keeps the newest segments only. A reader that is slower than its publisher finds that the wanted
one has left the window (470), and must skip some. If it skips to the oldest segment that is kept, it loses least, but
that one is the next to go: before the reader has read it, or even asked for it, the window may have moved on. Such a
reader would get 470 for every other request, for ever, which costs the server as much as an answer with a segment.

*The idea.* One step forward is free: it is another request, not a retry. A reader that is too late again within
:data:`LATE_AGAIN_S` does not keep up. Its steps are a *row*, also with segments read in between, and they get longer
and slower:

- The second step in a row goes as far beyond the oldest segment as the window has moved on since the first step, the
  third one twice as far as it has since the second, and so on, up to the newest segment. For example, the window begins
  at 40, then at 50, then at 80: the reader asks for 40, for 50 + 10, and for 80 + 2 * 30.
- From the second step on the reader counts from the head (``-N``): any number that the server told may be gone by the
  time it is asked for.
- From the third step on there is a pause between the requests, so that they are a few per second, however fast the
  channel is.

A reader that does not want every segment goes to the newest one at once, in the same rhythm.

A *hole* looks alike, and is none of the reader's fault: the publisher has left some segments out, and the window still
holds older ones. Most servers say where the hole ends, so it costs one request. Where a server does not, a live reader
tries one seq and goes to the head then; a reader of everything tries seqs at growing distances.

The Go reference server says neither where its window begins nor where a hole ends, so the window is guessed
(:data:`REFERENCE_WINDOW`). A second guess is made at once, and in a hole a third one: a channel of short segments would
move on by more than the window in any pause. In a hole three guesses are enough, since they go 1, 1 and 2 further, and
a hole in a window of five cannot be wider. For example, a server was restarted and its publisher went on at 30: a
reader that wants 26 asks for 27, 28 and 30. As such a server may know no number below -2, later steps go to the newest
segment.

*Invariants.* Each step goes forward, and not beyond the head. If no segment was read since the step before, there is a
pause, but for those guesses, and the budget pays: from the second step on, or from the fourth where they count from
the head (or guess).
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Final, NamedTuple

from tricklecast.trickle.client.retry import Retries

LATE_AGAIN_S: Final = 1.0
"""Steps forward whose requests are made within this time are a row: the reader does not keep up."""

LATE_PAUSE_S: Final = 0.25
"""The time between the requests of such steps, from the third one on. Each costs the server an answer for nothing."""

PAUSE_SPREAD: Final = 0.2
"""Share of that time that is random, so that late readers do not come back together."""

REFERENCE_WINDOW: Final = 5
"""Segments that the Go reference server keeps. It does not send ``Earliest``, so the search starts this far back. The
oldest of these is gone if its publisher has opened the next POST already, so the segment after it is asked for next."""

MAX_DOUBLINGS: Final = 30
"""Steps into a hole without a known end double no more often: the head is nearer."""


class ServerWindow(NamedTuple):
    """The segments that the server has, as an answer names them.

    Attributes:
        head: one more than the newest.
        earliest: the oldest; ``None`` if the server does not say.
        following: the first one after the segment that was asked for; ``None`` if the server does not say.
    """

    head: int
    earliest: int | None = None
    following: int | None = None


class StepForward(NamedTuple):
    """Ask for another segment, after ``delay_s``.

    Attributes:
        seq: the segment, or the lowest one that ``from_head`` can mean.
        from_head: ask for this number, below 0; ``None``: for ``seq``.
    """

    seq: int
    from_head: int | None
    delay_s: float


class CatchUp:
    """The steps forward of one reader."""

    __slots__ = ("_oldest", "_row", "_row_at")

    def __init__(self) -> None:
        self._row = 0  # how many steps in a row there were because the reader was too late
        self._row_at = -inf  # when the request of the last one is made, on the clock of the caller
        self._oldest = 0  # where the window began then

    def step(
        self,
        asked: int,
        window: ServerWindow,
        retries: Retries,
        now: float,
        rng: Random,
        *,
        reads_all: bool,
        wanted_before: int | None = None,
    ) -> StepForward | None:
        """The next request of a reader whose segment is not in the window; ``None`` if nothing pays for it.

        Args:
            asked: the segment, which is below the head.
            retries: counts the step as a failure, and pays for it where it is not free.
            now: seconds on a monotonic clock.
            rng: where jitter comes from.
            reads_all: it wants every segment, and not the newest one.
            wanted_before: the seq that it wanted before the server was restarted. If the publisher has come there,
                it goes on with its numbering, and so does the reader.
        """
        earliest, is_fresh = window.earliest, retries.failures == 0
        oldest = max(0, window.head - REFERENCE_WINDOW) if earliest is None and reads_all else earliest or 0
        is_gone = asked < oldest  # otherwise there is a hole in the window
        if reads_all:
            is_late = is_gone or window.following is None
        else:
            # In a hole without a known end one seq is tried, but not twice in a row.
            is_late = earliest is None or is_gone or (window.following is None and not is_fresh)
        row = self._row if is_late and now < self._row_at + LATE_AGAIN_S else 0
        is_guess = earliest is None and reads_all and (row == 1 or (row == 2 and not is_gone))
        from_head = row > 0 and (is_gone or not reads_all or (earliest is None and not is_guess))
        if not is_late:
            seq = max(oldest, window.following or 0)
        elif reads_all and not (from_head and row > 1 and earliest is None):
            seq = self._further(asked, oldest, window, row)
        else:
            seq = window.head - 1
        if wanted_before is not None and max(asked + 1, oldest) <= wanted_before <= window.head:
            seq, from_head = wanted_before, False
        seq = min(max(seq, asked + 1, oldest), window.head)
        from_head = from_head and seq < window.head and (earliest is not None or seq == window.head - 1)
        delay_s = self._pay(row, retries, now, rng, is_guess=is_guess, from_head=from_head)
        if delay_s is None:
            return None
        if is_late:
            self._row, self._row_at, self._oldest = row + 1, now + delay_s, oldest
        return StepForward(seq, seq - window.head - 1 if from_head else None, delay_s)

    def _further(self, asked: int, oldest: int, window: ServerWindow, row: int) -> int:
        """How far a reader of everything goes that is too late, or in a hole without a known end."""
        moved = oldest - self._oldest
        further = moved * row if asked < oldest else 2 ** min(max(0, row - 1), MAX_DOUBLINGS) - 1
        seq = max(oldest, window.following or 0, asked + 1)
        return min(seq + further, window.head - 1)

    def _pay(
        self, row: int, retries: Retries, now: float, rng: Random, *, is_guess: bool, from_head: bool
    ) -> float | None:
        """Seconds to wait before the request; ``None`` if nothing pays for it.

        The first step after a whole segment is another request, not a retry: it costs neither a token nor a delay. The
        next ones cost no token where the server is well, and the reader is slow.
        """
        failures = retries.failures
        is_free = failures == 0 or (failures <= 2 and (is_guess or from_head))
        if not (is_free or retries.pay()):
            return None
        retries.failures += 1
        delay_s = 0.0 if failures == 0 or is_guess else retries.delay_s(rng)
        if row > 1 and not is_guess:
            pause_s = LATE_PAUSE_S * (1.0 + rng.uniform(0.0, PAUSE_SPREAD))
            delay_s = max(delay_s, self._row_at + pause_s - now)
        return delay_s
