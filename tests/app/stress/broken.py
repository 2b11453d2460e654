"""A publishing role whose process ends without a word once the run has begun; loaded by name."""

from __future__ import annotations

import os

from tricklecast.trickle.stress import Desk, Orders


async def work(orders: Orders, desk: Desk) -> None:
    """Wait for the start, and break down."""
    await desk.ready()
    os._exit(3)
