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
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_to_bytes
from zlib import crc32

from tricklecast.app.data_plane.routing import Route, Router, path_of
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.records import Op

FRONT: Final = 0
"""The worker that answers for all."""

LOOK_BYTES: Final = 9 << 10
"""A request whose target does not end within this number of bytes is refused by any worker: no URL may be so long."""

READS: Final = frozenset({Op.READ, Op.STREAM, Op.CHANGES, Op.PLAYLIST, Op.HLS})
"""Requests that a holder of a channel may answer as its owner does. The head (``next``) is not among them, since
publishers ask for it, and go on there."""

Place = Callable[[Route, int | None], int]
"""Finds the worker for a request that reads a busy channel. The number is as in :meth:`Placement.worker_for`."""

MAX_KNOWN: Final = 4096
"""Beginnings of requests that are kept; each takes 0.2 kB."""

_UP_TO_NAME: Final = rb"[A-Za-z-]{1,32} %b[^/? \r\n]+/"
"""The beginning that a request has in common with all of its method for a channel, below the prefix of all channels."""

_LINE: Final = re.compile(rb"[\r\n]*([A-Za-z-]{1,32})(?: +([^ \r\n]*)( |\r|\n)?)?")
"""The beginning of a request, as the parser takes it: method, target, and the end of the target, as far as they are
there."""

_OF_CHANNEL: Final = re.compile(rb"/api/v1/channels/([^/]+)")
"""A route of the API that is about one channel, decoded."""


def owner_of(channel: str, workers: int) -> int:
    """The number of the worker that owns a channel, from 0."""
    return FRONT if is_reserved(channel) else crc32(channel.encode("utf-8", "surrogateescape")) % workers


def owned_by(worker: int, workers: int) -> Callable[[str], bool]:
    """Tells whether this worker owns a channel."""
    return lambda channel: owner_of(channel, workers) == worker


class Placement:
    """Which of several workers a request belongs to.

    Args:
        workers: their number. me: this one's, from 0.
        router: of the data plane.

    Attributes:
        spread: busy channels that several workers hold, this one included (:mod:`~tricklecast.app.workers.busy`).
    """

    def __init__(self, workers: int, me: int, router: Router) -> None:
        self.workers, self.me = workers, me
        self._router = router
        self.spread: dict[str, Place] = {}
        self._beginning = re.compile(_UP_TO_NAME % re.escape(router.prefix))
        self._owners: dict[bytes, int] = {}  # by the beginning of requests: GET /trickle/NAME/

    def owner_of(self, channel: str) -> int:
        """The worker that owns a channel."""
        return owner_of(channel, self.workers)

    def worker_for(self, head: bytes | memoryview, number: int | None) -> int | None:
        """The worker that a request is for; ``None`` if more of its head is needed to tell.

        Args:
            head: the beginning of the request, at least one byte. Bytes that are no request are for this worker, which
                refuses them.
            number: of the connection. If several workers hold the channel, it picks one of them, always the same. The
                numbers of one worker's connections are ``workers`` apart. ``None``: the connection stays here, if this
                worker may answer. So it is while its first request here has not begun, if another worker has handed it
                over, and always if this worker has its TLS session: no two workers hand it to and fro.
        """
        beginning = self._beginning.match(head)
        if beginning is not None and (known := self._owners.get(beginning[0])) is not None:
            return known  # as of most: this takes a tenth of the time
        line = _LINE.match(head)
        if line is None:
            return self.me
        method, target, end = line.groups()
        if end is None and (target is None or b"?" not in target):
            # A method without a space behind it is not one yet.
            is_whole = target is None and line.end() < len(head)
            return self.me if is_whole or len(head) >= LOOK_BYTES else None
        worker = self.worker_for_target(method, target, number)
        route = None if beginning is None else self._router.find(method, target)
        if beginning is not None and route is not None and route.channel and route.channel not in self.spread:
            if len(self._owners) >= MAX_KNOWN:
                self._owners.clear()
            self._owners[beginning[0]] = worker
        return worker

    def is_ours(self, head: bytes | memoryview, at: int) -> bool:
        """Whether a request, which begins at a place of the input, is known to belong to this worker, as most do."""
        beginning = self._beginning.match(head, at)
        return beginning is not None and self._owners.get(beginning[0]) == self.me

    def worker_for_target(self, method: bytes, target: bytes, number: int | None) -> int:
        """The worker that a request of this method and target is for."""
        route = self._router.find(method, target)
        if route is not None:
            if self.spread and route.op in READS and (place := self.spread.get(route.channel)) is not None:
                return place(route, number)
            return self.owner_of(route.channel) if route.channel else self.me
        found = _OF_CHANNEL.match(unquote_to_bytes(path_of(target)))
        return FRONT if found is None else self.owner_of(found[1].decode("utf-8", "surrogateescape"))

    def hold(self, channel: str, place: Place) -> None:
        """Several workers hold a channel from now on."""
        if channel not in self.spread:
            self._owners.clear()
        self.spread[channel] = place
