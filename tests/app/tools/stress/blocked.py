"""A worker whose publishers run in an event loop that other code blocks again and again."""

from __future__ import annotations

import sys
import time

import anyio
import anyio.lowlevel

from tricklecast.app.tools.stress.messages import Orders
from tricklecast.app.tools.stress.worker import Command, main, publish, subscribe

BLOCKED_S = 0.04


async def blocked(orders: Orders, command: Command) -> None:
    """Publish while another task blocks the event loop."""

    async def hog() -> None:
        while True:
            time.sleep(BLOCKED_S)  # noqa: ASYNC251 - the test needs a blocked loop
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hog)
        await publish(orders, command)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    main(blocked if sys.argv[1] == "publish" else subscribe)
