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
from typing import Final

from app.data_plane.door import leave
from app.data_plane.patience import Patience
from app.data_plane.plane import DataPlane

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
            connection = self._make()
            handshake = loop.create_task(self._shake_hands(connection, sock))
            connection.accepted(handshake, address)
            self._plane.handshakes.add(handshake)
            handshake.add_done_callback(self._plane.handshakes.discard)

    async def _shake_hands(self, connection: Patience, sock: socket.socket) -> None:
        """Becomes the connection, or comes to nothing: no TLS, none that both know, gone, too slow, no room."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=self._plane.options.head_timeout_s,
                # Many clients never say that they have heard the end: a drain would wait half a minute for each.
                ssl_shutdown_timeout=self._plane.options.linger_s,
            )
        except OSError:
            pass
        finally:
            if connection.handshake is not None:
                self._plane.failed_handshakes += 1
                leave(connection)
                sock.close()
