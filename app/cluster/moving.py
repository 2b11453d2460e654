"""Channels move between the nodes of a cluster, in the same epoch, and nobody sees a gap.

**Use.** Each node has one :class:`Moving`. :meth:`Moving.move` gives a channel of this node to another one,
:meth:`Moving.drain` gives all of them away before the node stops, and :meth:`Moving.look` keeps the load up to date by
which new channels are placed. All of it is done by the owner: other nodes ask it over its HTTP API.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final, NamedTuple

from tricklecast.app.cluster.directory import Directory
from tricklecast.app.cluster.peers import Peers
from tricklecast.app.cluster.quorum import Quorum
from tricklecast.app.cluster.replicas import Cluster
from tricklecast.app.data_plane.context import DataPlane

MOVE_S: Final = 10.0
"""A move waits so long for the end of the segment that is being written."""

DRAIN_S: Final = 20.0
"""All channels of a node have moved after this time, or stay."""


class Outcome(StrEnum):
    """How an attempt to move a channel has ended."""

    MOVED = "moved"
    NOT_OWNER = "not_owner"
    """This node does not own the channel, or there is none of this name."""
    NO_NODE = "no_node"
    """There is no such node, or it cannot be reached, or it drains."""
    BUSY = "busy"
    """A segment was written for all of the time, or the channel is being moved already. Nothing has changed."""
    REFUSED = "refused"
    """The other node did not take it. Nothing has changed."""
    UNDECIDED = "undecided"
    """NATS has not answered: the channel is this node's or the other one's as soon as it does."""


class Moved(NamedTuple):
    """The result of a move; the text is for people, and says why it was not possible."""

    outcome: Outcome
    detail: str = ""


class Drained(NamedTuple):
    """The result of a drain: how many channels have moved, and why each of the others has not."""

    moved: int
    left: dict[str, Moved]


class Moving:
    """Gives channels of this node to other nodes.

    Args:
        plane: of this node. peers: sign requests. directory: knows the nodes. cluster: what is held of others.
        quorum: the histories of this node, if it has any.

    Attributes:
        under_way: channels that are being moved at present, and to which node each.
        counters: how many moves have ended, by their :class:`Outcome`; and ``placed``: new channels that were given
            to another node, since this one has much more to do.
    """

    def __init__(
        self, plane: DataPlane, peers: Peers, directory: Directory, cluster: Cluster, quorum: Quorum | None = None
    ) -> None:
        self.under_way: dict[str, str] = {}
        self.counters: Counter[str] = Counter()
        self._plane, self._peers, self._directory, self._cluster, self._quorum = (
            plane,
            peers,
            directory,
            cluster,
            quorum,
        )

    async def move(self, channel: str, to: str, *, within_s: float = MOVE_S) -> Moved:
        """Give a channel of this node to another node, in the same epoch.

        Publishers that begin a segment meanwhile wait, and go on at the other node; a segment that is being written
        ends first. Readers stay where they are.

        Args:
            to: the name of the other node. within_s: how long the segment may take.
        """
        raise NotImplementedError

    async def drain(self, within_s: float = DRAIN_S) -> Drained:
        """Give all channels away, to the nodes that have least to do; from now on this node takes no new ones.

        Args:
            within_s: when this time is over, segments that are still written are cut off: their publishers are sent
                away, and may send them again.
        """
        raise NotImplementedError

    def look(self, now: float) -> None:
        """Tell the others how much this node has to do. Call it a few times a second."""

    def end(self) -> None:
        """Move nothing any more."""
