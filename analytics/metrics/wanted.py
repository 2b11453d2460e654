"""Which requests were wanted, and which were repeats: the one definition behind amplification, waste and budgets.

A *repeat* is a request that would not have been needed, since its answer was known already:

* a request that says itself that it is a retry (``Trickle-Attempt`` above 1);
* a refusal (4xx but 409, 5xx) or another end of channel (200 with ``Lp-Trickle-Closed``) after the first of its
  *stretch*: what one client got on one channel, whatever the statuses and the nodes, with pauses of at most
  ``slow_gap_s`` (before a 470: ``gap_s``, since falling behind now and then is no repetition);
* a GET that was given up within two seconds (:data:`~analytics.answers.PATIENCE_US`), after the first of
  its stretch, with pauses of at most ``gap_s``: one that waits would have been answered in the end;
* a GET or POST of a seq that the same reader has asked for, or posted, already: within the same bucket for answers
  with bytes and for posts, within the same stretch for empty segments.

All others are *wanted*. A client that the log does not name is its network, as far as refusals tell it. A crowd behind
one name or network is wanted as a whole: where each connection asked about once, and it was soon over or too little to
be a storm (``crowd_s``, ``anonymous_s``, ``warn_hits_alone``).

Each row of the roll-up gets a count of its own, so that the figures add up whichever way rows are put together: the
repeats of all channels are those of all nodes, of all releases, of all minutes. What is counted is a lower bound: where
clients do not number their attempts, the one that is answered in the end is not known to be a retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from tricklecast.analytics.answers import COUNTED, GRAINS, REPEATABLE, Answer, among
from tricklecast.analytics.durations import MINUTE_US, micros
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.repeats import connections, distinct_seqs, readers
from tricklecast.analytics.rollup import SLOTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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

_STRETCH: Final = ("who", "channel", "place")


def as_judged(quiet: DataFrame) -> DataFrame:
    """Sums of rows in which nothing was repeated (:mod:`analytics.divided`), with the columns of
    :func:`judged`; those that the sums do not have are null."""
    known = {"answer": f"'{Answer.OK}'", "wanted": "n", "wasted_bytes": "0D", "wasted_us": "0D"}
    known |= {name: name for name in quiet.columns if name in JUDGED}
    return quiet.selectExpr(*(f"{known.get(name, 'NULL')} AS {name}" for name in JUDGED))


def judged(rollup: DataFrame, params: StormParams) -> DataFrame:
    """The exchanges of a roll-up, each row with how many of its requests were wanted.

    Returns:
        per row of the roll-up, events and unparsable lines left out: its key; ``minute_us``, when the minute of its
        bucket began; ``n`` requests and ``wanted`` of them, 0 to ``n``; ``bytes_out`` body bytes sent, ``bytes`` of
        either direction; ``wasted_bytes``, ``wasted_us``: the repeats' part of the bytes and of the handling time.
    """
    exchanges = rollup.where(~among((Answer.EVENT, Answer.UNPARSABLE)))
    known = F.coalesce("client", "net").isNotNull()
    by_stretch = among((*COUNTED, Answer.ZERO_BYTE)) & known
    together = _in_stretches(exchanges.where(by_stretch), params)
    alone = _in_rows(exchanges.where(~by_stretch), params)
    columns = (*exchanges.columns, "wanted")
    return _priced(alone.select(*columns).unionAll(together.select(*columns)))


def _in_rows(rows: DataFrame, params: StormParams) -> DataFrame:
    """Adds ``wanted`` to rows that are judged by themselves."""
    # What is asked of a stretch in order to tell several readers from one, a row can answer for itself.
    busy = F.bit_count("slots") * (GRAINS[Answer.SERVED].bucket_s / SLOTS)
    placed = rows.withColumns({"seqs": distinct_seqs(), "busy_s": busy})
    again = F.greatest(F.lit(0), F.col("n") - F.col("seqs") * readers(params))
    once = among(REPEATABLE) & F.col("client").isNotNull()
    repeats = F.greatest(F.col("retried"), F.when(once, again).otherwise(0))
    return placed.withColumn("wanted", F.col("n") - repeats)


def _in_stretches(rows: DataFrame, params: StormParams) -> DataFrame:
    """Adds ``wanted`` to rows that are judged by what came before them."""
    empty = F.col("answer") == Answer.ZERO_BYTE.value
    # Seqs mean something on one node only; refusals of two nodes are the same refusal to the client. What was given up
    # was not refused.
    here = F.concat(F.lit("at "), F.coalesce("node", F.lit("")))
    given_up = F.col("answer") == Answer.ABANDONED.value
    place = F.when(empty, here).when(given_up, "waiting").otherwise("anywhere")
    kept = rows.withColumns({"who": F.coalesce("client", "net"), "place": place, "empty": empty})
    # Several statuses may share a second: the rest of the order makes the result the same in every run.
    ordered = Window.partitionBy(*_STRETCH).orderBy("first_us", "last_us", "answer", "node", "release", "net")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    pause = F.col("first_us") - F.max("last_us").over(before)
    short = empty | among((Answer.SEQ_MISSING, Answer.ABANDONED))
    allowed = F.when(short, micros(params.gap_s)).otherwise(micros(params.slow_gap_s))
    placed = kept.withColumns(
        {
            "starts": F.when(pause <= allowed, 0).otherwise(1),
            "asked_bits": F.lag("seq_bits").over(ordered),
            "asked_lo": F.lag("seq_lo").over(ordered),
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
    """Empty segments of a row that its readers, one per connection, had not been answered in the row before."""
    same = F.bit_count(F.col("seq_bits").bitwiseAND(F.col("asked_bits")))
    overlap = (F.col("seq_lo") <= F.col("asked_hi")) & (F.col("asked_lo") <= F.col("seq_hi"))
    # Where no seq is known, the same is assumed: nothing but repetition makes empty answers come every few seconds.
    asked = F.when(F.col("starts") == 1, 0).when(F.col("seq_bits").isNull(), 1).when(overlap, same).otherwise(0)
    return F.greatest(F.lit(0), distinct_seqs() - asked) * connections()


def _crowd(params: StormParams) -> Column:
    """Whether many clients share this name or network: each of their connections asked about once.

    The same question as for storms (:mod:`analytics.episodes`); and what is too little to be one is given
    the benefit of the doubt.
    """
    conns = connections("all_conns", "total")
    named = F.col("client").isNotNull()
    once_each = (conns > 1) & (F.col("total") < params.crowd_per_conn * conns)
    soon = F.when(named, micros(params.crowd_s)).otherwise(micros(params.anonymous_s))
    little = F.col("total") < params.warn_hits_alone
    unknown = ~named & F.col("all_conns").isNull()
    return unknown | (once_each & (little | (F.col("length_us") <= soon)))


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
