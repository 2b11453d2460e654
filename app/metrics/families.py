"""How a figure becomes a metric: the names' common beginning, and seconds from microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tricklecast.app.data_plane.latency import Histogram

PREFIX: Final = "tricklecast_"


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """A figure that goes up and down."""
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Figures that go up and down, one per value of a label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A figure that only grows; ``_total`` is added to its name."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    """Figures that only grow, one per value of a label; ``_total`` is added to the name."""
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def histogram_s(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    """A histogram of microseconds, in seconds."""
    family = HistogramMetricFamily(PREFIX + name, text)
    family.add_metric([], _buckets(histogram), sum_value=histogram.sum / 1e6)
    return family


def histograms_s(name: str, text: str, label: str, histograms: Mapping[str, Histogram]) -> HistogramMetricFamily:
    """Histograms of microseconds, in seconds, one per value of a label."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=[label])
    for key, histogram in histograms.items():
        family.add_metric([key], _buckets(histogram), sum_value=histogram.sum / 1e6)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [str(bound / 1e6) for bound in histogram.bounds] + ["+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
