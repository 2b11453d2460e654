"""What runs, since when and how late: the program, its event loop, its access log's queue."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tricklecast.app.access_log import AccessLog
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.metrics.families import PREFIX, counter, gauge, histogram_s
from tricklecast.trickle import __version__


class ServerCollector(Collector):
    """The server as a program; what the kernel knows of its process is prometheus_client's own collector's part."""

    def __init__(self, plane: DataPlane, log: AccessLog | None) -> None:
        self._plane = plane
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """As of now."""
        plane = self._plane
        build = GaugeMetricFamily(f"{PREFIX}build_info", "What runs; always 1.", labels=["version", "python", "node"])
        build.add_metric([__version__, platform.python_version(), plane.node or ""], 1)
        yield build
        draining = plane.registry.shutting_down
        yield gauge("draining", "Whether the server is going away: 1 from SIGTERM on.", draining)
        yield histogram_s("loop_lag_seconds", "How late a timer was, four times a second.", plane.loop_lag)
        yield counter("journal_facts", "Lifecycle facts so far.", plane.registry.journal.index)
        if (log := self._log) is not None:
            yield gauge("log_queue_records", "Access records that wait to be written.", log.queued)
            yield counter("log_records_written", "Access records written.", log.written)
            yield counter("log_records_dropped", "Access records dropped: the queue was full.", log.dropped)
