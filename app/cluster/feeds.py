"""Feeds between nodes: the owner of a channel sends its feed over a connection that another node has switched.

A node asks the owner's advertised URL for ``GET {base}/_cluster/feed/CHANNEL`` with ``Upgrade: trickle-feed`` and its
signature (:mod:`~tricklecast.app.cluster.peers`). The owner answers 101, and from then on the two speak the feed
(:mod:`~tricklecast.app.replication.transport`): the first record comes from the node that asked. In the same way an
owner asks for ``_cluster/adopt/CHANNEL`` at the node to which it gives the channel
(:mod:`~tricklecast.app.cluster.moving`).

=====  =====================================================================
403    no node of this cluster has signed the request
404    there is no such path, or no channel can have this name
421    this node does not own the channel, or it has ended: look again
503    this node stops, or has no place for one more connection
=====  =====================================================================
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from tricklecast.app.cluster.forward import CONNECT_S, PEER_TIMEOUT_S
from tricklecast.app.cluster.peers import NodePlace, NodeUrl, Peers
from tricklecast.app.cluster.questions import NodeQuestions
from tricklecast.app.data_plane.context import DataPlane, Serve
from tricklecast.app.data_plane.request import CLUSTER, Request
from tricklecast.app.data_plane.responses import FORGED, Reply, shutdown_reply
from tricklecast.app.http1.switched import PROTOCOL
from tricklecast.app.listener import tune
from tricklecast.app.replication.sending import Sending
from tricklecast.app.replication.transport import TURN_BYTES, put
from tricklecast.trickle.errors import InvalidChannelName, TrickleError
from tricklecast.trickle.paths import parse_channel
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

ANSWER_S: Final = 2.0
"""The owner answers within this time, or counts as out of reach."""

FEED: Final = b"feed"
ADOPT: Final = b"adopt"
QUESTION: Final = b"ask"
"""The three kinds of requests between nodes: ``_cluster/feed/film`` asks for the feed of the channel ``film``."""

NOT_OWNER: Final = Reply(
    Status.MISDIRECTED, Reason.REPLICA, body=b"This node does not own the channel: look again", close=True
)
NO_FEED: Final = Reply(
    Status.NOT_FOUND, Reason.NOT_FOUND, body=b"Not found: a feed is at _cluster/feed/CHANNEL", close=True
)


class NoFeed(TrickleError):
    """The owner sends no feed; the text says why."""


class Feeds:
    """The feeds that this node sends and asks for.

    Args:
        plane: of this node. peers: knows and signs requests of nodes.
        place: where a channel is; ``None`` if nobody knows. owns: whether this node owns a channel.
        tls: for nodes that speak TLS.

    Attributes:
        sending: the feeds that other nodes follow. refused: requests for a channel that was not here.
        adopt: serves a node that gives a channel of this name away; ``None``: this one takes none.
        questions: to other nodes, and their answers, on connections of the same kind.
    """

    def __init__(
        self,
        plane: DataPlane,
        peers: Peers,
        place: Callable[[str], NodePlace | None],
        owns: Callable[[str], bool],
        tls: Callable[[], ssl.SSLContext],
    ) -> None:
        self._plane, self._peers, self._place, self._owns, self._tls = plane, peers, place, owns, tls
        self.sending = Sending(plane.registry)
        self.refused = 0
        self.adopt: Callable[[str], Serve] | None = None
        self.questions = NodeQuestions(partial(self.ask, what=QUESTION))

    # The owner's side.

    def switch(self, request: Request) -> Reply | Serve:
        """Answer a request for a feed, or a question (:class:`app.data_plane.context.Elsewhere`)."""
        via = self._peers.sender(request) if CLUSTER in request.headers else FORGED
        if isinstance(via, Reply):
            return via
        plane, parts = self._plane, self._plane.router.match(request.target)
        if request.method != b"GET" or parts is None or len(parts) != 3 or parts[0] != b"_cluster":
            return NO_FEED
        if parts[1] == QUESTION:
            query = request.target.partition(b"?")[2]
            return self.questions.switch(parts[2].decode("latin-1"), query, via.hops[-1]) or NO_FEED
        try:
            name = parse_channel(parts[2].decode("utf-8", "surrogateescape"))
        except InvalidChannelName:
            return NO_FEED
        if plane.registry.shutting_down:
            return shutdown_reply(plane.jitter, plane.registry.come_back_s)
        if parts[1] == ADOPT and self.adopt is not None:
            return self.adopt(name)
        if parts[1] != FEED:
            return NO_FEED
        channel = plane.registry.live(name)
        if channel is None or not self._owns(name):
            self.refused += 1
            return NOT_OWNER
        return partial(self.sending.send, channel, f"node {via.hops[-1]}")

    # The other side.

    async def connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask the owner of a channel for its feed.

        Raises:
            OSError: the owner cannot be reached.
            TrickleError: nobody knows the owner, or it sends no feed.
        """
        place = self._place(name)
        if place is None or place.node == self._peers.me or not place.url:
            raise NoFeed(f"no other node has the channel {name!r}")
        return await self.ask(place, FEED, name)

    async def ask(
        self, place: NodePlace, what: bytes, name: str, query: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Switch a new connection to another node.

        Args:
            what: is asked for. name: of the channel, or the question. query: the arguments of a question.

        Raises:
            OSError: the node cannot be reached.
            TrickleError: it does not do it.
        """
        url = NodeUrl.parse(place.url)
        target = b"/".join((url.base, b"_cluster", what, quote(name, safe="").encode()))
        if query:
            target += b"?" + query.encode()
        try:
            signature = self._peers.sign(b"GET", target)
        except ValueError as error:
            raise NoFeed(str(error)) from None
        fields = b"host: %b\r\nconnection: upgrade\r\nupgrade: %b\r\n" % (url.authority, PROTOCOL)
        async with asyncio.timeout(CONNECT_S):
            tls = self._tls() if url.tls else None
            reader, writer = await asyncio.open_connection(url.host, url.port, ssl=tls, limit=TURN_BYTES)
        tune(writer.get_extra_info("socket"), peer_timeout_s=PEER_TIMEOUT_S)
        try:
            put(writer, [b"GET %b HTTP/1.1\r\n%btrickle-cluster: %b\r\n\r\n" % (target, fields, signature)])
            async with asyncio.timeout(ANSWER_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            writer.transport.abort()
            raise ConnectionResetError("no answer") from error
        except BaseException:
            writer.transport.abort()
            raise
        status = head.split(b"\r\n", 1)[0]
        if not status.startswith(b"HTTP/1.1 101 "):
            writer.transport.abort()
            raise NoFeed(f"node {place.node} answered {status.decode('latin-1')!r}")
        return reader, writer
