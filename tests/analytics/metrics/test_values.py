"""What is made of collected rows, in plain Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analytics.support.sample_report import at, sample_episode
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.metrics import timeline
from tricklecast.analytics.metrics.blast import percentile
from tricklecast.analytics.metrics.members import answers_of
from tricklecast.analytics.metrics.minutes import budget_breaks, worst_minute
from tricklecast.analytics.metrics.outcomes import Outcome, outcomes
from tricklecast.analytics.metrics.shares import offenders, shares
from tricklecast.analytics.metrics.sparklines import MAX_STEPS, sparklines, step_width
from tricklecast.analytics.metrics.success import success
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report_old.figures import amplification

SECOND = 1_000_000


def test_amplification() -> None:
    """Requests per wanted request: 1 without traffic, all of them if none was wanted."""
    assert amplification(0, 0) == 1.0
    assert amplification(10, 0) == 1.0
    assert amplification(10, 5) == 2.0
    assert amplification(10, 10) == 10.0


def test_success_of_a_log_that_is_half_retries() -> None:
    """Ten requests, five of them wanted, of which two were refused and one of those answered later."""
    row = {"requests": 10, "repeats": 5, "refused": 2, "recovered": 1, "bytes": 100.0, "wasted_bytes": 25.0}
    told = success([row | {"wasted_us": 2e6}])
    assert (told.first_try, told.eventual, told.retry_ratio, told.goodput) == (0.6, 0.8, 1.0, 0.75)
    assert (told.wasted_requests, told.wasted_bytes, told.wasted_handler_s) == (5, 25, 2.0)


def test_success_where_nothing_was_wanted() -> None:
    """A log that begins in the middle of a storm has no wanted request, and no division by zero."""
    row = {"requests": 3, "repeats": 3, "refused": 0, "recovered": 0, "bytes": 0.0, "wasted_bytes": 0.0}
    told = success([row | {"wasted_us": 0.0}])
    assert (told.first_try, told.eventual, told.retry_ratio, told.goodput) == (1.0, 1.0, 3.0, 1.0)


def test_shares_have_an_order() -> None:
    """The most repeats first, then the most requests, then the name; no name is one, too."""
    sums = {"bytes_out": 1.0, "wasted_bytes": 0.0, "clients": 1}
    rows = [
        {"name": name, "requests": requests, "repeats": repeats} | sums
        for name, requests, repeats in (("b", 5, 0), (None, 9, 0), ("a", 5, 0), ("c", 1, 1))
    ]
    assert [share.name for share in shares(rows)] == ["c", None, "a", "b"]


def test_offenders_are_a_pareto() -> None:
    """Shares of all repeats, also of those of nobody in particular; who repeated nothing is no offender."""
    rows = [{"name": "b", "repeats": 10}, {"name": "a", "repeats": 30}, {"name": "c", "repeats": 0}]
    first, second = offenders(rows, 100, {"a": 2}, limit=5)
    assert (first.name, first.repeats, first.share, first.cumulative, first.episodes) == ("a", 30, 0.3, 0.3, 2)
    assert (second.name, second.share, second.cumulative, second.episodes) == ("b", 0.1, 0.4, 0)
    assert len(offenders(rows, 100, {}, limit=1)) == 1


def test_minutes() -> None:
    """The worst minute is the first row; broken budgets are in the order of their retries."""
    rows = [{"name": "n", "at": 60, "requests": 2000, "repeats": 900}]
    assert worst_minute([]) is None
    told = worst_minute(rows)
    assert told is not None
    assert told.amplification == pytest.approx(2000 / 1100)
    breaks = budget_breaks(rows, [{"name": "c", "at": 0, "requests": 1000, "repeats": 950}])
    assert [(one.scope, one.name, one.ratio) for one in breaks] == [("client", "c", 0.95), ("node", "n", 0.45)]


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_rounding_keeps_sums(counts: list[float]) -> None:
    """What is rounded off one step is carried to the next: the sum is right to one half, no step is negative."""
    rounded = timeline.whole(counts)
    assert len(rounded) == len(counts)
    assert abs(sum(rounded) - sum(counts)) <= 0.5 + 1e-6
    assert all(count >= 0 for count in rounded)


@given(st.integers(0, 4 * 10**15), st.integers(0, 4 * 10**15))
def test_timeline_steps(one: int, other: int) -> None:
    """However long the log: at most 300 steps, of whole seconds."""
    first, last = sorted((one, other))
    width = timeline.step_width(first, last)
    assert width % SECOND == 0
    assert last // width - first // width < timeline.MAX_STEPS


@pytest.mark.parametrize(
    ("seconds", "width"), [(0, 1), (299, 1), (300, 2), (3600, 15), (86_400, 300), (10**8, 345_600)]
)
def test_timeline_widths_are_readable(seconds: int, width: int) -> None:
    """Steps are as wide as on a clock or a calendar."""
    assert timeline.step_width(0, seconds * SECOND) == width * SECOND


@given(st.integers(0, 10**16), st.integers(0, 10**13))
def test_sparkline_steps(start: int, length: int) -> None:
    """At most 600 steps of whole seconds; up to ten minutes, of one second."""
    width = step_width(start, start + length)
    assert width % SECOND == 0
    assert (start + length - start // SECOND * SECOND) // width < MAX_STEPS
    assert width == SECOND or length > (MAX_STEPS - 1) * SECOND


def test_sparkline_has_the_episodes_sum() -> None:
    """Its shape is that of the rows, its sum that of the episode; without rows there is none."""
    episode = sample_episode(start_us=at(0.5), end_us=at(2.5), n=10)
    steps = [{"step": 0, "hits": 4.0}, {"step": 2, "hits": 1.0}]
    line, nothing = sparklines([episode, episode], [{"number": 0, "steps": steps}])
    assert line is not None
    assert (line.start_us, line.step_us, line.counts) == (at(0), SECOND, (8, 0, 2))
    assert nothing is None


@pytest.mark.parametrize(
    ("clients", "served", "log_ends", "expected"),
    [
        (2, 1, 1000.0, Outcome.RECOVERED),
        (3, 1, 1000.0, Outcome.GAVE_UP),
        (3, 1, 12.0, Outcome.ONGOING),
        (1, 1, 12.0, Outcome.RECOVERED),
    ],
)
def test_outcome(clients: int, served: int, log_ends: float, expected: Outcome) -> None:
    """Half of its clients make a recovery; with the log's end just after it, nobody knows."""
    episode = sample_episode(start_us=at(0), end_us=at(10), n=100)
    rows = [{"number": 0, "clients": clients, "served": served}]
    assert outcomes([episode], rows, at(log_ends), StormParams()) == [expected]


