"""The evidence for one episode: its lines, the line of its trigger, and the pauses between them. One filtered scan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.metrics.members import answers_of
from tricklecast.analytics.normalise import MAX_TEXT, answer_kind, network
from tricklecast.analytics.schema import CORRUPT
from tricklecast.trickle.records import FIELD_NAMES, Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tricklecast.analytics.report_old.model import Episode

FIRST: Final = 20
LAST: Final = 5

MAX_TIMES: Final = 10_000
"""Requests of the busiest client whose pauses are measured, from the first one on."""

GAP_BOUNDS_MS: Final = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
"""Upper bounds of the histogram of pauses, milliseconds; the last class has none."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log.

    Attributes:
        ts_us: arrival, microseconds since the epoch; file: the URI of its file.
        record: what was read from it, as a JSON object.
    """

    ts_us: int
    file: str
    record: str


@dataclass(frozen=True, slots=True)
class Gaps:
    """Pauses between the requests of an episode's busiest client.

    Attributes:
        client: whose; ``None`` if the log does not say.
        counts: pauses per class of :data:`GAP_BOUNDS_MS`, and one more for those above.
    """

    client: str | None
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the log has of one episode.

    Attributes:
        episode: which; n_lines: lines that belong to it.
        first, last: the first and the last of them, in order of arrival, each once.
        trigger: the line of the event that it followed; ``None`` without one.
        gaps: the pauses of its busiest client.
    """

    episode: Episode
    n_lines: int
    first: tuple[Line, ...]
    last: tuple[Line, ...]
    trigger: Line | None
    gaps: Gaps


def gather(lines: DataFrame, episode: Episode, *, each_once: bool = False) -> Evidence:
    """The evidence for an episode, from the lines that it was found in.

    Args:
        lines: :func:`analytics.sources.read_logs`.
        each_once: show one of several lines that say the same, as they were counted; see
            :mod:`analytics.duplicates`.
    """
    placed = lines.withColumns({"answer": answer_kind(), "file": F.input_file_name()}).where(F.col(CORRUPT).isNull())
    about = placed.where(_of_episode(episode) | _of_trigger(episode))
    event = (F.col("kind") == Kind.EVENT.value).alias("event")
    kept = about.select("ts_us", "client", "conn", "guard_ms", "file", _record().alias("record"), event)
    kept = (_once(kept) if each_once else kept).persist()
    try:
        requests = kept.where(~F.col("event"))
        order = [F.col(name) for name in ("ts_us", "record", "file")]
        first = _lines(requests.orderBy(*order).limit(FIRST))
        n_lines = requests.count()
        last = _lines(requests.orderBy(*(column.desc() for column in order)).limit(min(LAST, max(0, n_lines - FIRST))))
        trigger = _lines(kept.where("event").orderBy(*order).limit(1))
        gaps = _gaps(requests)
    finally:
        kept.unpersist()
    return Evidence(episode, n_lines, first, last[::-1], trigger[0] if trigger else None, gaps)


def _once(rows: DataFrame) -> DataFrame:
    # Lines without a connection cannot be told apart, and are left as they are.
    alone = F.expr("IF(conn IS NULL, monotonically_increasing_id(), -1L)")
    return (
        rows.withColumn("alone", alone)
        .groupBy("record", "alone", "ts_us", "client", "guard_ms", "event")
        .agg(F.min("file").alias("file"))
    )


def histogram(times_us: Sequence[int], holds_ms: Iterable[int] = ()) -> tuple[int, ...]:
    """A client's own pauses between its arrivals in order, per class of :data:`GAP_BOUNDS_MS`.

    Args:
        holds_ms: how long the storm guard held each; those that are missing were not held.
    """
    counts = [0] * (len(GAP_BOUNDS_MS) + 1)
    for (before, after), hold_ms in zip(pairwise(times_us), chain(holds_ms, repeat(0)), strict=False):
        counts[bisect_right(GAP_BOUNDS_MS, max(0.0, (after - before) / 1000 - hold_ms))] += 1
    return tuple(counts)


def _of_episode(episode: Episode) -> Column:
    """Whether a line is one of the episode's. Where it names only its worst, all of its time and place are."""
    mine = F.col("answer").isin(*(answer.value for answer in answers_of(episode.storm)))
    mine &= F.col("ts_us").between(episode.start_us, episode.end_us)
    if episode.node is not None:
        mine &= _cut("node") == episode.node
    if 0 < len(episode.channels) == episode.n_channels:
        mine &= _cut("channel").isin(*episode.channels)
    if 0 < len(episode.clients) == episode.n_clients:
        mine &= F.coalesce(_cut("client"), network()).isin(*episode.clients)
    return F.coalesce(mine, F.lit(False))


def _of_trigger(episode: Episode) -> Column:
    if episode.trigger is None or episode.trigger_us is None:
        return F.lit(False)
    event = F.col("kind") == Kind.EVENT.value
    mine = event & (_cut("event") == episode.trigger) & (F.col("ts_us") == episode.trigger_us)
    if episode.node is not None:
        mine &= _cut("node") == episode.node
    about = F.col("channel").isNull()
    if episode.channels:
        about |= _cut("channel").isin(*episode.channels)
    return F.coalesce(mine & about, F.lit(False))


def _cut(name: str) -> Column:
    return F.substring(F.col(name), 1, MAX_TEXT)


def _record() -> Column:
    return F.to_json(F.struct(*FIELD_NAMES))


def _lines(rows: DataFrame) -> tuple[Line, ...]:
    return tuple(Line(row["ts_us"], row["file"], row["record"]) for row in rows.collect())


def _gaps(requests: DataFrame) -> Gaps:
    busiest = requests.groupBy("client").count().orderBy(F.desc("count"), "client").limit(1).collect()
    if not busiest:
        return Gaps(None, histogram(()))
    client = busiest[0]["client"]
    its_own = requests.where(F.col("client").eqNullSafe(F.lit(client)))
    rows = its_own.select("ts_us", "guard_ms").orderBy("ts_us").limit(MAX_TIMES).collect()
    return Gaps(client, histogram([row["ts_us"] for row in rows], [row["guard_ms"] or 0 for row in rows]))
