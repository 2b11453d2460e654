"""Listens for TLS: a connection has its place before its handshake costs anything.

Were TLS left to the event loop's listener, a connection would be counted when its handshake is over: who opens
connections and says nothing would have as many as the process has descriptors, whatever the limits are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tricklecast.app.data_plane.connection import Connection as Patience
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.exchange import Exchange
from tricklecast.trickle.records import Reason

_LOGGER = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
"""Until it is tried again to accept when the process has no descriptor left; asyncio waits as long."""


class TlsListener:
    """What :class:`asyncio.Server` is for plain connections, as far as a server here needs it.

    Args:
        listener: bound; closed by its owner.
        context: how TLS is spoken.
        plane: what all connections share.
        make: a new connection's protocol.

    Attributes:
        sockets: the listener.
    """

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, plane: DataPlane, make: Callable[[], Patience]
    ) -> None:
        listener.setblocking(False)
        self.sockets = (listener,)
        self._context = context
        self._plane = plane
        self._make = make
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept nobody any more."""
        self._accepting.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self.sockets[0])
            except OSError as error:
                _LOGGER.error("cannot accept a connection: %s", error.strerror or error)
                await asyncio.sleep(PAUSE_S)
                continue
            self._begin(self._make(), sock, address)

    def _begin(self, connection: Patience, sock: socket.socket, address: Any) -> None:
        plane = self._plane
        shaking = asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection,
            sock,
            ssl=self._context,
            ssl_handshake_timeout=plane.options.head_timeout_s,
            # Many clients never say that they have heard the end: a drain would wait half a minute for each.
            ssl_shutdown_timeout=plane.options.linger_s,
        )
        handshake = asyncio.get_running_loop().create_task(shaking)
        connection.accepted(handshake, address)
        plane.handshakes.add(handshake)
        handshake.add_done_callback(partial(self._over, connection, sock, connection.without_route()))

    def _over(self, connection: Patience, sock: socket.socket, attempt: Exchange, handshake: asyncio.Task[Any]) -> None:
        """It has become the connection, or nothing: no TLS, none that both know, gone, too slow, no room."""
        plane = self._plane
        plane.handshakes.discard(handshake)
        if connection.handshake is None:
            return
        if handshake.cancelled():
            why = Reason.SHUTDOWN if connection.surplus is None else Reason.limit(connection.surplus)
        else:
            why = _why(handshake.exception())
        plane.failed_handshakes += 1
        attempt.record.detail = why
        attempt.end(Reason.HANDSHAKE)
        connection.leave()
        sock.close()
        # Both know the connection, which would stay until a full collection.
        connection.handshake = None  # type: ignore[assignment]  # as after a connection


def _why(error: BaseException | None) -> str:
    """Why a handshake came to nothing, in a word; OpenSSL's own where it was about TLS, such as ``http_request``."""
    match error:
        case ssl.SSLError(reason=str(reason)):
            return reason.lower()
        case ConnectionAbortedError() | TimeoutError():
            return Reason.TIMEOUT
        case OSError():
            return Reason.CLIENT_GONE
        case _:
            _LOGGER.error("a TLS handshake failed", exc_info=error)
            return Reason.ERROR
