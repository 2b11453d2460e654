"""Carries the drain out: the waiting are sent away one by one, the running may finish, whoever comes is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from uvicorn.server import ServerState

from tricklecast.app.core.drain import Drain
from tricklecast.app.data_plane.context import DataPlane

TICK_S: Final = 0.1
"""How often it is looked whether it is over; uvicorn looks for signals as often."""

CLEAN_UP_S: Final = 1.0
"""What a connection has to close in, and then a task of the control plane to end in."""


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
