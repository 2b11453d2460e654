"""The two sides of a comparison, from roll-ups and the episodes found in them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.compare import MAX_BLOCKS, Block, Side, compare
from tricklecast.analytics.durations import MINUTE_US
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.report_old.figures import Comparison

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tricklecast.analytics.report_old.model import Episode, Report


MAX_STEPS: Final = 2_000
"""Steps of time in which traffic is collected before it is put into blocks: a bound on what leaves Spark."""

REPEATS: Final = "all repeats"
FAILED: Final = "failures"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of one side in one step of time.

    Attributes:
        at_us, end_us: when it began, and ended; requests, repeats, failures: in it.
        mine: whether it is of the release that was asked about.
    """

    at_us: int
    end_us: int
    requests: int
    repeats: int
    failures: int
    mine: bool


def by_release(rollup: DataFrame, report: Report, release: str) -> Comparison:
    """A release against all others, over the same time.

    Raises:
        BadInput: the log has no request of this release, or of no other one.
    """
    traffic = _traffic(rollup, report, report.totals.first_us or 0, release)
    mine, others = [step for step in traffic if step.mine], [step for step in traffic if not step.mine]
    if not mine or not others:
        known = ", ".join(repr(share.name) for share in report.by_release[:5] if share.name) or "none"
        what = "nothing but" if mine else "no requests of"
        raise BadInput(f"--baseline: there are {what} release {release!r} in the logs; they have {known}")
    old = [episode for episode in report.episodes if episode.release == release]
    new = [episode for episode in report.episodes if episode.release not in (release, None)]
    return _compared("release", (release, mine, old), ("all other releases", others, new))


def by_date(rollup: DataFrame, report: Report, at_us: int, name: str) -> Comparison:
    """What arrived before a moment against what arrived later; cut at the full minute.

    Raises:
        BadInput: the moment is outside of the log.
    """
    cut = at_us - at_us % MINUTE_US
    traffic = _traffic(rollup, report, cut, None)
    sides = [[step for step in traffic if (step.at_us >= cut) is later] for later in (False, True)]
    if not all(sides):
        raise BadInput(f"--baseline: the logs have nothing {'after' if sides[0] else 'before'} {name}")
    old = (f"before {name}", sides[0], report.episodes)
    return _compared("date", old, (f"after {name}", sides[1], report.episodes))


def by_logs(other: tuple[DataFrame, Report, str], this: tuple[DataFrame, Report, str]) -> Comparison:
    """Other logs against these.

    Args:
        other, this: the roll-up, the report on it, and what it is called.
    """
    sides = []
    for rollup, report, name in (other, this):
        sides.append((name, _traffic(rollup, report, report.totals.first_us or 0, None), report.episodes))
    return _compared("logs", *sides)


def _traffic(rollup: DataFrame, report: Report, origin_us: int, release: str | None) -> list[Traffic]:
    from pyspark.sql import functions as F

    from tricklecast.analytics.answers import FAILURES, among
    from tricklecast.analytics.metrics.wanted import judged

    first, last = report.totals.first_us or 0, report.totals.last_us or 0
    width = MINUTE_US * math.ceil(max(1, last - first) / MINUTE_US / MAX_STEPS)
    origin = origin_us - origin_us % MINUTE_US
    # Half-open steps to both sides of the origin, so that a cut is never inside of one.
    step = F.floor((F.col("minute_us") - origin) / width).cast("long")
    mine = F.lit(False) if release is None else F.coalesce(F.col("release") == release, F.lit(False))
    rows = (
        judged(rollup, report.params)
        .groupBy(step.alias("step"), mine.alias("mine"))
        .agg(
            F.sum("n").alias("requests"),
            F.sum(F.col("n") - F.col("wanted")).alias("repeats"),
            F.sum(F.when(among(FAILURES), F.col("n")).otherwise(0)).alias("failures"),
        )
        .collect()
    )
    return sorted((_step(row.asDict(), origin, width) for row in rows), key=lambda one: one.at_us)


def _step(row: dict[str, Any], origin: int, width: int) -> Traffic:
    at = origin + row["step"] * width
    return Traffic(at, at + width, row["requests"], row["repeats"], row["failures"], row["mine"])


_Given = tuple[str, list[Traffic], Iterable["Episode"]]


def _compared(by: str, before: _Given, after: _Given) -> Comparison:
    sides = [Side(name, _blocks(traffic, tuple(episodes))) for name, traffic, episodes in (before, after)]
    named = {name for side in sides for block in side.blocks for name in block.counts}
    return compare(by, sides[0], sides[1], sorted(named))


def _blocks(traffic: list[Traffic], episodes: tuple[Episode, ...]) -> list[Block]:
    """Equal stretches of the side's time, with what happened in each."""
    first, end = traffic[0].at_us, traffic[-1].end_us
    width = MINUTE_US * math.ceil((end - first) / MINUTE_US / MAX_BLOCKS)
    requests: defaultdict[int, int] = defaultdict(int)
    counts: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for step in traffic:
        place = (step.at_us - first) // width
        requests[place] += step.requests
        counts[place][REPEATS] += step.repeats
        counts[place][FAILED] += step.failures
    for episode in episodes:
        for place in requests:
            start = first + place * width
            inside = min(episode.end_us + 1, start + width, end) - max(episode.start_us, start)
            if inside > 0:
                counts[place][episode.storm.value] += episode.hits * inside / (episode.end_us + 1 - episode.start_us)
    return [Block(requests[place], dict(counts[place])) for place in sorted(requests)]
