"""Which requests were wanted: every rule, on a channel of its own, with counts made by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tests.analytics.support.rollups import rolled_up
from tests.analytics.support.writer import LogWriter
from tricklecast.analytics.metrics.wanted import judged
from tricklecast.analytics.params import StormParams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Case = Callable[[LogWriter, str], tuple[int, int]]
CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    """Registers a case: it writes to the channel of its name, and returns requests and wanted ones."""
    CASES[make.__name__] = make
    return make


@case
def refused_once(log: LogWriter, channel: str) -> tuple[int, int]:
    """One 404 is an answer."""
    log.not_found(0, "a", channel)
    return 1, 1


@case
def refused_ten_times(log: LogWriter, channel: str) -> tuple[int, int]:
    """The first of a stretch is wanted, also across the border of a second."""
    for turn in range(10):
        log.not_found(0.7 + turn * 0.1, "a", channel)
    return 10, 1


@case
def refused_in_turns(log: LogWriter, channel: str) -> tuple[int, int]:
    """Another status is no other answer."""
    for turn in range(0, 6, 3):
        log.not_found(turn, "a", channel)
        log.missing(turn + 1, "a", channel, 9, head=3)
        log.refused(turn + 2, "a", channel)
    return 6, 1


@case
def refused_by_two_nodes(log: LogWriter, channel: str) -> tuple[int, int]:
    """Nor is another node's."""
    for turn in range(6):
        log.node = f"n{turn % 2}"
        log.not_found(turn, "a", channel)
    return 6, 1


@case
def refused_twice(log: LogWriter, channel: str) -> tuple[int, int]:
    """After a long pause it is asked anew."""
    for turn in range(3):
        log.not_found(turn, "a", channel)
        log.not_found(100 + turn, "a", channel)
    return 6, 2


@case
def drip(log: LogWriter, channel: str) -> tuple[int, int]:
    """Slow repetition is repetition."""
    for turn in range(5):
        log.not_found(20 * turn, "a", channel)
    return 5, 1


@case
def falls_behind(log: LogWriter, channel: str) -> tuple[int, int]:
    """Being told now and then where to go on is not."""
    for turn in range(5):
        log.missing(20 * turn, "a", channel, 10 * turn, head=10 * turn + 400)
    return 5, 5


@case
def given_up_ten_times(log: LogWriter, channel: str) -> tuple[int, int]:
    """One request that waits would have been answered in the end; after a pause it is asked anew."""
    for turn in range(5):
        log.abandoned(turn * 0.5, "a", channel, 7, 0.5)
        log.abandoned(10 + turn * 0.5, "a", channel, 7, 0.5)
    return 10, 2


@case
def given_up_after_waiting(log: LogWriter, channel: str) -> tuple[int, int]:
    """Long polls are asked for as often as they end."""
    for turn in range(5):
        log.abandoned(turn * 2, "a", channel, 7, 2)
    return 5, 5


@case
def given_up_and_refused(log: LogWriter, channel: str) -> tuple[int, int]:
    """Nobody is told anything by what is not answered."""
    log.abandoned(0, "a", channel, 7, 0.5)
    log.not_found(0.6, "a", channel, 7)
    return 2, 2


@case
def leaves(log: LogWriter, channel: str) -> tuple[int, int]:
    """The GET of a segment, and that of the next one."""
    for seq in (7, 8):
        log.abandoned(0, "a", channel, seq, 0.5, conn=seq)
    return 2, 2


@case
def says_so(log: LogWriter, channel: str) -> tuple[int, int]:
    """The attempt that is answered in the end is a repeat if it says that it is one."""
    log.refused(0, "a", channel)
    log.refused(10, "a", channel, attempt=2)
    log.served(20, "a", channel, 0, attempt=3)
    return 3, 1


@case
def each_segment_once(log: LogWriter, channel: str) -> tuple[int, int]:
    """Segment after segment."""
    for seq in range(30):
        log.served(seq, "a", channel, seq)
    return 30, 30


