"""Prometheus metrics, from statistics() at the moment of the scrape: nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.access_log import AccessLog
from app.data_plane.plane import DataPlane


class PlaneCollector(Collector):
    """Reads the registry's statistics and the plane's counters."""

    def __init__(self, plane: DataPlane, log: AccessLog | None) -> None:
        self._plane = plane
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        plane, statistics = self._plane, self._plane.registry.statistics()
        live = [channel for channel in statistics.channels if not channel.ended]
        yield _gauge("channels", "Channels that are live.", len(live))
        yield _gauge(
            "channels_draining",
            "Channels that have ended and are still readable.",
            len(statistics.channels) - len(live),
        )
        yield _gauge("readers", "Exchanges reading a segment, waiting ones included.", statistics.readers)
        yield _gauge(
            "preconnects", "Publishers that are connected and have not begun their segment.", len(plane.preconnects)
        )
        yield _gauge("connections", "Open connections.", len(plane.connections))
        yield _gauge("stalled_connections", "Connections whose peer does not read.", len(plane.stalled))
        yield _gauge("held_bytes", "Body bytes held over all channels.", statistics.bytes_held)
        yield _gauge(
            "segments_kept",
            "Closed segments kept over all channels.",
            sum(channel.segments for channel in statistics.channels),
        )
        yield _counter("journal_facts", "Lifecycle facts so far.", statistics.journal_index)
        yield _counter("received_bytes", "Body bytes published.", plane.bytes_in)
        yield _counter("sent_bytes", "Body bytes delivered.", plane.bytes_out)
        exchanges = CounterMetricFamily(
            "tricklecast_exchanges", "Requests that have ended.", labels=["op", "status", "reason"]
        )
        for (op, status, reason), n in plane.exchanges.items():
            exchanges.add_metric([op, str(status), reason], n)
        yield exchanges
        if self._log is not None:
            yield _counter("log_records_written", "Access records written.", self._log.written)
            yield _counter("log_records_dropped", "Access records dropped: the queue was full.", self._log.dropped)


def metrics_router(plane: DataPlane, log: AccessLog | None) -> APIRouter:
    """``/metrics`` in Prometheus' text format."""
    router = APIRouter(tags=["metrics"])
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PlaneCollector(plane, log))

    @router.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tricklecast_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"tricklecast_{name}", text, value=value)
