"""Storms that no single client makes: many clients whose retries add up, or who all come at the same moment."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.answers import FAILURES, Answer, among
from analytics.episodes import Severity, sums, worst_names
from analytics.params import StormParams, micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SECOND_US: Final = 1_000_000


class Fleet(StrEnum):
    """What a fleet's candidate has where a single client's has its kind of answer."""

    OVERLOAD = "fleet_overload"
    HERD = "fleet_herd"


def no_fleet(candidates: DataFrame) -> DataFrame:
    """Single clients' candidates with the columns that only a fleet fills."""
    names = F.lit(None).cast("array<string>")
    number = F.lit(None).cast("long")
    return candidates.withColumns(
        {"n_clients": number, "clients": names, "n_channels": number, "channels": names, "at_once": F.lit(False)}
    )


def worth_looking(overload_clients: int, failed_clients: int, params: StormParams) -> bool:
    """Whether so few clients failed that there can be no fleet among them, which saves half of the plan.

    Args:
        overload_clients: distinct clients that were answered 429 or 503, about.
        failed_clients: distinct clients with any failure, about; a client may be counted once per kind.
    """
    # The counts are estimates, with an error of a tenth or so.
    return overload_clients >= params.many_clients * 0.7 or failed_clients >= params.herd_clients * 0.7


