"""How an episode ended: whether its clients were served afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import Answer, among
from tricklecast.analytics.durations import micros
from tricklecast.analytics.params import StormParams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tricklecast.analytics.metrics.parts import Row
    from tricklecast.analytics.report_old.model import Episode

MOST: Final = 0.5
"""An episode of many clients recovered if this share of those that were found again did."""

GOOD: Final = (Answer.SERVED, Answer.POST)
"""Answers with which a client got what it wanted."""


class Outcome(StrEnum):
    """How an episode ended."""

    RECOVERED = "recovered"
    """At least half of its clients were served, or published, afterwards: on any channel, by any node."""
    GAVE_UP = "gave_up"
    """They were not, and stopped asking."""
    ONGOING = "ongoing"
    """The log ends first."""


def served_again(rollup: DataFrame, members: DataFrame) -> DataFrame:
    """Per episode ``number``: ``clients`` it had, and how many of them were ``served`` later."""
    theirs = members.groupBy("number", "who").agg(F.max("until").alias("until"))
    served = rollup.where(among(GOOD) & F.col("client").isNotNull())
    last = served.join(F.broadcast(theirs.select("who").distinct()), F.col("client") == F.col("who"), "left_semi")
    last = last.groupBy("client").agg(F.max("last_us").alias("served_us"))
    joined = theirs.join(last, F.col("who") == F.col("client"), "left")
    later = F.sum(F.when(F.col("served_us") > F.col("until"), 1).otherwise(0))
    return joined.groupBy("number").agg(F.count(F.lit(1)).alias("clients"), later.alias("served"))


def outcomes(
    episodes: Sequence[Episode], rows: Iterable[Row], log_ends_us: int | None, params: StormParams
) -> list[Outcome]:
    """The collected rows of :func:`served_again`, one outcome per episode.

    Args:
        log_ends_us: the last line of the log; what stops shortly before it may go on.
    """
    found = {row["number"]: row for row in rows}
    return [_outcome(episode, found.get(number), log_ends_us, params) for number, episode in enumerate(episodes)]


def _outcome(episode: Episode, row: Row | None, log_ends_us: int | None, params: StormParams) -> Outcome:
    if row is not None and row["served"] >= MOST * row["clients"]:
        return Outcome.RECOVERED
    # Its usual pause is what there would have to be at least, before silence means anything.
    pause_us = max(micros(params.gap_s), 2 * (episode.end_us - episode.start_us) // max(1, episode.n - 1))
    if log_ends_us is not None and log_ends_us - episode.end_us <= pause_us:
        return Outcome.ONGOING
    return Outcome.GAVE_UP
