"""Which islands are storms, and which of those are one episode.

Several channels that one client loops on, and several clients that do the same to a channel at the same time, are one
episode in the end; only the report's reader would otherwise have to add them up.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.answers import COUNTED, ONCE_PER_SEQ, Answer, among
from analytics.islands import KEY, added_up, finished
from analytics.params import StormParams, micros
from analytics.repeats import connections, counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    "named",
    "answer",
    "seq_lo",
    "seq_hi",
    "head_hi",
    "peak_rps",
    "retry_after_ms",
    "bytes_out",
    "dur_us",
    "trigger",
    "trigger_us",
)
"""Columns of a finished episode; those of one client's storms and of fleets are the same."""

SLOWABLE: Final = (Answer.NOT_FOUND, Answer.SEQ_MISSING, Answer.OVERLOAD)
"""Answers on which a client can loop so slowly that the usual gap would break its storm into pieces."""


class Severity(StrEnum):
    """How bad, in rising order."""

    WARN = "warn"
    CRITICAL = "critical"


def storms(found: DataFrame, params: StormParams) -> DataFrame:
    """The islands that are storms, with ``severity``, ``gap_ms`` (the mean pause) and ``slow``.

    What is no storm by itself, or a slow one of 404s, is put together with its neighbours of at most ``slow_gap_s``.

    Args:
        found: :func:`analytics.islands.islands`.
    """
    judged = found.withColumn("severity", severity(params))
    quick = (F.col("answer") != Answer.NOT_FOUND.value) | fast(params) | (F.col("mean_rps") >= params.not_found_rps)
    alone = F.col("severity").isNotNull() & quick
    # Fine and coarse islands are numbered from 1, each in their key: the sign keeps them apart.
    parts = judged.withColumn("part", F.when(alone, F.col("island")).otherwise(-F.col("coarse")))
    whole = parts.where(alone | among(SLOWABLE)).groupBy(*KEY, "part").agg(*added_up())
    again = finished(whole, params).withColumns(
        {
            "slow": F.col("part") < 0,
            "severity": severity(params),
            "gap_ms": F.when(F.col("n") > 1, F.col("duration_s") * 1000 / (F.col("n") - 1)),
        }
    )
    # Where most of a stretch was healthy (its buckets are long), its requests are those that were repeated.
    healthy = among(ONCE_PER_SEQ) & (2 * F.col("hits") < F.col("n"))
    told = again.where(F.col("severity").isNotNull() & ~_crowd(params))
    return told.withColumn("n", F.when(healthy, F.col("hits")).otherwise(F.col("n"))).drop("part")


def fast(params: StormParams) -> Column:
    """Whether so many came so quickly that it is a storm whatever the rest of its time."""
    return (_each_node() >= params.warn_hits) & (_rate() >= params.warn_rps)


def severity(params: StormParams) -> Column:
    """``warn``, ``critical`` or null, on two axes: fast for a moment, or slowly for long."""
    hits = F.col("hits")
    quickly = (_each_node() >= params.critical_hits) & (_rate() >= params.critical_rps)
    critical = quickly | (hits >= params.critical_hits_alone)
    warn = fast(params) | (hits >= params.warn_hits_alone)
    return F.when(critical, Severity.CRITICAL.value).when(warn, Severity.WARN.value)


def _rate() -> Column:
    return F.greatest(F.col("mean_rps"), F.col("peak_rps"))


def _each_node() -> Column:
    """Hits per node: who asks each of ten servers once, for a channel that one of them has, is in no hurry."""
    nodes = F.greatest(F.lit(1), F.round(F.coalesce(counted("node_bits"), F.lit(1))).cast("int"))
    return F.col("hits") / nodes


