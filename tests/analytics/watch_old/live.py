"""Plays a finished log as if it were being written: batch by batch, through the transforms of the stream."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Final

import orjson

from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.detector import Detector
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.open_storms import Change
from tricklecast.analytics.watch_old.signals import Signal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEP_US: Final = 1_000_000
"""Arrivals of so long are one batch."""

LIMITS: Final = WatchLimits()


Batch = tuple[int, list[Signal]]
"""Its time in microseconds, and the rows that it changed."""


def batches(spark: SparkSession, lines: Iterable[str]) -> list[Batch]:
    """What the query would hand over."""
    from pyspark.sql import functions as F

    from tricklecast.analytics.normalise import normalise
    from tricklecast.analytics.rollup import roll_up
    from tricklecast.analytics.watch_old.query import records, signals

    window_us = LIMITS.window_s * STEP_US
    blocks = spark.createDataFrame([("\n".join(lines), 0)], "block string, read_us long")
    rows = normalise(records(blocks)).withColumn("window_us", F.expr(f"ts_us DIV {window_us} * {window_us}"))
    # A row as it stands after a batch is made of the lines of all batches of its window up to that one.
    until = F.expr(f"sequence(ts_us DIV {STEP_US}, (window_us + {window_us}) DIV {STEP_US} - 1)")
    standing = roll_up(rows.withColumn("batch", F.explode(until)), also=["batch", "window_us"])
    changed = standing.where(F.expr(f"last_us DIV {STEP_US} = batch"))
    found = [Signal.from_row(row) for row in signals(changed).collect()]
    found.sort(key=lambda row: row.last_us)
    grouped = groupby(found, key=lambda row: row.last_us // STEP_US)
    return [((batch + 1) * STEP_US, list(group)) for batch, group in grouped]


def play(handed_over: Iterable[Batch], *, restart_every: int | None = None) -> list[Change]:
    """All that a live view would have told, in order.

    Args:
        restart_every: after so many batches, another process goes on with what the ledger kept.
    """
    detector = Detector(StormParams(), LIMITS)
    told: list[Change] = []
    now_s = 0.0
    for number, (at_us, rows) in enumerate(handed_over):
        now_s = at_us / 1e6
        told += detector.tick(now_s - STEP_US / 1e6)
        told += detector.fold(rows, now_s)
        if restart_every is not None and number % restart_every == 0:
            kept = orjson.loads(orjson.dumps(detector.as_json()))
            detector = Detector(StormParams(), LIMITS)
            detector.load(kept, now_s)
    return told + detector.tick(now_s + 60.0)
