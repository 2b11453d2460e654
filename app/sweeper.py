"""The one timer: everything that happens because time has passed, happens here."""

from __future__ import annotations

import asyncio
from typing import Final

from tricklecast.app.data_plane.plane import DataPlane

TICK_S: Final = 0.25
"""How often the data plane does what is due: time-outs of connections, lag, interim answers."""

LOOK_S: Final = 0.05
"""How often the sweeper asks the registry for its next deadline, which a request may have set a moment ago. The
shortest grace (0.2 s for a POST that was overtaken) is longer, so it ends on time."""

SHORTEST_S: Final = 0.01
"""It sleeps at least so long, however many deadlines follow each other."""


async def sweep(plane: DataPlane) -> None:
    """Let the registry expire what is due when it is due, and the plane four times a second, for ever."""
    tick_at = plane.clock() + TICK_S
    while True:
        now = plane.clock()
        deadline = plane.registry.next_deadline()
        wake_at = min(tick_at, now + LOOK_S)
        if deadline is not None:
            wake_at = min(wake_at, deadline)
        wake_at = max(wake_at, now + SHORTEST_S)
        await asyncio.sleep(wake_at - now)
        now = plane.clock()
        # A timer may come a little early: it is set in whole milliseconds.
        plane.loop_lag.add(max(0, int((now - wake_at) * 1_000_000)))
        if now >= tick_at:
            plane.tick(now)
            tick_at = now + TICK_S
        elif deadline is not None and deadline <= now:
            plane.registry.expire(now)
