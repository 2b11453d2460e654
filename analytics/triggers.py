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
    from pyspark.sql import DataFrame

SERVER_EVENTS: Final = (Event.SERVER_START, Event.SERVER_READY, Event.DRAIN, Event.SERVER_STOP, Event.CONFIG)
CHANNEL_EVENTS: Final = (Event.CHANNEL_CREATE, Event.CHANNEL_END)

_NO_EVENTS: Final = "cast(array() AS array<struct<ts_us: bigint, event: string>>)"

_BEFORE_THE_END: Final = (Answer.ZERO_BYTE, Answer.SERVED)
"""Answers that a client may loop on until the channel ends."""

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
    joined = (
        storms.alias("s")
        .join(F.broadcast(of_channel.alias("c")), F.expr("s.node <=> c.node AND s.channel <=> c.channel"), "left")
        .join(F.broadcast(of_server.alias("v")), F.expr("s.node <=> v.node"), "left")
        .selectExpr("s.*", "c.channel_events", "v.server_events")
    )
    chosen = joined.withColumns({"chosen": F.expr(_best_trigger(params)), "ended_us": F.expr(_last_end(params))})
    return chosen.selectExpr(*storms.columns, "ended_us", "chosen.event AS trigger", "chosen.ts_us AS trigger_us")


def _gathered(events: DataFrame, kinds: tuple[Event, ...], key: list[str], name: str) -> DataFrame:
    chosen = events.where(F.col("event").isin(*(kind.value for kind in kinds)))
    return chosen.groupBy(*key).agg(F.collect_list(F.struct("ts_us", "event")).alias(name))


def _best_trigger(params: StormParams) -> str:
    """The likeliest trigger: of the likelier kind; of those, a channel's end before its beginning; then the latest."""
    soon = f"first_us + {micros(params.trigger_after_s)}"
    # The fault of the past: the publisher closes its last, empty segment and deletes the channel only afterwards, so
    # that the readers loop *until* the channel ends. Its end is then inside or just after the episode.
    around = f"IF(answer IN ({_quoted(_BEFORE_THE_END)}), last_us + {micros(params.gap_s)}, {soon})"
    own_rank = f"IF(answer IN ({_quoted(_ABOUT_THE_CHANNEL)}), 1, -1)"
    return f"""array_max(concat(
        {_ranked("channel_events", around, own_rank, params)},
        {_ranked("server_events", soon, "0", params)}
    ))"""


def _ranked(name: str, until: str, rank: str, params: StormParams) -> str:
    """Those events of an array that are near enough to the episode's beginning, ready to be compared."""
    return f"""transform(
        filter(coalesce({name}, {_NO_EVENTS}), e -> e.ts_us BETWEEN {_since(params)} AND {until}),
        e -> struct({rank} AS rank, e.event = '{Event.CHANNEL_END}' AS is_end, e.ts_us AS ts_us, e.event AS event)
    )"""


def _last_end(params: StormParams) -> str:
    until = f"first_us + {micros(params.trigger_after_s)}"
    near = f"e.event = '{Event.CHANNEL_END}' AND e.ts_us BETWEEN {_since(params)} AND {until}"
    return f"array_max(transform(filter(channel_events, e -> {near}), e -> e.ts_us))"


def _since(params: StormParams) -> str:
    return f"first_us - {micros(params.trigger_before_s)}"


def _quoted(answers: tuple[Answer, ...]) -> str:
    return ", ".join(f"'{answer}'" for answer in answers)
