"""The worst minute of a node, and the minutes in which retries exceeded their budget.

A budget bounds amplification whatever the clients do: with retries at most 10 % of a client's requests (Google SRE
book, "Handling Overload") it stays near 1.1; across a whole server, Linkerd and Envoy allow 20 %. A share alone would
be broken by the single retry of a quiet minute; so some are free: of a client ``client_budget_floor`` a minute, of a
node ``node_budget_rps`` a second (Linkerd's ``minRetriesPerSecond``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics.report.figures import BudgetBreak, NodeMinute

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from analytics.metrics.parts import Row
    from analytics.params import StormParams

MINUTE_S: Final = 60

MAX_SUSPECTS: Final = 10_000
"""Clients whose minutes are looked at, those with the most repeats: a bound on memory, far above what anybody reads."""


def node_minutes(judged: DataFrame) -> DataFrame:
    """Requests and repeats per node and minute."""
    return judged.groupBy("node", "minute_us").agg(*_counted())


def worst_minutes(minutes: DataFrame, params: StormParams) -> DataFrame:
    """The busy minute with the highest amplification, as one row of :func:`node_minutes`."""
    # n / (n - repeats) grows with repeats / n, which is never a division by zero.
    share = F.col("repeats") / F.col("requests")
    busy = minutes.where((F.col("requests") >= params.busy_minute) & (F.col("repeats") > 0))
    return busy.orderBy(share.desc(), F.col("requests").desc(), "minute_us", "node").limit(1)


def worst_minute(rows: Iterable[Row]) -> NodeMinute | None:
    """The collected rows of :func:`worst_minutes`."""
    for row in rows:
        return NodeMinute(row["node"], row["minute_us"], row["requests"], row["repeats"])
    return None


def node_breaks(minutes: DataFrame, params: StormParams) -> DataFrame:
    """Node-minutes beyond their budget: ``scope``, ``name``, ``minute_us``, ``requests``, ``repeats``."""
    much = F.col("repeats") > params.node_budget * F.col("requests")
    fast = F.col("repeats") > params.node_budget_rps * MINUTE_S
    return _scoped(minutes.where(much & fast), "node")


def client_breaks(judged: DataFrame, params: StormParams) -> DataFrame:
    """Client-minutes beyond their budget, with the columns of :func:`node_breaks`."""
    repeats = F.col("n") - F.col("wanted")
    # Nearly all clients never repeat anything: only the others' minutes are worth a shuffle.
    suspects = (
        judged.where((repeats > 0) & F.col("client").isNotNull())
        .groupBy("client")
        .agg(F.sum(repeats).alias("repeats"))
        .where(F.col("repeats") >= params.client_budget_floor)
        .orderBy(F.col("repeats").desc(), "client")
        .limit(MAX_SUSPECTS)
        .select("client")
    )
    theirs = judged.join(F.broadcast(suspects), "client", "left_semi")
    minutes = theirs.groupBy("client", "minute_us").agg(*_counted())
    much = F.col("repeats") > params.client_budget * F.col("requests")
    return _scoped(minutes.where(much & (F.col("repeats") >= params.client_budget_floor)), "client")


def listed(breaks: DataFrame, params: StormParams) -> DataFrame:
    """The worst breaks, at most ``max_budget_breaks``."""
    order = (F.col("repeats").desc(), "minute_us", "scope", "name")
    return breaks.orderBy(*order).limit(params.max_budget_breaks)


def counted(breaks: DataFrame) -> DataFrame:
    """One row, ``count``: how many there are."""
    return breaks.agg(F.count(F.lit(1)).alias("count"))


def budget_breaks(rows: Iterable[Row]) -> tuple[BudgetBreak, ...]:
    """The collected rows of :func:`listed`, the most retries first."""
    found = [BudgetBreak(row["scope"], row["name"], row["minute_us"], row["requests"], row["repeats"]) for row in rows]
    return tuple(sorted(found, key=lambda one: (-one.retries, one.minute_us, one.scope, one.name or "")))


def _counted() -> list[Column]:
    return [F.sum("n").alias("requests"), F.sum(F.col("n") - F.col("wanted")).alias("repeats")]


def _scoped(minutes: DataFrame, scope: str) -> DataFrame:
    return minutes.select(F.lit(scope).alias("scope"), F.col(scope).alias("name"), "minute_us", "requests", "repeats")
