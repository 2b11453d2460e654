"""Two nodes of a cluster in threads of the test's process: one owns channels, the other one knows where they are.

A table of places stands for the directory.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.cluster.forward import Forwarding
from tricklecast.app.cluster.peers import Peers
from tricklecast.app.data_plane.context import Serve
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.request import Request, Via
from tricklecast.app.data_plane.responses import FORGED, Reply
from tricklecast.app.data_plane.routing import Route

SECRET: Final = b"the secret of this cluster, 32 by"


@dataclass(frozen=True)
class Place:
    """A node, as the directory would know it."""

    node: str
    url: str


@dataclass
class Table:
    """The cluster as one node sees it (:class:`tricklecast.app.data_plane.context.Elsewhere`).

    Attributes:
        peers, forwarding: of this node.
        rest: the owner of channels that are not in `places`; `None`: this node.
        places: other owners, by channel.
    """

    peers: Peers
    forwarding: Forwarding
    rest: Place | None = None
    places: dict[str, Place] = field(default_factory=dict)

    protocol = b"none"

    def switch(self, request: Request) -> Reply | Serve:
        """Its channels go nowhere."""
        return FORGED

    def sender(self, request: Request) -> Via | Reply:
        """Which node has passed the request on."""
        return self.peers.sender(request)

    def answer(self, connection: Caller, request: Request, route: Route) -> Reply | Exchange | None:
        """Forward it to the owner of its channel."""
        place = self.places.get(route.channel, self.rest)
        return None if place is None else self.forwarding.begin(connection, request, route, place)


@dataclass(frozen=True)
class Nodes:
    """Two nodes.

    Attributes:
        edge, owner: the node that clients come to, and the one that has the channels.
        at_edge, at_owner: what they know of the cluster.
    """

    edge: LocalServer
    owner: LocalServer
    at_edge: Table
    at_owner: Table

    def settled(self) -> None:
        """Wait until nobody is served."""
        for server in (self.edge, self.owner):
            eventually(partial(_is_idle, server), what="nobody is served")


def _is_idle(server: LocalServer) -> bool:
    return not any(connection.exchange for connection in server.inside(lambda: set(server.plane.connections)))


def place_of(server: LocalServer, scheme: str = "http") -> Place:
    """Where other nodes find a server."""
    return Place(server.settings.node or "", f"{scheme}://127.0.0.1:{server.port}{server.settings.base_path}")


def join(server: LocalServer, rest: Place | None = None, tls: ssl.SSLContext | None = None) -> Table:
    """Make a server a node of the cluster."""
    peers = Peers(server.settings.node or "", lambda: SECRET)
    table = Table(peers, Forwarding(peers, tls=tls), rest)
    server.inside(lambda: setattr(server.plane, "cluster", table))
    return table


@contextmanager
def node(name: str, **settings: Any) -> Iterator[LocalServer]:
    """A server that ends its connections to other nodes before it stops."""
    with local_server(node=name, **settings) as server:
        try:
            yield server
        finally:
            if isinstance(table := server.plane.cluster, Table):
                server.inside(table.forwarding.end)


@contextmanager
def two_nodes(*, at_edge: dict[str, Any] | None = None, **settings: Any) -> Iterator[Nodes]:
    """Two nodes with these settings; all channels are at the second one."""
    with node("owner", **settings) as owner, node("edge", **{**settings, **(at_edge or {})}) as edge:
        yield Nodes(edge, owner, join(edge, place_of(owner)), join(owner))


if __name__ == "__main__":  # the owner in a process of its own, which a test may stop and kill
    with node("owner", storm_guard="off") as alone:
        join(alone)
        print(alone.port, flush=True)
        sys.stdin.read()
