"""How many requests of a row, or of a stretch of rows, asked again for what had been asked for.

A failure counts whatever it was about. A segment is right *once* per seq and reader: only what exceeds that counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics.answers import ONCE_PER_SEQ, Answer, among
from analytics.params import StormParams, micros

if TYPE_CHECKING:
    from pyspark.sql import Column

BITS: Final = 64

FULL: Final = 58
"""From so many bits of 64 on, a set of bits says no more than "many" (linear counting errs by a fifth there)."""

FEW: Final = 4
"""Up to so many connections, 64 bits count them well enough to be taken as they are."""

SLACK: Final = 1.5
"""More connections than that are an estimate, with an error of a tenth to a fifth: so much is allowed for it."""


def counted(bits: str) -> Column:
    """About how many distinct values a set of 64 bits stands for (linear counting: ``m * ln(m / empty)``); null if it
    is full."""
    used = F.coalesce(F.bit_count(F.col(bits)), F.lit(0))
    return F.when(used < FULL, -float(BITS) * F.log(1.0 - used / F.lit(float(BITS))))


def span(lo: str = "seq_lo", hi: str = "seq_hi") -> Column:
    """How many seqs lie between two columns, both included; 1 where no seq is known."""
    return F.coalesce(F.col(hi) - F.col(lo) + 1, F.lit(1))


def distinct_seqs() -> Column:
    """How many seqs a row is about, in its favour: exact where they lie within 64 of each other.

    Where no seq is known, nothing can be told to be a repeat (a reader on -1 gets another segment each time), except
    among empty answers: of those one per bucket may be right.
    """
    several = F.ceil(F.coalesce(counted("seq_bits") * SLACK, F.col("n").cast("double"))).cast("long")
    known = F.when(span() <= BITS, F.bit_count("seq_bits").cast("long")).otherwise(F.least(F.col("n"), span(), several))
    unknown = F.when(F.col("answer") == Answer.ZERO_BYTE.value, F.lit(1)).otherwise(F.col("n"))
    return F.when(F.col("seq_bits").isNull(), unknown).otherwise(F.least(F.col("n"), known))


def connections(bits: str = "conn_bits", most: str = "n") -> Column:
    """About how many connections the lines came over: at least 1, at most ``most``; 1 where the log does not say.

    Args:
        bits: the column with one bit per connection; most: the one with the number of requests.
    """
    estimate = F.coalesce(counted(bits), F.col(most).cast("double"))
    unknown = F.col(bits).isNull()
    return F.when(unknown, 1).otherwise(F.greatest(F.lit(1), F.least(F.col(most), F.round(estimate).cast("long"))))


def readers(params: StormParams) -> Column:
    """How many readers share a stretch's client key, as far as it matters for counting repeats.

    Several readers behind one NAT get every segment once *each*, over connections of their own, at the same moment. One
    or two segments that are asked for all the time, though, are a loop, even if every request opens a connection.

    Needs ``answer``, ``n``, ``conn_bits``, ``seqs``, ``busy_s``, ``first_us``, ``last_us`` of the stretch.
    """
    length = F.col("last_us") - F.col("first_us")
    steady = F.col("busy_s") * 1e6 >= params.same_seq_share * length
    lasting = (F.col("seqs") <= params.same_seq_few) & (length >= micros(params.same_seq_s)) & steady
    # Publishers do not share a key and a channel; and who publishes one segment twice repeats it.
    alone = lasting | (F.col("answer") == Answer.POST.value)
    conns = connections()
    shared = F.when(conns > FEW, F.ceil(conns * SLACK)).otherwise(conns)
    return F.when(alone, 1).otherwise(F.least(F.col("n"), shared))


def stretch_hits(params: StormParams) -> Column:
    """How many lines of a stretch count towards a storm: all, or the repeats and the request that they repeat."""
    repeated = F.col("n") - F.col("seqs") * readers(params) + 1
    return F.when(among(ONCE_PER_SEQ), F.greatest(F.lit(0), repeated)).otherwise(F.col("n")).cast("long")
