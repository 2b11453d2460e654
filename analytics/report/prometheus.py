"""The report as a Prometheus text file, for node_exporter's textfile collector.

Everything is a gauge: a file describes one run over one log, and the next run replaces it. Labels are classes and
severities, all of them always, so that an alert can ask for zero; no name of a log becomes a label.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.report.model import SEVERITIES
from tricklecast.analytics.rules.classes import StormClass

if TYPE_CHECKING:
    from tricklecast.analytics.report.model import Report

PREFIX: Final = "tricklecast_storms_"


def as_prometheus(report: Report) -> str:
    """The report in the Prometheus text format, version 0.0.4."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    counting = [one for one in report.incidents if one.muted is None]
    incidents = Counter((one.storm, one.severity) for one in counting)
    requests: Counter[tuple[str, str]] = Counter()
    for one in counting:
        requests[one.storm, one.severity] += one.n
    labels = ("class", "severity")
    count = Gauge(f"{PREFIX}incidents", "Incidents by the class of their root.", labels, registry=registry)
    sent = Gauge(f"{PREFIX}incident_requests", "Requests of these incidents.", labels, registry=registry)
    for storm in StormClass:
        for severity in SEVERITIES:
            count.labels(storm.value, severity.value).set(incidents[storm, severity])
            sent.labels(storm.value, severity.value).set(requests[storm, severity])
    for name, (meaning, value) in _figures(report).items():
        if value is not None:  # a gauge that is not there says that it is not known; 0 would be a lie
            Gauge(f"{PREFIX}{name}", meaning, registry=registry).set(value)
    made: str = generate_latest(registry).decode()
    return made


def _figures(report: Report) -> dict[str, tuple[str, float | None]]:
    figures, quality, worst = report.figures, report.quality, report.figures.worst_minute
    since, until = (None if us is None else us / 1e6 for us in (figures.since_us, figures.until_us))
    return {
        "muted_incidents": ("Incidents that are muted.", sum(one.muted is not None for one in report.incidents)),
        "requests": ("Requests in the log.", figures.requests),
        "failed_requests": ("Requests that were answered with an error.", figures.failures),
        "wasted_requests": ("Requests that only repeated another one.", figures.wasted_requests),
        "wasted_bytes": ("Body bytes of wasted requests.", figures.wasted_bytes),
        "wasted_handler_seconds": ("Seconds of handling wasted requests.", figures.wasted_handler_s),
        "amplification_ratio": ("Requests per wanted request.", figures.amplification),
        "worst_minute_amplification_ratio": (
            "Requests per wanted request in the worst minute of a busy server.",
            worst.amplification if worst else None,
        ),
        "log_lines": ("Lines of the log.", quality.lines),
        "log_lines_unreadable": ("Lines that are not records.", quality.unreadable),
        "log_lines_future": ("Lines with a clock that is ahead.", quality.future),
        "log_start_timestamp_seconds": ("First arrival in the log.", since),
        "log_end_timestamp_seconds": ("Last arrival in the log.", until),
    }
