"""Nearly all figures in one aggregation: per kind of figure and name, the same sums.

Each figure by itself would be a plan of its own, and planning costs more than running over so few rows. So the judged
rows are first added up twice, over *who* and over *time*; the sums are copied once per kind that they count for, and
added up again by kind and name. Of each kind only the rows that a report shows are kept, so that nothing that is
collected grows with the number of clients, channels or minutes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from tricklecast.analytics.answers import FAILURES, Answer, quoted
from tricklecast.analytics.durations import MINUTE_US
from tricklecast.analytics.metrics.timeline import MAX_STEPS
from tricklecast.analytics.metrics.wanted import as_judged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tricklecast.analytics.divided import Divided
    from tricklecast.analytics.params import StormParams

MAX_BREAKS: Final = 10_000
"""Broken budgets that are counted, per scope; more than anybody looks at, and little memory."""

MAX_SUSPECTS: Final = 10_000
"""Clients whose minutes are held against a budget: those with the most repeats."""

MINUTE_S: Final = 60


class Kind(StrEnum):
    """What a row of the cube is about: ``name``, ``at`` and ``to`` mean what is said here, and are null otherwise."""

    ALL = "all"
    """The whole log."""
    NODE = "node"
    CHANNEL = "channel"
    RELEASE = "release"
    CLIENT = "client"
    """A client with repeats."""
    NET = "net"
    """A network with repeats."""
    BUSY_MINUTE = "busy_minute"
    """The node ``name`` in the minute ``at``, with enough requests to be judged."""
    NODE_BREAK = "node_break"
    """The same, if it broke its budget."""
    CLIENT_BREAK = "client_break"
    """The client ``name`` in the minute ``at``, if it broke its budget."""
    STEPS = "steps"
    """Rows of the roll-up that began in the timeline's step ``at`` and ended in the step ``to``, since the epoch."""


_SUMS: Final = (
    "requests",
    "repeats",
    "failures",
    "refused",
    "recovered",
    "bytes_out",
    "bytes",
    "wasted_bytes",
    "wasted_us",
)
"""Sums per row; ``failures`` are requests that failed, ``refused`` the wanted ones of them, ``recovered`` those of
these whose client was answered later."""

_FAILED: Final = f"answer IN ({quoted(FAILURES)})"
_UNANSWERED: Final = f"answer IN ({quoted((*FAILURES, Answer.ABANDONED))})"


def cube(judged: DataFrame, parts: Divided, params: StormParams) -> DataFrame:
    """The figures' rows: ``kind`` (:class:`Kind`), ``name``, ``at``, ``to``, the sums, ``clients``.

    Args:
        judged: :func:`analytics.metrics.wanted.judged` of the rows of ``parts`` that are not quiet,
            persisted.
    """
    who, times = (judged.unionAll(as_judged(sums)) for sums in (parts.who, parts.times))
    inputs = (_who(who), _times(times, parts.step_us), _networks(judged), _suspects(judged, parts.rollup, params))
    rows = inputs[0]
    for other in inputs[1:]:
        rows = rows.unionAll(other)
    sums = rows.groupBy("kind", "name", "at", "to").agg(
        *(F.sum(name).alias(name) for name in _SUMS), F.approx_count_distinct("client").alias("clients")
    )
    return _shown(sums.where(_judged(params)), params)


def _who(judged: DataFrame) -> DataFrame:
    """Over who: the client, on which channel of which node, with which release."""
    sums = judged.groupBy("node", "channel", "release", "client").agg(
        *_sums(),
        F.expr(f"max(IF({_UNANSWERED}, NULL, last_us)) AS answered_us"),
        F.expr(f"min(IF({_FAILED} AND wanted > 0, first_us, NULL)) AS first_refused_us"),
        F.expr(f"max(IF({_FAILED} AND wanted > 0, last_us, NULL)) AS last_refused_us"),
    )
    # An answer after the last refusal made up for all of them, one after the first for all but the last.
    recovered = """CASE WHEN client IS NULL THEN 0 WHEN answered_us > last_refused_us THEN refused
        WHEN answered_us > first_refused_us THEN refused - 1 ELSE 0 END"""
    kinds = f"""
        named_struct('kind', '{Kind.ALL}', 'name', cast(NULL AS string)),
        named_struct('kind', '{Kind.NODE}', 'name', node),
        named_struct('kind', '{Kind.CHANNEL}', 'name', channel),
        named_struct('kind', '{Kind.RELEASE}', 'name', release),
        IF(repeats > 0 AND client IS NOT NULL, named_struct('kind', '{Kind.CLIENT}', 'name', client), NULL)"""
    counted = sums.withColumn("recovered", F.expr(recovered))
    copied = counted.selectExpr("*", f"inline(array_compact(array({kinds})))")
    return _row(copied, "kind", "name", client="client", sums=_SUMS)


