"""Storms that no single client makes: many clients whose retries add up, or who all come at the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.answers import FAILURES, Answer
from analytics.classes import StormClass
from analytics.episodes import EPISODE, Severity, sums, worst_names
from analytics.params import StormParams, micros
from analytics.triggers import with_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECOND_US = 1_000_000


def failed_seconds(rollup: DataFrame) -> DataFrame:
    """The roll-up's failures that name a client: what a fleet is seen by. One row per second and roll-up key."""
    failed = F.col("answer").isin(*(answer.value for answer in FAILURES))
    return rollup.where(failed & F.col("client").isNotNull())


def fleet_storms(rollup: DataFrame, events: DataFrame, params: StormParams) -> DataFrame:
    """All fleet storms: overload that many amplify, and herds; the columns of ``EPISODE``.

    A herd that also overloads its node is reported once, as the overload that it became.
    """
    failures = failed_seconds(rollup)
    overload = amplified(failures, events, params)
    herds = thundering_herds(failures, events, params)
    swallowed = (
        F.col("h.node").eqNullSafe(F.col("o.node"))
        & (F.col("h.first_us") <= F.col("o.last_us"))
        & (F.col("o.first_us") <= F.col("h.last_us"))
    )
    spans = F.broadcast(overload.select("node", "first_us", "last_us"))
    alone = herds.alias("h").join(spans.alias("o"), swallowed, "left_anti")
    return overload.unionByName(alone)


def without_members(storms: DataFrame, fleets: DataFrame) -> DataFrame:
    """Drops single clients' overload storms that a fleet's storm already tells about."""
    overload = fleets.where(F.col("class") == StormClass.OVERLOAD_AMPLIFICATION.value)
    spans = F.broadcast(overload.select("node", "first_us", "last_us")).alias("f")
    covered = (
        (F.col("s.class") == StormClass.OVERLOAD_CLIENT.value)
        & F.col("s.node").eqNullSafe(F.col("f.node"))
        & (F.col("s.first_us") <= F.col("f.last_us"))
        & (F.col("f.first_us") <= F.col("s.last_us"))
    )
    return storms.alias("s").join(spans, covered, "left_anti")


def amplified(failures: DataFrame, events: DataFrame, params: StormParams) -> DataFrame:
    """Overload by many: seconds in which clients that were refused came back before the second was over."""
    refused = failures.where(F.col("answer") == Answer.OVERLOAD.value)
    seconds = _node_seconds(refused)
    many = F.col("clients") >= params.many_clients
    hot = seconds.where(many & (F.col("n") >= params.amplification * F.col("clients")))
    stretches = _stretches(hot, params.gap_s)
    enough = (F.col("seconds") >= params.amplified_s) & (F.col("n") >= params.warn_hits_alone)
    found = _with_members(stretches.where(enough), refused, params)
    context = _with_server_context(found, events, params)
    return _as_storm(context, StormClass.OVERLOAD_AMPLIFICATION)


def thundering_herds(failures: DataFrame, events: DataFrame, params: StormParams) -> DataFrame:
    """Many clients in one second, far above the node's usual second, who come again, and who share a cue."""
    same_node = F.col("s.node").eqNullSafe(F.col("b.node"))
    usual = F.broadcast(_baseline(failures).alias("b"))
    seconds = _node_seconds(failures).alias("s").join(usual, same_node).select("s.*", "b.usual")
    burst = seconds.where(
        (F.col("clients") >= params.herd_clients) & (F.col("n") >= params.herd_ratio * F.col("usual"))
    )
    found = _with_members(_stretches(burst, params.herd_gap_s), failures, params)
    again = found.where(F.col("n") >= params.amplification * F.col("n_clients"))
    context = _with_server_context(again, events, params)
    at_once = (F.col("n_channels") >= params.herd_channels) & (F.col("arrived") >= params.herd_arrival_share)
    return _as_storm(context.where(F.col("trigger").isNotNull() | at_once), StormClass.THUNDERING_HERD)


