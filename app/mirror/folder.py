"""A folder as the destination of a mirror: a server that runs in the command's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tricklecast.app.bus import Bus
from tricklecast.app.server import serve
from tricklecast.app.settings import load


def serve_folder(folder: Path, port: int, say: Callable[[str], None], mirror: Callable[[str], Awaitable[None]]) -> None:
    """Run a server on a data directory until SIGINT or SIGTERM; its other settings are those of the environment.

    Args:
        port: on this machine; 0 takes a free one. say: is told where readers find it.
        mirror: runs beside it, with the server's URL.

    Raises:
        CannotServe, StorageError: the folder or the port cannot be used.
    """
    listening, address = asyncio.Event(), ""

    def announce(url: str) -> None:
        nonlocal address
        address = url
        say(f"copies to {folder}; readers find them at {url}")
        listening.set()

    async def program(bus: Bus) -> None:
        del bus
        await listening.wait()
        await mirror(address)

    serve(load({"data_dir": str(folder), "port": str(port)}, None).settings, announce, program)
