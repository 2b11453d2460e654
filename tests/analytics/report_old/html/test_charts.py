"""Axes and drawings: everything is where it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analytics.support.sample_report import at, sample_episode, sample_report
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report.scale import MAX_TICKS, TimeAxis, round_top, thinned
from tricklecast.analytics.report_old.figures import Marker, RateRatio, Sparkline, Timeline
from tricklecast.analytics.report_old.html.bars import bar, interval, reach
from tricklecast.analytics.report_old.html.charts import (
    MAX_BARS,
    MAX_FLAGS,
    MAX_LANES,
    MAX_POINTS,
    flagged,
    grouped,
    sparkline,
    timeline,
)

AXIS = TimeAxis(at(0), at(100))


@pytest.mark.parametrize(("second", "place"), [(0, 0.0), (25, 25.0), (100, 100.0), (-5, 0.0), (200, 100.0)])
def test_places(second: float, place: float) -> None:
    """Moments are percentages of the axis; what is outside stands at its ends."""
    assert AXIS.at(at(second)) == place
    assert AXIS.holds(at(second)) is (0 <= second <= 100)


@given(st.integers(0, 4 * 10**15), st.integers(1, 10**15))
def test_ticks(start: int, length: int) -> None:
    """An axis of any length has a handful of ticks, in order and on it."""
    ticks = TimeAxis(start, start + length).ticks()
    places = [place for place, _ in ticks]
    assert len(ticks) <= MAX_TICKS + 1
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)


@pytest.mark.parametrize(
    ("length_s", "labels"),
    [
        (1, ["08:53:20.0", "08:53:20.2", "08:53:20.4", "08:53:20.6", "08:53:20.8", "08:53:21.0"]),
        (60, ["08:53:20", "08:53:30", "08:53:40", "08:53:50", "08:54:00", "08:54:10", "08:54:20"]),
        (2400, ["09:00", "09:10", "09:20", "09:30"]),
        (400_000, ["10-10", "10-11", "10-12", "10-13", "10-14"]),
    ],
)
def test_labels(length_s: float, labels: list[str]) -> None:
    """Ticks are at round times, written as finely as they are apart."""
    assert [label for _, label in TimeAxis(at(0), at(length_s)).ticks()] == labels


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (0.3, 0.3), (0.95, 1), (1, 1), (1.1, 1.2), (7, 8), (95, 100), (111, 120), (5976, 6000)]
)
def test_round_tops(highest: float, top: float) -> None:
    """An axis ends at a round number not far above the highest value."""
    assert round_top(highest) == pytest.approx(top)


@given(st.floats(0.001, 1e12))
def test_tops_hold(highest: float) -> None:
    """Whatever the highest value, it fits, and fills at least half of the drawing unless it is tiny."""
    assert highest <= round_top(highest) <= max(2 * highest, 0.1) * 1.001


def test_thinning() -> None:
    """Of steps that are drawn as one the highest is kept: a peak does not vanish."""
    assert thinned((1, 2, 3), 10) == (1, [1, 2, 3])
    assert thinned((1, 9, 3, 4, 5), 3) == (2, [9, 4, 5])
    assert thinned((), 3) == (1, [])


def test_flags_do_not_cover_each_other() -> None:
    """Events that are close together share a flag, which names the first and the last of them."""
    markers = [Marker(at(second), "config", None, None) for second in (1, 2, 3, 50, 90, 99, 100)]
    assert [(first, last) for first, last, _ in grouped(markers, AXIS)] == [(1, 3), (4, 4), (5, 5), (6, 7)]


def test_which_events_have_flags() -> None:
    """Of too many events, those that storms followed, then the servers' own; in order of time."""
    created = tuple(Marker(at(second), "channel_create", "n1", f"c{second}") for second in range(100))
    events = (*created[:50], Marker(at(50), "drain", "n1", None), *created[50:])
    storm = sample_episode(trigger="channel_create", trigger_us=at(99))
    flags = flagged(Timeline(at(0), 1_000_000, (), (), (), events, 101), [storm])
    assert flags == [*created[: MAX_FLAGS - 2], events[50], created[99]]
    few = Timeline(at(0), 1_000_000, (), (), (), events[:3], 3)
    assert flagged(few, [storm]) == list(created[:3])


