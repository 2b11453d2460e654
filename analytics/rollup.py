"""One scan, one ``groupBy``: millions of lines become the few thousand rows that everything else is computed from.

Cost is that of parsing. It does not depend on how many clients there are, nor on one of them sending half of the lines
(partial aggregation happens before the shuffle). Nothing after this sees a raw line, and nothing before it sorts one.

Every measure is a number that two rows can be added up in, so that Spark aggregates them in place, with generated code:
sets are kept as bits of one integer, and a histogram as fifteen bits per class.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics.answers import GRAINS, REPEATABLE, Answer, among
from analytics.params import StormParams, micros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

KEY: Final = ("answer", "node", "channel", "release", "client", "net", "event", "bucket_us")
"""What one row of the roll-up stands for. ``client`` is null where :data:`analytics.answers.GRAINS` says so, ``net``
for all but failures, and ``event`` for all but events."""

SLOTS: Final = 64
"""Parts of a bucket in which arrivals are noted: of a second's bucket, 15.6 ms each."""

WAIT_CLASSES_US: Final = ((1_000, 4_000, 16_000, 64_000), (256_000, 1_000_000, 4_000_000, None))
"""Upper bounds of the waits counted in ``waits_quick`` and ``waits_slow``, microseconds; the last has none."""

WAIT_CLASS_BITS: Final = 15
"""Bits per class of waits: the histogram holds while a row has fewer than 2^15 lines."""

WAITED: Final = (Answer.SERVED, Answer.ZERO_BYTE, Answer.ENDED)
"""Answers whose waits are counted: those that a reader was waiting for."""


def roll_up(rows: DataFrame, also: Sequence[str] = ()) -> DataFrame:
    """Rows of :func:`analytics.normalise.normalise`, added up by :data:`KEY`.

    Args:
        also: further columns of ``rows`` to be added up by; a stream needs one that says when it can forget a row.

    Returns:
        per key:

        * ``n`` lines; ``first_us``, ``last_us``: their first and last arrival;
        * ``seq_lo``, ``seq_hi``, ``head_lo``, ``head_hi``: ranges of the seqs asked about, and of the channel's head;
        * ``seq_bits``: bit ``seq % 64`` for each seq; ``conn_bits``: one of 64 bits for each connection;
          ``slots``: the 64th parts of the bucket in which something arrived;
        * sums: ``bytes_in``, ``bytes_out``, ``wait_us``, ``dur_us``, ``guard_ms``; the largest ``retry_after_ms``;
        * counts of lines: ``retried`` (``attempt`` > 1), ``anonymous`` (no client), ``closed`` (``eos``);
        * ``present``: one bit for each of :data:`analytics.schema.EXPECTED` that occurred;
        * ``waits_quick``, ``waits_slow``: waits by :data:`WAIT_CLASSES_US`, the shortest in the lowest bits; null if
          there were too many;
        * ``id_xor``, ``id_bits``: of the lines' ids, for finding duplicates (:mod:`analytics.duplicates`).
    """
    width = _bucket_width()
    offset = F.col("ts_us") % width
    # By name, so that the division is done once.
    placed = rows.withColumn("offset_us", offset).withColumn("width_us", width)
    slot = F.expr(f"cast(offset_us * {SLOTS} DIV width_us AS int)")
    quick, slow = (_waits(bounds) for bounds in _wait_bounds())
    return (
        placed.withColumns({"bucket_us": F.col("ts_us") - F.col("offset_us"), "slot": slot})
        .groupBy(*KEY, *also)
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.min("ts_us").alias("first_us"),
            F.max("ts_us").alias("last_us"),
            F.min("seq").alias("seq_lo"),
            F.max("seq").alias("seq_hi"),
            F.bit_or(_bit(F.col("seq"))).alias("seq_bits"),
            F.min("head").alias("head_lo"),
            F.max("head").alias("head_hi"),
            F.bit_or(_bit(F.hash("conn"), F.col("conn"))).alias("conn_bits"),
            F.bit_or(_bit(F.col("slot"))).alias("slots"),
            F.try_sum("bytes_in").alias("bytes_in"),
            F.try_sum("bytes_out").alias("bytes_out"),
            F.try_sum("wait_us").alias("wait_us"),
            F.try_sum("dur_us").alias("dur_us"),
            F.try_sum("guard_ms").alias("guard_ms"),
            F.max("retry_after_ms").alias("retry_after_ms"),
            F.sum("retried").alias("retried"),
            F.sum("anonymous").alias("anonymous"),
            F.sum("closed").alias("closed"),
            F.bit_or("present").alias("present"),
            F.try_sum(quick).alias("waits_quick"),
            F.try_sum(slow).alias("waits_slow"),
            F.bit_xor("id").alias("id_xor"),
            F.bit_or(_bit(F.col("id"))).alias("id_bits"),
        )
    )


def _bit(value: Column, known: Column | None = None) -> Column:
    """One of 64 bits for a value. Their union counts distinct values, roughly (linear counting, Whang 1990)."""
    place = F.pmod(value, F.lit(64)).cast("int")
    bit = F.call_function("shiftleft", F.expr("1L"), place)
    return bit if known is None else F.when(known.isNotNull(), bit)


def _wait_bounds() -> tuple[tuple[tuple[int, int | None], ...], ...]:
    """Per packed histogram: lower and upper bound of each class, microseconds."""
    quick, slow = WAIT_CLASSES_US
    bounds = (0, *quick, *slow)
    pairs = tuple((int(low or 0), high) for low, high in pairwise(bounds))
    return pairs[: len(quick)], pairs[len(quick) :]


def _waits(bounds: tuple[tuple[int, int | None], ...]) -> Column:
    """What one line adds to a packed histogram."""
    waits = F.col("wait_us")
    one: Column | None = None
    for place, (low, high) in enumerate(bounds):
        inside = waits >= low if high is None else (waits >= low) & (waits < high)
        unit = F.lit(1 << WAIT_CLASS_BITS * place).cast("long")
        one = F.when(inside, unit) if one is None else one.when(inside, unit)
    assert one is not None
    return F.when(among(WAITED), one)


def _bucket_width() -> Column:
    width = F.lit(micros(60))
    for answer, grain in GRAINS.items():
        width = F.when(F.col("answer") == answer.value, micros(grain.bucket_s)).otherwise(width)
    return width.cast("long")


def span(lo: str = "seq_lo", hi: str = "seq_hi") -> Column:
    """How many seqs lie between two columns, both included; 1 where no seq is known."""
    return F.coalesce(F.col(hi) - F.col(lo) + 1, F.lit(1))


def connections(bits: str = "conn_bits", most: str = "n") -> Column:
    """About how many connections the lines came over: at least 1, at most ``n``; 1 where the log does not say.

    Args:
        bits, most: the columns with the bits of the connections, and with the number of lines.
    """
    lines, used = F.col(most), F.coalesce(F.bit_count(F.col(bits)), F.lit(0))
    # Linear counting: m * ln(m / empty). A full map says "many"; no more than there were requests in any case.
    estimate = F.when(used >= 64, lines.cast("double")).otherwise(-64.0 * F.log(1.0 - used / F.lit(64.0)))
    return F.greatest(F.lit(1), F.least(lines, F.round(estimate).cast("long")))


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
