"""At the door: a connection or a request comes, and the core says whether there is room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.app.core.limits import Limit
from tricklecast.app.data_plane.client_address import client_of, plain

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.patience import Patience
    from tricklecast.app.data_plane.plane import DataPlane

MAX_SURPLUS: Final = 64
"""Connections beyond a limit that are kept until they have asked. They are there for health checks, metrics and the
API, which must answer when everything else is full; who asks for a segment route is refused on them. Those that ask
nothing make room for newer ones, so that they cannot keep an operator out."""


def arrive(connection: Patience, ip: str | None) -> None:
    """A connection comes: it takes a place, or it is one too many and may ask one thing.

    Args:
        ip: the address of its peer.
    """
    plane = connection.plane
    peer = connection.peer = plain(ip) if ip else None
    connection.proxied = peer is not None and peer in plane.proxies
    clients = plane.admission.clients
    if clients is not None and not connection.proxied:
        connection.client_here = clients.hold(client_of(peer or ""))
    connection.surplus = plane.admission.connect(connection.client_here)
    if connection.surplus is not None:
        plane.surplus[connection] = None
        if len(plane.surplus) > MAX_SURPLUS:
            _make_room(plane)


def leave(connection: Patience) -> None:
    """A connection is gone."""
    plane = connection.plane
    client, connection.client_here = connection.client_here, None
    if connection.surplus is None:
        plane.admission.disconnect(client)
    else:
        plane.surplus.pop(connection, None)
    if client is not None and plane.admission.clients is not None:
        plane.admission.clients.release(client)


def ask(connection: Connection, ip: str | None) -> Limit | None:
    """A request of a segment route came from this address: the limit that it would exceed, if any."""
    plane = connection.plane
    clients = plane.admission.clients
    if connection.surplus is not None or clients is None:
        return connection.surplus
    client = connection.client_here or clients.hold(client_of(ip or ""))
    limit = plane.admission.begin(client, plane.clock())
    if limit is None:
        connection.asking = client
    elif client is not connection.client_here:
        clients.release(client)
    return limit


def asked(connection: Connection) -> None:
    """The exchange of a request that was let in has ended."""
    plane = connection.plane
    client, connection.asking = connection.asking, None
    assert client is not None, "somebody asked"
    plane.admission.end(client)
    if client is not connection.client_here and plane.admission.clients is not None:
        plane.admission.clients.release(client)


def _make_room(plane: DataPlane) -> None:
    """The oldest connection beyond a limit that nothing is being done for is answered unasked, and closed."""
    for connection in plane.surplus:
        if connection.handshake is not None:
            if connection.handshake.cancelling():
                continue  # for one that came a moment ago
            connection.handshake.cancel()
        elif connection.deaf:
            connection.transport.abort()
        elif connection.asgi_in_progress():
            continue
        elif connection.surplus is not None:
            connection.turn_away(connection.surplus)
        break