def _with_server_context(found: DataFrame, events: DataFrame, params: StormParams) -> DataFrame:
    # A fleet has no channel of its own, so that only events of the server can be its trigger.
    channel, answer = F.lit(None).cast("string"), F.lit(Answer.OVERLOAD.value)
    return with_context(found.withColumns({"channel": channel, "answer": answer}), events, params)


def _node_seconds(failures: DataFrame) -> DataFrame:
    """Per node and second: ``n`` requests by ``clients`` distinct clients."""
    per_client = failures.groupBy("node", "bucket_us", "client").agg(
        F.sum("n").alias("n"), F.min("first_us").alias("first_us"), F.max("last_us").alias("last_us")
    )
    return per_client.groupBy("node", "bucket_us").agg(
        F.sum("n").alias("n"),
        F.count(F.lit(1)).alias("clients"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def _baseline(failures: DataFrame) -> DataFrame:
    """Per node: failures in its ``usual`` second. Where most seconds have none, that is 1 rather than 0."""
    seconds = failures.groupBy("node", "bucket_us").agg(F.sum("n").alias("n"))
    spread = seconds.groupBy("node").agg(
        F.percentile_approx("n", 0.5).alias("median"),
        F.count(F.lit(1)).alias("active"),
        ((F.max("bucket_us") - F.min("bucket_us")) / SECOND_US + 1).alias("all"),
    )
    mostly_active = F.col("active") * 2 > F.col("all")
    return spread.select("node", F.when(mostly_active, F.col("median")).otherwise(F.lit(1)).alias("usual"))


def _stretches(seconds: DataFrame, gap_s: float) -> DataFrame:
    """Islands of node-seconds: ``node``, ``from_us``, ``to_us``, ``seconds``, ``n``, ``peak_rps``."""
    ordered = Window.partitionBy("node").orderBy("bucket_us")
    pause = F.col("first_us") - F.lag("last_us").over(ordered)
    started = seconds.withColumn("starts", F.when(pause <= micros(gap_s), 0).otherwise(1))
    return (
        started.withColumn("island", F.sum("starts").over(ordered))
        .groupBy("node", "island")
        .agg(
            F.min("bucket_us").alias("from_us"),
            F.max("bucket_us").alias("to_us"),
            F.count(F.lit(1)).alias("seconds"),
            F.sum("n").alias("n"),
            F.max("n").cast("double").alias("peak_rps"),
        )
        .drop("island")
    )


def _with_members(stretches: DataFrame, failures: DataFrame, params: StormParams) -> DataFrame:
    """Joins each stretch to what its node's clients did in it, and adds that up."""
    # A second on either side too: a wave begins and ends within seconds that are not full enough to be seen.
    around = F.col("f.bucket_us").between(F.col("t.from_us") - SECOND_US, F.col("t.to_us") + SECOND_US)
    inside = F.col("f.node").eqNullSafe(F.col("t.node")) & around
    lines = failures.alias("f").join(F.broadcast(stretches.drop("n").alias("t")), inside)
    key = ("node", "from_us", "peak_rps")
    per_client = lines.groupBy(*(F.col(f"t.{name}") for name in key), F.col("f.client"), F.col("f.channel")).agg(
        *sums("f."), F.max("f.release").alias("release_hi"), F.min("f.release").alias("release_lo")
    )
    arrived = F.col("first_us") <= F.col("from_us") + micros(params.herd_arrival_s)
    return per_client.groupBy(*key).agg(
        *sums(),
        F.countDistinct("client").alias("n_clients"),
        F.countDistinct("channel").alias("n_channels"),
        worst_names("client", params).alias("clients"),
        worst_names("channel", params).alias("channels"),
        F.avg(arrived.cast("double")).alias("arrived"),
        # One name if all clients have the same release, null if they differ.
        F.when(F.min("release_lo") == F.max("release_hi"), F.max("release_hi")).alias("release"),
    )


def _as_storm(found: DataFrame, storm: StormClass) -> DataFrame:
    known = {
        "class": F.lit(storm.value),
        "severity": F.lit(Severity.CRITICAL.value),
        "hits": F.col("n"),
        # Many clients have no common rhythm.
        "backoff": F.lit(None).cast("string"),
        "gap_ms": F.lit(None).cast("double"),
    }
    return found.withColumns(known).select(*EPISODE)
