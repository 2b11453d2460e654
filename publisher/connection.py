"""One HTTP/1.1 connection whose two directions are independent of each other."""

from __future__ import annotations

import ssl
from typing import Final

import anyio
import h11
import httpx
from anyio.abc import ByteStream

from tricklecast.publisher.sockets import SocketStream

MAX_HEADER_BYTES: Final = 65536
READ_BYTES: Final = 65536
_HTTP: Final = b"HTTP/"
"""How an answer begins, and nothing that comes from something else than an HTTP server."""

Origin = tuple[str, str, int]
"""Scheme, host, port."""


class NoAnswer(httpx.ReadError):
    """The connection broke, or was closed, before the first byte of an answer."""


class Connection:
    """One connection: a byte stream and the HTTP/1.1 state of both directions."""

    def __init__(self, origin: Origin, stream: ByteStream, tcp: SocketStream) -> None:
        self.origin = origin
        self.stream = stream
        self.tcp = tcp
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        self.reused = False
        self._answered = False
        self._cut_short = False
        self._expires_at = 0.0

    def is_usable(self) -> bool:
        """Whether an idle connection may carry another request."""
        return anyio.current_time() < self._expires_at and self.tcp.is_silent()

    def start_next(self, keepalive_s: float) -> bool:
        """Prepare for another request; ``False`` where the last exchange does not allow one."""
        over = self.http.our_state is h11.DONE and self.http.their_state is h11.DONE
        if not over or self._cut_short or self.http.trailing_data[0]:
            return False
        self.http.start_next_cycle()
        self.reused, self._answered = True, False
        self._expires_at = anyio.current_time() + keepalive_s
        return True

    def close(self) -> None:
        """Close it at once."""
        self.tcp.close()

    async def send(self, event: h11.Event, timeout_s: float | None) -> bool:
        """Write one event in one piece; ``False`` if the peer no longer reads.

        Raises:
            TimeoutError: the peer has taken nothing for ``timeout_s`` seconds.
        """
        if data := self.http.send(event):
            self._cut_short = True  # until proven otherwise: h11 already counts the event as sent
            self.tcp.stall_s = timeout_s
            await self.stream.send(data)
            self._cut_short = self.tcp.peer_stopped_reading
        return not self._cut_short

    async def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Wait for the next event of the response.

        Raises:
            httpx.ReadError: the connection broke, or was closed before the head of the final answer was complete.
            h11.RemoteProtocolError: what came is not HTTP.
        """
        while (event := self.http.next_event()) is h11.NEED_DATA:
            try:
                data = await self.stream.receive(READ_BYTES)
            except anyio.EndOfStream:
                if self._ends_early:
                    raise self._lost("the server closed the connection without an answer") from None
                data = b""
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError) as error:
                raise self._lost("the connection broke") from error
            self._answered = True
            self.http.receive_data(data)
        return event

    @property
    def _ends_early(self) -> bool:
        """Whether a stream that ends now ends before its answer has begun, or in the middle of an HTTP head."""
        head = self.http.trailing_data[0]
        return self.http.their_state is h11.SEND_RESPONSE and _HTTP.startswith(head[: len(_HTTP)])

    def _lost(self, why: str) -> httpx.ReadError:
        return httpx.ReadError(why) if self._answered else NoAnswer(why)
