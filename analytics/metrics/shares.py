"""Where the traffic was wasted, by node, channel and release; and who wasted it, in a Pareto order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from analytics.report.figures import Offender, Share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.metrics.parts import Row
    from analytics.params import StormParams


def by(judged: DataFrame, name: str, params: StormParams) -> DataFrame:
    """The traffic per value of a column, the most repeats first, then the most requests; at most ``max_shares``."""
    sums = judged.groupBy(F.col(name).alias("name")).agg(
        F.sum("n").alias("requests"),
        F.sum(F.col("n") - F.col("wanted")).alias("repeats"),
        F.sum("bytes_out").alias("bytes_out"),
        F.sum("wasted_bytes").alias("wasted_bytes"),
        F.approx_count_distinct("client").alias("clients"),
    )
    worst = (F.col("repeats").desc(), F.col("requests").desc(), F.col("name"))
    return sums.orderBy(*worst).limit(params.max_shares)


def shares(rows: Iterable[Row]) -> tuple[Share, ...]:
    """The collected rows of :func:`by`, in their order."""
    found = [
        Share(
            name=row["name"],
            requests=row["requests"],
            repeats=row["repeats"],
            bytes_out=round(row["bytes_out"]),
            wasted_bytes=round(row["wasted_bytes"]),
            clients=row["clients"],
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda share: (-share.repeats, -share.requests, share.name or "")))


def worst(judged: DataFrame, name: str, params: StormParams) -> DataFrame:
    """Who made the most repeats, among those that the log names; at most ``max_offenders``."""
    repeats = F.col("n") - F.col("wanted")
    sums = judged.where((repeats > 0) & F.col(name).isNotNull()).groupBy(F.col(name).alias("name"))
    return (
        sums.agg(F.sum(repeats).alias("repeats")).orderBy(F.col("repeats").desc(), "name").limit(params.max_offenders)
    )


def offenders(rows: Iterable[Row], repeats: int, episodes: Mapping[str, int]) -> tuple[Offender, ...]:
    """The collected rows of :func:`worst`, with their share of all repeats.

    Args:
        repeats: all repeats of the log.
        episodes: how many episodes a name is found in.
    """
    found = []
    so_far = 0
    for row in sorted(rows, key=lambda row: (-row["repeats"], row["name"])):
        so_far += row["repeats"]
        share, cumulative = row["repeats"] / repeats, so_far / repeats
        found.append(Offender(row["name"], row["repeats"], share, cumulative, episodes.get(row["name"], 0)))
    return tuple(found)
