"""Recordings of channels that are over, at whichever node has them.

**The problem.** A recording lies in the data directory of the node that had the channel. The directory forgets a
channel some minutes after its end, and a node that was restarted is there in another term. But a client asks any node,
for as long as the recording is kept.

**The idea.** A node that is asked for a playlist, a file or a clip of a channel that nobody has asks all other nodes
for the recording, and passes such requests on to the node that it has learned. The answer counts for a while: a player
asks for thousands of files, and one that waits for a channel to begin asks again and again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tricklecast.app.cluster.peers import NodePlace
from tricklecast.trickle.records import Op

OF_RECORDINGS: Final = frozenset({Op.PLAYLIST, Op.HLS, Op.CLIP})
"""Requests that a recording answers."""

FOUND_S: Final = 30.0
"""The other nodes are asked again after this time."""

MISSED_S: Final = 2.0
"""The same if none of them has a recording."""

MAX_KNOWN: Final = 1_000
"""Channels of which is remembered what was heard, the last ones."""

Find = Callable[[str], Awaitable[NodePlace | None]]
"""The other node with the recording of a channel; ``None``: there is none, or this node has it."""


async def _nowhere(channel: str) -> NodePlace | None:
    """There is no recording at any other node."""
    del channel
    return None


class Recorded:
    """The recordings that other nodes have told this one of.

    Args:
        clock: the time in seconds.

    Attributes:
        find: asks the other nodes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.find: Find = _nowhere
        self._heard: dict[str, tuple[NodePlace | None, float]] = {}  # and until when it counts

    def knows(self, channel: str) -> bool:
        """Whether the others need not be asked now."""
        _, until = self._heard.get(channel, (None, 0.0))
        return self._clock() < until

    def place(self, channel: str) -> NodePlace | None:
        """The other node that has the recording, as far as this one knows."""
        return self._heard[channel][0] if self.knows(channel) else None

    async def ask(self, channel: str) -> None:
        """Ask the other nodes; also if none of them has answered, this node does not ask again at once."""
        place: NodePlace | None = None
        try:
            place = await self.find(channel)
        finally:
            self._heard.pop(channel, None)
            while len(self._heard) >= MAX_KNOWN:
                del self._heard[next(iter(self._heard))]
            self._heard[channel] = place, self._clock() + (MISSED_S if place is None else FOUND_S)
