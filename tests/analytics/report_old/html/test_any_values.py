"""A log may say anything: whatever the values of a report, there is a page, and a report in the terminal."""

from __future__ import annotations

import io
import unicodedata
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.analytics.support.sample_report import sample_episode, sample_report
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.report_old.figures import (
    Blast,
    NodeMinute,
    Offender,
    RateRatio,
    Rhythm,
    Share,
    Sparkline,
    Success,
    Timeline,
)
from tricklecast.analytics.report_old.html import as_html
from tricklecast.analytics.report_old.model import Episode, Report
from tricklecast.analytics.report_old.terminal import print_report

COUNTS = st.integers(0, 2**63 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
FIGURES = st.floats(0, 1e300)
NAMES = st.none() | st.text(max_size=60)
STEPS = st.lists(st.integers(0, 2**40), max_size=30).map(tuple)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """An episode with figures of any size and texts of any kind."""
    return replace(
        sample_episode(draw(st.sampled_from(StormClass))),
        start_us=draw(TIMES),
        end_us=draw(TIMES),
        trigger_us=draw(st.none() | TIMES),
        n=draw(COUNTS),
        hits=draw(COUNTS),
        clients=draw(st.lists(st.text(max_size=20), max_size=3).map(tuple)),
        n_clients=draw(COUNTS),
        node=draw(NAMES),
        trigger=draw(NAMES),
        backoff=draw(NAMES),
        outcome=draw(NAMES),
        retry_after=draw(NAMES),
        seq_lo=draw(st.none() | TIMES),
        head=draw(st.none() | TIMES),
        peak_rps=draw(FIGURES),
        handler_s=draw(FIGURES),
        bytes_out=draw(COUNTS),
        rhythm=draw(st.none() | st.builds(Rhythm, COUNTS, FIGURES, FIGURES, FIGURES)),
        blast=draw(st.none() | st.builds(Blast, COUNTS, st.none() | FIGURES, st.none() | FIGURES)),
        sparkline=draw(st.none() | st.builds(Sparkline, TIMES, st.integers(1, 10**12), STEPS)),
    )


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """A report with such episodes and figures."""
    found = draw(st.lists(episodes(), max_size=3).map(tuple))
    steps = draw(STEPS)
    limit = st.none() | st.floats(0, 1e12)
    ratios = draw(st.lists(st.builds(RateRatio, st.text(), *[COUNTS] * 4, *[limit] * 3), max_size=3).map(tuple))
    comparison = sample_report().comparison
    assert comparison is not None
    return sample_report(
        episodes=found,
        n_episodes=draw(st.integers(len(found), 10**6)),
        timeline=Timeline(draw(TIMES), draw(st.integers(1, 10**12)), steps, steps, steps, (), 0),
        worst_minute=draw(st.none() | st.builds(NodeMinute, NAMES, TIMES, COUNTS, COUNTS)),
        success=draw(st.none() | st.builds(Success, *[FIGURES] * 4, COUNTS, COUNTS, FIGURES)),
        by_node=draw(st.lists(st.builds(Share, NAMES, *[COUNTS] * 5), max_size=3).map(tuple)),
        offending_clients=draw(
            st.lists(st.builds(Offender, NAMES, COUNTS, FIGURES, FIGURES, COUNTS), max_size=3).map(tuple)
        ),
        comparison=replace(comparison, ratios=ratios),
    )


@settings(max_examples=12)
@given(reports())
def test_there_is_always_a_report(report: Report) -> None:
    """No figure is too large, no time too far away, and no text too strange to be shown."""
    page = as_html(report)
    assert page.count("<details><summary>") >= len(report.episodes)
    out = io.StringIO()
    print_report(report, Console(file=out, width=100, markup=False, emoji=False, highlight=False))
    for shown in (page, out.getvalue()):
        assert {char for char in shown if unicodedata.category(char)[0] in "CZ"} <= {"\n", " "}
