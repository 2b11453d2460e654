"""What an episode did to the healthy: how long clients that are in no episode waited, during it and before it.

Waits are known per client and minute, as a histogram of eight classes, each four times as wide as the one before. So
"during" are the minutes that the episode touches, and "before" as many whole minutes before those (``blast_before_s``
at least); of long episodes, the first hour. The percentile is interpolated in its class, geometrically: it is right to
a factor of two, and to much less when two of them are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import among
from tricklecast.analytics.durations import MINUTE_US, micros
from tricklecast.analytics.metrics.parts import literal_rows
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report_old.figures import Blast
from tricklecast.analytics.rollup import WAIT_CLASS_BITS, WAIT_CLASSES_US, WAITED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tricklecast.analytics.metrics.parts import Row
    from tricklecast.analytics.report_old.model import Episode

MAX_MINUTES: Final = 60
SKETCH_BITS: Final = 10
"""Size of the sketches that count clients: 2^10 registers, an error of 3 %."""

_CLASSES: Final = len(WAIT_CLASSES_US[0]) + len(WAIT_CLASSES_US[1])
_UPPER_MS: Final = tuple(bound / 1000 for half in WAIT_CLASSES_US for bound in half if bound is not None)
_WAITS: Final = tuple(f"w{place}" for place in range(_CLASSES))
_FIELDS: Final = "number int, node string, begins bigint, first bigint, last bigint"


def healthy_waits(rollup: DataFrame, members: DataFrame, episodes: Sequence[Episode], params: StormParams) -> DataFrame:
    """Per episode ``number``, ``during`` it or not: waits by class (``w0`` ...), and ``clients``, about.

    Args:
        members: rows with ``who``: the clients that are not healthy.
    """
    windows = literal_rows(rollup.sparkSession, _windows(episodes, params), _FIELDS)
    minutes = windows.selectExpr("*", "explode(sequence(begins, last)) AS minute").selectExpr(
        "number", "node", f"minute * {MINUTE_US} AS minute_us", "minute >= first AS during"
    )
    cells = _cells(rollup, members).alias("c")
    same = "c.minute_us = w.minute_us AND (w.node IS NULL OR c.node <=> w.node)"
    joined = cells.join(F.broadcast(minutes).alias("w"), F.expr(same))
    sums = [F.sum(name).alias(name) for name in _WAITS]
    clients = F.hll_sketch_estimate(F.hll_union_agg("sketch")).alias("clients")
    return joined.groupBy("w.number", "w.during").agg(*sums, clients)


def _cells(rollup: DataFrame, members: DataFrame) -> DataFrame:
    """Waits of the healthy per node and minute."""
    # With more lines, a class may have run over into the next.
    countable = F.col("n") < 1 << WAIT_CLASS_BITS
    waited = rollup.where(among(WAITED) & F.col("client").isNotNull() & countable)
    ill = F.broadcast(members.select("who").distinct())
    healthy = waited.join(ill, F.col("client") == F.col("who"), "left_anti")
    minute = F.expr(f"bucket_us - bucket_us % {MINUTE_US} AS minute_us")
    mask = (1 << WAIT_CLASS_BITS) - 1
    half = len(WAIT_CLASSES_US[0])
    sums = [
        F.expr(
            f"sum(shiftright({'waits_quick' if place < half else 'waits_slow'}, "
            f"{WAIT_CLASS_BITS * (place % half)}) & {mask}) AS {name}"
        )
        for place, name in enumerate(_WAITS)
    ]
    return healthy.groupBy("node", minute).agg(*sums, F.hll_sketch_agg("client", SKETCH_BITS).alias("sketch"))


def _windows(episodes: Sequence[Episode], params: StormParams) -> list[Row]:
    """The minutes that are looked at, per episode: from ``begins`` to ``first`` without it, up to ``last`` with it."""
    rows: list[Row] = []
    for number, episode in enumerate(episodes):
        first = episode.start_us // MINUTE_US
        last = min(episode.end_us // MINUTE_US, first + MAX_MINUTES - 1)
        before = max(last - first + 1, -(-micros(params.blast_before_s) // MINUTE_US))
        begins = first - min(before, MAX_MINUTES)
        rows.append({"number": number, "node": episode.node, "begins": begins, "first": first, "last": last})
    return rows


def blasts(episodes: Sequence[Episode], rows: Iterable[Row]) -> list[Blast]:
    """The collected rows of :func:`healthy_waits`, one value per episode."""
    found = {(row["number"], row["during"]): row for row in rows}
    return [_blast(found.get((number, True)), found.get((number, False))) for number in range(len(episodes))]


def _blast(during: Row | None, before: Row | None) -> Blast:
    return Blast(
        healthy_clients=during["clients"] if during else 0,
        p95_wait_ms=_p95(during),
        p95_before_ms=_p95(before),
    )


def _p95(row: Row | None) -> float | None:
    counts = [row[name] or 0 for name in _WAITS] if row else []
    return percentile(counts, 0.95) if sum(counts) else None


def percentile(counts: Sequence[int], share: float) -> float:
    """The wait, milliseconds, that so large a share of a histogram's waits did not exceed.

    Args:
        counts: waits per class of :data:`analytics.rollup.WAIT_CLASSES_US`, at least one in all.
    """
    left = share * sum(counts)
    for place, count in enumerate(counts):
        if count and left <= count:
            # The first class begins at nothing; the last has no end, and is taken to be as wide as the others.
            high = _UPPER_MS[place] if place < len(_UPPER_MS) else 4 * _UPPER_MS[-1]
            low = high / 4
            return float(round(low * 4.0 ** (left / count), 3))
        left -= count
    raise AssertionError("a share of at most 1 is reached")
