"""The pace at which an episode's busiest client retried, from the roll-up alone (ADR 6).

A row of the roll-up has no arrivals, but it has the first and the last, and the 64th parts of its bucket in which there
were any: that places every request of a second to 16 ms, which is enough to tell one law of retrying from another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.answers import FAILURES, GRAINS, Answer
from tricklecast.analytics.durations import SECOND_US
from tricklecast.analytics.fleet import Fleet
from tricklecast.analytics.metrics.parts import literal_rows
from tricklecast.analytics.own_time import at_once, least
from tricklecast.analytics.report_old.figures import Rhythm
from tricklecast.analytics.rollup import SLOTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS: Final = 128
"""Rows of the roll-up that are looked at per episode, from its beginning: two minutes of it, or more if it is slow."""

ENOUGH: Final = 4
"""Fewer pauses than this say nothing about a law."""

HOT_US: Final = 100_000
"""A pause shorter than this is no pause (ANALYTICS: ``hot_loop``)."""


HIDDEN: Final = 0.2
"""If a larger share of the requests shared their slot with another one, the pauses are shorter than can be seen."""

START: Final = 3
GROWN: Final = 4.0
"""A back-off grows: its first three pauses are, on average, shorter than the usual one of the others by this factor."""

FIXED_CV: Final = 0.12
JITTER_CV: Final = 0.75
"""Coefficients of variation: up to the first a pace is fixed; up to the second it is jittered (a uniform draw from 0 to
the pause has 0.58); beyond there is no law (an exponential distribution, as of independent users, has 1)."""


class Backoff(StrEnum):
    """What a pace is called."""

    HOT_LOOP = "hot_loop"
    FIXED = "fixed"
    FIXED_JITTER = "fixed_jitter"
    EXPONENTIAL = "exponential"
    EXPONENTIAL_JITTER = "exponential_jitter"
    IRREGULAR = "irregular"


@dataclass(frozen=True, slots=True)
class Seen:
    """One row of the roll-up, as far as it says when something arrived. Times are microseconds since the epoch.

    Attributes:
        bucket_us, width_us: its bucket; slots: bits of the 64th parts in which something arrived.
        n: how much; first_us, last_us: its first and last arrival.
        guard_ms: for how long the storm guard held it, altogether, milliseconds.
    """

    bucket_us: int
    width_us: int
    slots: int
    n: int
    first_us: int
    last_us: int
    guard_ms: int = 0

    def arrivals(self) -> list[int]:
        """When something arrived: exactly the first and the last, the others to half a slot; one per slot."""
        if self.n <= 2:
            return [self.first_us, self.last_us][: self.n]
        width = self.width_us / SLOTS
        places = (place for place in range(SLOTS) if self.slots >> place & 1)
        inner = [self.bucket_us + round((place + 0.5) * width) for place in places]
        return [self.first_us, *inner[1:-1], self.last_us]


@dataclass(frozen=True, slots=True)
class Tempo:
    """What was made of an episode's pauses.

    Attributes:
        backoff: its name; rhythm: its figures; both ``None`` where that cannot be told.
        gap_ms: the usual pause, milliseconds; ``None`` if there is none.
    """

    backoff: Backoff | None = None
    rhythm: Rhythm | None = None
    gap_ms: float | None = None


def tempo(rows: Iterable[Seen]) -> Tempo:
    """The pace of one client's requests.

    Args:
        rows: of one client and channel, in any order.
    """
    rows = sorted(rows, key=lambda row: (row.first_us, row.last_us, row.n, row.guard_ms, row.slots))
    times = sorted((at, number) for number, row in enumerate(rows) for at in row.arrivals())
    total = sum(row.n for row in rows)
    if total < 2 or len(times) < 2:
        return Tempo()
    gaps = _pauses(rows, times)
    mean = sum(gaps) / (total - 1)
    if not any(at % SECOND_US for row in rows for at in (row.first_us, row.last_us)):
        # Whole seconds: requests far apart share one, and pauses are what is left of them. Only their mean is right.
        return Tempo(gap_ms=mean / 1000 or None)
    hidden = (total - len(times)) / total
    if hidden > HIDDEN or len(gaps) < ENOUGH:
        hot = Backoff.HOT_LOOP if mean < HOT_US and total > ENOUGH else None
        return Tempo(hot, Rhythm(total - 1, mean / 1000, 0.0, 1.0) if hot else None, mean / 1000)
    slot = max((row.width_us / SLOTS for row in rows if row.n > 2), default=0.0)
    return _judge(gaps, slot)


def _pauses(rows: Sequence[Seen], times: Sequence[tuple[int, int]]) -> list[float]:
    """The client's own pauses: from one arrival to the next, without the time in which the first one was held.

    Args:
        times: arrivals in their order, each with the number of its row. A row's holds are divided by what follows them:
            they are most of it.
    """
    gaps = [float(later[0] - sooner[0]) for sooner, later in pairwise(times)]
    held_ms = sum(row.guard_ms for row in rows)
    if not held_ms:
        return gaps
    followed: Counter[int] = Counter()
    for gap, (_, number) in zip(gaps, times, strict=False):
        followed[number] += round(gap)
    clients = at_once(times[-1][0] - times[0][0], held_ms)
    left = {}
    for number, length in followed.items():
        row = rows[number]
        # The last request's hold is followed by nothing.
        n = row.n - (number == times[-1][1])
        left[number] = max(least(clients), 1.0 - row.guard_ms * 1000 * n / row.n / clients / max(1, length))
    return [gap * left[number] for gap, (_, number) in zip(gaps, times, strict=False)]


def _judge(gaps: Sequence[float], slot_us: float) -> Tempo:
    grown = _growth_phase(gaps)
    settled = gaps[grown:]
    usual = median(gaps)
    cv = _variation(settled, slot_us)
    growth = _growth(gaps[: grown + 1]) if grown else 1.0
    if usual >= HOT_US and usual < 2 * slot_us:
        # As wide as the pauses: what they would be told apart by is lost.
        return Tempo(gap_ms=usual / 1000)
    if usual < HOT_US:
        backoff = Backoff.HOT_LOOP
    elif grown:
        backoff = Backoff.EXPONENTIAL if cv <= FIXED_CV else Backoff.EXPONENTIAL_JITTER
    elif cv <= FIXED_CV:
        backoff = Backoff.FIXED
    else:
        backoff = Backoff.FIXED_JITTER if cv <= JITTER_CV else Backoff.IRREGULAR
    return Tempo(backoff, Rhythm(len(gaps), usual / 1000, round(cv, 3), round(growth, 2)), usual / 1000)


def _growth_phase(gaps: Sequence[float]) -> int:
    """How many pauses at the beginning were growing; 0 if they were not."""
    rest = gaps[START:]
    if len(rest) < 2 or fmean(gaps[:START]) * GROWN > median(rest):
        return 0
    # Once it reaches what is usual later on, it is settled; one that grows to the end settles with its last pauses.
    level = 0.7 * median(gaps[len(gaps) // 2 :])
    reached = next((place for place, gap in enumerate(gaps) if gap >= level), len(gaps))
    return min(reached, len(gaps) - 2)


def _growth(gaps: Sequence[float]) -> float:
    """How many times longer each pause is than the one before, typically."""
    first, last = max(1.0, gaps[0]), max(1.0, gaps[-1])
    return max(1.0, float((last / first) ** (1 / max(1, len(gaps) - 1))))


def _variation(gaps: Sequence[float], slot_us: float) -> float:
    """Standard deviation / mean, without what the width of the slots adds to it."""
    mean = fmean(gaps)
    if mean <= 0:
        return 0.0
    # Either end of a pause is off by a uniform error of one slot's width: its variance is width^2 / 12.
    variance = max(0.0, pstdev(gaps) ** 2 - slot_us**2 / 6)
    return float(variance**0.5 / mean)


def tempos(rollup: DataFrame, episodes: Sequence[Mapping[str, Any]]) -> list[Tempo]:
    """The pace of each episode's busiest client, with one action.

    Args:
        episodes: rows with the columns of :data:`analytics.episodes.EPISODE`.
    """
    if not episodes:
        return []
    found = {row["number"]: row["rows"] for row in _rows_of(rollup, episodes).collect()}
    return [tempo(_seen(found.get(number, ()))) for number in range(len(episodes))]


def _seen(rows: Iterable[Mapping[str, Any]]) -> Iterable[Seen]:
    for row in rows:
        width = GRAINS[Answer(row["answer"])].bucket_s * SECOND_US
        yield Seen(
            row["bucket_us"], width, row["slots"] or 0, row["n"], row["first_us"], row["last_us"], row["guard_ms"] or 0
        )


def _rows_of(rollup: DataFrame, episodes: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Per episode, in ``number``: the first :data:`ROWS` rows of its busiest client, in ``rows``."""
    from pyspark.sql import functions as F

    fields = "number int, who string, place string, on string, answers array<string>, since bigint, until bigint"
    wanted = [_wanted(number, row) for number, row in enumerate(episodes)]
    offenders = literal_rows(rollup.sparkSession, wanted, fields)
    own = F.expr(
        """coalesce(client, net) = who AND (on IS NULL OR channel <=> on) AND (place IS NULL OR node <=> place)
        AND array_contains(answers, answer) AND last_us >= since AND first_us <= until"""
    )
    kept = F.struct("first_us", "last_us", "bucket_us", "slots", "n", "answer", "guard_ms")
    joined = rollup.where(F.coalesce("client", "net").isNotNull()).join(F.broadcast(offenders), own)
    rows = F.slice(F.sort_array(F.collect_list(kept)), 1, ROWS)
    return joined.groupBy("number").agg(rows.alias("rows"))


def _wanted(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    alone = row["answer"] not in list(Fleet)
    answers = [row["answer"]] if alone and row["answer"] not in FAILURES else [answer.value for answer in FAILURES]
    # The worst channel of a fleet need not be that of its busiest client.
    channel = row["channels"][0] if alone and row["channels"] else None
    client = row["clients"][0] if row["clients"] else None
    place = {"who": client, "place": row["node"], "on": channel}
    return place | {"number": number, "answers": answers, "since": row["first_us"], "until": row["last_us"]}
