"""Takes SRT streams, any number over one port: the stream id, which a caller sends as it connects, names the channel.

A thread waits for callers, and one for the bytes of each. A wait ends when its socket is closed
(:mod:`~tricklecast.publisher.ingest.libsrt`), so the event loop never waits for a thread.

Limits against hostile clients: libsrt refuses a caller without the passphrase, before this module hears of it; beside
the streams there are at most :data:`MAX_PENDING` connections; one that sends nothing for :data:`SILENCE_S` is closed,
and one with a wrong key after a delay. Callers that are refused are accepted first and closed then: to refuse in
libsrt's handshake, Python would have to run in a thread of the library's own.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio import CapacityLimiter, to_thread

from tricklecast.publisher.ingest.keys import Channels, parse_stream_id
from tricklecast.publisher.ingest.libsrt import SrtError, SrtSocket
from tricklecast.publisher.ingest.sessions import SILENCE_S, Refusals, Say, Sessions, SourceRefused
from tricklecast.publisher.ingest.srt import check_port
from tricklecast.trickle.errors import InvalidInput

MAX_PENDING: Final = 16
"""Connections beside those that stream. More are closed at once."""

LATENCY_MS: Final = 120
"""libsrt's own: packets that come later than that behind the first ones are lost."""

OPTIONS: Final = ("passphrase", "pbkeylen", "latency", "mode")
"""Of the address, as ffmpeg calls them; the latency is in microseconds."""

T = TypeVar("T")


def parse_address(url: str) -> partial[SrtSocket]:
    """Read ``srt://HOST:PORT``, with :data:`OPTIONS` as its query; the result listens there.

    Raises:
        InvalidInput: an option cannot be used.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := [name for name in options if name not in OPTIONS]:
        raise InvalidInput(f"for many streams on one port, SRT's options are {', '.join(OPTIONS)}, not {unknown[0]}")
    if options.get("mode", "listener") != "listener":
        raise InvalidInput("many streams come to one port, which listens: leave out mode=, or name one channel")
    passphrase = options.get("passphrase", "")
    if passphrase and not 10 <= len(passphrase.encode()) <= 79:
        raise InvalidInput("a passphrase of SRT has 10 to 79 characters")
    try:
        key_bytes, latency_us = int(options.get("pbkeylen", "0")), int(options.get("latency", LATENCY_MS * 1000))
    except ValueError:
        raise InvalidInput("SRT's pbkeylen and latency are whole numbers") from None
    latency_ms, where = latency_us // 1000, (parts.hostname or "", parts.port or 0)
    return partial(SrtSocket.listening, *where, passphrase=passphrase, key_bytes=key_bytes, latency_ms=latency_ms)


class SrtListener:
    """Takes streams until it is cancelled, ``max_streams`` at a time."""

    def __init__(self, listener: SrtSocket, channels: Channels, *, max_streams: int, say: Say) -> None:
        self._listener = listener
        self._channels = channels
        self._free = max_streams + MAX_PENDING
        self._threads = CapacityLimiter(self._free + 1)
        self._refusals = Refusals(say)

    @classmethod
    async def open(cls, url: str, channels: Channels, *, max_streams: int, say: Say) -> SrtListener:
        """Listen.

        Args:
            url: ``srt://HOST:PORT``, with :data:`OPTIONS` as its query.

        Raises:
            InvalidInput: libsrt is not installed, or the address or an option cannot be used.
        """
        listening = parse_address(url)
        host, port = listening.args
        await to_thread.run_sync(check_port, url)
        listener = await to_thread.run_sync(listening)
        say(f"encoders stream to srt://{host or 'localhost'}:{port}?streamid=CHANNEL")
        return cls(listener, channels, max_streams=max_streams, say=say)

    async def run(self, sessions: Sessions) -> None:
        """Take streams, which ``sessions`` publish; the port is closed at the end."""
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    caller, peer = await self._in_thread(self._listener.accept)
                    if self._free:
                        self._free -= 1
                        tasks.start_soon(self._serve, caller, peer, sessions)
                    else:
                        caller.close()
        finally:
            self._listener.close()

    async def _serve(self, caller: SrtSocket, peer: str, sessions: Sessions) -> None:
        try:
            await self._take(caller, peer, sessions)
        except SourceRefused as error:
            self._refusals.show(f"{peer} is refused: {error}")
        except SrtError:  # its session, if it has one, says that it waits
            pass
        except Exception:  # of one connection: the others go on
            traceback.print_exc()
        finally:
            caller.close()
            self._free += 1

    async def _take(self, caller: SrtSocket, peer: str, sessions: Sessions) -> None:
        """Take the stream of one connection.

        Raises:
            SourceRefused: it is not taken. SrtError: the connection is over.
        """
        key, token = parse_stream_id(await self._in_thread(lambda: caller.prepare(SILENCE_S)))
        urls = await self._channels.find(key, token)
        data = await self._in_thread(caller.receive)
        async with sessions.attach(urls, peer, "mpegts") as source:
            while True:
                await source.send(data)
                data = await self._in_thread(caller.receive)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Call a function that ends when its socket is closed, which a cancelled caller does."""
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
