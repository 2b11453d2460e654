"""Paths to op, channel and seq (docs/reference/protocol.md, section 2), as the server reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.trickle.records import Op
from tricklecast.trickle.wire import CHANGEFEED, NEXT_ROUTE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CONTROL_PLANE: Final = (
    "api",
    "metrics",
    "healthz",
    "readyz",
    "docs",
    "redoc",
    "openapi.json",
    "dashboard",
    "static",
    "favicon.ico",
)
"""First path segments that name no channel where channels have no prefix (protocol, section 2)."""

_SEQ: Final = "^-?[0-9]{1,15}$"
_HOST: Final = "^[A-Za-z][A-Za-z0-9+.-]*://[^/]*"
_READS: Final = ("GET", "HEAD")
_WRITES: Final = ("POST", "PUT")


def with_route(rows: DataFrame, prefix: str) -> DataFrame:
    """Adds ``op``, ``channel`` and ``seq``, as far as ``method`` and ``path`` say them; ``path`` loses its query.

    Args:
        prefix: what the channels' paths begin with, ``/trickle``; ``""`` or ``/`` for the root.
    """
    from pyspark.sql import functions as F

    # Named step by step: an expression that is used twice would be computed twice.
    rows = rows.withColumn("path", _plain(F.col("path")))
    rows = rows.withColumn("_below", _below(F.col("path"), prefix.rstrip("/")))
    slash = F.instr("_below", "/")
    rows = rows.withColumn("_name", F.when(slash > 0, F.substring_index("_below", "/", 1)).otherwise(F.col("_below")))
    rest = F.expr("substring(_below, length(_name) + 2)")
    # As everywhere, a slash at the end means nothing; but "film/" has a tail, and it is empty.
    tail = F.when(slash > 0, F.when(F.endswith(rest, F.lit("/")), F.rtrim(rest, F.lit("/"))).otherwise(rest))
    rows = rows.withColumn("_tail", tail).withColumn("channel", _decoded(F.col("_name")))
    seq = F.when(F.col("_tail").rlike(_SEQ), F.col("_tail").try_cast("long"))
    return rows.withColumn("seq", seq).withColumn("op", _op()).drop("_below", "_name", "_tail")


def _plain(path: Column) -> Column:
    """Without query, scheme and host, and with runs of slashes made one."""
    from pyspark.sql import functions as F

    bare = F.substring_index(path, "?", 1)
    single = F.regexp_replace(F.regexp_replace(bare, _HOST, ""), "/+", "/")
    return F.when(F.contains(bare, F.lit("//")), single).otherwise(bare)


def _below(path: Column, prefix: str) -> Column:
    """What follows the prefix and a slash; null if the path is not below it."""
    from pyspark.sql import functions as F

    below = F.substring(path, len(prefix) + 2, 2**31 - 1)
    inside = F.startswith(path, F.lit(f"{prefix}/")) & (F.length(path) > len(prefix) + 1)
    if not prefix:
        inside &= ~F.substring_index(below, "/", 1).isin(*CONTROL_PLANE)
    return F.when(inside, below)


def _decoded(name: Column) -> Column:
    from pyspark.sql import functions as F

    # In a path a plus is a plus; only in forms it is a space.
    decoded = F.try_url_decode(F.replace(name, F.lit("+"), F.lit("%2B")))
    return F.when(F.contains(name, F.lit("%")), F.coalesce(decoded, name)).otherwise(name)


def _op() -> Column:
    from pyspark.sql import functions as F

    method, tail, seq = F.col("method"), F.col("_tail"), F.col("seq")
    reading, writing = method.isin(*_READS), method.isin(*_WRITES)
    changes = reading & (F.col("channel") == CHANGEFEED)
    return (
        F.when(F.col("_below").isNull(), Op.API.value)
        .when(tail.isNull() & writing, Op.CREATE.value)
        .when(tail.isNull() & (method == "DELETE"), Op.DELETE.value)
        .when((tail == NEXT_ROUTE) & reading, Op.NEXT.value)
        .when(seq.isNotNull() & changes, Op.CHANGES.value)
        .when(seq.isNotNull() & reading, Op.READ.value)
        .when(seq.isNotNull() & writing, Op.PUBLISH.value)
        .when(seq.isNotNull() & (method == "DELETE"), Op.CLOSE_SEGMENT.value)
    )
