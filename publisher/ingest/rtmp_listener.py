"""Takes RTMP streams, any number over one port: the stream key names the channel.

Limits against hostile clients: a connection has :data:`HANDSHAKE_S` to ask for publishing and is closed when no media
comes for :data:`SILENCE_S`; beside the streams there are at most :data:`MAX_PENDING` connections; a wrong stream key is
refused with a delay. Limits of sizes are in :mod:`tricklecast.publisher.ingest.rtmp`.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup

from tricklecast.publisher.ingest import rtmp
from tricklecast.publisher.ingest.keys import Channels
from tricklecast.publisher.ingest.sessions import SILENCE_S, Refusals, Say, Sessions, Source, SourceRefused
from tricklecast.trickle.errors import InvalidInput

HANDSHAKE_S: Final = 10.0
"""Time from the connection to the request to publish, in seconds. OBS takes three round trips."""

MAX_PENDING: Final = 64
"""Connections beside those that stream. More are closed at once."""

LINGER_S: Final = 1.0
"""How long a refused encoder has to read why, in seconds."""

ACCEPT_PAUSE_S: Final = 1.0
"""Pause after a connection could not be accepted (too many open files), in seconds."""

READ_BYTES: Final = 64 * 1024

_DISCONNECTED: Final = (anyio.EndOfStream, anyio.BrokenResourceError)


class RtmpListener:
    """Takes streams until it is cancelled, ``max_streams`` at a time."""

    def __init__(self, listeners: Sequence[SocketListener], channels: Channels, *, max_streams: int, say: Say) -> None:
        self._listeners = listeners
        self._channels = channels
        self._free = max_streams + MAX_PENDING
        self._say = say
        self._refusals = Refusals(say)

    @classmethod
    async def open(cls, host: str, port: int, channels: Channels, *, max_streams: int, say: Say) -> RtmpListener:
        """Listen.

        Args:
            host: the address; empty for all of them.
            port: the port; 0 for any that is free.

        Raises:
            InvalidInput: the address cannot be used.
        """
        try:
            listener = await anyio.create_tcp_listener(local_host=host or None, local_port=port)
        except OSError as error:
            raise InvalidInput(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        say(f"encoders stream to rtmp://{host or 'localhost'}:{listener.extra(SocketAttribute.local_port)}/live/KEY")
        sockets = [one for one in listener.listeners if isinstance(one, SocketListener)]  # all are, by another type
        return cls(sockets, channels, max_streams=max_streams, say=say)

    async def run(self, sessions: Sessions) -> None:
        """Take streams, which ``sessions`` publish; the port is closed at the end."""
        async with AsyncExitStack() as ports, anyio.create_task_group() as tasks:
            for listener in self._listeners:
                await ports.enter_async_context(listener)
                tasks.start_soon(self._accept, listener, sessions, tasks)

    async def _accept(self, listener: SocketListener, sessions: Sessions, tasks: TaskGroup) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                self._say(f"a connection was not accepted: {error.strerror or error}")
                await anyio.sleep(ACCEPT_PAUSE_S)
                continue
            if self._free:
                self._free -= 1
                tasks.start_soon(self._serve, stream, sessions)
            else:
                await anyio.aclose_forcefully(stream)

    async def _serve(self, stream: SocketStream, sessions: Sessions) -> None:
        try:
            async with stream:
                await self._take(_Encoder(stream), sessions)
        except Exception:  # of one connection: the others go on
            traceback.print_exc()
        finally:
            self._free += 1

    async def _take(self, encoder: _Encoder, sessions: Sessions) -> None:
        """Take the stream of one connection, and show why it is refused or breaks."""
        try:
            request = await encoder.request()
            urls = await self._channels.find(request.key, request.token)
            async with sessions.attach(urls, encoder.peer, "flv") as source:
                await encoder.relay(source)
        except (rtmp.ProtocolError, SourceRefused) as error:
            self._refusals.show(f"{encoder.peer} is refused: {error}")
            await encoder.refuse(str(error))
        except _Silent as error:
            self._refusals.show(f"{encoder.peer} {error}")
        except _DISCONNECTED:  # its session, if it has one, says that it waits
            pass


class _Silent(Exception):
    """The encoder does not ask to publish, or sends no media, for too long."""


class _Encoder:
    """One connection."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._connection = rtmp.Connection()
        try:
            self.peer: str = stream.extra(SocketAttribute.remote_address)[0]
        except (OSError, anyio.TypedAttributeLookupError):  # it has already gone
            self.peer = "a client"

    async def request(self) -> rtmp.PublishRequested:
        """Serve the client until it asks to publish.

        Raises:
            ProtocolError: it sends something else.
            _Silent: it takes too long.
        """
        with anyio.move_on_after(HANDSHAKE_S):
            while True:
                for event in await self._receive():
                    if isinstance(event, rtmp.PublishRequested):
                        return event
        raise _Silent(f"did not ask to publish within {HANDSHAKE_S:g} s")

    async def relay(self, source: Source) -> None:
        """Pass media on until the encoder ends its stream.

        Raises:
            ProtocolError: it sends something else.
            _Silent: nothing came for a while.
        """
        events = self._connection.accept()
        with anyio.move_on_after(SILENCE_S) as limit:
            while True:
                await self._send()
                if media := b"".join(event.data for event in events if isinstance(event, rtmp.MediaReceived)):
                    await source.send(media)
                    limit.deadline = anyio.current_time() + SILENCE_S
                if any(isinstance(event, rtmp.Unpublished) for event in events):
                    return
                events = await self._receive()
        raise _Silent(f"sent no media for {SILENCE_S:g} s")

    async def refuse(self, why: str) -> None:
        """Tell the encoder why its stream is not taken, and give it time to read that before the connection closes."""
        self._connection.refuse(why)
        with anyio.move_on_after(LINGER_S), suppress(*_DISCONNECTED):
            await self._send()
            await self._stream.send_eof()
            while True:
                await self._stream.receive(READ_BYTES)

    async def _receive(self) -> list[rtmp.Event]:
        if self._connection.has_more:
            await anyio.lowlevel.checkpoint()  # other connections go first
            data = b""
        else:
            data = await self._stream.receive(READ_BYTES)
        events = self._connection.receive(data)
        await self._send()
        return events

    async def _send(self) -> None:
        if output := self._connection.take_output():
            await self._stream.send(output)
