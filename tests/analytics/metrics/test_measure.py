"""All figures of one log that can be worked out by hand, and how they behave when logs are put together."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.support.rollups import rolled_up
from tests.analytics.support.sample_report import sample_episode
from tests.analytics.support.writer import RELEASE, LogWriter, us, write_lines
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.divided import divided
from tricklecast.analytics.metrics.measure import Figures, figures, of_episodes, of_traffic
from tricklecast.analytics.metrics.timeline import step_width
from tricklecast.analytics.metrics.totals import Overview, overview
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report_old.figures import BudgetBreak, Marker, NodeMinute, Offender, Share
from tricklecast.analytics.spark import interpreted
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tricklecast.analytics.report_old.model import Episode

READERS = 3
BAD_MINUTE = 40.0
"""Seconds into the log: a full minute of the clock, as the minute before it is."""


def log_of(node: str, bad: str = "bad") -> LogWriter:
    """Two minutes with three readers who get a segment a second; in the second one, somebody loops at 20/s."""
    log = LogWriter(node, random.Random(1))
    for second in range(120):
        at = BAD_MINUTE - 60 + second
        for reader in range(READERS):
            # Half a millisecond for the first byte; 50 ms while the loop runs.
            wait = 500 if at < BAD_MINUTE else 50_000
            log.served(at, f"reader-{reader}", "film", second, wait_us=wait, dur_us=wait, bytes_out=1000)
    for turn in range(1200):
        log.not_found(BAD_MINUTE + turn / 20, bad, "gone", dur_us=700)
    log.event(200, Event.SERVER_STOP)
    return log


def episode_of(node: str, client: str = "bad", **fields: Any) -> Episode:
    """The loop of :func:`log_of`, as it is found."""
    return sample_episode(
        StormClass.NOT_FOUND_LOOP,
        **{"node": node, "clients": (client,), "channels": ("gone",), "n": 1200, "sparkline": None, "blast": None}
        | {"start_us": us(BAD_MINUTE), "end_us": us(BAD_MINUTE + 1199 / 20), "outcome": None, "release": RELEASE}
        | fields,
    )


def measured(rollup: DataFrame, episodes: list[Episode]) -> tuple[Overview, Figures]:
    """Both actions over a roll-up."""
    rollup.persist()
    try:
        seen = overview(rollup)
        with interpreted(rollup.sparkSession):
            params = StormParams()
            parts = divided(rollup, step_width(seen.from_us or 0, seen.to_us or 0)).settled()
            found = of_traffic(parts, seen, params) | of_episodes(parts, episodes, params)
            return seen, figures(found, seen, episodes, params)
    finally:
        rollup.unpersist()


@pytest.fixture(scope="module")
def alone(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Overview, Figures]:
    """The figures of one node."""
    return measured(rolled_up(spark, log_of("n1").lines(), tmp_path_factory.mktemp("one")), [episode_of("n1")])


@pytest.fixture(scope="module")
def pair(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """The figures of two such nodes, and of one with two requests, in one log without any order."""
    leaver = LogWriter("n3", random.Random(1))
    leaver.not_found(0, "leaver", "gone")
    leaver.abandoned(40, "leaver", "gone", 7, 0.5)
    lines = [*log_of("n1").lines(), *log_of("n2", "bad-2").lines(), *leaver.lines()]
    random.Random(7).shuffle(lines)
    everybody = tuple(f"bad-{number}" for number in range(100))
    # The second one is a crowd, of whom more than are listed: it is found by its node, channel and time.
    episodes = [episode_of("n1"), episode_of("n2", clients=everybody, n_clients=300)]
    return measured(rolled_up(spark, lines, tmp_path_factory.mktemp("two")), episodes)[1]


def test_totals(alone: tuple[Overview, Figures]) -> None:
    """Everything is counted; the loop's first request was wanted, and nothing else of it."""
    totals = alone[1].totals
    assert (totals.requests, totals.repeats, totals.wanted) == (1560, 1199, 361)
    assert totals.amplification == pytest.approx(1560 / 361)
    assert totals.by_answer == {"not_found": 1200, "served": 360}
    assert (totals.bytes_out, totals.nodes) == (360_000, 1)
    assert (totals.first_us, totals.last_us) == (us(-20), us(200))
    assert totals.handler_s == pytest.approx(180 * 0.0005 + 180 * 0.05 + 1200 * 0.0007)


def test_success(alone: tuple[Overview, Figures]) -> None:
    """One of 361 wanted requests was refused, and its client was never answered; no byte was wasted, but time was."""
    success = alone[1].success
    assert success.first_try == success.eventual == pytest.approx(360 / 361)
    assert success.retry_ratio == pytest.approx(1199 / 361)
    assert (success.goodput, success.wasted_requests, success.wasted_bytes) == (1.0, 1199, 0)
    assert success.wasted_handler_s == pytest.approx(1199 * 0.0007)


def test_giving_up_is_no_answer(pair: Figures) -> None:
    """Who was refused, and later gives up waiting, was not answered in the end."""
    wanted = 2 * 361 + 2
    assert pair.success.first_try == pair.success.eventual == pytest.approx((wanted - 3) / wanted)


def test_minute_and_budgets(alone: tuple[Overview, Figures]) -> None:
    """The bad minute is the worst, and breaks the budgets of the node and of the client."""
    figures, minute = alone[1], us(BAD_MINUTE)
    assert figures.worst_minute == NodeMinute("n1", minute, 1380, 1199)
    assert figures.budget_breaks == (
        BudgetBreak("client", "bad", minute, 1200, 1199),
        BudgetBreak("node", "n1", minute, 1380, 1199),
    )
    assert figures.n_budget_breaks == 2


