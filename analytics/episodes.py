"""Which islands are storms, and which of those are one episode.

Several channels that one client loops on, and several clients that do the same to a channel at the same time, are one
episode in the end; only the report's reader would otherwise have to add them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import COUNTED, ONCE_PER_SEQ, REPEATABLE, Answer, quoted
from tricklecast.analytics.durations import micros
from tricklecast.analytics.islands import KEY, added_up, finished
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.query import query
from tricklecast.analytics.repeats import connections_sql, stretch_readers_sql
from tricklecast.analytics.severity import Severity, fast, severity, sums, worst_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EPISODE", "SLOWABLE", "Severity", "merge_channels", "merge_clients", "storms"]

EPISODE = (
    "class",
    "severity",
    "node",
    "release",
    "first_us",
    "last_us",
    "n",
    "hits",
    "n_clients",
    "n_channels",
    "clients",
    "channels",
    "named",
    "answer",
    "seq_lo",
    "seq_hi",
    "head_hi",
    "peak_rps",
    "retry_after_ms",
    "bytes_out",
    "dur_us",
    "trigger",
    "trigger_us",
)
"""Columns of a finished episode; those of one client's storms and of fleets are the same."""

SLOWABLE: Final = (Answer.NOT_FOUND, Answer.SEQ_MISSING, Answer.OVERLOAD)
"""Answers on which a client can loop so slowly that the usual gap would break its storm into pieces."""


def storms(found: DataFrame, params: StormParams) -> DataFrame:
    """The islands that are storms, with ``severity`` and ``slow``.

    What is no storm by itself, or a slow one of 404s, is put together with its neighbours of at most ``slow_gap_s``.

    Args:
        found: :func:`analytics.islands.islands`.
    """
    quick = f"(answer <> '{Answer.NOT_FOUND}' OR {fast(params)} OR mean_rps >= {params.not_found_rps})"
    # Fine and coarse islands are numbered from 1, each in their key: the sign keeps them apart.
    parts = f"""
        SELECT *, IF(alone, island, -coarse) AS part
        FROM (SELECT *, {severity(params)} IS NOT NULL AND {quick} AS alone FROM {{found}})
        WHERE alone OR answer IN ({quoted(SLOWABLE)})"""
    whole = finished(f"SELECT {KEY}, part, {added_up()} FROM ({parts}) GROUP BY {KEY}, part", params)
    # Where most of a stretch was healthy (its buckets are long), its requests are those that were repeated.
    healthy = f"answer = '{Answer.SERVED}' OR (answer IN ({quoted(ONCE_PER_SEQ)}) AND 2 * hits < n)"
    n = f"IF({healthy}, hits, n) AS n"
    # Who was held all the time had no second as full as those of its own time.
    peak = "greatest(peak_rps, mean_rps) AS peak_rps"
    return query(
        f"""
        SELECT * EXCEPT (n, part, peak_rps), {n}, {peak}, part < 0 AS slow
        FROM (SELECT *, {severity(params)} AS severity FROM ({whole}))
        WHERE severity IS NOT NULL AND NOT ({_crowd(params)}) AND NOT ({_sparse(params)})
            AND NOT ({_browsing(params)}) AND NOT ({_maybe_patient(params)})""",
        found=found,
    )


def _crowd(params: StormParams) -> str:
    """Many clients behind one key: each of many connections asked about once, and then it was over.

    Without a key there is only a network, in which there may be any number of clients.
    """
    once_each = f"n < {params.crowd_per_conn} * {connections_sql()}"
    soon = f"duration_s <= IF(named, {params.crowd_s}, {params.anonymous_s})"
    return f"""answer IN ({quoted(COUNTED)})
        AND ((NOT named AND conn_bits IS NULL) OR ({once_each} AND {soon}))"""


def _sparse(params: StormParams) -> str:
    """A segment asked for again now and then, as on a network that is bad: buckets of a minute have no pauses in them
    that could end an island, but their mean can be told."""
    return f"answer IN ({quoted(REPEATABLE)}) AND (hits - 1) * {params.gap_s} < duration_s"


