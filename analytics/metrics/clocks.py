"""Clocks that were set back while a node was running, as far as a roll-up can tell.

Publishers number their segments in the order of time. Where a clock was set back, two stretches of time share the same
stamps: for as long as it was set back by, each channel's posts are those of two times at once, in turn. So, within a
bucket, seqs lie far apart, and the lowest of them is older than what was posted in the bucket before. One publisher
can cause that by itself (it posts again); all publishers of a node at once cannot. Hence: at least :data:`CHANNELS`
channels, :data:`TOGETHER` of all that were posted to, for at least :data:`BUCKETS` buckets in a row.

What cannot be told without false alarms: steps shorter than that (about half a minute); nodes with fewer publishers; a
clock that was set forward (it looks like a pause); two nodes that disagree (nothing in a log is stamped by both).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.answers import GRAINS, Answer
from analytics.params import micros
from analytics.report.figures import ClockStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.metrics.parts import Row

CHANNELS: Final = 3
TOGETHER: Final = 0.9
BUCKETS: Final = 2

IN_FLIGHT: Final = 8
"""Seqs by which a publisher's requests may overtake one another: ours has three in flight."""

MAX_ROWS: Final = 10_000
BUCKET_US: Final = micros(GRAINS[Answer.POST].bucket_s)


def overlaps(rollup: DataFrame) -> DataFrame:
    """Buckets in which a node's channels were all posted to from two times: ``node``, ``bucket_us``."""
    posts = rollup.where((F.col("answer") == Answer.POST.value) & F.col("seq_lo").isNotNull())
    channels = posts.groupBy("node", "channel", "bucket_us").agg(
        F.min("seq_lo").alias("lo"), F.max("seq_hi").alias("hi"), F.sum("n").alias("n")
    )
    ordered = Window.partitionBy("node", "channel").orderBy("bucket_us")
    earlier = F.lag("hi").over(ordered)
    apart = (F.col("lo") < earlier - IN_FLIGHT) & (F.col("hi") > earlier) & (F.col("hi") - F.col("lo") >= F.col("n"))
    marked = channels.withColumn("apart", F.when(apart, 1).otherwise(0))
    buckets = marked.groupBy("node", "bucket_us").agg(
        F.sum("apart").alias("apart"), F.count(F.lit(1)).alias("channels")
    )
    together = (F.col("apart") >= CHANNELS) & (F.col("apart") >= TOGETHER * F.col("channels"))
    return buckets.where(together).orderBy("bucket_us", "node").limit(MAX_ROWS).select("node", "bucket_us")


def clock_steps(rows: Iterable[Row]) -> tuple[ClockStep, ...]:
    """The collected rows of :func:`overlaps`: one step per uninterrupted stretch that is long enough.

    The stretch is as long as the clock was set back by, to within a bucket or two.
    """
    stretches: list[tuple[str | None, int, int]] = []
    for row in sorted(rows, key=lambda row: (row["node"] or "", row["bucket_us"])):
        node, bucket = row["node"], row["bucket_us"]
        if stretches and stretches[-1][0] == node and bucket - stretches[-1][2] == BUCKET_US:
            stretches[-1] = (node, stretches[-1][1], bucket)
        else:
            stretches.append((node, bucket, bucket))
    return tuple(
        ClockStep(node, first, -(last - first + BUCKET_US) / 1e6)
        for node, first, last in stretches
        if last - first >= (BUCKETS - 1) * BUCKET_US
    )
