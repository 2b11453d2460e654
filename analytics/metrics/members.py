"""The rows of the roll-up that an episode was made of, found again by its clients, channels, node and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import FAILURES, REPEATABLE, WATCHED, Answer, among
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.durations import MINUTE_US
from tricklecast.analytics.metrics.parts import literal_rows
from tricklecast.analytics.repeats import distinct_seqs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tricklecast.analytics.metrics.parts import Row
    from tricklecast.analytics.report_old.model import Episode

MAX_NAMES: Final = 20_000
"""Clients that are looked for, over all episodes; the others' episodes are looked for by their worst client alone."""

MAX_NETWORKS: Final = 1000

MAX_BLOCKS: Final = 20_000
"""Blocks of time by which crowds are looked for, about."""

_ANSWERS: Final[dict[StormClass, tuple[Answer, ...]]] = {
    StormClass.ZERO_BYTE_LOOP: (Answer.ZERO_BYTE,),
    StormClass.SAME_SEGMENT_LOOP: (Answer.SERVED,),
    StormClass.ENDED_LOOP: (Answer.ENDED,),
    StormClass.ABANDONED_LOOP: (Answer.ABANDONED,),
    StormClass.REPOST_LOOP: (Answer.POST,),
    StormClass.OVERLOAD_AMPLIFICATION: (Answer.OVERLOAD,),
}
"""What an episode consists of. Those of the other classes may get several kinds of refusal in turn."""

_FIELDS: Final = """number int, client string, node string, channels array<string>, answers array<string>,
    since bigint, until bigint, step_us bigint"""


_COLUMNS: Final = (
    "number",
    "who",
    "net",
    "answer",
    "bucket_us",
    "slots",
    "first_us",
    "hits",
    "since",
    "until",
    "step_us",
)


def answers_of(storm: StormClass) -> tuple[Answer, ...]:
    """The kinds of answer that an episode of a class consists of."""
    return _ANSWERS.get(storm, FAILURES)


def members(rollup: DataFrame, episodes: Sequence[Episode], steps_us: Sequence[int]) -> DataFrame:
    """The rows of each episode.

    Args:
        episodes: in the order of the report; steps_us: the width of a step of each one's sparkline, microseconds.

    Returns:
        ``number`` of the episode, ``who``, ``net``, ``answer``, ``bucket_us``, ``slots``, ``first_us``, ``hits``
        (requests that count); ``since``, ``until`` and ``step_us`` of the episode.
    """
    counted = F.when(among(REPEATABLE), F.col("n") - distinct_seqs()).otherwise(F.col("n"))
    rows = rollup.where(among(WATCHED)).withColumns({"who": F.coalesce("client", "net"), "hits": counted})
    rows = rows.where("who IS NOT NULL AND hits > 0")
    named, crowds = _wanted(episodes, steps_us)
    spark = rollup.sparkSession
    here = """(e.node IS NULL OR r.node <=> e.node) AND array_contains(e.answers, r.answer)
        AND (e.channels IS NULL OR array_contains(e.channels, r.channel))
        AND r.last_us >= e.since AND r.first_us <= e.until"""
    found = rows.alias("r").join(
        F.broadcast(literal_rows(spark, named, _FIELDS)).alias("e"), F.expr(f"r.who = e.client AND {here}")
    )
    if crowds:
        # With the block as part of the key, no row is held against all of them.
        width = _block_us(crowds)
        blocks = f"explode(sequence(since DIV {width}, until DIV {width})) AS block"
        wanted = literal_rows(spark, crowds, _FIELDS).selectExpr("*", blocks)
        near = F.expr(f"r.bucket_us DIV {width} = e.block AND {here}")
        others = rows.alias("r").join(F.broadcast(wanted).alias("e"), near).drop("block")
        found = found.unionAll(others)
    return found.select(*_COLUMNS)


def _block_us(crowds: Sequence[Row]) -> int:
    """How long a block is: whole minutes, so that no bucket is in two, and so many that there are not many blocks."""
    minutes: int = sum(row["until"] - row["since"] for row in crowds) // MINUTE_US
    return MINUTE_US * (1 + minutes // MAX_BLOCKS)


def networks(members: DataFrame) -> DataFrame:
    """Per network: ``net``, and in how many ``episodes`` it is; the most first."""
    pairs = members.where(F.col("net").isNotNull()).groupBy("net", "number").agg(F.count(F.lit(1)).alias("rows"))
    counted = pairs.groupBy("net").agg(F.count(F.lit(1)).alias("episodes"))
    return counted.orderBy(F.col("episodes").desc(), "net").limit(MAX_NETWORKS)


def _wanted(episodes: Sequence[Episode], steps_us: Sequence[int]) -> tuple[list[Row], list[Row]]:
    """One row per client of an episode; and one for each episode with more clients than it lists."""
    named: list[Row] = []
    crowds: list[Row] = []
    for number, (episode, step_us) in enumerate(zip(episodes, steps_us, strict=True)):
        # Of more channels than are listed, any will do: the client, the node and the time are the same.
        channels = list(episode.channels) if episode.n_channels <= len(episode.channels) else None
        row = {
            "number": number,
            "node": episode.node,
            "channels": channels or None,
            "answers": [answer.value for answer in answers_of(episode.storm)],
            "since": episode.start_us,
            "until": episode.end_us,
            "step_us": step_us,
        }
        if episode.n_clients > len(episode.clients):
            crowds.append(row)
            continue
        clients = episode.clients if len(named) < MAX_NAMES else episode.clients[:1]
        named += [row | {"client": client} for client in clients]
    return named, crowds
