"""The two sides of a comparison, from a roll-up."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.sample_report import empty_report, sample_episode
from tests.analytics.support.writer import LogWriter, us, write_lines
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import rolled_up
from tricklecast.analytics.report_old.figures import Comparison, RateRatio, Share
from tricklecast.analytics.sides import by_date, by_logs, by_release
from tricklecast.analytics.spark import interpreted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.report_old.model import Report

MINUTES = 20
PACE = 20
"""Requests per minute of each release."""

START = 40.0
"""Seconds after the log's base: a full minute."""


@pytest.fixture(scope="module")
def log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, Report]:
    """Twenty minutes in which one release is served and another is refused every time."""
    writer = LogWriter("n1", random.Random(1))
    for step in range(MINUTES * PACE):
        writer.served(START + step * 60 / PACE, "good", "film", step, release="good/1")
        writer.not_found(START + step * 60 / PACE, "bad", "film", release="bad/2")
    path = write_lines(tmp_path_factory.mktemp("log") / "access.jsonl", writer.lines())
    rollup = rolled_up(spark, find_logs([str(path)])).localCheckpoint()
    report = empty_report()
    totals = replace(report.totals, first_us=us(START), last_us=us(START + (MINUTES * PACE - 1) * 60 / PACE))
    shares = tuple(Share(name, MINUTES * PACE, 0, 0, 0, 1) for name in ("bad/2", "good/1"))
    return rollup, replace(report, totals=totals, by_release=shares)


def ratio(found: Comparison, name: str) -> RateRatio:
    """One figure of a comparison."""
    return next(each for each in found.ratios if each.name == name)


def test_releases(spark: SparkSession, log: tuple[DataFrame, Report]) -> None:
    """The other releases against this one; an episode counts where its release is known."""
    rollup, report = log
    known = sample_episode(release="bad/2", start_us=us(START), end_us=us(START + 60), hits=50)
    mixed = sample_episode(release=None, start_us=us(START), end_us=us(START + 60), hits=70)
    with interpreted(spark):
        found = by_release(rollup, replace(report, episodes=(known, mixed)), "good/1")
    assert (found.by, found.before, found.after) == ("release", "good/1", "all other releases")
    failures, repeats = ratio(found, "failures"), ratio(found, "all repeats")
    assert (failures.before, failures.before_of, failures.after, failures.after_of) == (0, 400, 400, 400)
    assert (repeats.before, repeats.after) == (0, 399)
    assert (ratio(found, "ended_loop").before, ratio(found, "ended_loop").after) == (0, 50)


def test_a_date(spark: SparkSession, log: tuple[DataFrame, Report]) -> None:
    """Cut at the full minute; a storm on the cut is divided by time."""
    rollup, report = log
    cut = us(START + 600)
    episode = sample_episode(start_us=cut - 60_000_000, end_us=cut + 29_999_999, hits=90)
    with interpreted(spark):
        found = by_date(rollup, replace(report, episodes=(episode,)), cut + 5, "noon")
    assert (found.by, found.before, found.after) == ("date", "before noon", "after noon")
    failures = ratio(found, "failures")
    assert (failures.before, failures.before_of, failures.after, failures.after_of) == (200, 400, 200, 400)
    assert failures.ratio == 1
    assert (ratio(found, "ended_loop").before, ratio(found, "ended_loop").after) == (60, 30)


def test_other_logs(spark: SparkSession, log: tuple[DataFrame, Report]) -> None:
    """Each side with its own episodes."""
    rollup, report = log
    episode = sample_episode(start_us=us(START), end_us=us(START + 60), hits=90)
    with interpreted(spark):
        found = by_logs((rollup, report, "last week"), (rollup, replace(report, episodes=(episode,)), "these logs"))
    assert (found.by, found.before, found.after) == ("logs", "last week", "these logs")
    assert (ratio(found, "ended_loop").before, ratio(found, "ended_loop").after) == (0, 90)
    assert ratio(found, "all repeats").ratio == 1


def test_sides_that_are_not_there(spark: SparkSession, log: tuple[DataFrame, Report]) -> None:
    """It is told what there is."""
    rollup, report = log
    with interpreted(spark):
        with pytest.raises(BadInput, match="no requests of release 'good/2' in the logs; they have 'bad/2', 'good/1'"):
            by_release(rollup, report, "good/2")
        for at, side in ((us(START - 600), "before"), (us(START + 6000), "after")):
            with pytest.raises(BadInput, match=f"nothing {side} then"):
                by_date(rollup, report, at, "then")
