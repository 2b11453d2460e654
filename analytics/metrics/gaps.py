"""Stretches in which a busy node wrote nothing: a file of the log is missing, or the node stood still.

Silence alone is no gap: channels end, and servers are stopped. A gap is told from silence by four things, all needed:

* the node wrote nothing for ``silence_s`` or longer;
* it had been busy just before, and was again just after: at least :data:`BUSY` lines in the ten minutes on either side;
* no lifecycle event explains it: no stop, drain or end of a channel in the last minute before it, no start in the first
  minute after it (where the log has events);
* it is not the node's habit: such pauses are fewer than one in twenty of the node's minutes, or at most two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.metrics.wanted import MINUTE_US
from analytics.params import StormParams, micros
from analytics.report.figures import LogGap
from trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from analytics.metrics.parts import Row

BUSY: Final = 100
"""Lines on either side: at the pace they stand for, two minutes without one are no chance."""

SIDE_MINUTES: Final = 10
HABIT: Final = 20
MAX_GAPS: Final = 100

_ENDS: Final = (Event.SERVER_STOP, Event.DRAIN, Event.CHANNEL_END)
_BEGINS: Final = (Event.SERVER_START, Event.SERVER_READY, Event.CHANNEL_CREATE)


def silences(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Gaps as of this module: ``node``, ``from_us``, ``to_us``; the longest, at most :data:`MAX_GAPS`."""
    ordered = Window.partitionBy("node").orderBy("minute_us")
    before, side = ordered.rowsBetween(Window.unboundedPreceding, -1), SIDE_MINUTES * MINUTE_US
    placed = _minutes(rollup).withColumns(
        {
            "from_us": F.max("last_us").over(before),
            "ended_us": F.max("ended_us").over(before),
            "ahead": F.sum("lines").over(ordered.rangeBetween(0, side)),
            # Of the minute before the pause, however long the pause is.
            "behind": F.sum("lines").over(ordered.rangeBetween(-side, 0)),
        }
    )
    known = placed.withColumn("behind", F.lag("behind").over(ordered))
    pause = F.col("first_us") - F.col("from_us")
    silent = F.when(pause >= micros(params.silence_s), 1).otherwise(0)
    habitual = F.sum("silent").over(Window.partitionBy("node")) > F.greatest(
        F.lit(2), F.count(F.lit(1)).over(Window.partitionBy("node")) / HABIT
    )
    judged = known.withColumn("silent", silent).withColumn("habitual", habitual)
    busy = (F.col("ahead") >= BUSY) & (F.col("behind") >= BUSY)
    gaps = judged.where((F.col("silent") == 1) & busy & ~_explained() & ~F.col("habitual"))
    longest = gaps.orderBy(pause.desc(), "from_us", "node").limit(MAX_GAPS)
    return longest.select("node", "from_us", F.col("first_us").alias("to_us"))


def _minutes(rollup: DataFrame) -> DataFrame:
    """Per node and minute: lines, events included, the first and the last, and the events that explain a silence."""
    minute = F.col("bucket_us") - F.col("bucket_us") % MINUTE_US
    return (
        rollup.where(F.col("first_us").isNotNull())
        .groupBy("node", minute.alias("minute_us"))
        .agg(
            F.sum("n").alias("lines"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
            F.max(F.when(_is(_ENDS), F.col("last_us"))).alias("ended_us"),
            F.min(F.when(_is(_BEGINS), F.col("first_us"))).alias("began_us"),
        )
    )


def _is(events: Iterable[Event]) -> Column:
    return F.col("event").isin(*(event.value for event in events))


def _explained() -> Column:
    ended = F.col("ended_us") >= F.col("from_us") - MINUTE_US
    began = F.col("began_us") <= F.col("first_us") + MINUTE_US
    return F.coalesce(ended, F.lit(False)) | F.coalesce(began, F.lit(False))


def log_gaps(rows: Iterable[Row]) -> tuple[LogGap, ...]:
    """The collected rows of :func:`silences`, in the order of time."""
    found = (LogGap(row["node"], row["from_us"], row["to_us"]) for row in rows)
    return tuple(sorted(found, key=lambda gap: (gap.from_us, gap.node or "")))
