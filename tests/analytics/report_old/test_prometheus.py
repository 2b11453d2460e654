"""The Prometheus text file: readable by Prometheus' own parser, bounded, and complete where an alert needs zero."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.analytics.support.sample_report import (
    HOSTILE,
    empty_report,
    hostile_report,
    large_report,
    quiet_report,
    sample_report,
)
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.report_old.figures import Share
from tricklecast.analytics.report_old.model import Report
from tricklecast.analytics.report_old.prometheus import MAX_LABEL, MAX_SERIES, as_prometheus


def values(report: Report) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample, by name and labels' values."""
    families = text_string_to_metric_families(as_prometheus(report))
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in families:
        assert family.type == "gauge"
        assert family.documentation.endswith(".")
        for sample in family.samples:
            key = (sample.name.removeprefix("tricklecast_storms_"), tuple(sample.labels.values()))
            assert key not in found
            found[key] = sample.value
    return found


def test_figures() -> None:
    """The figures of the report, in base units."""
    found = values(sample_report())
    assert found["episodes", ("overload_amplification", "critical")] == 1
    assert found["episodes", ("ended_loop", "warn")] == 0
    assert found["episode_hits", ("zero_byte_loop", "critical")] == 299
    assert found["episodes_found", ()] == 8
    assert found["amplification_ratio", ()] == pytest.approx(111_640 / 89_990)
    assert found["log_end_timestamp_seconds", ()] == 1_760_002_400
    assert found["wasted_handler_seconds", ()] == 4321.5
    assert found["node_repeats", ("relay-2",)] == 20_310
    assert found["release_requests", ("",)] == 3_540


def test_without_storms_every_class_is_zero() -> None:
    """An alert on a class has a series to look at before the first storm."""
    found = values(quiet_report())
    assert [found["episodes", (storm.value, "critical")] for storm in StormClass] == [0] * len(StormClass)


def test_what_is_not_known_is_absent() -> None:
    """An empty log has no times and no successes; 0 would be a lie."""
    found = values(empty_report())
    assert ("log_end_timestamp_seconds", ()) not in found
    assert ("goodput_ratio", ()) not in found
    assert found["log_lines", ()] == 0


def test_hostile_names_are_escaped_and_cut() -> None:
    """Whatever is in a name, it is one label of one line."""
    found = values(hostile_report())
    names = {labels[0] for name, labels in found if name == "channel_requests"}
    assert HOSTILE[0] in names
    assert all(len(name) <= MAX_LABEL and name.isprintable() for name in names)


def test_the_series_are_bounded() -> None:
    """A thousand channels are not a thousand series."""
    channels = tuple(Share(f"channel-{number}", 10, 5, 0, 0, 1) for number in range(1000))
    report = large_report()
    assert len(values(report)) == len(values(sample_report()))
    found = values(sample_report(by_channel=channels))
    assert len([name for name, _ in found if name == "channel_requests"]) == MAX_SERIES


def test_names_that_meet_when_they_are_cut_are_added_up() -> None:
    """A series is in the file once."""
    twins = tuple(Share("x" * 200 + end, 10, 4, 0, 0, 1) for end in "ab")
    found = values(sample_report(by_channel=twins))
    assert found["channel_repeats", ("x" * MAX_LABEL,)] == 8
    assert not [value for value in found.values() if not math.isfinite(value)]
