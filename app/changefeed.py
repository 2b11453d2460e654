"""The changefeed: the server's own channel ``_changes``, one JSON object per segment."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Verdict
from tricklecast.app.encoding import encode
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import CHANGEFEED

CONTENT_TYPE = "application/json"

logger = logging.getLogger("tricklecast.changefeed")


class Changefeed:
    """Publishes ``{"added": [name]}`` and ``{"removed": [name]}`` as channels come and go.

    The registry reports a fact in the middle of a change, when it must not be called. So the changefeed keeps the fact
    and publishes it through ``defer``, when the change is done.

    Args:
        defer: calls a function after the present change (``loop.call_soon``).
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
        """Take a fact; only created and ended channels are published."""
        if is_reserved(fact.channel):
            return
        kind = {ChannelCreated: "added", ChannelEnded: "removed"}.get(type(fact))
        if kind is None:
            return
        if not self._noted:
            self._defer(self._publish)
        self._noted.append({kind: [fact.channel]})

    def _publish(self) -> None:
        noted, self._noted = self._noted, []
        if self._registry is not None:
            for change in noted:
                try:
                    outcome = self._registry.publish_own(CHANGEFEED, CONTENT_TYPE, encode(change), self._clock())
                except MemoryError:
                    outcome = None  # the next change may find some
                if outcome is None or outcome.verdict is not Verdict.COMPLETE:
                    logger.warning("a change was not announced on %s: %s", CHANGEFEED, change)
