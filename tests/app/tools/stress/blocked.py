"""A worker whose publishers run in an event loop that other code blocks again and again."""

from __future__ import annotations

import sys
import time

import anyio
import anyio.lowlevel

from tricklecast.app.tools.stress.worker import serve

BLOCKED_S = 0.04


async def blocked() -> None:
    """Publish while another task blocks the event loop."""

    async def hog() -> None:
        while True:
            time.sleep(BLOCKED_S)  # noqa: ASYNC251 - the test needs a blocked loop
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        if sys.argv[1] == "publish":
            tasks.start_soon(hog)
            await serve("publish", 0, sys.stdin.buffer, sys.stdout.buffer)
        else:
            await serve("subscribe", 0, sys.stdin.buffer, sys.stdout.buffer)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(blocked)