def fleet_candidates(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Stretches of time in which many clients failed together, from the roll-up, each with its members.

    Returns:
        columns as of :func:`analytics.episodes.storms`, with a :class:`Fleet` as ``answer``, without ``client``; with
        ``channel`` only if there is just one; but with ``n_clients``, ``clients``, ``n_channels``, ``channels``,
        ``at_once``.
    """
    failures = rollup.where(among(FAILURES) & F.col("client").isNotNull())
    found = _with_members(_stretches(_seconds(failures, params), params), failures, params)
    again = F.col("n") >= params.amplification * F.col("n_clients")
    # Where most of it is the loops of single clients, those are told, each for itself.
    together = 2 * F.col("looping") < F.col("n")
    return found.where((F.col("answer") == Fleet.OVERLOAD.value) | (again & together)).drop("looping")


def _seconds(failures: DataFrame, params: StormParams) -> DataFrame:
    """Per node and second: how much failed, for how many; one row per kind of fleet that the second points to."""
    refused = F.col("answer") == Answer.OVERLOAD.value
    seconds = (
        failures.withColumn("early", F.when(refused, _early(params)).otherwise(0))
        .groupBy("node", "bucket_us")
        .agg(
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
            F.sum("n").alias("n"),
            F.size(F.collect_set("client")).alias("clients"),
            F.sum("early").alias("early"),
            F.sum(F.when(refused, F.col("n")).otherwise(0)).alias("refused"),
            F.size(F.collect_set(F.when(refused, F.col("client")))).alias("refused_clients"),
        )
    )
    # Of so many refusals, at least one was enough: the others came too early, so that amplification is at least 2.
    wanted = F.col("refused") - F.col("early")
    many = F.col("refused_clients") >= params.many_clients
    hot = many & (F.col("refused") >= params.amplification * wanted)
    crowded = F.col("clients") >= params.herd_clients
    burst = crowded & (F.col("n") >= params.herd_ratio * _usual())
    kinds = F.array_compact(F.array(F.when(hot, Fleet.OVERLOAD.value), F.when(burst, Fleet.HERD.value)))
    return seconds.withColumn("kinds", kinds).withColumn("answer", F.explode("kinds")).drop("kinds")


def _early(params: StormParams) -> Column:
    """How many of a row's refusals came long before the client was told to come again (a second, if it was not)."""
    ordered = Window.partitionBy("node", "client", "channel", "answer").orderBy("bucket_us", "first_us", "release")
    told_us = F.coalesce("retry_after_ms", F.lit(1000)) * 1000 * params.early
    pause = F.col("first_us") - F.lag("last_us").over(ordered)
    inside = (F.col("last_us") - F.col("first_us")) / F.greatest(F.lit(1), F.col("n") - 1)
    others = F.when(inside < told_us, F.col("n") - 1).otherwise(0)
    return others + F.when(pause < told_us, 1).otherwise(0)


def _usual() -> Column:
    """Failures in the node's usual second. Where most of its seconds have none, that is 1 rather than 0."""
    return F.expr(
        f"""if(2 * count(1) OVER (PARTITION BY node)
               > (max(bucket_us) OVER (PARTITION BY node) - min(bucket_us) OVER (PARTITION BY node)) / {SECOND_US} + 1,
               percentile_approx(n, 0.5) OVER (PARTITION BY node), 1)"""
    )


def _stretches(seconds: DataFrame, params: StormParams) -> DataFrame:
    """Islands of seconds: ``answer``, ``node``, ``from_us``, ``to_us``, ``peak_rps``."""
    overload = F.col("answer") == Fleet.OVERLOAD.value
    ordered = Window.partitionBy("answer", "node").orderBy("bucket_us")
    allowed = F.when(overload, micros(params.gap_s)).otherwise(micros(params.herd_gap_s))
    pause = F.col("first_us") - F.lag("last_us").over(ordered)
    started = seconds.withColumn("starts", F.when(pause <= allowed, 0).otherwise(1))
    stretches = (
        started.withColumn("island", F.sum("starts").over(ordered))
        .groupBy("answer", "node", "island")
        .agg(
            F.min("bucket_us").alias("from_us"),
            F.max("bucket_us").alias("to_us"),
            F.count(F.lit(1)).alias("seconds"),
            F.sum("refused").alias("refused"),
            F.max(F.when(overload, F.col("refused")).otherwise(F.col("n"))).cast("double").alias("peak_rps"),
        )
    )
    enough = (F.col("seconds") >= params.amplified_s) & (F.col("refused") >= params.warn_hits_alone)
    return stretches.where(~overload | enough).select("answer", "node", "from_us", "to_us", "peak_rps")


def _with_members(stretches: DataFrame, failures: DataFrame, params: StormParams) -> DataFrame:
    """Joins each stretch to what its node's clients did in it, and adds that up."""
    # A second on either side too: a wave begins and ends within seconds that are not full enough to be seen.
    around = F.col("f.bucket_us").between(F.col("t.from_us") - SECOND_US, F.col("t.to_us") + SECOND_US)
    concerned = (F.col("t.answer") == Fleet.HERD.value) | (F.col("f.answer") == Answer.OVERLOAD.value)
    inside = F.col("f.node").eqNullSafe(F.col("t.node")) & around & concerned
    lines = failures.alias("f").join(F.broadcast(stretches.alias("t")), inside)
    key = [F.col(f"t.{name}") for name in ("answer", "node", "from_us", "peak_rps")]
    per_client = lines.groupBy(*key, F.col("f.client"), F.col("f.channel")).agg(
        *sums("f."), F.max("f.release").alias("release_hi"), F.min("f.release").alias("release_lo")
    )
    arrival_us = F.percentile_approx("first_us", params.herd_arrival_share) - F.min("first_us")
    added_up = per_client.groupBy("answer", "node", "from_us", "peak_rps").agg(
        *sums(),
        F.sum("n").alias("hits"),
        F.sum(F.when(_loops(params), F.col("n")).otherwise(0)).alias("looping"),
        F.size(F.collect_set("client")).cast("long").alias("n_clients"),
        F.size(F.collect_set("channel")).cast("long").alias("n_channels"),
        worst_names("client", params).alias("clients"),
        worst_names("channel", params).alias("channels"),
        F.max("channel").alias("channel"),
        arrival_us.alias("arrival_us"),
        F.min("release_lo").alias("release_lo"),
        F.max("release_hi").alias("release_hi"),
    )
    together = (F.col("n_channels") >= params.herd_channels) & (F.col("arrival_us") <= micros(params.herd_arrival_s))
    return added_up.withColumns(
        {
            "channel": F.when(F.col("n_channels") == 1, F.col("channel")),
            "at_once": together,
            "severity": F.lit(Severity.CRITICAL.value),
            "named": F.lit(True),
            "slow": F.lit(False),
        }
    ).drop("from_us", "arrival_us")


def _loops(params: StormParams) -> Column:
    """Whether what one client did in a stretch is a storm of its own."""
    rate = F.col("n") / F.greatest(F.lit(1.0), (F.col("last_us") - F.col("first_us")) / 1e6)
    return (F.col("n") >= params.warn_hits_alone) | ((F.col("n") >= params.warn_hits) & (rate >= params.warn_rps))
