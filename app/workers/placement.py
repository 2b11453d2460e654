"""Placement: which worker a request belongs to, found from the first bytes of its head.

A channel belongs to the worker that a checksum of its name gives. So every worker knows the owner of every channel,
nobody has to be asked, and the owner stays the same after a restart with the same number of workers. What belongs to no
channel (the API, metrics, web pages) and the server's own channels, whose names begin with ``_``, belong to the first
worker, the *front*, which answers for all.

A request is looked at before it is parsed, since only then the connection can still move to its owner with everything
that it has brought (:mod:`~tricklecast.app.workers.handover`). The method, a space and the target up to the end of the
channel's name are enough.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes
from zlib import crc32

from tricklecast.app.data_plane.routing import Router
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.records import Op

FRONT: Final = 0
"""The worker that answers for all."""

LOOK_BYTES: Final = 4096
"""A request whose channel does not show within this number of bytes is answered where it came: it is refused there,
since no URL may be so long without a channel's end."""

READS: Final = frozenset({Op.READ, Op.STREAM, Op.NEXT})
"""Requests that any holder of a channel answers as its owner does."""

_LINE: Final = re.compile(rb"(?:\r\n)*([A-Za-z-]{1,32}) ([^ \r\n]*)( |\r|\n)?", re.ASCII)
"""The beginning of a request: method, target, and the end of the target if it is there."""

_OF_CHANNEL: Final = re.compile(rb"/+api/+v1/+channels/+([^/?]+)")
"""A route of the API that is about one channel."""


def owner_of(channel: str, workers: int) -> int:
    """The number of the worker that owns a channel, from 0."""
    return FRONT if is_reserved(channel) else crc32(channel.encode("utf-8", "surrogateescape")) % workers


class Placement:
    """Which of several workers a request belongs to.

    Args:
        workers: their number. me: this one's, from 0.
        router: of the data plane.

    Attributes:
        spread: the workers that serve the readers of a busy channel (:mod:`~tricklecast.app.workers.busy`): at its
            owner all of them, elsewhere this one.
    """

    def __init__(self, workers: int, me: int, router: Router) -> None:
        self.workers, self.me = workers, me
        self._router = router
        self.spread: dict[str, list[int]] = {}

    def owner_of(self, channel: str) -> int:
        """The worker that owns a channel."""
        return owner_of(channel, self.workers)

    def of_head(self, head: bytes, chance: int) -> int | None:
        """The worker to which a request belongs; ``None`` if more of its head is needed to tell.

        Args:
            chance: the number of the connection, which counts in steps of the number of workers: it chooses among
                several workers, always in the same way.
            head: the beginning of the request, at least one byte. What is no request belongs to this worker, which
                refuses it.
        """
        line = _LINE.match(head)
        if line is None:
            # Half a method, or nothing that could become one.
            return None if len(head) < 32 and head.strip(b"\r\n").isalpha() else self.me
        method, target, end = line.groups()
        if end is None and b"?" not in target and len(head) < LOOK_BYTES:
            return None
        return self.of_target(method, target, chance)

    def of_target(self, method: bytes, target: bytes, chance: int) -> int:
        """The worker to which a request of this method and target belongs."""
        route = self._router.find(method, target)
        if route is not None:
            if route.op in READS and (holders := self.spread.get(route.channel)) is not None:
                return holders[chance // self.workers % len(holders)]
            return self.owner_of(route.channel) if route.channel else self.me
        found = _OF_CHANNEL.match(target)
        if found is None:
            return FRONT
        return self.owner_of(unquote_to_bytes(found[1]).decode("utf-8", "surrogateescape"))
