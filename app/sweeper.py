"""The one timer: everything that happens because time has passed, happens here."""

from __future__ import annotations

import asyncio
from typing import Final

from tricklecast.app.data_plane.context import DataPlane

TICK_S: Final = 0.25
"""Precision of all graces, drains and time-outs; four wake-ups a second cost nothing that could be measured."""


async def sweep(plane: DataPlane) -> None:
    """Let the plane do what is due, for ever."""
    while True:
        due = plane.clock() + TICK_S
        await asyncio.sleep(TICK_S)
        now = plane.clock()
        # A timer may come a little early: it is set in whole milliseconds.
        plane.loop_lag.add(max(0, int((now - due) * 1_000_000)))
        plane.tick(now)