def test_slow_episode_goes_on_at_its_own_pace() -> None:
    """Whoever asks every minute and last did so a minute before the log's end has not given up."""
    episode = sample_episode(StormClass.NOT_FOUND_DRIP, start_us=at(0), end_us=at(3600), n=61)
    assert outcomes([episode], [], at(3700), StormParams()) == [Outcome.ONGOING]
    assert outcomes([episode], [], at(3800), StormParams()) == [Outcome.GAVE_UP]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([100, 0, 0, 0, 0, 0, 0, 0], 0.25 * 4**0.95),
        ([90, 10, 0, 0, 0, 0, 0, 0], 2.0),
        ([0, 0, 0, 0, 0, 0, 0, 1], 4000 * 4**0.95),
        ([95, 0, 0, 0, 0, 5, 0, 0], 1.0),
    ],
)
def test_percentile(counts: list[int], expected: float) -> None:
    """Interpolated in its class, whose ends are known; the last one is taken to be as wide as the others."""
    assert percentile(counts, 0.95) == pytest.approx(expected, abs=1e-3)


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8).filter(any), st.integers(0, 6))
def test_percentile_grows_with_waits(counts: list[int], place: int) -> None:
    """Whoever waits longer makes it no smaller."""
    longer = list(counts)
    longer[place], longer[place + 1] = 0, longer[place + 1] + longer[place]
    assert percentile(longer, 0.95) >= percentile(counts, 0.95) - 1e-3


def test_every_class_has_answers() -> None:
    """Each class of storm consists of some kind of answer."""
    assert all(answers_of(storm) for storm in StormClass)
