"""The classes of storm, and how an episode is told to be of one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from tricklecast.analytics.answers import ONCE_PER_SEQ, Answer, quoted
from tricklecast.analytics.fleet import Fleet
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.query import query
from tricklecast.analytics.repeats import stretch_readers_sql
from tricklecast.analytics.triggers import SERVER_EVENTS
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StormClass(StrEnum):
    """What kind of storm (docs: one page per class)."""

    ZERO_BYTE_LOOP = "zero_byte_loop"
    """The same empty segment again and again."""
    SAME_SEGMENT_LOOP = "same_segment_loop"
    """The same segment, with its bytes, again and again. A detector that looks for empty answers misses it."""
    ENDED_LOOP = "ended_loop"
    """Told that the channel has ended (200 and ``Lp-Trickle-Closed``), the client asks on. One such answer per
    subscriber is how channels end; what follows it when the drain is over is a ``not_found_loop``."""
    NOT_FOUND_LOOP = "not_found_loop"
    """404 at twice a second or more."""
    NOT_FOUND_DRIP = "not_found_drip"
    """404 more slowly but without end, for a channel that has ended. (Before a channel begins, it is waiting.)"""
    SEQ_BEHIND_LOOP = "seq_behind_loop"
    """470 for segments that have left the window: the publisher is ahead of the client."""
    SEQ_AHEAD_SWEEP = "seq_ahead_sweep"
    """470 for segments beyond the head, mostly rising ones: the publisher is not there yet."""
    REPOST_LOOP = "repost_loop"
    """The same segment published again and again."""
    OVERLOAD_CLIENT = "overload_client"
    """429 or 503 to one client that does not slow down."""
    OVERLOAD_AMPLIFICATION = "overload_amplification"
    """429 or 503 to many clients, whose retries keep the server overloaded."""
    THUNDERING_HERD = "thundering_herd"
    """Many clients at the same moment, after a restart or on several channels, and again."""
    SERVER_ERROR_LOOP = "server_error_loop"
    """5xx to one client that does not slow down."""
    REJECTED_LOOP = "rejected_loop"
    """400, 401, 403 or 405 to one client that asks on, although no repetition can change that."""
    ABANDONED_LOOP = "abandoned_loop"
    """A client that gives up each GET before it is answered, and asks again at once."""


def classify(triggered: DataFrame, params: StormParams) -> DataFrame:
    """Adds ``class`` and drops what has none: answers that repeat in a way that is nobody's fault.

    Args:
        triggered: candidates after :func:`analytics.triggers.with_context` (needs ``ended_us``,
            ``trigger``).
    """
    classed = f"SELECT *, {_class_of(params)} AS class FROM {{triggered}} WHERE {_in_one_life(params)}"
    return query(f"SELECT * FROM ({classed}) WHERE class IS NOT NULL", triggered=triggered)


def _in_one_life(params: StormParams) -> str:
    """A channel's next life begins at seq 0 again: what was asked for in each of its lives was asked for once."""
    hits = f"(hits - (lives - 1) * seqs * {stretch_readers_sql(params)})"
    quickly = f"({hits} >= {params.warn_hits} AND peak_rps >= {params.warn_rps})"
    once = f"answer IN ({quoted(ONCE_PER_SEQ)})"
    return f"(NOT {once} OR lives = 1 OR coalesce({quickly} OR {hits} >= {params.warn_hits_alone}, true))"


def _class_of(params: StormParams) -> str:
    # That a channel was created is no cue for all.
    cued = f"coalesce(trigger IN ({quoted(SERVER_EVENTS)}), false)"
    # Nor is the end of one, of which each may learn by asking a few times: unless they insist.
    over = f"(trigger <=> '{Event.CHANNEL_END}' AND insistent)"
    return f"""
        CASE answer
        WHEN '{Answer.ZERO_BYTE}' THEN '{StormClass.ZERO_BYTE_LOOP}'
        WHEN '{Answer.SERVED}' THEN '{StormClass.SAME_SEGMENT_LOOP}'
        WHEN '{Answer.ENDED}' THEN '{StormClass.ENDED_LOOP}'
        WHEN '{Answer.ABANDONED}' THEN '{StormClass.ABANDONED_LOOP}'
        WHEN '{Answer.POST}' THEN '{StormClass.REPOST_LOOP}'
        WHEN '{Answer.SERVER_ERROR}' THEN '{StormClass.SERVER_ERROR_LOOP}'
        WHEN '{Answer.REJECTED}' THEN '{StormClass.REJECTED_LOOP}'
        WHEN '{Answer.SEQ_MISSING}' THEN {_seq_missing(params)}
        WHEN '{Answer.NOT_FOUND}' THEN {_not_found(params)}
        WHEN '{Answer.OVERLOAD}' THEN IF({_polite(params)}, NULL, '{StormClass.OVERLOAD_CLIENT}')
        WHEN '{Fleet.OVERLOAD}' THEN '{StormClass.OVERLOAD_AMPLIFICATION}'
        WHEN '{Fleet.HERD}' THEN IF({cued} OR {over} OR at_once, '{StormClass.THUNDERING_HERD}', NULL)
        END"""


