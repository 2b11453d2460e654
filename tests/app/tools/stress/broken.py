"""A worker whose publishing process exits without a report when the run begins."""

from __future__ import annotations

import os
import sys

from tricklecast.app.tools.stress.messages import Orders
from tricklecast.app.tools.stress.worker import Command, main, subscribe


async def broken(orders: Orders, command: Command) -> None:
    """Wait for the start, and exit."""
    await command.ready()
    os._exit(3)


if __name__ == "__main__":
    main(broken if sys.argv[1] == "publish" else subscribe)