def _browsing(params: StormParams) -> str:
    """A monitor that asks every second for the current segment (``-2``), or a player that seeks: what is there already,
    so that nothing was waited for, some times each, in no hurry."""
    times = f"n < {params.browse_times} * seqs * {stretch_readers_sql(params)}"
    return f"""answer = '{Answer.SERVED}' AND 2 * coalesce(waited, 0) < seqs AND {times}
        AND hits < {params.browse_rps} * duration_s"""


def _maybe_patient(params: StormParams) -> str:
    """Requests given up, in a log that does not say after how long: long polls, unless they come too fast for that."""
    return f"answer = '{Answer.ABANDONED}' AND coalesce(dur_us, 0) = 0 AND NOT {fast(params)}"


def merge_clients(classified: DataFrame, params: StormParams) -> DataFrame:
    """Storms of one class against one channel, at the same time, as one: ``clients``, ``n_clients``, ``crowd``.

    Args:
        classified: :func:`analytics.classes.classify`.
    """
    key = "class, node, channel, named"
    # A fleet is one row that knows its members; the others are one row per client.
    return query(
        f"""
        SELECT * EXCEPT (all_clients), xxhash64(all_clients) AS crowd
        FROM (SELECT {key}, {_together()}, array_sort(collect_set(client)) AS all_clients,
                coalesce(max_by(clients, n), {worst_names("client", params)}) AS clients,
                coalesce(max(n_clients), cast(size(collect_set(client)) AS bigint)) AS n_clients,
                max(n_channels) AS n_channels, max_by(channels, n) AS channels
            FROM ({_overlapping("storms", key, "client", params)})
            GROUP BY {key}, overlap)""",
        storms=classified,
    )


def merge_channels(by_channel: DataFrame, params: StormParams) -> DataFrame:
    """What the same clients did to several channels at the same time, as one episode.

    Args:
        by_channel: :func:`merge_clients`.

    Returns:
        the columns of :data:`EPISODE`.
    """
    key = "class, node, crowd, n_clients, named"
    return query(
        f"""
        SELECT {", ".join(EPISODE)}
        FROM (SELECT {key}, {_together()}, IF(min(release_lo) = max(release_hi), max(release_hi), NULL) AS release,
                max_by(clients, n) AS clients,
                coalesce(max(n_channels), cast(size(collect_set(channel)) AS bigint)) AS n_channels,
                coalesce(max_by(channels, n), {worst_names("channel", params)}) AS channels
            FROM ({_overlapping("storms", key, "channel", params)})
            GROUP BY {key}, overlap)""",
        storms=by_channel,
    )


def _overlapping(storms: str, key: str, name: str, params: StormParams) -> str:
    """Numbers, in ``overlap``, the groups of storms of a key between which there is no longer pause than in one."""
    ordered = f"PARTITION BY {key} ORDER BY first_us, last_us, {name}"
    pause = f"first_us - max(last_us) OVER ({ordered} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    allowed = f"IF(slow, {micros(params.slow_gap_s)}, {micros(params.gap_s)})"
    return f"""
        SELECT *, sum(starts) OVER ({ordered} ROWS UNBOUNDED PRECEDING) AS overlap
        FROM (SELECT *, IF({pause} <= {allowed}, 0, 1) AS starts FROM {{{storms}}})"""


def _together() -> str:
    cause = "min_by(struct(trigger, trigger_us), IF(trigger IS NULL, NULL, first_us))"
    # The clients' worst seconds need not be the same one: the sum of their means is the better bound for many. And
    # "critical" < "warn": the worst severity is the smallest text.
    return f"""{sums()}, sum(hits) AS hits, min(severity) AS severity, max_by(answer, n) AS answer, max(slow) AS slow,
        greatest(max(peak_rps), sum(hits) / greatest(1D, (max(last_us) - min(first_us)) / 1e6)) AS peak_rps,
        min(release_lo) AS release_lo, max(release_hi) AS release_hi,
        {cause}.trigger AS trigger, {cause}.trigger_us AS trigger_us"""
