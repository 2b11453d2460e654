"""How much of the traffic was wanted, and how far the log can be trusted: from the roll-up and the islands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from analytics.answers import FAILURES, REPEATABLE, WATCHED, Answer, among
from analytics.report.figures import Quality as Quality
from analytics.report.figures import Totals as Totals
from analytics.rollup import with_hits
from analytics.schema import EXPECTED
from trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.params import StormParams


def answer_totals(rollup: DataFrame, params: StormParams) -> DataFrame:
    """One row per kind of answer: sums, and ``repeats`` as far as one bucket can tell."""
    beyond_first = F.when(among(REPEATABLE), F.greatest(F.col("hits") - 1, F.lit(0))).otherwise(0)
    # Failures are judged by their stretches (:func:`island_repeats`), which need a client.
    judged_there = among(WATCHED) & ~among(REPEATABLE) & F.col("client").isNotNull()
    repeats = F.when(judged_there, 0).otherwise(F.greatest(F.col("retried"), beyond_first))
    dropped = F.when(F.col("event") == Event.LOG_DROPPED.value, F.col("n")).otherwise(0)
    return (
        with_hits(rollup, params)
        .groupBy("answer")
        .agg(
            F.sum("n").alias("n"),
            F.sum(repeats).alias("repeats"),
            F.try_sum("bytes_in").alias("bytes_in"),
            F.try_sum("bytes_out").alias("bytes_out"),
            F.try_sum("dur_us").alias("dur_us"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
            F.sum("anonymous").alias("anonymous"),
            F.sum(dropped).alias("dropped"),
            F.bit_or("present").alias("present"),
            F.collect_set("node").alias("nodes"),
            F.approx_count_distinct("client").alias("clients"),
        )
    )


def failed_clients(rows: list[Any]) -> tuple[int, int]:
    """About how many clients were refused for overload, and how many failed at all (summed over kinds of answer)."""
    clients = {row["answer"]: row["clients"] for row in rows}
    return clients.get(Answer.OVERLOAD.value, 0), sum(clients.get(answer.value, 0) for answer in FAILURES)


def island_repeats(islands: DataFrame) -> DataFrame:
    """One row, ``repeats``: requests beyond the first of each stretch of failures."""
    judged_here = islands.where(~among(REPEATABLE))
    return judged_here.agg(F.coalesce(F.sum(F.greatest(F.col("hits") - 1, F.lit(0))), F.lit(0)).alias("repeats"))


def summarise(rows: list[Any], repeats: int, damaged_files: tuple[str, ...]) -> tuple[Totals, Quality]:
    """The collected rows of :func:`answer_totals`, as one answer.

    Args:
        rows: at most one per kind of answer.
        repeats: what :func:`island_repeats` found.
    """
    counts = {row["answer"]: row["n"] for row in rows}
    lines = sum(counts.values())
    events, unparsable = counts.pop(Answer.EVENT.value, 0), counts.pop(Answer.UNPARSABLE.value, 0)
    times = [row[name] for row in rows for name in ("first_us", "last_us") if row[name] is not None]
    totals = Totals(
        requests=sum(counts.values()),
        repeats=repeats + sum(row["repeats"] for row in rows),
        by_answer=dict(sorted(counts.items())),
        bytes_in=_total(rows, "bytes_in"),
        bytes_out=_total(rows, "bytes_out"),
        handler_s=_total(rows, "dur_us") / 1e6,
        first_us=min(times, default=None),
        last_us=max(times, default=None),
        nodes=len({node for row in rows for node in row["nodes"]}),
    )
    seen = 0
    for row in rows:
        seen |= row["present"] or 0
    missing = tuple(name for place, name in enumerate(EXPECTED) if not seen >> place & 1)
    quality = Quality(
        lines=lines,
        unparsable=unparsable,
        events=events,
        dropped=_total(rows, "dropped"),
        anonymous=_total(rows, "anonymous"),
        missing_columns=missing if totals.requests else (),
        damaged_files=damaged_files,
    )
    return totals, quality


def _total(rows: list[Any], name: str) -> int:
    return sum(row[name] or 0 for row in rows)
