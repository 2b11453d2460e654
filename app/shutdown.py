"""Carries a shutdown out: waiting clients are sent away one by one, running exchanges may finish, new ones get 503."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from uvicorn.server import ServerState

from tricklecast.app.core.drain import Drain
from tricklecast.app.data_plane.context import DataPlane

TICK_S: Final = 0.1
"""How often :func:`drain` looks whether it is over; uvicorn looks for signals as often."""

CLEAN_UP_S: Final = 1.0
"""Time for connections to close, and then for tasks of the control plane to end."""


async def drain(plane: DataPlane, plan: Drain, hurry: Callable[[], Awaitable[bool]]) -> None:
    """Return when the drain is over. The listener stays open meanwhile, so that new clients get 503 and no reset.

    Args:
        plane: the data plane.
        plan: when clients are sent away, and when the drain is over.
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
