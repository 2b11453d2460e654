"""The GET for the segment that comes next: made while the one before is read, waited for, and given up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import anyio

from tricklecast.subscriber.background import Background
from tricklecast.subscriber.core import Cursor
from tricklecast.subscriber.getter import Getter, Got
from tricklecast.subscriber.runtime import Runtime
from tricklecast.subscriber.segment import Opened
from tricklecast.subscriber.statistics import Counters
from tricklecast.subscriber.verdicts import Advance, End, Gone, Resolved, Resync, RetryAfter, Stop, Verdict
from tricklecast.trickle.errors import ConnectionLost, RemoteProtocolError

Outcome: TypeAlias = Advance | End | Stop


class Preconnect:
    """What will come of it, and when that is known.

    Args:
        run: finds it out, in a task of its own, and calls :meth:`settle`.

    Attributes:
        opened: the response of a segment.
        abandoned: nobody wants to know any more.
    """

    __slots__ = ("_outcome", "_work", "abandoned", "opened")

    def __init__(self, run: Callable[[Preconnect], Awaitable[None]]) -> None:
        self.opened: Opened | None = None
        self.abandoned = False
        self._outcome: Outcome | None = None
        self._work = Background(lambda: run(self))

    @property
    def outcome(self) -> Outcome:
        """What came of it; to be asked for when it is settled and was not abandoned.

        Raises:
            ClosedHere: the task that would have found it out was cancelled.
            Exception: what else it raised, such as an error of a transport that the user gave.
        """
        self._work.check()
        assert self._outcome is not None
        return self._outcome

    async def settled(self) -> None:
        """Wait until there is an outcome, or it is known that there will be none."""
        await self._work.over()

    def settle(self, outcome: Outcome, opened: Opened | None = None) -> None:
        """This came of it."""
        self._outcome, self.opened = outcome, opened

    async def abandon(self) -> None:
        """Give it up, wait until nothing is done for it any more, and close what came of it. Twice is fine."""
        self.abandoned = True
        try:
            await self._work.stop()
        finally:
            if self.opened is not None:
                await self.opened.response.aclose()


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Asks until there is a segment, an end or an error.

    Args:
        cursor: says what to ask for.
        getter: makes the GETs.
        counters: counts them.
        runtime: chance and time.
        on_resolved: called with the seq that ``next`` turned out to be.
    """

    cursor: Cursor
    getter: Getter
    counters: Counters
    runtime: Runtime
    on_resolved: Callable[[int], None]

    async def run(self, pending: Preconnect, delay_s: float) -> None:
        """Settle a preconnect, unless it is abandoned first.

        Args:
            pending: what waits for the outcome.
            delay_s: how long to hold the first GET back, in seconds.
        """
        pause_s: float | None = delay_s
        while pause_s is not None:
            if pause_s > 0:
                await self.runtime.sleep(pause_s)
            pause_s = await self._try(pending)

    async def _try(self, pending: Preconnect) -> float | None:
        """Make one GET; after how many seconds to make another one, ``None`` if there is an outcome."""
        self.counters.requested()
        requested_at = self.runtime.now()
        got = await self.getter.get(self.cursor.ask(), self.cursor.refresh_after(self.runtime.rng))
        response = got.response if isinstance(got, Got) else None
        # No await between the answer and what is made of it: whoever closes the subscriber finds the response.
        verdict = None if pending.abandoned else self._judge(got)
        if isinstance(verdict, Advance):
            assert response is not None
            pending.settle(verdict, Opened(response, requested_at, self.runtime.now()))
            return None
        if response is not None:
            with anyio.CancelScope(shield=True):
                await response.aclose()
        if isinstance(verdict, End | Stop):
            pending.settle(verdict)
            return None
        if verdict is None:
            return None if pending.abandoned else 0.0
        return verdict.delay_s

    def _judge(self, got: Got | ConnectionLost | RemoteProtocolError | None) -> Verdict | None:
        """What the cursor says to what came of its GET, counted; ``None`` for the same GET at once."""
        now, rng = self.runtime.now(), self.runtime.rng
        match got:
            case None:
                self.counters.refreshed()
                self.cursor.refreshed()
                return None
            case Got(answer):
                verdict = self.cursor.answered(answer, now, rng)
            case error:
                verdict = _plain(self.cursor.lost(error, now, rng))
        match verdict:
            case RetryAfter() | Resync():
                self.counters.retried(verdict.error)
            case Resolved(seq):
                self.on_resolved(seq)
        return verdict


def _plain(verdict: Verdict) -> Verdict:
    """For users, a server that is gone is a lost connection like any other."""
    if isinstance(verdict, RetryAfter | Stop) and isinstance(verdict.error, Gone):
        return replace(verdict, error=ConnectionLost(seq=verdict.error.seq, detail=verdict.error.detail))
    return verdict