def _seq_missing(params: StormParams) -> str:
    # With the head unknown (a log of another server), a range of seqs is a sweep and one seq is a client left behind;
    # but there is nothing before the first segment, and where no seq was resolved there is no segment at all.
    ahead = "coalesce(seq_lo >= head_lo, seq_hi > seq_lo OR seq_hi = 0, head_hi = 0, true)"
    rises = "coalesce(2 * (seq_hi - seq_lo + 1) >= n, false)"
    # Falling behind now and then, and being told so, is no loop; asking on past a head that stands still is one.
    sweeps = f"head_lo <=> head_hi AND {rises}"
    unhurried = f"mean_rps < {params.not_found_rps} AND peak_rps < {params.warn_rps}"
    # Asking about once a second whether the next segment is there is waiting for it.
    waits = f"{unhurried} AND NOT {rises} AND coalesce(seq_hi <= head_hi + 1, true)"
    # Who goes on from the head each time it fell behind leaves seqs out, each time.
    jumps = f"{unhurried} AND seq_hi - seq_lo + 1 >= 2 * n AND NOT coalesce(seq_lo >= head_lo, false)"
    return f"""CASE WHEN {jumps} THEN NULL
                 WHEN {ahead} THEN IF({waits} OR slow AND NOT ({sweeps}), NULL, '{StormClass.SEQ_AHEAD_SWEEP}')
                 WHEN NOT slow THEN '{StormClass.SEQ_BEHIND_LOOP}' END"""


def _not_found(params: StormParams) -> str:
    # A refusal that says that the channel has ended needs no event to prove it.
    ended = "(ended_us IS NOT NULL OR 2 * closed >= n)"
    return f"""CASE WHEN NOT slow THEN '{StormClass.NOT_FOUND_LOOP}'
                 WHEN mean_rps >= {params.not_found_rps} THEN '{StormClass.NOT_FOUND_LOOP}'
                 WHEN {ended} AND born_us IS NULL THEN '{StormClass.NOT_FOUND_DRIP}' END"""


def _polite(params: StormParams) -> str:
    """It waits about as long as it was told; or, if it was not told, it is slow."""
    told = f"coalesce({params.early} * retry_after_ms, 1000)"
    waits = f"gap_ms >= {told} AND peak_rps <= 1 + 1000 / greatest(1, {told})"
    return f"""CASE WHEN retry_after_ms > 0 THEN {waits}
                 ELSE slow OR (mean_rps < {params.overload_rps} AND peak_rps < {params.warn_rps}) END"""


def without_repetition(episodes: DataFrame, params: StormParams) -> DataFrame:
    """Drops what a fleet's overload, at the same time on the same node, already tells: its members, and its herd.

    Many clients that each loop on refusals amplify together, however short or evenly they do: they get that class.
    """
    whole, one = StormClass.OVERLOAD_AMPLIFICATION, StormClass.OVERLOAD_CLIENT
    spans = f"collect_list(IF(class = '{whole}', struct(first_us, last_us), NULL)) OVER (PARTITION BY node)"
    overlap = "exists(told, other -> first_us <= other.last_us AND other.first_us <= last_us)"
    many = f"class = '{one}' AND n_clients >= {params.many_clients}"
    return query(
        f"""
        SELECT * EXCEPT (told, class), IF({many}, '{whole}', class) AS class
        FROM (SELECT *, {spans} AS told FROM {{episodes}})
        WHERE NOT (class IN ({quoted((one, StormClass.THUNDERING_HERD))}) AND {overlap})""",
        episodes=episodes,
    )
