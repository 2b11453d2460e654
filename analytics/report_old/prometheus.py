"""The report as a Prometheus text file, for node_exporter's textfile collector.

Everything is a gauge: a file describes one run over one log, and the next run replaces it. The sets of labels are
bounded whatever is in the log: classes and severities all of them, always (so that an alert can ask for zero), names of
nodes, channels and releases the worst :data:`MAX_SERIES` each, cut at :data:`MAX_LABEL` characters.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry, Gauge

    from tricklecast.analytics.report_old.figures import Share
    from tricklecast.analytics.report_old.model import Report

PREFIX: Final = "tricklecast_storms_"
MAX_SERIES: Final = 20
MAX_LABEL: Final = 128


def as_prometheus(report: Report) -> str:
    """The report in the Prometheus text format, version 0.0.4."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    _episodes(report, registry)
    for name, (meaning, value) in (_figures(report) | _success(report)).items():
        if value is not None:  # a gauge that is not there says that it is not known; 0 would be a lie
            _gauge(registry, name, meaning).set(value)
    for label, shares in (("node", report.by_node), ("channel", report.by_channel), ("release", report.by_release)):
        _shares(label, shares, registry)
    text: str = generate_latest(registry).decode()
    return text


def _gauge(registry: CollectorRegistry, name: str, meaning: str, labels: Iterable[str] = ()) -> Gauge:
    from prometheus_client import Gauge

    return Gauge(PREFIX + name, meaning, list(labels), registry=registry)


def _episodes(report: Report, registry: CollectorRegistry) -> None:
    """Of the episodes that the report lists; ``episodes_found`` has their true number."""
    listed = Counter((episode.storm, episode.severity) for episode in report.episodes)
    hits: Counter[tuple[StormClass, Severity]] = Counter()
    for episode in report.episodes:
        hits[episode.storm, episode.severity] += episode.hits
    labels = ("class", "severity")
    episodes = _gauge(registry, "episodes", "Retry storms listed in the report.", labels)
    requests = _gauge(registry, "episode_hits", "Requests too many, in the listed storms.", labels)
    for storm in StormClass:
        for severity in Severity:
            episodes.labels(storm.value, severity.value).set(listed[storm, severity])
            requests.labels(storm.value, severity.value).set(hits[storm, severity])


def _figures(report: Report) -> dict[str, tuple[str, float | None]]:
    totals, quality = report.totals, report.quality
    seconds = [None if us is None else us / 1e6 for us in (totals.first_us, totals.last_us)]
    worst = report.worst_minute
    return {
        "episodes_found": ("Retry storms found, listed or not.", report.n_episodes),
        "log_start_timestamp_seconds": ("First arrival or event in the log.", seconds[0]),
        "log_end_timestamp_seconds": ("Last arrival or event in the log.", seconds[1]),
        "requests": ("Exchanges in the log.", totals.requests),
        "repeats": ("Requests that asked again for what had been asked for.", totals.repeats),
        "amplification_ratio": ("Requests per wanted request.", totals.amplification),
        "worst_minute_amplification_ratio": (
            "Requests per wanted request in the worst minute of a busy node.",
            None if worst is None else worst.amplification,
        ),
        "sent_bytes": ("Body bytes sent.", totals.bytes_out),
        "budget_breaks": ("Minutes in which retries exceeded their budget.", report.n_budget_breaks),
        "log_lines": ("Lines of the log that are not blank.", quality.lines),
        "log_lines_unparsable": ("Lines that are no record.", quality.unparsable),
        "log_lines_duplicate": ("Lines that were there more than once.", quality.duplicates),
        "log_records_dropped_events": ("Events that report records lost by the server.", quality.dropped),
        "log_gaps": ("Stretches without lines on a busy node.", len(quality.gaps)),
    }


def _success(report: Report) -> dict[str, tuple[str, float | None]]:
    success = report.success
    if success is None:
        return {}
    return {
        "first_try_success_ratio": ("Wanted requests that succeeded at once.", success.first_try),
        "eventual_success_ratio": ("Wanted requests that succeeded in the end.", success.eventual),
        "goodput_ratio": ("Share of the body bytes sent that were wanted.", success.goodput),
        "wasted_bytes": ("Body bytes sent for repeats.", success.wasted_bytes),
        "wasted_handler_seconds": ("Seconds of handling repeats.", success.wasted_handler_s),
    }


def _shares(label: str, shares: tuple[Share, ...], registry: CollectorRegistry) -> None:
    """Cut names can meet: what they stand for is added up, so that no series is there twice."""
    sums: dict[str, tuple[int, int]] = {}
    for share in shares[:MAX_SERIES]:
        name = _label(share.name)
        requests, repeats = sums.get(name, (0, 0))
        sums[name] = requests + share.requests, repeats + share.repeats
    requests_of = _gauge(registry, f"{label}_requests", f"Exchanges per {label}, the most wasteful ones.", [label])
    repeats_of = _gauge(registry, f"{label}_repeats", f"Repeats per {label}, the most wasteful ones.", [label])
    for name, (requests, repeats) in sums.items():
        requests_of.labels(name).set(requests)
        repeats_of.labels(name).set(repeats)


def _label(name: str | None) -> str:
    """A value that survives UTF-8 and stays on one line of any tool; empty where the log does not say."""
    shown = (name or "")[:MAX_LABEL].encode("utf-8", "replace").decode()
    return "".join(char if char.isprintable() else "?" for char in shown)
