"""How well requests ended: first-try and eventual success, retry ratio, goodput, and what the repeats cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from analytics.answers import FAILURES, among
from analytics.report.figures import Success

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.metrics.parts import Row


def outcomes(judged: DataFrame) -> DataFrame:
    """Sums over all requests, one row per kind of ending: ``failed`` or not."""
    failed = among(FAILURES)
    return judged.groupBy(failed.alias("failed")).agg(
        F.sum("n").alias("n"),
        F.sum("wanted").alias("wanted"),
        F.sum("bytes").alias("bytes"),
        F.sum("wasted_bytes").alias("wasted_bytes"),
        F.sum("wasted_us").alias("wasted_us"),
    )


def recoveries(judged: DataFrame) -> DataFrame:
    """One row, ``recovered``: wanted requests that failed, but whose client was answered on that channel later."""
    named = judged.where(F.col("client").isNotNull())
    failed = named.where(among(FAILURES) & (F.col("wanted") > 0))
    failed = failed.select("client", "channel", "last_us", "wanted")
    answered = named.where(~among(FAILURES)).groupBy("client", "channel").agg(F.max("last_us").alias("answered_us"))
    same = failed["client"].eqNullSafe(answered["client"]) & failed["channel"].eqNullSafe(answered["channel"])
    later = failed.join(answered, same & (F.col("answered_us") > F.col("last_us")))
    return later.agg(F.coalesce(F.sum("wanted"), F.lit(0)).alias("recovered"))


def success(rows: Iterable[Row], recovered: int) -> Success:
    """The collected rows of :func:`outcomes`, and the figure of :func:`recoveries`, as one answer."""
    rows = list(rows)
    n, wanted = _total(rows, "n"), _total(rows, "wanted")
    at_once = sum(row["wanted"] for row in rows if not row["failed"])
    moved, wasted = _total(rows, "bytes"), _total(rows, "wasted_bytes")
    return Success(
        first_try=at_once / wanted if wanted else 1.0,
        eventual=(at_once + recovered) / wanted if wanted else 1.0,
        retry_ratio=(n - wanted) / wanted if wanted else float(n),
        goodput=1 - wasted / moved if moved else 1.0,
        wasted_requests=round(n - wanted),
        wasted_bytes=round(wasted),
        wasted_handler_s=_total(rows, "wasted_us") / 1e6,
    )


def _total(rows: Iterable[Row], name: str) -> float:
    return float(sum(row[name] for row in rows))
