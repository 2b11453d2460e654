"""Carries a shutdown out: waiting clients are sent away one by one, running exchanges may finish, new ones get 503."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

from tricklecast.app.core.results import COME_BACK_S
from tricklecast.app.data_plane.context import DataPlane

if TYPE_CHECKING:
    from uvicorn.server import ServerState

_LOGGER = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""How often :func:`drain` looks whether it is over; uvicorn looks for signals as often."""

CLEAN_UP_S: Final = 1.0
"""Time for connections to close, and then for tasks of the control plane to end."""

LAST_S: Final = 30.0
"""More than all steps of a shutdown after its deadline may take together: 26 s (docs/reference/signals.md)."""


class LastResort:
    """Ends the process if its shutdown does not come to an end.

    Each step of a shutdown has a deadline, but not everything can be cancelled: a program in the process may ignore its
    cancellation, and a thread may wait for a file system or a name server that does not answer. Python would wait for
    both. A supervisor kills such a process in the end, and nobody learns why; this says where it hangs.
    """

    def __init__(self) -> None:
        self._begun = threading.Event()  # the shutdown has begun, or the server has ended without one
        self._over = threading.Event()  # it is over: nothing is to be done any more
        self._after_s = 0.0  # from its beginning
        # Whether one of the two was called. Signal handlers call them, and one may come in the middle of the other,
        # which holds the lock of an event.
        self._called = False
        # Begun now: a process that is out of memory could begin no thread at its end.
        threading.Thread(target=self._run, name="last resort", daemon=True).start()

    def begin(self, after_s: float) -> None:
        """End the process in ``after_s`` seconds, unless cancelled. The first call counts."""
        if self._called:
            return
        self._called = True
        self._after_s = after_s
        self._begun.set()

    def cancel(self) -> None:
        """The shutdown is over."""
        self._called = True
        self._over.set()
        self._begun.set()

    def _run(self) -> None:
        self._begun.wait()
        if not self._over.wait(self._after_s):
            self._end()

    def _end(self) -> None:
        stacks = sys._current_frames()
        told = [
            f"thread {thread.name!r}:\n{''.join(traceback.format_stack(stacks[thread.ident]))}"
            for thread in threading.enumerate()
            if thread is not threading.current_thread() and thread.ident in stacks
        ]
        _LOGGER.critical(
            "the server did not come to its end; the process is ended. It waits here:\n%s", "\n".join(told)
        )
        logging.shutdown()
        os._exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The plan of a server's last seconds.

    The server sends each waiting client away at a random moment of the first ``spread_s``. A client that is sent away,
    or that comes anew, is told to come back when the successor answers, which cannot be before this server has ended,
    and then at a random moment of as long a time again. So the successor meets clients at the rate at which they left,
    and not all in one second.

    Attributes:
        begun_at: seconds of the data plane's clock.
        spread_s: time over which waiting clients are sent away.
        deadline_s: how long running exchanges may take, from the beginning of the drain.
        restart_s: time from the end of this server until its successor answers; 0: other servers answer already.
    """

    begun_at: float
    spread_s: float
    deadline_s: float
    restart_s: float

    def send_away_after(self, share: float) -> float:
        """Seconds from the beginning after which one waiting client is sent away.

        Args:
            share: drawn evenly between 0 and 1, for each client anew.
        """
        return share * self.spread_s

    def come_back_s(self, now: float) -> tuple[int, int]:
        """Shortest and longest time, in seconds, after which a client that is sent away now is to come back."""
        if not self.restart_s:
            return COME_BACK_S
        # Until all waiting clients are sent away the server may end then; later only the deadline is certain.
        stays_s = self.spread_s if now < self.begun_at + self.spread_s else self.deadline_s
        shortest = ceil(max(0.0, self.begun_at + stays_s - now) + self.restart_s)
        return shortest, shortest + max(ceil(self.spread_s), COME_BACK_S[1]) - 1

    def is_over(self, now: float, *, connected: bool, busy: bool) -> bool:
        """Whether the drain is over.

        Args:
            connected: there are connections, which may still bring a request.
            busy: exchanges are running on them.
        """
        if now >= self.begun_at + self.deadline_s or not connected:
            return True
        return not busy and now >= self.begun_at + self.spread_s


async def give_away(
    giving: Awaitable[object], plan: Drain, clock: Callable[[], float], hurry: Callable[[], Awaitable[bool]]
) -> Drain:
    """Let a node of a cluster give its channels to others, before its connections end.

    Args:
        giving: does it. It is given up after three quarters of the time that the drain may take.
        plan: of the drain. clock: the data plane's. hurry: asked ten times a second whether to stop at once.

    Returns:
        The plan of the drain that follows, in the time that is left.
    """
    task = asyncio.ensure_future(giving)
    until = plan.begun_at + 0.75 * plan.deadline_s
    while not (task.done() or clock() >= until or await hurry()):
        await asyncio.wait((task,), timeout=TICK_S)
    if task.cancel():
        _LOGGER.warning("not all channels have moved to other nodes in time")
    elif (error := task.exception()) is not None:
        _LOGGER.error("the channels of this node could not be given away", exc_info=error)
    now = clock()
    return replace(plan, begun_at=now, deadline_s=max(0.0, plan.begun_at + plan.deadline_s - now))


async def drain(plane: DataPlane, plan: Drain, hurry: Callable[[], Awaitable[bool]]) -> None:
    """Return when the drain is over. The listener stays open meanwhile, so that new clients get 503 and no reset.

    Args:
        plane: the data plane.
        plan: when clients are sent away, and when the drain is over.
        hurry: asked ten times a second whether to stop at once.
    """
    registry = plane.registry
    registry.shut_down(plan.come_back_s(plan.begun_at))
    for connection in list(plane.connections):
        connection.drain(plan.send_away_after(plane.rng.random()))
    while not await hurry():
        now = plane.clock()
        registry.shut_down(plan.come_back_s(now))
        busy = any(connection.unfinished for connection in plane.connections)
        if plan.is_over(now, connected=bool(plane.connections), busy=busy):
            return
        await asyncio.sleep(TICK_S)


async def end(plane: DataPlane, state: ServerState) -> None:
    """Answer the requests that came at the last moment, and break off what is left. The listener is closed by now.

    Args:
        plane: the data plane.
        state: uvicorn's; it holds the tasks of the control plane.
    """
    await asyncio.sleep(TICK_S)
    plane.end_all()
    # Over TLS both sides announce the end of a connection; an event loop that is closed before the answer hangs.
    if not await _all_gone(plane):
        for connection in list(plane.connections):
            connection.abort()
        await _all_gone(plane)
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=CLEAN_UP_S)
    if late := list(state.tasks):
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=CLEAN_UP_S)


async def _all_gone(plane: DataPlane) -> bool:
    """Wait up to :data:`CLEAN_UP_S` for all connections and TLS handshakes to end; whether they have."""
    for _ in range(round(CLEAN_UP_S / TICK_S)):
        if not (plane.connections or plane.handshakes):
            return True
        await asyncio.sleep(TICK_S)
    return not (plane.connections or plane.handshakes)
