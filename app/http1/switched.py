"""A connection that carries another protocol from now on (RFC 9110, section 7.8), as nodes of a cluster ask for.

The connection keeps its place among all others, and its end at a shutdown: it is one whose only exchange lasts. Its
transport belongs to a stream reader and writer, and whoever serves these has all of its input and output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tricklecast.app.data_plane.context import Serve
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.request import Request
from tricklecast.trickle.records import Reason

INPUT_BYTES: Final = 64 << 10
"""The stream reader is not read on beyond twice this."""


class _Stream(asyncio.StreamReaderProtocol):
    """Tells the connection, too, that its transport is gone."""

    def __init__(self, reader: asyncio.StreamReader, gone: Callable[[Exception | None], None]) -> None:
        super().__init__(reader)
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone(exc)


class Switched(Exchange):
    """The exchange of a connection that was switched to another protocol. It is in no access log: it has no client.

    Args:
        transport: of the connection; it holds no bytes, and nothing was read from it that is not parsed.
        protocol: its name. serve: serves the connection, and closes it when it is done.
        gone: told when the transport is gone.
    """

    __slots__ = ("_task",)

    def __init__(
        self,
        connection: Caller,
        request: Request,
        transport: asyncio.Transport,
        protocol: bytes,
        serve: Serve,
        gone: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(connection, request)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=INPUT_BYTES, loop=loop)
        stream = _Stream(reader, gone)
        transport.pause_reading()  # uvloop reads in another way for another kind of protocol
        transport.set_protocol(stream)
        transport.set_write_buffer_limits()
        stream.connection_made(transport)
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % protocol)
        transport.resume_reading()
        self._task = loop.create_task(serve(reader, asyncio.StreamWriter(transport, stream, reader, loop)))
        self._task.add_done_callback(self._served)

    @property
    def answerable(self) -> bool:
        return False

    def withdraw(self) -> None:
        """Serve it no longer."""
        self._task.cancel()

    def end(self, reason: str) -> None:
        """Nothing is noted."""

    def _served(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            what = "while a connection of another node was served"
            self.plane.fault(what, error)
        if self.connection.exchange is self:
            self.connection.abort(Reason.COMPLETE)
