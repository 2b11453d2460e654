"""Every limit that all clients share, and how much of it is used: under one name, so that one rule watches all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tricklecast.app.access_log import AccessLog
from tricklecast.app.core.limits import UNLIMITED
from tricklecast.app.data_plane.plane import DataPlane
from tricklecast.app.metrics.families import gauges


class Usage(NamedTuple):
    """How much of a limit is used."""

    used: float
    limit: float


class LimitsCollector(Collector):
    """The limits by the names that refusals give them."""

    def __init__(self, plane: DataPlane, log: AccessLog | None) -> None:
        self._plane = plane
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """As of now."""
        usages = self._usages()
        limits = {name: usage.limit for name, usage in usages.items()}
        used = {name: usage.used for name, usage in usages.items()}
        yield gauges("limit", "Limits that all clients share.", "limit", limits)
        yield gauges("limit_used", "How much of each limit is used.", "limit", used)
        capacities = self._plane.registry.capacities._asdict()
        closed = {name: not capacity.joinable for name, capacity in capacities.items()}
        yield gauges("limit_joins_refused", "1 while only those who go on are let in.", "limit", closed)

    def _usages(self) -> dict[str, Usage]:
        registry = self._plane.registry
        usages = {
            name: Usage(capacity.used, capacity.limit)
            for name, capacity in registry.capacities._asdict().items()
            if capacity.limit != UNLIMITED
        }
        usages["total_bytes"] = Usage(registry.budget.used, registry.budget.limit)
        if self._log is not None:
            usages["access_log_queue"] = Usage(self._log.queued, self._log.limit)
        return usages