def test_shares(alone: tuple[Overview, Figures]) -> None:
    """Where the traffic was wasted, the worst first."""
    figures = alone[1]
    assert figures.by_node == (Share("n1", 1560, 1199, 360_000, 0, 4),)
    assert figures.by_channel == (Share("gone", 1200, 1199, 0, 0, 1), Share("film", 360, 0, 360_000, 0, 3))
    assert figures.by_release == (Share(RELEASE, 1560, 1199, 360_000, 0, 4),)


def test_offenders(alone: tuple[Overview, Figures]) -> None:
    """Who wasted it, and in how many episodes it is."""
    figures = alone[1]
    assert figures.offending_clients == (Offender("bad", 1199, 1.0, 1.0, 1),)
    assert figures.offending_releases == (Offender(RELEASE, 1199, 1.0, 1.0, 1),)
    assert figures.offending_networks == (Offender("192.0.2.0/24", 1199, 1.0, 1.0, 1),)


def test_timeline(alone: tuple[Overview, Figures]) -> None:
    """Each second has its requests, as far as the roll-up tells: refusals exactly, segments spread over a minute."""
    timeline = alone[1].timeline
    assert timeline is not None
    assert (timeline.start_us, timeline.step_us, len(timeline.requests)) == (us(-20), 1_000_000, 221)
    assert timeline.requests[:60] == (3,) * 60
    assert timeline.requests[60:120] == (23,) * 60
    assert timeline.failures == (0,) * 60 + (20,) * 60 + (0,) * 101
    assert timeline.hits == timeline.failures
    assert timeline.markers == (Marker(us(200), "server_stop", "n1", None),)
    assert timeline.n_markers == 1


def test_episode(alone: tuple[Overview, Figures]) -> None:
    """Its requests second by second; nobody served its client; the others waited fifty times as long meanwhile."""
    (episode,) = alone[1].episodes
    assert episode.sparkline is not None
    assert (episode.sparkline.start_us, episode.sparkline.step_us) == (us(BAD_MINUTE), 1_000_000)
    assert episode.sparkline.counts == (20,) * 60
    assert episode.outcome == "gave_up"
    assert episode.blast is not None
    assert episode.blast.healthy_clients == READERS
    # 0.5 ms is in the class that ends at 1 ms, 50 ms in that of 16 to 64 ms: 95 % of the way, geometrically.
    assert episode.blast.p95_before_ms == pytest.approx(0.25 * 4**0.95, abs=1e-3)
    assert episode.blast.p95_wait_ms == pytest.approx(16 * 4**0.95, abs=1e-3)


def test_quality(alone: tuple[Overview, Figures]) -> None:
    """The log is sound."""
    quality = alone[1].quality
    assert (quality.lines, quality.events, quality.unparsable, quality.anonymous) == (1561, 1, 0, 0)
    assert (quality.gaps, quality.clock_steps, quality.notes, quality.coarse) == ((), (), (), False)
    assert quality.missing_columns == ()


def test_figures_add_up(pair: Figures) -> None:
    """The repeats of all nodes are those of all channels, of all releases, of all clients: one definition."""
    shares = (pair.by_node, pair.by_channel, pair.by_release)
    assert {sum(share.repeats for share in kind) for kind in shares} == {pair.totals.repeats}
    assert {sum(share.requests for share in kind) for kind in shares} == {pair.totals.requests}
    assert sum(offender.repeats for offender in pair.offending_clients) == pair.totals.repeats
    assert pair.timeline is not None
    assert sum(pair.timeline.requests) == pair.totals.requests


def test_two_nodes_are_twice_one(alone: tuple[Overview, Figures], pair: Figures) -> None:
    """Sums double but for the third node's two requests, and the order of lines is nothing."""
    one = alone[1]
    assert (pair.totals.requests, pair.totals.repeats) == (2 * one.totals.requests + 2, 2 * one.totals.repeats)
    assert pair.by_node[:2] == (one.by_node[0], replace(one.by_node[0], name="n2"))
    assert pair.worst_minute == one.worst_minute
    assert pair.n_budget_breaks == 2 * one.n_budget_breaks


def test_crowd_is_found_by_place_and_time(pair: Figures) -> None:
    """An episode with more clients than it lists still has its requests over time."""
    first, second = pair.episodes
    assert first.sparkline == second.sparkline


def test_times_and_lines_that_cannot_be_trusted(spark: SparkSession, tmp_path: Path) -> None:
    """Whole seconds, dropped records, fields that are missing and a clock that was not set are said."""
    log = LogWriter("n1", random.Random(1))
    for second in range(1500):
        log.served(second, "a", "film", second, conn=None)
    log.served(-1_700_000_000, "a", "film", 1, conn=None)
    log.event(3.0, Event.LOG_DROPPED)
    seen = overview(rolled_up(spark, [*log.lines(), "no json"], tmp_path))
    quality = seen.quality()
    assert (quality.lines, quality.unparsable, quality.dropped, quality.coarse) == (1503, 1, 1, True)
    assert quality.missing_columns == ("conn",)
    assert quality.notes == ("1 of 1,503 lines are a month or more away from all others: a clock was not set",)
    assert (seen.first_us, seen.from_us, seen.to_us) == (us(-1_700_000_000), us(0), us(1499))


def test_lines_are_written(tmp_path: Path) -> None:
    """The log that all this is worked out from has as many lines as it says."""
    assert write_lines(tmp_path / "x.jsonl", log_of("n1").lines()).read_bytes().count(b"\n") == 1561
