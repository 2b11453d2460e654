"""Clocks that were set back while a node was running, as far as a roll-up can tell.

Publishers number their segments in the order of time. Where a clock was set back, two stretches of time share the same
stamps: for as long as it was set back by, each channel's posts are those of two times at once, in turn. So, within a
bucket, seqs lie far apart, and the lowest of them are older than the highest of the bucket before. One publisher can
cause that by itself (it posts again); all publishers of a node at once cannot. Hence: at least :data:`CHANNELS`
channels, :data:`TOGETHER` of all that were posted to, for at least :data:`BUCKETS` buckets in a row.

What cannot be told without false alarms: steps shorter than that (about half a minute); nodes with fewer publishers; a
clock that was set forward (it looks like a pause); two nodes that disagree (nothing in a log is stamped by both).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import GRAINS, Answer
from tricklecast.analytics.durations import micros
from tricklecast.analytics.report_old.figures import ClockStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tricklecast.analytics.metrics.parts import Row

CHANNELS: Final = 3
TOGETHER: Final = 0.9
BUCKETS: Final = 2

IN_FLIGHT: Final = 8
"""Seqs by which a publisher's requests may overtake one another: ours has three in flight."""

MAX_ROWS: Final = 10_000
BUCKET_US: Final = micros(GRAINS[Answer.POST].bucket_s)


def scattered(rollup: DataFrame) -> DataFrame:
    """Buckets in which the seqs posted to nearly all channels of a node lie further apart than there are posts.

    Returns:
        ``node``, ``bucket_us``, ``channels``, and the means ``lo`` and ``hi`` of their lowest and highest seqs.
    """
    posts = rollup.where((F.col("answer") == Answer.POST.value) & F.col("seq_lo").isNotNull())
    apart = F.col("seq_hi") - F.col("seq_lo") >= F.col("n") + IN_FLIGHT
    buckets = posts.groupBy("node", "bucket_us").agg(
        F.sum(F.when(apart, 1).otherwise(0)).alias("apart"),
        F.count(F.lit(1)).alias("channels"),
        F.avg(F.when(apart, F.col("seq_lo"))).alias("lo"),
        F.avg(F.when(apart, F.col("seq_hi"))).alias("hi"),
    )
    together = (F.col("apart") >= CHANNELS) & (F.col("apart") >= TOGETHER * F.col("channels"))
    found = buckets.where(together).select("node", "bucket_us", "channels", "lo", "hi")
    return found.orderBy("bucket_us", "node").limit(MAX_ROWS)


def clock_steps(rows: Iterable[Row]) -> tuple[ClockStep, ...]:
    """The collected rows of :func:`scattered`: one step per uninterrupted stretch that is long enough.

    The stretch is as long as the clock was set back by, to within a bucket or two. Where publishers skip seqs, as under
    a heavy load, they lie apart, too; but then each bucket's are all newer than those of the one before.
    """
    stretches: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (row["node"] or "", row["bucket_us"])):
        if stretches and _continues(stretches[-1][-1], row):
            stretches[-1].append(row)
        else:
            stretches.append([row])
    return tuple(
        ClockStep(stretch[0]["node"], stretch[0]["bucket_us"], -len(stretch) * BUCKET_US / 1e6)
        for stretch in stretches
        if len(stretch) >= BUCKETS
    )


def _continues(before: Row, row: Row) -> bool:
    adjacent = row["node"] == before["node"] and row["bucket_us"] - before["bucket_us"] == BUCKET_US
    # Means over channels can be compared as long as those are the same ones; their number is a good sign of it.
    return bool(adjacent and row["channels"] == before["channels"] and row["lo"] < before["hi"] < row["hi"])
