"""A roll-up in two: the few rows that a storm could be made of, and the sums of all others.

Nearly all rows say that somebody got, or posted, each segment once. All that a report says of those are sums: by who
and by when. With them added up once, what follows takes no longer for more healthy clients, or for more hours of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import REPEATABLE, Answer, among, quoted
from tricklecast.analytics.durations import MINUTE_US
from tricklecast.analytics.query import query
from tricklecast.analytics.repeats import distinct_seqs_sql, shared_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_HEALTHY: Final = (Answer.OK, Answer.UNPARSABLE, *REPEATABLE)

_AGAIN: Final = f"n > {distinct_seqs_sql()}"

QUIET: Final = f"""(answer IN ({quoted(_HEALTHY)}) AND coalesce(retried, 0) = 0
    AND NOT (answer IN ({quoted(REPEATABLE)}) AND {_AGAIN}))"""
"""Whether nothing was refused or repeated in a row, as SQL."""

FEW_ROWS: Final = 200_000
"""Rows up to which one core is quicker than two that have to exchange them."""


@dataclass(frozen=True, slots=True)
class Divided:
    """A roll-up, and what there is to know of it.

    Attributes:
        rollup: all of it; step_us: width of a step of the timeline, microseconds.
        telling: its rows that are not ``quiet``; and all posts of a client that repeated one on the same channel, which
            ``kin`` tells: two more columns.
        sums: of the quiet rows: ``n``, ``first_us``, ``last_us``, ``bytes_out``, ``bytes``. Once by ``node``,
            ``channel``, ``release``, ``client``; and once, with ``timed``, by ``node``, ``minute_us``, and the steps of
            the timeline that they lasted from and to.
        rows: how many are telling, once that is known.
    """

    rollup: DataFrame
    step_us: int
    telling: DataFrame
    sums: DataFrame
    rows: int = 0

    def settled(self) -> Divided:
        """All but the roll-up computed, once, without the plan that makes it: for the many queries that follow, each of
        which would plan that again."""
        telling, sums = self.telling.localCheckpoint(), self.sums.localCheckpoint()
        counts = telling.selectExpr("'telling' AS of", "1 AS one").unionAll(sums.selectExpr("'sums'", "1"))
        rows = {row["of"]: row["count"] for row in counts.groupBy("of").count().collect()}
        n_telling, n_sums = (rows.get(name, 0) for name in ("telling", "sums"))
        return replace(self, telling=together(telling, n_telling), sums=together(sums, n_sums), rows=n_telling)

    @property
    def who(self) -> DataFrame:
        """The sums by who."""
        return self.sums.where("NOT timed")

    @property
    def times(self) -> DataFrame:
        """The sums by when."""
        return self.sums.where("timed")

    def storm_rows(self) -> DataFrame:
        """The rows in which :func:`analytics.job.find_storms` finds what it would find in the whole
        roll-up."""
        return self.telling.where(f"kin OR answer <> '{Answer.POST}'")

    def arrivals(self) -> DataFrame:
        """When lines arrived on which node: ``node``, ``bucket_us``, ``n``, ``first_us``, ``last_us``, ``event``."""
        same = ("n", "first_us", "last_us")
        telling = self.telling.where("NOT quiet").select("node", "bucket_us", *same, "event")
        return telling.unionAll(self.times.selectExpr("node", "minute_us AS bucket_us", *same, "NULL AS event"))

    def answered(self) -> DataFrame:
        """When clients got segments, or posted them: ``answer``, ``client``, ``last_us``."""
        telling = self.telling.where(among(REPEATABLE)).select("answer", "client", "last_us")
        return telling.unionAll(self.who.selectExpr(f"'{Answer.SERVED}' AS answer", "client", "last_us"))


def divided(rollup: DataFrame, step_us: int) -> Divided:
    """Divides a roll-up; nothing is computed yet.

    Args:
        rollup: persisted, since it is gone through several times.
        step_us: width of a step of the timeline, microseconds.
    """
    return Divided(rollup, step_us, _telling(rollup), _sums(rollup, step_us))


def together(frame: DataFrame, rows: int) -> DataFrame:
    """A few rows in one part, so that no query has to move them: moving takes longer than all else."""
    return frame.coalesce(1) if rows <= FEW_ROWS else frame


def _telling(rollup: DataFrame) -> DataFrame:
    # Which posts are repeated from one bucket to the next is told as in analytics.islands; but all posts of a publisher
    # are kept, so that every row has the neighbours there that it has here.
    before = ", ".join(f"lag({name}) OVER near AS {name}_before" for name in ("seq_lo", "seq_hi", "seq_bits"))
    posts = f"""
        SELECT '{Answer.POST}' AS answer, client, channel, node, bucket_us, sum(n) AS n, max({_AGAIN}) AS again,
            min(seq_lo) AS seq_lo, max(seq_hi) AS seq_hi, bit_or(seq_bits) AS seq_bits
        FROM {{rollup}} WHERE answer = '{Answer.POST}' AND client IS NOT NULL
        GROUP BY client, channel, node, bucket_us"""
    repeating = f"""
        SELECT DISTINCT answer, client, channel
        FROM (SELECT *, {before} FROM ({posts})
            WINDOW near AS (PARTITION BY client, channel, node ORDER BY bucket_us))
        WHERE again OR {_AGAIN} OR {shared_sql("before")}"""
    return query(
        f"""
        SELECT /*+ BROADCAST(k) */ r.*, k.answer IS NOT NULL AS kin
        FROM (SELECT *, {QUIET} AS quiet FROM {{rollup}}) r
        LEFT JOIN ({repeating}) k ON r.answer = k.answer AND r.client = k.client AND r.channel <=> k.channel
        WHERE NOT quiet OR k.answer IS NOT NULL""",
        rollup=rollup,
    )


def _sums(rollup: DataFrame, step_us: int) -> DataFrame:
    # As floats: a hostile log's numbers may add up to more than an integer holds.
    sent, got = (f"coalesce(cast({name} AS double), 0)" for name in ("bytes_out", "bytes_in"))
    sums = f"""sum(n) AS n, min(first_us) AS first_us, max(last_us) AS last_us, sum({sent}) AS bytes_out,
        sum({got} + {sent}) AS bytes"""
    minute = f"bucket_us - bucket_us % {MINUTE_US}"
    quiet = f"SELECT * FROM {{rollup}} WHERE answer <> '{Answer.UNPARSABLE}' AND {QUIET}"
    return query(
        f"""
        SELECT node, channel, release, client, NULL AS minute_us, {sums}, false AS timed
        FROM ({quiet}) GROUP BY node, channel, release, client
        UNION ALL
        SELECT node, NULL, NULL, NULL, {minute}, {sums}, true
        FROM ({quiet}) GROUP BY node, {minute}, first_us DIV {step_us}, last_us DIV {step_us}""",
        rollup=rollup,
    )
