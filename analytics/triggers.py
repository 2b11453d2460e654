"""What happened just before: joins episodes to lifecycle events.

Events are few. They are gathered into one array per channel and one per node, which are broadcast; each episode then
looks through its own, and there is nothing left to shuffle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics.answers import Answer
from analytics.params import StormParams, micros
from trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SERVER_EVENTS: Final = (Event.SERVER_START, Event.SERVER_READY, Event.DRAIN, Event.SERVER_STOP, Event.CONFIG)
CHANNEL_EVENTS: Final = (Event.CHANNEL_CREATE, Event.CHANNEL_END)

_ABOUT_THE_CHANNEL: Final = (Answer.ENDED, Answer.NOT_FOUND, Answer.ZERO_BYTE, Answer.SERVED, Answer.POST)
"""Answers for which the channel's own events are the likelier trigger; for the others, the server's."""


def with_context(storms: DataFrame, events: DataFrame, params: StormParams) -> DataFrame:
    """Adds what happened around the beginning of each episode.

    Args:
        storms: rows with ``node``, ``channel``, ``answer``, ``first_us``, ``last_us``.
        events: :func:`analytics.rollup.events_of`.

    Returns:
        the same rows with ``trigger``, ``trigger_us`` and ``ended_us`` (when the channel had ended shortly before),
        each null if there was none.
    """
    of_channel = _gathered(events, CHANNEL_EVENTS, ["node", "channel"], "channel_events")
    of_server = _gathered(events, SERVER_EVENTS, ["node"], "server_events")
    channel_key = F.col("s.node").eqNullSafe(F.col("c.node")) & F.col("s.channel").eqNullSafe(F.col("c.channel"))
    joined = (
        storms.alias("s")
        .join(F.broadcast(of_channel.alias("c")), channel_key, "left")
        .join(F.broadcast(of_server.alias("v")), F.col("s.node").eqNullSafe(F.col("v.node")), "left")
        .select("s.*", "c.channel_events", "v.server_events")
    )
    picked = joined.withColumn("picked", _best_trigger(params)).withColumn("ended_us", _last_end(params))
    named = picked.withColumn("trigger", F.col("picked.event")).withColumn("trigger_us", F.col("picked.ts_us"))
    return named.drop("picked", "channel_events", "server_events")


def _gathered(events: DataFrame, kinds: tuple[Event, ...], key: list[str], name: str) -> DataFrame:
    chosen = events.where(F.col("event").isin(*(kind.value for kind in kinds)))
    return chosen.groupBy(*key).agg(F.collect_list(F.struct("ts_us", "event")).alias(name))


def _near(name: str, params: StormParams, *, until: Column) -> Column:
    """Those events of an array that are near enough to the episode's beginning; an empty array if there are none."""
    since = F.col("first_us") - micros(params.trigger_before_s)
    found = F.filter(F.col(name), lambda event: (event["ts_us"] >= since) & (event["ts_us"] <= until))
    return F.coalesce(found, F.expr("cast(array() as array<struct<ts_us: bigint, event: string>>)"))


def _best_trigger(params: StormParams) -> Column:
    """The likeliest trigger: of the likelier kind, then the latest."""
    soon = F.col("first_us") + micros(params.trigger_after_s)
    # The fault of the past: the publisher closes its last, empty segment and deletes the channel only afterwards, so
    # that the readers loop *until* the channel ends. Its end is then inside or just after the episode.
    around = F.col("last_us") + micros(params.gap_s)
    before_its_end = F.col("answer").isin(Answer.ZERO_BYTE.value, Answer.SERVED.value)
    own = _near("channel_events", params, until=F.when(before_its_end, around).otherwise(soon))
    servers = _near("server_events", params, until=soon)
    about_channel = F.col("answer").isin(*(answer.value for answer in _ABOUT_THE_CHANNEL))
    ranked = F.concat(
        F.transform(own, lambda event: _ranked(F.when(about_channel, 1).otherwise(0), event)),
        F.transform(servers, lambda event: _ranked(F.when(about_channel, 0).otherwise(1), event)),
    )
    return F.array_max(ranked)


def _ranked(rank: Column, event: Column) -> Column:
    # A channel's end explains more than its beginning; both explain nothing if they are of the wrong kind.
    is_end = (event["event"] == Event.CHANNEL_END.value).cast("int")
    return F.struct(
        rank.alias("rank"), is_end.alias("is_end"), event["ts_us"].alias("ts_us"), event["event"].alias("event")
    )


def _last_end(params: StormParams) -> Column:
    own = _near("channel_events", params, until=F.col("first_us") + micros(params.trigger_after_s))
    ends = F.filter(own, lambda event: event["event"] == Event.CHANNEL_END.value)
    return F.array_max(F.transform(ends, lambda event: event["ts_us"]))
