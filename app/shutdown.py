"""Carries the drain out: the waiting are sent away one by one, the running may finish, whoever comes is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from uvicorn.server import ServerState

from tricklecast.app.core.results import COME_BACK_S
from tricklecast.app.data_plane.plane import DataPlane

TICK_S: Final = 0.1
"""How often it is looked whether it is over; uvicorn looks for signals as often."""

CLEAN_UP_S: Final = 1.0
"""What a connection has to close in, and then a task of the control plane to end in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One server's last seconds.

    Who waits is sent away at a random moment of the first ``spread_s``. Who is sent away, or comes anew, is told to
    come back when the successor is there, which cannot be before this server is gone, and then at a random moment of
    as long a time again. So the successor meets the rate at which clients left, and not all of them in one second.

    Attributes:
        begun_at: seconds of the plane's clock.
        spread_s: over how long waiting clients are sent away.
        deadline_s: how long, from the beginning, what is running may take.
        restart_s: how long after the end of this server its successor answers; 0: others answer already.
    """

    begun_at: float
    spread_s: float
    deadline_s: float
    restart_s: float

    def send_away_after(self, share: float) -> float:
        """Seconds from the beginning after which one who waits is sent away.

        Args:
            share: drawn evenly between 0 and 1, for each anew.
        """
        return share * self.spread_s

    def come_back_s(self, now: float) -> tuple[int, int]:
        """Shortest and longest time, in seconds, after which who is sent away now is to come back."""
        if not self.restart_s:
            return COME_BACK_S
        # Until all are sent away it seems that this server then ends; later only the deadline is certain.
        stays_s = self.spread_s if now < self.begun_at + self.spread_s else self.deadline_s
        shortest = ceil(max(0.0, self.begun_at + stays_s - now) + self.restart_s)
        return shortest, shortest + max(ceil(self.spread_s), COME_BACK_S[1]) - 1

    def is_over(self, now: float, *, connected: bool, busy: bool) -> bool:
        """Whether nothing is left to stay for.

        Args:
            connected: there are connections, which may still bring a request that is to be answered.
            busy: exchanges are running on them.
        """
        if now >= self.begun_at + self.deadline_s or not connected:
            return True
        return not busy and now >= self.begun_at + self.spread_s


async def drain(plane: DataPlane, plan: Drain, hurry: Callable[[], Awaitable[bool]]) -> None:
    """Stay until nothing is left to stay for. The listener stays open: who comes is refused in words.

    Args:
        hurry: asked ten times a second whether to stop at once.
    """
    registry = plane.registry
    registry.come_back_s = plan.come_back_s(plan.begun_at)
    registry.shutting_down = True
    for connection in list(plane.connections):
        connection.drain(plan.send_away_after(plane.rng.random()))
    while not await hurry():
        now = plane.clock()
        registry.come_back_s = plan.come_back_s(now)
        busy = any(connection.unfinished for connection in plane.connections)
        if plan.is_over(now, connected=bool(plane.connections), busy=busy):
            return
        await asyncio.sleep(TICK_S)


async def end(plane: DataPlane, state: ServerState) -> None:
    """Nobody can come any more: answer who came at the last moment, and end what is left.

    Args:
        state: has the tasks of the control plane.
    """
    await asyncio.sleep(TICK_S)
    plane.end_all()
    # Under TLS an end is said and answered, and a loop that is closed in between hangs.
    if not await _gone(plane):
        for connection in list(plane.connections):
            connection.abort()
        await _gone(plane)
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=CLEAN_UP_S)
    if late := list(state.tasks):
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=CLEAN_UP_S)


async def _gone(plane: DataPlane) -> bool:
    """Whether all connections are gone, and all that were about to be, after a moment for them to go."""
    for _ in range(round(CLEAN_UP_S / TICK_S)):
        if not (plane.connections or plane.handshakes):
            return True
        await asyncio.sleep(TICK_S)
    return not (plane.connections or plane.handshakes)
