"""The changefeed: the server's own channel ``_changes``, one JSON object per segment.

It has ``{"added": [name]}`` and ``{"removed": [name]}``, as channels come and go.
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


def start_changefeed(changes: Changes, registry: Registry, clock: Callable[[], float]) -> None:
    """Create the channel, so that the first reader can wait on it, and publish all changes from now on."""

    def publish(facts: Sequence[Change]) -> None:
        for fact in facts:
            if fact.kind == "closed":
                continue
            change = {fact.kind: [fact.channel]}
            try:
                outcome = registry.publish_own(CHANGEFEED, CONTENT_TYPE, encode(change), clock())
            except MemoryError:
                outcome = None  # the next change may find some
            if outcome is None or outcome.ending is not Ending.COMPLETE:
                logger.warning("a change was not announced on %s: %s", CHANGEFEED, change)

    registry.create(CHANGEFEED, CONTENT_TYPE, clock(), force=True)
    changes.listeners.append(publish)
