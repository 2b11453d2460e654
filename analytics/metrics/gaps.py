"""Stretches in which a busy node wrote nothing: a file of the log is missing, or the node stood still.

Silence alone is no gap: channels end, and servers are stopped. A gap is told from silence by four things, all needed:

* the node wrote nothing for ``silence_s`` or longer;
* it had been busy just before, and was again just after: at least :data:`BUSY` lines in the ten minutes on either side;
* no lifecycle event explains it: no stop, drain or end of a channel in the last minute before it, no start in the first
  minute after it (where the log has events);
* it is not the node's habit: such pauses are fewer than one in twenty of the node's minutes, or at most two.

A log with so many nodes and minutes that they do not fit into :data:`MAX_CELLS` is looked at in longer cells; a gap
within one of those is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.durations import MINUTE_US, micros
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report_old.figures import LogGap
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tricklecast.analytics.metrics.parts import Row
    from tricklecast.analytics.metrics.totals import Overview

BUSY: Final = 100
"""Lines on either side: at the pace they stand for, two minutes without one are no chance."""

SIDE_US: Final = 10 * MINUTE_US
HABIT: Final = 20
FEW: Final = 2
MAX_CELLS: Final = 20_000
MAX_GAPS: Final = 100

_ENDS: Final = (Event.SERVER_STOP, Event.DRAIN, Event.CHANNEL_END)
_BEGINS: Final = (Event.SERVER_START, Event.SERVER_READY, Event.CHANNEL_CREATE)


def cells(rollup: DataFrame, seen: Overview) -> DataFrame:
    """Per node and minute (or longer): lines, the first and the last, and the events that may explain a silence."""
    minutes = ((seen.to_us or 0) - (seen.from_us or 0)) // MINUTE_US + 1
    width = MINUTE_US * -(-minutes * max(1, seen.nodes) // MAX_CELLS)
    lines = rollup.where(F.col("first_us").between(seen.from_us or 0, seen.to_us or 0))
    per_cell = lines.groupBy("node", F.expr(f"bucket_us DIV {width}").alias("cell")).agg(
        F.sum("n").alias("lines"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.max(F.when(_is(_ENDS), F.col("last_us"))).alias("ended_us"),
        F.min(F.when(_is(_BEGINS), F.col("first_us"))).alias("began_us"),
    )
    return per_cell.limit(2 * MAX_CELLS)


def _is(events: Iterable[Event]) -> Column:
    return F.col("event").isin(*(event.value for event in events))


def log_gaps(rows: Iterable[Row], params: StormParams) -> tuple[LogGap, ...]:
    """The gaps in the collected rows of :func:`cells`: the longest ones, in the order of time."""
    ordered = sorted(rows, key=lambda row: (row["node"] or "", row["node"] is None, row["first_us"]))
    found = [
        gap
        for _, node in groupby(ordered, key=lambda row: row["node"])
        for gap in _gaps_of_node(list(node), micros(params.silence_s))
    ]
    longest = sorted(found, key=lambda gap: (gap.from_us - gap.to_us, gap.from_us, gap.node or ""))[:MAX_GAPS]
    return tuple(sorted(longest, key=lambda gap: (gap.from_us, gap.node or "")))


def _gaps_of_node(node: Sequence[Row], silence_us: int) -> list[LogGap]:
    pauses: list[LogGap] = []
    gaps: list[LogGap] = []
    last_us = node[0]["last_us"]
    for place, row in enumerate(node[1:], 1):
        if row["first_us"] - last_us >= silence_us:
            pauses.append(LogGap(row["node"], last_us, row["first_us"]))
            if _busy(node, place, pauses[-1]) and not _explained(node[:place], row, pauses[-1]):
                gaps.append(pauses[-1])
        last_us = max(last_us, row["last_us"])
    return gaps if len(pauses) <= max(FEW, len(node) / HABIT) else []


def _busy(node: Sequence[Row], place: int, pause: LogGap) -> bool:
    """Whether there is enough on both sides of a pause, which ends with the row of that place."""
    before = after = 0
    for row in reversed(node[:place]):
        if row["last_us"] < pause.from_us - SIDE_US or before >= BUSY:
            break
        before += row["lines"]
    for row in node[place:]:
        if row["first_us"] > pause.to_us + SIDE_US or after >= BUSY:
            break
        after += row["lines"]
    return min(before, after) >= BUSY


def _explained(before: Sequence[Row], after: Row, pause: LogGap) -> bool:
    ended = any((row["ended_us"] or 0) >= pause.from_us - MINUTE_US for row in before[-2:])
    return ended or (after["began_us"] is not None and after["began_us"] <= pause.to_us + MINUTE_US)
