"""The changefeed: the server's own channel ``_changes``, one JSON object per segment."""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson

from tricklecast.app.core.events import ChannelCreated, ChannelEnded, Fact
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Verdict
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import CHANGEFEED

CONTENT_TYPE = "application/json"

logger = logging.getLogger("tricklecast.changefeed")


class Changefeed:
    """Publishes ``{"added": [name]}`` and ``{"removed": [name]}`` as channels come and go.

    A fact arises in the middle of a change, when nobody may call into the registry. So it is only noted then, and
    published by ``defer`` as soon as that change is done.

    Args:
        defer: runs a function soon, after the present change (``loop.call_soon``).
        clock: the registry's clock.
    """

    def __init__(self, defer: Callable[[Callable[[], None]], object], clock: Callable[[], float]) -> None:
        self._defer = defer
        self._clock = clock
        self._registry: Registry | None = None
        self._noted: list[dict[str, list[str]]] = []

    def start(self, registry: Registry) -> None:
        """Create the channel, so that the first reader can wait on it."""
        self._registry = registry
        registry.create(CHANGEFEED, CONTENT_TYPE, self._clock(), force=True)

    def note(self, fact: Fact) -> None:
        """A fact; most are none of the changefeed's."""
        if is_reserved(fact.channel):
            return
        match fact:
            case ChannelCreated():
                change = {"added": [fact.channel]}
            case ChannelEnded():
                change = {"removed": [fact.channel]}
            case _:
                return
        if not self._noted:
            self._defer(self._publish)
        self._noted.append(change)

    def _publish(self) -> None:
        noted, self._noted = self._noted, []
        if self._registry is not None:
            for change in noted:
                outcome = self._registry.publish_own(CHANGEFEED, CONTENT_TYPE, orjson.dumps(change), self._clock())
                if outcome is None or outcome.verdict is not Verdict.COMPLETE:
                    logger.warning("a change was not announced on %s: %s", CHANGEFEED, change)