def test_timeline() -> None:
    """Three curves, one flag for each group of events, and one bar for each storm that leads to it."""
    report = sample_report()
    assert report.timeline is not None
    drawn = timeline(report.timeline, report.episodes)
    assert drawn.count("<path") == 3
    assert drawn.count('class="flag"') == 3
    for episode in report.episodes:
        assert f'href="#e-{episode.id}"' in drawn


def test_timeline_of_many() -> None:
    """Steps are thinned, bars are limited in number and in rows, however many there are."""
    steps = tuple(range(100_000))
    data = Timeline(at(0), 1_000_000, steps, steps, steps, (), 0)
    storms = [sample_episode(start_us=at(0), end_us=at(50_000 + turn)) for turn in range(MAX_BARS * 2)]
    drawn = timeline(data, storms)
    assert drawn.count("h1") + drawn.count("V") < 12 * MAX_POINTS
    assert drawn.count("<a ") == MAX_LANES


def test_timeline_of_nothing() -> None:
    """A minute without a request is a flat line, not a division by zero."""
    assert "<path" in timeline(Timeline(at(0), 1_000_000, (0, 0), (0, 0), (0, 0), (), 0), ())


def drawn_sparkline(**fields: object) -> str:
    """A sparkline of the sample's episode with some fields changed."""
    return sparkline(replace(sample_episode(), **fields), StormParams(), 300) or ""  # type: ignore[arg-type]


def test_sparkline() -> None:
    """It has the rate from which it is a storm, the trigger as a line where it was, and says what it shows."""
    drawn = drawn_sparkline()
    assert "critical from 10/s" in drawn
    assert "channel_end, 09:18:19" in drawn
    assert "<title>Requests, 09:18:20 to 09:18:29 UTC, in steps of 1.0 s</title>" in drawn


def test_sparkline_with_a_trigger_far_away() -> None:
    """An event that is too far away is an arrow towards it: the curve is not squeezed."""
    before, after = drawn_sparkline(trigger_us=at(1400)), drawn_sparkline(trigger_us=at(1600))
    assert "\N{LEFTWARDS ARROW} channel_end, 09:16:40" in before
    assert "\N{RIGHTWARDS ARROW} channel_end, 09:20:00" in after
    assert 'class="event"><text' in before


def test_sparkline_of_a_fleet() -> None:
    """The threshold of one client says nothing about many."""
    assert "critical from" not in drawn_sparkline(n_clients=2)


def test_no_sparkline() -> None:
    """Without counts there is no drawing."""
    assert drawn_sparkline(sparkline=None) == drawn_sparkline(sparkline=Sparkline(at(0), 1_000_000, ())) == ""


def test_one_request_is_seen() -> None:
    """One request beside thousands is drawn as something."""
    drawn = drawn_sparkline(sparkline=Sparkline(at(1500), 1_000_000, (100_000, 1, 0)))
    assert "V98h1V99" in drawn


def test_bars() -> None:
    """A bar is as long as its share, begins where the ones above end, and never leaves its cell."""
    assert 'width="25.00%"' in bar(0.25)
    assert 'x="50.00%" width="25.00%"' in bar(0.25, 0.5)
    assert 'width="100.00%"' in bar(7.0)
    assert "rest" not in bar(0.25)


def ratio(value: float | None, lo: float | None, hi: float | None) -> RateRatio:
    """A ratio with its interval."""
    return RateRatio("x", 1, 2, 3, 4, value, lo, hi)


def test_intervals() -> None:
    """The dot is in the middle at 1; an open end reaches the edge; what is undefined is not drawn."""
    assert 'cx="50.0%"' in interval(ratio(1.0, 0.5, 2.0), 4.0)
    assert 'x1="26.0%" x2="74.0%"' in interval(ratio(1.0, 0.5, 2.0), 4.0)
    assert 'x2="98.0%"' in interval(ratio(None, 3.0, None), 4.0)
    assert "circle" not in interval(ratio(None, None, None), 4.0)
    assert interval(ratio(None, None, None), 4.0).count("<line") == 1


def test_reach() -> None:
    """An axis reaches beyond what is on it, at least to twice, and not without end."""
    assert reach([]) == pytest.approx(2.2)
    assert reach([ratio(8.0, 0.05, None)]) == pytest.approx(22.0)
    assert reach([ratio(1e9, None, None)]) == 1000.0
