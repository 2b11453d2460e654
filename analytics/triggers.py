"""What happened just before: joins episodes to lifecycle events.

Events are few. They are gathered into one array per channel and one per node, which are broadcast; each episode then
looks through its own, and there is nothing left to shuffle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import Answer, quoted
from tricklecast.analytics.durations import micros
from tricklecast.analytics.fleet import Fleet
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.query import query
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERVER_EVENTS: Final = (Event.SERVER_START, Event.SERVER_READY, Event.DRAIN, Event.SERVER_STOP, Event.CONFIG)
CHANNEL_EVENTS: Final = (Event.CHANNEL_CREATE, Event.CHANNEL_END)

_NO_EVENTS: Final = "cast(array() AS array<struct<ts_us: bigint, event: string>>)"

_RESTART: Final = (Event.SERVER_START, Event.SERVER_READY, Event.DRAIN, Event.SERVER_STOP)

UNTIL_THE_END: Final = (Answer.ZERO_BYTE, Answer.SERVED)
"""Answers that a client may loop on until the channel ends."""

PLAUSIBLE: Final[dict[tuple[Answer | Fleet, ...], tuple[tuple[Event, ...], ...]]] = {
    (Answer.NOT_FOUND, Answer.ENDED): ((Event.CHANNEL_END,), _RESTART),
    (Answer.ZERO_BYTE, Answer.SERVED): ((Event.CHANNEL_END,), (Event.CHANNEL_CREATE,), _RESTART),
    # Where 470 is said, or waited, there is a channel: its new life explains more than the end of its former one.
    (Answer.SEQ_MISSING, Answer.ABANDONED): ((Event.CHANNEL_CREATE,), _RESTART, (Event.CHANNEL_END,)),
    (Answer.POST,): ((Event.CHANNEL_CREATE, Event.CHANNEL_END), _RESTART),
    (Fleet.HERD,): (SERVER_EVENTS, (Event.CHANNEL_END,), (Event.CHANNEL_CREATE,)),
}
"""Which events can set off a loop on these answers, the likeliest first."""

OTHERWISE: Final = (SERVER_EVENTS, (Event.CHANNEL_CREATE,))
"""The same for all others: refusals, errors, and a fleet's overload."""


def with_context(storms: DataFrame, events: DataFrame, params: StormParams) -> DataFrame:
    """Adds what happened around the beginning of each episode.

    Args:
        storms: rows with ``node``, ``channel``, ``answer``, ``first_us``, ``last_us``.
        events: :func:`analytics.rollup.events_of`.

    Returns:
        the same rows with ``trigger`` and ``trigger_us``; ``ended_us`` (when the channel had ended shortly before);
        ``born_us`` (when it was created after that, until shortly after the episode); each null if there was none;
        ``lives`` (how many lives of the channel it met: 1, and one more for each creation in the midst of it).
    """
    return query(
        f"""
        SELECT * EXCEPT (channel_events, server_events, chosen),
            {_birth(params)} AS born_us, {_lives()} AS lives, chosen.event AS trigger, chosen.ts_us AS trigger_us
        FROM (SELECT *, {_best_trigger(params)} AS chosen, {_last_end(params)} AS ended_us
            FROM (SELECT /*+ BROADCAST(c, v) */ s.*, c.gathered AS channel_events, v.gathered AS server_events
                FROM {{storms}} s
                LEFT JOIN ({_gathered(CHANNEL_EVENTS, "node, channel")}) c
                    ON coalesce(s.node, s.node_lo) <=> c.node AND s.channel <=> c.channel
                LEFT JOIN ({_gathered(SERVER_EVENTS, "node")}) v ON coalesce(s.node, s.node_lo) <=> v.node))""",
        storms=storms,
        events=events,
    )


def _gathered(kinds: tuple[Event, ...], key: str) -> str:
    return f"""SELECT {key}, collect_list(struct(ts_us, event)) AS gathered
        FROM {{events}} WHERE event IN ({quoted(kinds)}) GROUP BY {key}"""


def _best_trigger(params: StormParams) -> str:
    """The likeliest trigger: by :data:`PLAUSIBLE`, then one before the beginning, then the latest."""
    soon = f"first_us + {micros(params.trigger_after_s)}"
    # The fault of the past: the publisher closes its last, empty segment and deletes the channel only afterwards, so
    # that the readers loop *until* the channel ends. Its end is then inside or just after the episode.
    until = f"IF(answer IN ({quoted(UNTIL_THE_END)}), last_us + {micros(params.gap_s)}, {soon})"
    end = f"e.event = '{Event.CHANNEL_END}' AND e.ts_us BETWEEN {_since(params)} AND {until}"
    oldest = f"""first_us - CASE e.event WHEN '{Event.CHANNEL_END}' THEN {micros(params.trigger_before_s)}
        WHEN '{Event.CHANNEL_CREATE}' THEN {micros(params.birth_before_s)} ELSE {micros(params.restart_before_s)} END"""
    near = f"e.ts_us BETWEEN {oldest} AND {soon} OR {end}"
    # What ended before the channel began again was another life's end.
    reborn = f"""e.event = '{Event.CHANNEL_END}' AND exists(channel_events,
        c -> c.event = '{Event.CHANNEL_CREATE}' AND c.ts_us > e.ts_us AND c.ts_us <= first_us)"""
    every = f"concat(coalesce(channel_events, {_NO_EVENTS}), coalesce(server_events, {_NO_EVENTS}))"
    return f"""array_max(filter(
        transform(
            filter({every}, e -> ({near}) AND NOT ({reborn})),
            e -> struct({_rank()} AS rank, e.ts_us <= first_us AS before, e.ts_us AS ts_us, e.event AS event)
        ),
        e -> e.rank IS NOT NULL
    ))"""


def _rank() -> str:
    """How plausible event ``e`` is for ``answer``: the higher, the likelier; null if it is not."""
    cases = [f"WHEN answer IN ({quoted(answers)}) THEN {_place(events)}" for answers, events in PLAUSIBLE.items()]
    return f"CASE {' '.join(cases)} ELSE {_place(OTHERWISE)} END"


def _place(ranked: tuple[tuple[Event, ...], ...]) -> str:
    cases = [f"WHEN e.event IN ({quoted(events)}) THEN {-place}" for place, events in enumerate(ranked)]
    return f"CASE {' '.join(cases)} END"


def _last_end(params: StormParams) -> str:
    until = f"first_us + {micros(params.trigger_after_s)}"
    near = f"e.event = '{Event.CHANNEL_END}' AND e.ts_us BETWEEN {_since(params)} AND {until}"
    return f"array_max(transform(filter(channel_events, e -> {near}), e -> e.ts_us))"


def _birth(params: StormParams) -> str:
    """Somebody who waits for a channel to begin again stops asking when it does."""
    until = f"last_us + {micros(params.slow_gap_s)}"
    born = f"e.event = '{Event.CHANNEL_CREATE}' AND e.ts_us BETWEEN coalesce(ended_us, first_us) AND {until}"
    return f"array_max(transform(filter(channel_events, e -> {born}), e -> e.ts_us))"


def _lives() -> str:
    """A channel's seqs begin again with its next life."""
    born = f"e.event = '{Event.CHANNEL_CREATE}' AND e.ts_us > first_us AND e.ts_us <= last_us"
    return f"1 + size(filter(coalesce(channel_events, {_NO_EVENTS}), e -> {born}))"


def _since(params: StormParams) -> str:
    return f"first_us - {micros(params.trigger_before_s)}"
