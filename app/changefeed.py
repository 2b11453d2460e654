"""The changefeed: the server's own channel ``_changes``, one JSON object per segment.

It has ``{"added": [name]}`` and ``{"removed": [name]}``, as channels come and go; at a node of a cluster those of all
nodes, as the directory tells of them. Channels that come and go together share a segment: the window has few, and a
promotion of thousands would leave most names out of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from tricklecast.app.changes import Change, Changes
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ending
from tricklecast.app.encoding import encode
from tricklecast.trickle.wire import CHANGEFEED

CONTENT_TYPE = "application/json"

logger = logging.getLogger("tricklecast.changefeed")


MAX_NAMES: Final = 256
"""Names in one segment."""


def create_changefeed(registry: Registry, clock: Callable[[], float]) -> Callable[[str, Sequence[str]], None]:
    """Create the channel, so that the first reader can wait on it.

    Returns:
        Publishes a change; its arguments are ``added`` or ``removed``, and names. Do not call it in the middle of a
        change of the core.
    """

    def announce(kind: str, channels: Sequence[str]) -> None:
        for first in range(0, len(channels), MAX_NAMES):
            change = {kind: channels[first : first + MAX_NAMES]}
            try:
                outcome = registry.publish_own(CHANGEFEED, CONTENT_TYPE, encode(change), clock())
            except MemoryError:
                outcome = None  # the next change may find some
            if outcome is None or outcome.ending is not Ending.COMPLETE:
                logger.warning("a change was not announced on %s: %s", CHANGEFEED, change)

    registry.create(CHANGEFEED, CONTENT_TYPE, clock(), force=True)
    return announce


def start_changefeed(changes: Changes, registry: Registry, clock: Callable[[], float]) -> None:
    """Create the channel, and publish all changes from now on."""
    announce = create_changefeed(registry, clock)

    def hear(facts: Sequence[Change]) -> None:
        removed: list[str] = []  # told before those that were added
        added: dict[str, None] = {}  # in order

        def tell() -> None:
            announce("removed", removed)
            announce("added", list(added))
            removed.clear()
            added.clear()

        for fact in facts:
            if fact.kind == "added":
                added[fact.channel] = None
            elif fact.kind == "removed":
                if fact.channel in added:  # it has come and gone
                    tell()
                removed.append(fact.channel)
        tell()

    changes.listeners.append(hear)
