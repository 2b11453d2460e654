"""One scan, one ``groupBy``: millions of lines become the few thousand rows that everything else is computed from.

Cost is that of parsing. It does not depend on how many clients there are, nor on one of them sending half of the lines
(partial aggregation happens before the shuffle). Nothing after this sees a raw line, and nothing before it sorts one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from analytics.answers import GRAINS, REPEATABLE, Answer, among
from analytics.params import StormParams, micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("answer", "node", "channel", "release", "client", "event", "bucket_us")
"""What one row of the roll-up stands for; ``client`` and ``event`` are null where they do not apply."""


def roll_up(rows: DataFrame) -> DataFrame:
    """Rows of :func:`analytics.sources.normalise`, added up by :data:`KEY`.

    Returns:
        per key: ``n`` (lines), ``first_us``/``last_us`` (arrivals), ``seq_lo``/``seq_hi``, ``head_lo``/``head_hi``,
        ``conn_bits`` (see ``sources``), sums of ``bytes_in``, ``bytes_out``, ``dur_us``, ``retried`` (lines that said
        they were a retry), ``anonymous`` (without a client), the largest ``retry_after_ms``, ``present`` (fields seen).
    """
    bucketed = rows.withColumn("bucket_us", F.col("ts_us") - F.col("ts_us") % _bucket_width())
    return bucketed.groupBy(*KEY).agg(
        F.count(F.lit(1)).alias("n"),
        F.min("ts_us").alias("first_us"),
        F.max("ts_us").alias("last_us"),
        F.min("seq").alias("seq_lo"),
        F.max("seq").alias("seq_hi"),
        F.min("head").alias("head_lo"),
        F.max("head").alias("head_hi"),
        F.bit_or("conn_bit").alias("conn_bits"),
        F.try_sum("bytes_in").alias("bytes_in"),
        F.try_sum("bytes_out").alias("bytes_out"),
        F.try_sum("dur_us").alias("dur_us"),
        F.max("retry_after_ms").alias("retry_after_ms"),
        F.sum("retried").alias("retried"),
        F.sum("anonymous").alias("anonymous"),
        F.bit_or("present").alias("present"),
    )


def _bucket_width() -> Column:
    width = F.lit(micros(60))
    for answer, grain in GRAINS.items():
        width = F.when(F.col("answer") == answer.value, micros(grain.bucket_s)).otherwise(width)
    return width


def span(lo: str = "seq_lo", hi: str = "seq_hi") -> Column:
    """How many seqs lie between two columns, both included; 1 where no seq is known."""
    return F.coalesce(F.col(hi) - F.col(lo) + 1, F.lit(1))


def connections() -> Column:
    """About how many connections the lines came over: at least 1, at most ``n``; 1 where the log does not say."""
    used = F.coalesce(F.bit_count(F.col("conn_bits")), F.lit(0))
    # Linear counting: m * ln(m / empty). A full map says "many"; no more than there were requests in any case.
    estimate = F.when(used >= 64, F.col("n").cast("double")).otherwise(-64.0 * F.log(1.0 - used / F.lit(64.0)))
    return F.greatest(F.lit(1), F.least(F.col("n"), F.round(estimate).cast("long")))


def readers(params: StormParams) -> Column:
    """How many readers share this client key, as far as it matters for counting repeats.

    Several readers behind one NAT get every segment once *each*, over connections of their own. One segment asked for
    all the time, though, is a loop, even if every request opens a connection.
    """
    lasting = (F.col("last_us") - F.col("first_us")) >= micros(params.same_seq_s)
    return F.when((span() <= 2) & lasting, F.lit(1)).otherwise(connections())


def repeated_hits(params: StormParams) -> Column:
    """How often the most repeated seq can have been asked for, by one reader: ``n - span * readers + 1``."""
    return F.greatest(F.lit(0), F.col("n") - span() * readers(params) + 1)


def with_hits(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Adds ``hits``: how many of a row's lines count towards a storm."""
    return rollup.withColumn("hits", F.when(among(REPEATABLE), repeated_hits(params)).otherwise(F.col("n")))


def events_of(rollup: DataFrame) -> DataFrame:
    """The lifecycle events: ``node``, ``channel``, ``event``, ``ts_us``."""
    happened = rollup.where(F.col("answer") == Answer.EVENT.value)
    return happened.select("node", "channel", "event", F.col("first_us").alias("ts_us"))
