"""Nodes of a cluster in threads of the test's process, which hold each other's channels; a table is their directory."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.app.cluster.nodes import SECRET
from tests.support.local import LocalServer, local_server
from tests.support.waiting import eventually
from tricklecast.app.cluster.feeds import Feeds
from tricklecast.app.cluster.forward import Forwarding
from tricklecast.app.cluster.peers import Peers
from tricklecast.app.cluster.replicas import Cluster, HeldChannel, Replicas
from tricklecast.app.tools.conformance.target import Target


class Place(NamedTuple):
    """Where a channel is, as the directory says."""

    node: str
    url: str
    epoch: int
    reachable: bool


@dataclass
class Table:
    """The directory of all nodes.

    Attributes:
        urls: of the nodes. owners: the node and the epoch of each channel. gone: nodes that are out of reach.
        former: the same of channels that have ended.
        rest: the node that has all other channels, if there is one.
        undecided: nothing is decided at present. moving: channels that are being handed over.
        claims: how many were made. epochs: the last one of each channel.
        late: owners of which nobody hears who does not ask. asked: how often somebody did. faulty: it raises then.
    """

    urls: dict[str, str] = field(default_factory=dict)
    owners: dict[str, tuple[str, int]] = field(default_factory=dict)
    former: dict[str, tuple[str, int]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    rest: str = ""
    undecided: bool = False
    moving: set[str] = field(default_factory=set)
    claims: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    late: dict[str, tuple[str, int]] = field(default_factory=dict)
    asked: int = 0
    faulty: bool = False


@dataclass
class View:
    """The directory, as one node asks it (:class:`tricklecast.app.cluster.replicas.Directory`)."""

    table: Table
    me: str
    informed: bool = True

    def place(self, channel: str) -> Place | None:
        """Where a channel is."""
        return self._place(*self.table.owners.get(channel, (self.table.rest, 0)))

    def former(self, channel: str) -> Place | None:
        """Where it was."""
        return self._place(*self.table.former.get(channel, ("", 0)))

    def _place(self, node: str, epoch: int) -> Place | None:
        if not node:
            return None
        url = self.table.urls.get(node, "")
        return Place(node, url, epoch, bool(url) and node not in self.table.gone)

    def owns(self, channel: str) -> bool:
        """Whether this node has it."""
        return self.table.owners.get(channel, ("", 0))[0] == self.me and channel not in self.table.moving

    async def look_up(self, channel: str) -> None:
        """Hear of it."""
        self.table.asked += 1
        if self.table.faulty:
            raise RuntimeError("a fault")
        if (news := self.table.late.pop(channel, None)) is not None:
            self.table.owners[channel] = news

    async def claim(self, channel: str, at_least_epoch: int = 0) -> object:
        """Own it, unless another node that can be reached does."""
        table = self.table
        table.claims += 1
        place = self.place(channel)
        if table.undecided or (place is not None and place.node != self.me and place.reachable):
            return None
        epoch = max(at_least_epoch, table.epochs.get(channel, 0)) + 1
        table.epochs[channel] = epoch
        table.owners[channel] = self.me, epoch
        table.former.pop(channel, None)
        table.moving.discard(channel)
        return None

    def ended(self, channel: str, epoch: int) -> None:
        """It has ended."""
        if self.table.owners.get(channel) == (self.me, epoch):
            self.table.former[channel] = self.table.owners.pop(channel)

    def left(self, channel: str, epoch: int) -> None:
        """It goes on elsewhere: that is in the table."""


@dataclass(frozen=True)
class Member:
    """A node.

    Attributes:
        server: it. cluster, forwarding, peers: its parts. target: a client of it.
    """

    server: LocalServer
    target: Target
    cluster: Cluster
    forwarding: Forwarding
    peers: Peers

    @property
    def held(self) -> dict[str, HeldChannel]:
        """The channels of other nodes that it holds."""
        return self.cluster.replicas.held

    def holds(self, name: str) -> None:
        """Wait until it holds a channel."""
        eventually(lambda: (held := self.held.get(name)) is not None and held.replica.live, what=f"{name} is held")

    def look(self, later_s: float = 0.0) -> None:
        """Do what is due at this time from now."""
        self.server.inside(lambda: self.cluster.look(self.server.plane.clock() + later_s))


def join(
    server: LocalServer, table: Table, *, most: int = 1000, tls: ssl.SSLContext | None = None, waits_s: float = 0.0
) -> Member:
    """Make a server a node."""
    plane, name = server.plane, server.settings.node or ""
    scheme = "http" if tls is None else "https"
    table.urls[name] = f"{scheme}://127.0.0.1:{server.port}{server.settings.base_path}"
    peers, view = Peers(name, lambda: SECRET), View(table, name)
    forwarding = Forwarding(peers, tls=tls, place=view.place, waits_s=waits_s)
    feeds = Feeds(plane, peers, view.place, view.owns, forwarding.tls)

    def start() -> Member:
        cluster = Cluster(plane, peers, view, forwarding.begin, feeds, Replicas(plane, feeds.connect, most=most))
        plane.registry.owns, plane.registry.epochs = cluster.owns, cluster.epoch
        plane.cluster = cluster
        return Member(server, server.target(), cluster, forwarding, peers)

    return server.inside(start)


@contextmanager
def members(
    *names: str,
    table: Table | None = None,
    most: int = 1000,
    tls: tuple[Path, Path] | None = None,
    waits_s: float = 0.0,
    **settings: Any,
) -> Iterator[list[Member]]:
    """Nodes of these names, of one cluster.

    Args:
        most: channels of others that each holds. waits_s: how long a request waits for a node out of reach.
        tls: the certificate and the key with which all of them speak TLS.
    """
    table = table or Table()
    if tls is not None:
        settings |= {"tls_cert": tls[0], "tls_key": tls[1]}
    with ExitStack() as stack:
        servers = [stack.enter_context(local_server(node=name, **settings)) for name in names]
        found = [join(server, table, most=most, tls=server.tls, waits_s=waits_s) for server in servers]
        try:
            yield found
        finally:
            for member in found:
                member.target.close()
                if not member.server.over():
                    member.server.inside(member.cluster.end)
                    member.server.inside(member.forwarding.end)
