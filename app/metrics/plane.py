"""What the data plane and the registry count, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tricklecast.app.core.limits import Limit
from tricklecast.app.data_plane.plane import DataPlane
from tricklecast.app.metrics.families import counter, counters, gauge, histogram_s, histograms_s
from tricklecast.trickle.records import Reason

_LIMIT: Final = Reason.limit("")


class PlaneCollector(Collector):
    """Sums over the channels, and the plane's counters."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        yield from self._channels()
        yield from self._exchanges()
        yield from self._latencies()

    def _channels(self) -> Iterator[Metric]:
        plane, registry = self._plane, self._plane.registry
        totals = registry.totals()
        yield gauge("channels", "Channels that are live.", totals.live)
        yield gauge("channels_draining", "Channels that have ended and are still readable.", totals.draining)
        yield gauge("segments_kept", "Closed segments kept over all channels.", totals.segments)
        yield gauge("segments_written", "Segments that are being written.", totals.writing)
        yield gauge("segments_orphaned", "Segments whose publisher has gone and may come back.", totals.orphaned)
        yield gauge(
            "preconnects", "Publishers that are connected and have not begun their segment.", totals.preconnected
        )
        yield gauge("held_bytes", "Memory that all segments take.", registry.budget.used)
        evicted = {str(why): n for why, n in registry.evictions().items()}
        closed = {str(state): float(n) for state, n in registry.journal.closed.items()}
        yield counters("segments_closed", "Segments that have closed.", "state", closed)
        yield counters("segments_evicted", "Segments that have left their windows.", "reason", evicted)
        yield gauge("readers", "Exchanges reading a segment, waiting ones included.", registry.readers)
        yield gauge("readers_waiting", "Readers of a segment that has no byte yet.", totals.waiting)
        yield gauge("connections", "Open connections.", len(plane.connections))
        yield gauge("handshakes", "TLS handshakes that are under way.", len(plane.handshakes))
        yield counter("failed_handshakes", "TLS handshakes that came to nothing.", plane.failed_handshakes)
        yield gauge("idle_connections", "Kept-alive connections between requests.", len(plane.resting))
        cut_offs = {str(why): float(n) for why, n in plane.cut_offs.items()}
        yield counters("cut_offs", "Connections that were cut off, since their peer did not read.", "reason", cut_offs)
        yield gauge("stalled_connections", "Connections whose peer does not read.", len(plane.stalled))
        yield gauge("overtaking_posts", "POSTs that wait for those that they have overtaken.", len(plane.overtaking))
        yield gauge("guarded", "Exchanges that the storm guard holds back.", len(plane.guarded))

    def _exchanges(self) -> Iterator[Metric]:
        plane = self._plane
        exchanges = CounterMetricFamily(
            "tricklecast_exchanges", "Requests that have ended.", labels=["op", "status", "reason"]
        )
        # From zero on, or the first refusals would not count as an increase.
        refusals = Counter(dict.fromkeys(map(str, Limit), 0))
        errors = 0
        for (op, status, reason), n in plane.exchanges.items():
            exchanges.add_metric([op, str(status), reason], n)
            if reason.startswith(_LIMIT):
                refusals[reason.removeprefix(_LIMIT)] += n
            elif reason == Reason.ERROR:
                errors += n
        yield exchanges
        yield counters("refusals", "Requests refused by a limit.", "limit", dict(refusals))
        yield counter("errors", "Requests that ended in a fault of the server.", errors)
        yield counter("guard_holds", "Answers that the storm guard held back.", plane.holds)
        yield counter("guard_held_seconds", "For how long it held them back, altogether.", plane.held_us / 1e6)
        yield counter("guard_unheld", "Answers that it let go, since it held too many.", plane.unheld)
        yield counter("received_bytes", "Body bytes published.", plane.bytes_in)
        yield counter("sent_bytes", "Body bytes delivered.", plane.bytes_out)

    def _latencies(self) -> Iterator[Metric]:
        latencies = self._plane.latencies
        yield histograms_s(
            "wait_seconds",
            "Arrival of a request to the first byte of its answer, whatever it waited for.",
            "op",
            latencies.waits,
        )
        yield histogram_s(
            "first_byte_seconds",
            "First byte of a segment published, to its way to a reader that waited for it.",
            latencies.first_byte,
        )
        yield histogram_s(
            "delivery_seconds", "End of a segment, to its way to a reader that was there already.", latencies.delivery
        )
