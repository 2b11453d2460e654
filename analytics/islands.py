"""Islands in time: what one client kept getting, as one row per uninterrupted stretch.

The key has no seq: a client that sweeps upwards through the seqs would escape it. Nor has it a release, which is the
client's own word. Failures share one key, so that a client cannot stay below every threshold by collecting 404, 470 and
503 in turn, and their key has no node, so that it cannot hide behind a load balancer; where one kind of failure follows
another, that is a new island. Seqs mean something on one node only: the other answers are kept apart by node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.answers import FAILURES, GRAINS, ONCE_PER_SEQ, REPEATABLE, WATCHED, Answer, among
from analytics.params import StormParams, micros
from analytics.repeats import distinct_seqs, stretch_hits
from analytics.rollup import SLOTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("client", "named", "channel", "place", "family")
"""Whose island: ``client`` (its network where the log has no client, which ``named`` tells), ``channel``, ``place``
(the node, or null for failures) and ``family`` (``failure`` or the kind of answer)."""

FAILURE: Final = "failure"

NEIGHBOURS: Final = 4
"""One kind of failure follows another, rather than taking turns with it, if for so many buckets neither comes back."""

_ADD: Final = ("n", "seqs", "busy_s", "bytes_out", "dur_us", "closed")
_LOWEST: Final = ("first_us", "seq_lo", "head_lo", "node_lo", "release_lo")
_HIGHEST: Final = ("last_us", "seq_hi", "head_hi", "node_hi", "release_hi", "retry_after_ms", "peak_rps")
_UNITE: Final = ("conn_bits", "node_bits")
_KINDS: Final = {answer: f"n_{answer}" for answer in FAILURES}


def islands(rollup: DataFrame, params: StormParams) -> DataFrame:
    """Stretches of one family of answers to one client, with pauses of at most ``gap_s``, from the roll-up.

    Returns:
        per :data:`KEY` and island: ``answer`` (the commonest), the roll-up's figures added up, ``hits`` (lines that
        count), ``seqs`` (distinct ones, of answers that are right once per seq), ``peak_rps``, ``coarse`` (the number
        of the island that it is part of if pauses of ``slow_gap_s`` are allowed), ``node`` and ``release`` (null if
        there were several).
    """
    placed = _repeating(_by_bucket(_watched(rollup)), params)
    found = _numbered(placed, params).groupBy(*KEY, "coarse", "island").agg(*added_up())
    return finished(found, params)


def _watched(rollup: DataFrame) -> DataFrame:
    """The rows that can be part of a storm, with their key."""
    known = F.coalesce("client", "net").isNotNull()
    # A segment is served many times more often than anything else: those that nobody repeats need not be sorted.
    repeated = (F.col("answer") != Answer.SERVED.value) | (F.col("n") > distinct_seqs())
    failed = among(FAILURES)
    return rollup.where(among(WATCHED) & known & repeated).withColumns(
        {
            "named": F.col("client").isNotNull(),
            "client": F.coalesce("client", "net"),
            "place": F.when(~failed, F.col("node")),
            "family": F.when(failed, FAILURE).otherwise(F.col("answer")),
            "node_bits": F.call_function("shiftleft", F.expr("1L"), F.pmod(F.hash("node"), F.lit(64)).cast("int")),
            "node_lo": F.col("node"),
            "node_hi": F.col("node"),
            "release_lo": F.col("release"),
            "release_hi": F.col("release"),
        }
        | {name: F.when(F.col("answer") == kind.value, F.col("n")).otherwise(0) for kind, name in _KINDS.items()}
    )


def _by_bucket(rows: DataFrame) -> DataFrame:
    """One row per key and bucket, all rows of a key in one place: no further shuffle until islands leave their key."""
    parts: DataFrame = rows.repartition(*(F.col(name) for name in KEY))
    plain = [F.try_sum(name).alias(name) for name in ("n", "bytes_out", "dur_us", "closed", *_KINDS.values())]
    low = [F.min(name).alias(name) for name in _LOWEST]
    high = [F.max(name).alias(name) for name in _HIGHEST if name != "peak_rps"]
    sets = [F.bit_or(name).alias(name) for name in (*_UNITE, "seq_bits", "slots")]
    return parts.groupBy(*KEY, "bucket_us").agg(*plain, *low, *high, *sets)


def _repeating(rows: DataFrame, params: StormParams) -> DataFrame:
    """Adds ``seqs`` (distinct ones that the bucket before did not have) and drops what repeats nothing."""
    own = rows.withColumn("answer", F.when(F.col("family") != FAILURE, F.col("family"))).withColumn(
        "distinct", F.when(F.col("answer").isNotNull(), distinct_seqs()).otherwise(0)
    )
    ordered = Window.partitionBy(*KEY).orderBy("bucket_us")
    names = ("seq_bits", "seq_lo", "seq_hi")
    neighbours = own.withColumns(
        {f"{name}_before": F.lag(name).over(ordered) for name in (*names, "last_us")}
        | {f"{name}_after": F.lead(name).over(ordered) for name in (*names, "first_us")}
    )
    near_before = F.col("first_us") - F.col("last_us_before") <= micros(params.gap_s)
    near_after = F.col("first_us_after") - F.col("last_us") <= micros(params.gap_s)
    again = F.coalesce(_shared("before") & near_before, F.lit(False))
    repeated_next = F.coalesce(_shared("after") & near_after, F.lit(False))
    known_before = F.when(again, F.bit_count(F.col("seq_bits").bitwiseAND(F.col("seq_bits_before")))).otherwise(0)
    once = among(ONCE_PER_SEQ)
    kept = F.coalesce(~once | (F.col("n") > F.col("distinct")) | again | repeated_next, F.lit(True))
    told = neighbours.withColumns({"seqs": F.greatest(F.lit(0), F.col("distinct") - known_before), "kept": kept})
    return told.where("kept").drop(*(f"{name}_{side}" for name in names for side in ("before", "after")))


def _shared(side: str) -> Column:
    """Whether a row and its neighbour were about a seq that is the same. Bits alone say no more than modulo 64."""
    meet = F.col("seq_bits").bitwiseAND(F.col(f"seq_bits_{side}")) != 0
    overlap = (F.col("seq_lo") <= F.col(f"seq_hi_{side}")) & (F.col(f"seq_lo_{side}") <= F.col("seq_hi"))
    return meet & overlap


def _numbered(rows: DataFrame, params: StormParams) -> DataFrame:
    """Numbers the islands, fine and coarse, and adds the rate around each bucket."""
    ordered = Window.partitionBy(*KEY).orderBy("bucket_us")
    before, after = ordered.rowsBetween(-NEIGHBOURS, -1), ordered.rowsBetween(1, NEIGHBOURS)
    kinds = _kinds_present()
    seen = rows.withColumn("kinds", kinds)
    near = seen.withColumns(
        {
            "pause": F.col("first_us") - F.lag("last_us").over(ordered),
            "kinds_last": F.lag("kinds").over(ordered),
            "kinds_before": F.bit_or("kinds").over(before),
            "kinds_after": F.bit_or("kinds").over(after),
            "hits_before": F.lag(_row_hits()).over(ordered),
            "pair_us": F.col("last_us") - F.lag("first_us").over(ordered),
        }
    )
    changed = (F.col("kinds").bitwiseAND(F.col("kinds_before")) == 0) & (
        F.coalesce(F.col("kinds_last").bitwiseAND(F.col("kinds_after")), F.lit(0)) == 0
    )
    another = F.coalesce(changed, F.lit(False))
    started = near.withColumns(
        {
            "starts": F.when((F.col("pause") <= micros(params.gap_s)) & ~another, 0).otherwise(1),
            "starts_coarse": F.when((F.col("pause") <= micros(params.slow_gap_s)) & ~another, 0).otherwise(1),
            "peak_rps": _rate(),
            "busy_s": _busy(),
        }
    )
    return started.withColumns(
        {"island": F.sum("starts").over(ordered), "coarse": F.sum("starts_coarse").over(ordered)}
    )


def _kinds_present() -> Column:
    bits = [F.when(F.col(name) > 0, 1 << place).otherwise(0) for place, name in enumerate(_KINDS.values())]
    present = bits[0]
    for bit in bits[1:]:
        present = present.bitwiseOR(bit)
    # The other families have one kind of answer, and so no change.
    return F.when(F.col("family") == FAILURE, present).otherwise(1)


def _row_hits() -> Column:
    return F.col("n") - F.greatest(F.lit(0), F.col("seqs") - 1)


def _rate() -> Column:
    """Hits per second of a bucket, or of it and the one before: a burst need not keep to the borders of seconds."""
    alone = _row_hits() / F.greatest(F.lit(1.0), (F.col("last_us") - F.col("first_us")) / 1e6)
    pair = (_row_hits() + F.col("hits_before")) / F.greatest(F.lit(1.0), F.col("pair_us") / 1e6)
    # Buckets of posts and segments are long: what they hold need not have come at once.
    short = ~F.col("family").isin(*(kind.value for kind in REPEATABLE))
    return F.greatest(alone, F.when(short, pair))


def _busy() -> Column:
    """Seconds of a bucket in which something arrived, about."""
    of_slots = F.bit_count("slots") * (GRAINS[Answer.SERVED].bucket_s / SLOTS)
    return F.when(F.col("family") == Answer.SERVED.value, of_slots).otherwise(F.lit(1.0))


def added_up() -> list[Column]:
    """What is added up, ranged over or united whenever islands are put together."""
    return [
        *(F.try_sum(name).alias(name) for name in (*_ADD, *_KINDS.values())),
        *(F.min(name).alias(name) for name in _LOWEST),
        *(F.max(name).alias(name) for name in _HIGHEST),
        *(F.bit_or(name).alias(name) for name in _UNITE),
    ]


def finished(found: DataFrame, params: StormParams) -> DataFrame:
    """Adds what follows from the sums: ``answer``, ``hits``, ``node``, ``release``, ``duration_s``, ``mean_rps``."""
    pairs = (F.struct(F.col(name).alias("n"), F.lit(kind.value).alias("kind")) for kind, name in _KINDS.items())
    commonest = F.array_max(F.array(*pairs))["kind"]
    named = found.withColumns(
        {
            "answer": F.when(F.col("family") == FAILURE, commonest).otherwise(F.col("family")),
            "node": F.when(F.col("node_lo") == F.col("node_hi"), F.col("node_hi")),
            "release": F.when(F.col("release_lo") == F.col("release_hi"), F.col("release_hi")),
            "duration_s": (F.col("last_us") - F.col("first_us")) / 1e6,
        }
    )
    counted = named.withColumn("hits", stretch_hits(params))
    return counted.withColumn("mean_rps", F.col("hits") / F.greatest(F.lit(1.0), F.col("duration_s")))
