"""Which requests were wanted, and which were repeats: the one definition behind amplification, waste and budgets.

A *repeat* is a request that would not have been needed, since its answer was known already:

* a request that says itself that it is a retry (``Trickle-Attempt`` above 1);
* a refusal (404, 470, 429, 5xx) or another end of channel (200 with ``Lp-Trickle-Closed``) after the first of its
  *stretch*: what one client got on one channel of one node with pauses of at most ``gap_s``, whatever the statuses;
* a GET or POST of a seq that the same reader has asked for, or posted, already: within the same bucket for answers
  with bytes and for posts, within the same stretch for empty segments.

All others are *wanted*. Requests whose client the log does not say are judged by the first rule alone, and so are those
that nobody repeats in a loop. A crowd behind one client key, of which each connection asks about once within
``crowd_s``, is wanted as a whole.

Each row of the roll-up gets a count of its own, so that the figures add up whichever way rows are put together: the
repeats of all channels are those of all nodes, of all releases, of all minutes. What is counted is a lower bound: where
clients do not number their attempts, the one that is answered in the end is not known to be a retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.answers import FAILURES, REPEATABLE, Answer, among
from analytics.params import StormParams, micros
from analytics.rollup import connections, readers, span

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_US: Final = 60_000_000

TOLD: Final = (*FAILURES, Answer.ENDED)
"""Answers after which there is nothing more to be learnt by asking again at once."""

JUDGED: Final = (
    "answer",
    "node",
    "channel",
    "release",
    "client",
    "net",
    "minute_us",
    "first_us",
    "last_us",
    "n",
    "wanted",
    "bytes_out",
    "bytes",
    "wasted_bytes",
    "wasted_us",
)
"""Columns of :func:`judged`."""

_STRETCH: Final = ("node", "channel", "client", "empty")


def judged(rollup: DataFrame, params: StormParams) -> DataFrame:
    """The exchanges of a roll-up, each row with how many of its requests were wanted.

    Returns:
        per row of the roll-up, events and unparsable lines left out: its key; ``minute_us``, when the minute of its
        bucket began; ``n`` requests and ``wanted`` of them, 0 to ``n``; ``bytes_out`` body bytes sent, ``bytes`` of
        either direction; ``wasted_bytes``, ``wasted_us``: the repeats' part of the bytes and of the handling time.
    """
    exchanges = rollup.where(~among((Answer.EVENT, Answer.UNPARSABLE)))
    by_stretch = F.coalesce(among((*TOLD, Answer.ZERO_BYTE)) & F.col("client").isNotNull(), F.lit(False))
    alone = exchanges.where(~by_stretch).withColumn("wanted", F.col("n") - _repeats_in_row(params))
    together = _in_stretches(exchanges.where(by_stretch), params)
    return _priced(alone.unionByName(together.select(*alone.columns)))


def _repeats_in_row(params: StormParams) -> Column:
    known = F.coalesce(among(REPEATABLE) & F.col("client").isNotNull(), F.lit(False))
    again = F.greatest(F.lit(0), F.col("n") - distinct_seqs() * readers(params))
    return F.greatest(F.col("retried"), F.when(known, again).otherwise(0))


def distinct_seqs() -> Column:
    """How many seqs a row is about: exact where they lie within 64 of each other, else as many as there can be."""
    return F.when(span() <= 64, F.greatest(F.lit(1), F.coalesce(F.bit_count("seq_bits"), F.lit(1)))).otherwise(
        F.least(F.col("n"), span())
    )


def _in_stretches(rows: DataFrame, params: StormParams) -> DataFrame:
    """Adds ``wanted`` to rows that are judged by what came before them."""
    kept = rows.withColumn("empty", F.col("answer") == Answer.ZERO_BYTE.value)
    # Several statuses may share a second: the rest of the order makes the result the same in every run.
    ordered = Window.partitionBy(*_STRETCH).orderBy("first_us", "last_us", "answer", "release", "net")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    pause = F.col("first_us") - F.max("last_us").over(before)
    placed = kept.withColumns(
        {
            "starts": F.when(pause <= micros(params.gap_s), 0).otherwise(1),
            "asked_hi": F.lag("seq_hi").over(ordered),
        }
    )
    numbered = placed.withColumn("stretch", F.sum("starts").over(ordered))
    whole = Window.partitionBy(*_STRETCH, "stretch")
    stretches = numbered.withColumns(
        {
            "length_us": F.max("last_us").over(whole) - F.min("first_us").over(whole),
            "total": F.sum("n").over(whole),
            "all_conns": F.bit_or("conn_bits").over(whole),
        }
    )
    first_hand = F.col("n") - F.col("retried")
    needed = F.when(F.col("empty"), _new_empties()).when(_crowd(params), F.col("n")).otherwise(F.col("starts"))
    return stretches.withColumn("wanted", F.least(first_hand, needed))


def _new_empties() -> Column:
    """Empty segments of a row that had not been asked for in this stretch, by each of its connections."""
    overlap = F.coalesce(F.col("asked_hi") - F.col("seq_lo") + 1, F.lit(1))
    asked = F.when(F.col("starts") == 1, 0).otherwise(F.greatest(F.lit(0), overlap))
    return F.greatest(F.lit(0), distinct_seqs() - asked) * connections()


def _crowd(params: StormParams) -> Column:
    """Whether many clients share this key: each of their connections asked about once, and then it was over."""
    conns = connections(bits="all_conns", most="total")
    once_each = F.col("total") < params.crowd_per_conn * conns
    return once_each & (conns > 1) & (F.col("length_us") <= micros(params.crowd_s))


def _priced(rows: DataFrame) -> DataFrame:
    """Adds what the repeats cost: their part of the row's bytes and time."""

    # As floats: a hostile log's numbers may add up to more than an integer holds.
    def amount(name: str) -> Column:
        return F.coalesce(F.col(name).cast("double"), F.lit(0.0))

    moved = amount("bytes_in") + amount("bytes_out")
    repeated = (F.col("n") - F.col("wanted")) / F.col("n")
    return rows.withColumns(
        {
            "minute_us": F.col("bucket_us") - F.col("bucket_us") % MINUTE_US,
            "wanted": F.col("wanted").cast("long"),
            "bytes_out": amount("bytes_out"),
            "bytes": moved,
            "wasted_bytes": moved * repeated,
            "wasted_us": amount("dur_us") * repeated,
        }
    ).select(*JUDGED)