def _times(judged: DataFrame, width_us: int) -> DataFrame:
    """Over time: node and minute, and steps of the timeline."""
    steps = (F.expr(f"first_us DIV {width_us}").alias("first"), F.expr(f"last_us DIV {width_us}").alias("last"))
    sums = judged.groupBy("node", "minute_us", *steps).agg(*_sums()[:3])
    minute = "named_struct('kind', '{}', 'name', node, 'at', minute_us, 'to', cast(NULL AS bigint))"
    kinds = f"""{minute.format(Kind.BUSY_MINUTE)}, {minute.format(Kind.NODE_BREAK)},
        named_struct('kind', '{Kind.STEPS}', 'name', cast(NULL AS string), 'at', first, 'to', last)"""
    return _row(sums.selectExpr("*", f"inline(array({kinds}))"), "kind", "name", "at", "to", sums=_SUMS[:3])


def _networks(judged: DataFrame) -> DataFrame:
    """Repeats by network, which the log says of failures only."""
    repeats = judged.where("n > wanted AND net IS NOT NULL").selectExpr("net", "n AS requests", "n - wanted AS repeats")
    return _row(repeats, f"'{Kind.NET}'", "net", sums=_SUMS[:2])


def _suspects(judged: DataFrame, rollup: DataFrame, params: StormParams) -> DataFrame:
    """The minutes of clients that may have broken their budget. Nearly all clients never repeat anything."""
    repeating = judged.where("n > wanted AND client IS NOT NULL").groupBy("client")
    most = repeating.agg(F.expr("sum(n - wanted) AS repeats")).where(F.col("repeats") >= params.client_budget_floor)
    suspects = most.orderBy(F.col("repeats").desc(), "client").limit(MAX_SUSPECTS).select("client")
    minute = f"bucket_us - bucket_us % {MINUTE_US} AS minute_us"
    every = rollup.selectExpr("client", minute, "n AS requests", "0L AS repeats")
    repeated = judged.where("n > wanted").selectExpr("client", "minute_us", "0L AS requests", "n - wanted AS repeats")
    theirs = every.unionAll(repeated).join(F.broadcast(suspects), "client", "left_semi")
    return _row(theirs, f"'{Kind.CLIENT_BREAK}'", "client", "minute_us", sums=_SUMS[:2])


def _sums() -> list[Column]:
    return [
        F.expr(expression)
        for expression in (
            "sum(n) AS requests",
            "sum(n - wanted) AS repeats",
            f"sum(IF({_FAILED}, n, 0)) AS failures",
            f"sum(IF({_FAILED}, wanted, 0)) AS refused",
            "sum(bytes_out) AS bytes_out",
            "sum(bytes) AS bytes",
            "sum(wasted_bytes) AS wasted_bytes",
            "sum(wasted_us) AS wasted_us",
        )
    ]


def _row(
    frame: DataFrame,
    kind: str,
    name: str,
    at: str = "NULL",
    to: str = "NULL",
    *,
    client: str = "NULL",
    sums: tuple[str, ...],
) -> DataFrame:
    """A frame's rows in the cube's columns; what it does not have is null."""
    return frame.selectExpr(
        f"{kind} AS kind",
        f"{name} AS name",
        f"cast({at} AS bigint) AS at",
        f"cast({to} AS bigint) AS to",
        f"cast({client} AS string) AS client",
        *(f"cast({name if name in sums else 'NULL'} AS {_type(name)}) AS {name}" for name in _SUMS),
    )


def _type(name: str) -> str:
    return "double" if "bytes" in name or name == "wasted_us" else "bigint"


def _judged(params: StormParams) -> str:
    """Which rows a report could show, of those kinds that have a threshold."""
    return f"""CASE kind
        WHEN '{Kind.BUSY_MINUTE}' THEN repeats > 0 AND requests >= {params.busy_minute}
        WHEN '{Kind.NODE_BREAK}' THEN repeats > {params.node_budget} * requests
            AND repeats > {params.node_budget_rps * MINUTE_S}
        WHEN '{Kind.CLIENT_BREAK}' THEN repeats > {params.client_budget} * requests
            AND repeats >= {params.client_budget_floor}
        ELSE true END"""


def _shown(sums: DataFrame, params: StormParams) -> DataFrame:
    """The first rows of each kind: by repeats, a minute by its amplification."""
    limits = {
        Kind.ALL: 1,
        Kind.NODE: params.max_shares,
        Kind.CHANNEL: params.max_shares,
        Kind.RELEASE: params.max_shares,
        Kind.CLIENT: params.max_offenders,
        Kind.NET: params.max_offenders,
        Kind.BUSY_MINUTE: 1,
        Kind.NODE_BREAK: MAX_BREAKS,
        Kind.CLIENT_BREAK: MAX_BREAKS,
        # A row is at most a minute long, and a step at least a second.
        Kind.STEPS: MAX_STEPS * (MINUTE_S + 1),
    }
    cases = " ".join(f"WHEN '{kind}' THEN {limit}" for kind, limit in limits.items())
    # n / (n - repeats) grows with repeats / n, which is never a division by zero.
    weight = F.expr(f"IF(kind = '{Kind.BUSY_MINUTE}', repeats / requests, repeats)").desc()
    order = Window.partitionBy("kind").orderBy(weight, F.col("requests").desc(), "at", "to", "name")
    ranked = sums.withColumn("rank", F.row_number().over(order))
    return ranked.where(f"rank <= CASE kind {cases} END").drop("rank")
