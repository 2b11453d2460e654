"""A publishing role in an event loop that something else blocks again and again; loaded by name."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel

import tricklecast.publisher.stress
from tricklecast.trickle.stress import Desk, Orders

BLOCKED_S = 0.04


async def work(orders: Orders, desk: Desk) -> None:
    """Publish, and be blocked."""

    async def hog() -> None:
        while True:
            time.sleep(BLOCKED_S)  # noqa: ASYNC251 - that is the point
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hog)
        await tricklecast.publisher.stress.work(orders, desk)
        tasks.cancel_scope.cancel()
