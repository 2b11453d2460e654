"""The requests of a publisher that carry no segment: where is the head, and this segment is given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

import anyio
from anyio.abc import TaskGroup

from tricklecast.publisher.core import Plan
from tricklecast.publisher.exchanges import Exchanges
from tricklecast.publisher.pause import Pause
from tricklecast.publisher.verdicts import Advance, RetryAfter, Stop

GIVE_UP_S: Final = 5.0
"""How long the server is given to hear that a segment was given up. It finds out by itself after about as long."""


class Errands:
    """Makes them, beside the segments.

    Args:
        plan: decides.
        exchanges: makes the requests.
        tasks: runs them.
        pause: in which the head is not asked for.
        changed: called when one is done.

    Attributes:
        asked: how often the head was asked for; under_way: deletions that are not done.
    """

    def __init__(
        self, plan: Plan, exchanges: Exchanges, tasks: TaskGroup, pause: Pause, changed: Callable[[], None]
    ) -> None:
        self.asked = 0
        self.under_way = 0
        self._plan = plan
        self._exchanges = exchanges
        self._tasks = tasks
        self._pause = pause
        self._changed = changed
        self._stopped = False
        self._asking = False

    def locate(self) -> None:
        """Ask where the head is until the plan is certain or has given up, by one request at a time.

        That is nobody's request in particular: segments may come and go meanwhile.
        """
        if not self._asking and not self._stopped:
            self._asking = True
            self._tasks.start_soon(self._locate)

    def delete(self, seq: int) -> None:
        """Tell the server that a segment was given up."""
        if not self._stopped:
            self.under_way += 1
            self._tasks.start_soon(self._delete, seq)

    def stop(self) -> None:
        """Begin no other one."""
        self._stopped = True

    async def _locate(self) -> None:
        attempt = 0
        while self._plan.uncertain and self._plan.error is None and not self._stopped:
            await anyio.sleep_until(self._pause.until)
            attempt += 1
            self.asked += 1
            since, begun_at = self._plan.confirmed, anyio.current_time()
            outcome = await self._exchanges.next(attempt)
            verdict = self._plan.on_located(outcome, since, anyio.current_time() - begun_at)
            match verdict:
                case Advance() | Stop():
                    pass
                case RetryAfter(delay_s):
                    self._pause.extend(delay_s)
                case _:
                    assert_never(verdict)
        self._asking = False
        self._changed()

    async def _delete(self, seq: int) -> None:
        try:
            with anyio.move_on_after(GIVE_UP_S):
                await self._exchanges.give_up(seq)
        finally:
            self.under_way -= 1
            self._changed()
