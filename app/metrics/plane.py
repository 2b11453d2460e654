"""What the data plane and the registry count, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from app.access_log import AccessLog
from app.data_plane.plane import DataPlane
from app.metrics.families import counter, counters, gauge


class PlaneCollector(Collector):
    """Reads the registry's statistics and the plane's counters."""

    def __init__(self, plane: DataPlane, log: AccessLog | None) -> None:
        self._plane = plane
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        plane, statistics = self._plane, self._plane.registry.statistics()
        live = [channel for channel in statistics.channels if not channel.ended]
        yield gauge("channels", "Channels that are live.", len(live))
        yield gauge(
            "channels_draining",
            "Channels that have ended and are still readable.",
            len(statistics.channels) - len(live),
        )
        yield gauge("readers", "Exchanges reading a segment, waiting ones included.", statistics.readers)
        yield gauge(
            "preconnects", "Publishers that are connected and have not begun their segment.", len(plane.preconnects)
        )
        yield gauge("connections", "Open connections.", len(plane.connections))
        yield gauge("stalled_connections", "Connections whose peer does not read.", len(plane.stalled))
        yield gauge("held_bytes", "Memory that all segments take.", statistics.bytes_held)
        yield gauge(
            "segments_kept",
            "Closed segments kept over all channels.",
            sum(channel.segments for channel in statistics.channels),
        )
        yield counters(
            "segments_evicted",
            "Segments that have left their windows.",
            "reason",
            {str(why): n for why, n in statistics.evicted.items()},
        )
        yield counter("journal_facts", "Lifecycle facts so far.", statistics.journal_index)
        yield counter("received_bytes", "Body bytes published.", plane.bytes_in)
        yield counter("sent_bytes", "Body bytes delivered.", plane.bytes_out)
        exchanges = CounterMetricFamily(
            "tricklecast_exchanges", "Requests that have ended.", labels=["op", "status", "reason"]
        )
        for (op, status, reason), n in plane.exchanges.items():
            exchanges.add_metric([op, str(status), reason], n)
        yield exchanges
        if self._log is not None:
            yield counter("log_records_written", "Access records written.", self._log.written)
            yield counter("log_records_dropped", "Access records dropped: the queue was full.", self._log.dropped)
