"""Servers in a test's event loop that speak with asyncio streams: no connection outlives them.

asyncio's own way to start one (a coroutine for each connection) leaves a connection open whose coroutine the end of the
loop cancels before its first step, or which was accepted in the turn before the server is closed. Python complains
about that when it collects garbage: in a test that comes later.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

_TURNS: Final = 8
"""A connection is served four turns of the loop after it was accepted."""


@dataclass
class StreamServer:
    """A server that listens on a free port of this host.

    Attributes:
        serving: a task for each connection that is being served.
    """

    listening: asyncio.Server
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self.listening.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Accept no more; a connection that has just been accepted is in ``serving`` then."""
        for sock in self.listening.sockets:
            asyncio.get_running_loop().remove_reader(sock.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.listening.close()

    async def cancel(self) -> None:
        """End without waiting for any connection."""
        await self.close()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)


async def serve_streams(serve: Serve, tls: ssl.SSLContext | None = None) -> StreamServer:
    """Serve each connection with this coroutine, and close it afterwards."""

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def over(task: asyncio.Task[None]) -> None:
            server.serving.discard(task)
            writer.close()

        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        server.serving.add(task)
        task.add_done_callback(over)

    server = StreamServer(await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls))
    return server
