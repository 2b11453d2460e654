"""The requests of each episode over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import GRAINS, REPEATABLE, Answer
from tricklecast.analytics.durations import SECOND_US
from tricklecast.analytics.metrics.timeline import whole
from tricklecast.analytics.report_old.figures import Sparkline
from tricklecast.analytics.rollup import SLOTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tricklecast.analytics.metrics.parts import Row
    from tricklecast.analytics.report_old.model import Episode

MAX_STEPS: Final = 600
QUARTERS: Final = 4


def step_width(start_us: int, end_us: int) -> int:
    """Whole seconds, as microseconds: one, or as many as fit the time into :data:`MAX_STEPS` steps."""
    seconds = end_us // SECOND_US - start_us // SECOND_US + 1
    return -(-seconds // MAX_STEPS) * SECOND_US


def arrivals(members: DataFrame) -> DataFrame:
    """Requests by step, one row per episode: ``number``, ``steps`` (of ``step``, ``hits``).

    Where a bucket is wider than a second (posts and segments), its requests are spread evenly over the 64th parts of
    it in which there were any: 0.2 and 0.9 s each.
    """
    # A part may lie in two seconds: it is counted in quarters.
    width = " ".join(f"WHEN '{answer}' THEN {GRAINS[answer].bucket_s * SECOND_US}L" for answer in REPEATABLE)
    parts = QUARTERS * SLOTS
    times = f"""IF(answer IN ('{Answer.POST}', '{Answer.SERVED}') AND slots IS NOT NULL,
        transform(filter(sequence(0, {parts - 1}), part -> getbit(slots, part DIV {QUARTERS}) = 1),
            part -> bucket_us + (part * CASE answer {width} END) DIV {parts}),
        array(first_us))"""
    placed = members.withColumn("times", F.expr(times)).withColumn("part", F.expr("hits / size(times)"))
    single = placed.selectExpr("number", "since", "until", "step_us", "part", "explode(times) AS at")
    at = f"greatest(since, least(until, at)) - since + since % {SECOND_US}"
    steps = single.groupBy("number", F.expr(f"({at}) DIV step_us").alias("step"))
    counts = steps.agg(F.sum("part").alias("hits"))
    return counts.groupBy("number").agg(F.collect_list(F.struct("step", "hits")).alias("steps"))


def sparklines(episodes: Sequence[Episode], rows: Iterable[Row]) -> list[Sparkline | None]:
    """The collected rows of :func:`arrivals`, one sparkline per episode, with as many requests as the episode has."""
    found = {row["number"]: row["steps"] for row in rows}
    return [_sparkline(episode, found.get(number, ())) for number, episode in enumerate(episodes)]


def _sparkline(episode: Episode, steps: Iterable[Row]) -> Sparkline | None:
    width = step_width(episode.start_us, episode.end_us)
    start = episode.start_us - episode.start_us % SECOND_US
    counts = [0.0] * ((episode.end_us - start) // width + 1)
    for step in steps:
        counts[step["step"]] += step["hits"]
    total = sum(counts)
    if not total:
        return None
    # A row at the edge of an episode may hold requests of another: the shape is the rows', the sum the episode's.
    return Sparkline(start, width, whole(count * episode.n / total for count in counts))
