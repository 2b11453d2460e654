"""This server as a node of a cluster: the parts that make it one, and the order in which they begin and end.

1. The directory (:mod:`~tricklecast.app.cluster.directory`) knows the nodes and the places of all channels, and keeps
   this node's lease.
2. Requests go to other nodes (:mod:`~tricklecast.app.cluster.forward`), and channels of others are held here
   (:mod:`~tricklecast.app.cluster.replicas`); both know the others by what they sign.
3. Publishers are answered behind the lease (:mod:`~tricklecast.app.cluster.leased`): by memory, by the data directory,
   or by the histories in NATS (:mod:`~tricklecast.app.cluster.quorum`).
4. Channels move to other nodes, and new ones are placed (:mod:`~tricklecast.app.cluster.moving`).

Without NATS a node begins all the same, and serves the channels that it has; it decides nothing, and says so. At its
end it leaves the directory last: from then on others may take its channels.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from functools import partial
from typing import Final

from tricklecast.app.access.secrets import read_secret
from tricklecast.app.clock import to_time, to_us
from tricklecast.app.cluster.bucket import Bucket
from tricklecast.app.cluster.directory import Directory, NodeFacts
from tricklecast.app.cluster.feeds import Feeds
from tricklecast.app.cluster.forward import Forwarding
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.leased import LeasedDurability
from tricklecast.app.cluster.moving import Moving, owned_channels
from tricklecast.app.cluster.peers import NodeUrl, Peers
from tricklecast.app.cluster.quorum import Quorum
from tricklecast.app.cluster.replicas import Cluster, Replicas
from tricklecast.app.cluster.streams import StreamOptions
from tricklecast.app.cluster.view import Place
from tricklecast.app.data_plane.context import DataPlane, Durability
from tricklecast.app.data_plane.held import send_away
from tricklecast.app.data_plane.responses import unconfirmed_reply
from tricklecast.app.settings import Settings
from tricklecast.app.storage.archive import Ack
from tricklecast.trickle import __version__
from tricklecast.trickle.errors import InvalidInput

logger = logging.getLogger("tricklecast.cluster")

START_LEASES: Final = 2.5
"""The server begins without the directory after this number of leases. Two may pass while a node that has this one's
name, and may be alive, is given time to show it."""

SAME_URL_LEASES: Final = 3
"""Two nodes that have one URL for this number of leases are a mistake."""

LOST_S: Final = 0.5
"""A request waits so much longer than a lease for a node that cannot be reached: it may just have renewed."""


class Member:
    """A node. Make it inside the event loop, before the first request.

    Args:
        settings: of the server. name: of the node. listener: where the server listens.
        plane: of the server; it and its registry ask the cluster from now on.

    Attributes:
        directory, peers, forwarding, feeds, replicas: its parts. cluster: asked by the data plane.
        quorum: the histories in NATS, with ``--ack quorum``. durability: what publishers are promised.
        moving: gives channels to other nodes.

    Raises:
        InvalidInput: a file or a URL in the settings cannot be used.
    """

    def __init__(self, settings: Settings, name: str, listener: socket.socket, plane: DataPlane) -> None:
        url, tls = url_of(settings, listener.getsockname()[:2]), _tls(settings)
        if settings.cluster_creds is not None:
            read_secret(settings.cluster_creds, least=1)  # nats-py reads it when a server asks, and says nothing
        nats = NatsOptions(
            tuple(server.get_secret_value() for server in settings.cluster),
            settings.cluster_creds,
            tls if settings.cluster_ca is not None else None,
            settings.cluster_name,
        )
        is_quorum, registry = settings.ack is Ack.QUORUM, plane.registry
        self._plane = plane
        self.directory = Directory(
            partial(Bucket.open, nats, name),
            NodeFacts(name, url, __version__),
            self,
            lease_s=settings.cluster_lease_s,
            keeps_epochs=is_quorum,
            servers=nats.named,
        )
        self.peers = Peers(name, lambda: self.directory.secret.encode())
        waits_s = settings.cluster_lease_s + LOST_S
        self.forwarding = Forwarding(self.peers, tls=tls, place=self.directory.place, waits_s=waits_s)
        self.feeds = Feeds(plane, self.peers, self.directory.place, self.directory.owns, self.forwarding.tls)
        self.replicas = Replicas(plane, self.feeds.connect)
        self.quorum: Quorum | None = None
        storage: Durability | None = plane.durability
        if is_quorum:
            storage = self.quorum = Quorum(
                nats,
                registry,
                plane.clock,
                name=name,
                to_us=to_us,
                to_time=to_time,
                confirmed=self.directory.confirmed,
                lost=self.lost,
                leave=partial(send_away, plane),
                options=StreamOptions(max_bytes=settings.cluster_history_bytes),
            )
        self.cluster = Cluster(
            plane,
            self.peers,
            self.directory,
            self.forwarding.begin,
            self.feeds,
            self.replicas,
            None if self.quorum is None else self.quorum.recover,
        )
        self.durability = LeasedDurability(
            self.directory.lease,
            self.directory.confirmed,
            lambda: "" if is_quorum else self.directory.cut_off,
            partial(unconfirmed_reply, plane.jitter),
            storage,
            fences=is_quorum,
        )
        plane.durability, plane.cluster = self.durability, self.cluster
        registry.owns, registry.epochs = self.cluster.owns, self.cluster.epoch
        self.moving = Moving(plane, self.directory, self.cluster, self.quorum)
        self._reachable: set[str] = set()  # the other nodes, when they were last looked at
        self._namesakes: dict[str, float] = {}  # of them, those that advertise this one's URL, and since when

    @property
    def degraded(self) -> str:
        """Why this node can decide nothing at present; empty if it can."""
        return self.directory.degraded

    # Life.

    async def start(self) -> None:
        """Enter the cluster, with the channels that this node has brought back from its data directory.

        Raises:
            NameInUse: another process has this node's name, and is alive.
        """
        owned = owned_channels(self._plane.registry)
        await self.directory.start(owned, START_LEASES * self.directory.lease.lease_s)
        if self.quorum is not None:
            await self.quorum.start()

    async def run(self) -> None:
        """Return never; raise if this node cannot go on.

        Raises:
            NameInUse: another process has taken this node's name.
        """
        while self.directory.replaced is None:  # noqa: ASYNC110 - it happens once, to a misconfigured node
            await asyncio.sleep(1)
        raise self.directory.replaced

    async def stop(self) -> None:
        """Leave the cluster: the histories are written to their ends, and others may take the channels. It takes up to
        4 s without NATS."""
        self.moving.end()
        if self.quorum is not None:
            await self.quorum.stop()
        await self.directory.stop()
        self.cluster.end()
        self.forwarding.end()

    def look(self) -> None:
        """Do what is due. Call it a few times a second."""
        now = self._plane.clock()
        self.cluster.look(now)
        self.moving.look(now)
        nodes = self.directory.nodes
        reachable = {name for name in nodes if name != self.peers.me and self.directory.reachable(name)}
        for name in self._reachable - reachable:
            self.forwarding.lost(name)
        self._reachable = reachable
        self._compare_urls(now)

    def _compare_urls(self, now: float) -> None:
        """Warn of another node that has this one's URL: requests for its channels come here, and go in a circle.

        One that was here before, under another name, is reachable for the time of a lease.
        """
        nodes, url = self.directory.nodes, self.directory.me.url
        found = {name for name in self._reachable if nodes[name].url == url}
        for name in found:
            since = self._namesakes.setdefault(name, now)
            if since < now - SAME_URL_LEASES * self.directory.lease.lease_s:
                self._namesakes[name] = math.inf  # said
                logger.warning(
                    "node %r is at %s, says the directory, and so is this node, %r: give each its own --advertise-url",
                    name, url, self.directory.me.name,
                )  # fmt: skip
        self._namesakes = {name: since for name, since in self._namesakes.items() if name in found}

    # Told by the directory (:class:`~tricklecast.app.cluster.directory.Listeners`).

    def moved(self, channel: str, place: Place | None) -> None:
        """A channel has another owner or epoch, or has none any more."""
        self.cluster.moved(channel, place)

    def lost(self, channel: str, epoch: int) -> None:
        """This node does not own the channel any more."""
        if self.quorum is not None:
            self.quorum.let_go(channel)  # its history goes on, and must not hear that the channel ends here
        self.cluster.lost(channel, epoch)

    def given(self, channel: str, epoch: int) -> bool:
        """Another node hands its channel over."""
        return self.cluster.given(channel, epoch)


def url_of(settings: Settings, listener: tuple[str, int]) -> str:
    """Where other nodes reach this one, base path included.

    Args:
        listener: the address on which it listens.
    """
    if settings.advertise_url is None:
        host, port = listener
        scheme = "http" if settings.tls_cert is None else "https"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    else:
        url = settings.advertise_url.rstrip("/")
    try:
        has_path = bool(NodeUrl.parse(url).base)
    except InvalidInput as error:
        raise InvalidInput(f"advertise_url: {error}") from None
    return url if has_path else url + settings.base_path


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """For connections to other nodes and to NATS; ``None``: they trust the authorities that the machine trusts."""
    if settings.cluster_ca is None and settings.tls_client_ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.cluster_ca)
        if settings.tls_cert is not None and settings.tls_client_ca is not None:  # the others ask for one, too
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cluster_ca: cannot use {settings.cluster_ca}: {error}") from None
    return context
