"""Gaps in logs and clocks that were set back, and what must not be taken for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.rollups import rolled_up
from tests.analytics.support.writer import LogWriter, us
from tricklecast.analytics.metrics.clocks import clock_steps, scattered
from tricklecast.analytics.metrics.gaps import cells, log_gaps
from tricklecast.analytics.metrics.parts import collect_parts
from tricklecast.analytics.metrics.totals import overview
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report_old.figures import ClockStep, LogGap
from tricklecast.analytics.spark import interpreted
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Node = Callable[[LogWriter], None]
NODES: dict[str, Node] = {}
HOLE = (400, 640)
"""From when to when something is missing, seconds."""


def node(make: Node) -> Node:
    """Registers a node of that name."""
    NODES[make.__name__] = make
    return make


def busy(log: LogWriter, seconds: Iterable[int]) -> None:
    """A segment each second."""
    for second in seconds:
        log.served(second, "a", "film", second)


def with_a_hole(log: LogWriter) -> None:
    """The same, for twenty minutes, with a hole."""
    busy(log, (second for second in range(1200) if not HOLE[0] < second < HOLE[1]))


@node
def file_missing(log: LogWriter) -> None:
    """A hole that nothing explains."""
    with_a_hole(log)


@node
def stopped(log: LogWriter) -> None:
    """A server that was stopped, with its publishers' channels."""
    with_a_hole(log)
    log.event(HOLE[0] + 1, Event.SERVER_STOP)


@node
def crashed(log: LogWriter) -> None:
    """A server that was killed, and started again."""
    with_a_hole(log)
    log.event(HOLE[1] - 1, Event.SERVER_START)


@node
def ended(log: LogWriter) -> None:
    """The only channel ended, and another one began later."""
    with_a_hole(log)
    log.event(HOLE[0], Event.CHANNEL_END, "film")


@node
def quiet(log: LogWriter) -> None:
    """A request every three minutes."""
    busy(log, range(0, 3600, 180))


@node
def busy_now_and_then(log: LogWriter) -> None:
    """Two minutes of traffic every five."""
    for start in range(0, 3600, 300):
        busy(log, range(start, start + 120))


def posts(log: LogWriter, channels: int, stamp: Callable[[int], int], seq: Callable[[int], int]) -> None:
    """Seven minutes of posts, one a second to each channel."""
    for second in range(420):
        for channel in range(channels):
            log.posted(stamp(second), f"pub-{channel}", f"cam-{channel}", seq(second))


@node
def set_back(log: LogWriter) -> None:
    """The clock is set back by a minute after five."""
    posts(log, 4, lambda second: second if second < 300 else second - 60, lambda second: second)


@node
def set_back_with_one_publisher(log: LogWriter) -> None:
    """The same, but one publisher could do that by itself."""
    posts(log, 1, lambda second: second if second < 300 else second - 60, lambda second: second)


@node
def begun_anew(log: LogWriter) -> None:
    """All publishers begin at 0 again, as after a restart."""
    posts(log, 4, lambda second: second, lambda second: second if second < 305 else second - 305)


@node
def skipping(log: LogWriter) -> None:
    """All publishers skip most of their segments, as under a heavy load."""
    posts(log, 4, lambda second: second, lambda second: 20 * second)


@pytest.fixture(scope="module")
def told(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[LogGap, ...], tuple[ClockStep, ...]]:
    """What is found in a log of all nodes."""
    lines: list[str] = []
    for name, make in NODES.items():
        log = LogWriter(name, random.Random(1))
        make(log)
        lines += log.lines()
    rollup = rolled_up(spark, lines, tmp_path_factory.mktemp("nodes"))
    with interpreted(spark):
        found = collect_parts({"gaps": cells(rollup, overview(rollup)), "clocks": scattered(rollup)})
    return log_gaps(found["gaps"], StormParams()), clock_steps(found["clocks"])


def test_gaps(told: tuple[tuple[LogGap, ...], tuple[ClockStep, ...]]) -> None:
    """A busy node's silence is a gap unless an event explains it, or it is its habit."""
    assert told[0] == (LogGap("file_missing", us(HOLE[0]), us(HOLE[1])),)


def test_clock_set_back(told: tuple[tuple[LogGap, ...], tuple[ClockStep, ...]]) -> None:
    """A clock that was set back is found where many publishers show it, to within two buckets of ten seconds."""
    (step,) = told[1]
    assert step.node == "set_back"
    assert us(240) <= step.at_us <= us(260)
    assert -60 <= step.skew_s <= -40


def test_short_overlaps_are_nothing() -> None:
    """One bucket alone is a restart; two in a row are a step, and another node's are another one."""
    places = (("a", 1), ("a", 5), ("a", 6), ("b", 6))
    rows = [
        {"node": name, "bucket_us": us(10 * turn), "channels": 4, "lo": turn, "hi": 9.0 + turn} for name, turn in places
    ]
    assert clock_steps(rows) == (ClockStep("a", us(50), -20.0),)