@case
def one_segment_again(log: LogWriter, channel: str) -> tuple[int, int]:
    """The same bytes five times."""
    for turn in range(5):
        log.served(turn, "a", channel, 7)
    return 5, 1


@case
def live_edge_of_another_server(log: LogWriter, channel: str) -> tuple[int, int]:
    """Where the log does not say which segment it was, nothing is known to be a repeat."""
    for turn in range(5):
        log.served(turn, "a", channel, -1, rseq=None)
    return 5, 5


@case
def two_readers_behind_one_name(log: LogWriter, channel: str) -> tuple[int, int]:
    """Each segment once for each connection."""
    for seq in range(10):
        log.served(seq, "a", channel, seq, conn=1)
        log.served(seq, "a", channel, seq, conn=2)
    return 20, 20


@case
def empty_segments(log: LogWriter, channel: str) -> tuple[int, int]:
    """Each empty segment once."""
    for seq in range(6):
        log.empty(seq, "a", channel, seq)
    return 6, 6


@case
def one_empty_segment(log: LogWriter, channel: str) -> tuple[int, int]:
    """The same nothing, once a second."""
    for turn in range(10):
        log.empty(turn, "a", channel, 3)
    return 10, 1


@case
def everybody_hears_the_end(log: LogWriter, channel: str) -> tuple[int, int]:
    """One end of channel for each reader."""
    for reader in range(40):
        log.ended(1, f"reader-{reader}", channel, 5)
    return 40, 40


@case
def one_does_not_listen(log: LogWriter, channel: str) -> tuple[int, int]:
    """After the end nothing more is to be learnt, by 200 or by 404."""
    for turn in range(4):
        log.ended(turn, "a", channel, 5)
    for turn in range(4, 8):
        log.not_found(turn, "a", channel, 5)
    return 8, 1


@case
def crowd_behind_one_name(log: LogWriter, channel: str) -> tuple[int, int]:
    """Twenty connections, one 404 each, all at once."""
    for reader in range(20):
        log.not_found(reader / 40, "nat", channel, conn=100 + reader)
    return 20, 20


@case
def published_twice(log: LogWriter, channel: str) -> tuple[int, int]:
    """Each segment is wanted once, whatever the second answer is."""
    for seq in range(5):
        log.posted(seq, "a", channel, seq)
        log.posted(seq + 0.5, "a", channel, seq, 409)
    return 10, 5


@case
def nameless_loop(log: LogWriter, channel: str) -> tuple[int, int]:
    """Without a client, refusals are those of a network."""
    for turn in range(40):
        log.exchange(turn / 10, None, channel, status=404, conn=7)
    return 40, 1


@case
def nameless_readers(log: LogWriter, channel: str) -> tuple[int, int]:
    """Without a client, segments are nobody's repetition."""
    for _ in range(5):
        log.exchange(1, None, channel, status=200, seq=3, rseq=3, bytes_out=10)
    return 5, 5


@case
def anything_else(log: LogWriter, channel: str) -> tuple[int, int]:
    """What nobody repeats in a loop is wanted, unless it says that it is not."""
    for turn in range(4):
        log.exchange(turn, "a", channel, op="next", status=200, attempt=1 + turn % 2)
    return 4, 2


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[tuple[int, int], ...]]:
    """Per case: requests and wanted ones, as the roll-up has them and as they are."""
    log = LogWriter("n0", random.Random(1))
    expected = {name: make(log, name) for name, make in CASES.items()}
    rollup = rolled_up(spark, log.lines(), tmp_path_factory.mktemp("wanted"))
    sums = judged(rollup, StormParams()).groupBy("channel")
    rows = sums.agg(F.sum("n").alias("n"), F.sum("wanted").alias("wanted"), F.min(F.col("wanted")).alias("least"))
    found = {row["channel"]: row for row in rows.collect()}
    assert all(row["least"] >= 0 for row in found.values())
    return {name: ((found[name]["n"], found[name]["wanted"]), expected[name]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_wanted(told: dict[str, tuple[tuple[int, int], ...]], name: str) -> None:
    """Requests that would not have been needed are told from those that would."""
    found, expected = told[name]
    assert found == expected
