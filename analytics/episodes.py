"""Islands in time: what one client kept getting, as one row per uninterrupted stretch, and which of them are storms.

The key has no seq: a client that sweeps upwards through the seqs would escape it. What several clients did to the same
channel at the same time is one episode in the end; only the report's reader would otherwise have to add it up.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.answers import FAILURES, REPEATABLE, WATCHED, Answer, among
from analytics.params import StormParams, micros
from analytics.rollup import connections, repeated_hits, with_hits

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ISLAND_KEY = ("client", "channel", "node", "release", "answer")

EPISODE = (
    "class",
    "severity",
    "node",
    "release",
    "first_us",
    "last_us",
    "n",
    "hits",
    "n_clients",
    "n_channels",
    "clients",
    "channels",
    "seq_lo",
    "seq_hi",
    "head_hi",
    "peak_rps",
    "backoff",
    "retry_after_ms",
    "gap_ms",
    "bytes_out",
    "dur_us",
    "trigger",
    "trigger_us",
)
"""Columns of a finished episode; those of one client's storms and of fleets are the same."""


class Severity(StrEnum):
    """How bad, in rising order."""

    WARN = "warn"
    CRITICAL = "critical"


def islands(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Stretches of one kind of answer to one client, with pauses of at most ``gap_s``, from the roll-up.

    Returns:
        per :data:`ISLAND_KEY` and stretch: the roll-up's figures added up, ``hits`` (lines that count), ``peak_rps``,
        and ``centre_us``, ``buckets``, ``sum_n2`` for judging the rhythm.
    """
    watched = with_hits(rollup, params).where(among(WATCHED) & F.col("client").isNotNull())
    # What was right once per seq is no signal; and this keeps healthy subscribers out of the sort below.
    signals = watched.where(~among(REPEATABLE) | (F.col("hits") > 1))
    ordered = Window.partitionBy(*ISLAND_KEY).orderBy("bucket_us")
    pause = F.col("first_us") - F.lag("last_us").over(ordered)
    started = signals.withColumn("starts", F.when(pause <= micros(params.gap_s), 0).otherwise(1))
    numbered = started.withColumn("island", F.sum("starts").over(ordered))
    joined = numbered.groupBy(*ISLAND_KEY, "island").agg(*_added_up())
    # An empty segment is right once per seq too, but its buckets are too short to tell: only the whole stretch can.
    hits = F.when(F.col("answer") == Answer.ZERO_BYTE.value, repeated_hits(params)).otherwise(F.col("hits"))
    return joined.drop("island").withColumn("hits", hits).withColumn("conns", connections())


def _added_up() -> list[Column]:
    seconds = F.greatest(F.lit(1.0), (F.col("last_us") - F.col("first_us")) / 1e6)
    middle = (F.col("first_us") + F.col("last_us")) / 2
    return [
        *sums(),
        F.sum("hits").alias("hits"),
        F.min("head_lo").alias("head_lo"),
        F.bit_or("conn_bits").alias("conn_bits"),
        F.max(F.col("hits") / seconds).alias("peak_rps"),
        (F.sum(middle * F.col("n")) / F.sum("n")).alias("centre_us"),
        F.count(F.lit(1)).alias("buckets"),
        F.sum((F.col("n") * F.col("n")).cast("double")).alias("sum_n2"),
    ]


def storms(found: DataFrame, params: StormParams) -> DataFrame:
    """The islands that are storms, with ``severity``, ``mean_rps``, ``duration_s``, ``gap_ms`` and ``backoff``."""
    timed = (
        found.withColumn("duration_s", (F.col("last_us") - F.col("first_us")) / 1e6)
        .withColumn("mean_rps", F.col("hits") / F.greatest(F.lit(1.0), F.col("duration_s")))
        .withColumn("gap_ms", F.when(F.col("n") > 1, F.col("duration_s") * 1000 / (F.col("n") - 1)))
    )
    judged = timed.withColumn("severity", severity(params)).where(F.col("severity").isNotNull() & ~_crowd(params))
    return judged.withColumn("backoff", backoff())


def severity(params: StormParams) -> Column:
    """``warn``, ``critical`` or null, on two axes: fast for a moment, or slowly for long."""
    hits, rate = F.col("hits"), F.greatest(F.col("mean_rps"), F.col("peak_rps"))
    critical = (hits >= params.critical_hits) & (rate >= params.critical_rps) | (hits >= params.critical_hits_alone)
    warn = (hits >= params.warn_hits) & (rate >= params.warn_rps) | (hits >= params.warn_hits_alone)
    return F.when(critical, Severity.CRITICAL.value).when(warn, Severity.WARN.value)


def _crowd(params: StormParams) -> Column:
    """Many clients behind one key: each of many connections asked about once, and then it was over."""
    counted = among((*FAILURES, Answer.ENDED))
    once_each = F.col("n") < params.crowd_per_conn * F.col("conns")
    return counted & once_each & (F.col("duration_s") <= params.crowd_s)


def backoff() -> Column:
    """The rhythm as far as counts per second show it: ``hot_loop``, ``exponential``, ``fixed``, ``irregular`` or null.

    An exponential back-off puts most of its requests near the beginning: their centre of gravity is early.
    """
    length = F.col("last_us") - F.col("first_us")
    centre = (F.col("centre_us") - F.col("first_us")) / F.greatest(F.lit(1), length)
    mean = F.col("n") / F.col("buckets")
    variation2 = F.col("sum_n2") / F.col("buckets") / (mean * mean) - 1
    per_second = ~among(REPEATABLE) & (F.col("buckets") >= 4)
    return (
        F.when(F.col("gap_ms") < 100, "hot_loop")
        .when(per_second & (centre < 0.35), "exponential")
        .when(per_second & (F.col("gap_ms") <= 1000) & (variation2 <= 0.09), "fixed")
        .when(per_second & (F.col("gap_ms") <= 1000), "irregular")
    )


def merge_clients(classified: DataFrame, params: StormParams) -> DataFrame:
    """Storms of one class against one channel, from one release, at the same time: one episode with all its clients.

    Args:
        classified: :func:`analytics.classes.classify`.

    Returns:
        the columns of :data:`EPISODE`.
    """
    key = ("class", "node", "channel", "release")
    ordered = Window.partitionBy(*key).orderBy("first_us", "client")
    latest = F.max("last_us").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    pause = F.col("first_us") - latest
    started = classified.withColumn("starts", F.when(pause <= micros(params.gap_s), 0).otherwise(1))
    numbered = started.withColumn("group", F.sum("starts").over(ordered.rowsBetween(Window.unboundedPreceding, 0)))
    merged = numbered.groupBy(*key, "group").agg(
        # "critical" < "warn": the worst severity is the smallest text.
        F.min("severity").alias("severity"),
        *sums(),
        F.sum("hits").alias("hits"),
        # A fleet is one row that knows its members; the others are one row per client.
        F.coalesce(F.max("n_clients"), F.size(F.collect_set("client"))).cast("long").alias("n_clients"),
        F.coalesce(F.max_by("clients", "n"), worst_names("client", params)).alias("clients"),
        F.max("n_channels").alias("fleet_channels"),
        F.max_by("channels", "n").alias("fleet_names"),
        # The clients' worst seconds need not be the same one: the sum of their means is the better bound for many.
        F.expr("greatest(max(peak_rps), sum(hits) / greatest(1.0, (max(last_us) - min(first_us)) / 1e6))").alias(
            "peak_rps"
        ),
        F.max_by("backoff", "n").alias("backoff"),
        F.max_by("gap_ms", "n").alias("gap_ms"),
        F.min_by("trigger", "trigger_us").alias("trigger"),
        F.min("trigger_us").alias("trigger_us"),
    )
    names = F.coalesce(F.col("fleet_names"), F.array_compact(F.array("channel")))
    count = F.coalesce(F.col("fleet_channels"), F.size("channels")).cast("long")
    return merged.withColumn("channels", names).withColumn("n_channels", count).select(*EPISODE)


def sums(side: str = "") -> list[Column]:
    """What is added up, or ranged over, whenever rows are put together.

    Args:
        side: the alias of the rows in a join, with its dot.
    """
    return [
        F.sum(f"{side}n").alias("n"),
        F.min(f"{side}first_us").alias("first_us"),
        F.max(f"{side}last_us").alias("last_us"),
        F.min(f"{side}seq_lo").alias("seq_lo"),
        F.max(f"{side}seq_hi").alias("seq_hi"),
        F.max(f"{side}head_hi").alias("head_hi"),
        F.try_sum(f"{side}bytes_out").alias("bytes_out"),
        F.try_sum(f"{side}dur_us").alias("dur_us"),
        F.max(f"{side}retry_after_ms").alias("retry_after_ms"),
    ]


def worst_names(name: str, params: StormParams) -> Column:
    """The distinct names with the most lines, the worst first, at most ``max_names``."""
    ranked = F.sort_array(F.collect_list(F.struct(F.col("n"), F.col(name).alias("name"))), asc=False)
    names = F.array_compact(F.transform(ranked, lambda entry: entry["name"]))
    return F.slice(F.array_distinct(names), 1, params.max_names)
