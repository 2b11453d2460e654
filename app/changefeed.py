"""The changefeed: the server's own channel ``_changes``, one JSON object per segment.

It has ``{"added": [name]}`` and ``{"removed": [name]}``, as channels come and go; at a node of a cluster those of all
nodes, as the directory tells of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tricklecast.app.changes import Change, Changes
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ending
from tricklecast.app.encoding import encode
from tricklecast.trickle.wire import CHANGEFEED

CONTENT_TYPE = "application/json"

logger = logging.getLogger("tricklecast.changefeed")


def create_changefeed(registry: Registry, clock: Callable[[], float]) -> Callable[[str, str], None]:
    """Create the channel, so that the first reader can wait on it.

    Returns:
        Publishes a change; its arguments are ``added`` or ``removed``, and the name. Do not call it in the middle of a
        change of the core.
    """

    def announce(kind: str, channel: str) -> None:
        change = {kind: [channel]}
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
        for fact in facts:
            if fact.kind != "closed":
                announce(fact.kind, fact.channel)

    changes.listeners.append(hear)
