"""A connection that carries another protocol from now on (RFC 9110, section 7.8), as who follows a channel asks for.

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
from tricklecast.trickle.wire import FEED_PROTOCOL, Status

PROTOCOL: Final = FEED_PROTOCOL.encode()
"""As in the field ``Upgrade``, in small letters. Nodes of a cluster switch all of their connections to it."""

INPUT_BYTES: Final = 64 << 10
"""The stream reader is not read on beyond twice this."""

LEAVE_S: Final = 1.0
"""Whoever serves a connection that is gone has this time to notice, and to say why it has ended."""


class _Stream(asyncio.StreamReaderProtocol):
    """Tells the exchange, too, that its transport is gone."""

    def __init__(self, reader: asyncio.StreamReader, gone: Callable[[Exception | None], None]) -> None:
        super().__init__(reader)
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone(exc)


class Switched(Exchange):
    """The exchange of a connection that was switched to another protocol.

    That of a node of the cluster is in no access log: it has no client, and no route.

    Args:
        transport: of the connection; it holds no bytes, and nothing was read from it that is not parsed.
        serve: serves the connection, and closes it when it is done.
        gone: told when the transport is gone.
    """

    __slots__ = ("_gone", "_is_noted", "_task")

    def __init__(
        self,
        connection: Caller,
        request: Request,
        transport: asyncio.Transport,
        serve: Serve,
        gone: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(connection, request)
        self._gone = gone
        self._is_noted = request.route is not None
        if self._is_noted:
            self.record.status, self.record.wait_us = Status.SWITCHING, self.elapsed_us()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=INPUT_BYTES, loop=loop)
        stream = _Stream(reader, self._lost)
        transport.pause_reading()  # uvloop reads in another way for another kind of protocol
        transport.set_protocol(stream)
        transport.set_write_buffer_limits()
        stream.connection_made(transport)
        transport.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % PROTOCOL)
        transport.resume_reading()
        writer = asyncio.StreamWriter(transport, stream, reader, loop)
        self._task = asyncio.ensure_future(serve(reader, writer))
        # A task that is cancelled before it begins has closed nothing, and lets go of the writer, which would complain.
        self._task.add_done_callback(lambda task: self._served(task, writer))

    @property
    def answerable(self) -> bool:
        return False

    def withdraw(self) -> None:
        """Serve it no longer."""
        self._task.cancel()

    def end(self, reason: str) -> None:
        """Note how it has ended."""
        if self._is_noted:
            super().end(reason)

    def _lost(self, error: Exception | None) -> None:
        """The transport is gone; the connection is told when the task has ended, since that knows why."""

        def ended(_: object) -> None:
            timer.cancel()
            self._gone(error)

        timer = asyncio.get_running_loop().call_later(LEAVE_S, self._task.cancel)
        self._task.add_done_callback(ended)

    def _served(self, task: asyncio.Future[str | None], writer: asyncio.StreamWriter) -> None:
        # It is cancelled when the channel goes on elsewhere, too.
        reason: str | None = Reason.SHUTDOWN if self.plane.registry.shutting_down else Reason.REPLICA
        if not task.cancelled():
            if (error := task.exception()) is not None:
                self.plane.fault("while a connection with another protocol was served", error)
                reason = Reason.ERROR
            else:
                reason = task.result()
        if self.connection.exchange is self:
            self.connection.abort(reason or Reason.COMPLETE)
        writer.close()