def _crowd(params: StormParams) -> Column:
    """Many clients behind one key: each of many connections asked about once, and then it was over.

    Without a key there is only a network, in which there may be any number of clients.
    """
    once_each = F.col("n") < params.crowd_per_conn * connections()
    unknown = ~F.col("named") & F.col("conn_bits").isNull()
    soon = F.when(F.col("named"), params.crowd_s).otherwise(params.anonymous_s)
    return among(COUNTED) & (unknown | (once_each & (F.col("duration_s") <= soon)))


def merge_clients(classified: DataFrame, params: StormParams) -> DataFrame:
    """Storms of one class against one channel, at the same time, as one: ``clients``, ``n_clients``, ``crowd``.

    Args:
        classified: :func:`analytics.classes.classify`.
    """
    key = ("class", "node", "channel", "named")
    merged = (
        _overlapping(classified, key, "client", params)
        .groupBy(*key, "overlap")
        .agg(
            *_together(),
            F.array_sort(F.collect_set("client")).alias("all_clients"),
            # A fleet is one row that knows its members; the others are one row per client.
            F.coalesce(F.max_by("clients", "n"), worst_names("client", params)).alias("clients"),
            F.max("n_clients").alias("n_clients"),
            F.max("n_channels").alias("n_channels"),
            F.max_by("channels", "n").alias("channels"),
        )
    )
    count = F.coalesce("n_clients", F.size("all_clients").cast("long"))
    return merged.withColumns({"n_clients": count, "crowd": F.xxhash64("all_clients")}).drop("all_clients")


def merge_channels(by_channel: DataFrame, params: StormParams) -> DataFrame:
    """What the same clients did to several channels at the same time, as one episode.

    Args:
        by_channel: :func:`merge_clients`.

    Returns:
        the columns of :data:`EPISODE`.
    """
    key = ("class", "node", "crowd", "n_clients", "named")
    merged = (
        _overlapping(by_channel, key, "channel", params)
        .groupBy(*key, "overlap")
        .agg(
            *_together(),
            F.max_by("clients", "n").alias("clients"),
            F.coalesce(F.max("n_channels"), F.size(F.collect_set("channel")).cast("long")).alias("n_channels"),
            F.coalesce(F.max_by("channels", "n"), worst_names("channel", params)).alias("channels"),
        )
    )
    return merged.withColumn("release", same_release()).select(*EPISODE)


def _overlapping(storms: DataFrame, key: tuple[str, ...], name: str, params: StormParams) -> DataFrame:
    """Numbers, in ``overlap``, the groups of storms of a key between which there is no longer pause than in one."""
    ordered = Window.partitionBy(*key).orderBy("first_us", "last_us", name)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    pause = F.col("first_us") - F.max("last_us").over(before)
    allowed = F.when(F.col("slow"), micros(params.slow_gap_s)).otherwise(micros(params.gap_s))
    started = storms.withColumn("starts", F.when(pause <= allowed, 0).otherwise(1))
    return started.withColumn("overlap", F.sum("starts").over(ordered))


def _together() -> list[Column]:
    first_cause = F.min_by(F.struct("trigger", "trigger_us"), F.when(F.col("trigger").isNotNull(), F.col("first_us")))
    # The clients' worst seconds need not be the same one: the sum of their means is the better bound for many.
    mean = "sum(hits) / greatest(1.0, (max(last_us) - min(first_us)) / 1e6)"
    return [
        # "critical" < "warn": the worst severity is the smallest text.
        F.min("severity").alias("severity"),
        *sums(),
        F.sum("hits").alias("hits"),
        F.max_by("answer", "n").alias("answer"),
        F.max("slow").alias("slow"),
        F.min("release_lo").alias("release_lo"),
        F.max("release_hi").alias("release_hi"),
        F.expr(f"greatest(max(peak_rps), {mean})").alias("peak_rps"),
        first_cause["trigger"].alias("trigger"),
        first_cause["trigger_us"].alias("trigger_us"),
    ]


def same_release() -> Column:
    """The release of all, null if they differ."""
    return F.when(F.col("release_lo") == F.col("release_hi"), F.col("release_hi"))


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
