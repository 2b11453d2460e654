"""Placement: the worker that a request is for, found from the first bytes of its head.

A checksum of a channel's name gives its owner. Channels of a ladder (``cam``, ``cam_720p``) have the same one: one
process publishes them (:mod:`app.sources`), and a player changes between them. So each worker knows the owner of every
channel and asks nobody, and the owner stays the same after a restart with the same number of workers. All requests that
name no channel (the API, metrics, web pages) are for worker 0, the *front*. It also owns the server's own channels,
whose names begin with ``_``.

The worker looks at a request before it parses it, since the connection can move only then, with all bytes that it has
brought (:mod:`~tricklecast.app.workers.handover`). The method, a space and the target up to the end of the channel's
name are enough. They are the same for most requests of a connection, so a table keeps the owners by these bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_to_bytes
from zlib import crc32

from tricklecast.app.data_plane.held import READS
from tricklecast.app.data_plane.routing import Route, Router, path_of
from tricklecast.trickle.media.ladder import ladder_name
from tricklecast.trickle.paths import is_reserved

FRONT: Final = 0
"""The number of the worker that answers for all."""

LOOK_BYTES: Final = 9 << 10
"""No URL may be longer. A request whose target does not end within this number of bytes stays here, and is refused."""

Choose = Callable[[Route, int | None], int]
"""Chooses the worker for a request that reads a busy channel. The number is as in :meth:`Placement.worker_for`."""

MAX_KNOWN: Final = 4096
"""Beginnings of requests whose owners are kept; each takes 0.2 kB."""

_UP_TO_NAME: Final = rb"[A-Za-z-]{1,32} %b[^/? \r\n]+/"
"""The beginning of a request for a segment, up to its channel's name. ``%b`` is the path of all channels."""

_LINE: Final = re.compile(rb"[\r\n]*([A-Za-z-]{1,32})(?: +([^ \r\n]*)( |\r|\n)?)?")
"""The beginning of a request, as the parser takes it: method, target, and the byte behind the target, if they are there
already."""

_OF_CHANNEL: Final = re.compile(rb"/api/v1/channels/([^/]+)")
"""The path of a route of the API that names a channel, percent-decoded."""


def owner_of(channel: str, workers: int) -> int:
    """The number of the worker that owns a channel, from 0."""
    if is_reserved(channel):
        return FRONT
    return crc32(ladder_name(channel).encode("utf-8", "surrogateescape")) % workers


def owned_by(worker: int, workers: int) -> Callable[[str], bool]:
    """A function that tells whether this worker owns a channel."""
    return lambda channel: owner_of(channel, workers) == worker


class Placement:
    """Finds the worker that a request is for.

    Args:
        workers: how many there are. me: this worker's number.
        router: of the data plane.

    Attributes:
        choices: functions that choose the worker, for busy channels that this one and others hold, by channel
            (:mod:`~tricklecast.app.workers.busy`).
    """

    def __init__(self, workers: int, me: int, router: Router) -> None:
        self.workers, self.me = workers, me
        self._router = router
        self.choices: dict[str, Choose] = {}
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
                numbers of one worker's connections are ``workers`` apart. ``None``: the connection stays here if this
                worker may answer. Otherwise two workers could hand it to and fro. A connection that was handed over has
                ``None`` until its first request here has begun; one whose TLS session is here always has.
        """
        beginning = self._beginning.match(head)
        if beginning is not None and (known := self._owners.get(beginning[0])) is not None:
            return known  # of most requests; ten times as fast as the rest
        line = _LINE.match(head)
        if line is None:
            return self.me
        method, target, end = line.groups()
        if end is None and (target is None or b"?" not in target):
            # The target may go on. It cannot if there is none: behind the method comes something else than a space.
            is_no_request = target is None and line.end() < len(head)
            return self.me if is_no_request or len(head) >= LOOK_BYTES else None
        worker = self.worker_for_target(method, target, number)
        route = None if beginning is None else self._router.find(method, target)
        if beginning is not None and route is not None and route.channel and route.channel not in self.choices:
            if len(self._owners) >= MAX_KNOWN:
                self._owners.clear()
            self._owners[beginning[0]] = worker
        return worker

    def is_ours(self, head: bytes | memoryview, at: int) -> bool:
        """Whether the request that begins here in the input is known to be for this worker, as most are."""
        beginning = self._beginning.match(head, at)
        return beginning is not None and self._owners.get(beginning[0]) == self.me

    def worker_for_target(self, method: bytes, target: bytes, number: int | None) -> int:
        """The worker that a request of this method and target is for."""
        route = self._router.find(method, target)
        if route is not None:
            if self.choices and route.op in READS and (choose := self.choices.get(route.channel)) is not None:
                return choose(route, number)
            return self.owner_of(route.channel) if route.channel else self.me
        found = _OF_CHANNEL.match(unquote_to_bytes(path_of(target)))
        return FRONT if found is None else self.owner_of(found[1].decode("utf-8", "surrogateescape"))

    def set_choice(self, channel: str, choose: Choose) -> None:
        """Let this function choose among the workers that hold a channel, until its entry of ``choices`` is removed."""
        if channel not in self.choices:
            self._owners.clear()
        self.choices[channel] = choose
