"""A node of a cluster of which one other node owns all channels; or that owner.

``python -m benchmarks.references.node [OWNER'S URL [held]]``: a table of one place stands for the directory. With
``held`` the node holds replicas of the owner's channels for its readers; otherwise it forwards their requests, too.
"""

from __future__ import annotations

import socket
import sys
from typing import Final, NamedTuple

import uvloop

from tricklecast.app.cluster.feeds import Feeds
from tricklecast.app.cluster.forward import Forwarding
from tricklecast.app.cluster.peers import Peers
from tricklecast.app.cluster.replicas import Cluster, Replicas
from tricklecast.app.data_plane.context import DataPlane, Serve
from tricklecast.app.data_plane.exchange import Caller, Exchange
from tricklecast.app.data_plane.request import Request, Via
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.listener import tune
from tricklecast.app.node import Node
from tricklecast.app.server import Server
from tricklecast.app.settings import Settings
from tricklecast.app.sockets import Sockets

SECRET: Final = b"every node of a benchmark has it"


class Owner(NamedTuple):
    """Where all channels are."""

    node: str
    url: str
    epoch: int = 1
    reachable: bool = True


class OnePlace:
    """The cluster as a node sees it that knows one owner, or that is the owner; and its directory."""

    informed = True

    def __init__(self, plane: DataPlane, me: str, owner: Owner | None) -> None:
        self.peers = Peers(me, lambda: SECRET)
        self.forwarding = Forwarding(self.peers)
        self.owner = owner
        self.feeds = Feeds(plane, self.peers, self.place, self.owns, self.forwarding.tls)

    def switch(self, request: Request) -> Reply | Serve:
        """Send a feed."""
        return self.feeds.switch(request)

    def place(self, channel: str) -> Owner | None:
        """Where it is."""
        return self.owner

    def former(self, channel: str) -> Owner | None:
        """None has ended."""

    def owns(self, channel: str) -> bool:
        """Whether it is here."""
        return self.owner is None

    async def claim(self, channel: str, at_least_epoch: int = 0) -> None:
        """Nobody needs to."""

    async def look_up(self, channel: str) -> None:
        """All channels are known."""

    def ended(self, channel: str, epoch: int) -> None:
        """Nobody needs to know."""

    def left(self, channel: str, epoch: int) -> None:
        """No channel leaves."""

    def sender(self, request: Request) -> Via | Reply:
        """Which node has passed the request on."""
        return self.peers.sender(request)

    def answer(self, connection: Caller, request: Request, route: Route) -> Reply | Exchange | None:
        """Let the owner answer."""
        return None if self.owner is None else self.forwarding.begin(connection, request, route, self.owner)


async def run(url: str | None, *, holds: bool) -> None:
    """Serve until killed."""
    name = "owner" if url is None else "edge"
    settings = Settings.model_validate({"port": 0, "node": name, "storm_guard": "off"})
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    tune(listener, peer_timeout_s=settings.peer_timeout_s)
    node = Node(settings, settings.limits(), Sockets(listener, None))
    plane, one = node.plane, OnePlace(node.plane, node.name, None if url is None else Owner("owner", url))
    replicas = Replicas(plane, one.feeds.connect)
    plane.cluster = Cluster(plane, one.peers, one, one.forwarding.begin, one.feeds, replicas) if holds else one
    address = f"http://127.0.0.1:{listener.getsockname()[1]}{settings.base_path}"
    await node.run(Server(node, lambda _: print(f"node listens on {address}", flush=True)))


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1] if len(sys.argv) > 1 else None, holds="held" in sys.argv))
